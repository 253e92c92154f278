//! The Python extension `nativelaunch._core`: conversions only.

use pyo3::prelude::*;

/// The compiled half of the package.
#[pymodule(name = "_core")]
mod core_module {
    use super::{PyModule, Bound, PyResult, PyModuleMethods};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", nativelaunch_core::VERSION)
    }
}
