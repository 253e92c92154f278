//! Making a worker: fork with a pidfd, set up, execute; errors come back over a pipe that closes on exec.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;

use libc::{c_char, c_int};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::process::open_pidfd;
use super::signals::full_set;
use crate::error::Stage;
use crate::pid::Pid;

/// Where execvp looks when `PATH` is not set (glibc: `confstr(_CS_PATH)`).
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The files that may be meant by `program`, in order: itself if it has a slash, else one in each folder of `path`.
pub(crate) fn search(program: &OsStr, path: Option<&OsStr>) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(program)];
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH));
    path.as_bytes()
        .split(|&byte| byte == b':')
        .map(|folder| if folder.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(folder)) })
        .map(|folder| folder.join(program))
        .collect()
}

/// A null-terminated array of C strings that owns them.
struct Strings {
    pointers: Vec<*const c_char>,
    _owned: Vec<CString>,
}

impl Strings {
    fn new(strings: impl IntoIterator<Item = OsString>) -> Result<Self, Errno> {
        let owned: Result<Vec<_>, _> = strings.into_iter().map(|s| CString::new(s.into_vec())).collect();
        let owned = owned.map_err(|_| Errno::INVAL)?;
        let pointers = owned.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect();
        Ok(Self { pointers, _owned: owned })
    }
}

/// All that a worker's process needs between fork and exec, allocated before.
pub(crate) struct Image {
    files: Strings,
    argv: Strings,
    /// `/bin/sh FILE ARGS...`, for a file without a first line that names its interpreter.
    shell: Strings,
    envp: Strings,
    cwd: Option<CString>,
    /// Descriptor and the number it gets. The first are above all of the second.
    placed: Vec<(RawFd, RawFd)>,
}

impl Image {
    pub(crate) fn new(
        argv: &[OsString],
        environ: &[(OsString, OsString)],
        cwd: Option<&Path>,
        placed: Vec<(RawFd, RawFd)>,
    ) -> Result<Self, Errno> {
        let program = argv.first().ok_or(Errno::INVAL)?;
        let path = environ.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
        let variable = |(name, value): &(OsString, OsString)| {
            let mut text = name.clone();
            text.push("=");
            text.push(value);
            text
        };
        let shell = ["/bin/sh".into(), OsString::new()].into_iter().chain(argv.iter().skip(1).cloned());
        let cwd =
            cwd.map(|cwd| CString::new(cwd.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)).transpose()?;
        Ok(Self {
            files: Strings::new(search(program, path).into_iter().map(PathBuf::into_os_string))?,
            argv: Strings::new(argv.iter().cloned())?,
            shell: Strings::new(shell)?,
            envp: Strings::new(environ.iter().map(variable))?,
            cwd,
            placed,
        })
    }
}

/// A worker's process that may not run its program yet.
pub(crate) struct Spawned {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// End of file: the program runs. [`Self::failure`] otherwise.
    pub(crate) status: OwnedFd,
}

