"""Starting the command and looking at what it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.python.processes import alive, command_of, named, until

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = Path(__file__).parent / "programs"

# A Python that starts in 10 ms.
PYTHON = (sys.executable, "-I", "-S")

# Long enough for a loaded machine; no test waits for it unless something is wrong.
PATIENCE = 30.0


def find_binary() -> str:
    """The binary under test."""
    if path := os.environ.get("NATIVELAUNCH_BIN"):
        return path
    import nativelaunch

    return nativelaunch.find_bin()


def program(name: str, *arguments: str | Path) -> list[str]:
    """Options and command that run one of the programs beside this file as a worker."""
    return ["--no-python", *PYTHON, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Waits for an event, or fails."""
    assert until(condition, seconds), f"not within {seconds} s: {what}"


@dataclass(frozen=True)
class Ended:
    """How a front ended."""

    status: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        """What it said on standard error."""
        return self.err.splitlines()


class Front:
    """A running front."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.pid = process.pid
        self.folder = folder

    def signal(self, signum: int) -> None:
        """To the front alone."""
        os.kill(self.pid, signum)

    def signal_group(self, signum: int) -> None:
        """To its whole group, which is its own."""
        os.killpg(self.pid, signum)

    def end(self, timeout: float = PATIENCE) -> Ended:
        """Waits for its end, which has to come within this time."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            states = {pid: f"{state_of(pid)} {command_of(pid)}" for pid in alive()}
            self.process.kill()
            raise AssertionError(f"the front or its output has no end after {timeout} s: {states}") from None
        return Ended(self.process.returncode, out or b"", (err or b"").decode(errors="replace"))

    def wait_ready(self, count: int) -> None:
        """Waits until so many workers said in the folder that they are ready."""
        self.wait_files("*.ready", count)

    def wait_files(self, pattern: str, count: int) -> None:
        """Waits until there are so many files of this pattern, or the front has ended."""
        wait_until(
            lambda: len(list(self.folder.glob(pattern))) >= count or self.process.poll() is not None,
            f"{count} files {pattern}",
        )
        found = sorted(path.name for path in self.folder.glob(pattern))
        if len(found) < count:
            raise AssertionError(f"ended too early, with {found}: {self.end()}")

    def keeper(self) -> int:
        """The keeper: the guard's child of that name. A worker has that name too until its exec."""
        found: list[int] = []

        def seek() -> bool:
            guards = named("nl-guard")
            found[:] = [pid for pid in named("nl-keeper") if parent_of(pid) in guards]
            return bool(found)

        wait_until(seek, "a keeper")
        assert len(found) == 1
        return found[0]

    def guard(self) -> int:
        """The guard."""
        return parent_of(self.keeper())

    def workers(self) -> list[int]:
        """The keeper's children, in order of their pids."""
        keeper = self.keeper()
        return sorted(pid for pid in alive() if parent_of(pid) == keeper)


class Launcher:
    """Starts fronts, each in a session and group of its own."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary = binary
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str | bytes | Path, **options: Any) -> Front:
        """Starts a front with pipes for its streams and the test's folder as its directory."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("start_new_session", True)
        options.setdefault("cwd", self.folder)
        environ = dict(os.environ) | {"PYTHON_EXEC": sys.executable} | options.pop("env", {})
        environ.pop("NATIVELAUNCH_BIN", None)
        command = options.pop("command", (self.binary,))
        process = subprocess.Popen([*command, *arguments], env=environ, **options)
        self._running.append(process)
        return Front(process, self.folder)

    def run(self, *arguments: str | bytes | Path, timeout: float = PATIENCE, **options: Any) -> Ended:
        """Starts a front and waits for its end."""
        return self.start(*arguments, **options).end(timeout)

    def close(self) -> None:
        """Kills what still runs."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            process.wait()


def stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["gone", "0"]


def state_of(pid: int) -> str:
    """The letter of a process's state: `T` when it is stopped."""
    return stat(pid)[0]


def parent_of(pid: int) -> int:
    """A process's parent; 0 if it is gone."""
    return int(stat(pid)[1])


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return state_of(pid) == "T"


def signals_seen(folder: Path) -> dict[str, list[str]]:
    """What the workers of `log_signals` noted so far: by rank, the names of signals in order."""
    return {path.stem: path.read_text().split() for path in sorted(folder.glob("*.signals"))}


def everything_is_gone(within: float) -> bool:
    """Whether all processes of this test, but for those of pytest itself, are gone within this time."""
    # The last look began in time; on a busy machine with many processes it takes a while, so what it saw may be old.
    return until(lambda: not alive(), within) or not alive()


def kill(pid: int) -> None:
    """SIGKILL, also to one that is gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def seconds_since(start: float) -> float:
    """By the monotonic clock."""
    return time.monotonic() - start
