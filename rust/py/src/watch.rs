//! For a host that is itself rank 0: a thread that hears of a failure and sees to it that this process ends.

use std::os::fd::AsFd;
use std::process;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nativelaunch_core::host::{Bell, Thread, spawn_deaf};
use nativelaunch_core::policy::seconds;
use nativelaunch_core::{Error, Event, EventKind, Outcome, Reason, Signal};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::{UsageError, exception};
use crate::exit;
use crate::job::{Job, Shared};
use crate::outcome::describe;

/// The ranks end by SIGKILL when this process's time is up: so much later the whole story can be told.
const STORY_WITHIN: Duration = Duration::from_millis(300);

/// While guard and keeper end, which the job's descriptor does not tell, we look this often at what else there is.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Watch {
    shared: Arc<Shared>,
    /// Rung when there is something new in the state.
    bell: Bell,
    grace: Duration,
    peer_grace: Duration,
    /// Who made it, and is woken.
    thread: Thread,
    state: Mutex<State>,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct State {
    status: Option<u8>,
    /// The status is that of a rank, or of a lost supervisor.
    failed: bool,
    deadline: Option<Instant>,
    /// What wakes that thread, once it is ready for it.
    wake: Option<Signal>,
    woken: bool,
    sent: bool,
    closed: bool,
    outcome: Option<Outcome>,
    /// What the latest events told: a signal to all, a rank's failure.
    signal: Option<Signal>,
    failure: Option<u8>,
    /// Why there will be no outcome.
    loss: Option<String>,
}

/// Where the job is. Its descriptor is readable for good from its last event on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Runs,
    /// The last event was taken; guard and keeper may need a moment more.
    Ends,
    Over,
}

#[pyclass(frozen, module = "nativelaunch._core")]
pub(crate) struct HostWatch {
    watch: Arc<Watch>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

#[pymethods]
impl HostWatch {
    #[new]
    #[pyo3(signature = (job, *, grace, peer_grace))]
    fn new(job: &Bound<'_, Job>, grace: f64, peer_grace: f64) -> PyResult<Self> {
        let job = job.get();
        job.check_owner()?;
        exit::arm()?;
        let time = |field, value| seconds(field, value).map_err(|error| exception(&error));
        let bell = Bell::new().map_err(|error| exception(&error))?;
        if job.0.is_watched.swap(true, Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err("this job is watched already"));
        }
        let watch = Arc::new(Watch {
            shared: Arc::clone(&job.0),
            bell,
            grace: time("grace", grace)?,
            peer_grace: time("peer_grace", peer_grace)?,
            thread: Thread::current(),
            state: Mutex::default(),
        });
        let body = Arc::clone(&watch);
        let thread = spawn_deaf("nl-watch", move || body.run())
            .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
        Ok(Self { watch, thread: Mutex::new(Some(thread)), process: process::id() })
    }

    #[getter]
    fn status(&self) -> Option<u8> {
        self.watch.lock().status
    }

    #[getter]
    fn loss(&self) -> Option<String> {
        self.watch.lock().loss.clone()
    }

    fn wake_with(&self, signum: i32) -> PyResult<()> {
        let signal = Signal::new(signum)
            .ok_or_else(|| UsageError::new_err(format!("signum must be between 1 and 64: {signum}")))?;
        self.watch.wake_with(signal);
        Ok(())
    }

    fn hush(&self) {
        self.watch.lock().wake = None;
    }

    fn take_wake(&self) -> bool {
        std::mem::take(&mut self.watch.lock().woken)
    }

    fn end_with(&self, status: u8, grace: f64) -> PyResult<()> {
        let grace = seconds("grace", grace).map_err(|error| exception(&error))?;
        self.watch.end_with(status, grace);
        Ok(())
    }

    fn close(&self, py: Python<'_>) {
        // A fork has no such thread.
        if process::id() == self.process {
            py.detach(|| self.stop());
        }
    }
}

impl HostWatch {
    fn stop(&self) {
        self.watch.lock().closed = true;
        self.watch.bell.ring();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It cannot have panicked without having ended this process's interest in it.
            let _ = thread.join();
        }
    }
}

impl Drop for HostWatch {
    fn drop(&mut self) {
        // What is armed stays so to the end of the process.
        if process::id() == self.process && self.watch.lock().status.is_none() {
            self.stop();
        }
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(self: Arc<Self>) {
        let mut job = Progress::Runs;
        loop {
            job = self.look(job).unwrap_or_else(|error| {
                self.lose(&error);
                Progress::Over
            });
            let deadline = {
                let state = self.lock();
                if state.closed {
                    return;
                }
                state.deadline
            };
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let status = self.lock().status.unwrap_or(1);
                exit::end_now(status, &self.report_at_end());
            }
            self.bell.wait((job != Progress::Over).then(|| self.shared.job.as_fd()), left);
        }
    }

