//! How a job must end: the rules of the design once more, in the order in which the keeper learns what happened.

use super::super::Slot;
use super::kernel::Ms;
use crate::error::{Stage, exec_status};
use crate::outcome::{RankReason, Reason, WaitStatus};
use crate::signal::Signal;

/// What ended the job.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Cause {
    Failure(Slot, u8),
    Spawn(Slot, u8),
    Signal(Signal),
    Client(Reason),
    Gone,
}

pub(super) struct Verdict {
    graces: (Ms, Ms, Ms),
    pub(super) now: Ms,
    pub(super) cause: Option<Cause>,
    /// When the stop began.
    pub(super) since: Ms,
    /// No worker is left, and none will come.
    pub(super) alone: bool,
    /// The rank's own status that goes before 128 + n.
    chosen: Option<(Slot, u8)>,
    kill_asked: bool,
    /// The latest signal to the group, and the first signal that counts as one to end the job: number and time.
    group: Option<(usize, Signal, Ms)>,
    first: Option<(usize, Ms)>,
    /// No SIGKILL before, nothing alive after.
    pub(super) kill_from: Ms,
    pub(super) dead_by: Ms,
}

impl Verdict {
    pub(super) fn new(graces: (Ms, Ms, Ms)) -> Self {
        Self {
            graces,
            now: 0,
            cause: None,
            since: 0,
            alone: false,
            chosen: None,
            kill_asked: false,
            group: None,
            first: None,
            kill_from: Ms::MAX,
            dead_by: Ms::MAX,
        }
    }

    fn bound(&mut self, grace: Ms, slack: Ms) {
        self.kill_from = self.kill_from.min(self.now + grace);
        self.dead_by = self.dead_by.min(self.now + grace + slack);
    }

    fn stop(&mut self, cause: Cause, grace: Ms, slack: Ms) {
        self.bound(grace, slack);
        if self.cause.is_none() && !self.alone {
            self.cause = Some(cause);
            self.since = self.now;
        }
    }

    pub(super) fn client_stops(&mut self, reason: Reason, grace: Ms) {
        self.kill_asked |= grace == 0;
        self.stop(Cause::Client(reason), grace, if grace == 0 { 400 } else { 1000 });
    }

    pub(super) fn client_left(&mut self) {
        self.stop(Cause::Client(Reason::Stopped), self.graces.0, 1000);
    }

    pub(super) fn client_died(&mut self) {
        self.stop(Cause::Gone, 500, 500);
    }

    pub(super) fn spawn_failed(&mut self, slot: Slot, stage: Stage, errno: i32) {
        let status = if stage == Stage::Exec { exec_status(errno) } else { 1 };
        if self.cause.is_none() {
            self.stop(Cause::Spawn(slot, status), self.graces.1, 1000);
        }
    }

    pub(super) fn group_signal(&mut self, id: usize, signal: Signal) {
        self.group = Some((id, signal, self.now));
    }

    /// The client's word of a terminating signal.
    pub(super) fn word(&mut self, id: usize, signal: Signal) {
        match self.first {
            Some((first, _)) if first == id => {}
            Some((_, at)) if self.now - at >= 250 => self.bound(0, 400),
            Some(_) => {}
            None => {
                self.first = Some((id, self.now));
                self.stop(Cause::Signal(signal), self.graces.0, 1000);
            }
        }
    }

    /// A worker that ran its program was reaped.
    pub(super) fn reaped(&mut self, slot: Slot, status: WaitStatus) -> RankReason {
        let mut reason = match status {
            _ if self.cause.is_some() => RankReason::Stopped,
            WaitStatus::Exited(0) => RankReason::Ok,
            WaitStatus::Exited(_) => RankReason::Failed,
            WaitStatus::Signaled(_) => RankReason::Signaled,
            WaitStatus::Lost => RankReason::Lost,
        };
        if self.cause.is_none() && !status.is_success() {
            let ends = |signal| [Signal::INT, Signal::TERM].contains(&signal);
            let fits = |signal| match status {
                WaitStatus::Exited(_) => ends(signal),
                _ => status == WaitStatus::Signaled(signal),
            };
            let recent = self.group.filter(|&(_, signal, at)| self.now - at <= 5000 && fits(signal));
            if let Some((id, signal, at)) = recent {
                self.first = Some((id, at));
                reason = RankReason::Stopped;
                self.stop(Cause::Signal(signal), self.graces.0, 1000);
            } else {
                self.stop(Cause::Failure(slot, status.shell_status()), self.graces.1, 1000);
            }
        }
        if let (WaitStatus::Exited(code @ 1..), Some(Cause::Signal(_))) = (status, self.cause) {
            self.chosen = self.chosen.or(Some((slot, code)));
        }
        reason
    }

    pub(super) fn all_gone(&mut self) {
        if !self.alone {
            self.alone = true;
            self.bound(self.graces.2, 1000);
        }
    }

    /// Status, reason, first failure.
    pub(super) fn outcome(&self) -> (u8, Reason, Option<Slot>) {
        let chosen = self.chosen;
        match self.cause {
            None => (0, Reason::Ok, None),
            Some(Cause::Failure(slot, status) | Cause::Spawn(slot, status)) => {
                (status, Reason::Failed, Some(slot))
            }
            Some(Cause::Signal(signal)) => {
                let status = chosen.map_or(128 + u8::try_from(signal.number()).unwrap(), |(_, code)| code);
                (status, Reason::Signal, chosen.map(|(slot, _)| slot))
            }
            Some(Cause::Client(Reason::Timeout)) => (124, Reason::Timeout, None),
            Some(Cause::Client(reason)) => (if self.kill_asked { 137 } else { 143 }, reason, None),
            Some(Cause::Gone) => (143, Reason::Stopped, None),
        }
    }
}
