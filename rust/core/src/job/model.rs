//! The state machine against a model kernel: processes that behave in all ways we know of, in virtual time.
//!
//! A [`Case`] is plain data. A [`World`] plays it: it has the [`Kernel`], does what the keeper's loop does, and holds the
//! state machine at each step to what the [`Verdict`] says must come of it.

mod cases;
mod kernel;
mod situations;
mod verdict;

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::RngAlgorithm;

use super::{Action, Cause, Input, JobState, Slot};
use crate::error::Stage;
use crate::event::EventKind;
use crate::outcome::RankReason;
use crate::pid::Pid;
use crate::policy::Policy;
use crate::signal::Signal;
use cases::{Case, Happening, OnTerm, Start, case};
use kernel::{Kernel, Ms, Ready};
use verdict::Verdict;

/// What the keeper did about a worker.
#[derive(Default)]
struct Handled {
    never_made: bool,
    /// The status pipe was read.
    confirmed: bool,
    /// Stopped after the job's stop began: nobody promised a SIGCONT.
    frozen_late: bool,
    reason: Option<RankReason>,
    /// Terminating signals that the job sent of its own accord.
    asked: usize,
    /// Signals that the client wanted sent to this one.
    ordered: Vec<Signal>,
}

struct World {
    case: Case,
    kernel: Kernel,
    verdict: Verdict,
    job: JobState,
    handled: Vec<Handled>,
    actions: VecDeque<Action>,
    turn: usize,
    socket: bool,
    guard_lost: bool,
    deaths: u32,
    log: Vec<(Ms, Input)>,
    wrong: Option<String>,
}

impl World {
    fn new(case: Case) -> Self {
        let ms = Duration::from_millis;
        let (grace, peer_grace, sweep_grace) = case.graces;
        let policy = Policy { grace: ms(grace), peer_grace: ms(peer_grace), sweep_grace: ms(sweep_grace) };
        let slots = 0..case.programs.len();
        Self {
            kernel: Kernel::new(&case),
            verdict: Verdict::new(case.graces),
            job: JobState::new(policy, slots.clone().map(|slot| (rank(slot), 0))),
            handled: slots.map(|_| Handled::default()).collect(),
            case,
            actions: VecDeque::new(),
            turn: 0,
            socket: true,
            guard_lost: false,
            deaths: 0,
            log: Vec::new(),
            wrong: None,
        }
    }

    fn require(&mut self, holds: bool, promise: &str) {
        if !holds && self.wrong.is_none() {
            self.wrong = Some(format!("at {} ms: {promise}", self.kernel.now));
        }
    }

    /// Plays the case to its end; the client leaves if nothing else ends the job.
    fn play(mut self) -> Result<Self, String> {
        while !self.job.is_done() && self.wrong.is_none() {
            self.turn();
        }
        self.check_end();
        let Some(wrong) = self.wrong.take() else { return Ok(self) };
        let log: Vec<_> = self.log.iter().map(|(at, input)| format!("{at:6} {input:?}")).collect();
        Err(format!("{wrong}\n{}", log.join("\n")))
    }

    /// One turn of the keeper's loop.
    fn turn(&mut self) {
        self.turn += 1;
        let now = self.kernel.now;
        let lag = self.case.lags[self.turn % self.case.lags.len()];
        let spawn = self.job.next_spawn().map(|_| now);
        let wake = [spawn, self.kernel.next_time(), self.deadline()].into_iter().flatten().min();
        if wake.is_none() {
            self.require(self.socket, "time leads to the end");
            self.kernel.ready.push_back(Ready::Client(Happening::ClientLeft));
        }
        self.kernel.run(wake.unwrap_or(now).max(now) + lag);
        self.verdict.now = self.kernel.now;
        self.read_signals();
        while let Some(ready) = self.kernel.ready.pop_front().filter(|_| !self.job.is_done()) {
            self.take(ready);
        }
        self.look_for_descendants();
        let is_due = |world: &Self| world.deadline().is_some_and(|at| at <= world.kernel.now);
        if is_due(self) {
            self.feed(Input::Deadline);
            self.require(!is_due(self), "a deadline is acted on once");
        }
        if let Some(slot) = self.job.next_spawn() {
            self.spawn(slot);
        }
        self.check_time();
    }

    fn deadline(&self) -> Option<Ms> {
        self.job.deadline().map(|at| Ms::try_from(at.as_millis()).unwrap())
    }

    fn read_signals(&mut self) {
        while let Some((id, note)) = self.kernel.notes.pop_front() {
            match note {
                Input::GroupSignal(signal) if !signal.is_terminating() => continue,
                Input::GroupSignal(signal) => self.verdict.group_signal(id, signal),
                Input::Stopped(slot, stopped) => {
                    self.handled[slot].frozen_late = stopped && self.verdict.cause.is_some();
                }
                _ => {}
            }
            self.feed(note);
        }
    }

