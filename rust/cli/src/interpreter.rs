//! Which Python runs the script.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// `PYTHON_EXEC`; the Python beside this binary, as a wheel puts it; the active virtual environment's; `python3` on `PATH`.
pub(crate) fn find() -> OsString {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(python) = set("PYTHON_EXEC") {
        return python;
    }
    let beside = std::env::current_exe().ok().and_then(|exe| python_in(exe.parent()?));
    let active = || set("VIRTUAL_ENV").and_then(|venv| python_in(&Path::new(&venv).join("bin")));
    beside.or_else(active).map_or_else(|| "python3".into(), PathBuf::into_os_string)
}

fn python_in(folder: &Path) -> Option<PathBuf> {
    ["python", "python3"].into_iter().map(|name| folder.join(name)).find(|file| file.is_file())
}
