//! Descriptors: memfds, duplicates, ports, random bytes.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::error::Error;

/// Eight random hexadecimal digits.
pub(crate) fn random_hex() -> Result<String, Error> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::os("cannot get random bytes", errno))?;
    Ok(format!("{:08x}", u32::from_ne_bytes(bytes)))
}

/// A duplicate of an open descriptor that a caller named by its number.
pub(crate) fn duplicate(fd: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: `borrow_raw` wants an open descriptor; F_DUPFD_CLOEXEC is the only use, and answers EBADF for others.
    // The descriptor is not kept beyond the call. -1 was refused by the caller.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_dupfd_cloexec(borrowed, 3)
}

/// The descriptor away from the numbers of the standard streams, which a host may have closed: whatever it writes to them
/// would land here.
pub(crate) fn above_streams(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    if fd.as_raw_fd() > 2 { Ok(fd) } else { duplicate_above(&fd, 3) }
}

/// A duplicate whose number is at least `floor`, closed on exec.
pub(crate) fn duplicate_above(fd: impl AsFd, floor: RawFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(fd, floor)
}

/// A sealed anonymous file with these bytes, read from its start.
pub(crate) fn memfd(bytes: &[u8]) -> Result<OwnedFd, Error> {
    let fail = |errno| Error::os("cannot make the plan's memory file", errno);
    let fd = rustix::fs::memfd_create("nativelaunch-plan", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(fail)?;
    let mut file = File::from(above_streams(fd).map_err(fail)?);
    let io = |error: std::io::Error| fail(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    file.write_all(bytes).map_err(io)?;
    file.rewind().map_err(io)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(fail)?;
    Ok(file.into())
}

/// All bytes of a sealed file; one that could still change is refused.
pub(crate) fn read_all(fd: OwnedFd) -> std::io::Result<Vec<u8>> {
    let seals = rustix::fs::fcntl_get_seals(&fd)?;
    if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    File::from(fd).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A free TCP port, held by a socket that is bound and does not listen. With `SO_REUSEADDR` on both sides rank 0 binds
/// and listens beside it, while nobody else is given the port.
pub(crate) fn reserve_port() -> Result<(OwnedFd, u16), Error> {
    let fail = |errno| Error::os("cannot reserve a port", errno);
    let v6 = std::net::SocketAddr::from(([0u16; 8], 0));
    let v4 = std::net::SocketAddr::from(([0u8; 4], 0));
    let bind = |family, address| -> Result<(OwnedFd, u16), Errno> {
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if family == AddressFamily::INET6 {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        rustix::net::bind(&socket, &address)?;
        let name = rustix::net::getsockname(&socket)?;
        let port = std::net::SocketAddr::try_from(name)?.port();
        Ok((above_streams(socket)?, port))
    };
    bind(AddressFamily::INET6, v6).or_else(|_| bind(AddressFamily::INET, v4)).map_err(fail)
}

/// CPUs in this process's affinity mask, at least 1.
pub(crate) fn affinity_count() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count().max(1))
}

/// Takes over a descriptor that whoever executed us left open under this number.
pub(crate) fn take(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: only asked whether it is open. Callers take each number once, right after exec, before this process has
    // opened anything, so that nobody else owns it.
    let owned = unsafe {
        rustix::io::fcntl_getfd(BorrowedFd::borrow_raw(fd)).ok()?;
        OwnedFd::from_raw_fd(fd)
    };
    rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(owned)
}

/// [`take`], if it is a socket.
pub(crate) fn take_socket(fd: RawFd) -> Option<OwnedFd> {
    take(fd).filter(|fd| sockopt::socket_type(fd).is_ok())
}

/// A pipe, reading end first, closed on exec.
pub(crate) fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
}

/// Lets the process that waits at the other end of the pipe go on.
pub(crate) fn release(end: &OwnedFd) {
    let _ = rustix::io::write(end, &[1]);
}

/// Waits for [`release`]; false if the other side ended without it, or if `watched` became readable first.
pub(crate) fn wait_release(end: &OwnedFd, watched: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let mut fds = [PollFd::new(end, PollFlags::IN), PollFd::new(watched, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            Err(_) => return false,
            Ok(_) if fds[0].revents().is_empty() => return false,
            Ok(_) => {}
        }
        match rustix::io::read(end, &mut [0u8; 1]) {
            Ok(count) => return count == 1,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// `/dev/null`.
pub(crate) fn open_null() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Standard streams to `/dev/null`, working directory to `/`: nothing of the caller's is held open.
pub(crate) fn leave_streams() {
    if let Ok(null) = open_null() {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let _ = rustix::process::chdir("/");
}
