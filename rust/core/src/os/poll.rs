//! Waiting for descriptors.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;

use super::fds::above_streams;
use super::signals::Masked;

/// What a descriptor in a [`Poller`] stands for.
pub(crate) type Token = u64;

/// An epoll set, read one event at a time in the kernel's order.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    ready: VecDeque<Token>,
}

impl Poller {
    pub(crate) fn new() -> Result<Self, Errno> {
        let epoll = above_streams(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        Ok(Self { epoll, ready: VecDeque::new() })
    }

    /// Watches for input, an end of file or an error.
    pub(crate) fn watch(&self, fd: impl AsFd, token: Token) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
    }

    /// Watches for room to write as well, or no longer.
    pub(crate) fn watch_output(&self, fd: impl AsFd, token: Token, output: bool) -> Result<(), Errno> {
        let flags =
            if output { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }

    /// Watches no longer; to be called before the descriptor is closed, since a fork may hold the file open.
    pub(crate) fn forget(&mut self, fd: impl AsFd, token: Token) {
        let _ = epoll::delete(&self.epoll, fd);
        self.ready.retain(|&ready| ready != token);
    }

    /// Waits until something is ready or the time has passed; `None` waits for ever. Taken by [`Self::next`].
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        let timeout = timeout.map(|t| rustix::event::Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        self.ready.extend(events.iter().map(|event| event.data.u64()));
        Ok(())
    }

    /// The next ready descriptor.
    pub(crate) fn next(&mut self) -> Option<Token> {
        self.ready.pop_front()
    }
}

/// Readable when something in it is.
impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Waits until `fd` is readable (`true`) or the time has passed (`false`).
///
/// `interrupted` is asked whether to give up (`None` then), before the wait and after each signal to this thread. It is
/// asked twice: first as things are, since it may run a program's signal handlers; and again for what came meanwhile, with
/// signals blocked until the wait itself lets them in, so that none is lost between.
pub(crate) fn poll_ready(
    fd: impl AsFd,
    timeout: Option<Duration>,
    mut interrupted: impl FnMut() -> bool,
) -> Result<Option<bool>, Errno> {
    let deadline = timeout.map(|t| super::monotonic() + t);
    loop {
        if interrupted() {
            return Ok(None);
        }
        let masked = Masked::all();
        if interrupted() {
            return Ok(None);
        }
        let left = deadline.map(|at| at.saturating_sub(super::monotonic()));
        let left = left.map(|t| libc::timespec {
            tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut poll = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = left.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: one pollfd of ours, a timeout or null, and an initialised mask.
        let count = unsafe { libc::ppoll(&raw mut poll, 1, timeout, masked.saved()) };
        let error = std::io::Error::last_os_error();
        drop(masked);
        match count {
            0 => return Ok(Some(false)),
            1.. => return Ok(Some(true)),
            _ => match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                Some(errno) => return Err(errno),
                None => return Err(Errno::INVAL),
            },
        }
    }
}
