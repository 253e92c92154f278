//! Processes in virtual time, and what the keeper sees of them.

use std::collections::VecDeque;

use super::super::{Input, Slot};
use super::cases::{Case, Habit, Happening, OnTerm, Program, Start};
use crate::error::Stage;
use crate::outcome::WaitStatus;
use crate::signal::Signal;

/// Milliseconds.
pub(super) type Ms = u64;

pub(super) struct Process {
    pub(super) habit: Habit,
    pub(super) alive: bool,
    pub(super) frozen: bool,
    /// A terminating signal that came while frozen.
    pending: Option<Signal>,
    end: Option<(Ms, WaitStatus)>,
}

impl Process {
    fn new(now: Ms, habit: Habit) -> Self {
        let end = habit.ends.map(|(after, status)| (now + after, status));
        Self { habit, alive: true, frozen: habit.frozen, pending: None, end }
    }

    fn ends_at(&self) -> Option<Ms> {
        let can = self.alive && !self.frozen && !self.habit.stuck;
        self.end.filter(|_| can).map(|(at, _)| at)
    }

    /// Whether it is dead, or as good as.
    pub(super) fn is_over(&self, now: Ms) -> bool {
        !self.alive || self.end.is_some_and(|(at, _)| at <= now) && !self.frozen
    }

