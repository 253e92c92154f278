//! What happened, one at a time.

use crate::error::Stage;
use crate::outcome::{Reason, WaitStatus};
use crate::pid::Pid;
use crate::signal::Signal;

/// One thing that happened to a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The rank it happened to; `None` for the whole job.
    pub rank: Option<u32>,
    /// That rank's process.
    pub pid: Option<Pid>,
    /// When, by `CLOCK_MONOTONIC`, in nanoseconds.
    pub time_ns: u64,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The process was made.
    Started,
    /// The program was executed.
    Exec,
    /// The rank could not be started: the stage and the error number.
    SpawnFailed(Stage, i32),
    /// The rank ended: its status, and its place in the order of deaths, from 0.
    Exited(WaitStatus, u32),
    /// This signal was sent to the ranks.
    Signal(Signal),
    /// The job is being ended.
    Stopping(Reason),
    /// So many descendants that the workers had left behind were ended.
    Swept(u32),
    /// The guard is gone; the job goes on.
    GuardLost,
    /// The job has ended; [`crate::Job::wait`] returns at once.
    Ended,
}

impl EventKind {
    /// The name of the kind: `started`, `exec`, `spawn-failed`, `exited`, `signal`, `stopping`, `swept`, `guard-lost`,
    /// `ended`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Exec => "exec",
            Self::SpawnFailed(..) => "spawn-failed",
            Self::Exited(..) => "exited",
            Self::Signal(_) => "signal",
            Self::Stopping(_) => "stopping",
            Self::Swept(_) => "swept",
            Self::GuardLost => "guard-lost",
            Self::Ended => "ended",
        }
    }
}
