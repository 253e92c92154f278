"""Starting commands as the ranks of a job: `run`, `start` and the running `Job`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from nativelaunch import _core, arguments
from nativelaunch._find import find_bin
from nativelaunch.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from nativelaunch._core import Event, Outcome
    from nativelaunch.arguments import Text

Input: TypeAlias = 'int | Literal["inherit", "null"]'
Output: TypeAlias = 'int | Literal["inherit", "null"]'
RankEnv: TypeAlias = Literal["torch", "lightning", "none"]


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """What is different for one rank.

    Attributes:
        env: Changes of the environment, after those of the job; None removes a variable.
        cwd: Working directory in place of the job's.
    """

    env: Mapping[str, str | None] | None = None
    cwd: Text | None = None


def run(
    command: Sequence[Text],
    *,
    nproc_per_node: int = 1,
    nnodes: int = 1,
    node_rank: int = 0,
    main_address: str | None = None,
    main_port: int | None = None,
    env: Mapping[str, str | None] | None = None,
    rank_env: RankEnv = "torch",
    cwd: Text | None = None,
    stdin: Input = 0,
    stdout: Output = "inherit",
    stderr: Output = "inherit",
    per_rank: Callable[[int], RankOptions] | None = None,
    pass_fds: Sequence[int] = (),
    grace: float = 30.0,
    peer_grace: float = 10.0,
    sweep_grace: float = 2.0,
    timeout: float | None = None,
) -> Outcome:
    """Runs a command as the ranks of a job and waits until the last process of it is gone.

    A rank that fails ends the others; that is an outcome, not an exception (see `Outcome.check`). An exception that
    arrives meanwhile, such as KeyboardInterrupt, stops the job first; a second one kills it.

    Args:
        command: Program and arguments; no shell is involved. A program without a slash is looked for on PATH.
        nproc_per_node: Workers on this node.
        nnodes: Number of nodes; each runs its own job.
        node_rank: This node, from 0.
        main_address: Where rank 0 listens; None is 127.0.0.1, for one node only.
        main_port: Port on which rank 0 listens; None is a free one, for one node only.
        env: Changes of `os.environ` for the workers; None removes a variable.
        rank_env: Variables that tell a worker its place: those of torchrun, those of Lightning's launcher, or none.
        cwd: Working directory of the workers; None is the caller's.
        stdin: Local rank that gets the caller's stdin (the others read `/dev/null`), "inherit" for all, or "null".
        stdout: "inherit", "null" or a file descriptor.
        stderr: As `stdout`.
        per_rank: Called with each local rank before anything is started; returns what is different for it.
        pass_fds: File descriptors above 2 that the workers get under the same numbers.
        grace: Seconds from SIGTERM to SIGKILL when the job is stopped.
        peer_grace: The same for the others when a rank failed.
        sweep_grace: The same for processes that the workers left behind.
        timeout: Seconds after which the job is stopped, with reason "timeout" and status 124.

    Returns:
        How the job ended.

    Raises:
        UsageError: An argument is refused; nothing was started.
        SpawnError: A rank or the supervisor could not be started; nothing is left.
        LauncherError: The supervisor says that it cannot go on, and nobody knows how the ranks ended. (One that is
            killed is an outcome: "supervisor-lost".)
    """
    limit = None if timeout is None else arguments.seconds("timeout", timeout)
    job = start(
        command,
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        node_rank=node_rank,
        main_address=main_address,
        main_port=main_port,
        env=env,
        rank_env=rank_env,
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        per_rank=per_rank,
        pass_fds=pass_fds,
        grace=grace,
        peer_grace=peer_grace,
        sweep_grace=sweep_grace,
    )
    with job:
        try:
            return job.wait(limit)
        except TimeoutError:
            return job._stop(None, "timeout")


def start(
    command: Sequence[Text],
    *,
    nproc_per_node: int = 1,
    nnodes: int = 1,
    node_rank: int = 0,
    main_address: str | None = None,
    main_port: int | None = None,
    env: Mapping[str, str | None] | None = None,
    rank_env: RankEnv = "torch",
    cwd: Text | None = None,
    stdin: Input = 0,
    stdout: Output = "inherit",
    stderr: Output = "inherit",
    per_rank: Callable[[int], RankOptions] | None = None,
    pass_fds: Sequence[int] = (),
    grace: float = 30.0,
    peer_grace: float = 10.0,
    sweep_grace: float = 2.0,
) -> Job:
    """Starts a command as the ranks of a job and returns when every rank executes it.

    Args and Raises: as `run`.

    Returns:
        The running job. Keep it: it stops when the last reference to it is gone.
    """
    argv = arguments.command("command", command)
    nproc = arguments.count("nproc_per_node", nproc_per_node, least=1)
    nodes = arguments.count("nnodes", nnodes, least=1)
    node = arguments.count("node_rank", node_rank, least=0, most=nodes - 1)
    if main_address is not None and not (isinstance(main_address, str) and main_address):
        raise UsageError(f"main_address must be a host name or address: {main_address!r}")
    if main_address is not None:
        arguments.text("main_address", main_address)
    port = None if main_port is None else arguments.count("main_port", main_port, least=1, most=65535)
    if nodes > 1 and (main_address is None or port is None):
        raise UsageError(f"main_address and main_port must be given when nnodes is above 1: {nodes}")
    arguments.choice("rank_env", rank_env, ("torch", "lightning", "none"))
    return Job(
        _core.start(
            argv,
            arguments.environment(arguments.variables("env", env)),
            nproc_per_node=nproc,
            nnodes=nodes,
            node_rank=node,
            main_address=main_address,
            main_port=port,
            rank_env=rank_env,
            cwd=arguments.directory("cwd", cwd),
            stdin=_input(stdin, nproc),
            stdout=_output("stdout", stdout),
            stderr=_output("stderr", stderr),
            per_rank=None if per_rank is None else [_rank_options(per_rank, rank) for rank in range(nproc)],
            pass_fds=arguments.descriptors("pass_fds", pass_fds),
            grace=arguments.seconds("grace", grace),
            peer_grace=arguments.seconds("peer_grace", peer_grace),
            sweep_grace=arguments.seconds("sweep_grace", sweep_grace),
            supervisor=os.fsencode(find_bin()),
        )
    )


def _input(value: Input, nproc: int) -> Input:
    if value == "inherit" or value == "null":
        return value
    if isinstance(value, str):
        raise UsageError(f'stdin must be a local rank, "inherit" or "null": {value!r}')
    return arguments.count("stdin", value, least=0, most=nproc - 1)


def _output(field: str, value: Output) -> Output:
    if value == "inherit" or value == "null":
        return value
    if isinstance(value, str):
        raise UsageError(f'{field} must be "inherit", "null" or a file descriptor: {value!r}')
    return arguments.descriptor(field, value)


def _rank_options(
    per_rank: Callable[[int], RankOptions], local_rank: int
) -> tuple[None, dict[bytes, bytes | None], bytes | None]:
    options = per_rank(local_rank)
    if not isinstance(options, RankOptions):
        raise UsageError(f"per_rank({local_rank}) must return RankOptions: {options!r}")
    return (
        None,
        arguments.variables(f"per_rank({local_rank}).env", options.env),
        arguments.directory(f"per_rank({local_rank}).cwd", options.cwd),
    )


class Job:
    """A running job; `start` makes it.

    As a context manager it stops the job at the end of the block and waits for it. The job also stops when the last
    reference is gone, or this process is. A forked child can do nothing to it: every method raises `LauncherError`.
    Methods may be called from several threads.
    """

    __slots__ = ("__weakref__", "_core", "_process")

    def __init__(self, core: _core.Job) -> None:
        self._core = core
        self._process = os.getpid()

    @property
    def id(self) -> str:
        """The name of this job, also in the workers' variable `NATIVELAUNCH_JOB`."""
        return self._core.id

    @property
    def pids(self) -> tuple[int, ...]:
        """The process of each worker of this node, by local rank. Signal them by `signal`: a pid may be used again."""
        return self._core.pids

    def fileno(self) -> int:
        """A descriptor that is readable when an event may be ready. Only for `poll` and the like."""
        return self._core.fileno()

    def events(self, timeout: float | None = None) -> EventStream:
        """What happens, as it happens: an iterator for `for` and for `async for`.

        It ends after the job's last event, or `timeout` seconds from now, which leaves the job running.
        """
        return EventStream(self._core, None if timeout is None else arguments.seconds("timeout", timeout))

    def wait(self, timeout: float | None = None) -> Outcome:
        """Waits until every process of the job is gone.

        Raises:
            TimeoutError: They are not after `timeout` seconds. The job goes on.
            LauncherError: The supervisor says that it cannot go on, and nobody knows how the ranks ended.
        """
        limit = None if timeout is None else arguments.seconds("timeout", timeout)
        outcome = self._core.wait(limit)
        if outcome is None:
            raise TimeoutError(f"the job has not ended after {limit:g} s")
        return outcome

    def poll(self) -> Outcome | None:
        """The outcome, or None while the job runs."""
        return self._core.poll()

    def signal(self, signum: int, rank: int | None = None) -> None:
        """Sends a signal to one rank (global) or to all. A rank that has ended is left out.

        Raises:
            UsageError: There is no such signal or rank.
        """
        number = arguments.count("signum", signum, least=1, most=64)
        self._core.signal(number, None if rank is None else arguments.count("rank", rank, least=0))

    def stop(self, grace: float | None = None) -> Outcome:
        """Ends the job and waits: SIGTERM, and SIGKILL after `grace` seconds (None: the job's own).

        Within 5 s of a Ctrl-C, or of a SIGTERM to the whole group, the ranks get no SIGTERM: they have had theirs, and
        a second one would disturb their clean-up.

        An exception that arrives meanwhile, such as KeyboardInterrupt, kills what is left and is raised then.
        """
        return self._stop(None if grace is None else arguments.seconds("grace", grace), "stopped")

    def kill(self) -> Outcome:
        """Ends the job by SIGKILL and waits."""
        return self._stop(0.0, "stopped")

    def _stop(self, grace: float | None, reason: Literal["stopped", "timeout"]) -> Outcome:
        try:
            self._core.request_stop(grace, reason)
            return self.wait()
        except BaseException:
            self._core.request_stop(0.0, reason)
            self.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() == self._process:
            self.stop()

    def __repr__(self) -> str:
        return f"<nativelaunch.Job {self._core.id}>"


class EventStream:
    """The events of a job, for `for` and `async for`. Several streams of one job share its events."""

    __slots__ = ("_core", "_deadline")

    def __init__(self, core: _core.Job, timeout: float | None) -> None:
        self._core = core
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self._core.next_event(self._left())
        if event is None:
            raise StopIteration
        return event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while (event := self._core.next_event(0.0)) is None:
            if self._core.poll() is not None:
                # The job may have ended between the two looks.
                event = self._core.next_event(0.0)
                if event is None:
                    raise StopAsyncIteration
                break
            if not await self._readable():
                raise StopAsyncIteration
        return event

    async def _readable(self) -> bool:
        """Waits until an event may be ready; False when the time is up."""
        import asyncio

        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        # A loop knows one reader for each number: a copy lets several streams wait.
        descriptor = os.dup(self._core.fileno())
        loop.add_reader(descriptor, _settle, ready)
        try:
            await asyncio.wait_for(ready, self._left())
        except (asyncio.TimeoutError, TimeoutError):
            return False
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return True


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
