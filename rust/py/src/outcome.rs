//! Events and outcomes as frozen Python values.

use nativelaunch_core::{self as core, EventKind, Pid, Signal, WaitStatus};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::WorkerFailed;

/// One thing that happened to a job, or to one of its ranks: `kind` says what, `data` the details.
#[pyclass(frozen, eq, module = "nativelaunch")]
#[derive(PartialEq)]
pub(crate) struct Event(pub(crate) core::Event);

#[pymethods]
impl Event {
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.kind.name()
    }

    #[getter]
    fn rank(&self) -> Option<u32> {
        self.0.rank
    }

    #[getter]
    fn pid(&self) -> Option<i32> {
        self.0.pid.map(Pid::get)
    }

    #[getter]
    fn time_ns(&self) -> u64 {
        self.0.time_ns
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let data = PyDict::new(py);
        match &self.0.kind {
            EventKind::SpawnFailed(stage, errno) => {
                data.set_item("stage", stage.name())?;
                data.set_item("errno", errno)?;
            }
            EventKind::Exited(status, order) => {
                data.set_item("status", exit_status(Some(*status)))?;
                data.set_item("signal", signal_number(Some(*status)))?;
                data.set_item("order", order)?;
            }
            EventKind::Signal(signal) => data.set_item("signum", signal.number())?,
            EventKind::Stopping(reason) => data.set_item("reason", reason.name())?,
            EventKind::Swept(count) => data.set_item("count", count)?,
            _ => {}
        }
        Ok(data)
    }

    fn __repr__(&self) -> String {
        let rank = self.0.rank.map(|rank| format!(" rank={rank}")).unwrap_or_default();
        format!("<nativelaunch.Event {}{rank}>", self.kind())
    }
}

/// How one rank ended. Times are CLOCK_MONOTONIC, in nanoseconds.
#[pyclass(frozen, eq, module = "nativelaunch")]
#[derive(PartialEq)]
pub(crate) struct RankOutcome(pub(crate) core::RankOutcome);

#[pymethods]
impl RankOutcome {
    #[getter]
    fn rank(&self) -> u32 {
        self.0.rank
    }

    #[getter]
    fn local_rank(&self) -> u32 {
        self.0.local_rank
    }

    #[getter]
    fn pid(&self) -> Option<i32> {
        self.0.pid.map(Pid::get)
    }

    #[getter]
    fn status(&self) -> Option<u8> {
        exit_status(self.0.status)
    }

    #[getter]
    fn signal(&self) -> Option<i32> {
        signal_number(self.0.status)
    }

    #[getter]
    fn reason(&self) -> &'static str {
        self.0.reason.name()
    }

    #[getter]
    fn started_ns(&self) -> Option<u64> {
        self.0.started_ns
    }

    #[getter]
    fn ended_ns(&self) -> Option<u64> {
        self.0.ended_ns
    }

    #[getter]
    fn order(&self) -> Option<u32> {
        self.0.order
    }

    fn __repr__(&self) -> String {
        format!("<nativelaunch.RankOutcome {}>", describe(&self.0))
    }

    fn __str__(&self) -> String {
        describe(&self.0)
    }
}

/// How a job ended: `status` and `reason` of the whole, and one `RankOutcome` for each rank of this node.
#[pyclass(frozen, eq, module = "nativelaunch")]
#[derive(PartialEq)]
pub(crate) struct Outcome(pub(crate) core::Outcome);

#[pymethods]
impl Outcome {
    #[getter]
    fn job(&self) -> &str {
        &self.0.job
    }

    #[getter]
    fn status(&self) -> u8 {
        self.0.status
    }

    #[getter]
    fn reason(&self) -> &'static str {
        self.0.reason.name()
    }

    #[getter]
    fn first_failure(&self) -> Option<RankOutcome> {
        self.0.first_failure().cloned().map(RankOutcome)
    }

    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.ranks.iter().cloned().map(RankOutcome).collect::<Vec<_>>())
    }

    #[getter]
    fn host(&self) -> &str {
        &self.0.host
    }

    #[getter]
    fn signal(&self) -> Option<i32> {
        self.0.signal.map(Signal::number)
    }

    #[getter]
    fn swept(&self) -> u32 {
        self.0.swept
    }

    #[getter]
    fn unkillable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.unkillable.iter().map(|pid| pid.get()))
    }

    #[getter]
    fn guard_lost(&self) -> bool {
        self.0.guard_lost
    }

    #[getter]
    fn started(&self) -> f64 {
        self.0.started
    }

    #[getter]
    fn ended(&self) -> f64 {
        self.0.ended
    }

    #[getter]
    #[expect(clippy::unused_self, reason = "nothing is restarted yet")]
    fn restarts(&self) -> u32 {
        0
    }

    /// Raises WorkerFailed unless every rank ended with 0.
    fn check(slf: &Bound<'_, Self>) -> PyResult<()> {
        let outcome = &slf.get().0;
        if outcome.is_ok() {
            return Ok(());
        }
        Err(WorkerFailed::new_err((outcome.report(), slf.clone().unbind(), outcome.first_failure)))
    }

    /// What people are told of the end, a sentence a line; empty when there is nothing to tell.
    fn report(&self) -> String {
        self.0.report()
    }

    /// One JSON object, by `docs/report.schema.json`.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    fn __repr__(&self) -> String {
        format!("<nativelaunch.Outcome status={} reason={}>", self.0.status, self.0.reason.name())
    }
}

fn exit_status(status: Option<WaitStatus>) -> Option<u8> {
    match status {
        Some(WaitStatus::Exited(status)) => Some(status),
        _ => None,
    }
}

fn signal_number(status: Option<WaitStatus>) -> Option<i32> {
    match status {
        Some(WaitStatus::Signaled(signal)) => Some(Signal::number(signal)),
        _ => None,
    }
}

/// `rank 2 (local 2, pid 4711) exited with 7`.
pub(crate) fn describe(rank: &core::RankOutcome) -> String {
    let who = format!("rank {} (local {}", rank.rank, rank.local_rank);
    let who = rank.pid.map_or_else(|| format!("{who})"), |pid| format!("{who}, pid {pid})"));
    match rank.status {
        Some(WaitStatus::Exited(status)) => format!("{who} exited with {status}"),
        Some(WaitStatus::Signaled(signal)) => format!("{who} was killed by {signal}"),
        Some(WaitStatus::Lost) => format!("{who} is gone, its status is lost"),
        None => format!("{who} {}", rank.reason.name()),
    }
}
