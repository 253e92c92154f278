//! What a process that embeds a job, and is perhaps a rank itself, needs besides the job: a thread that no signal
//! reaches, something to wake it, waking another thread, ending the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::fds::above_streams;
use super::signals::Masked;
use crate::error::Error;
use crate::signal::Signal;

/// Starts a thread that no signal is delivered to: it inherits the mask of its maker (pthread_create(3)).
pub fn spawn_deaf(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let _masked = Masked::all();
    Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body)
}

/// Wakes one waiting thread; rung before it waits, it does so at once.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell that has not been rung.
    pub fn new() -> Result<Self, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        fd.and_then(above_streams).map(Self).map_err(|errno| Error::os("cannot make an eventfd", errno))
    }

    /// Rings it.
    pub fn ring(&self) {
        // Fails only when it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits until it is rung, `other` is readable, or the time has passed. It is silent afterwards.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) {
        let mut fds = vec![PollFd::new(&self.0, PollFlags::IN)];
        fds.extend(other.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        // An error is as good as a ring: the caller looks again.
        let _ = poll(&mut fds, timeout.as_ref());
        self.silence();
    }

    /// Takes back the rings that nobody has waited for.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// Readable when it was rung.
impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A thread of this process that signals can be sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread {
    process: i32,
    thread: i32,
}

impl Thread {
    /// The calling thread.
    pub fn current() -> Self {
        // SAFETY: neither call takes anything or can fail.
        unsafe { Self { process: libc::getpid(), thread: libc::gettid() } }
    }

    /// Sends a signal to it. Nothing is sent when it has ended, nor from a forked child.
    pub fn signal(self, signal: Signal) {
        // SAFETY: plain numbers; tgkill refuses a thread that is not of this process (tgkill(2), ESRCH).
        unsafe {
            if libc::getpid() == self.process {
                libc::syscall(libc::SYS_tgkill, self.process, self.thread, signal.number());
            }
        }
    }
}

/// A copy of a descriptor that a caller knows by its number.
pub fn duplicate(fd: i32) -> Result<OwnedFd, Error> {
    let closed = || Error::usage(format!("not an open file descriptor: {fd}"));
    if fd < 0 { Err(closed()) } else { super::duplicate(fd).map_err(|_| closed()) }
}

/// Writes to standard error, without a buffer. Gives up when nobody reads for a second: the caller has to end.
pub fn tell(text: &str) {
    // SAFETY: not closed while it is borrowed but by somebody who closes standard error; writing fails then.
    let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        if !matches!(poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&second)), Ok(1)) {
            return;
        }
        // No more than a pipe that is ready takes at once (pipe(7), PIPE_BUF): the write does not block.
        match rustix::io::write(stderr.as_fd(), &rest[..rest.len().min(libc::PIPE_BUF)]) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Ends the process at once, without destructors or `atexit` functions. With `flush`, C's own buffers are written first:
/// not for a thread beside others that may hold their locks.
pub fn end_process(status: u8, flush: bool) -> ! {
    // SAFETY: fflush of NULL means all streams (fflush(3)); _exit does not return.
    unsafe {
        if flush {
            libc::fflush(std::ptr::null_mut());
        }
        libc::_exit(i32::from(status))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Bell, spawn_deaf};

    #[test]
    fn a_bell_wakes_a_deaf_thread_once() {
        let bell = Arc::new(Bell::new().unwrap());
        bell.ring();
        bell.ring();
        bell.wait(None, None);
        let sleeper = Arc::clone(&bell);
        let thread = spawn_deaf("sleeper", move || sleeper.wait(None, None)).unwrap();
        bell.ring();
        thread.join().unwrap();
        bell.wait(Some(std::io::stderr().as_fd()), Some(Duration::ZERO));
    }
}