    fn receive(&mut self, now: Ms, signal: Signal) {
        match signal {
            Signal::STOP => self.frozen = true,
            Signal::CONT => {
                self.frozen = false;
                if let Some(signal) = self.pending.take() {
                    self.receive(now, signal);
                }
            }
            Signal::KILL => {
                self.frozen = false;
                self.end = Some((now, WaitStatus::Signaled(signal)));
            }
            _ if !signal.is_terminating() => {}
            _ if self.frozen => self.pending = self.pending.or(Some(signal)),
            _ => {
                let end = match self.habit.on_term {
                    OnTerm::Ignores => return,
                    OnTerm::Dies => (now, WaitStatus::Signaled(signal)),
                    OnTerm::Exits(status, after) => (now + after, WaitStatus::Exited(status)),
                };
                self.end = Some(self.end.filter(|(at, _)| *at <= end.0).unwrap_or(end));
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Worker {
    pub(super) process: Option<Process>,
    /// When the exec succeeds or fails.
    pub(super) exec: Option<Ms>,
    /// What the status pipe says.
    pub(super) failed: Option<(Stage, i32)>,
    pub(super) reaped: bool,
    /// All that it got, from anybody.
    pub(super) got: Vec<(Ms, Signal)>,
}

/// A descriptor of the keeper's that is readable.
#[derive(Clone, Copy)]
pub(super) enum Ready {
    Status(Slot),
    Pidfd(Slot),
    Client(Happening),
}

pub(super) struct Kernel {
    pub(super) now: Ms,
    programs: Vec<Program>,
    pub(super) workers: Vec<Worker>,
    children: Vec<Process>,
    todo: Vec<(Ms, Happening)>,
    /// In the order in which it became so.
    pub(super) ready: VecDeque<Ready>,
    /// What is found in the signalfd: signals to the group, by the number of the signal, and stops.
    pub(super) notes: VecDeque<(usize, Input)>,
    signals: usize,
}

impl Kernel {
    pub(super) fn new(case: &Case) -> Self {
        Self {
            now: 0,
            programs: case.programs.clone(),
            workers: case.programs.iter().map(|_| Worker::default()).collect(),
            children: Vec::new(),
            todo: case.happenings.clone(),
            ready: VecDeque::new(),
            notes: VecDeque::new(),
            signals: 0,
        }
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &Process> {
        let workers = self.workers.iter().filter_map(|worker| worker.process.as_ref());
        workers.chain(&self.children).filter(|process| process.alive)
    }

    pub(super) fn has_children(&self) -> bool {
        self.living().next().is_some() || self.workers.iter().any(|w| w.process.is_some() && !w.reaped)
    }

    /// When something happens next.
    pub(super) fn next_time(&self) -> Option<Ms> {
        let can = |worker: &&Worker| worker.process.as_ref().is_some_and(|p| p.alive && !p.frozen);
        let execs = self.workers.iter().filter(can).filter_map(|worker| worker.exec);
        let ends = self.living().filter_map(Process::ends_at);
        execs.chain(ends).chain(self.todo.iter().map(|(at, _)| *at)).min()
    }

    pub(super) fn run(&mut self, until: Ms) {
        while let Some(at) = self.next_time().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            for slot in 0..self.workers.len() {
                self.run_worker(slot);
            }
            for child in &mut self.children {
                child.alive &= child.ends_at().is_none_or(|at| at > self.now);
            }
            if let Some(index) = self.todo.iter().position(|(at, _)| *at <= self.now) {
                let (_, happening) = self.todo.remove(index);
                self.happen(happening);
            }
        }
        self.now = until;
    }

    fn run_worker(&mut self, slot: Slot) {
        let (now, worker, program) = (self.now, &mut self.workers[slot], &self.programs[slot]);
        let Some(process) = worker.process.as_mut().filter(|process| process.alive) else { return };
        if process.ends_at().is_some_and(|at| at <= now) {
            process.alive = false;
            self.ready.push_back(Ready::Pidfd(slot));
        } else if worker.exec.is_some_and(|at| at <= now && !process.frozen) {
            worker.exec = None;
            self.ready.push_back(Ready::Status(slot));
            if let Start::ExecFails(_, stage, errno) = program.start {
                worker.failed = Some((stage, errno));
                process.end = Some((now + 1, WaitStatus::Exited(127)));
            } else {
                *process = Process::new(now, Habit { frozen: false, ..program.habit });
                let births = program.children.iter();
                self.todo.extend(births.map(|&(after, habit)| (now + after, Happening::Birth(slot, habit))));
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Outside { signal, group, word } => {
                let id = self.signals;
                self.signals += 1;
                if group {
                    (0..self.workers.len()).for_each(|slot| self.signal(slot, signal));
                    self.notes.push_back((id, Input::GroupSignal(signal)));
                }
                let word =
                    word.map(|after| (self.now + after, Happening::Word { id, signal, delivered: group }));
                self.todo.extend(word);
            }
            Happening::Stranger(slot, signal) if slot < self.workers.len() => self.signal(slot, signal),
            Happening::Stranger(..) => {}
            Happening::Birth(slot, habit) => {
                if self.workers[slot].process.as_ref().is_some_and(|parent| !parent.is_over(self.now)) {
                    self.children.push(Process::new(self.now, habit));
                }
            }
            _ => self.ready.push_back(Ready::Client(happening)),
        }
    }

    /// A fork; until its exec the process dies by any signal.
    pub(super) fn fork(&mut self, slot: Slot, after: Ms) {
        let habit = Habit { on_term: OnTerm::Dies, ends: None, frozen: false, slips: 0, stuck: false };
        self.workers[slot].exec = Some(self.now + after);
        self.workers[slot].process = Some(Process::new(self.now, habit));
    }

    pub(super) fn reap(&mut self, slot: Slot) -> WaitStatus {
        self.workers[slot].reaped = true;
        self.workers[slot].process.as_ref().and_then(|process| process.end).unwrap().1
    }

    /// A signal from anybody to a worker.
    pub(super) fn signal(&mut self, slot: Slot, signal: Signal) {
        let worker = &mut self.workers[slot];
        if let Some(process) = worker.process.as_mut().filter(|process| process.alive) {
            let frozen = process.frozen;
            process.receive(self.now, signal);
            worker.got.push((self.now, signal));
            if process.frozen != frozen && signal != Signal::KILL {
                self.notes.push_back((0, Input::Stopped(slot, process.frozen)));
            }
        }
    }

    /// All descendants, workers among them, but for those that slip through.
    pub(super) fn sweep(&mut self, kill: bool) {
        let signals: &[_] = if kill { &[Signal::KILL] } else { &[Signal::TERM, Signal::CONT] };
        for &signal in signals {
            (0..self.workers.len()).for_each(|slot| self.signal(slot, signal));
        }
        for child in &mut self.children {
            if child.habit.slips > 0 {
                child.habit.slips -= 1;
            } else {
                for &signal in signals {
                    child.receive(self.now, signal);
                }
            }
        }
    }
}