    fn take(&mut self, ready: Ready) {
        match ready {
            Ready::Status(slot) => self.read_status(slot),
            Ready::Pidfd(slot) => {
                self.read_status(slot);
                let status = self.kernel.reap(slot);
                if self.kernel.workers[slot].failed.is_none() {
                    self.handled[slot].reason = Some(self.verdict.reaped(slot, status));
                }
                self.feed(Input::Reaped(slot, status));
            }
            Ready::Client(Happening::GuardDied) => {
                self.guard_lost = true;
                self.feed(Input::GuardDied);
            }
            Ready::Client(Happening::ClientDied) => {
                self.socket = false;
                self.verdict.client_died();
                self.feed(Input::ClientDied);
            }
            Ready::Client(happening) if self.socket => self.listen(happening),
            Ready::Client(_) => {}
        }
    }

    fn listen(&mut self, happening: Happening) {
        match happening {
            Happening::Word { id, signal, delivered } => {
                if signal.is_terminating() {
                    self.verdict.word(id, signal);
                }
                self.feed(Input::Signal { signal, delivered });
                let now = self.kernel.now;
                let (workers, handled) = (self.kernel.workers.iter(), &self.handled);
                let reached = workers.zip(handled).all(|(worker, handled)| {
                    let dead = worker.process.as_ref().is_none_or(|process| !process.alive);
                    !handled.confirmed
                        || worker.failed.is_some()
                        || dead
                        || worker.got.last() == Some(&(now, signal))
                });
                self.require(delivered || signal.is_terminating() || reached, "a signal is passed on");
            }
            Happening::One(slot, signal) if slot < self.handled.len() => {
                self.handled[slot].ordered.push(signal);
                self.feed(Input::SignalOne(slot, signal));
            }
            Happening::Stop(reason, grace) => {
                self.verdict.client_stops(reason, grace);
                self.feed(Input::Stop { reason, grace: Duration::from_millis(grace) });
            }
            Happening::ClientLeft => {
                self.socket = false;
                self.verdict.client_left();
                self.feed(Input::ClientLeft);
            }
            _ => {}
        }
    }

    fn read_status(&mut self, slot: Slot) {
        if std::mem::replace(&mut self.handled[slot].confirmed, true) {
            return;
        }
        if let Some((stage, errno)) = self.kernel.workers[slot].failed {
            self.verdict.spawn_failed(slot, stage, errno);
            self.feed(Input::ExecFailed(slot, stage, errno));
        } else {
            self.feed(Input::Executed(slot));
        }
    }

    fn spawn(&mut self, slot: Slot) {
        let again = self.kernel.workers[slot].process.is_some() || self.handled[slot].never_made;
        self.require(!again, "a worker is started once");
        match self.case.programs[slot].start {
            Start::ForkFails(errno) => {
                self.handled[slot].never_made = true;
                self.verdict.spawn_failed(slot, Stage::Fork, errno);
                self.feed(Input::ForkFailed(slot, errno));
            }
            Start::Runs(after) | Start::ExecFails(after, ..) => {
                self.kernel.fork(slot, after);
                self.feed(Input::Forked(slot, Pid::new(100).unwrap()));
            }
        }
    }

    fn look_for_descendants(&mut self) {
        if self.job.is_sweeping() && !self.kernel.has_children() {
            self.feed(Input::NoDescendants(0));
        }
    }

