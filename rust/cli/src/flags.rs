//! The options of a run: one table, from which parsing and help come.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::time::Duration;

use lexopt::Arg;
use nativelaunch_core::{Error, policy};

use crate::suggest;

/// What a command line asks for.
#[derive(Debug)]
pub(crate) enum Parsed {
    Run(Box<RunOptions>),
    Help,
    Version,
}

/// The options of a run and what it runs.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RunOptions {
    pub(crate) nproc_per_node: u32,
    pub(crate) module: bool,
    pub(crate) no_python: bool,
    pub(crate) grace: Duration,
    pub(crate) peer_grace: Duration,
    pub(crate) script: OsString,
    /// Opaque.
    pub(crate) arguments: Vec<OsString>,
}

impl Default for RunOptions {
    fn default() -> Self {
        let policy::Policy { grace, peer_grace, .. } = policy::Policy::default();
        Self {
            nproc_per_node: 1,
            module: false,
            no_python: false,
            grace,
            peer_grace,
            script: OsString::new(),
            arguments: Vec::new(),
        }
    }
}

/// What an option does with its value.
enum Set {
    Switch(fn(&mut RunOptions)),
    Value(&'static str, fn(&mut RunOptions, &str, &OsStr) -> Result<(), Error>),
    Help,
    Version,
}

/// One option.
struct Flag {
    long: &'static str,
    short: Option<char>,
    alias: Option<&'static str>,
    set: Set,
    help: &'static str,
}

const FLAGS: &[Flag] = &[
    Flag {
        long: "nproc-per-node",
        short: Some('n'),
        alias: None,
        set: Set::Value("N", |options, name, value| {
            options.nproc_per_node = count(name, value)?;
            Ok(())
        }),
        help: "workers to start (1)",
    },
    Flag {
        long: "module",
        short: Some('m'),
        alias: None,
        set: Set::Switch(|options| options.module = true),
        help: "SCRIPT is a Python module, as for python -m",
    },
    Flag {
        long: "no-python",
        short: None,
        alias: None,
        set: Set::Switch(|options| options.no_python = true),
        help: "SCRIPT is a program, searched on PATH",
    },
    Flag {
        long: "grace",
        short: None,
        alias: Some("shutdown-timeout"),
        set: Set::Value("S", |options, name, value| {
            options.grace = seconds(name, value)?;
            Ok(())
        }),
        help: "seconds from SIGTERM, SIGINT, SIGHUP or SIGQUIT to SIGKILL (30)",
    },
    Flag {
        long: "peer-grace",
        short: None,
        alias: None,
        set: Set::Value("S", |options, name, value| {
            options.peer_grace = seconds(name, value)?;
            Ok(())
        }),
        help: "seconds that the other ranks get to end when one has failed (10)",
    },
    Flag { long: "help", short: Some('h'), alias: None, set: Set::Help, help: "this text" },
    Flag { long: "version", short: Some('V'), alias: None, set: Set::Version, help: "the version" },
];

/// Reads a command line. Options end at the first argument that is none; everything after SCRIPT is opaque.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Parsed, Error> {
    let mut options = RunOptions::default();
    let mut parser = lexopt::Parser::from_args(arguments);
    loop {
        let argument = parser.next().map_err(|error| Error::usage(error.to_string()))?;
        let flag = match argument {
            None => return Err(Error::usage("no script given; see nativelaunch --help")),
            Some(Arg::Value(script)) => {
                options.script = script;
                break;
            }
            Some(Arg::Short(short)) => {
                FLAGS.iter().find(|flag| flag.short == Some(short)).ok_or_else(|| {
                    Error::usage(format!("unknown option \"-{short}\"; see nativelaunch --help"))
                })?
            }
            Some(Arg::Long(long)) => {
                let name = long.replace('_', "-");
                FLAGS
                    .iter()
                    .find(|flag| flag.long == name || flag.alias == Some(&name))
                    .ok_or_else(|| unknown(long))?
            }
        };
        match flag.set {
            Set::Switch(set) => set(&mut options),
            Set::Value(_, set) => {
                let value =
                    parser.value().map_err(|_| Error::usage(format!("--{} needs a value", flag.long)))?;
                set(&mut options, flag.long, &value)?;
            }
            Set::Help => return Ok(Parsed::Help),
            Set::Version => return Ok(Parsed::Version),
        }
        if let Some(value) = parser.optional_value() {
            return Err(Error::usage(format!("--{} takes no value: {value:?}", flag.long)));
        }
    }
    options.arguments = parser.raw_args().map_err(|error| Error::usage(error.to_string()))?.collect();
    if options.module && options.no_python {
        return Err(Error::usage("--module and --no-python exclude each other"));
    }
    if options.script.is_empty() {
        return Err(Error::usage("the script is an empty string"));
    }
    Ok(Parsed::Run(Box::new(options)))
}

/// Options of torchrun 2.9 that this version does not have.
const TORCHRUN: &[&str] = &[
    "nnodes",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "standalone",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "run-path",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
];

fn unknown(long: &str) -> Error {
    if TORCHRUN.contains(&long.replace('_', "-").as_str()) {
        return Error::usage(format!(
            "--{long} is an option of torchrun that this version does not have: it runs on one node, once, on a free port"
        ));
    }
    let typed = format!("--{long}");
    let names = FLAGS.iter().flat_map(|flag| [flag.long].into_iter().chain(flag.alias));
    let names: Vec<String> = names.map(|name| format!("--{name}")).collect();
    let hint = suggest::hint(&typed, names.iter().map(String::as_str));
    Error::usage(format!("unknown option {typed:?}{hint}; see nativelaunch --help"))
}

