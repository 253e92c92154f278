//! The Python extension `nativelaunch._core`: conversions only. `python/nativelaunch/_core.pyi` documents it.

mod errors;
mod exit;
mod job;
mod outcome;
mod plan;
mod watch;

use pyo3::prelude::*;

/// The compiled half of the package.
#[pymodule(name = "_core")]
mod core_module {
    #[pymodule_export]
    use crate::exit::set_exit_status;
    #[pymodule_export]
    use crate::job::Job;
    #[pymodule_export]
    use crate::outcome::{Event, Outcome, RankOutcome};
    #[pymodule_export]
    use crate::plan::{start, usable_cpus};
    #[pymodule_export]
    use crate::watch::HostWatch;

    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", nativelaunch_core::VERSION)
    }
}
