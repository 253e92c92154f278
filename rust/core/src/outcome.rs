//! How a job ended, and how that is told.

use std::fmt::Write as _;

use crate::error::{Stage, describe};
use crate::pid::Pid;
use crate::signal::Signal;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStatus {
    /// By `exit` with this status.
    Exited(u8),
    /// By this signal.
    Signaled(Signal),
    /// The kernel did not tell.
    Lost,
}

impl WaitStatus {
    /// Whether the process ended by `exit(0)`.
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// The exit status that tells it in a shell: the status itself, 128 + n for a signal, 1 if it was lost.
    pub fn shell_status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Signaled(signal) => signal.status(),
            Self::Lost => 1,
        }
    }
}

/// Why a job ended as it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// Every rank ended with 0.
    Ok,
    /// A rank failed or could not be started.
    Failed,
    /// An outside signal asked for the end.
    Signal,
    /// The client's time limit passed.
    Timeout,
    /// The client asked for the end.
    Stopped,
    /// Guard or keeper are gone: nobody knows how the ranks ended.
    SupervisorLost,
}

impl Reason {
    pub(crate) const ALL: [Self; 6] =
        [Self::Ok, Self::Failed, Self::Signal, Self::Timeout, Self::Stopped, Self::SupervisorLost];

    /// The name: `ok`, `failed`, `signal`, `timeout`, `stopped`, `supervisor-lost`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Signal => "signal",
            Self::Timeout => "timeout",
            Self::Stopped => "stopped",
            Self::SupervisorLost => "supervisor-lost",
        }
    }
}

/// Why a rank ended as it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RankReason {
    /// It ended with 0 by itself.
    Ok,
    /// It ended with another status by itself.
    Failed,
    /// A signal that was not ours ended it.
    Signaled,
    /// It ended after we had asked it to.
    Stopped,
    /// It is gone and the kernel did not tell how, or it outlived SIGKILL.
    Lost,
    /// It never ran.
    NotStarted,
}

impl RankReason {
    pub(crate) const ALL: [Self; 6] =
        [Self::Ok, Self::Failed, Self::Signaled, Self::Stopped, Self::Lost, Self::NotStarted];

    /// The name: `ok`, `failed`, `signaled`, `stopped`, `lost`, `not-started`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Signaled => "signaled",
            Self::Stopped => "stopped",
            Self::Lost => "lost",
            Self::NotStarted => "not-started",
        }
    }
}

/// How one rank ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankOutcome {
    /// The rank.
    pub rank: u32,
    /// The rank on this node.
    pub local_rank: u32,
    /// The process; `None` if it was never made.
    pub pid: Option<Pid>,
    /// How the process ended; `None` if it was never made or still lives.
    pub status: Option<WaitStatus>,
    /// Why.
    pub reason: RankReason,
    /// When the process was made, by `CLOCK_MONOTONIC`, in nanoseconds.
    pub started_ns: Option<u64>,
    /// When its end was seen.
    pub ended_ns: Option<u64>,
    /// Its place in the order of deaths, from 0.
    pub order: Option<u32>,
}

/// Why a rank could not be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpawnFailure {
    /// The rank.
    pub rank: u32,
    /// Where the start went wrong.
    pub stage: Stage,
    /// The error number of the system call.
    pub errno: i32,
}

/// How a job ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// The job's id.
    pub job: String,
    /// The name of this node.
    pub host: String,
    /// The exit status that tells it.
    pub status: u8,
    /// Why.
    pub reason: Reason,
    /// The signal that asked for the end.
    pub signal: Option<Signal>,
    /// The rank that failed first, by the kernel's order.
    pub first_failure: Option<u32>,
    /// The rank that could not be started.
    pub spawn_failure: Option<SpawnFailure>,
    /// One for each worker of this node, by local rank.
    pub ranks: Vec<RankOutcome>,
    /// Descendants that the workers had left behind and that were ended.
    pub swept: u32,
    /// Processes that outlived SIGKILL and were left.
    pub unkillable: Vec<Pid>,
    /// Whether the guard was gone before the end.
    pub guard_lost: bool,
    /// Start and end, in seconds since 1970.
    pub started: f64,
    /// See `started`.
    pub ended: f64,
}

impl Outcome {
    /// Whether every rank ended with 0.
    pub fn is_ok(&self) -> bool {
        self.reason == Reason::Ok
    }

    /// The rank that failed first.
    pub fn first_failure(&self) -> Option<&RankOutcome> {
        self.first_failure.and_then(|rank| self.ranks.iter().find(|r| r.rank == rank))
    }

