//! Which Python runs the script.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// `PYTHON_EXEC`; the Python of the environment that this binary was installed into; the active environment's; `python3` on
/// `PATH`.
pub(crate) fn find() -> OsString {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    // The kernel's path of this file has no symbolic link in it, so a link to a tool's binary leads to the tool's Python.
    let binary = std::env::current_exe().ok();
    let active = set("VIRTUAL_ENV").map(PathBuf::from);
    choose(set("PYTHON_EXEC"), binary.as_deref().and_then(Path::parent), active.as_deref())
}

/// Outside of an environment, an active one wins over a Python beside the binary: it is in `/usr/local/bin` by chance.
fn choose(given: Option<OsString>, folder: Option<&Path>, active: Option<&Path>) -> OsString {
    if let Some(python) = given {
        return python;
    }
    let active = active.and_then(|environment| in_environment(&environment.join("bin")));
    let own = folder.filter(|folder| folder.with_file_name("pyvenv.cfg").is_file()).and_then(in_environment);
    let beside = || folder.and_then(|folder| first_of(folder, ["python3", "python"]));
    own.or(active).or_else(beside).map_or_else(|| "python3".into(), PathBuf::into_os_string)
}

fn in_environment(folder: &Path) -> Option<PathBuf> {
    first_of(folder, ["python", "python3"])
}

fn first_of(folder: &Path, names: [&str; 2]) -> Option<PathBuf> {
    names.into_iter().map(|name| folder.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A folder of these files, gone at the end of the test.
    struct Root(PathBuf);

    impl Root {
        fn new(files: &[&str]) -> Self {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let name =
                format!("nativelaunch-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let root = Self(std::env::temp_dir().join(name));
            for file in files.iter().map(|file| root.0.join(file)) {
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, "").unwrap();
            }
            root
        }

        /// What is chosen for a binary in the folder `binary`, as a path in this one.
        fn choose(&self, binary: &str, active: Option<&str>) -> String {
            let active = active.map(|path| self.0.join(path));
            let chosen = PathBuf::from(choose(None, Some(&self.0.join(binary)), active.as_deref()));
            chosen.strip_prefix(&self.0).unwrap_or(&chosen).to_str().unwrap().into()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_given_interpreter_is_taken_as_it_is() {
        let root = Root::new(&["own/pyvenv.cfg", "own/bin/python"]);
        assert_eq!(choose(Some("python9".into()), Some(&root.0.join("own/bin")), None), "python9");
    }

    #[test]
    fn a_binary_in_an_environment_belongs_to_its_python() {
        let root = Root::new(&["own/pyvenv.cfg", "own/bin/python", "own/bin/python3", "active/bin/python"]);
        assert_eq!(root.choose("own/bin", None), "own/bin/python");
        assert_eq!(root.choose("own/bin", Some("active")), "own/bin/python");
    }

    #[test]
    fn a_binary_outside_of_one_leaves_the_active_environment_its_python() {
        let root = Root::new(&["usr/bin/python", "usr/bin/python3", "active/bin/python", "old/bin/python3"]);
        assert_eq!(root.choose("usr/bin", Some("active")), "active/bin/python");
        assert_eq!(root.choose("usr/bin", Some("old")), "old/bin/python3");
        assert_eq!(root.choose("cargo/bin", Some("active")), "active/bin/python");
    }

    #[test]
    fn without_an_environment_python3_beside_the_binary_comes_before_python_and_before_path() {
        let root = Root::new(&["usr/bin/python", "usr/bin/python3", "opt/bin/python"]);
        assert_eq!(root.choose("usr/bin", None), "usr/bin/python3");
        assert_eq!(root.choose("usr/bin", Some("gone")), "usr/bin/python3");
        assert_eq!(root.choose("opt/bin", None), "opt/bin/python");
        assert_eq!(root.choose("cargo/bin", None), "python3");
    }
}
