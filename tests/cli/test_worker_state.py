"""A worker starts clean: no descriptor of ours, no signal blocked, and the rest as the front was given it."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cli.fronts import kill, program, wait_until
from tests.python.processes import alive

if TYPE_CHECKING:
    from tests.cli.fronts import Launcher


def states(folder: Path, count: int) -> list[dict[str, Any]]:
    """What the workers of `show` found."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def masks(text: str) -> dict[str, set[int]]:
    """Signals by the lines of /proc/PID/status, such as `SigIgn`."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.startswith("Sig") and name != "SigQ":
            bits = int(value, 16)
            found[name] = {number for number in range(1, 65) if bits >> (number - 1) & 1}
    return found


def test_worker_has_three_descriptors(launch: Launcher, tmp_path: Path) -> None:
    # Left open by whoever starts the front, as many tools do.
    inherited = [os.open(os.devnull, os.O_RDWR) for _ in range(100)]
    try:
        ended = launch.run("-n", "2", *program("show", tmp_path), pass_fds=inherited)
    finally:
        for fd in inherited:
            os.close(fd)
    assert ended.status == 0
    for state in states(tmp_path, 2):
        assert sorted(state["descriptors"]) == ["0", "1", "2"]


def test_rank_zero_has_the_input_and_the_others_none(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start("-n", "3", *program("show", tmp_path), stdin=-1)
    ended = front.end()
    assert ended.status == 0
    inputs = [state["descriptors"]["0"] for state in states(tmp_path, 3)]
    assert inputs[0].startswith("pipe:")
    assert inputs[1:] == ["/dev/null", "/dev/null"]
    assert len({state["descriptors"]["1"] for state in states(tmp_path, 3)}) == 1


def test_blocked_signals_are_unblocked_and_ignored_ones_as_they_should_be(
    launch: Launcher, tmp_path: Path
) -> None:
    def block_and_ignore() -> None:
        for signum in (
            signal.SIGCHLD,
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGUSR1,
            signal.SIGHUP,
            signal.SIGQUIT,
        ):
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())

    # Not Python, which ignores SIGPIPE and SIGXFSZ itself.
    body = 'cat /proc/self/status > "$0/$RANK.status"'
    ended = launch.run(
        "-n",
        "2",
        "--no-python",
        "sh",
        "-c",
        body,
        tmp_path,
        preexec_fn=block_and_ignore,
        restore_signals=False,
    )
    assert (ended.status, ended.err) == (0, "")
    for rank in range(2):
        found = masks((tmp_path / f"{rank}.status").read_text())
        assert found["SigBlk"] == set()
        assert found["SigPnd"] == set()
        # glibc's posix_spawn, by which make starts programs, has 32 and 33 ignored, and we pass that on.
        assert found["SigIgn"] - {32, 33} == {signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT}
        assert found["SigCgt"] == set()


def test_front_works_with_everything_blocked_and_children_ignored(launch: Launcher, tmp_path: Path) -> None:
    def block_and_ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())

    ended = launch.run(
        "-n", "3", "--no-python", "sh", "-c", "exit $((RANK * 3))", preexec_fn=block_and_ignore
    )
    assert ended.status in (3, 6)
    front = launch.start("-n", "2", *program("log_signals", tmp_path), preexec_fn=block_and_ignore)
    front.wait_ready(2)
    front.signal(signal.SIGTERM)
    assert front.end().status == 143


def test_directory_umask_nice_and_limits_are_inherited(launch: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "a folder ü"
    folder.mkdir()

    def change() -> None:
        os.umask(0o137)
        os.nice(3)
        resource.setrlimit(resource.RLIMIT_NOFILE, (123, 456))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    nice = os.nice(0)
    ended = launch.run("-n", "2", *program("show", tmp_path), cwd=folder, preexec_fn=change)
    assert (ended.status, ended.err) == (0, "")
    for state in states(tmp_path, 2):
        assert state["cwd"] == str(folder)
        assert state["umask"] == 0o137
        assert state["nice"] == nice + 3
        assert state["nofile"] == [123, 456]
        assert state["core"] == [0, 0]


def test_guard_and_keeper_are_not_found_by_the_name_of_the_front(launch: Launcher) -> None:
    # `pkill -9 nativelaunch` is how people end it for good.
    front = launch.start("--no-python", "sleep", "1000")
    for pid in (front.keeper(), front.guard()):
        assert "nativelaunch" not in Path(f"/proc/{pid}/comm").read_text()
        assert b"nativelaunch" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    front.signal(signal.SIGTERM)
    assert front.end().status == 143


def test_worker_is_in_the_group_and_session_of_the_front_and_dies_with_the_keeper(
    launch: Launcher, tmp_path: Path
) -> None:
    front = launch.start("-n", "2", *program("show", tmp_path))
    assert front.end().status == 0
    for state in states(tmp_path, 2):
        assert state["group"] == state["session"] == front.pid
        assert state["death_signal"] == signal.SIGKILL
    front = launch.start("-n", "2", "--no-python", "sleep", "1000")
    wait_until(lambda: len(front.workers()) == 2, "two workers")
    workers, keeper = front.workers(), front.keeper()
    guard = front.guard()
    assert os.getpgid(keeper) == front.pid
    assert os.getsid(guard) == guard
    # Nobody else could end them now.
    os.kill(guard, signal.SIGSTOP)
    kill(keeper)
    wait_until(lambda: not set(workers) & set(alive()), "the workers' end", 1.0)
    assert front.end().status == 1
