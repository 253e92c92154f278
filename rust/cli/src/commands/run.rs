//! `nativelaunch [OPTIONS] SCRIPT [ARGS...]`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use nativelaunch_core::front::SignalIntake;
use nativelaunch_core::{Error, Plan};

use crate::flags::RunOptions;
use crate::{console, front, interpreter, suggest};

/// Runs the job; the status is the job's.
pub(crate) fn run(options: RunOptions, signals: &SignalIntake) -> ExitCode {
    if let Err((status, text)) = check_script(&options) {
        console::say(&text);
        return ExitCode::from(status);
    }
    match plan(options) {
        Ok(plan) => {
            let policy = plan.policy();
            front::run(plan, policy, signals)
        }
        Err(error) => console::fail(&error),
    }
}

fn plan(options: RunOptions) -> Result<Plan, Error> {
    let mut command: Vec<OsString> = Vec::new();
    if !options.no_python {
        command.extend([interpreter::find(), "-u".into()]);
        if options.module {
            command.push("-m".into());
        }
    }
    command.push(options.script);
    command.extend(options.arguments);
    Plan::builder(command)
        .nproc_per_node(options.nproc_per_node)
        .grace(options.grace)
        .peer_grace(options.peer_grace)
        // The very file that runs, also when an upgrade has replaced it meanwhile.
        .supervisor("/proc/self/exe")
        .build()
}

/// A Python script that is not there is told once, before anything starts, and not by every rank.
fn check_script(options: &RunOptions) -> Result<(), (u8, String)> {
    let script = Path::new(&options.script);
    if options.script.as_bytes().contains(&0) {
        return Err((2, format!("the script's name contains a NUL byte: {:?}", options.script)));
    }
    if options.module || (options.no_python && !options.script.as_bytes().contains(&b'/')) || script.exists()
    {
        return Ok(());
    }
    if script.is_relative() && std::env::current_dir().is_err() {
        return Err((1, format!("cannot start {script:?}: the working directory no longer exists")));
    }
    let (kind, hint) = if options.no_python {
        ("program", similar(script))
    } else if is_program(&options.script) {
        ("script", " (a program? then --no-python)".to_owned())
    } else {
        ("script", similar(script))
    };
    Err((127, format!("cannot start: {kind} {script:?}: no such file{hint}")))
}

/// Whether there is a program of this name on `PATH`.
fn is_program(name: &OsStr) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    !name.as_bytes().contains(&b'/') && std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// A file in the same folder whose name is close.
fn similar(script: &Path) -> String {
    let folder = script.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(typed) = script.file_name().and_then(OsStr::to_str) else { return String::new() };
    let Ok(entries) = std::fs::read_dir(folder) else { return String::new() };
    let names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).take(10_000).collect();
    suggest::hint(typed, names.iter().map(String::as_str))
}
