//! The handle of a running job: the part that lives in the caller's process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::VERSION;
use crate::error::{Error, ErrorKind, describe};
use crate::event::{Event, EventKind};
use crate::os::host::Bell;
use crate::os::{self, Poller};
use crate::outcome::{Outcome, RankOutcome, RankReason, Reason, SpawnFailure, WaitStatus};
use crate::pid::Pid;
use crate::plan::Plan;
use crate::policy;
use crate::program;
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
    host: String,
    /// The process that started it.
    owner: u32,
    socket: OwnedFd,
    keeper: OwnedFd,
    guard: OwnedFd,
    plan: Plan,
    /// Held while a request is sent: frames of two threads must not mix.
    sending: Mutex<()>,
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
    /// The ranks were asked to end: how they do is no failure of theirs.
    stopping: bool,
    outcome: Option<Outcome>,
    error: Option<Error>,
    /// Guard and keeper are gone, or were waited for long enough.
    settled: bool,
    /// When there was nothing more to hear.
    ended: Option<Duration>,
    guard_lost: bool,
    started: f64,
    /// To be rung when that rank has ended. At the job's end the socket is readable for all.
    waiting: Vec<(u32, Arc<Bell>)>,
}

impl Plan {
    /// Starts the job: guard, keeper and workers. Returns when every worker runs its program; if one cannot, the others
    /// are ended and nothing is left.
    pub fn start(self) -> Result<Job, Error> {
        let job = self.begin()?;
        job.wait_started(|| false)?;
        Ok(job)
    }

    /// Starts guard and keeper, and returns while they start the workers: for callers that have signals to pass on
    /// meanwhile. A worker that cannot be started ends the job; [`Job::spawn_error`] tells.
    pub fn begin(self) -> Result<Job, Error> {
        begin(self, || false)
    }

    /// As [`Self::begin`]; `interrupted` is asked while guard and keeper start whether to give up.
    ///
    /// # Errors
    /// [`ErrorKind::State`] if it did; nothing is left then.
    pub fn begin_interruptible(self, interrupted: impl FnMut() -> bool) -> Result<Job, Error> {
        begin(self, interrupted)
    }
}

/// Starts guard and keeper, which then start the workers.
fn begin(mut plan: Plan, interrupted: impl FnMut() -> bool) -> Result<Job, Error> {
    for worker in &plan.workers {
        program::check(&plan, worker)?;
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
    let mut pidfds = read_hello(&socket, path, interrupted)?;
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
        stopping: false,
        outcome: None,
        error: None,
        settled: false,
        ended: None,
        guard_lost: false,
        started: os::unix_time(),
        waiting: Vec::new(),
    };
    let news = Bell::new()?;
    let ready = Poller::new().map_err(fail("epoll"))?;
    ready.watch(&socket, 0).and_then(|()| ready.watch(&news, 1)).map_err(fail("epoll"))?;
    // The keeper's now.
    plan.fds.clear();
    Ok(Job {
        host: os::hostname(),
        owner: std::process::id(),
        socket,
        keeper,
        guard,
        plan,
        sending: Mutex::new(()),
        news,
        ready,
        state: Mutex::new(state),
    })
}