    /// What people are told, one sentence a line, without a prefix; empty when there is nothing to tell.
    pub fn report(&self) -> String {
        let mut lines = Vec::new();
        match self.reason {
            Reason::Ok => {}
            Reason::Failed => {
                if let Some(first) = self.first_failure() {
                    lines.push(self.describe_failure(first));
                }
            }
            Reason::Signal => {
                let signal = self.signal.map_or_else(|| "a signal".to_owned(), |signal| signal.to_string());
                lines.push(format!("ended by {signal}"));
                // A rank chose a status of its own, which is now the job's.
                lines.extend(self.first_failure().map(|first| self.describe_failure(first)));
            }
            Reason::Timeout => lines.push("ended: the time limit passed".to_owned()),
            Reason::Stopped => lines.push("stopped".to_owned()),
            Reason::SupervisorLost => {
                lines.extend(self.first_failure().map(|first| self.describe_failure(first)));
                lines.push(
                    "supervisor lost: the keeper was killed, the ranks were ended with it and their status is unknown"
                        .to_owned(),
                );
            }
        }
        lines.extend(self.describe_others());
        match self.swept {
            0 => {}
            1 => lines.push("1 process that the ranks had left behind was ended".to_owned()),
            count => lines.push(format!("{count} processes that the ranks had left behind were ended")),
        }
        if self.guard_lost {
            lines.push("the guard was killed; the job went on without it".to_owned());
        }
        if !self.unkillable.is_empty() {
            let pids: Vec<_> = self.unkillable.iter().map(ToString::to_string).collect();
            lines.push(format!(
                "left behind, still there 5 s after SIGKILL (in uninterruptible sleep, or new processes all the time): \
                 pid {}",
                pids.join(", ")
            ));
        }
        lines.join("\n")
    }

    /// `rank 2 (local 2, pid 4711, host a) exited with 7 after 3.2 s`.
    fn describe_failure(&self, rank: &RankOutcome) -> String {
        let mut text = format!("rank {} (local {}", rank.rank, rank.local_rank);
        if let Some(pid) = rank.pid {
            let _ = write!(text, ", pid {pid}");
        }
        let _ = write!(text, ", host {}) ", self.host);
        if let Some(failure) = &self.spawn_failure {
            let _ =
                write!(text, "could not be started: {}: {}", failure.stage.name(), describe(failure.errno));
            return text;
        }
        match rank.status {
            Some(WaitStatus::Exited(status)) => {
                let _ = write!(text, "exited with {status}");
            }
            Some(WaitStatus::Signaled(signal)) => {
                let _ = write!(text, "was killed by {signal}");
            }
            Some(WaitStatus::Lost) | None => text.push_str("is gone, its status is lost"),
        }
        if let (Some(start), Some(end)) = (rank.started_ns, rank.ended_ns) {
            #[allow(clippy::cast_precision_loss)]
            let seconds = end.saturating_sub(start) as f64 / 1e9;
            let _ = write!(text, " after {seconds:.1} s");
        }
        text
    }

    /// `ranks 0, 1, 3 were ended (SIGTERM)`, a line for each way.
    fn describe_others(&self) -> Vec<String> {
        // One and many: `was`, `were`; and what follows.
        type Way = (&'static str, &'static str, String);
        let mut ways: Vec<(Way, Vec<u32>)> = Vec::new();
        let others = self.ranks.iter().filter(|rank| Some(rank.rank) != self.first_failure);
        for rank in others {
            let how = match (rank.reason, rank.status) {
                (RankReason::NotStarted, _) => ("was", "were", "not started".to_owned()),
                (RankReason::Stopped, Some(WaitStatus::Exited(status))) => {
                    ("then", "then", format!("exited with {status}"))
                }
                (RankReason::Stopped, Some(WaitStatus::Signaled(signal)))
                    if signal == Signal::KILL || signal.is_terminating() =>
                {
                    ("was", "were", format!("ended ({signal})"))
                }
                (RankReason::Stopped, Some(WaitStatus::Signaled(signal))) => {
                    ("then", "then", format!("died of {signal}"))
                }
                _ => continue,
            };
            match ways.iter_mut().find(|(name, _)| *name == how) {
                Some((_, ranks)) => ranks.push(rank.rank),
                None => ways.push((how, vec![rank.rank])),
            }
        }
        ways.into_iter()
            .map(|(how, ranks)| {
                let (one, many, end) = how;
                let (noun, verb) = if ranks.len() == 1 { ("rank", one) } else { ("ranks", many) };
                format!("{noun} {} {verb} {end}", ranges(&ranks))
            })
            .collect()
    }

