//! Making a plan: refuses what cannot work, reserves the port, and opens what the job needs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::plan::{Output, Plan, PlanFd, Stdin, Stream, Worker, change};
use crate::policy::{self, Policy};
use crate::topology::{RankEnv, Topology};
use crate::{VERSION, cpus, os};

/// What is special about one worker.
#[derive(Debug, Default)]
pub struct RankPlan {
    argv: Option<Vec<OsString>>,
    env: Vec<(OsString, Option<OsString>)>,
    cwd: Option<PathBuf>,
}

impl RankPlan {
    /// Runs another command than the other workers.
    pub fn command<S: Into<OsString>>(&mut self, command: impl IntoIterator<Item = S>) -> &mut Self {
        self.argv = Some(command.into_iter().map(Into::into).collect());
        self
    }

    /// Sets a variable.
    pub fn env(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> &mut Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Removes a variable.
    pub fn env_remove(&mut self, name: impl Into<OsString>) -> &mut Self {
        self.env.push((name.into(), None));
        self
    }

    /// Runs in this directory.
    pub fn cwd(&mut self, cwd: impl Into<PathBuf>) -> &mut Self {
        self.cwd = Some(cwd.into());
        self
    }
}

type PerRank<'a> = Box<dyn FnMut(u32, &mut RankPlan) -> Result<(), Error> + 'a>;

/// Makes a [`Plan`]. Nothing is checked or opened before [`PlanBuilder::build`].
#[must_use]
pub struct PlanBuilder<'a> {
    command: Vec<OsString>,
    nproc_per_node: u32,
    nnodes: u32,
    node_rank: u32,
    main_address: Option<String>,
    main_port: Option<u16>,
    rank_env: RankEnv,
    environ: Option<Vec<(OsString, OsString)>>,
    env: Vec<(OsString, Option<OsString>)>,
    cwd: Option<PathBuf>,
    stdin: Stdin,
    stdout: Output,
    stderr: Output,
    per_rank: Option<PerRank<'a>>,
    pass_fds: Vec<i32>,
    policy: Policy,
    caller_is_rank_zero: bool,
    supervisor: Option<PathBuf>,
}

impl<'a> PlanBuilder<'a> {
    pub(crate) fn new(command: Vec<OsString>) -> Self {
        Self {
            command,
            nproc_per_node: 1,
            nnodes: 1,
            node_rank: 0,
            main_address: None,
            main_port: None,
            rank_env: RankEnv::default(),
            environ: None,
            env: Vec::new(),
            cwd: None,
            stdin: Stdin::Rank(0),
            stdout: Output::Inherit,
            stderr: Output::Inherit,
            per_rank: None,
            pass_fds: Vec::new(),
            policy: Policy::default(),
            caller_is_rank_zero: false,
            supervisor: None,
        }
    }

    /// Workers on this node, and on every other node; 1 unless given.
    pub fn nproc_per_node(mut self, count: u32) -> Self {
        self.nproc_per_node = count;
        self
    }

    /// Nodes; 1 unless given. The same plan is to be started on each, with its `node_rank`.
    pub fn nnodes(mut self, count: u32) -> Self {
        self.nnodes = count;
        self
    }

    /// This node, from 0.
    pub fn node_rank(mut self, rank: u32) -> Self {
        self.node_rank = rank;
        self
    }

    /// Where rank 0 listens; 127.0.0.1 unless given, required with more than one node.
    pub fn main_address(mut self, address: impl Into<String>) -> Self {
        self.main_address = Some(address.into());
        self
    }

    /// The port rank 0 listens on; a free one, held until the job's end, unless given. Required with more than one node.
    pub fn main_port(mut self, port: u16) -> Self {
        self.main_port = Some(port);
        self
    }

    /// Which variables tell a worker its place.
    pub fn rank_env(mut self, kind: RankEnv) -> Self {
        self.rank_env = kind;
        self
    }

    /// The workers' environment, instead of the caller's.
    pub fn environ(mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.environ = Some(variables.into_iter().collect());
        self
    }

