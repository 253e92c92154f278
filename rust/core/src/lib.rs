//! The engine of nativelaunch.

/// The version of this crate, of the binary and of the wheel.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
