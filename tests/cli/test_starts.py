"""Starts that cannot be, or that are odd: refused or done, told in one line, and nothing left."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.fronts import state_of, wait_until
from tests.python.processes import alive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.fronts import Launcher


@pytest.fixture
def public(binary: str) -> Iterator[Path]:
    """A folder with the binary that every user may look into."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    shutil.copy(binary, folder / "nativelaunch")
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="root is missing: only it can become a user without processes")
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6])
def test_limit_of_processes_reached_half_way_is_told_and_leaves_nothing(
    launch: Launcher, public: Path, limit: int
) -> None:
    # One that nobody has been, also in the test before: zombies count until they are reaped.
    user = 200_000 + os.getpid() % 10_000 * 10 + limit

    # Front, guard and keeper are three.
    def become_limited() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)

    ended = launch.run(
        "-n",
        "4",
        "--no-python",
        "sleep",
        "1000",
        command=(public / "nativelaunch",),
        cwd="/",
        preexec_fn=become_limited,
        timeout=10,
    )
    assert ended.status == 1
    assert len(ended.lines) == 1, ended
    assert "resource temporarily unavailable" in ended.err
    # It depends a little on how soon the process that made the guard is gone.
    if limit >= 4:
        assert ended.err in [
            f"nativelaunch: cannot start rank {rank}: fork: resource temporarily unavailable "
            f"(this user may have {limit} processes: ulimit -u)\n"
            for rank in (limit - 4, limit - 3)
        ]
    assert not alive()


def test_limit_of_descriptors_reached_half_way_is_told_and_leaves_nothing(launch: Launcher) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))

    ended = launch.run("-n", "64", "--no-python", "sleep", "1000", preexec_fn=limit, timeout=10)
    assert ended.status == 1
    assert len(ended.lines) == 1
    assert "cannot start rank" in ended.err
    assert "too many open files" in ended.err


def test_vanished_directory_is_told(launch: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    command = ("sh", "-c", 'rmdir "$0"; exec "$@"', folder, launch.binary)
    ended = launch.run("-n", "4", "train.py", command=command, cwd=folder)
    assert ended.status == 1
    assert ended.err == 'nativelaunch: cannot start "train.py": the working directory no longer exists\n'


def test_program_runs_in_a_vanished_directory_as_from_a_shell(launch: Launcher, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    command = ("sh", "-c", 'rmdir "$0"; exec "$@"', folder, launch.binary)
    ended = launch.run("-n", "2", "--no-python", "echo", "ran", command=command, cwd=folder)
    assert (ended.status, ended.out, ended.err) == (0, b"ran\nran\n", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_obstacle(launch: Launcher, tmp_path: Path, closed: str) -> None:
    body = (
        'echo x; echo y >&2; ls -l /proc/self/fd > "$0/$RANK"; mv "$0/$RANK" "$0/$RANK.fds"; '
        # The one that fails ends the other.
        'while ! [ -e "$0/0.fds" ]; do sleep 0.01; done; exit $((RANK * 7))'
    )
    ended = launch.run(
        "-n",
        "2",
        "--no-python",
        "sh",
        "-c",
        body,
        tmp_path,
        command=("sh", "-c", f'exec "$@" {closed}', "sh", launch.binary),
    )
    assert ended.status == 7
    assert len(list(tmp_path.glob("*.fds"))) == 2
    for path in tmp_path.glob("*.fds"):
        assert "socket:" not in path.read_text()
        assert "memfd" not in path.read_text()


def test_text_without_a_first_line_runs_by_the_shell(launch: Launcher, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$RANK $1 $2"\nexit 3\n')
    script.chmod(0o755)
    ended = launch.run("--no-python", "./script", "a b", "")
    assert (ended.status, ended.out) == (3, b"0 a b \n")


def test_program_is_searched_on_the_path(launch: Launcher, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("without", "denied", "with")]
    for folder in folders:
        folder.mkdir()
    (folders[1] / "a-program").write_text("#!/bin/sh\necho wrong\n")
    (folders[2] / "a-program").write_text("#!/bin/sh\necho right\n")
    (folders[2] / "a-program").chmod(0o755)
    path = ":".join([*map(str, folders), os.environ["PATH"]])
    ended = launch.run("--no-python", "a-program", env={"PATH": path})
    assert (ended.status, ended.out) == (0, b"right\n")


def test_file_that_was_just_written_can_be_run(launch: Launcher, tmp_path: Path) -> None:
    # Another process may still have it open for writing: a text file of another thread's fork, for a moment.
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    with program.open("r+b"):
        front = launch.start("--no-python", "./program")
        wait_until(lambda: front.process.poll() is not None or len(alive()) >= 3, "the start")
    ended = front.end()
    # It was tried again for some milliseconds.
    assert ended.status in (0, 126)


def test_reader_that_goes_away_ends_the_job(launch: Launcher) -> None:
    front = launch.start("-n", "2", "--no-python", "yes")
    assert front.process.stdout is not None
    assert front.process.stdout.readline() == b"y\n"
    front.process.stdout.close()
    wait_until(lambda: front.process.poll() is not None, "the end", 10)
    assert front.process.returncode == 128 + signal.SIGPIPE


def test_pipeline_with_head_ends(launch: Launcher) -> None:
    ended = launch.run(
        "-n",
        "2",
        "--no-python",
        "yes",
        command=("sh", "-c", '"$@" 2>/dev/null | head -n 1', "sh", launch.binary),
        timeout=10,
    )
    assert (ended.status, ended.out) == (0, b"y\n")


def test_output_that_nobody_reads_keeps_no_job_from_its_end(launch: Launcher, tmp_path: Path) -> None:
    body = 'touch "$0/$RANK.ready"; yes >&2 & exec yes'
    front = launch.start("-n", "2", "--no-python", "sh", "-c", body, tmp_path)
    front.wait_ready(2)
    wait_until(lambda: all(state_of(pid) == "S" for pid in front.workers()), "full pipes")
    front.signal(signal.SIGTERM)
    # Not even its report has to be read.
    wait_until(lambda: front.process.poll() is not None, "the end", 5)
    assert front.process.returncode == 143


def test_output_arrives_whole(launch: Launcher) -> None:
    ended = launch.run("-n", "2", "--no-python", "head", "-c", "3000000", "/dev/zero")
    assert ended.status == 0
    assert ended.out == bytes(6_000_000)


def test_grace_of_zero_kills_at_once(launch: Launcher) -> None:
    front = launch.start("-n", "2", "--grace", "0", "--no-python", "sh", "-c", "trap '' TERM; sleep 1000")
    wait_until(lambda: len(front.workers()) == 2, "two workers")
    start = time.monotonic()
    front.signal(signal.SIGTERM)
    assert front.end(timeout=5).status == 143
    assert time.monotonic() - start < 1.0
