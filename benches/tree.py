"""What a command costs: CPU seconds of every process it leads to, and wall seconds until it ended.

Each process counts once, by the rusage that ``wait4`` gives to whoever reaps it. That figure holds the
process and the descendants which *it* reaped; what it left behind (our guard leaves its parent at once, by a
double fork) comes to the nearest subreaper. The measuring process is one, and reaps until nothing is left.

Not counted: children of a process that ignores SIGCHLD (the kernel reaps those, and drops their times), the
kernel's own threads, and the measuring process itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PR_SET_CHILD_SUBREAPER = 36
WALL = 0x40000000  # also children whose end raises no signal, as between the front and the guard


@dataclass(frozen=True)
class Cost:
    """What one run of one or more commands took."""

    status: int  # of the first command that failed, as a shell shows it; 0 where none did
    started: float  # on CLOCK_MONOTONIC, seconds
    wall: float  # seconds until the last of the commands ended
    cpu: float  # user and system seconds of the whole tree
    killed: int  # descendants that outlived the commands for too long, or all of them after the time limit


def measure(
    *commands: Sequence[str],
    environs: Sequence[Mapping[str, str]] | None = None,
    stdout: Path | None = None,
    timeout: float = 120.0,
    linger: float = 5.0,
) -> Cost:
    """Starts all commands at once and waits for them and all their descendants.

    Takes over every child of the calling process: do not use it in one that has others.

    Args:
        commands: each an argument vector; the first word is looked up on PATH.
        environs: one environment per command; that of the caller where absent.
        stdout: file to append the output to; without it, output goes nowhere.
        timeout: seconds until what is still running is killed.
        linger: seconds that descendants have once the commands ended.
    """
    become_subreaper()
    environs = environs or [os.environ] * len(commands)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    open_stdout = (os.POSIX_SPAWN_OPEN, 1, str(stdout or os.devnull), append, 0o644)
    no_stdin = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    killed: set[int] = set()
    limit = threading.Timer(timeout, kill_descendants, [killed])
    limit.start()
    started = ended = time.monotonic()
    running = set()
    for command, environ in zip(commands, environs, strict=True):
        running.add(os.posix_spawnp(command[0], list(command), environ, file_actions=[no_stdin, open_stdout]))

    status, cpu = 0, 0.0
    with contextlib.suppress(ChildProcessError):  # raised when nothing is left to wait for
        while True:
            pid, raw, usage = os.wait4(-1, WALL)
            cpu += usage.ru_utime + usage.ru_stime
            if pid in running:
                ended = time.monotonic()
                running.remove(pid)
                code = os.waitstatus_to_exitcode(raw)
                status = status or (128 - code if code < 0 else code)
                if not running:
                    limit.cancel()
                    limit = threading.Timer(linger, kill_descendants, [killed])
                    limit.start()
    limit.cancel()
    return Cost(status, started, ended - started, cpu, len(killed))


def become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(root: int) -> set[int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # the command's name, in parentheses, may hold anything
                stat = Path("/proc", entry, "stat").read_bytes()
                parents[int(entry)] = int(stat.rpartition(b")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def kill_descendants(killed: set[int]) -> None:
    """Repeats until a look finds nobody new: a process may fork between the look and the kill."""
    while more := descendants(os.getpid()) - killed:
        for pid in more:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= more


if __name__ == "__main__":
    # the command's output goes to stderr, so that stdout is the figures alone
    print(json.dumps(asdict(measure(sys.argv[1:], stdout=Path("/dev/stderr")))))
