//! The front: stands between the user and the job, passes signals on, and ends as the job ended.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use nativelaunch_core::front::{SignalIntake, die_of, stop_if_controlled, wait_either};
use nativelaunch_core::{Error, EventKind, Job, Outcome, Plan, Policy, Reason, Signal};

use crate::console;

/// Ranks that need longer than this to end are waited for aloud.
const SILENT: Duration = Duration::from_secs(1);

/// Starts the plan, stays until nothing of the job is left, and tells how it ended.
pub(crate) fn run(plan: Plan, policy: Policy, signals: &SignalIntake) -> ExitCode {
    match stand_by(plan, policy, signals) {
        Ok(Ended::Job { outcome, interrupted }) => {
            console::say(&outcome.report());
            if interrupted && outcome.status == Signal::INT.status() {
                // A shell's loop goes on after exit(130), and stops after a death by SIGINT.
                die_of(Signal::INT);
            }
            ExitCode::from(outcome.status)
        }
        Ok(Ended::NotStarted(error)) | Err(error) => console::fail(&error),
    }
}

enum Ended {
    Job { outcome: Box<Outcome>, interrupted: bool },
    NotStarted(Error),
}

fn stand_by(plan: Plan, policy: Policy, signals: &SignalIntake) -> Result<Ended, Error> {
    let job = plan.begin()?;
    let mut interrupted = false;
    let mut waiting = None;
    loop {
        let left = waiting.as_ref().map(|(since, _): &(Instant, _)| SILENT.saturating_sub(since.elapsed()));
        let (signalled, spoken) = wait_either(signals, &job, left)?;
        if left.is_some_and(|left| left.is_zero()) {
            if let Some((_, reason)) = waiting.take() {
                console::mention(&describe_wait(reason, policy));
            }
        }
        if signalled {
            while let Some(received) = signals.read() {
                interrupted |= received.signal == Signal::INT && received.is_from_terminal();
                job.forward(received)?;
                if [Signal::TSTP, Signal::TTIN, Signal::TTOU].contains(&received.signal) {
                    stop_if_controlled();
                }
            }
        }
        if spoken {
            if let Some(outcome) = hear(&job, &mut waiting)? {
                let not_started = job.spawn_error().map(Ended::NotStarted);
                return Ok(not_started.unwrap_or(Ended::Job { outcome: Box::new(outcome), interrupted }));
            }
        }
    }
}

/// Takes the events that are there; the outcome, if that was the last.
fn hear(job: &Job, waiting: &mut Option<(Instant, Reason)>) -> Result<Option<Outcome>, Error> {
    while let Some(event) = job.next_event(Some(Duration::ZERO))? {
        match event.kind {
            EventKind::GuardLost => console::mention("the guard was killed; the job goes on"),
            EventKind::Stopping(reason) => *waiting = Some((Instant::now(), reason)),
            EventKind::Ended => return job.wait(None),
            _ => {}
        }
    }
    Ok(None)
}

/// What a person sees who thinks that the job hangs.
fn describe_wait(reason: Reason, policy: Policy) -> String {
    let (what, grace, often) = match reason {
        Reason::Failed => ("a rank has failed", policy.peer_grace, "twice"),
        _ => ("asked to end", policy.grace, "again"),
    };
    format!(
        "{what}: the ranks have {} s to end in order; Ctrl-C or SIGTERM {often} kills them at once",
        grace.as_secs_f64()
    )
}
