//! Runs a script as four ranks and ends as they ended. The README shows this file.

use std::process::ExitCode;

use nativelaunch_core::{Error, Plan};

fn main() -> Result<ExitCode, Error> {
    let job = Plan::builder(["python3", "train.py"]).nproc_per_node(4).build()?.start()?;
    let outcome = job.wait(None)?.expect("without a time limit it waits to the end");
    Ok(ExitCode::from(outcome.status))
}
