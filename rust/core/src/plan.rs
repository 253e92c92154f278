//! What to run: pure data. [`crate::PlanBuilder`] makes it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use crate::VERSION;
use crate::builder::PlanBuilder;
use crate::codec::{Decoder, Encoder, Malformed};
use crate::error::Error;
use crate::policy::Policy;
use crate::topology::Topology;

/// Where one of a worker's standard streams goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// To where the client's own goes.
    Inherit,
    /// `/dev/null`.
    Null,
    /// To this descriptor of the plan.
    Fd(u16),
}

/// Where the workers' standard output or error goes.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Output {
    /// To where the client's own goes.
    #[default]
    Inherit,
    /// `/dev/null`.
    Null,
    /// To this file, pipe or socket.
    Fd(OwnedFd),
}

/// Which workers read the client's standard input; the others read `/dev/null`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Stdin {
    /// This local rank.
    Rank(u32),
    /// All of them.
    All,
    /// None.
    None,
}

/// A descriptor that travels with the plan.
#[derive(Debug)]
pub(crate) struct PlanFd {
    pub(crate) fd: OwnedFd,
    /// The number it has in the workers; `None`: kept by the keeper alone.
    pub(crate) target: Option<i32>,
}

/// One worker of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Worker {
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) argv: Vec<OsString>,
    /// Changes of the plan's environment; `None` removes.
    pub(crate) env: Vec<(OsString, Option<OsString>)>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) streams: [Stream; 3],
}

/// What to run: the workers of one job on this node, their environment, streams, descriptors and graces.
///
/// ```no_run
/// # fn main() -> Result<(), nativelaunch_core::Error> {
/// let plan = nativelaunch_core::Plan::builder(["python3", "train.py"]).nproc_per_node(4).build()?;
/// let outcome = plan.start()?.wait(None)?.expect("no time limit was given");
/// assert!(outcome.is_ok(), "{}", outcome.report());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Plan {
    pub(crate) job: String,
    pub(crate) topology: Topology,
    pub(crate) policy: Policy,
    pub(crate) environ: Vec<(OsString, OsString)>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) fds: Vec<PlanFd>,
    pub(crate) supervisor: PathBuf,
}

impl Plan {
    /// Starts a plan to run this command in every worker: a program, searched on the workers' `PATH`, and its arguments.
    pub fn builder<'a, S: Into<OsString>>(command: impl IntoIterator<Item = S>) -> PlanBuilder<'a> {
        PlanBuilder::new(command.into_iter().map(Into::into).collect())
    }

    /// The job's id: eight hexadecimal digits.
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The graces.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Ranks, sizes, main address and port.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The environment of a worker, in the order it was given.
    pub(crate) fn environment(&self, worker: &Worker) -> Vec<(OsString, OsString)> {
        let mut environ = self.environ.clone();
        for (name, value) in &worker.env {
            change(&mut environ, name, value.as_deref());
        }
        environ
    }

