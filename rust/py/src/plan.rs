//! Starting a job.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nativelaunch_core::{self as core, Error, Output, Plan, RankEnv, Stdin, cpus, host, policy::seconds};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{UsageError, exception, start_exception};
use crate::job::{Job, answering};

type Bytes = Vec<u8>;
/// What is different for a rank: its arguments, changes of the environment, working directory.
type Difference<'py> = (Option<Vec<Bytes>>, Bound<'py, PyDict>, Option<Bytes>);

#[pyfunction]
pub(crate) fn usable_cpus() -> u32 {
    cpus::usable()
}

#[pyfunction]
#[pyo3(signature = (
    argv, environ, *, nproc_per_node=1, nnodes=1, node_rank=0, main_address=None, main_port=None, rank_env="torch",
    cwd=None, stdin, stdout, stderr, per_rank=None, pass_fds, grace=30.0, peer_grace=10.0, sweep_grace=2.0,
    caller_is_rank_zero=false, supervisor
))]
#[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
#[expect(clippy::needless_pass_by_value, reason = "pyo3 hands arguments over")]
pub(crate) fn start(
    py: Python<'_>,
    argv: Vec<Bytes>,
    environ: Bound<'_, PyDict>,
    nproc_per_node: u32,
    nnodes: u32,
    node_rank: u32,
    main_address: Option<String>,
    main_port: Option<u16>,
    rank_env: &str,
    cwd: Option<Bytes>,
    stdin: Bound<'_, PyAny>,
    stdout: Bound<'_, PyAny>,
    stderr: Bound<'_, PyAny>,
    per_rank: Option<Vec<Difference<'_>>>,
    pass_fds: Vec<i32>,
    grace: f64,
    peer_grace: f64,
    sweep_grace: f64,
    caller_is_rank_zero: bool,
    supervisor: Bytes,
) -> PyResult<Job> {
    let time = |field, value| seconds(field, value).map_err(|error| exception(&error));
    let grace = time("grace", grace)?;
    let mut builder = Plan::builder(argv.into_iter().map(OsString::from_vec))
        .environ(variables(&environ)?)
        .nproc_per_node(nproc_per_node)
        .nnodes(nnodes)
        .node_rank(node_rank)
        .rank_env(match rank_env {
            "torch" => RankEnv::Torch,
            "lightning" => RankEnv::Lightning,
            "none" => RankEnv::None,
            _ => return Err(UsageError::new_err(format!("rank_env is unknown: {rank_env:?}"))),
        })
        .stdin(input(&stdin)?)
        .stdout(output("stdout", &stdout)?)
        .stderr(output("stderr", &stderr)?)
        .grace(grace)
        .peer_grace(time("peer_grace", peer_grace)?)
        .sweep_grace(time("sweep_grace", sweep_grace)?)
        .caller_is_rank_zero(caller_is_rank_zero)
        .supervisor(path(supervisor));
    if let Some(address) = main_address {
        builder = builder.main_address(address);
    }
    if let Some(port) = main_port {
        builder = builder.main_port(port);
    }
    if let Some(cwd) = cwd {
        builder = builder.cwd(path(cwd));
    }
    for fd in pass_fds {
        builder = builder.pass_fd(fd);
    }
    if let Some(differences) = per_rank {
        let mut changes = differences.into_iter().map(change).collect::<PyResult<Vec<_>>>()?.into_iter();
        builder = builder.per_rank(move |local_rank, rank| {
            let (argv, env, cwd) = changes
                .next()
                .ok_or_else(|| Error::usage(format!("per_rank has nothing for local rank {local_rank}")))?;
            if let Some(argv) = argv {
                rank.command(argv);
            }
            for (name, value) in env {
                match value {
                    Some(value) => rank.env(name, value),
                    None => rank.env_remove(name),
                };
            }
            if let Some(cwd) = cwd {
                rank.cwd(cwd);
            }
            Ok(())
        });
    }
    let plan = builder.build().map_err(|error| exception(&error))?;
    let job: core::Job = answering(py, start_exception, |interrupted| plan.begin_interruptible(interrupted))?;
    let job = Job::new(job, grace);
    job.wait_started(py)?;
    Ok(job)
}

fn path(bytes: Bytes) -> PathBuf {
    OsString::from_vec(bytes).into()
}

fn variables(environ: &Bound<'_, PyDict>) -> PyResult<Vec<(OsString, OsString)>> {
    let pair = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        Ok((OsString::from_vec(name.extract()?), OsString::from_vec(value.extract()?)))
    };
    environ.iter().map(pair).collect()
}

type Change = (Option<Vec<OsString>>, Vec<(OsString, Option<OsString>)>, Option<PathBuf>);

fn change((argv, env, cwd): Difference<'_>) -> PyResult<Change> {
    let argv = argv.map(|argv| argv.into_iter().map(OsString::from_vec).collect());
    let pair = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let value: Option<Bytes> = value.extract()?;
        Ok((OsString::from_vec(name.extract()?), value.map(OsString::from_vec)))
    };
    let env = env.iter().map(pair).collect::<PyResult<Vec<_>>>()?;
    Ok((argv, env, cwd.map(path)))
}

fn input(value: &Bound<'_, PyAny>) -> PyResult<Stdin> {
    match value.extract::<String>().as_deref() {
        Ok("inherit") => Ok(Stdin::All),
        Ok("null") => Ok(Stdin::None),
        _ => Ok(Stdin::Rank(value.extract()?)),
    }
}

fn output(field: &str, value: &Bound<'_, PyAny>) -> PyResult<Output> {
    match value.extract::<String>().as_deref() {
        Ok("inherit") => Ok(Output::Inherit),
        Ok("null") => Ok(Output::Null),
        _ => host::duplicate(value.extract()?)
            .map(Output::Fd)
            .map_err(|error| UsageError::new_err(format!("{field} is {error}"))),
    }
}