/// The pidfds of keeper and guard.
fn read_hello(
    socket: &OwnedFd,
    supervisor: &Path,
    mut interrupted: impl FnMut() -> bool,
) -> Result<Vec<OwnedFd>, Error> {
    let fail = |text: String| Error::new(ErrorKind::Supervisor, text);
    let (mut inbox, mut fds) = (Inbox::default(), Vec::new());
    let deadline = os::monotonic() + HELLO_WITHIN;
    loop {
        let left = deadline.saturating_sub(os::monotonic());
        let ready = os::poll_ready(socket, Some(left), &mut interrupted);
        if matches!(ready, Ok(None)) {
            os::shut_down(socket);
            return Err(Error::new(ErrorKind::State, "the start was interrupted; the job is ended"));
        }
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
            Reply::Hello { version } if version == VERSION => Ok(fds),
            Reply::Hello { version } => Err(fail(format!(
                "this is nativelaunch {VERSION}, the supervisor {supervisor:?} is {version}: install both in one version"
            ))),
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
        &self.plan.job
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
                    drop(state);
                    self.settle(None);
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
        let deadline = timeout.and_then(|timeout| os::monotonic().checked_add(timeout));
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
        let deadline = timeout.and_then(|timeout| os::monotonic().checked_add(timeout));
        loop {
            let end = {
                let mut state = self.lock();
                self.pump(&mut state);
                state
                    .error
                    .clone()
                    .map(Err)
                    .or_else(|| state.outcome.clone().map(|outcome| Ok(Some(outcome))))
            };
            if let Some(end) = end {
                return if self.settle(deadline) { end } else { Ok(None) };
            }
            let left = deadline.map(|at| at.saturating_sub(os::monotonic()));
            // Whoever reads the outcome: the end of file behind it is there for everybody.
            if poll(&self.socket, left, &mut interrupted)? != Some(true) {
                return Ok(None);
            }
        }
    }

    /// How this rank ended, waiting for it at most this long (`None`: for ever); `None` after that, or for a rank that is
    /// not of this job. `interrupted` is asked before and after each wait whether to give up.
    pub fn wait_rank(
        &self,
        rank: u32,
        timeout: Option<Duration>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<Option<RankOutcome>, Error> {
        self.check_owner()?;
        let deadline = timeout.and_then(|timeout| os::monotonic().checked_add(timeout));
        let wake = Arc::new(Bell::new()?);
        let watch = || {
            let ready = Poller::new()?;
            ready.watch(&self.socket, 0)?;
            ready.watch(&*wake, 1)?;
            Ok(ready)
        };
        let ready = watch().map_err(|errno| Error::os("cannot wait for a rank", errno))?;
        // Whoever reads of the rank's end rings.
        self.lock().waiting.push((rank, Arc::clone(&wake)));
        let ended = loop {
            {
                let mut state = self.lock();
                self.pump(&mut state);
                let ended = state.ranks.iter().find(|r| r.rank == rank && r.status.is_some()).cloned();
                if ended.is_some() || state.outcome.is_some() {
                    break Ok(ended);
                }
                if let Some(error) = &state.error {
                    break Err(error.clone());
                }
            }
            let left = deadline.map(|at| at.saturating_sub(os::monotonic()));
            match poll(&ready, left, &mut interrupted) {
                Ok(Some(true)) => {}
                Ok(_) => break Ok(None),
                Err(error) => break Err(error),
            }
        };
        self.lock().waiting.retain(|(_, bell)| !Arc::ptr_eq(bell, &wake));
        ended
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
            if !self.plan.workers.iter().any(|worker| worker.rank == rank) {
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

    /// Asks the job to end: SIGTERM now and SIGKILL after the grace, or SIGKILL now if it is zero. Does not wait. Within 5 s
    /// of a Ctrl-C, or of a SIGTERM to the whole group, there is no SIGTERM: the ranks have theirs, and a second one would
    /// disturb their clean-up.
    pub fn request_stop(&self, reason: Reason, grace: Duration) -> Result<(), Error> {
        policy::check("grace", grace)?;
        self.request(&Request::Stop { reason, grace })
    }

    fn request(&self, request: &Request) -> Result<(), Error> {
        self.check_owner()?;
        {
            let state = self.lock();
            if state.outcome.is_some() || state.error.is_some() {
                return Ok(());
            }
        }
        let _one_at_a_time = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
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
                Ok(Some(Reply::Error(text))) => {
                    // The end of file wakes all who wait.
                    os::shut_down(&self.socket);
                    state.fail(Error::new(ErrorKind::Supervisor, text));
                }
                Ok(Some(Reply::Hello { .. } | Reply::StartFailed(_))) | Err(_) => {
                    os::shut_down(&self.socket);
                    state.fail(Error::new(ErrorKind::Protocol, "the keeper sent something unknown"));
                }
            }
        }
    }

    /// The keeper is gone without a last word: the guard ends what is left, and nobody knows how the other ranks ended.
    fn lost(&self, state: &mut State) {
        for rank in &mut state.ranks {
            if rank.status.is_none() && rank.pid.is_some() {
                rank.reason = RankReason::Lost;
                rank.status = Some(WaitStatus::Lost);
            }
        }
        let first = state.ranks.iter().find(|rank| Some(rank.rank) == state.first_failure);
        let status = first.and_then(|rank| rank.status).map_or(1, WaitStatus::shell_status);
        state.end(Outcome {
            job: self.plan.job.clone(),
            host: self.host.clone(),
            status,
            reason: Reason::SupervisorLost,
            signal: None,
            first_failure: state.first_failure,
            spawn_failure: None,
            ranks: state.ranks.clone(),
            swept: 0,
            unkillable: Vec::new(),
            guard_lost: state.guard_lost,
            started: state.started,
            ended: os::unix_time(),
        });
    }

    /// Waits until keeper and guard are gone, the guard last, until the deadline: whether they are. One that is stuck is
    /// not waited for long.
    fn settle(&self, deadline: Option<Duration>) -> bool {
        let patience = {
            let state = self.lock();
            if state.settled {
                return true;
            }
            state.ended.map_or_else(os::monotonic, |ended| ended + GONE_WITHIN)
        };
        let until = deadline.map_or(patience, |deadline| deadline.min(patience));
        for process in [&self.keeper, &self.guard] {
            let _ = os::send_signal(process, Signal::CONT);
            let left = until.saturating_sub(os::monotonic());
            let gone = matches!(os::poll_ready(process, Some(left), || false), Ok(Some(true)));
            if !gone && os::monotonic() < patience {
                return false;
            }
        }
        // A subreaper or PID 1 has inherited it.
        let _ = os::reap_pidfd(&self.guard);
        self.lock().settled = true;
        true
    }

    fn describe_spawn_failure(&self, failure: SpawnFailure) -> Error {
        program::spawn_error(&self.plan, failure)
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
            (EventKind::Stopping(reason), _) => {
                self.stopping = true;
                if *reason != Reason::Failed {
                    // The death just told was the group's signal's.
                    self.first_failure = None;
                }
            }
            (EventKind::GuardLost, _) => self.guard_lost = true,
            (&EventKind::Exited(status, order), Some(rank)) => {
                rank.status = Some(status);
                rank.order = Some(order);
                rank.ended_ns = Some(event.time_ns);
                rank.reason = match status {
                    WaitStatus::Exited(_) | WaitStatus::Signaled(_) if self.stopping => RankReason::Stopped,
                    WaitStatus::Exited(0) => RankReason::Ok,
                    WaitStatus::Exited(_) => RankReason::Failed,
                    WaitStatus::Signaled(_) => RankReason::Signaled,
                    WaitStatus::Lost => RankReason::Lost,
                };
                if !status.is_success() && !self.stopping && self.first_failure.is_none() {
                    self.first_failure = event.rank;
                }
                self.waiting
                    .iter()
                    .filter(|(rank, _)| Some(*rank) == event.rank)
                    .for_each(|(_, wake)| wake.ring());
            }
            _ => {}
        }
        self.events.push_back(event);
    }

    fn end(&mut self, outcome: Outcome) {
        let time_ns = u64::try_from(os::monotonic().as_nanos()).unwrap_or(u64::MAX);
        self.events.push_back(Event { rank: None, pid: None, time_ns, kind: EventKind::Ended });
        self.ended = Some(os::monotonic());
        self.outcome = Some(outcome);
    }

    fn fail(&mut self, error: Error) {
        self.ended = Some(os::monotonic());
        self.error = Some(error);
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
