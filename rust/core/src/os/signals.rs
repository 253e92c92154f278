//! Masks, dispositions, and signals read from a descriptor.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use crate::signal::Signal;

/// This thread with every signal blocked, until dropped.
pub(crate) struct Masked {
    saved: libc::sigset_t,
    /// Masks belong to threads: not Send.
    _thread: PhantomData<*const ()>,
}

impl Masked {
    /// Blocks every signal in this thread.
    pub(crate) fn all() -> Self {
        let mut saved = MaybeUninit::uninit();
        let full = full_set();
        // SAFETY: both pointers are to sets of our own; SIG_BLOCK with a full set cannot fail.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const full, saved.as_mut_ptr());
            Self { saved: saved.assume_init(), _thread: PhantomData }
        }
    }

    /// The mask that was there before.
    pub(super) fn saved(&self) -> &libc::sigset_t {
        &self.saved
    }

    /// Leaves the signals blocked for good.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: `saved` is what pthread_sigmask gave for this thread; a Masked stays in its thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.saved, ptr::null_mut()) };
    }
}

pub(super) fn full_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set it is given.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Whether this process ignores the signal.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a null new action only asks; the old one is written before success is returned.
    unsafe {
        libc::sigaction(signal.number(), ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Gives the signal its default action.
pub(super) fn set_default(signal: Signal) {
    // SAFETY: SIG_DFL is a valid disposition; no handler of ours is replaced.
    unsafe { libc::signal(signal.number(), libc::SIG_DFL) };
}

/// Unblocks one signal in this thread.
pub(super) fn unblock(signal: Signal) {
    let mut set = empty_set();
    // SAFETY: the set is initialised and our own.
    unsafe {
        libc::sigaddset(&raw mut set, signal.number());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
    }
}

/// A signal that was read, and where it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SignalInfo {
    pub(crate) signal: Signal,
    /// `si_code`: `SI_USER` 0, `SI_KERNEL` 128 for the terminal's.
    pub(crate) code: i32,
    /// The sender's pid; 0 for the kernel.
    pub(crate) sender: i32,
}

/// Blocked signals as a readable descriptor.
pub(crate) struct SignalReader(OwnedFd);

impl SignalReader {
    /// Reads the signals that `wanted` picks; they must be blocked in every thread.
    pub(crate) fn new(wanted: impl Fn(Signal) -> bool) -> Result<Self, Errno> {
        let mut set = empty_set();
        for signal in (1..=64).filter_map(Signal::new).filter(|&s| wanted(s)) {
            // SAFETY: the set is initialised; a number it cannot hold is refused by the call.
            unsafe { libc::sigaddset(&raw mut set, signal.number()) };
        }
        // SAFETY: the set is initialised; the descriptor returned is new and ours alone.
        unsafe {
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
            }
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// The next pending signal.
    pub(crate) fn read(&self) -> Option<SignalInfo> {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        let mut bytes = [0u8; SIZE];
        loop {
            match rustix::io::read(&self.0, &mut bytes) {
                Ok(SIZE) => break,
                Err(Errno::INTR) => {}
                _ => return None,
            }
        }
        // SAFETY: the kernel wrote one whole signalfd_siginfo, which is plain data; the read copes with alignment 1.
        let info: libc::signalfd_siginfo = unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) };
        let signal = Signal::new(i32::try_from(info.ssi_signo).ok()?)?;
        Some(SignalInfo { signal, code: info.ssi_code, sender: i32::try_from(info.ssi_pid).unwrap_or(0) })
    }
}

impl AsFd for SignalReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