    /// Sets a variable in every worker. The variables of `rank_env` win over it.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// Removes a variable from every worker.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.env.push((name.into(), None));
        self
    }

    /// The workers' working directory, instead of the caller's.
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Who reads the caller's standard input; local rank 0 unless given.
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Where the workers' standard output goes.
    pub fn stdout(mut self, output: Output) -> Self {
        self.stdout = output;
        self
    }

    /// Where the workers' standard error goes.
    pub fn stderr(mut self, output: Output) -> Self {
        self.stderr = output;
        self
    }

    /// Called once for each local rank, to make it differ; an error refuses the plan.
    pub fn per_rank(mut self, change: impl FnMut(u32, &mut RankPlan) -> Result<(), Error> + 'a) -> Self {
        self.per_rank = Some(Box::new(change));
        self
    }

    /// A descriptor that every worker has open under the same number.
    pub fn pass_fd(mut self, fd: i32) -> Self {
        self.pass_fds.push(fd);
        self
    }

    /// From an outside signal, or a stop, to SIGKILL; 30 s unless given, and less than the grace of a job that this one
    /// is a part of.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.policy.grace = grace;
        self
    }

    /// From the SIGTERM sent because another rank failed to SIGKILL; 10 s unless given.
    pub fn peer_grace(mut self, grace: Duration) -> Self {
        self.policy.peer_grace = grace;
        self
    }

    /// From the SIGTERM to what the workers left behind to SIGKILL; 2 s unless given.
    pub fn sweep_grace(mut self, grace: Duration) -> Self {
        self.policy.sweep_grace = grace;
        self
    }

    /// The caller is local rank 0 itself: local ranks 1 and up are started.
    pub fn caller_is_rank_zero(mut self, yes: bool) -> Self {
        self.caller_is_rank_zero = yes;
        self
    }

    /// The `nativelaunch` binary that becomes guard and keeper. Unless given: `NATIVELAUNCH_BIN`, else `nativelaunch` on
    /// `PATH`.
    pub fn supervisor(mut self, path: impl Into<PathBuf>) -> Self {
        self.supervisor = Some(path.into());
        self
    }

    /// Checks the values, reserves the port and opens what the job needs.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Usage`], with the field and its value, for what cannot work; [`crate::ErrorKind::Os`] when the
    /// system refuses a port or a descriptor.
    pub fn build(mut self) -> Result<Plan, Error> {
        check_command("command", &self.command)?;
        policy::check("grace", self.policy.grace)?;
        policy::check("peer_grace", self.policy.peer_grace)?;
        policy::check("sweep_grace", self.policy.sweep_grace)?;
        let job = os::random_hex()?;
        let mut fds = Vec::new();
        let topology = self.topology(&mut fds)?;
        let streams = self.streams(&topology, &mut fds)?;
        self.passed(&mut fds)?;
        let mut environ = self.base_environment()?;
        self.policy.grace = within_outer(self.policy.grace, &environ);
        self.add_variables(&mut environ, &topology, &job);
        let cwd = self.cwd.clone();
        if let Some(cwd) = &cwd {
            check_directory("cwd", cwd)?;
        }
        let first = u32::from(self.caller_is_rank_zero);
        if first == topology.nproc_per_node {
            return Err(Error::usage("nproc_per_node must be at least 2 when the caller is rank 0: 1"));
        }
        let mut workers = Vec::new();
        for local_rank in first..topology.nproc_per_node {
            let mut env: Vec<(OsString, Option<OsString>)> = topology
                .rank_variables(self.rank_env, local_rank, &job)
                .into_iter()
                .map(|(name, value)| (name.into(), Some(value)))
                .collect();
            if self.caller_is_rank_zero {
                env.push(("NATIVELAUNCH_CHILD".into(), Some(format!("{job}:{local_rank}").into())));
            }
            let mut special = RankPlan::default();
            if let Some(change) = &mut self.per_rank {
                change(local_rank, &mut special)?;
            }
            let RankPlan { argv, env: changes, cwd: own_cwd } = special;
            for (name, value) in &changes {
                check_variable(name, value.as_deref())?;
            }
            env.extend(changes);
            if let Some(argv) = &argv {
                check_command(&format!("command of local rank {local_rank}"), argv)?;
            }
            if let Some(cwd) = &own_cwd {
                check_directory(&format!("cwd of local rank {local_rank}"), cwd)?;
            }
            let mut streams = streams;
            if !matches!(self.stdin, Stdin::All) && self.stdin != Stdin::Rank(local_rank) {
                streams[0] = Stream::Null;
            }
            workers.push(Worker {
                rank: topology.rank(local_rank),
                local_rank,
                argv: argv.unwrap_or_else(|| self.command.clone()),
                env,
                cwd: own_cwd.or_else(|| cwd.clone()),
                streams,
            });
        }
        let supervisor = match self.supervisor {
            Some(path) => path,
            None => find_supervisor()?,
        };
        Ok(Plan { job, topology, policy: self.policy, environ, workers, fds, supervisor })
    }

    fn topology(&self, fds: &mut Vec<PlanFd>) -> Result<Topology, Error> {
        let mut topology = Topology {
            nnodes: self.nnodes,
            node_rank: self.node_rank,
            nproc_per_node: self.nproc_per_node,
            main_address: self.main_address.clone().unwrap_or_else(|| "127.0.0.1".into()),
            main_port: self.main_port.unwrap_or(0),
        };
        topology.check()?;
        if topology.nnodes > 1 {
            if self.main_address.is_none() {
                return Err(Error::usage("main_address is required with more than one node"));
            }
            if self.main_port.is_none() {
                return Err(Error::usage("main_port is required with more than one node"));
            }
        }
        if topology.main_address.is_empty() || topology.main_address.contains('\0') {
            return Err(Error::usage(format!("main_address is no address: {:?}", topology.main_address)));
        }
        if self.main_port == Some(0) {
            return Err(Error::usage("main_port must be between 1 and 65535: 0"));
        }
        if self.main_port.is_none() && self.rank_env != RankEnv::None {
            let (fd, port) = os::reserve_port()?;
            topology.main_port = port;
            fds.push(PlanFd { fd, target: None });
        }
        Ok(topology)
    }

    fn streams(&mut self, topology: &Topology, fds: &mut Vec<PlanFd>) -> Result<[Stream; 3], Error> {
        if let Stdin::Rank(rank) = self.stdin {
            if rank >= topology.nproc_per_node {
                return Err(Error::usage(format!(
                    "stdin must be a local rank below nproc_per_node ({}): {rank}",
                    topology.nproc_per_node
                )));
            }
        }
        let mut place = |output: Output| match output {
            Output::Inherit => Stream::Inherit,
            Output::Null => Stream::Null,
            Output::Fd(fd) => {
                fds.push(PlanFd { fd, target: None });
                Stream::Fd(u16::try_from(fds.len() - 1).unwrap_or(u16::MAX))
            }
        };
        let stdout = place(std::mem::take(&mut self.stdout));
        let stderr = place(std::mem::take(&mut self.stderr));
        Ok([Stream::Inherit, stdout, stderr])
    }

    fn passed(&self, fds: &mut Vec<PlanFd>) -> Result<(), Error> {
        for &target in &self.pass_fds {
            if target < 0 {
                return Err(Error::usage(format!("pass_fds holds no descriptor: {target}")));
            }
            if target <= 2 {
                return Err(Error::usage(format!("pass_fds cannot hold a standard stream: {target}")));
            }
            if fds.iter().any(|fd| fd.target == Some(target)) {
                continue;
            }
            let fd = os::duplicate(target).map_err(|_| {
                Error::usage(format!("pass_fds holds a descriptor that is not open: {target}"))
            })?;
            fds.push(PlanFd { fd, target: Some(target) });
        }
        Ok(())
    }

    /// What is inherited, as it is, and the changes for every worker.
    fn base_environment(&self) -> Result<Vec<(OsString, OsString)>, Error> {
        let mut environ = self.environ.clone().unwrap_or_else(|| std::env::vars_os().collect());
        for (name, value) in self.environ.iter().flatten() {
            check_variable(name, Some(value))?;
        }
        for (name, value) in &self.env {
            check_variable(name, value.as_deref())?;
            change(&mut environ, name, value.as_deref());
        }
        Ok(environ)
    }

    fn add_variables(&self, environ: &mut Vec<(OsString, OsString)>, topology: &Topology, job: &str) {
        let grace = self.policy.grace.as_secs_f64().to_string();
        for (name, value) in [
            ("NATIVELAUNCH", "1"),
            ("NATIVELAUNCH_VERSION", VERSION),
            ("NATIVELAUNCH_JOB", job),
            ("NATIVELAUNCH_OUTER_GRACE", &grace),
        ] {
            change(environ, name.as_ref(), Some(value.as_ref()));
        }
        if self.rank_env == RankEnv::Torch {
            let is_set = |name: &str| environ.iter().any(|(n, _)| n == name);
            let mut defaults = Vec::new();
            if !is_set("TORCH_NCCL_ASYNC_ERROR_HANDLING") {
                defaults.push(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".to_owned()));
            }
            if topology.nproc_per_node > 1 && !is_set("OMP_NUM_THREADS") {
                defaults.push(("OMP_NUM_THREADS", cpus::share(topology.nproc_per_node).to_string()));
            }
            for (name, value) in defaults {
                change(environ, name.as_ref(), Some(value.as_ref()));
            }
        }
    }
}

