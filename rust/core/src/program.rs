//! Programs: looked for before the start, and explained when they could not be executed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Stage, describe};
use crate::os;
use crate::outcome::SpawnFailure;
use crate::plan::{Plan, Worker};

/// The longest single argument or variable, its NUL included (execve(2), `MAX_ARG_STRLEN`).
const LONGEST_STRING: usize = 128 * 1024;

/// Refuses a program that cannot be found or executed before anything is started. The exec itself decides; this only
/// says so earlier.
pub(crate) fn check(plan: &Plan, worker: &Worker) -> Result<(), Error> {
    let mut errno = libc::ENOENT;
    for file in candidates(plan, worker) {
        match std::fs::metadata(&file) {
            Ok(data) if data.is_file() && data.permissions().mode() & 0o111 != 0 => return Ok(()),
            Ok(_) => errno = libc::EACCES,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {}
            // What we may not look at may still be executable.
            Err(_) => return Ok(()),
        }
    }
    Err(spawn_error(plan, SpawnFailure { rank: worker.rank, stage: Stage::Exec, errno }))
}

/// The files that a worker's command may mean, as seen from its working directory.
fn candidates(plan: &Plan, worker: &Worker) -> Vec<PathBuf> {
    let environ = plan.environment(worker);
    let path = environ.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let cwd = worker.cwd.as_deref().unwrap_or(Path::new(""));
    os::search(program(worker), path).into_iter().map(|file| cwd.join(file)).collect()
}

fn program(worker: &Worker) -> &OsStr {
    worker.argv.first().map(OsString::as_os_str).unwrap_or_default()
}

/// Why a worker could not be started, and where to look.
pub(crate) fn spawn_error(plan: &Plan, failure: SpawnFailure) -> Error {
    let SpawnFailure { rank, stage, errno } = failure;
    let why = describe(errno);
    let what = match (stage, plan.workers.iter().find(|worker| worker.rank == rank)) {
        (Stage::Exec, Some(worker)) => {
            format!(
                "exec {:?}: {why}{}",
                program(worker),
                explain_exec(plan, worker, errno).unwrap_or_default()
            )
        }
        (Stage::Chdir, Some(Worker { cwd: Some(cwd), .. })) => format!("chdir {cwd:?}: {why}"),
        (Stage::Fork, _) if errno == libc::EAGAIN => {
            let limit = os::process_limit()
                .map(|limit| format!(" (this user may have {limit} processes: ulimit -u)"));
            format!("fork: {why}{}", limit.unwrap_or_default())
        }
        (Stage::Fork | Stage::Descriptors, _) if errno == libc::EMFILE => {
            // The pipe that tells of the exec, the pidfd.
            let limit =
                os::descriptor_limit().map(|limit| format!(" (the keeper may have {limit}: ulimit -n)"));
            format!("{why}{}", limit.unwrap_or_default())
        }
        _ => format!("{}: {why}", stage.name()),
    };
    Error::spawn(rank, stage, errno, format!("cannot start rank {rank}: {what}"))
}

fn explain_exec(plan: &Plan, worker: &Worker, errno: i32) -> Option<String> {
    match errno {
        libc::ENOENT => {
            let line = candidates(plan, worker).iter().find_map(|file| first_line(file))?;
            Some(format!(" (its first line names an interpreter that is missing: {line:?})"))
        }
        libc::E2BIG => Some(explain_size(plan, worker)),
        _ => None,
    }
}

/// What is too large: one string, or all together.
fn explain_size(plan: &Plan, worker: &Worker) -> String {
    let environ = plan.environment(worker);
    let variables = environ.iter().map(|(name, value)| {
        (format!("variable {name:?}"), name.as_bytes().len() + value.as_bytes().len() + 2)
    });
    let arguments =
        worker.argv.iter().enumerate().map(|(n, value)| (format!("argument {n}"), value.len() + 1));
    let strings: Vec<(String, usize)> = variables.chain(arguments).collect();
    let total: usize = strings.iter().map(|(_, size)| size).sum();
    let Some((name, size)) = strings.into_iter().max_by_key(|(_, size)| *size) else { return String::new() };
    if size > LONGEST_STRING {
        format!(" ({name} has {size} bytes, one may have {LONGEST_STRING})")
    } else {
        format!(
            " (arguments and environment have {total} bytes, the largest is {name} with {size}; a quarter of the stack's \
             limit is allowed: ulimit -s)"
        )
    }
}

/// The first line of a script, `#!...`.
fn first_line(file: &Path) -> Option<String> {
    use std::io::Read;
    let mut start = Vec::new();
    std::fs::File::open(file).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.split(|&byte| byte == b'\n').next()?;
    line.starts_with(b"#!").then(|| String::from_utf8_lossy(line).into_owned())
}
