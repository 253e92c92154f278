//! The socket between client and keeper.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};

use super::fds::above_streams;

/// Two ends of a stream, both closed on exec.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    Ok((above_streams(ours)?, above_streams(theirs)?))
}

/// Sends what fits without waiting; a peer that is gone is `EPIPE`, never SIGPIPE.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Sends all of it, waiting for room.
pub(crate) fn send_all(socket: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Sends bytes with descriptors.
pub(crate) fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// Reads at most `count` bytes, and the descriptors that came with them, without waiting. No bytes: the end.
pub(crate) fn receive(socket: impl AsFd, count: usize, fds: &mut Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; count.min(64 * 1024)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            for fd in received {
                fds.push(above_streams(fd)?);
            }
        }
    }
    bytes.truncate(message.bytes);
    Ok(bytes)
}

/// Ends the conversation for every holder of the socket, forks included.
pub(crate) fn shut_down(socket: impl AsFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}
