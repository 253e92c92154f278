//! The engine of nativelaunch: starts the processes of a distributed training job on a machine, gives each its place,
//! and owns them until the last one is gone.
//!
//! ```no_run
//! use nativelaunch_core::Plan;
//!
//! # fn main() -> Result<(), nativelaunch_core::Error> {
//! let job = Plan::builder(["python3", "train.py"]).nproc_per_node(4).build()?.start()?;
//! let outcome = job.wait(None)?.expect("no time limit was given");
//! println!("{}: status {}", outcome.job, outcome.status);
//! # Ok(()) }
//! ```
//!
//! Nothing of it lives in the calling process but the [`Job`] handle: the workers are children of the *keeper*, a small
//! process that a *guard* watches over. Both are the `nativelaunch` binary; see [`PlanBuilder::supervisor`].
#![deny(unsafe_code)]

mod builder;
mod client;
mod codec;
pub mod cpus;
mod error;
mod event;
pub mod guard;
mod job;
mod keeper;
#[allow(unsafe_code, clippy::disallowed_methods)]
mod os;
mod outcome;
mod pid;
mod plan;
pub mod policy;
mod program;
mod signal;
mod sweep;
mod topology;
mod wire;

pub use builder::{PlanBuilder, RankPlan};
pub use client::Job;
pub use error::{Error, ErrorKind, Stage};
pub use event::{Event, EventKind};
pub use os::front;
pub use os::host;
pub use outcome::{Outcome, RankOutcome, RankReason, Reason, SpawnFailure, WaitStatus};
pub use pid::Pid;
pub use plan::{Output, Plan, Stdin};
pub use policy::Policy;
pub use signal::Signal;
pub use topology::{RankEnv, Topology};

/// The version of this crate, of the binary and of the wheel.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
