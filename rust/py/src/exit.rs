//! The status of this interpreter's end, when it is another's to say.

use std::panic;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use nativelaunch_core::host::{end_process, tell};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::Py_AtExit;
use pyo3::prelude::*;

use crate::watch::Watch;

/// How this process ends, whatever its own status would be.
#[derive(Clone)]
struct Exit {
    /// A fork has a copy, and ends as it likes.
    process: u32,
    status: u8,
    report: Report,
}

#[derive(Clone)]
enum Report {
    Text(String),
    /// To be asked for at the end, when more is known.
    Of(Arc<Watch>),
}

static EXIT: Mutex<Option<Exit>> = Mutex::new(None);

fn exit() -> MutexGuard<'static, Option<Exit>> {
    EXIT.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pyfunction]
#[pyo3(signature = (status, report=""))]
pub(crate) fn set_exit_status(status: Option<u8>, report: &str) -> PyResult<()> {
    arm()?;
    *exit() =
        status.map(|status| Exit { process: process::id(), status, report: Report::Text(report.to_owned()) });
    Ok(())
}

/// The watch's own word: it reports when it has to.
pub(crate) fn end_as(watch: &Arc<Watch>, status: u8) {
    *exit() = Some(Exit { process: process::id(), status, report: Report::Of(Arc::clone(watch)) });
}

/// Has the interpreter call us as the last thing it does. Called from Python, before any status can be set.
pub(crate) fn arm() -> PyResult<()> {
    static ARMED: OnceLock<bool> = OnceLock::new();
    // SAFETY: the GIL is held; the function is never unloaded, takes nothing and does not unwind.
    let armed = *ARMED.get_or_init(|| unsafe { Py_AtExit(Some(at_exit)) } == 0);
    if armed { Ok(()) } else { Err(PyRuntimeError::new_err("no room for another function at exit")) }
}

/// After all finalizers, and without an interpreter.
extern "C" fn at_exit() {
    let _ = panic::catch_unwind(|| {
        let Some(Exit { process, status, report }) = exit().clone() else { return };
        if process == process::id() {
            end(status, &report, true);
        }
    });
}

/// Ends this process now with the status that was set. `flush`: see [`end_process`].
pub(crate) fn end_now(fallback: u8, report: &str) -> ! {
    let status = exit().as_ref().map_or(fallback, |exit| exit.status);
    end(status, &Report::Text(report.to_owned()), false)
}

fn end(status: u8, report: &Report, flush: bool) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    if ENDING.swap(true, Ordering::SeqCst) {
        // The other thread does it: both were at their end.
        loop {
            thread::park();
        }
    }
    let text = match report {
        Report::Text(text) => text.clone(),
        Report::Of(watch) => watch.report_at_end(),
    };
    let mut lines = String::new();
    for line in text.lines() {
        lines.extend(["nativelaunch: ", line, "\n"]);
    }
    tell(&lines);
    end_process(status, flush)
}
