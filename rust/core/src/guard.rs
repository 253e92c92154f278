//! The guard: parent and subreaper of the keeper, in a session of its own. It outlives a killed keeper and ends what
//! that one left; it speaks no protocol.

use std::os::fd::OwnedFd;

use crate::error::{Error, ErrorKind};
use crate::os::{self, ForkSide, Poller, SignalReader};
use crate::pid::Pid;
use crate::plan::Plan;
use crate::policy::{CLIENT_GONE_GRACE, KILL_ROUND, UNKILLABLE_AFTER};
use crate::signal::Signal;
use crate::sweep::{Left, Sweep, reap};
use crate::wire::Reply;
use crate::{VERSION, keeper};

const CLIENT: os::Token = 0;
const KEEPER: os::Token = 1;
const CHILDREN: os::Token = 2;

/// Where the client puts what guard and keeper need: the socket, the plan, its own pidfd, then the plan's descriptors.
const SOCKET_FD: i32 = 3;
const PLAN_FD: i32 = 4;
const CLIENT_FD: i32 = 5;
const FIRST_PLAN_FD: i32 = 6;

/// The body of the hidden command `__guard`: to be called first of all in a process with one thread.
///
/// # Errors
/// [`ErrorKind::Usage`] if this process was not started by a client; anything else has been told to the client.
pub fn main() -> Result<(), Error> {
    os::Masked::all().keep();
    os::name_process(c"nl-guard");
    let refuse =
        || Error::usage("__guard is for nativelaunch itself: it needs the descriptors that a client passes");
    let socket = os::take_socket(SOCKET_FD).ok_or_else(refuse)?;
    let plan = os::take(PLAN_FD).ok_or_else(refuse)?;
    let client = os::take(CLIENT_FD).ok_or_else(refuse)?;
    let bytes = os::read_all(plan).map_err(|_| refuse())?;
    let started = prepare(&bytes, client);
    match started {
        Ok(job) => job.run(socket),
        Err(error) => {
            let _ = os::send(&socket, &Reply::Error(error.to_string()).encode());
            Err(error)
        }
    }
}

struct Prepared {
    plan: Plan,
    client: OwnedFd,
    own: Pid,
}

fn prepare(bytes: &[u8], client: OwnedFd) -> Result<Prepared, Error> {
    let fail = |text: String| Error::new(ErrorKind::Supervisor, text);
    let version = Plan::encoded_version(bytes).ok_or_else(|| fail("the plan is malformed".into()))?;
    if version != VERSION {
        return Err(fail(format!(
            "the client is nativelaunch {version}, the binary it found is {VERSION}: install both in one version"
        )));
    }
    let plan = Plan::decode(bytes, |index| os::take(FIRST_PLAN_FD + i32::try_from(index).ok()?))
        .map_err(|_| fail("the plan is malformed".into()))?;
    let own = os::own_pid().ok_or_else(|| fail("the guard cannot be PID 1".into()))?;
    Ok(Prepared { plan, client, own })
}

impl Prepared {
    /// Forks the keeper and watches over it.
    fn run(self, socket: OwnedFd) -> Result<(), Error> {
        let Self { plan, client, own } = self;
        let fail = |what: &str, errno| Error::os(what, errno).with_kind(ErrorKind::Supervisor);
        let tell = |error: Error| {
            let _ = os::send(&socket, &Reply::Error(error.to_string()).encode());
            error
        };
        os::reset_sigchld();
        os::set_subreaper().map_err(|errno| tell(fail("cannot become a subreaper", errno)))?;
        let (ready, go) = os::pipe().map_err(|errno| tell(fail("cannot make a pipe", errno)))?;
        let keeper = match os::fork().map_err(|errno| tell(fail("cannot fork the keeper", errno)))? {
            ForkSide::Child => {
                drop(go);
                let status = match keeper::run(plan, socket, client, own, &ready) {
                    Ok(()) => 0,
                    Err(_) => 1,
                };
                os::exit_now(status);
            }
            ForkSide::Parent(keeper) => keeper,
        };
        // The keeper's alone: their ends are what readers wait for.
        drop((plan, socket, ready));
        os::start_session().map_err(|errno| fail("cannot start a session", errno))?;
        os::leave_streams();
        os::release(&go);
        watch(own, keeper, &client).map_err(|errno| fail("the guard cannot watch", errno))
    }
}

/// Until the keeper has ended and nothing is left of its children.
fn watch(own: Pid, keeper: Pid, client: &OwnedFd) -> Result<(), rustix::io::Errno> {
    let keeper_fd = os::open_pidfd(keeper.get())?;
    let children = SignalReader::new(|signal| signal == Signal::CHLD)?;
    let mut poller = Poller::new()?;
    poller.watch(client, CLIENT)?;
    poller.watch(&keeper_fd, KEEPER)?;
    poller.watch(&children, CHILDREN)?;
    let mut keeper_lives = true;
    while keeper_lives {
        poller.wait(None)?;
        while let Some(token) = poller.next() {
            match token {
                CLIENT => {
                    // Its end is the keeper's business, which must be able to see it.
                    os::send_signal(&keeper_fd, Signal::CONT)?;
                    poller.forget(client, CLIENT);
                }
                KEEPER => keeper_lives = false,
                _ => {
                    while children.read().is_some() {}
                    while let Some((pid, stopped)) = os::take_stop() {
                        if stopped && pid == keeper {
                            os::send_signal(&keeper_fd, Signal::CONT)?;
                        }
                    }
                }
            }
        }
    }
    // The workers died with the keeper, by their death signal; what they left is now ours.
    end_descendants(own, &children)
}

fn end_descendants(own: Pid, children: &SignalReader) -> Result<(), rustix::io::Errno> {
    if reap(|_| false) == Left::Nobody {
        return Ok(());
    }
    let mut poller = Poller::new()?;
    poller.watch(children, CHILDREN)?;
    let mut sweep = Sweep::default();
    sweep.round(own, false, |_| false);
    let kill_at = os::monotonic() + CLIENT_GONE_GRACE;
    let give_up = kill_at + UNKILLABLE_AFTER;
    loop {
        let now = os::monotonic();
        let timeout = if now < kill_at { kill_at.saturating_sub(now) } else { KILL_ROUND };
        poller.wait(Some(timeout))?;
        while poller.next().is_some() {}
        while children.read().is_some() {}
        if reap(|_| false) == Left::Nobody || now >= give_up {
            return Ok(());
        }
        // Children of a worker that was still dying come here with its end, and have not been asked yet.
        sweep.round(own, os::monotonic() >= kill_at, |_| false);
    }
}
