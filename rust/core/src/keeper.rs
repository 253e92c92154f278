//! The keeper: the small single-threaded process that owns the workers. Its loop translates: descriptors that are ready
//! become inputs of the state machine, actions become system calls.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;

use crate::VERSION;
use crate::error::{Error, ErrorKind};
use crate::job::{Action, Input, JobState, Slot};
use crate::os::{self, Image, Poller, Reap, SignalInfo, SignalReader, Spawned, Token};
use crate::outcome::Outcome;
use crate::pid::Pid;
use crate::plan::{Plan, Stream, Worker};
use crate::policy::GROUP_SIGNAL_WINDOW;
use crate::signal::Signal;
use crate::sweep::{Left, Sweep, reap};
use crate::wire::{Inbox, Reply, Request};

const SOCKET: Token = 0;
const SIGNALS: Token = 1;
const CLIENT: Token = 2;
const GUARD: Token = 3;
const FIRST_WORKER: Token = 16;

fn pidfd_token(slot: Slot) -> Token {
    FIRST_WORKER + 2 * slot as Token
}

fn status_token(slot: Slot) -> Token {
    pidfd_token(slot) + 1
}

/// A worker's process.
struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    /// Until the exec is confirmed.
    status: Option<OwnedFd>,
    /// It has ended and cannot be reaped yet: its tracer comes first (ptrace(2)).
    is_held: bool,
}

/// Runs the job and tells the client how it ended. `ready` becomes readable once the guard is out of the client's group.
pub(crate) fn run(
    plan: Plan,
    socket: OwnedFd,
    client: OwnedFd,
    guard: Pid,
    ready: &OwnedFd,
) -> Result<(), Error> {
    os::name_process(c"nl-keeper");
    let fail = |errno| Error::os("the keeper cannot start", errno).with_kind(ErrorKind::Supervisor);
    // Wakes a stopped keeper to see that its guard is gone; SIGKILL here would leave the descendants to nobody.
    os::set_death_signal(Signal::CONT).map_err(fail)?;
    if !os::wait_release(ready, &client) {
        // A guard that was stopped could not see our end.
        if let Ok(guard) = os::open_pidfd(guard.get()) {
            let _ = os::send_signal(guard, Signal::CONT);
        }
        return Err(Error::new(ErrorKind::Supervisor, "client or guard ended before the job began"));
    }
    let mut socket = Some(socket);
    let mut keeper = Keeper::new(plan, &mut socket, client, guard).map_err(|errno| {
        let error = fail(errno);
        if let Some(socket) = &socket {
            let _ = os::send(socket, &Reply::Error(error.to_string()).encode());
        }
        error
    })?;
    keeper.run().map_err(|errno| {
        let error = Error::os("the keeper cannot go on", errno);
        keeper.say(&Reply::Error(error.to_string()));
        error
    })
}

struct Keeper {
    plan: Plan,
    own: Pid,
    guard: Option<OwnedFd>,
    client: Option<OwnedFd>,
    socket: Option<OwnedFd>,
    inbox: Inbox,
    outbox: VecDeque<u8>,
    signals: SignalReader,
    /// Signals this process got itself, to be told from those that the client forwards.
    held: Vec<(SignalInfo, Duration)>,
    /// A child stopped, or ended: to be looked at.
    child_news: bool,
    poller: Poller,
    job: JobState,
    actions: VecDeque<Action>,
    processes: Vec<Option<Process>>,
    /// `/dev/null`, above the numbers that passed descriptors get.
    null: OwnedFd,
    floor: i32,
    sweep: Sweep,
    started: f64,
}

