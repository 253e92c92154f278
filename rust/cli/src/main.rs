//! The `nativelaunch` command.
#![allow(clippy::print_stdout)]

fn main() {
    println!("nativelaunch {}", nativelaunch_core::VERSION);
}