    /// One JSON object, as `--report` writes it.
    pub fn to_json(&self) -> String {
        let mut json = String::from("{\"version\":1");
        let _ = write!(json, ",\"job\":{}", quote(&self.job));
        let _ = write!(json, ",\"status\":{},\"reason\":{}", self.status, quote(self.reason.name()));
        let _ = write!(json, ",\"host\":{}", quote(&self.host));
        let _ = write!(json, ",\"started\":{:.3},\"ended\":{:.3},\"restarts\":0", self.started, self.ended);
        json.push_str(",\"first_failure\":");
        match self.first_failure() {
            Some(rank) => rank.write_json(&mut json),
            None => json.push_str("null"),
        }
        json.push_str(",\"ranks\":[");
        for (index, rank) in self.ranks.iter().enumerate() {
            if index > 0 {
                json.push(',');
            }
            rank.write_json(&mut json);
        }
        json.push_str("]}");
        json
    }
}

impl RankOutcome {
    fn write_json(&self, json: &mut String) {
        let (status, signal) = match self.status {
            Some(WaitStatus::Exited(status)) => (Some(u64::from(status)), None),
            Some(WaitStatus::Signaled(signal)) => (None, u64::try_from(signal.number()).ok()),
            Some(WaitStatus::Lost) | None => (None, None),
        };
        let _ = write!(
            json,
            "{{\"rank\":{},\"local_rank\":{},\"pid\":{},\"status\":{},\"signal\":{},\"reason\":{},\
             \"started_ns\":{},\"ended_ns\":{},\"order\":{}}}",
            self.rank,
            self.local_rank,
            number(self.pid.and_then(|pid| u64::try_from(pid.get()).ok())),
            number(status),
            number(signal),
            quote(self.reason.name()),
            number(self.started_ns),
            number(self.ended_ns),
            number(self.order.map(u64::from)),
        );
    }
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "null".to_owned(), |value| value.to_string())
}

fn quote(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                json.push('\\');
                json.push(c);
            }
            c if c < ' ' => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

/// `0, 1, 3` or, where many follow each other, `0-2, 5`.
fn ranges(ranks: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let text = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{Outcome, RankOutcome, RankReason, Reason, WaitStatus, quote, ranges};
    use crate::pid::Pid;
    use crate::signal::Signal;

    fn rank(rank: u32, status: WaitStatus, reason: RankReason) -> RankOutcome {
        RankOutcome {
            rank,
            local_rank: rank,
            pid: Pid::new(4711),
            status: Some(status),
            reason,
            started_ns: Some(1_000_000_000),
            ended_ns: Some(4_240_000_000),
            order: Some(0),
        }
    }

    fn failed() -> Outcome {
        let term = WaitStatus::Signaled(Signal::TERM);
        Outcome {
            job: "j".into(),
            host: "a".into(),
            status: 7,
            reason: Reason::Failed,
            signal: None,
            first_failure: Some(2),
            spawn_failure: None,
            ranks: vec![
                rank(0, term, RankReason::Stopped),
                rank(1, term, RankReason::Stopped),
                rank(2, WaitStatus::Exited(7), RankReason::Failed),
                rank(3, WaitStatus::Signaled(Signal::KILL), RankReason::Stopped),
            ],
            swept: 0,
            unkillable: Vec::new(),
            guard_lost: false,
            started: 1.0,
            ended: 2.5,
        }
    }

    #[test]
    fn the_report_names_the_first_failure_and_the_ended() {
        assert_eq!(
            failed().report(),
            "rank 2 (local 2, pid 4711, host a) exited with 7 after 3.2 s\n\
             ranks 0, 1 were ended (SIGTERM)\n\
             rank 3 was ended (SIGKILL)"
        );
    }

    #[test]
    fn json_has_one_object_per_rank() {
        let json = failed().to_json();
        assert!(
            json.starts_with(
                "{\"version\":1,\"job\":\"j\",\"status\":7,\"reason\":\"failed\",\"host\":\"a\","
            )
        );
        assert!(json.contains("\"first_failure\":{\"rank\":2,"), "{json}");
        assert_eq!(json.matches("\"local_rank\"").count(), 5);
    }

    #[test]
    fn json_text_is_escaped() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }

    #[test]
    fn runs_of_ranks_are_short() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7, 8");
    }
}
