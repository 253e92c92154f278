//! What a Rust host may ask for, and what it is told when that cannot be.
#![allow(clippy::disallowed_methods)] // `kill` is the program that kills the keeper

use std::time::{Duration, Instant};

use nativelaunch_core::{ErrorKind, Output, Plan, PlanBuilder, RankReason, Reason, Stdin};

fn shell(script: &str) -> PlanBuilder<'static> {
    Plan::builder(["sh", "-c", script]).supervisor(env!("CARGO_BIN_EXE_nativelaunch")).stdin(Stdin::None)
}

#[test]
fn the_longest_wait_is_for_ever() {
    let job = shell("exit 3").build().expect("a plan").start().expect("a job");
    let outcome = job.wait(Some(Duration::MAX)).expect("an answer").expect("an outcome");
    assert_eq!(outcome.status, 3);
}

#[test]
fn an_absurd_grace_is_refused_and_changes_nothing() {
    let job = shell("sleep 0.3; exit 4").build().expect("a plan").start().expect("a job");
    let error = job.request_stop(Reason::Stopped, Duration::MAX).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert_eq!(job.wait(None).expect("an answer").expect("an outcome").status, 4);
}

#[test]
fn a_string_that_is_too_long_is_named() {
    let error = shell("true")
        .env("LARGE", "x".repeat(200_000))
        .build()
        .expect("a plan")
        .start()
        .expect_err("refused");
    assert_eq!((error.errno(), error.exit_status()), (Some(7), 126));
    assert!(
        error.to_string().contains("variable \"LARGE\" has 200007 bytes, one may have 131072"),
        "{error}"
    );
}

#[test]
fn a_rank_that_was_asked_to_end_has_not_failed() {
    let job = shell("sleep 60").nproc_per_node(2).build().expect("a plan").start().expect("a job");
    job.request_stop(Reason::Stopped, Duration::from_secs(20)).expect("a stop");
    while let Some(event) = job.next_event(None).expect("an answer") {
        assert_eq!(job.first_failure(), None, "after {event:?}");
    }
    assert!((0..2).all(|rank| job.rank(rank).is_some_and(|rank| rank.reason == RankReason::Stopped)));
}

#[test]
fn a_known_failure_outlives_the_keeper() {
    // Rank 1 fails once rank 0 minds no SIGTERM, and the keeper is killed while it waits for that one.
    let ready = std::env::temp_dir().join(format!("nativelaunch-ready-{}", std::process::id()));
    let script = "if [ $RANK = 0 ]; then trap '' TERM; touch \"$READY\"; while :; do sleep 0.05; done; fi; \
                  while ! [ -e \"$READY\" ]; do sleep 0.01; done; rm \"$READY\"; exit 7";
    let plan = shell(script).nproc_per_node(2).env("READY", &ready).stdout(Output::Null).build();
    let job = plan.expect("a plan").start().expect("a job");
    let deadline = Instant::now() + Duration::from_secs(20);
    while job.first_failure().is_none() {
        assert!(Instant::now() < deadline, "rank 1 did not fail");
        std::thread::sleep(Duration::from_millis(5));
    }
    let worker = job.pids()[0];
    let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).expect("rank 0 lives");
    let keeper = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)).expect("a parent");
    let killed = std::process::Command::new("kill").args(["-KILL", keeper]).status();
    assert!(killed.expect("kill runs").success());
    let outcome = job.wait(None).expect("an answer").expect("an outcome");
    assert_eq!((outcome.reason, outcome.status, outcome.first_failure), (Reason::SupervisorLost, 7, Some(1)));
    let report = outcome.report();
    assert!(
        report.contains("rank 1") && report.contains("exited with 7") && report.contains("supervisor lost")
    );
}
