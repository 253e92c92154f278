//! Ending the descendants that a subreaper is left with.

use std::collections::HashSet;
use std::time::Duration;

use rustix::io::Errno;

use crate::os;
use crate::pid::Pid;
use crate::policy::KILL_ROUND;
use crate::signal::Signal;

/// The longest chase: half of the time between two rounds.
const CHASE: Duration = KILL_ROUND.checked_div(2).expect("not zero");

/// The descendants of this process that were sent a signal.
#[derive(Default)]
pub(crate) struct Sweep {
    signalled: HashSet<Pid>,
    /// When the first were asked to end, in ticks.
    since: Option<u64>,
}

impl Sweep {
    /// SIGKILL to every living descendant of `root`, or SIGTERM, and SIGCONT for those that are stopped and would not
    /// see it. Workers get it too, and are not counted. In many rounds SIGTERM comes once, since a second one means "at
    /// once" to many programs, and does not come to those made after the first round: they help others to clean up.
    pub(crate) fn round(&mut self, root: Pid, kill: bool, is_worker: impl Fn(Pid) -> bool) {
        let signals: &[Signal] = if kill { &[Signal::KILL] } else { &[Signal::TERM, Signal::CONT] };
        let since = self.since;
        self.since.get_or_insert_with(os::now_ticks);
        for (pid, parent) in os::descendants(root) {
            let is_old = || since.is_none_or(|since| os::start_ticks(pid).is_some_and(|made| made < since));
            if !kill && (self.signalled.contains(&pid) || !is_old()) {
                continue;
            }
            if os::signal_child_of(pid, parent, signals) && !is_worker(pid) {
                self.signalled.insert(pid);
            }
        }
        if kill {
            self.chase(is_worker);
        }
    }

    /// SIGKILL to each child as it is adopted, for a short while or until none is new. A process that forks and ends all
    /// the time is gone before a walk of the tree comes to it; it must be met between the death of its parent, which
    /// makes it our child, and its own fork.
    fn chase(&mut self, is_worker: impl Fn(Pid) -> bool) {
        let Some(children) = os::OwnChildren::open() else { return };
        let until = os::monotonic() + CHASE;
        let mut known = HashSet::new();
        while os::monotonic() < until {
            let mut any_new = false;
            children.each(|pid| {
                if known.insert(pid) {
                    any_new = true;
                    os::kill_child(pid);
                    if !is_worker(pid) {
                        self.signalled.insert(pid);
                    }
                }
            });
            if !any_new || reap(&is_worker) != Left::Some {
                return;
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
