//! Ending the descendants that a subreaper is left with.

use std::collections::HashSet;

use rustix::io::Errno;

use crate::os;
use crate::pid::Pid;
use crate::signal::Signal;

/// The descendants of this process that were sent a signal.
#[derive(Default)]
pub(crate) struct Sweep {
    signalled: HashSet<Pid>,
}

impl Sweep {
    /// SIGKILL to every living descendant of `root`, or SIGTERM, and SIGCONT for those that are stopped and would not
    /// see it. Workers get it too, and are not counted.
    pub(crate) fn round(&mut self, root: Pid, kill: bool, is_worker: impl Fn(Pid) -> bool) {
        let signals: &[Signal] = if kill { &[Signal::KILL] } else { &[Signal::TERM, Signal::CONT] };
        for (pid, parent) in os::descendants(root) {
            if os::signal_child_of(pid, parent, signals) && !is_worker(pid) {
                self.signalled.insert(pid);
            }
        }
    }

    /// How many were sent one.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.signalled.len()).unwrap_or(u32::MAX)
    }
}

/// What is left of this process's children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// None at all.
    Nobody,
    /// Some live.
    Some,
    /// One that `spare` keeps has ended.
    Spared,
}

/// Reaps every child that has ended, but for those that somebody else reaps.
pub(crate) fn reap(spare: impl Fn(Pid) -> bool) -> Left {
    loop {
        match os::peek_ended_child() {
            Ok(Some(pid)) if spare(pid) => return Left::Spared,
            Ok(Some(pid)) => os::reap_child(pid),
            Err(Errno::CHILD) => return Left::Nobody,
            Ok(None) | Err(_) => return Left::Some,
        }
    }
}
