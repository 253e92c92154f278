//! Processes: waiting, signalling, and what a process says of itself.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::PidfdFlags;
use rustix::time::ClockId;

use super::fds::above_streams;
use super::procfs;
use super::signals;
use crate::outcome::WaitStatus;
use crate::pid::Pid;
use crate::signal::Signal;

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

fn clock(id: ClockId) -> Duration {
    let now = rustix::time::clock_gettime(id);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// `CLOCK_MONOTONIC`.
pub(crate) fn monotonic() -> Duration {
    clock(ClockId::Monotonic)
}

/// Now, in the ticks that tell when a process was made.
pub(crate) fn now_ticks() -> u64 {
    // SAFETY: asks for a constant.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100);
    let now = clock(ClockId::Boottime);
    now.as_secs() * per_second + u64::from(now.subsec_millis()) * per_second / 1000
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> f64 {
    clock(ClockId::Realtime).as_secs_f64()
}

/// This node's name.
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// This process. `None` for PID 1.
pub(crate) fn own_pid() -> Option<Pid> {
    Pid::new(rustix::process::getpid().as_raw_nonzero().get())
}

/// A descriptor for the process with this number.
pub(crate) fn open_pidfd(pid: i32) -> Result<OwnedFd, Errno> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// A descriptor for this process.
pub(crate) fn open_own_pidfd() -> Result<OwnedFd, Errno> {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).and_then(above_streams)
}

/// Sends a signal. A process that is gone is not an error.
pub(crate) fn send_signal(pidfd: impl AsFd, signal: Signal) -> Result<(), Errno> {
    // SAFETY: the C library reserves 32 and 33 for its own threads; a launcher passes on what it was sent, and the
    // receiver is another process.
    let signal = unsafe { rustix::process::Signal::from_raw_unchecked(signal.number()) };
    match rustix::process::pidfd_send_signal(pidfd, signal) {
        Err(Errno::SRCH) | Ok(()) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Sends signals to a process found in `/proc`, if it is still this parent's child: its number may have a new owner.
pub(crate) fn signal_child_of(pid: Pid, parent: Pid, signals: &[Signal]) -> bool {
    let Ok(pidfd) = open_pidfd(pid.get()) else { return false };
    if procfs::parent(pid) != Some(parent.get()) {
        return false;
    }
    signals.iter().all(|&signal| send_signal(&pidfd, signal).is_ok())
}

/// SIGKILL to a child that is not reaped: its number is its own until then.
pub(crate) fn kill_child(pid: Pid) {
    // SAFETY: plain numbers; a pid above 1 names one process.
    unsafe { libc::kill(pid.get(), libc::SIGKILL) };
}

/// Waits for a child that was killed, and reaps it.
pub(crate) fn wait_for_child(pid: Pid) {
    let Ok(pid) = libc::id_t::try_from(pid.get()) else { return };
    // SAFETY: a null siginfo_t asks for nothing to be stored (waitid(2), Linux).
    while unsafe { libc::waitid(libc::P_PID, pid, std::ptr::null_mut(), libc::WEXITED) } != 0
        && last_errno() == Errno::INTR
    {}
}

/// What became of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reap {
    /// It still runs.
    Alive,
    /// It ended, and is reaped.
    Ended(WaitStatus),
}

/// The kernel's words on one child: pid and status.
fn wait_id(
    kind: libc::idtype_t,
    id: libc::id_t,
    options: i32,
) -> Result<Option<(i32, libc::siginfo_t)>, Errno> {
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the pointer is to a siginfo_t of ours; zeroed is a valid value for it.
        let (result, info) = unsafe {
            let result = libc::waitid(kind, id, info.as_mut_ptr(), options | libc::WNOHANG);
            (result, info.assume_init())
        };
        if result == 0 {
            // SAFETY: after waitid, si_pid is set, to 0 if no child was ready (it was zeroed).
            let pid = unsafe { info.si_pid() };
            return Ok((pid != 0).then_some((pid, info)));
        }
        match last_errno() {
            Errno::INTR => {}
            errno => return Err(errno),
        }
    }
}

fn status(info: &libc::siginfo_t) -> WaitStatus {
    // SAFETY: filled by waitid for a child that ended, so si_status is set.
    let value = unsafe { info.si_status() };
    if info.si_code == libc::CLD_EXITED {
        WaitStatus::Exited(u8::try_from(value & 0xff).unwrap_or(u8::MAX))
    } else {
        Signal::new(value).map_or(WaitStatus::Lost, WaitStatus::Signaled)
    }
}

/// Reaps the child behind a pidfd if it has ended; one that somebody else reaped is lost.
pub(crate) fn reap_pidfd(pidfd: impl AsFd) -> Reap {
    let id = libc::id_t::try_from(pidfd.as_fd().as_raw_fd()).unwrap_or(0);
    match wait_id(libc::P_PIDFD, id, libc::WEXITED) {
        Ok(Some((_, info))) => Reap::Ended(status(&info)),
        Ok(None) => Reap::Alive,
        Err(_) => Reap::Ended(WaitStatus::Lost),
    }
}

/// A child that has ended and is not reaped yet; `Err(CHILD)` if there are no children at all.
pub(crate) fn peek_ended_child() -> Result<Option<Pid>, Errno> {
    let found = wait_id(libc::P_ALL, 0, libc::WEXITED | libc::WNOWAIT)?;
    Ok(found.and_then(|(pid, _)| Pid::new(pid)))
}

/// Reaps this child if it has ended.
pub(crate) fn reap_child(pid: Pid) {
    let _ = wait_id(libc::P_PID, libc::id_t::try_from(pid.get()).unwrap_or(0), libc::WEXITED);
}

/// A child that stopped (`true`) or continued since the last call.
pub(crate) fn take_stop() -> Option<(Pid, bool)> {
    let (pid, info) = wait_id(libc::P_ALL, 0, libc::WSTOPPED | libc::WCONTINUED).ok()??;
    Some((Pid::new(pid)?, info.si_code != libc::CLD_CONTINUED))
}

/// Which side of a fork this is.
pub(crate) enum ForkSide {
    Child,
    Parent(Pid),
}

/// Forks. For single-threaded processes of ours only: guard and keeper.
pub(crate) fn fork() -> Result<ForkSide, Errno> {
    // SAFETY: the calling process is single-threaded, so the child may do whatever the parent may.
    match unsafe { libc::fork() } {
        0 => Ok(ForkSide::Child),
        pid => Pid::new(pid).map(ForkSide::Parent).ok_or_else(last_errno),
    }
}

/// Ends this process without running anything else.
#[allow(clippy::exit)]
pub(crate) fn exit_now(status: u8) -> ! {
    // SAFETY: _exit runs no handlers and touches no memory.
    unsafe { libc::_exit(status.into()) }
}

/// The name that `ps` and `pkill` know this process by.
pub(crate) fn name_process(name: &CStr) {
    let _ = rustix::thread::set_name(name);
}

/// Orphaned descendants become children of this process.
pub(crate) fn set_subreaper() -> Result<(), Errno> {
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))
}

/// The signal this process gets when its parent's thread dies.
pub(crate) fn set_death_signal(signal: Signal) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(rustix::process::Signal::from_named_raw(signal.number()))
}

/// SIGCHLD at its default: ignored, it would make the kernel throw statuses away.
pub(crate) fn reset_sigchld() {
    signals::set_default(Signal::CHLD);
}

/// A session and group of its own.
pub(crate) fn start_session() -> Result<(), Errno> {
    rustix::process::setsid().map(drop)
}

/// The limit on a process's descriptors.
pub(crate) fn descriptor_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// The limit on this user's processes, if there is one.
pub(crate) fn process_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nproc).current
}