    /// The bytes that the keeper reads. The supervisor's path stays here, descriptors are told by their place.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::default();
        e.bytes(MAGIC);
        e.bytes(VERSION.as_bytes());
        e.bytes(self.job.as_bytes());
        e.u32(self.topology.nnodes);
        e.u32(self.topology.node_rank);
        e.u32(self.topology.nproc_per_node);
        e.bytes(self.topology.main_address.as_bytes());
        e.u16(self.topology.main_port);
        e.duration(self.policy.grace);
        e.duration(self.policy.peer_grace);
        e.duration(self.policy.sweep_grace);
        e.list(&self.environ, |e, (name, value)| {
            e.os(name);
            e.os(value);
        });
        e.list(&self.workers, |e, worker| {
            e.u32(worker.rank);
            e.u32(worker.local_rank);
            e.list(&worker.argv, |e, argument| e.os(argument));
            e.list(&worker.env, |e, (name, value)| {
                e.os(name);
                e.option(value.as_ref(), |e, value| e.os(value));
            });
            e.option(worker.cwd.as_ref(), |e, cwd| e.os(cwd.as_os_str()));
            for stream in worker.streams {
                match stream {
                    Stream::Inherit => e.u8(0),
                    Stream::Null => e.u8(1),
                    Stream::Fd(index) => {
                        e.u8(2);
                        e.u16(index);
                    }
                }
            }
        });
        e.list(&self.fds, |e, fd| e.option(fd.target.as_ref(), |e, target| e.i32(*target)));
        e.finish()
    }

    /// The version that wrote these bytes, if they are a plan at all.
    pub(crate) fn encoded_version(bytes: &[u8]) -> Option<String> {
        let mut d = Decoder(bytes);
        (d.bytes().ok()? == MAGIC).then(|| d.text().ok()).flatten()
    }

    /// Reads what [`Self::encode`] wrote; `open` gives the descriptors by their place.
    pub(crate) fn decode(bytes: &[u8], open: impl Fn(usize) -> Option<OwnedFd>) -> Result<Self, Malformed> {
        let mut d = Decoder(bytes);
        if d.bytes()? != MAGIC || d.text()? != VERSION {
            return Err(Malformed);
        }
        let job = d.text()?;
        let topology = Topology {
            nnodes: d.u32()?,
            node_rank: d.u32()?,
            nproc_per_node: d.u32()?,
            main_address: d.text()?,
            main_port: d.u16()?,
        };
        let policy = Policy { grace: d.duration()?, peer_grace: d.duration()?, sweep_grace: d.duration()? };
        let environ = d.list(|d| Ok((d.os()?, d.os()?)))?;
        let workers = d.list(|d| {
            Ok(Worker {
                rank: d.u32()?,
                local_rank: d.u32()?,
                argv: d.list(Decoder::os)?,
                env: d.list(|d| Ok((d.os()?, d.option(Decoder::os)?)))?,
                cwd: d.option(Decoder::os)?.map(PathBuf::from),
                streams: [stream(d)?, stream(d)?, stream(d)?],
            })
        })?;
        let targets = d.list(|d| d.option(Decoder::i32))?;
        d.end(())?;
        let fd = |(index, target)| Some(PlanFd { fd: open(index)?, target });
        let fds: Option<Vec<_>> = targets.into_iter().enumerate().map(fd).collect();
        let fds = fds.ok_or(Malformed)?;
        let known = |s: &Stream| !matches!(s, Stream::Fd(index) if usize::from(*index) >= fds.len());
        if !workers.iter().all(|w| !w.argv.is_empty() && w.streams.iter().all(known)) {
            return Err(Malformed);
        }
        Ok(Self { job, topology, policy, environ, workers, fds, supervisor: PathBuf::new() })
    }
}

const MAGIC: &[u8] = b"nativelaunch plan";

fn stream(d: &mut Decoder<'_>) -> Result<Stream, Malformed> {
    match d.u8()? {
        0 => Ok(Stream::Inherit),
        1 => Ok(Stream::Null),
        2 => d.u16().map(Stream::Fd),
        _ => Err(Malformed),
    }
}

/// Sets or removes a variable.
pub(crate) fn change(environ: &mut Vec<(OsString, OsString)>, name: &OsStr, value: Option<&OsStr>) {
    match value {
        None => environ.retain(|(n, _)| n != name),
        Some(value) => match environ.iter_mut().find(|(n, _)| n == name) {
            Some(entry) => value.clone_into(&mut entry.1),
            None => environ.push((name.to_owned(), value.to_owned())),
        },
    }
}

impl Output {
    /// A duplicate of `fd` as an output.
    pub fn from_fd(fd: impl AsFd) -> Result<Self, Error> {
        fd.as_fd()
            .try_clone_to_owned()
            .map(Self::Fd)
            .map_err(|error| Error::usage(format!("output descriptor cannot be duplicated: {error}")))
    }
}