fn count(name: &str, value: &OsStr) -> Result<u32, Error> {
    match value.to_str().and_then(|text| text.parse().ok()) {
        Some(count @ 1..) => Ok(count),
        _ => Err(Error::usage(format!("--{name} must be a whole number of at least 1: {value:?}"))),
    }
}

fn seconds(name: &str, value: &OsStr) -> Result<Duration, Error> {
    let refuse = || Error::usage(format!("--{name} must be a number of seconds of at least 0: {value:?}"));
    let number: f64 = value.to_str().and_then(|text| text.parse().ok()).ok_or_else(refuse)?;
    policy::seconds(name, number).map_err(|_| refuse())
}

/// The text of `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from(
        "usage: nativelaunch [OPTIONS] SCRIPT [ARGS...]      options come before SCRIPT\n\n\
         Starts the processes of a distributed training job on this machine and owns them until the last is gone.\n\n\
         examples:\n  \
           nativelaunch -n 4 train.py --lr 0.1\n  \
           nativelaunch -n 4 -m package.train\n  \
           nativelaunch -n 4 --no-python ./worker\n\n\
         options:\n",
    );
    for flag in FLAGS {
        let short = flag.short.map_or_else(|| "    ".to_owned(), |short| format!("-{short}, "));
        let value = if let Set::Value(name, _) = flag.set { format!(" {name}") } else { String::new() };
        let name = format!("{short}--{}{value}", flag.long);
        let alias = flag.alias.map_or_else(String::new, |alias| format!("; also --{alias}"));
        let _ = writeln!(text, "  {name:<26} {}{alias}", flag.help);
    }
    text.push_str(
        "\nEvery worker gets the variables that torchrun sets. The exit status is that of the rank that failed first,\n\
         128 + n if signal n ended it; 2 for a wrong command line, 127 or 126 for a script or program that is not there\n\
         or cannot be executed.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

    use super::{Parsed, RunOptions, help, parse};

    fn run(line: &[&str]) -> RunOptions {
        match parse(line.iter().map(OsString::from).collect()).unwrap() {
            Parsed::Run(options) => *options,
            other => panic!("{other:?}"),
        }
    }

    fn refused(line: &[&str]) -> String {
        let error = parse(line.iter().map(OsString::from).collect()).expect_err("refused");
        assert_eq!(error.exit_status(), 2);
        error.to_string()
    }

    #[test]
    fn everything_after_the_script_is_opaque() {
        let options = run(&["-n", "2", "s.py", "--", "-h", "", "$x", "--grace", "1"]);
        assert_eq!(options.script, "s.py");
        assert_eq!(options.arguments, ["--", "-h", "", "$x", "--grace", "1"]);
        assert_eq!(run(&["--", "-s.py", "--"]).script, "-s.py");
        assert_eq!(run(&["--", "-s.py", "--"]).arguments, ["--"]);
    }

    #[test]
    fn spellings_of_torchrun_are_one_option() {
        for line in [
            &["--nproc-per-node", "3", "s"][..],
            &["--nproc_per_node=3", "s"],
            &["-n3", "s"],
            &["-n", "1", "-n=3", "s"],
        ] {
            assert_eq!(run(line).nproc_per_node, 3, "{line:?}");
        }
        let options = run(&["--shutdown_timeout", "1.5", "--peer-grace=0", "-m", "pkg"]);
        assert_eq!(options.grace, Duration::from_millis(1500));
        assert!(options.peer_grace.is_zero() && options.module);
    }

    #[test]
    fn bad_values_are_refused_by_option_and_value() {
        for (line, want) in [
            (&["-n", "0", "s"][..], "--nproc-per-node must be a whole number of at least 1: \"0\""),
            (&["-n", "-2", "s"], "--nproc-per-node must be a whole number of at least 1: \"-2\""),
            (&["-n", "four", "s"], "--nproc-per-node must be a whole number of at least 1: \"four\""),
            (&["-n"], "--nproc-per-node needs a value"),
            (&["--grace", "-1", "s"], "--grace must be a number of seconds of at least 0: \"-1\""),
            (&["--grace=nan", "s"], "--grace must be a number of seconds of at least 0: \"nan\""),
            (&["--module=1", "s"], "--module takes no value: \"1\""),
            (
                &["--garce", "1", "s"],
                "unknown option \"--garce\" (did you mean \"--grace\"?); see nativelaunch --help",
            ),
            (
                &["--standalone", "s"],
                "--standalone is an option of torchrun that this version does not have: it runs on one node, once, on a \
                 free port",
            ),
            (&["-x", "s"], "unknown option \"-x\"; see nativelaunch --help"),
            (&["-m", "--no-python", "s"], "--module and --no-python exclude each other"),
            (&[], "no script given; see nativelaunch --help"),
            (&[""], "the script is an empty string"),
        ] {
            assert_eq!(refused(line), want, "{line:?}");
        }
    }

    #[test]
    fn help_names_every_option() {
        let text = help();
        for name in [
            "--nproc-per-node N",
            "--module",
            "--no-python",
            "--grace S",
            "--peer-grace S",
            "--help",
            "--version",
        ] {
            assert!(text.contains(name), "{name}");
        }
    }
}
