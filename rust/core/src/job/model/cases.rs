//! What can happen to a job, as plain data.

use proptest::collection::vec;
use proptest::option::weighted as perhaps;
use proptest::prelude::*;

use super::super::Slot;
use super::kernel::Ms;
use crate::error::Stage;
use crate::outcome::{Reason, WaitStatus};
use crate::signal::Signal;

/// What a process does about the terminating signals.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum OnTerm {
    Dies,
    Exits(u8, Ms),
    Ignores,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Habit {
    pub(super) on_term: OnTerm,
    /// Ends by itself so long after its start.
    pub(super) ends: Option<(Ms, WaitStatus)>,
    /// Born stopped; children only.
    pub(super) frozen: bool,
    /// So many sweeps miss it: it has a new pid each time.
    pub(super) slips: u8,
    /// Outlives SIGKILL.
    pub(super) stuck: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Start {
    Runs(Ms),
    ExecFails(Ms, Stage, i32),
    ForkFails(i32),
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) start: Start,
    pub(super) habit: Habit,
    /// Children, each so long after the exec.
    pub(super) children: Vec<(Ms, Habit)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Happening {
    /// A signal to the front, or to the whole group. The front's word of it takes a while; a host may not pass it on.
    Outside {
        signal: Signal,
        group: bool,
        word: Option<Ms>,
    },
    /// The front's word.
    Word {
        id: usize,
        signal: Signal,
        delivered: bool,
    },
    /// The client's signal to one worker.
    One(Slot, Signal),
    /// Somebody else's signal to one worker.
    Stranger(Slot, Signal),
    Stop(Reason, Ms),
    ClientLeft,
    ClientDied,
    GuardDied,
    /// A child of a worker.
    Birth(Slot, Habit),
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Grace, peer grace, sweep grace.
    pub(super) graces: (Ms, Ms, Ms),
    pub(super) programs: Vec<Program>,
    pub(super) happenings: Vec<(Ms, Happening)>,
    /// How late the keeper is, each turn of its loop.
    pub(super) lags: Vec<Ms>,
}

fn ms() -> impl Strategy<Value = Ms> {
    prop_oneof![3 => 0..30u64, 2 => (0..40u64).prop_map(|t| t * 25), 1 => (0..40u64).prop_map(|t| t * 1000)]
}

fn any_of<T: Copy + std::fmt::Debug + 'static>(values: &'static [T]) -> impl Strategy<Value = T> {
    (0..values.len()).prop_map(|index| values[index])
}

fn grace() -> impl Strategy<Value = Ms> {
    any_of(&[30_000, 10_000, 2_000, 100, 0])
}

fn signal(numbers: &'static [i32]) -> impl Strategy<Value = Signal> {
    any_of(numbers).prop_map(|number| Signal::new(number).unwrap())
}

fn status() -> impl Strategy<Value = WaitStatus> {
    prop_oneof![
        3 => Just(WaitStatus::Exited(0)),
        2 => (1..=255u8).prop_map(WaitStatus::Exited),
        1 => signal(&[libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV]).prop_map(WaitStatus::Signaled),
    ]
}

fn habit() -> impl Strategy<Value = Habit> {
    let exits =
        (prop_oneof![Just(0u8), 1..=255u8], ms()).prop_map(|(code, after)| OnTerm::Exits(code, after));
    let on_term = prop_oneof![2 => Just(OnTerm::Dies), 1 => Just(OnTerm::Ignores), 1 => exits];
    let slips = prop_oneof![3 => Just(0u8), 1 => 1..4u8];
    let rarely = proptest::bool::weighted;
    (on_term, perhaps(0.7, (ms(), status())), rarely(0.2), slips, rarely(0.02))
        .prop_map(|(on_term, ends, frozen, slips, stuck)| Habit { on_term, ends, frozen, slips, stuck })
}

fn program() -> impl Strategy<Value = Program> {
    let errno = any_of(&[libc::ENOENT, libc::EACCES, libc::ENOMEM]);
    let stage = any_of(&[Stage::Exec, Stage::Exec, Stage::Chdir]);
    let start = prop_oneof![
        18 => ms().prop_map(Start::Runs),
        2 => (ms(), stage, errno).prop_map(|(after, stage, errno)| Start::ExecFails(after, stage, errno)),
        1 => Just(Start::ForkFails(libc::EAGAIN)),
    ];
    (start, habit(), vec((ms(), habit()), 0..3)).prop_map(|(start, habit, children)| Program {
        start,
        habit,
        children,
    })
}

fn happening() -> impl Strategy<Value = Happening> {
    let outside =
        signal(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGINT, libc::SIGUSR1]);
    let to_one = signal(&[libc::SIGTERM, libc::SIGKILL, libc::SIGUSR1, libc::SIGINT]);
    let to_any = signal(&[libc::SIGSTOP, libc::SIGSTOP, libc::SIGCONT, libc::SIGKILL, libc::SIGTERM]);
    // Below 250 ms together with the lags: a copy is never so late that it is taken for a second signal.
    let outside = (outside, any::<bool>(), perhaps(0.9, 0..100u64)).prop_map(|(signal, group, word)| {
        let word = if group { word } else { word.or(Some(0)) };
        Happening::Outside { signal, group, word }
    });
    let reason = any_of(&[Reason::Stopped, Reason::Timeout]);
    prop_oneof![
        6 => outside,
        1 => (0..4usize, to_one).prop_map(|(slot, signal)| Happening::One(slot, signal)),
        4 => (0..4usize, to_any).prop_map(|(slot, signal)| Happening::Stranger(slot, signal)),
        2 => (reason, grace()).prop_map(|(reason, grace)| Happening::Stop(reason, grace)),
        1 => Just(Happening::ClientLeft),
        1 => Just(Happening::ClientDied),
        1 => Just(Happening::GuardDied),
    ]
}

pub(super) fn case() -> impl Strategy<Value = Case> {
    let lag = prop_oneof![Just(0), 1..40u64];
    let graces = (grace(), grace(), grace());
    (graces, vec(program(), 1..5), vec((ms(), happening()), 0..5), vec(lag, 1..4))
        .prop_map(|(graces, programs, happenings, lags)| Case { graces, programs, happenings, lags })
}
