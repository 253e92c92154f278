//! The handle of a running job: the part that lives in the caller's process.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Stage, describe};
use crate::event::{Event, EventKind};
use crate::os::host::Bell;
use crate::os::{self, Poller};
use crate::outcome::{Outcome, RankOutcome, RankReason, Reason, SpawnFailure, WaitStatus};
use crate::pid::Pid;
use crate::plan::{Plan, Worker};
use crate::signal::Signal;
use crate::wire::{Inbox, Reply, Request};

/// Guard and keeper are there within this time, or something is badly wrong.
const HELLO_WITHIN: Duration = Duration::from_secs(30);
/// Guard and keeper are gone this soon after their job, or left to themselves.
const GONE_WITHIN: Duration = Duration::from_secs(3);

/// A running job. Dropped before its end, it lets go of the job, which is then ended (SIGTERM, and SIGKILL after the
/// grace) without waiting for it. In a forked child of the process that started it, it does nothing.
///
/// All methods may be called from any thread.
#[derive(Debug)]
pub struct Job {
    id: String,
    host: String,
    /// The process that started it.
    owner: u32,
    socket: OwnedFd,
    keeper: OwnedFd,
    guard: OwnedFd,
    guard_pid: Pid,
    workers: Vec<Worker>,
    environ_path: Option<OsString>,
    /// Rung while events are queued, so that one thread's reading of the socket does not hide them from another.
    news: Bell,
    /// The socket and the bell.
    ready: Poller,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inbox: Inbox,
    events: VecDeque<Event>,
    ranks: Vec<RankOutcome>,
    running: usize,
    first_failure: Option<u32>,
    outcome: Option<Outcome>,
    error: Option<Error>,
    /// Guard and keeper have been waited for.
    settled: bool,
    started: f64,
}

/// Starts the job and waits until every worker runs its program.
pub(crate) fn start(plan: Plan) -> Result<Job, Error> {
    let job = begin(plan)?;
    job.wait_started(|| false)?;
    Ok(job)
}

/// Starts guard and keeper, which then start the workers.
pub(crate) fn begin(plan: Plan) -> Result<Job, Error> {
    for worker in &plan.workers {
        check_program(&plan, worker)?;
    }
    let path = &plan.supervisor;
    let fail = |what: &str| {
        let what = format!("cannot start the supervisor {path:?}: {what}");
        move |errno: Errno| Error::os(&what, errno).with_kind(ErrorKind::Supervisor)
    };
    let (socket, theirs) = os::pair().map_err(fail("socket"))?;
    let memory = os::memfd(&plan.encode())?;
    let own = os::open_own_pidfd().map_err(fail("pidfd"))?;
    let mut fds = vec![theirs.as_fd(), memory.as_fd(), own.as_fd()];
    fds.extend(plan.fds.iter().map(|fd| fd.fd.as_fd()));
    os::start_guard(path, &fds).map_err(fail("clone"))?;
    drop(theirs);
    let (hello, mut pidfds) = read_hello(&socket, path)?;
    let (Some(guard), Some(keeper)) = (pidfds.pop(), pidfds.pop()) else {
        return Err(Error::new(ErrorKind::Protocol, "the keeper's hello came without its descriptors"));
    };
    let ranks = plan.workers.iter().map(|worker| RankOutcome {
        rank: worker.rank,
        local_rank: worker.local_rank,
        pid: None,
        status: None,
        reason: RankReason::NotStarted,
        started_ns: None,
        ended_ns: None,
        order: None,
    });
    let state = State {
        inbox: Inbox::default(),
        events: VecDeque::new(),
        ranks: ranks.collect(),
        running: 0,
        first_failure: None,
        outcome: None,
        error: None,
        settled: false,
        started: os::unix_time(),
    };
    let news = Bell::new()?;
    let ready = Poller::new().map_err(fail("epoll"))?;
    ready.watch(&socket, 0).and_then(|()| ready.watch(&news, 1)).map_err(fail("epoll"))?;
    Ok(Job {
        id: plan.job,
        host: os::hostname(),
        owner: std::process::id(),
        socket,
        keeper,
        guard,
        guard_pid: hello,
        environ_path: plan.environ.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone()),
        workers: plan.workers,
        news,
        ready,
        state: Mutex::new(state),
    })
}

