"""The launcher that runs this script again: the caller is rank 0, the other ranks are copies under a keeper."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from nativelaunch import _core, arguments, threads
from nativelaunch._find import find_bin
from nativelaunch.command import ChildCommand, child_command
from nativelaunch.errors import LauncherError
from nativelaunch.launchers.base import Launcher
from nativelaunch.launchers.process import ProcessHandle
from nativelaunch.launchers.rank_zero import RankZero

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from nativelaunch.environments import ClusterEnvironment

T = TypeVar("T")

CHILD_VARIABLE = "NATIVELAUNCH_CHILD"
"""Set in a rank that a launcher started: `<job>:<local rank>`."""

# The launcher whose ranks live, in the process that started them. At most one: LOCAL_RANK has one meaning.
_owner: SubprocessScriptLauncher | None = None
# Processes and nodes of the first launch in a process that is itself such a rank.
_child_counts: tuple[int, int] | None = None
# Whether a launcher with ranks made by running the whole script again was closed here.
_replayed = False


class SubprocessScriptLauncher(Launcher):
    """Runs a function in the caller, as rank 0, and in copies of this script, as ranks 1 to N-1.

    The copies run the script from its beginning and meet the caller at the same line. The first `launch` starts them;
    further ones, also by other launchers with the same counts, start nobody. A rank that fails ends all: `WorkerFailed`
    is raised in the caller's main thread, and if that does not end within `peer_grace` seconds, the process ends with
    the failed rank's status. A program that catches it has until then to call `close`, and may go on afterwards; the
    failed rank's status and the report remain those of its end, whenever that comes, unless a later launch ends well in
    all ranks. SIGTERM and SIGHUP are handed to the ranks and raise SystemExit here, unless the program
    handles them itself.

    While it is open, this process has `MASTER_ADDR`, `MASTER_PORT`, `NODE_RANK`, `LOCAL_RANK` and `WORLD_SIZE` (and
    `OMP_NUM_THREADS`, if it was unset) in its environment, one native thread, and handlers for those two signals if
    they were at their default and `launch` was called in the main thread. `close` restores all of it.

    Args:
        cluster_environment: Where this process stands; an object of Lightning's will do.
        num_processes: Ranks on this node.
        num_nodes: Nodes; each runs this script once.
        grace: Seconds from the polite signal to SIGKILL when the job is ended from outside, and how long `close` waits
            for ranks that are not done.
        peer_grace: The same when a rank failed.
    """

    procs: list[ProcessHandle]
    """The other ranks of this node, by local rank."""

    def __init__(
        self,
        cluster_environment: ClusterEnvironment,
        num_processes: int,
        num_nodes: int,
        *,
        grace: float = 30.0,
        peer_grace: float = 10.0,
    ) -> None:
        self.cluster_environment = cluster_environment
        self.num_processes = arguments.count("num_processes", num_processes, least=1)
        self.num_nodes = arguments.count("num_nodes", num_nodes, least=1)
        self.grace = arguments.seconds("grace", grace)
        self.peer_grace = arguments.seconds("peer_grace", peer_grace)
        self.procs = []
        self._process = os.getpid()
        self._job: _core.Job | None = None
        self._rank_zero: RankZero | None = None
        self._variables: dict[str, str | None] = {}
        self._torch_threads: int | None = None

    @property
    @override
    def is_interactive_compatible(self) -> bool:
        return False

    @override
    def launch(self, function: Callable[..., T], *args: Any, trainer: object = None, **kwargs: Any) -> T:
        """Runs `function(*args, **kwargs)` here and, when they come to this line, in the other ranks.

        Args:
            function: What to run.
            *args: Its arguments.
            trainer: Lightning's Trainer; not passed on.
            **kwargs: Its keyword arguments.

        Returns:
            What the function returned in this process.

        Raises:
            LauncherError: The ranks that live were started for other counts, have ended, or cannot be started.
            SpawnError: A rank could not be started; nothing is left.
            WorkerFailed: Another rank failed.
        """
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        owner = _owner if _owner is not None and _owner._process == os.getpid() else None
        if owner is not None:
            self._check_ranks_of(owner)
        elif CHILD_VARIABLE in os.environ:
            self._check_child()
        elif not self.cluster_environment.creates_processes_externally:
            self._start()
            owner = self
        self._limit_threads()
        if owner is None or owner._rank_zero is None:
            return function(*args, **kwargs)
        return owner._rank_zero.run(function, *args, **kwargs)

    @override
    def kill(self, signum: int) -> None:
        """Sends a signal to the other ranks of this node. Those that have ended are left out."""
        number = arguments.count("signum", signum, least=1, most=64)
        if self._job is not None and self._process == os.getpid():
            self._job.signal(number)

    @override
    def close(self) -> None:
        """Waits for the ranks at most `grace` seconds, ends those that are not done, and restores this process.

        Raises:
            WorkerFailed: A rank failed, which was not raised yet.
        """
        self._close(None)

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(error)

    # The seams that frameworks and their tests replace.

    def child_command(self, local_rank: int) -> ChildCommand:
        """How rank `local_rank` of this node is started: this script again, its place told by the environment."""
        env: dict[str, str | None] = {**self._place(local_rank)}
        if not threads.is_limited():
            env[threads.VARIABLE] = str(threads.share(self.num_processes))
        return child_command(env=env)

    def spawn(self, commands: Sequence[ChildCommand]) -> list[ProcessHandle]:
        """Starts the commands, one for each local rank from 1, and returns when each is executed."""
        environment = self.cluster_environment
        node_rank = environment.node_rank()
        job = _core.start(
            arguments.command("command", commands[0].argv),
            arguments.environment({}),
            nproc_per_node=self.num_processes,
            nnodes=self.num_nodes,
            node_rank=node_rank,
            main_address=environment.main_address,
            main_port=environment.main_port,
            rank_env="none",
            stdin="null",
            stdout="inherit",
            stderr="inherit",
            pass_fds=(),
            per_rank=[
                (
                    arguments.command("command", command.argv),
                    arguments.variables("env", command.env),
                    arguments.directory("cwd", command.cwd),
                )
                for command in commands
            ],
            grace=self.grace,
            peer_grace=self.peer_grace,
            caller_is_rank_zero=True,
            supervisor=os.fsencode(find_bin()),
        )
        self._job = job
        first = node_rank * self.num_processes
        return [ProcessHandle(job, pid, first + local, local) for local, pid in enumerate(job.pids, start=1)]

    def watch(self, procs: Sequence[ProcessHandle]) -> None:
        """Sees to it that a rank's end ends this process, and that its signals reach the ranks. Returns at once."""
        if self._job is not None:
            self._rank_zero = RankZero(self._job, grace=self.grace, peer_grace=self.peer_grace)

    # Starting.

    def _start(self) -> None:
        global _owner
        local_rank = self.cluster_environment.local_rank()
        if local_rank != 0:
            raise LauncherError(
                f"local rank 0 must start the ranks, and this process has local rank {local_rank}: its cluster "
                "environment should say that processes are created externally, or LOCAL_RANK was left over from "
                "another job"
            )
        if _replayed and self._replays():
            raise LauncherError(
                "cannot launch after close(): the new ranks would run this script from its beginning again: close the "
                "first launcher after the last launch, or give the ranks a command of their own (child_command)"
            )
        self._process = os.getpid()
        # Before this process changes: a command that cannot be made leaves nothing to restore.
        commands = [self.child_command(local_rank) for local_rank in range(1, self.num_processes)]
        self._set_variables(self._place(0))
        try:
            self.procs = self.spawn(commands) if commands else []
            self.watch(self.procs)
        except BaseException as error:
            rank_zero, self._rank_zero = self._rank_zero, None
            try:
                if self._job is not None:
                    self._job.request_stop(0.0)
                    if rank_zero is None:
                        self._job.wait()
                    else:
                        rank_zero.close(error)
            finally:
                self._restore()
            raise
        _owner = self
        atexit.register(self._close_at_exit)

    def _place(self, local_rank: int) -> dict[str, str]:
        """The variables that tell a rank its place: those that Lightning's own launcher sets, and no others."""
        environment = self.cluster_environment
        return {
            "MASTER_ADDR": str(environment.main_address),
            "MASTER_PORT": str(environment.main_port),
            "NODE_RANK": str(environment.node_rank()),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.num_processes * self.num_nodes),
        }

    def _replays(self) -> bool:
        """Whether the ranks run this whole script."""
        return self.num_processes > 1 and type(self).child_command is SubprocessScriptLauncher.child_command

    def _check_ranks_of(self, owner: SubprocessScriptLauncher) -> None:
        """A further launch: the ranks come to this line by themselves, if they live and agree on the counts."""
        if (self.num_processes, self.num_nodes) != (owner.num_processes, owner.num_nodes):
            raise LauncherError(
                f"cannot launch {_counts(self.num_processes, self.num_nodes)}: the ranks of this script were started "
                f"as {_counts(owner.num_processes, owner.num_nodes)}: use the same counts"
            )
        for process in owner.procs:
            if (returncode := process.poll()) is not None:
                raise LauncherError(
                    f"cannot launch again: local rank {process.local_rank} (pid {process.pid}) has ended already, with "
                    f"{returncode}"
                )

    def _check_child(self) -> None:
        """The same in a rank that was started: its rank 0 is at this line."""
        global _child_counts
        counts = (self.num_processes, self.num_nodes)
        world_size = os.environ.get("WORLD_SIZE", "")
        if _child_counts is not None and _child_counts != counts:
            started = _counts(*_child_counts)
        elif world_size.isdigit() and int(world_size) != self.num_processes * self.num_nodes:
            started = f"{world_size} ranks in all"
        else:
            started = None
        if started is not None:
            raise LauncherError(
                f"cannot launch {_counts(*counts)}: the ranks of this script were started as {started}: use the same "
                "counts"
            )
        if _replayed:
            raise LauncherError("cannot launch after close(): rank 0 waits for this rank to end")
        _child_counts = counts

    def _limit_threads(self) -> None:
        if not threads.is_limited():
            number = threads.share(self.num_processes)
            self._set_variables({threads.VARIABLE: str(number)})
            self._torch_threads = threads.limit_torch(number)

    def _set_variables(self, variables: dict[str, str]) -> None:
        for name, value in variables.items():
            self._variables.setdefault(name, os.environ.get(name))
            os.environ[name] = value

    # Ending.

    def _close(self, error: BaseException | None) -> None:
        global _owner, _replayed
        _replayed = _replayed or _child_counts is not None
        if _owner is self:
            _owner = None
            atexit.unregister(self._close_at_exit)
            _replayed = _replayed or self._replays()
        rank_zero, self._rank_zero = self._rank_zero, None
        try:
            if rank_zero is not None and self._process == os.getpid():
                rank_zero.close(error)
        finally:
            self._restore()

    def _close_at_exit(self) -> None:
        if self._rank_zero is not None and self._process == os.getpid():
            self._rank_zero.close_at_exit()

    def _restore(self) -> None:
        """Variables and threads as they were. `procs` stays, for whoever wants to know how they ended."""
        for name, before in self._variables.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
        self._variables.clear()
        if self._torch_threads is not None:
            threads.limit_torch(self._torch_threads)
            self._torch_threads = None
        if self._job is not None:
            for process in self.procs:
                process.release()
            self._job = None


def _counts(processes: int, nodes: int) -> str:
    return f"{processes} processes on {nodes} {'node' if nodes == 1 else 'nodes'}"
