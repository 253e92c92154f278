"""The compiled half: conversions over the Rust crate `nativelaunch-core`."""

from collections.abc import Mapping, Sequence
from typing import Literal, final

__all__ = [
    "Event",
    "HostWatch",
    "Job",
    "Outcome",
    "RankOutcome",
    "__version__",
    "set_exit_status",
    "start",
    "usable_cpus",
]

__version__: str

@final
class Event:
    """One thing that happened to a job."""

    @property
    def kind(
        self,
    ) -> Literal[
        "started",
        "exec",
        "spawn-failed",
        "exited",
        "signal",
        "stopping",
        "swept",
        "guard-lost",
        "ended",
    ]: ...
    @property
    def rank(self) -> int | None: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def time_ns(self) -> int:
        """CLOCK_MONOTONIC, nanoseconds."""
    @property
    def data(self) -> dict[str, object]:
        """What else there is to say: exited has status, signal, order; stopping reason; signal signum; swept count."""

@final
class RankOutcome:
    """How one rank ended."""

    @property
    def rank(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def status(self) -> int | None:
        """Exit status 0..255; None when a signal ended it or nobody knows."""
    @property
    def signal(self) -> int | None: ...
    @property
    def reason(self) -> Literal["ok", "failed", "signaled", "stopped", "lost", "not-started"]: ...
    @property
    def started_ns(self) -> int | None: ...
    @property
    def ended_ns(self) -> int | None: ...
    @property
    def order(self) -> int | None:
        """Place in the order of deaths, from 0."""

@final
class Outcome:
    """How a job ended."""

    @property
    def job(self) -> str: ...
    @property
    def status(self) -> int:
        """The exit status that tells it: 0, that of the first failure, 128+n for a signal, 124 for a time limit."""
    @property
    def reason(self) -> Literal["ok", "failed", "signal", "timeout", "stopped", "supervisor-lost"]: ...
    @property
    def first_failure(self) -> RankOutcome | None:
        """The rank that failed first, by the kernel's order."""
    @property
    def ranks(self) -> tuple[RankOutcome, ...]:
        """By local rank."""
    @property
    def host(self) -> str:
        """The name of this node."""
    @property
    def signal(self) -> int | None:
        """The signal that asked for the end."""
    @property
    def swept(self) -> int:
        """Processes that the workers had left behind and that were ended."""
    @property
    def unkillable(self) -> tuple[int, ...]:
        """Processes that outlived SIGKILL and were left."""
    @property
    def guard_lost(self) -> bool:
        """Whether the guard was gone before the end."""
    @property
    def started(self) -> float:
        """Seconds since 1970."""
    @property
    def ended(self) -> float:
        """Seconds since 1970."""
    @property
    def restarts(self) -> int:
        """0: nothing is restarted yet."""
    def check(self) -> None:
        """Raises nativelaunch.WorkerFailed unless every rank ended with 0."""
    def report(self) -> str:
        """The failure report, without the prefix `nativelaunch: `; empty when the job is ok."""
    def to_json(self) -> str: ...

@final
class Job:
    """A running job. Methods release the GIL; waits answer Ctrl-C. In a forked child every method raises.

    Waits and looks raise nativelaunch.LauncherError when the supervisor says that it cannot go on.
    """

    @property
    def id(self) -> str: ...
    @property
    def pids(self) -> tuple[int, ...]: ...
    def fileno(self) -> int: ...
    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event; None after `timeout` seconds (0: at once) or when the job has ended."""
    def wait(self, timeout: float | None = None) -> Outcome | None:
        """The outcome, or None after `timeout` seconds. Includes the sweep: nothing is left afterwards."""
    def wait_rank(self, rank: int, timeout: float | None = None) -> RankOutcome | None:
        """How this rank (global) ended, or None after `timeout` seconds."""
    def poll(self) -> Outcome | None: ...
    def rank(self, rank: int) -> RankOutcome | None:
        """How this rank (global) ended; None while it lives."""
    def first_failure(self) -> RankOutcome | None:
        """The first failure so far."""
    def signal(self, signum: int, rank: int | None = None) -> None: ...
    def request_stop(
        self, grace: float | None = None, reason: Literal["stopped", "timeout"] = "stopped"
    ) -> None:
        """Asks the ranks to end (SIGTERM, then SIGKILL after `grace` seconds; 0: SIGKILL now). Does not wait."""

@final
class HostWatch:
    """A native thread for a host that is itself rank 0: it reads the job's events and ends this process if it must.

    When a rank fails, the supervisor is lost, the job ends by a signal to the process group, or `end_with` is called:
    `set_exit_status` is called, and after the grace the process ends by `_exit(status)`. For the first two, the thread
    that made this object is woken, see `wake_with`.
    """

    def __new__(cls, job: Job, *, grace: float, peer_grace: float) -> HostWatch: ...
    @property
    def status(self) -> int | None:
        """The status this process will end with; None while all is well."""
    @property
    def loss(self) -> str | None:
        """Why nobody will know how the ranks ended: what the supervisor said last, or that it went mad."""
    def wake_with(self, signum: int) -> None:
        """Has that signal sent, once, to the thread that made this object: now, if it is time already."""
    def hush(self) -> None:
        """From now on that thread is not woken."""
    def take_wake(self) -> bool:
        """Whether it was sent since the last call: tells it from the same signal from outside."""
    def end_with(self, status: int, grace: float) -> None:
        """`_exit(status)` after `grace` seconds: that of a failed rank, if there is one, has the precedence."""
    def close(self) -> None:
        """Ends and joins the thread; nothing is armed afterwards."""

def set_exit_status(status: int | None, report: str = "") -> None:
    """Replaces the status of a normal exit of this interpreter, after all finalizers, and tells why on stderr.

    None takes it back. `os._exit`, `exec` and death by a signal are not changed; a forked child is not concerned.
    """

def usable_cpus() -> int:
    """CPUs that this process may use, by affinity and quota; at least 1."""

def start(
    argv: Sequence[bytes],
    environ: Mapping[bytes, bytes],
    *,
    nproc_per_node: int = 1,
    nnodes: int = 1,
    node_rank: int = 0,
    main_address: str | None = None,
    main_port: int | None = None,
    rank_env: Literal["torch", "lightning", "none"] = "torch",
    cwd: bytes | None = None,
    stdin: int | Literal["inherit", "null"],
    stdout: int | Literal["inherit", "null"],
    stderr: int | Literal["inherit", "null"],
    per_rank: Sequence[tuple[Sequence[bytes] | None, Mapping[bytes, bytes | None], bytes | None]]
    | None = None,
    pass_fds: Sequence[int],
    grace: float = 30.0,
    peer_grace: float = 10.0,
    sweep_grace: float = 2.0,
    caller_is_rank_zero: bool = False,
    supervisor: bytes,
) -> Job:
    """Starts a job and returns when every exec is confirmed.

    `per_rank` has, for each rank that is started, (argv or None, changes of the environment, cwd or None).
    `supervisor` is the path of the `nativelaunch` binary. With `caller_is_rank_zero`, local ranks 1..N-1 are started.

    Raises:
        nativelaunch.UsageError: a value is refused; the text names field and value.
        nativelaunch.SpawnError: a rank or the supervisor cannot start; nothing is left.
    """
