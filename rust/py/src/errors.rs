//! The core's errors as exceptions of `nativelaunch.errors`.

use nativelaunch_core::{Error, ErrorKind, Stage};
use pyo3::{PyErr, import_exception};

import_exception!(nativelaunch.errors, LauncherError);
import_exception!(nativelaunch.errors, SpawnError);
import_exception!(nativelaunch.errors, UsageError);
import_exception!(nativelaunch.errors, WorkerFailed);

/// What a running job or a wait for it came to. A keeper that says it cannot go on is no failed start.
pub(crate) fn exception(error: &Error) -> PyErr {
    match error.kind() {
        ErrorKind::Usage => UsageError::new_err(error.to_string()),
        ErrorKind::Spawn => spawn_error(error),
        _ => LauncherError::new_err(error.to_string()),
    }
}

/// What a start came to: of a rank, or of the supervisor, which is no rank.
pub(crate) fn start_exception(error: &Error) -> PyErr {
    match error.kind() {
        ErrorKind::Supervisor | ErrorKind::Protocol | ErrorKind::Os => spawn_error(error),
        _ => exception(error),
    }
}

fn spawn_error(error: &Error) -> PyErr {
    SpawnError::new_err((error.errno(), error.to_string(), error.rank(), error.stage().map(Stage::name)))
}
