//! The `nativelaunch` command.
#![forbid(unsafe_code)]

mod commands;
mod console;
mod flags;
mod front;
mod interpreter;
mod suggest;

use std::process::ExitCode;

use nativelaunch_core::front::SignalIntake;
use nativelaunch_core::{ErrorKind, VERSION, guard};

use crate::flags::{Parsed, parse};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "__guard") {
        return match guard::main() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.kind() == ErrorKind::Usage => console::fail(&error),
            // The client has been told, and tells it.
            Err(error) => ExitCode::from(error.exit_status()),
        };
    }
    // Before anything else, so that no signal is lost and none ends us with a job half started.
    let signals = match SignalIntake::start() {
        Ok(signals) => signals,
        Err(error) => return console::fail(&error),
    };
    match parse(arguments) {
        Ok(Parsed::Run(options)) => commands::run::run(*options, &signals),
        Ok(Parsed::Help) => console::print(&flags::help()),
        Ok(Parsed::Version) => console::print(&format!("nativelaunch {VERSION}\n")),
        Err(error) => console::fail(&error),
    }
}