impl std::fmt::Debug for PlanBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanBuilder").field("command", &self.command).finish_non_exhaustive()
    }
}

/// Inside another job the outer one's patience is the limit: a second less, or half of it, leaves time to end in order.
fn within_outer(grace: Duration, environ: &[(OsString, OsString)]) -> Duration {
    let outer = environ.iter().find(|(name, _)| name == "NATIVELAUNCH_OUTER_GRACE");
    let seconds = outer.and_then(|(_, value)| value.to_str()?.parse().ok());
    let Some(outer) = seconds.and_then(|seconds| policy::seconds("outer grace", seconds).ok()) else {
        return grace;
    };
    grace.min(outer.saturating_sub(Duration::from_secs(1)).max(outer / 2))
}

fn check_command(field: &str, command: &[OsString]) -> Result<(), Error> {
    match command.first() {
        None => return Err(Error::usage(format!("{field} is empty"))),
        Some(program) if program.is_empty() => {
            return Err(Error::usage(format!("{field} starts with an empty string")));
        }
        Some(_) => {}
    }
    for (index, argument) in command.iter().enumerate() {
        if argument.as_bytes().contains(&0) {
            return Err(Error::usage(format!(
                "argument {index} of {field} contains a NUL byte: {argument:?}"
            )));
        }
    }
    Ok(())
}

