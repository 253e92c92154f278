//! The one error type.

use std::fmt;

/// What went wrong, for machines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value of the plan was refused; nothing was started.
    Usage,
    /// A worker could not be started; those started before it were ended.
    Spawn,
    /// Guard or keeper could not be started.
    Supervisor,
    /// The other side of the wire sent something else than agreed.
    Protocol,
    /// The handle cannot be used here: it belongs to another process, or the job has ended.
    State,
    /// A system call failed.
    Os,
}

/// Where a start went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum Stage {
    /// Making the process.
    Fork,
    /// Opening or placing standard streams and passed descriptors.
    Descriptors,
    /// Changing to the working directory.
    Chdir,
    /// Replacing the process image.
    Exec,
}

impl Stage {
    pub(crate) const ALL: [Self; 4] = [Self::Fork, Self::Descriptors, Self::Chdir, Self::Exec];

    /// The name of the stage: `fork`, `descriptors`, `chdir`, `exec`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Descriptors => "descriptors",
            Self::Chdir => "chdir",
            Self::Exec => "exec",
        }
    }
}

/// An error: a kind for machines, one lower-case sentence for people, which is also what `Debug` shows: a `main` that
/// returns it tells people.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    stage: Option<Stage>,
    rank: Option<u32>,
    errno: Option<i32>,
    text: String,
}

impl Error {
    /// An error with this text.
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, stage: None, rank: None, errno: None, text: text.into() }
    }

    /// A refused value.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, text)
    }

    /// A system call that failed; the text ends with the system's own words.
    pub(crate) fn os(what: impl fmt::Display, errno: rustix::io::Errno) -> Self {
        let mut error = Self::new(ErrorKind::Os, format!("{what}: {}", describe(errno.raw_os_error())));
        error.errno = Some(errno.raw_os_error());
        error
    }

    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    pub(crate) fn spawn(rank: u32, stage: Stage, errno: i32, text: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Spawn,
            stage: Some(stage),
            rank: Some(rank),
            errno: Some(errno),
            text: text.into(),
        }
    }

    /// What went wrong, for machines.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Where the start of a worker went wrong.
    pub fn stage(&self) -> Option<Stage> {
        self.stage
    }

    /// The rank that could not be started.
    pub fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// The error number of the system call.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// The exit status for a command that ends with this error: 2 for usage, 127 for a command that is not found, 126
    /// for one that cannot be executed, else 1 (POSIX shell, 2.8.2).
    pub fn exit_status(&self) -> u8 {
        match (self.kind, self.stage, self.errno) {
            (ErrorKind::Usage, ..) => 2,
            (ErrorKind::Spawn, Some(Stage::Exec), Some(errno)) => exec_status(errno),
            _ => 1,
        }
    }
}

/// 127 for a command that is not found, 126 for one that is and cannot be executed, 1 if the system is to blame.
pub(crate) fn exec_status(errno: i32) -> u8 {
    match errno {
        libc::ENOENT | libc::ENOTDIR => 127,
        libc::EACCES
        | libc::EPERM
        | libc::ENOEXEC
        | libc::EISDIR
        | libc::ELOOP
        | libc::ELIBBAD
        | libc::E2BIG
        | libc::ENAMETOOLONG
        | libc::ETXTBSY => 126,
        _ => 1,
    }
}

/// The system's words for an error number, lower case.
pub(crate) fn describe(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
