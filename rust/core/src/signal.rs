//! Signal numbers and names.

use std::fmt;

/// A signal number, 1 to 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(u8);

/// Names of the standard signals; the numbers are those of the platform.
const NAMES: &[(i32, &str)] = &[
    (libc::SIGHUP, "HUP"),
    (libc::SIGINT, "INT"),
    (libc::SIGQUIT, "QUIT"),
    (libc::SIGILL, "ILL"),
    (libc::SIGTRAP, "TRAP"),
    (libc::SIGABRT, "ABRT"),
    (libc::SIGBUS, "BUS"),
    (libc::SIGFPE, "FPE"),
    (libc::SIGKILL, "KILL"),
    (libc::SIGUSR1, "USR1"),
    (libc::SIGSEGV, "SEGV"),
    (libc::SIGUSR2, "USR2"),
    (libc::SIGPIPE, "PIPE"),
    (libc::SIGALRM, "ALRM"),
    (libc::SIGTERM, "TERM"),
    (libc::SIGCHLD, "CHLD"),
    (libc::SIGCONT, "CONT"),
    (libc::SIGSTOP, "STOP"),
    (libc::SIGTSTP, "TSTP"),
    (libc::SIGTTIN, "TTIN"),
    (libc::SIGTTOU, "TTOU"),
    (libc::SIGURG, "URG"),
    (libc::SIGXCPU, "XCPU"),
    (libc::SIGXFSZ, "XFSZ"),
    (libc::SIGVTALRM, "VTALRM"),
    (libc::SIGPROF, "PROF"),
    (libc::SIGWINCH, "WINCH"),
    (libc::SIGIO, "IO"),
    (libc::SIGPWR, "PWR"),
    (libc::SIGSYS, "SYS"),
];

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
impl Signal {
    /// Hang-up.
    pub const HUP: Self = Self(libc::SIGHUP as u8);
    /// Interrupt, Ctrl-C.
    pub const INT: Self = Self(libc::SIGINT as u8);
    /// Quit, Ctrl-\.
    pub const QUIT: Self = Self(libc::SIGQUIT as u8);
    /// Kill: cannot be caught.
    pub const KILL: Self = Self(libc::SIGKILL as u8);
    /// User signal 1.
    pub const USR1: Self = Self(libc::SIGUSR1 as u8);
    /// Terminate.
    pub const TERM: Self = Self(libc::SIGTERM as u8);
    /// Continue if stopped.
    pub const CONT: Self = Self(libc::SIGCONT as u8);
    /// Stop: cannot be caught.
    pub const STOP: Self = Self(libc::SIGSTOP as u8);
    /// Stop typed at the terminal, Ctrl-Z.
    pub const TSTP: Self = Self(libc::SIGTSTP as u8);
    /// Background read from the terminal.
    pub const TTIN: Self = Self(libc::SIGTTIN as u8);
    /// Background write to the terminal.
    pub const TTOU: Self = Self(libc::SIGTTOU as u8);
    /// A child stopped or ended.
    pub const CHLD: Self = Self(libc::SIGCHLD as u8);
    /// Write to a pipe that nobody reads.
    pub const PIPE: Self = Self(libc::SIGPIPE as u8);
    /// File size limit exceeded.
    pub const XFSZ: Self = Self(libc::SIGXFSZ as u8);

    /// The signal with this number; `None` outside 1 to 64.
    pub fn new(number: i32) -> Option<Self> {
        (1..=64).contains(&number).then_some(Self(number as u8))
    }

    /// The number.
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }

    /// Whether it asks a job to end: TERM, INT, HUP, QUIT.
    pub fn is_terminating(self) -> bool {
        matches!(self, Self::TERM | Self::INT | Self::HUP | Self::QUIT)
    }

    /// The exit status by which shells report a death by this signal.
    pub fn status(self) -> u8 {
        128 + self.0
    }
}

impl fmt::Display for Signal {
    /// `SIGTERM`, `SIGRTMIN+3`, or `signal 33` for numbers without a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number();
        match NAMES.iter().find(|(n, _)| *n == number) {
            Some((_, name)) => write!(f, "SIG{name}"),
            None if number == 34 => f.write_str("SIGRTMIN"),
            None if number > 34 => write!(f, "SIGRTMIN+{}", number - 34),
            None => write!(f, "signal {number}"),
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Signal;

    #[test]
    fn numbers_outside_1_to_64_are_no_signals() {
        assert_eq!(Signal::new(0), None);
        assert_eq!(Signal::new(-9), None);
        assert_eq!(Signal::new(65), None);
        assert_eq!(Signal::new(9), Some(Signal::KILL));
    }

    #[test]
    fn names_are_those_of_the_shell() {
        assert_eq!(Signal::TERM.to_string(), "SIGTERM");
        assert_eq!(Signal::new(37).unwrap().to_string(), "SIGRTMIN+3");
        assert_eq!(Signal::KILL.status(), 137);
    }
}
