//! A Rust program as the host of jobs, through the public API of the core.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use nativelaunch_core::{ErrorKind, EventKind, Output, Plan, PlanBuilder, RankReason, Reason, Signal, Stage};

fn shell(script: &str) -> PlanBuilder<'static> {
    Plan::builder(["sh", "-c", script])
        .supervisor(env!("CARGO_BIN_EXE_nativelaunch"))
        .stdin(nativelaunch_core::Stdin::None)
}

fn open_descriptors() -> BTreeSet<String> {
    let list = std::fs::read_dir("/proc/self/fd").expect("/proc");
    list.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok())
        .filter(|target| !target.starts_with("/proc/"))
        .collect()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("/proc").count()
}

#[test]
fn each_rank_keeps_its_own_status() {
    let job = shell("exit $LOCAL_RANK")
        .nproc_per_node(4)
        .peer_grace(Duration::from_secs(20))
        .build()
        .unwrap()
        .start();
    let outcome = job.unwrap().wait(None).unwrap().unwrap();
    let first = outcome.first_failure().unwrap();
    assert_eq!(outcome.reason, Reason::Failed);
    assert_eq!(u32::from(outcome.status), first.rank, "the status is that of the first failure");
    assert_eq!(outcome.ranks.len(), 4);
    assert!(first.reason == RankReason::Failed && first.pid.is_some());
}

#[test]
fn events_tell_the_whole_story() {
    let job = shell("exit 0").nproc_per_node(2).build().unwrap().start().unwrap();
    let mut kinds = Vec::new();
    while let Some(event) = job.next_event(Some(Duration::from_secs(20))).unwrap() {
        kinds.push(event.kind.name());
    }
    let count = |name| kinds.iter().filter(|kind| **kind == name).count();
    assert_eq!((count("started"), count("exec"), count("exited"), count("ended")), (2, 2, 2, 1), "{kinds:?}");
    assert_eq!(kinds.last(), Some(&"ended"));
    assert!(job.next_event(None).unwrap().is_none(), "after the end there is nothing to wait for");
}

#[test]
fn a_rank_that_cannot_start_ends_those_that_did() {
    // Executable, so nothing is seen before the exec itself fails.
    let script = std::env::temp_dir().join(format!("nativelaunch-no-interpreter-{}", std::process::id()));
    std::fs::write(&script, "#!/nonexistent/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (read, write) = std::io::pipe().unwrap();
    let plan = shell("echo started; exec sleep 60")
        .nproc_per_node(3)
        .stdout(Output::from_fd(&write).unwrap())
        .per_rank(|rank, worker| {
            if rank == 2 {
                worker.command([&script]);
            }
            Ok(())
        })
        .build()
        .unwrap();
    drop(write);
    let error = plan.start().unwrap_err();
    std::fs::remove_file(&script).unwrap();
    assert_eq!(
        (error.kind(), error.rank(), error.stage()),
        (ErrorKind::Spawn, Some(2), Some(Stage::Exec)),
        "{error}"
    );
    assert_eq!((error.exit_status(), error.errno()), (127, Some(2)));
    assert!(error.to_string().contains("#!/nonexistent/interpreter"), "{error}");
    // Their ends of the pipe are closed: nobody is left.
    std::io::read_to_string(read).unwrap();
}

#[test]
fn a_stop_is_polite_and_then_final() {
    let job = shell("trap '' TERM; while :; do sleep 0.05; done")
        .nproc_per_node(2)
        .build()
        .unwrap()
        .start()
        .unwrap();
    let begin = Instant::now();
    job.request_stop(Reason::Stopped, Duration::from_millis(300)).unwrap();
    let outcome = job.wait(Some(Duration::from_secs(20))).unwrap().unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_eq!((outcome.reason, outcome.status), (Reason::Stopped, 143));
    assert!(outcome.ranks.iter().all(|rank| rank.reason == RankReason::Stopped));
}

#[test]
fn a_second_terminating_signal_is_at_once() {
    let job = shell("trap '' TERM; while :; do sleep 0.05; done").build().unwrap().start().unwrap();
    job.signal(Signal::TERM, None).unwrap();
    assert!(job.wait(Some(Duration::from_millis(400))).unwrap().is_none(), "the grace is 30 s");
    job.signal(Signal::TERM, None).unwrap();
    let outcome = job.wait(Some(Duration::from_secs(5))).unwrap().expect("killed at once");
    assert_eq!((outcome.reason, outcome.status), (Reason::Signal, 143));
}

#[test]
fn a_dropped_handle_ends_the_job() {
    let job = shell("sleep 60").nproc_per_node(2).build().unwrap().start().unwrap();
    let pids = job.pids();
    assert_eq!(pids.len(), 2);
    drop(job);
    let gone = || pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists());
    let deadline = Instant::now() + Duration::from_secs(10);
    while !gone() {
        assert!(Instant::now() < deadline, "workers outlived their handle");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_job_outlives_the_thread_that_started_it() {
    let start = || shell("sleep 0.3; exit 5").build().unwrap().start().unwrap();
    let job = std::thread::spawn(start).join().unwrap();
    assert_eq!(job.wait(None).unwrap().unwrap().status, 5);
}

#[test]
fn jobs_leave_no_descriptor_and_no_thread() {
    let run = || {
        let (read, write) = std::io::pipe().unwrap();
        let plan = shell("echo out").stdout(Output::from_fd(&write).unwrap()).build().unwrap();
        drop(write);
        let outcome = plan.start().unwrap().wait(None).unwrap().unwrap();
        assert_eq!((outcome.status, std::io::read_to_string(read).unwrap()), (0, "out\n".into()));
    };
    run();
    let (before, running) = (open_descriptors(), threads());
    for _ in 0..20 {
        run();
    }
    assert_eq!((open_descriptors(), threads()), (before, running));
}

#[test]
fn passed_descriptors_keep_their_numbers() {
    let (read, write) = std::io::pipe().unwrap();
    let number = write.as_raw_fd();
    let plan = shell(&format!("echo $RANK >&{number}; ls /proc/self/fd"))
        .pass_fd(number)
        .stdout(Output::Null)
        .build();
    let job = plan.unwrap().start().unwrap();
    drop(write);
    assert_eq!(job.wait(None).unwrap().unwrap().status, 0);
    assert_eq!(std::io::read_to_string(read).unwrap(), "0\n");
}

#[test]
fn the_first_of_several_deaths_is_the_kernels_first() {
    // Rank 1 dies of rank 3's death: the order is certain.
    let (read, write) = std::io::pipe().unwrap();
    let (reader, writer) = (read.as_raw_fd(), write.as_raw_fd());
    let script = format!(
        "case $RANK in 3) exec {reader}<&-; sleep 0.2; exit 43;; 1) exec {writer}>&-; cat <&{reader}; exit 41;; \
         *) exec {writer}>&-; exec sleep 60;; esac"
    );
    let job =
        shell(&script).nproc_per_node(4).pass_fd(reader).pass_fd(writer).build().unwrap().start().unwrap();
    drop((read, write));
    let mut exits = Vec::new();
    while let Some(event) = job.next_event(None).unwrap() {
        if let EventKind::Exited(_, order) = event.kind {
            exits.push((order, event.rank.unwrap()));
        }
    }
    let outcome = job.wait(None).unwrap().unwrap();
    assert_eq!((outcome.status, outcome.first_failure), (43, Some(3)), "{exits:?}");
    assert_eq!(exits[0], (0, 3));
}