impl Keeper {
    fn new(mut plan: Plan, socket: &mut Option<OwnedFd>, client: OwnedFd, guard: Pid) -> Result<Self, Errno> {
        let own = os::own_pid().ok_or(Errno::SRCH)?;
        os::set_subreaper()?;
        let floor =
            plan.fds.iter().filter_map(|fd| fd.target).max().map_or(3, |target| target.saturating_add(1));
        for fd in &mut plan.fds {
            fd.fd = os::duplicate_above(&fd.fd, floor)?;
        }
        let null = os::duplicate_above(os::open_null()?, floor)?;
        let guard_fd = os::open_pidfd(guard.get())?;
        let own_fd = os::open_pidfd(own.get())?;
        // Those ignored from the start (`nohup`) reach neither the workers, which ignore them too, nor the front: they
        // explain no death.
        let signals = SignalReader::new(|signal| {
            ![Signal::KILL, Signal::STOP].contains(&signal) && !os::is_ignored(signal)
        })?;
        let poller = Poller::new()?;
        if let Some(socket) = socket {
            poller.watch(socket, SOCKET)?;
        }
        poller.watch(&signals, SIGNALS)?;
        poller.watch(&client, CLIENT)?;
        poller.watch(&guard_fd, GUARD)?;
        let hello = Reply::Hello { version: VERSION.into() }.encode();
        if let Some(socket) = socket {
            // A client that is gone already is seen by its pidfd.
            let _ = os::send_with_fds(socket, &hello, &[own_fd.as_fd(), guard_fd.as_fd()]);
        }
        let job = JobState::new(plan.policy, plan.workers.iter().map(|w| (w.rank, w.local_rank)));
        let processes = plan.workers.iter().map(|_| None).collect();
        Ok(Self {
            plan,
            own,
            guard: Some(guard_fd),
            client: Some(client),
            socket: socket.take(),
            inbox: Inbox::default(),
            outbox: VecDeque::new(),
            signals,
            held: Vec::new(),
            child_news: false,
            poller,
            job,
            actions: VecDeque::new(),
            processes,
            null,
            floor,
            sweep: Sweep::default(),
            started: os::unix_time(),
        })
    }

    fn run(&mut self) -> Result<(), Errno> {
        let mut again = false;
        while !self.job.is_done() {
            let now = os::monotonic();
            let timeout = if again || self.job.next_spawn().is_some() {
                Some(Duration::ZERO)
            } else {
                self.job.deadline().map(|at| at.saturating_sub(now))
            };
            self.poller.wait(timeout)?;
            // First of all, so that a signal to the group is known before a death by it, or the client's word of it.
            self.read_signals();
            while let Some(token) = self.poller.next() {
                self.ready(token);
            }
            if self.child_news || again {
                self.reap_held();
            }
            if std::mem::take(&mut self.child_news) || again || self.job.is_sweeping() {
                again = self.reap_adopted();
            }
            if self.job.deadline().is_some_and(|at| at <= os::monotonic()) {
                self.feed(Input::Deadline);
            }
            if let Some(slot) = self.job.next_spawn() {
                self.spawn(slot)?;
            }
        }
        self.farewell()
    }

