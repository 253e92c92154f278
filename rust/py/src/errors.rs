//! The core's errors as exceptions of `nativelaunch.errors`.

use nativelaunch_core::{Error, ErrorKind, Stage};
use pyo3::{PyErr, import_exception};

import_exception!(nativelaunch.errors, LauncherError);
import_exception!(nativelaunch.errors, SpawnError);
import_exception!(nativelaunch.errors, UsageError);
import_exception!(nativelaunch.errors, WorkerFailed);

pub(crate) fn exception(error: &Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Usage => UsageError::new_err(text),
        ErrorKind::Spawn | ErrorKind::Supervisor | ErrorKind::Os => {
            SpawnError::new_err((error.errno(), text, error.rank(), error.stage().map(Stage::name)))
        }
        _ => LauncherError::new_err(text),
    }
}
