//! The handle of a running job.

use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nativelaunch_core::policy::seconds;
use nativelaunch_core::{self as core, Error, Pid, Reason, Signal};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::{LauncherError, UsageError, exception, start_exception};
use crate::outcome::{Event, Outcome, RankOutcome};

pub(crate) struct Shared {
    pub(crate) job: core::Job,
    grace: Duration,
    owner: u32,
    /// A watch takes all events: there can be one.
    pub(crate) is_watched: AtomicBool,
}

#[pyclass(frozen, weakref, module = "nativelaunch._core")]
pub(crate) struct Job(pub(crate) Arc<Shared>);

#[pymethods]
impl Job {
    #[getter]
    fn id(&self) -> &str {
        self.0.job.id()
    }

    #[getter]
    fn pids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let pids = self.ask(py, |job| Ok(job.pids()))?;
        PyTuple::new(py, pids.into_iter().map(Pid::get))
    }

    fn fileno(&self) -> PyResult<i32> {
        use std::os::fd::{AsFd, AsRawFd};
        self.check_owner()?;
        Ok(self.0.job.as_fd().as_raw_fd())
    }

    #[pyo3(signature = (timeout=None))]
    fn next_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Event>> {
        let timeout = limit(timeout)?;
        let event =
            self.wait_for(py, |job, interrupted| job.next_event_interruptible(timeout, interrupted))?;
        Ok(event.map(Event))
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Outcome>> {
        let timeout = limit(timeout)?;
        let outcome = self.wait_for(py, |job, interrupted| job.wait_interruptible(timeout, interrupted))?;
        Ok(outcome.map(Outcome))
    }

    #[pyo3(signature = (rank, timeout=None))]
    fn wait_rank(&self, py: Python<'_>, rank: u32, timeout: Option<f64>) -> PyResult<Option<RankOutcome>> {
        let timeout = limit(timeout)?;
        let ended = self.wait_for(py, |job, interrupted| job.wait_rank(rank, timeout, interrupted))?;
        Ok(ended.map(RankOutcome))
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Option<Outcome>> {
        Ok(self.ask(py, |job| job.wait(Some(Duration::ZERO)))?.map(Outcome))
    }

    fn rank(&self, py: Python<'_>, rank: u32) -> PyResult<Option<RankOutcome>> {
        Ok(self.ask(py, |job| Ok(job.rank(rank)))?.map(RankOutcome))
    }

    fn first_failure(&self, py: Python<'_>) -> PyResult<Option<RankOutcome>> {
        Ok(self.ask(py, |job| Ok(job.first_failure()))?.map(RankOutcome))
    }

    #[pyo3(signature = (signum, rank=None))]
    fn signal(&self, py: Python<'_>, signum: i32, rank: Option<u32>) -> PyResult<()> {
        let signal = Signal::new(signum)
            .ok_or_else(|| UsageError::new_err(format!("signum must be between 1 and 64: {signum}")))?;
        self.ask(py, |job| job.signal(signal, rank))
    }

    #[pyo3(signature = (grace=None, reason="stopped"))]
    fn request_stop(&self, py: Python<'_>, grace: Option<f64>, reason: &str) -> PyResult<()> {
        let grace = match grace {
            Some(grace) => seconds("grace", grace).map_err(|error| exception(&error))?,
            None => self.0.grace,
        };
        let reason = match reason {
            "stopped" => Reason::Stopped,
            "timeout" => Reason::Timeout,
            _ => {
                return Err(UsageError::new_err(format!(
                    "reason must be \"stopped\" or \"timeout\": {reason:?}"
                )));
            }
        };
        self.ask(py, |job| job.request_stop(reason, grace))
    }
}

impl Job {
    pub(crate) fn new(job: core::Job, grace: Duration) -> Self {
        Self(Arc::new(Shared { job, grace, owner: process::id(), is_watched: AtomicBool::new(false) }))
    }

    /// Waits until every rank runs its program. What a signal handler raises meanwhile ends the job first.
    pub(crate) fn wait_started(&self, py: Python<'_>) -> PyResult<()> {
        let started = answering(py, start_exception, |interrupted| self.0.job.wait_started(interrupted));
        if started.is_err() {
            // Of a job that could not start nothing is left, and neither call does anything.
            py.detach(|| {
                let _ = self.0.job.request_stop(Reason::Stopped, Duration::ZERO);
                let _ = self.0.job.wait(None);
            });
        }
        started
    }

    /// Before any lock of the job is touched: in a forked child another thread's lock stays locked for ever.
    pub(crate) fn check_owner(&self) -> PyResult<()> {
        if process::id() == self.0.owner {
            return Ok(());
        }
        Err(LauncherError::new_err("this job belongs to the process that started it, not to a fork of it"))
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&core::Job) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.check_owner()?;
        py.detach(|| f(&self.0.job)).map_err(|error| exception(&error))
    }

    fn wait_for<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&core::Job, &mut dyn FnMut() -> bool) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.check_owner()?;
        answering(py, exception, |interrupted| f(&self.0.job, interrupted))
    }
}

/// Waits without the GIL. Python's signal handlers run meanwhile, in its main thread only; what one raises ends the wait.
pub(crate) fn answering<T: Send>(
    py: Python<'_>,
    exception: fn(&Error) -> PyErr,
    wait: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let result = py.detach(|| {
        wait(&mut || {
            raised = run_handlers().err();
            raised.is_some()
        })
    });
    match raised {
        Some(error) => Err(error),
        None => result.map_err(|error| exception(&error)),
    }
}

#[expect(clippy::redundant_closure_for_method_calls, reason = "the method's path has too narrow a lifetime")]
fn run_handlers() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

fn limit(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    timeout.map(|timeout| seconds("timeout", timeout)).transpose().map_err(|error| exception(&error))
}