impl Spawned {
    /// What the status pipe says: `None` while it says nothing, `Ok` once the program runs.
    pub(crate) fn failure(status: &OwnedFd) -> Option<Result<(), (Stage, i32)>> {
        let mut bytes = [0u8; 8];
        match rustix::io::read(status, &mut bytes) {
            Ok(8) => {
                let [stage, _, _, _, errno @ ..] = bytes;
                let stage = Stage::ALL.get(usize::from(stage)).copied().unwrap_or(Stage::Exec);
                Some(Err((stage, i32::from_ne_bytes(errno))))
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            // The end, or a process that was killed before it could say anything: its pidfd tells.
            _ => Some(Ok(())),
        }
    }
}

/// Makes the process. `floor`: the status pipe must not be where a passed descriptor goes.
pub(crate) fn spawn(image: &mut Image, keeper: Pid, floor: RawFd) -> Result<Spawned, Errno> {
    let (status, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let write = rustix::io::fcntl_dupfd_cloexec(&write, floor)?;
    let (pid, pidfd) = fork_with_pidfd(|| {
        // SAFETY: this is the child of a fork; `become_program` calls nothing but system calls.
        unsafe { become_program(image, keeper, write.as_raw_fd()) }
    })?;
    Ok(Spawned { pid, pidfd, status })
}

/// Forks by clone3 with a pidfd, or where that is not to be had by fork, and opens one before anybody can reap.
fn fork_with_pidfd(child: impl FnOnce()) -> Result<(Pid, OwnedFd), Errno> {
    let mut fd: RawFd = -1;
    // SAFETY: zeroed is a valid clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PIDFD as u64;
    args.pidfd = (&raw mut fd) as u64;
    #[allow(clippy::cast_sign_loss)]
    {
        args.exit_signal = libc::SIGCHLD as u64;
    }
    // SAFETY: without CLONE_VM this is a fork: the child has its own copy of the stack and memory. The process is
    // single-threaded, and the child only makes system calls.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<libc::clone_args>()) };
    if pid == 0 {
        child();
        super::exit_now(127);
    }
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::new) {
        // SAFETY: the kernel stored a new descriptor that nobody else owns.
        return Ok((pid, unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL) {
        Errno::NOSYS | Errno::PERM | Errno::INVAL => {}
        errno => return Err(errno),
    }
    match super::fork()? {
        super::ForkSide::Child => {
            child();
            super::exit_now(127)
        }
        super::ForkSide::Parent(pid) => match open_pidfd(pid.get()) {
            Ok(pidfd) => Ok((pid, pidfd)),
            Err(errno) => {
                super::kill_child(pid);
                super::wait_for_child(pid);
                Err(errno)
            }
        },
    }
}

/// Sets this forked process up and executes its program. Comes back only to say what failed.
///
/// # Safety
/// For the child of a fork. Between here and exec there is no allocation, no lock and no panic: only system calls on
/// memory that `image` prepared.
unsafe fn become_program(image: &mut Image, keeper: Pid, status: RawFd) {
    // SAFETY: see above; every pointer is into `image`, which the child's copy of memory holds.
    unsafe {
        let failed = |stage: Stage| {
            let mut message = [stage as u8, 0, 0, 0, 0, 0, 0, 0];
            message[4..].copy_from_slice(&(*libc::__errno_location()).to_ne_bytes());
            libc::write(status, message.as_ptr().cast(), message.len());
        };
        // The keeper may have died before the death signal was armed.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != keeper.get() {
            return;
        }
        for signal in [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGCHLD] {
            libc::signal(signal, libc::SIG_DFL);
        }
        if let Some(cwd) = &image.cwd {
            if libc::chdir(cwd.as_ptr()) != 0 {
                return failed(Stage::Chdir);
            }
        }
        close_on_exec_from(3);
        for &(from, to) in &image.placed {
            if libc::dup2(from, to) < 0 {
                return failed(Stage::Descriptors);
            }
        }
        let mut none = full_set();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        execute(image);
        failed(Stage::Exec);
    }
}

/// execvp with our own environment, and `ETXTBSY` tried again: another process's fork may hold a file that was just
/// written. Leaves errno as execvp does: EACCES wins over later ENOENT.
///
/// # Safety
/// As [`become_program`].
unsafe fn execute(image: &mut Image) {
    // SAFETY: as the caller promises.
    unsafe {
        let errno = libc::__errno_location();
        let envp = image.envp.pointers.as_ptr();
        let mut denied = false;
        for &file in &image.files.pointers[..image.files.pointers.len() - 1] {
            let mut tries = 0;
            loop {
                libc::execve(file, image.argv.pointers.as_ptr(), envp);
                if *errno != libc::ETXTBSY || tries == 3 {
                    break;
                }
                tries += 1;
                libc::poll(ptr::null_mut(), 0, 1 << tries);
            }
            match *errno {
                // A program for another machine is no shell script.
                libc::ENOEXEC if is_binary(file) => {
                    *errno = libc::ENOEXEC;
                    return;
                }
                libc::ENOEXEC => {
                    let shell = &mut image.shell.pointers;
                    // The child's own copy of the array; nobody else sees the change.
                    shell[1] = file;
                    libc::execve(shell[0], shell.as_ptr(), envp);
                    return;
                }
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                _ => return,
            }
        }
        if denied {
            *errno = libc::EACCES;
        }
    }
}

/// Whether the first line of a file has a NUL byte: how shells tell programs from text (POSIX, Shell Command
/// Language 2.9.1).
///
/// # Safety
/// As [`become_program`]; `file` is a C string.
unsafe fn is_binary(file: *const c_char) -> bool {
    let mut start = [0u8; 128];
    // SAFETY: as the caller promises; the kernel writes into an array of ours.
    let length = unsafe {
        let fd = libc::open(file, libc::O_RDONLY | libc::O_CLOEXEC);
        libc::read(fd, start.as_mut_ptr().cast(), start.len())
    };
    start
        .iter()
        .take(usize::try_from(length).unwrap_or(0))
        .take_while(|&&byte| byte != b'\n')
        .any(|&b| b == 0)
}

/// Marks every descriptor from `first` on as closed on exec.
///
/// # Safety
/// As [`become_program`].
pub(super) unsafe fn close_on_exec_from(first: c_int) {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    // SAFETY: plain system calls.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, c_int::MAX, CLOSE_RANGE_CLOEXEC) == 0 {
            return;
        }
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let limit = c_int::try_from(limit.rlim_cur).unwrap_or(65_536).min(1 << 20);
        for fd in first..limit {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

/// The C string of a path.
pub(super) fn c_path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)
}

/// This process's environment as C strings, but for what no program can be given (execve(2), `MAX_ARG_STRLEN`).
pub(super) fn c_environ() -> Vec<CString> {
    let variable = |(name, value): (OsString, OsString)| {
        let mut text = name.into_vec();
        text.push(b'=');
        text.extend(value.into_vec());
        (text.len() < 128 * 1024).then(|| CString::new(text).ok()).flatten()
    };
    std::env::vars_os().filter_map(variable).collect()
}

/// Pointers to C strings, null-terminated.
pub(super) fn pointers<'a>(strings: impl IntoIterator<Item = &'a CStr>) -> Vec<*const c_char> {
    strings.into_iter().map(CStr::as_ptr).chain([ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::PathBuf;

    use super::search;

    #[test]
    fn programs_are_searched_like_execvp_does() {
        let found = |program: &str, path: Option<&str>| -> Vec<PathBuf> {
            search(OsStr::new(program), path.map(OsStr::new))
        };
        assert_eq!(found("./a", Some("/x")), [PathBuf::from("./a")]);
        assert_eq!(found("a", Some("/x::/y")), ["/x/a", "./a", "/y/a"].map(PathBuf::from));
        assert_eq!(found("a", None), ["/bin/a", "/usr/bin/a"].map(PathBuf::from));
    }
}
