//! The state machine of a job: what happened goes in, what to do comes out. It does no I/O and reads no clock.
//!
//! The keeper's loop turns descriptors into [`Input`]s and [`Action`]s into system calls; everything that can be
//! decided is decided here. There is one deadline at a time, asked for by [`JobState::deadline`] after each input, so
//! that no stale timer can fire.

use std::time::Duration;

use crate::error::{Stage, exec_status};
use crate::event::{Event, EventKind};
use crate::outcome::{RankOutcome, RankReason, Reason, SpawnFailure, WaitStatus};
use crate::pid::Pid;
use crate::policy::{
    CLIENT_GONE_GRACE, GROUP_SIGNAL_WINDOW, KILL_ROUND, Policy, SECOND_SIGNAL_AFTER, SWEEP_SLACK,
    UNKILLABLE_AFTER,
};
use crate::signal::Signal;

#[cfg(test)]
mod model;

/// A worker's place in the job, from 0.
pub(crate) type Slot = usize;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    /// The worker's process was made; its exec is not confirmed yet.
    Forked(Slot, Pid),
    /// The worker's process could not be made.
    ForkFailed(Slot, i32),
    /// The worker's program runs.
    Executed(Slot),
    /// The worker's process could not become its program; it ends by itself.
    ExecFailed(Slot, Stage, i32),
    /// The worker's process stopped, or continued (`false`).
    Stopped(Slot, bool),
    /// The worker's process was reaped.
    Reaped(Slot, WaitStatus),
    /// The client asks for a signal. `delivered`: it was sent to the whole group, so the workers have it already.
    Signal {
        /// Which.
        signal: Signal,
        /// Whether the workers have it already.
        delivered: bool,
    },
    /// The client asks for a signal to one worker.
    SignalOne(Slot, Signal),
    /// The keeper got a terminating signal itself: it was sent to the group, so the workers have it. Whether the job is
    /// to end is the client's word, or shows when a worker dies of it.
    GroupSignal(Signal),
    /// The client asks for the end: SIGTERM, and SIGKILL after the grace.
    Stop {
        /// [`Reason::Stopped`] or [`Reason::Timeout`].
        reason: Reason,
        /// Time to SIGKILL.
        grace: Duration,
    },
    /// The client closed the conversation and lives on.
    ClientLeft,
    /// The client died.
    ClientDied,
    /// The guard died.
    GuardDied,
    /// No descendant is left; so many were ended by the sweep.
    NoDescendants(u32),
    /// The deadline has passed.
    Deadline,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Send a signal to a worker that is not reaped.
    Signal(Slot, Signal),
    /// Look for descendants and answer with [`Input::NoDescendants`] when there are none, now or later. SIGTERM and
    /// SIGCONT to each, or SIGKILL.
    Sweep {
        /// SIGKILL instead of SIGTERM and SIGCONT.
        kill: bool,
    },
    /// Tell the client.
    Report(Event),
    /// The job is over.
    Finish,
}

/// Where a worker is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Life {
    /// Not made yet.
    Planned,
    /// Made, exec unconfirmed; signals wait.
    Forked(Vec<Signal>),
    /// Running its program.
    Running,
    /// Could not become its program; its process is about to end.
    Failed,
    /// Reaped, or never made.
    Gone,
}

#[derive(Clone, Debug)]
struct Worker {
    rank: u32,
    local_rank: u32,
    life: Life,
    stopped: bool,
    /// It was there when the latest terminating signal came to the group.
    grouped: bool,
    /// We asked it to end.
    asked: bool,
    pid: Option<Pid>,
    status: Option<WaitStatus>,
    reason: RankReason,
    started: Option<Duration>,
    ended: Option<Duration>,
    order: Option<u32>,
}

impl Worker {
    fn is_alive(&self) -> bool {
        !matches!(self.life, Life::Planned | Life::Gone)
    }
}

/// Where the job is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Starting workers one after another, or all run.
    Running,
    /// Asked to end; SIGKILL at the deadline.
    Stopping(Duration),
    /// No worker is left, descendants are asked to end; SIGKILL at the deadline.
    Sweeping(Duration),
    /// SIGKILL to all that is left, every round; given up at the second time.
    Killing { round: Duration, give_up: Duration },
    /// Over.
    Done,
}

/// Why the job is being ended; the first reason stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// A worker ended by itself with a failure.
    Worker(Slot),
    /// A worker could not be started.
    Spawn(Slot, SpawnFailure),
    /// An outside signal.
    Signal(Signal),
    /// The client asked.
    Client(Reason),
    /// The client is gone.
    Gone,
}

