//! What people see. A stream that nobody reads is no reason to fail.

use std::io::Write;
use std::process::ExitCode;

use nativelaunch_core::Error;

/// Text for standard output.
pub(crate) fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// A message on standard error: every line with our name.
pub(crate) fn say(text: &str) {
    let mut message = String::new();
    for line in text.lines() {
        message.push_str("nativelaunch: ");
        message.push_str(line);
        message.push('\n');
    }
    // In one piece: the ranks write to the same terminal.
    let _ = std::io::stderr().write_all(message.as_bytes());
}

/// Tells an error; its exit status.
pub(crate) fn fail(error: &Error) -> ExitCode {
    say(&error.to_string());
    ExitCode::from(error.exit_status())
}
