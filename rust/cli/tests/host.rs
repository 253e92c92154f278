//! A Rust program as the host of jobs, through the public API of the core.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nativelaunch_core::{
    ErrorKind, EventKind, Job, Output, Plan, PlanBuilder, RankReason, Reason, Signal, Stage,
};

/// One test: what its jobs start is gone a moment after it, or it fails.
///
/// Workers and what they start have a variable of the test; guard and keeper run a file of its own, a second name of the
/// binary.
struct Host {
    token: String,
    supervisor: PathBuf,
}

impl Host {
    fn new() -> Self {
        let nanoseconds = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
        let token = format!("{}-{nanoseconds}", std::process::id());
        let supervisor = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("nativelaunch-{token}"));
        std::fs::hard_link(env!("CARGO_BIN_EXE_nativelaunch"), &supervisor).expect("a second name");
        Self { token, supervisor }
    }

    fn shell(&self, script: &str) -> PlanBuilder<'static> {
        Plan::builder(["sh", "-c", script])
            .supervisor(&self.supervisor)
            .env("NATIVELAUNCH_TEST_TOKEN", &self.token)
            .stdin(nativelaunch_core::Stdin::None)
    }

    /// A job of workers that ignore SIGTERM, each of which has come so far.
    fn stubborn(&self, workers: u32) -> Job {
        let (mut read, write) = UnixStream::pair().expect("sockets");
        let job = self
            .shell("trap '' TERM; echo; while :; do sleep 0.05; done")
            .nproc_per_node(workers)
            .stdout(Output::from_fd(&write).expect("a descriptor"))
            .build()
            .and_then(Plan::start)
            .expect("a job");
        read.read_exact(&mut vec![0; workers as usize]).expect("a line of each");
        job
    }

    /// The test's processes, by pid and command line. A zombie has neither variables nor a file.
    fn alive(&self) -> Vec<(String, String)> {
        let variable = format!("NATIVELAUNCH_TEST_TOKEN={}", self.token);
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok) {
            let read = |file| std::fs::read(entry.path().join(file)).unwrap_or_default();
            let marked = read("environ").split(|byte| *byte == 0).any(|found| found == variable.as_bytes());
            let supervisor =
                std::fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == self.supervisor);
            if marked || supervisor {
                let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
                found.push((entry.file_name().to_string_lossy().into_owned(), command));
            }
        }
        found
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.alive().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = self.alive();
        let _ = std::fs::remove_file(&self.supervisor);
        assert!(left.is_empty() || std::thread::panicking(), "left running: {left:?}");
    }
}

#[test]
fn each_rank_keeps_its_own_status() {
    let host = Host::new();
    let job = host
        .shell("exit $LOCAL_RANK")
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
    let host = Host::new();
    let job = host.shell("exit 0").nproc_per_node(2).build().unwrap().start().unwrap();
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
    let host = Host::new();
    // Executable, so nothing is seen before the exec itself fails.
    let script = std::env::temp_dir().join(format!("nativelaunch-no-interpreter-{}", std::process::id()));
    std::fs::write(&script, "#!/nonexistent/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (read, write) = UnixStream::pair().unwrap();
    let plan = host
        .shell("echo started; exec sleep 60")
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
    // Their ends are closed: nobody is left.
    std::io::read_to_string(read).unwrap();
}

#[test]
fn a_stop_is_polite_and_then_final() {
    let host = Host::new();
    let job = host.stubborn(2);
    let begin = Instant::now();
    job.request_stop(Reason::Stopped, Duration::from_millis(300)).unwrap();
    let outcome = job.wait(Some(Duration::from_secs(20))).unwrap().unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_eq!((outcome.reason, outcome.status), (Reason::Stopped, 143));
    assert!(outcome.ranks.iter().all(|rank| rank.reason == RankReason::Stopped));
}

#[test]
fn a_second_terminating_signal_is_at_once() {
    let host = Host::new();
    let job = host.stubborn(1);
    job.signal(Signal::TERM, None).unwrap();
    assert!(job.wait(Some(Duration::from_millis(400))).unwrap().is_none(), "the grace is 30 s");
    job.signal(Signal::TERM, None).unwrap();
    let outcome = job.wait(Some(Duration::from_secs(5))).unwrap().expect("killed at once");
    assert_eq!((outcome.reason, outcome.status), (Reason::Signal, 143));
}

#[test]
fn a_dropped_handle_ends_the_job() {
    let host = Host::new();
    let job = host.shell("sleep 60").nproc_per_node(2).build().unwrap().start().unwrap();
    assert_eq!(job.pids().len(), 2);
    assert!(host.alive().len() >= 4, "guard, keeper and workers: {:?}", host.alive());
    drop(job);
    // The end of the host waits until nobody is left.
}

#[test]
fn a_job_outlives_the_thread_that_started_it() {
    let host = Host::new();
    let plan = host.shell("sleep 0.3; exit 5").build().unwrap();
    let job = std::thread::spawn(move || plan.start().unwrap()).join().unwrap();
    assert_eq!(job.wait(None).unwrap().unwrap().status, 5);
}

#[test]
fn the_first_of_several_deaths_is_the_kernels_first() {
    let host = Host::new();
    // Rank 1 dies of rank 3's death: the order is certain.
    let (read, write) = UnixStream::pair().unwrap();
    let (reader, writer) = (read.as_raw_fd(), write.as_raw_fd());
    let script = format!(
        "case $RANK in 3) exec {reader}<&-; sleep 0.2; exit 43;; 1) exec {writer}>&-; cat <&{reader}; exit 41;; \
         *) exec {writer}>&-; exec sleep 60;; esac"
    );
    let job = host
        .shell(&script)
        .nproc_per_node(4)
        .pass_fd(reader)
        .pass_fd(writer)
        .build()
        .unwrap()
        .start()
        .unwrap();
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

/// Descriptors and threads belong to the whole process: another test in it would be counted too, or take a number.
mod serial {
    use std::collections::BTreeSet;

    use super::*;

    fn open_descriptors() -> BTreeSet<String> {
        let list = std::fs::read_dir("/proc/self/fd").expect("/proc");
        list.filter_map(|entry| {
            std::fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok()
        })
        .filter(|target| !target.starts_with("/proc/"))
        .collect()
    }

    fn threads() -> usize {
        std::fs::read_dir("/proc/self/task").expect("/proc").count()
    }

    #[test]
    fn jobs_leave_no_descriptor_and_no_thread() {
        let host = Host::new();
        let run = || {
            let (read, write) = UnixStream::pair().unwrap();
            let plan = host.shell("echo out").stdout(Output::from_fd(&write).unwrap()).build().unwrap();
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
        let host = Host::new();
        let (read, write) = UnixStream::pair().unwrap();
        let number = write.as_raw_fd();
        let plan = host
            .shell(&format!("echo $RANK >&{number}; ls /proc/self/fd"))
            .pass_fd(number)
            .stdout(Output::Null)
            .build();
        let job = plan.unwrap().start().unwrap();
        drop(write);
        assert_eq!(job.wait(None).unwrap().unwrap().status, 0);
        assert_eq!(std::io::read_to_string(read).unwrap(), "0\n");
    }
}