/// The guard's pid, and the pidfds of keeper and guard.
fn read_hello(socket: &OwnedFd, supervisor: &Path) -> Result<(Pid, Vec<OwnedFd>), Error> {
    let fail = |text: String| Error::new(ErrorKind::Supervisor, text);
    let (mut inbox, mut fds) = (Inbox::default(), Vec::new());
    let deadline = os::monotonic() + HELLO_WITHIN;
    loop {
        let left = deadline.saturating_sub(os::monotonic());
        let ready = os::poll_ready(socket, Some(left), || false);
        if !matches!(ready, Ok(Some(true))) {
            return Err(fail(format!(
                "the supervisor {supervisor:?} did not answer within {HELLO_WITHIN:?}"
            )));
        }
        let bytes = match os::receive(socket, inbox.wanted(), &mut fds) {
            Ok(bytes) if !bytes.is_empty() => bytes,
            Err(Errno::AGAIN | Errno::INTR) => continue,
            _ => {
                return Err(fail(format!(
                    "the supervisor {supervisor:?} ended before it answered: is it the nativelaunch binary?"
                )));
            }
        };
        let Some(frame) = inbox.accept(&bytes)? else { continue };
        return match Reply::decode(&frame)? {
            Reply::Hello { guard, .. } => Ok((guard, fds)),
            Reply::Error(text) => Err(fail(format!("cannot start the supervisor: {text}"))),
            Reply::StartFailed(errno) => {
                Err(fail(format!("cannot start the supervisor: exec {supervisor:?}: {}", describe(errno))))
            }
            _ => Err(Error::new(ErrorKind::Protocol, "the keeper did not begin with a hello")),
        };
    }
}

impl Job {
    /// The job's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Pids of the workers that were made so far, by local rank.
    pub fn pids(&self) -> Vec<Pid> {
        let mut state = self.lock();
        self.pump(&mut state);
        state.ranks.iter().filter_map(|rank| rank.pid).collect()
    }

    /// Waits until every worker runs its program. `interrupted` is asked before and after each wait whether to give up.
    ///
    /// # Errors
    /// [`ErrorKind::Spawn`] if one could not be started: then the others were ended and nothing is left.
    pub fn wait_started(&self, mut interrupted: impl FnMut() -> bool) -> Result<(), Error> {
        self.check_owner()?;
        loop {
            {
                let mut state = self.lock();
                self.pump(&mut state);
                if let Some(error) = &state.error {
                    return Err(error.clone());
                }
                if let Some(outcome) = &state.outcome {
                    let failure = outcome.spawn_failure;
                    self.settle(&mut state);
                    return failure.map_or(Ok(()), |failure| Err(self.describe_spawn_failure(failure)));
                }
                if state.running == state.ranks.len() {
                    return Ok(());
                }
            }
            if poll(&self.socket, None, &mut interrupted)?.is_none() {
                return Ok(());
            }
        }
    }

    /// Why a worker could not be started, if that is how the job ended.
    pub fn spawn_error(&self) -> Option<Error> {
        let failure = self.lock().outcome.as_ref()?.spawn_failure?;
        Some(self.describe_spawn_failure(failure))
    }

    /// The next event, waiting for it at most this long (`None`: for ever); `None` after that, or once the job has ended.
    pub fn next_event(&self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        self.next_event_interruptible(timeout, || false)
    }