    /// Gives the state machine an input, looks at what became of it, and does what it says.
    fn feed(&mut self, input: Input) {
        if self.log.last().is_none_or(|(_, last)| *last != input) {
            self.log.push((self.kernel.now, input));
        }
        let stops = self.verdict.cause.is_some();
        let mut workers = self.kernel.workers.iter().zip(&self.handled);
        if workers.all(|(w, handled)| handled.never_made || w.reaped || w.process.is_none() && stops) {
            self.verdict.all_gone();
        }
        let (cause, mut actions) = (self.job.cause, Vec::new());
        self.job.handle(Duration::from_millis(self.kernel.now), input, &mut actions);
        self.require(cause.is_none() || cause == self.job.cause, "the cause is set once");
        if let (None, Some(Cause::Worker(slot))) = (cause, self.job.cause) {
            self.require(self.handled[slot].asked == 0, "the cause is no death that we asked for");
        }
        self.require(!stops || self.job.next_spawn().is_none(), "no spawn after a stop");
        self.actions.extend(actions);
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Signal(slot, signal) => self.signal(slot, signal),
                Action::Sweep { kill } => self.sweep(kill),
                Action::Report(event) => match event.kind {
                    EventKind::Exited(_, order) => {
                        self.require(order == self.deaths, "deaths are numbered as they are reaped");
                        self.deaths += 1;
                    }
                    EventKind::Stopping(_) => self.require(cause.is_none(), "the stop is reported once"),
                    _ => {}
                },
                Action::Finish => self.require(self.job.is_done(), "the last action is the last"),
            }
        }
    }

    fn signal(&mut self, slot: Slot, signal: Signal) {
        let now = self.kernel.now;
        let (worker, handled) = (&self.kernel.workers[slot], &mut self.handled[slot]);
        let is_there = worker.process.is_some() && !worker.reaped;
        let confirmed = handled.confirmed && worker.failed.is_none();
        let obeys = worker.process.as_ref().is_some_and(|process| {
            let polite = process.habit.on_term == OnTerm::Dies && !process.habit.stuck;
            polite && !process.is_over(now) && !handled.frozen_late && worker.exec.is_none()
        });
        let ordered = handled.ordered.iter().position(|&ordered| ordered == signal);
        if let Some(index) = ordered {
            handled.ordered.remove(index);
        }
        handled.asked += usize::from(ordered.is_none() && signal.is_terminating());
        let asked = handled.asked;
        self.require(is_there, "signals only between fork and reap");
        self.require(signal == Signal::KILL || confirmed, "only SIGKILL before the exec is confirmed");
        self.require(asked <= 1, "nobody is asked twice");
        if signal == Signal::KILL && ordered.is_none() {
            self.require(now >= self.verdict.kill_from, "the grace is granted");
            self.require(!obeys || !confirmed || now == self.verdict.since, "who obeys is not killed");
        }
        self.kernel.signal(slot, signal);
    }

    fn sweep(&mut self, kill: bool) {
        let has_workers = self.kernel.workers.iter().any(|w| w.process.is_some() && !w.reaped);
        self.require(kill || !has_workers, "a worker is no leftover");
        self.require(!kill || self.kernel.now >= self.verdict.kill_from, "the grace is granted");
        self.kernel.sweep(kill);
        self.look_for_descendants();
    }

    fn check_time(&mut self) {
        let late = self.kernel.now.saturating_sub(self.verdict.dead_by);
        let lives = self.kernel.living().any(|process| !process.habit.stuck);
        let stuck = self.kernel.living().any(|process| process.habit.stuck);
        self.require(late == 0 || !lives, "nothing outlives the job");
        self.require(late < 100 || self.job.is_done() || stuck && late < 11_000, "the end is seen");
        let idle = self.verdict.cause.is_none() && !self.verdict.alone;
        self.require(!idle || self.deadline().is_none(), "idle is silent");
        self.require(self.turn < 5000, "no busy loop");
    }

    fn check_end(&mut self) {
        let told = (self.job.status(), self.job.reason(), self.job.first_failure());
        let (status, reason, first) = self.verdict.outcome();
        let truth = (status, reason, first.map(rank));
        self.require(told == truth, &format!("the status is the first failure: {told:?}, not {truth:?}"));
        for (slot, told) in self.job.ranks().iter().enumerate() {
            let (worker, handled) = (&self.kernel.workers[slot], &self.handled[slot]);
            let left = worker.process.is_some() && !worker.reaped;
            let truth = if left { RankReason::Lost } else { RankReason::NotStarted };
            let truth = handled.reason.unwrap_or(truth);
            self.require(
                told.reason == truth,
                &format!("why rank {slot} ended: {:?}, not {truth:?}", told.reason),
            );
        }
        let left = self.kernel.living().count();
        let stuck = self.kernel.living().filter(|process| process.habit.stuck).count();
        self.require(left == stuck, "only what SIGKILL does not end is left");
        self.require(self.job.gave_up() == (stuck > 0), "giving up is told");
        self.require(self.job.guard_lost() == self.guard_lost, "a lost guard is told");
        for number in [Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
            for slot in 0..self.handled.len() {
                let is_sent = |(_, happening): &&(Ms, Happening)| match *happening {
                    Happening::Outside { signal, .. } => signal == number,
                    Happening::One(to, signal) | Happening::Stranger(to, signal) => {
                        (to, signal) == (slot, number)
                    }
                    _ => false,
                };
                let sent = self.case.happenings.iter().filter(is_sent).count();
                let got = self.kernel.workers[slot].got.iter().filter(|(_, got)| *got == number).count();
                self.require(got <= sent, "a signal comes once");
            }
        }
    }
}

fn rank(slot: Slot) -> u32 {
    u32::try_from(10 + 3 * slot).unwrap()
}

proptest! {
    // Without optimisation the default's random numbers take most of the time.
    #![proptest_config(ProptestConfig {
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::with_cases(10_000)
    })]

    #[test]
    fn a_job_keeps_its_promises_whatever_happens(case in case()) {
        if let Err(wrong) = World::new(case).play() {
            prop_assert!(false, "{}", wrong);
        }
    }
}