fn check_variable(name: &OsStr, value: Option<&OsStr>) -> Result<(), Error> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.contains(&b'=') || bytes.contains(&0) {
        return Err(Error::usage(format!(
            "env holds a name that is empty or contains \"=\" or NUL: {name:?}"
        )));
    }
    if value.is_some_and(|value| value.as_bytes().contains(&0)) {
        return Err(Error::usage(format!("env holds a value with a NUL byte: {name:?}")));
    }
    Ok(())
}

fn check_directory(field: &str, path: &Path) -> Result<(), Error> {
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(Error::usage(format!("{field} contains a NUL byte: {path:?}")));
    }
    match std::fs::metadata(path) {
        Ok(data) if data.is_dir() => Ok(()),
        Ok(_) => Err(Error::usage(format!("{field} is not a directory: {path:?}"))),
        Err(error) => {
            let why = crate::error::describe(error.raw_os_error().unwrap_or(0));
            Err(Error::usage(format!("{field} cannot be entered: {path:?}: {why}")))
        }
    }
}

/// `NATIVELAUNCH_BIN`, else `nativelaunch` on `PATH`.
fn find_supervisor() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os("NATIVELAUNCH_BIN").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join("nativelaunch"))
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| {
            Error::new(
                ErrorKind::Supervisor,
                "cannot find the nativelaunch binary: not on PATH, and NATIVELAUNCH_BIN is not set",
            )
        })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

    use crate::plan::{Plan, Stdin, Stream};
    use crate::topology::RankEnv;

    fn text(result: Result<Plan, crate::Error>) -> String {
        let error = result.expect_err("refused");
        assert_eq!(error.exit_status(), 2);
        error.to_string()
    }

    fn plan() -> super::PlanBuilder<'static> {
        Plan::builder(["true"]).supervisor("/bin/true")
    }

    #[test]
    fn bad_values_are_refused_by_field_and_value() {
        for (result, want) in [
            (Plan::builder(Vec::<OsString>::new()).build(), "command is empty"),
            (Plan::builder([""]).build(), "command starts with an empty string"),
            (Plan::builder(["a", "b\0c"]).build(), "argument 1 of command contains a NUL byte: \"b\\0c\""),
            (plan().nproc_per_node(0).build(), "nproc_per_node must be at least 1: 0"),
            (plan().nnodes(0).build(), "nnodes must be at least 1: 0"),
            (plan().nnodes(2).build(), "main_address is required with more than one node"),
            (plan().nnodes(2).main_address("a").build(), "main_port is required with more than one node"),
            (plan().node_rank(1).build(), "node_rank must be below nnodes (1): 1"),
            (plan().main_port(0).build(), "main_port must be between 1 and 65535: 0"),
            (plan().stdin(Stdin::Rank(1)).build(), "stdin must be a local rank below nproc_per_node (1): 1"),
            (plan().pass_fd(987).build(), "pass_fds holds a descriptor that is not open: 987"),
            (plan().pass_fd(-1).build(), "pass_fds holds no descriptor: -1"),
            (
                plan().env("A=B", "c").build(),
                "env holds a name that is empty or contains \"=\" or NUL: \"A=B\"",
            ),
            (plan().env("A", "b\0").build(), "env holds a value with a NUL byte: \"A\""),
            (
                plan().cwd("/nonexistent").build(),
                "cwd cannot be entered: \"/nonexistent\": no such file or directory",
            ),
            (plan().cwd("/dev/null").build(), "cwd is not a directory: \"/dev/null\""),
            (
                plan().caller_is_rank_zero(true).build(),
                "nproc_per_node must be at least 2 when the caller is rank 0: 1",
            ),
        ] {
            assert_eq!(text(result), want);
        }
    }

    #[test]
    fn a_grace_is_bounded_and_less_than_the_outer_ones() {
        for builder in
            [plan().grace(Duration::MAX), plan().peer_grace(Duration::MAX), plan().sweep_grace(Duration::MAX)]
        {
            let text = text(builder.build());
            assert!(text.contains("grace must be a number of seconds"), "{text}");
        }
        for (outer, want) in
            [("20", 19_000), ("60", 30_000), ("1", 500), ("0", 0), ("nonsense", 30_000), ("-3", 30_000)]
        {
            let plan = plan().environ([("NATIVELAUNCH_OUTER_GRACE".into(), outer.into())]).build().unwrap();
            assert_eq!(plan.policy.grace.as_millis(), want, "{outer}");
            let seconds = plan.policy.grace.as_secs_f64().to_string();
            assert!(plan.environ.contains(&("NATIVELAUNCH_OUTER_GRACE".into(), seconds.into())));
        }
    }

    #[test]
    fn a_plan_comes_back_from_its_bytes() {
        let plan = Plan::builder(["prog", "ü", ""])
            .supervisor("/bin/true")
            .nproc_per_node(2)
            .rank_env(RankEnv::None)
            .env("A", "b")
            .per_rank(|rank, worker| {
                worker.env("R", rank.to_string()).env_remove("A").cwd("/");
                Ok(())
            })
            .build()
            .unwrap();
        let back = Plan::decode(&plan.encode(), |_| None).unwrap();
        assert_eq!(back.workers, plan.workers);
        assert_eq!(back.environ, plan.environ);
        assert_eq!((back.topology, back.policy, back.job), (plan.topology, plan.policy, plan.job));
        assert_eq!(back.workers[0].streams[0], Stream::Inherit);
        assert_eq!(back.workers[1].streams[0], Stream::Null);
    }

    #[test]
    fn a_damaged_plan_is_refused() {
        let bytes = plan().rank_env(RankEnv::None).build().unwrap().encode();
        for cut in 0..bytes.len() {
            assert!(Plan::decode(&bytes[..cut], |_| None).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn each_worker_has_its_changes_over_the_plan() {
        let plan = plan()
            .environ([("A".into(), "1".into()), ("B".into(), "2".into())])
            .env_remove("B")
            .nproc_per_node(2)
            .per_rank(|_, worker| {
                worker.env("MASTER_ADDR", "h");
                Ok(())
            })
            .build()
            .unwrap();
        let environ = plan.environment(&plan.workers[1]);
        let get = |name: &str| environ.iter().find(|(n, _)| n == name).map(|(_, v)| v.to_str().unwrap());
        assert_eq!((get("A"), get("B"), get("RANK")), (Some("1"), None, Some("1")));
        assert_eq!(get("MASTER_ADDR"), Some("h"), "per_rank wins over the rank's variables");
        assert_eq!(get("MASTER_PORT").map(|p| p.parse::<u16>().unwrap() > 0), Some(true));
    }
}