    /// As [`Self::next_event`]; `interrupted` is asked before and after each wait whether to give up.
    pub fn next_event_interruptible(
        &self,
        timeout: Option<Duration>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<Option<Event>, Error> {
        self.check_owner()?;
        let deadline = timeout.map(|timeout| os::monotonic() + timeout);
        loop {
            {
                let mut state = self.lock();
                self.pump(&mut state);
                if let Some(event) = state.events.pop_front() {
                    self.announce(&state);
                    return Ok(Some(event));
                }
                if let Some(error) = &state.error {
                    return Err(error.clone());
                }
                if state.outcome.is_some() {
                    return Ok(None);
                }
            }
            let left = deadline.map(|at| at.saturating_sub(os::monotonic()));
            if poll(&self.ready, left, &mut interrupted)? != Some(true) {
                return Ok(None);
            }
        }
    }

    /// How the job ended, waiting for it at most this long (`None`: for ever). Nothing of the job is left then.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Outcome>, Error> {
        self.wait_interruptible(timeout, || false)
    }

    /// As [`Self::wait`]; `interrupted` is asked before and after each wait whether to give up.
    pub fn wait_interruptible(
        &self,
        timeout: Option<Duration>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<Option<Outcome>, Error> {
        self.check_owner()?;
        let deadline = timeout.map(|timeout| os::monotonic() + timeout);
        loop {
            {
                let mut state = self.lock();
                self.pump(&mut state);
                if let Some(error) = state.error.clone() {
                    self.settle(&mut state);
                    return Err(error);
                }
                if state.outcome.is_some() {
                    self.settle(&mut state);
                    return Ok(state.outcome.clone());
                }
            }
            let left = deadline.map(|at| at.saturating_sub(os::monotonic()));
            // Whoever reads the outcome: the end of file behind it is there for everybody.
            if poll(&self.socket, left, &mut interrupted)? != Some(true) {
                return Ok(None);
            }
        }
    }

    /// How this rank ended; `None` while it lives.
    pub fn rank(&self, rank: u32) -> Option<RankOutcome> {
        let mut state = self.lock();
        self.pump(&mut state);
        state.ranks.iter().find(|r| r.rank == rank && r.status.is_some()).cloned()
    }

    /// The first failure so far.
    pub fn first_failure(&self) -> Option<RankOutcome> {
        let mut state = self.lock();
        self.pump(&mut state);
        let rank = state.first_failure?;
        state.ranks.iter().find(|r| r.rank == rank).cloned()
    }

    /// Sends a signal to one rank, or to all. To all, TERM, INT, HUP and QUIT ask the job to end: SIGKILL follows after
    /// the grace, or a second one.
    pub fn signal(&self, signal: Signal, rank: Option<u32>) -> Result<(), Error> {
        if let Some(rank) = rank {
            if !self.workers.iter().any(|worker| worker.rank == rank) {
                return Err(Error::usage(format!("rank is not one of this job on this node: {rank}")));
            }
        }
        self.request(&Request::Signal { signal, code: 0, sender: 0, rank })
    }

    /// Passes on a signal that a front received, so that the workers get it exactly once.
    pub fn forward(&self, received: os::front::Received) -> Result<(), Error> {
        let os::front::Received { signal, code, sender } = received;
        self.request(&Request::Signal { signal, code, sender, rank: None })
    }

    /// Asks the job to end: SIGTERM now and SIGKILL after the grace, or SIGKILL now if it is zero. Does not wait.
    pub fn request_stop(&self, reason: Reason, grace: Duration) -> Result<(), Error> {
        self.request(&Request::Stop { reason, grace })
    }

    fn request(&self, request: &Request) -> Result<(), Error> {
        self.check_owner()?;
        let state = self.lock();
        if state.outcome.is_some() || state.error.is_some() {
            return Ok(());
        }
        match os::send_all(&self.socket, &request.encode()) {
            // The job has ended; the outcome tells.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(Error::os("cannot reach the keeper", errno)),
        }
    }

    fn check_owner(&self) -> Result<(), Error> {
        if self.is_owner() {
            Ok(())
        } else {
            Err(Error::new(
                ErrorKind::State,
                "this job belongs to the process that started it, not to a fork of it",
            ))
        }
    }

    fn is_owner(&self) -> bool {
        std::process::id() == self.owner
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the keeper has said.
    fn pump(&self, state: &mut State) {
        if self.is_owner() {
            self.receive(state);
            self.announce(state);
        }
    }

    /// Says whether events are queued.
    fn announce(&self, state: &State) {
        if state.events.is_empty() { self.news.silence() } else { self.news.ring() }
    }

    fn receive(&self, state: &mut State) {
        while state.outcome.is_none() && state.error.is_none() {
            let bytes = match os::receive(&self.socket, state.inbox.wanted(), &mut Vec::new()) {
                Ok(bytes) if !bytes.is_empty() => bytes,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Ok(_) | Err(_) => return self.lost(state),
            };
            match state.inbox.accept(&bytes).and_then(|frame| frame.map(|f| Reply::decode(&f)).transpose()) {
                Ok(None) => {}
                Ok(Some(Reply::Event(event))) => state.take(event),
                Ok(Some(Reply::Outcome(outcome))) => {
                    state.ranks.clone_from(&outcome.ranks);
                    state.first_failure = outcome.first_failure;
                    state.end(*outcome);
                }
                Ok(Some(Reply::Error(text))) => state.error = Some(Error::new(ErrorKind::Supervisor, text)),
                Ok(Some(Reply::Hello { .. } | Reply::StartFailed(_))) | Err(_) => {
                    os::shut_down(&self.socket);
                    state.error = Some(Error::new(ErrorKind::Protocol, "the keeper sent something unknown"));
                }
            }
        }
    }

    /// The keeper is gone without a last word: the guard ends what is left, and nobody knows how the ranks ended.
    fn lost(&self, state: &mut State) {
        for rank in &mut state.ranks {
            if rank.status.is_none() && rank.pid.is_some() {
                rank.reason = RankReason::Lost;
                rank.status = Some(WaitStatus::Lost);
            }
        }
        state.end(Outcome {
            job: self.id.clone(),
            host: self.host.clone(),
            status: 1,
            reason: Reason::SupervisorLost,
            signal: None,
            first_failure: state.first_failure,
            spawn_failure: None,
            ranks: state.ranks.clone(),
            swept: 0,
            unkillable: Vec::new(),
            guard_lost: false,
            started: state.started,
            ended: os::unix_time(),
        });
    }

    /// Waits until keeper and guard are gone, the guard last.
    fn settle(&self, state: &mut State) {
        if std::mem::replace(&mut state.settled, true) {
            return;
        }
        let deadline = os::monotonic() + GONE_WITHIN;
        for process in [&self.keeper, &self.guard] {
            let left = deadline.saturating_sub(os::monotonic());
            let _ = os::send_signal(process, Signal::CONT);
            let _ = os::poll_ready(process, Some(left), || false);
        }
        // A subreaper or PID 1 has inherited it.
        os::reap_child(self.guard_pid);
    }

    fn describe_spawn_failure(&self, failure: SpawnFailure) -> Error {
        let SpawnFailure { rank, stage, errno } = failure;
        let worker = self.workers.iter().find(|worker| worker.rank == rank);
        spawn_error(rank, stage, errno, worker, self.environ_path.as_deref())
    }
}

impl State {
    fn take(&mut self, event: Event) {
        let rank = self.ranks.iter_mut().find(|r| Some(r.rank) == event.rank);
        match (&event.kind, rank) {
            (EventKind::Started, Some(rank)) => {
                rank.pid = event.pid;
                rank.started_ns = Some(event.time_ns);
            }
            (EventKind::Exec, _) => self.running += 1,
            (&EventKind::Exited(status, order), Some(rank)) => {
                rank.status = Some(status);
                rank.order = Some(order);
                rank.ended_ns = Some(event.time_ns);
                rank.reason = match status {
                    WaitStatus::Exited(0) => RankReason::Ok,
                    WaitStatus::Exited(_) => RankReason::Failed,
                    WaitStatus::Signaled(_) => RankReason::Signaled,
                    WaitStatus::Lost => RankReason::Lost,
                };
                if !status.is_success() && self.first_failure.is_none() {
                    self.first_failure = event.rank;
                }
            }
            _ => {}
        }
        self.events.push_back(event);
    }

    fn end(&mut self, outcome: Outcome) {
        let time_ns = u64::try_from(os::monotonic().as_nanos()).unwrap_or(u64::MAX);
        self.events.push_back(Event { rank: None, pid: None, time_ns, kind: EventKind::Ended });
        self.outcome = Some(outcome);
    }
}

/// Readable when an event is ready or the job has ended, also when another thread has read it meanwhile. To be given to
/// `poll` and the like, and followed by [`Job::next_event`] with a timeout of zero.
impl AsFd for Job {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // A fork of the owner only closes its copies.
        if self.is_owner() && self.lock().outcome.is_none() {
            os::shut_down(&self.socket);
        }
    }
}

fn poll(
    fd: impl AsFd,
    timeout: Option<Duration>,
    interrupted: impl FnMut() -> bool,
) -> Result<Option<bool>, Error> {
    os::poll_ready(fd, timeout, interrupted).map_err(|errno| Error::os("cannot wait for the job", errno))
}

/// Refuses a program that cannot be found or executed before anything is started. The exec itself decides; this only
/// says so earlier.
fn check_program(plan: &Plan, worker: &Worker) -> Result<(), Error> {
    let environ = plan.environment(worker);
    let path = environ.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let mut errno = libc::ENOENT;
    for file in candidates(worker, path) {
        match std::fs::metadata(&file) {
            Ok(data) if data.is_file() && data.permissions().mode() & 0o111 != 0 => return Ok(()),
            Ok(_) => errno = libc::EACCES,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {}
            // What we may not look at may still be executable.
            Err(_) => return Ok(()),
        }
    }
    Err(spawn_error(worker.rank, Stage::Exec, errno, Some(worker), path))
}

fn candidates(worker: &Worker, path: Option<&OsStr>) -> Vec<PathBuf> {
    let cwd = worker.cwd.as_deref().unwrap_or(Path::new(""));
    let program = worker.argv.first().map(OsString::as_os_str).unwrap_or_default();
    os::search(program, path).into_iter().map(|file| cwd.join(file)).collect()
}

fn spawn_error(rank: u32, stage: Stage, errno: i32, worker: Option<&Worker>, path: Option<&OsStr>) -> Error {
    let why = describe(errno);
    let what = match (stage, worker) {
        (Stage::Exec, Some(worker)) => {
            let program = worker.argv.first().map(OsString::as_os_str).unwrap_or_default();
            let line = (errno == libc::ENOENT)
                .then(|| candidates(worker, path).iter().find_map(|file| first_line(file)))
                .flatten()
                .map(|line| format!(" (its first line names an interpreter that is missing: {line:?})"));
            format!("exec {program:?}: {why}{}", line.unwrap_or_default())
        }
        (Stage::Chdir, Some(Worker { cwd: Some(cwd), .. })) => format!("chdir {cwd:?}: {why}"),
        (Stage::Fork, _) if errno == libc::EAGAIN => {
            let limit = os::process_limit()
                .map(|limit| format!(" (this user may have {limit} processes: ulimit -u)"));
            format!("fork: {why}{}", limit.unwrap_or_default())
        }
        _ => format!("{}: {why}", stage.name()),
    };
    Error::spawn(rank, stage, errno, format!("cannot start rank {rank}: {what}"))
}

/// The first line of a script, `#!...`.
fn first_line(file: &Path) -> Option<String> {
    use std::io::Read;
    let mut start = Vec::new();
    std::fs::File::open(file).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.split(|&byte| byte == b'\n').next()?;
    line.starts_with(b"#!").then(|| String::from_utf8_lossy(line).into_owned())
}
