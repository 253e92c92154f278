//! What people see. A stream that nobody reads is no reason to fail.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use nativelaunch_core::Error;
use nativelaunch_core::front::is_writable;

/// Text for standard output.
pub(crate) fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// How long a full pipe may keep us. Nobody reads it after that, and a front that waits on would be deaf.
const PATIENCE: Duration = Duration::from_secs(2);

/// A message on standard error: every line with our name.
pub(crate) fn say(text: &str) {
    say_within(text, PATIENCE);
}

/// A message while the job runs and signals are to be heard: not told if nobody has read what is there.
pub(crate) fn mention(text: &str) {
    say_within(text, Duration::ZERO);
}

fn say_within(text: &str, patience: Duration) {
    let mut message = String::new();
    for line in text.lines() {
        message.push_str("nativelaunch: ");
        message.push_str(line);
        message.push('\n');
    }
    // In one piece: the ranks write to the same terminal.
    let mut stderr = std::io::stderr();
    if is_writable(&stderr, patience) {
        let _ = stderr.write_all(message.as_bytes());
    }
}

/// Tells an error; its exit status.
pub(crate) fn fail(error: &Error) -> ExitCode {
    say(&error.to_string());
    ExitCode::from(error.exit_status())
}
