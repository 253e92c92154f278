//! What a front, a process that stands between a terminal and a job, does with signals. Safe, for processes whose only
//! thread calls it.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::signals::{self, Masked, SignalReader};
use crate::error::Error;
use crate::signal::Signal;

/// A signal that the front received, and where it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Which.
    pub signal: Signal,
    /// `si_code` of sigaction(2).
    pub code: i32,
    /// The sender's pid; 0 for the kernel.
    pub sender: i32,
}

impl Received {
    /// Whether the terminal sent it to its foreground group (`SI_KERNEL`).
    pub fn is_from_terminal(self) -> bool {
        self.code == 0x80
    }
}

/// Every signal of this process, blocked and read from a descriptor, but for those that the process ignored from its
/// start (`nohup`) and those that tell of its own faults.
pub struct SignalIntake(SignalReader);

impl SignalIntake {
    /// Takes over from the first instruction on: to be called first of all, by the only thread.
    pub fn start() -> Result<Self, Error> {
        Masked::all().keep();
        let own_faults = [
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGSEGV,
            libc::SIGSYS,
        ];
        let wanted = |signal: Signal| {
            !own_faults.contains(&signal.number())
                && ![Signal::KILL, Signal::STOP, Signal::CHLD, Signal::PIPE].contains(&signal)
                // glibc uses 32 and 33 for its threads.
                && ![32, 33].contains(&signal.number())
                && !signals::is_ignored(signal)
        };
        SignalReader::new(wanted).map(Self).map_err(|errno| Error::os("cannot read signals", errno))
    }

    /// The next pending signal, without waiting.
    pub fn read(&self) -> Option<Received> {
        self.0.read().map(|info| Received { signal: info.signal, code: info.code, sender: info.sender })
    }
}

impl AsFd for SignalIntake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::fmt::Debug for SignalIntake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalIntake")
    }
}

/// Waits until one of two descriptors is readable, and says which; neither is, once the time has passed.
pub fn wait_either(
    a: impl AsFd,
    b: impl AsFd,
    timeout: Option<std::time::Duration>,
) -> Result<(bool, bool), Error> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
    loop {
        let mut fds = [PollFd::new(&a, PollFlags::IN), PollFd::new(&b, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => return Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::os("cannot wait", errno)),
        }
    }
}

/// Whether a write of less than a page would not have to wait, now or within this time.
pub fn is_writable(fd: impl AsFd, within: std::time::Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    let timeout = Timespec::try_from(within).ok();
    // A descriptor that cannot be asked is not waited for by a write either.
    !matches!(poll(&mut fds, timeout.as_ref()), Ok(0))
}

/// Stops this process as a stop typed at the terminal would have, had it not been blocked: only if somebody can continue
/// it, that is if the parent is in this session and in another group. A session leader's group has nobody who could.
pub fn stop_if_controlled() {
    let Some(parent) = rustix::process::getppid() else { return };
    let session = |pid| rustix::process::getsid(pid).ok();
    let group = |pid| rustix::process::getpgid(pid).ok();
    if session(Some(parent)) == session(None) && group(Some(parent)) != group(None) {
        // SAFETY: SIGSTOP to the calling process.
        unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
    }
}

/// Dies of `signal` by its default action, so that a calling shell sees the interruption; returns where that is not
/// deadly (PID 1).
pub fn die_of(signal: Signal) {
    signals::set_default(signal);
    // SAFETY: a signal to the calling process. It is pending until it is unblocked on the next line.
    unsafe { libc::kill(libc::getpid(), signal.number()) };
    signals::unblock(signal);
}