/// A terminating signal that the keeper saw because it went to the whole group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct GroupSignal {
    signal: Signal,
    at: Duration,
    /// A worker's death of it has begun the stop; the client's word of it is still to come and is not a second signal.
    counted: bool,
}

impl GroupSignal {
    /// Ctrl-C, and SIGTERM, are taken to end the job; SIGHUP and SIGQUIT may mean something else to who handles them.
    fn asks_to_end(&self) -> bool {
        [Signal::INT, Signal::TERM].contains(&self.signal)
    }
}

/// A job: its workers and where it is.
#[allow(clippy::struct_excessive_bools)] // facts that do not depend on each other
#[derive(Clone, Debug)]
pub(crate) struct JobState {
    policy: Policy,
    workers: Vec<Worker>,
    next: Slot,
    phase: Phase,
    cause: Option<Cause>,
    /// The latest terminating signal to the group.
    group_signal: Option<GroupSignal>,
    /// The first outside terminating signal and when it came.
    first_signal: Option<(Signal, Duration)>,
    /// The first non-zero status that a rank chose after an outside signal.
    chosen: Option<(Slot, u8)>,
    /// The latest time at which something may be left.
    hard_deadline: Option<Duration>,
    deaths: u32,
    swept: u32,
    kill_asked: bool,
    client_died: bool,
    guard_lost: bool,
    gave_up: bool,
}

impl JobState {
    /// A job of these workers, each a rank and a local rank, none of them started.
    pub(crate) fn new(policy: Policy, workers: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let worker = |(rank, local_rank)| Worker {
            rank,
            local_rank,
            life: Life::Planned,
            stopped: false,
            grouped: false,
            asked: false,
            pid: None,
            status: None,
            reason: RankReason::NotStarted,
            started: None,
            ended: None,
            order: None,
        };
        Self {
            policy,
            workers: workers.into_iter().map(worker).collect(),
            next: 0,
            phase: Phase::Running,
            cause: None,
            group_signal: None,
            first_signal: None,
            chosen: None,
            hard_deadline: None,
            deaths: 0,
            swept: 0,
            kill_asked: false,
            client_died: false,
            guard_lost: false,
            gave_up: false,
        }
    }

    /// The worker to start next; `None` when all are started or the job is being ended.
    pub(crate) fn next_spawn(&self) -> Option<Slot> {
        (self.phase == Phase::Running && self.next < self.workers.len()).then_some(self.next)
    }