    /// Gives the state machine an input and does what it says.
    fn feed(&mut self, input: Input) {
        let mut actions = Vec::new();
        self.job.handle(os::monotonic(), input, &mut actions);
        self.actions.extend(actions);
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Signal(slot, signal) => {
                    if let Some(process) = &self.processes[slot] {
                        // Not permitted is all that can happen: a worker that changed its user.
                        let _ = os::send_signal(&process.pidfd, signal);
                    }
                }
                Action::Sweep { kill } => {
                    let processes = &self.processes;
                    let is_worker = |pid| processes.iter().flatten().any(|process| process.pid == pid);
                    self.sweep.round(self.own, kill, is_worker);
                    self.reap_adopted();
                }
                Action::Report(event) => self.say(&Reply::Event(event)),
                Action::Finish => {}
            }
        }
    }

    fn ready(&mut self, token: Token) {
        match token {
            SOCKET => {
                self.flush();
                self.listen();
            }
            SIGNALS => {}
            CLIENT => {
                if let Some(client) = self.client.take() {
                    self.poller.forget(&client, CLIENT);
                    self.hang_up();
                    self.feed(Input::ClientDied);
                }
            }
            GUARD => {
                if let Some(guard) = self.guard.take() {
                    self.poller.forget(&guard, GUARD);
                    self.feed(Input::GuardDied);
                }
            }
            token => {
                let slot = usize::try_from((token - FIRST_WORKER) / 2).unwrap_or(usize::MAX);
                self.read_status(slot);
                if token == pidfd_token(slot) {
                    self.reap_worker(slot);
                }
            }
        }
    }

    /// Whether the program runs, as the status pipe tells.
    fn read_status(&mut self, slot: Slot) {
        let Some(process) = &mut self.processes[slot] else { return };
        let Some(status) = &process.status else { return };
        let Some(result) = Spawned::failure(status) else { return };
        self.poller.forget(status, status_token(slot));
        process.status = None;
        match result {
            Ok(()) => self.feed(Input::Executed(slot)),
            Err((stage, errno)) => self.feed(Input::ExecFailed(slot, stage, errno)),
        }
    }

    fn reap_worker(&mut self, slot: Slot) {
        let Some(process) = &self.processes[slot] else { return };
        let reap = os::reap_pidfd(&process.pidfd);
        if !process.is_held {
            self.poller.forget(&process.pidfd, pidfd_token(slot));
        }
        let Reap::Ended(status) = reap else {
            if let Some(process) = &mut self.processes[slot] {
                process.is_held = true;
            }
            return;
        };
        self.processes[slot] = None;
        self.feed(Input::Reaped(slot, status));
    }

    /// Notes signals to this process, and stops of workers.
    fn read_signals(&mut self) {
        let mut stops = false;
        let now = os::monotonic();
        self.held.retain(|(_, at)| now.saturating_sub(*at) <= GROUP_SIGNAL_WINDOW);
        while let Some(info) = self.signals.read() {
            if info.signal == Signal::CHLD {
                stops = true;
                continue;
            }
            self.held.push((info, now));
            if info.signal.is_terminating() {
                self.feed(Input::GroupSignal(info.signal));
            }
        }
        if stops {
            self.child_news = true;
            while let Some((pid, stopped)) = os::take_stop() {
                let of = |process: &Option<Process>| process.as_ref().is_some_and(|p| p.pid == pid);
                if let Some(slot) = self.processes.iter().position(of) {
                    self.feed(Input::Stopped(slot, stopped));
                }
            }
        }
    }

    /// Reaps workers whose tracer has let go of them: SIGCHLD tells, their pidfd was readable all the time.
    fn reap_held(&mut self) {
        let held = |(slot, process): (Slot, &Option<Process>)| process.as_ref()?.is_held.then_some(slot);
        let slots: Vec<Slot> = self.processes.iter().enumerate().filter_map(held).collect();
        for slot in slots {
            self.reap_worker(slot);
        }
    }

    /// Reaps adopted descendants. True if a worker has ended whose pidfd is still to be read: in the order of deaths.
    fn reap_adopted(&mut self) -> bool {
        let processes = &self.processes;
        match reap(|pid| processes.iter().flatten().any(|process| process.pid == pid)) {
            Left::Spared => true,
            Left::Some => {
                // What was between two parents when the sweep began. All workers are gone.
                if self.job.is_sweeping() {
                    self.sweep.round(self.own, false, |_| false);
                }
                false
            }
            Left::Nobody => {
                let swept = self.sweep.count();
                if self.job.is_sweeping() {
                    self.feed(Input::NoDescendants(swept));
                }
                false
            }
        }
    }

    fn spawn(&mut self, slot: Slot) -> Result<(), Errno> {
        let worker = &self.plan.workers[slot];
        let spawned = self.image(worker).and_then(|mut image| os::spawn(&mut image, self.own, self.floor));
        let Spawned { pid, pidfd, status } = match spawned {
            Ok(spawned) => spawned,
            Err(errno) => {
                self.feed(Input::ForkFailed(slot, errno.raw_os_error()));
                return Ok(());
            }
        };
        self.poller.watch(&pidfd, pidfd_token(slot))?;
        self.poller.watch(&status, status_token(slot))?;
        self.processes[slot] = Some(Process { pid, pidfd, status: Some(status), is_held: false });
        self.feed(Input::Forked(slot, pid));
        // A signal to the group may have come before the process was in it, while the client's word of it is still to
        // come. A copy does no harm: the new process has signals blocked, and two of a kind pending are one.
        self.read_signals();
        if let Some(process) = &self.processes[slot] {
            for (info, _) in self.held.iter().filter(|(info, _)| info.signal.is_terminating()) {
                let _ = os::send_signal(&process.pidfd, info.signal);
            }
        }
        Ok(())
    }

    fn image(&self, worker: &Worker) -> Result<Image, Errno> {
        let mut placed = Vec::new();
        for (number, stream) in (0..).zip(worker.streams) {
            match stream {
                Stream::Inherit => {}
                Stream::Null => placed.push((self.null.as_raw_fd(), number)),
                Stream::Fd(index) => placed.push((self.plan.fds[usize::from(index)].fd.as_raw_fd(), number)),
            }
        }
        for fd in &self.plan.fds {
            placed.extend(fd.target.map(|target| (fd.fd.as_raw_fd(), target)));
        }
        Image::new(&worker.argv, &self.plan.environment(worker), worker.cwd.as_deref(), placed)
    }

    /// Reads what the client says.
    fn listen(&mut self) {
        while let Some(socket) = &self.socket {
            let bytes = match os::receive(socket, self.inbox.wanted(), &mut Vec::new()) {
                Ok(bytes) if !bytes.is_empty() => bytes,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(_) | Err(_) => return self.client_left(),
            };
            match self.inbox.accept(&bytes).and_then(|frame| frame.map(|f| Request::decode(&f)).transpose()) {
                Ok(None) => {}
                Ok(Some(request)) => self.answer(request),
                Err(_) => {
                    self.say(&Reply::Error(
                        "the keeper does not understand its client; the job is ended".into(),
                    ));
                    return self.client_left();
                }
            }
        }
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::Signal { signal, code, sender, rank: None } => {
                self.read_signals();
                // A host passes on what a handler saw, and does not know who sent it.
                let is_unknown = (code, sender) == (0, 0) && signal.is_terminating();
                let now = os::monotonic();
                let copy = |(info, at): &(SignalInfo, Duration)| {
                    (info.signal, info.code, info.sender) == (signal, code, sender)
                        || is_unknown
                            && info.signal == signal
                            && now.saturating_sub(*at) <= GROUP_SIGNAL_WINDOW
                };
                let held = self.held.iter().position(copy);
                if let Some(index) = held {
                    self.held.remove(index);
                }
                let delivered = held.is_some() || self.was_discarded(signal);
                self.feed(Input::Signal { signal, delivered });
            }
            Request::Signal { signal, rank: Some(rank), .. } => {
                if let Some(slot) = self.plan.workers.iter().position(|worker| worker.rank == rank) {
                    self.feed(Input::SignalOne(slot, signal));
                }
            }
            Request::Stop { reason, grace } => {
                self.read_signals();
                self.feed(Input::Stop { reason, grace });
            }
        }
    }

    /// Whether a signal to the group came and went unread: SIGCONT discards pending stops, a stop a pending SIGCONT
    /// (signal(7)). Sent to the workers now, it would undo what they had after it.
    fn was_discarded(&self, signal: Signal) -> bool {
        const STOPS: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];
        let held = |signals: &[Signal]| self.held.iter().any(|(info, _)| signals.contains(&info.signal));
        STOPS.contains(&signal) && held(&[Signal::CONT]) || signal == Signal::CONT && held(&STOPS)
    }

    /// The client closed the socket and lives on: it let go of the job.
    fn client_left(&mut self) {
        self.hang_up();
        self.feed(Input::ClientLeft);
    }

    fn hang_up(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.poller.forget(&socket, SOCKET);
        }
        self.outbox.clear();
    }

    fn say(&mut self, reply: &Reply) {
        if self.socket.is_some() {
            self.outbox.extend(reply.encode());
            self.flush();
        }
    }

    /// Sends what the client has room for; the rest when it has read. Nobody waits for it.
    fn flush(&mut self) {
        while let Some(socket) = &self.socket {
            if self.outbox.is_empty() {
                break;
            }
            match os::send(socket, self.outbox.make_contiguous()) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let _ = self.poller.watch_output(socket, SOCKET, true);
                    return;
                }
                // Its end is read from the socket or the pidfd.
                Err(_) => self.outbox.clear(),
            }
        }
        if let Some(socket) = &self.socket {
            let _ = self.poller.watch_output(socket, SOCKET, false);
        }
    }

    /// Tells the outcome, and stays until the client has it or is gone.
    fn farewell(&mut self) -> Result<(), Errno> {
        let outcome = self.outcome();
        self.say(&Reply::Outcome(Box::new(outcome)));
        while self.socket.is_some() && !self.outbox.is_empty() {
            self.poller.wait(None)?;
            while let Some(token) = self.poller.next() {
                match token {
                    SOCKET => {
                        self.flush();
                        self.listen();
                    }
                    CLIENT => self.hang_up(),
                    SIGNALS => while self.signals.read().is_some() {},
                    GUARD => drop(self.guard.take()),
                    _ => {}
                }
            }
        }
        // A guard that was stopped sees our end only when it is continued.
        if let Some(guard) = &self.guard {
            os::send_signal(guard, Signal::CONT)?;
        }
        Ok(())
    }

    fn outcome(&self) -> Outcome {
        let job = &self.job;
        let left = if job.gave_up() { os::descendants(self.own) } else { Vec::new() };
        Outcome {
            job: self.plan.job.clone(),
            host: os::hostname(),
            status: job.status(),
            reason: job.reason(),
            signal: job.signal(),
            first_failure: job.first_failure(),
            spawn_failure: job.spawn_failure(),
            ranks: job.ranks(),
            swept: job.swept(),
            unkillable: left.into_iter().map(|(pid, _)| pid).collect(),
            guard_lost: job.guard_lost(),
            started: self.started,
            ended: os::unix_time(),
        }
    }
}