    /// Takes what is new.
    fn look(self: &Arc<Self>, mut progress: Progress) -> Result<Progress, Error> {
        let job = &self.shared.job;
        if progress == Progress::Over {
            return Ok(progress);
        }
        while let Some(event) = job.next_event(Some(Duration::ZERO))? {
            self.take(&event);
            if event.kind == EventKind::Ended {
                progress = Progress::Ends;
            }
        }
        if progress == Progress::Ends {
            if let Some(outcome) = job.wait(Some(LOOK))? {
                self.take_outcome(outcome);
                progress = Progress::Over;
            }
        }
        Ok(progress)
    }

    fn take(self: &Arc<Self>, event: &Event) {
        match &event.kind {
            EventKind::Signal(signal) => self.lock().signal = Some(*signal),
            EventKind::Exited(status, _) if !status.is_success() => {
                self.lock().failure.get_or_insert(status.shell_status());
            }
            EventKind::Stopping(Reason::Failed) => {
                let status = self.lock().failure.unwrap_or(1);
                self.fail(status);
            }
            // The group was signalled, this process with it: it has to end as well, in its own way if it can.
            EventKind::Stopping(Reason::Signal) if self.lock().status.is_none() => {
                let status = self.lock().signal.map_or(1, Signal::status);
                self.end_with(status, self.grace);
            }
            _ => {}
        }
    }

    fn take_outcome(self: &Arc<Self>, outcome: Outcome) {
        let (reason, status) = (outcome.reason, outcome.status);
        self.lock().outcome = Some(outcome);
        if matches!(reason, Reason::Failed | Reason::SupervisorLost) {
            self.fail(status);
        }
    }

    /// The supervisor cannot go on, or is not to be understood: the ranks end with it.
    fn lose(self: &Arc<Self>, error: &Error) {
        self.lock().loss = Some(lost(error));
        self.fail(1);
    }

    /// A rank has failed: wakes the main thread, once, and gives it the peer grace.
    fn fail(self: &Arc<Self>, status: u8) {
        {
            let mut state = self.lock();
            if state.failed || state.closed {
                return;
            }
            state.failed = true;
            state.status = Some(status);
            state.deadline = Some(sooner(state.deadline, self.peer_grace));
        }
        exit::end_as(self, status);
        let mut state = self.lock();
        if let (Some(signal), false) = (state.wake, state.sent) {
            state.woken = true;
            state.sent = true;
            // Before the lock is free: nothing is sent once `hush` has returned.
            self.thread.signal(signal);
        }
    }

    /// The thread is ready to be woken: at once, if a rank has failed already.
    fn wake_with(&self, signal: Signal) {
        let mut state = self.lock();
        state.wake = Some(signal);
        if state.failed && !state.sent && !state.closed {
            state.woken = true;
            state.sent = true;
            self.thread.signal(signal);
        }
    }

    fn end_with(self: &Arc<Self>, status: u8, grace: Duration) {
        {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            state.deadline = Some(sooner(state.deadline, grace));
            if state.failed {
                return self.bell.ring();
            }
            state.status = Some(status);
        }
        exit::end_as(self, status);
        self.bell.ring();
    }

    /// What to tell last. Waits for the story of the other ranks, as long as this process may live.
    pub(crate) fn report_at_end(&self) -> String {
        let (deadline, outcome, loss) = {
            let state = self.lock();
            (state.deadline, state.outcome.clone(), state.loss.clone())
        };
        let left = deadline.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        let job = &self.shared.job;
        let told = match (outcome, loss) {
            (Some(outcome), _) => Ok(Some(outcome)),
            (None, Some(loss)) => Err(loss),
            (None, None) => job.wait(Some(left + STORY_WITHIN)).map_err(|error| lost(&error)),
        };
        let failure = || job.first_failure().map(|failure| describe(&failure));
        match told {
            Ok(Some(outcome)) => outcome.report(),
            Ok(None) => failure().unwrap_or_default(),
            Err(loss) => failure().into_iter().chain([loss]).collect::<Vec<_>>().join("\n"),
        }
    }
}

fn lost(error: &Error) -> String {
    format!("supervisor lost: {error}")
}

fn sooner(deadline: Option<Instant>, grace: Duration) -> Instant {
    let at = Instant::now() + grace;
    deadline.map_or(at, |earlier| earlier.min(at))
}