    /// When [`Input::Deadline`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running | Phase::Done => None,
            Phase::Stopping(at) | Phase::Sweeping(at) => Some(at),
            Phase::Killing { round, .. } => Some(round),
        }
    }

    /// Whether the job is over.
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Whether all workers are gone and only descendants are waited for.
    pub(crate) fn is_sweeping(&self) -> bool {
        matches!(self.phase, Phase::Sweeping(_) | Phase::Killing { .. }) && !self.has_workers()
    }

    fn has_workers(&self) -> bool {
        self.workers.iter().any(Worker::is_alive)
    }

    /// Takes what happened at `now` and appends what to do.
    pub(crate) fn handle(&mut self, now: Duration, input: Input, actions: &mut Vec<Action>) {
        if self.phase == Phase::Done {
            return;
        }
        match input {
            Input::Forked(slot, pid) => self.forked(now, slot, pid, actions),
            Input::ForkFailed(slot, errno) => {
                self.next = self.next.max(slot + 1);
                self.workers[slot].life = Life::Gone;
                self.spawn_failed(now, slot, Stage::Fork, errno, actions);
            }
            Input::Executed(slot) => self.executed(now, slot, actions),
            Input::ExecFailed(slot, stage, errno) => {
                self.workers[slot].life = Life::Failed;
                self.spawn_failed(now, slot, stage, errno, actions);
            }
            Input::Stopped(slot, stopped) => self.workers[slot].stopped = stopped,
            Input::Reaped(slot, status) => self.reaped(now, slot, status, actions),
            Input::Signal { signal, delivered } if signal.is_terminating() => {
                self.terminating(now, signal, delivered, actions);
            }
            Input::Signal { signal, delivered } => {
                if !delivered {
                    for slot in 0..self.workers.len() {
                        self.send(slot, signal, actions);
                    }
                }
                self.report(now, None, EventKind::Signal(signal), actions);
            }
            Input::SignalOne(slot, signal) => self.send(slot, signal, actions),
            Input::GroupSignal(signal) => {
                for worker in self.workers.iter_mut().filter(|worker| worker.is_alive()) {
                    worker.grouped = true;
                }
                self.group_signal = Some(GroupSignal { signal, at: now, counted: false });
            }
            Input::Stop { reason, grace } => {
                self.kill_asked |= grace.is_zero();
                let delivered = self.recent_group_signal(now).is_some_and(|group| group.asks_to_end());
                self.stop(now, Cause::Client(reason), grace, Signal::TERM, delivered, actions);
            }
            Input::ClientLeft => {
                let cause = Cause::Client(Reason::Stopped);
                self.stop(now, cause, self.policy.grace, Signal::TERM, false, actions);
            }
            Input::ClientDied => {
                self.client_died = true;
                self.stop(now, Cause::Gone, CLIENT_GONE_GRACE, Signal::TERM, false, actions);
            }
            Input::GuardDied => {
                self.guard_lost = true;
                self.report(now, None, EventKind::GuardLost, actions);
            }
            Input::NoDescendants(swept) => {
                if self.is_sweeping() {
                    self.swept = swept;
                    self.finish(now, actions);
                }
            }
            Input::Deadline => self.deadline_passed(now, actions),
        }
    }

    fn forked(&mut self, now: Duration, slot: Slot, pid: Pid, actions: &mut Vec<Action>) {
        self.next = self.next.max(slot + 1);
        let worker = &mut self.workers[slot];
        worker.life = Life::Forked(Vec::new());
        worker.pid = Some(pid);
        worker.started = Some(now);
        self.report(now, Some(slot), EventKind::Started, actions);
    }

    fn executed(&mut self, now: Duration, slot: Slot, actions: &mut Vec<Action>) {
        if let Life::Forked(waiting) = std::mem::replace(&mut self.workers[slot].life, Life::Running) {
            self.report(now, Some(slot), EventKind::Exec, actions);
            actions.extend(waiting.into_iter().map(|signal| Action::Signal(slot, signal)));
        } else {
            debug_assert!(false, "exec confirmed twice");
        }
    }

    fn spawn_failed(
        &mut self,
        now: Duration,
        slot: Slot,
        stage: Stage,
        errno: i32,
        actions: &mut Vec<Action>,
    ) {
        let rank = self.workers[slot].rank;
        self.report(now, Some(slot), EventKind::SpawnFailed(stage, errno), actions);
        if self.cause.is_none() {
            let cause = Cause::Spawn(slot, SpawnFailure { rank, stage, errno });
            self.stop(now, cause, self.policy.peer_grace, Signal::TERM, false, actions);
        }
    }

    fn reaped(&mut self, now: Duration, slot: Slot, status: WaitStatus, actions: &mut Vec<Action>) {
        let worker = &mut self.workers[slot];
        let failed_to_start = worker.life == Life::Failed;
        worker.life = Life::Gone;
        worker.ended = Some(now);
        if !failed_to_start {
            let order = self.deaths;
            self.deaths += 1;
            worker.order = Some(order);
            worker.status = Some(status);
            worker.reason = match status {
                WaitStatus::Lost => RankReason::Lost,
                _ if worker.asked => RankReason::Stopped,
                WaitStatus::Exited(0) => RankReason::Ok,
                WaitStatus::Exited(_) => RankReason::Failed,
                WaitStatus::Signaled(_) => RankReason::Signaled,
            };
            let own_failure = !worker.asked && !status.is_success();
            self.report(now, Some(slot), EventKind::Exited(status, order), actions);
            if own_failure && self.cause.is_none() {
                self.blame_group_signal(now, slot, status, actions);
            }
            if let (WaitStatus::Exited(code @ 1..), Some(Cause::Signal(_)), None) =
                (status, self.cause, self.chosen)
            {
                self.chosen = Some((slot, code));
            }
            if own_failure && self.cause.is_none() {
                self.stop(now, Cause::Worker(slot), self.policy.peer_grace, Signal::TERM, false, actions);
            }
        }
        self.sweep_if_alone(now, actions);
    }

    fn recent_group_signal(&self, now: Duration) -> Option<GroupSignal> {
        self.group_signal.filter(|group| now.saturating_sub(group.at) <= GROUP_SIGNAL_WINDOW)
    }

    /// A worker that ends soon after a terminating signal to the group was asked to, though not by us: by that signal, or
    /// by a status of its own. A crash is a crash.
    fn blame_group_signal(
        &mut self,
        now: Duration,
        slot: Slot,
        status: WaitStatus,
        actions: &mut Vec<Action>,
    ) {
        let fits = |group: &GroupSignal| match status {
            WaitStatus::Exited(_) => group.asks_to_end(),
            WaitStatus::Signaled(signal) => signal == group.signal,
            WaitStatus::Lost => false,
        };
        if let Some(group) = self.recent_group_signal(now).filter(fits) {
            self.workers[slot].reason = RankReason::Stopped;
            self.group_signal = Some(GroupSignal { counted: true, ..group });
            self.first_signal = Some((group.signal, group.at));
            self.report(now, None, EventKind::Signal(group.signal), actions);
            self.stop(now, Cause::Signal(group.signal), self.policy.grace, group.signal, true, actions);
        }
    }

    /// A terminating signal from outside: the first one is the polite end, a second one is the end.
    fn terminating(&mut self, now: Duration, signal: Signal, delivered: bool, actions: &mut Vec<Action>) {
        if let Some(group) = &mut self.group_signal {
            if delivered && group.signal == signal && std::mem::take(&mut group.counted) {
                return;
            }
        }
        match self.first_signal {
            Some((_, first)) if now.saturating_sub(first) >= SECOND_SIGNAL_AFTER => self.kill(now, actions),
            Some(_) => {}
            None => {
                self.first_signal = Some((signal, now));
                self.report(now, None, EventKind::Signal(signal), actions);
                self.stop(now, Cause::Signal(signal), self.policy.grace, signal, delivered, actions);
            }
        }
    }

    /// Asks the workers to end; a signal `delivered` to the group is sent to those only that were made after it. Asked
    /// again, only the time can become shorter: nobody is asked twice.
    fn stop(
        &mut self,
        now: Duration,
        cause: Cause,
        grace: Duration,
        signal: Signal,
        delivered: bool,
        actions: &mut Vec<Action>,
    ) {
        let deadline = now + grace;
        if self.is_sweeping() {
            // The ranks' work is done and their status stands; only the sweep is cut short.
            if let Phase::Sweeping(at) = self.phase {
                self.phase = Phase::Sweeping(at.min(deadline));
            }
            return self.kill_if_due(now, actions);
        }
        self.hard_deadline = Some(self.hard_deadline.map_or(deadline, |at| at.min(deadline)));
        if self.cause.is_none() {
            self.cause = Some(cause);
            self.report(now, None, EventKind::Stopping(self.reason()), actions);
        }
        match self.phase {
            Phase::Running => {
                self.phase = Phase::Stopping(deadline);
                for slot in 0..self.workers.len() {
                    let has_one = delivered && self.workers[slot].grouped;
                    self.ask(slot, if grace.is_zero() || has_one { None } else { Some(signal) }, actions);
                }
            }
            Phase::Stopping(at) => self.phase = Phase::Stopping(at.min(deadline)),
            _ => {}
        }
        self.kill_if_due(now, actions);
        self.sweep_if_alone(now, actions);
    }

    fn ask(&mut self, slot: Slot, signal: Option<Signal>, actions: &mut Vec<Action>) {
        let worker = &mut self.workers[slot];
        match worker.life {
            Life::Planned => worker.life = Life::Gone,
            Life::Gone => {}
            _ => {
                worker.asked = true;
                let stopped = worker.stopped;
                if let Some(signal) = signal {
                    self.send(slot, signal, actions);
                }
                if stopped {
                    self.send(slot, Signal::CONT, actions);
                }
            }
        }
    }

    /// Sends a signal to a worker, or keeps it until the exec is confirmed: before, the program's handlers are not there.
    fn send(&mut self, slot: Slot, signal: Signal, actions: &mut Vec<Action>) {
        match &mut self.workers[slot].life {
            Life::Forked(waiting) if signal != Signal::KILL => waiting.push(signal),
            Life::Forked(_) | Life::Running => actions.push(Action::Signal(slot, signal)),
            Life::Planned | Life::Failed | Life::Gone => {}
        }
    }

    fn kill_if_due(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Stopping(at) | Phase::Sweeping(at) if at <= now) {
            self.kill(now, actions);
        }
    }

    /// SIGKILL to everything that is left.
    fn kill(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Killing { .. } | Phase::Done) {
            return;
        }
        for slot in 0..self.workers.len() {
            if self.workers[slot].is_alive() {
                self.workers[slot].asked = true;
                self.send(slot, Signal::KILL, actions);
            }
        }
        self.kill_rounds(now, actions);
    }

    fn kill_rounds(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.phase = Phase::Killing { round: now + KILL_ROUND, give_up: now + UNKILLABLE_AFTER };
        actions.push(Action::Sweep { kill: true });
    }

    /// Once no worker is left, what they left behind is ended.
    fn sweep_if_alone(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.next_spawn().is_some() || self.has_workers() {
            return;
        }
        match self.phase {
            Phase::Sweeping(_) | Phase::Done => {}
            Phase::Killing { .. } => self.kill_rounds(now, actions),
            Phase::Running | Phase::Stopping(_) => {
                let slack = if self.client_died { Duration::ZERO } else { SWEEP_SLACK };
                let polite = now + self.policy.sweep_grace;
                let latest = self.hard_deadline.map_or(polite, |at| at.max(now) + slack);
                self.phase = Phase::Sweeping(polite.min(latest));
                actions.push(Action::Sweep { kill: false });
                self.kill_if_due(now, actions);
            }
        }
    }

    fn deadline_passed(&mut self, now: Duration, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Stopping(at) | Phase::Sweeping(at) if at <= now => self.kill(now, actions),
            Phase::Killing { give_up, .. } if give_up <= now => {
                self.gave_up = true;
                for worker in self.workers.iter_mut().filter(|w| w.is_alive()) {
                    worker.reason = RankReason::Lost;
                }
                self.finish(now, actions);
            }
            Phase::Killing { round, give_up } if round <= now => {
                self.phase = Phase::Killing { round: now + KILL_ROUND, give_up };
                actions.push(Action::Sweep { kill: true });
            }
            _ => {}
        }
    }

    fn finish(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.phase = Phase::Done;
        if self.swept > 0 {
            self.report(now, None, EventKind::Swept(self.swept), actions);
        }
        actions.push(Action::Finish);
    }

    fn report(&self, now: Duration, slot: Option<Slot>, kind: EventKind, actions: &mut Vec<Action>) {
        let worker = slot.map(|slot| &self.workers[slot]);
        actions.push(Action::Report(Event {
            rank: worker.map(|w| w.rank),
            pid: worker.and_then(|w| w.pid),
            time_ns: nanoseconds(now),
            kind,
        }));
    }

    /// Why the job ends as it does.
    pub(crate) fn reason(&self) -> Reason {
        match self.cause {
            None => Reason::Ok,
            Some(Cause::Worker(_) | Cause::Spawn(..)) => Reason::Failed,
            Some(Cause::Signal(_)) => Reason::Signal,
            Some(Cause::Client(reason)) => reason,
            Some(Cause::Gone) => Reason::Stopped,
        }
    }

    /// The exit status that tells it: the first failure's; for an outside signal 128 + n, unless a rank then chose a
    /// status of its own; 124 for a time limit, as `timeout` has it.
    pub(crate) fn status(&self) -> u8 {
        match self.cause {
            None => 0,
            Some(Cause::Worker(slot)) => self.workers[slot].status.map_or(1, WaitStatus::shell_status),
            Some(Cause::Spawn(_, failure)) if failure.stage == Stage::Exec => exec_status(failure.errno),
            Some(Cause::Spawn(..)) => 1,
            Some(Cause::Signal(signal)) => self.chosen.map_or(signal.status(), |(_, status)| status),
            Some(Cause::Client(Reason::Timeout)) => 124,
            Some(Cause::Client(_)) if self.kill_asked => Signal::KILL.status(),
            Some(Cause::Client(_) | Cause::Gone) => Signal::TERM.status(),
        }
    }

    /// The rank that failed first.
    pub(crate) fn first_failure(&self) -> Option<u32> {
        match self.cause {
            Some(Cause::Worker(slot) | Cause::Spawn(slot, _)) => Some(self.workers[slot].rank),
            _ => self.chosen.map(|(slot, _)| self.workers[slot].rank),
        }
    }

    /// The rank that could not be started.
    pub(crate) fn spawn_failure(&self) -> Option<SpawnFailure> {
        match self.cause {
            Some(Cause::Spawn(_, failure)) => Some(failure),
            _ => None,
        }
    }

    /// The outside signal that asked for the end.
    pub(crate) fn signal(&self) -> Option<Signal> {
        match self.cause {
            Some(Cause::Signal(signal)) => Some(signal),
            _ => None,
        }
    }

    /// Descendants ended by the sweep.
    pub(crate) fn swept(&self) -> u32 {
        self.swept
    }

    /// Whether the guard was gone before the end.
    pub(crate) fn guard_lost(&self) -> bool {
        self.guard_lost
    }

    /// Whether something outlived SIGKILL.
    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up
    }

    /// How each rank ended, by slot.
    pub(crate) fn ranks(&self) -> Vec<RankOutcome> {
        let outcome = |w: &Worker| RankOutcome {
            rank: w.rank,
            local_rank: w.local_rank,
            pid: w.pid,
            status: w.status,
            reason: w.reason,
            started_ns: w.started.map(nanoseconds),
            ended_ns: w.ended.map(nanoseconds),
            order: w.order,
        };
        self.workers.iter().map(outcome).collect()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
