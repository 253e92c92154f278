"""A launcher inside a launcher: one signal each, nothing left, and the inner one's patience is the shorter."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.fronts import everything_is_gone, kill, parent_of, program, signals_seen, wait_until
from tests.python.processes import alive, named

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.fronts import Front, Launcher


def start_nested(
    launch: Launcher, folder: Path, name: str, *options: str, arguments: tuple[str, ...] = ()
) -> Front:
    """Two inner fronts of two workers each, which note into a folder for each inner front."""
    command = " ".join(f"'{part}'" for part in program(name)[:-1])
    script = program(name)[-1]
    body = f'mkdir "$1/$RANK" && folder=$1/$RANK && shift && exec "$0" -n 2 {command} \'{script}\' "$folder" "$@"'
    return launch.start(
        "-n", "2", *options, "--no-python", "sh", "-c", body, launch.binary, folder, *arguments
    )


def wait_for_all(front: Front, folder: Path) -> None:
    wait_until(
        lambda: len(list(folder.glob("*/*.ready"))) == 4 or front.process.poll() is not None, "four workers"
    )


def outermost(front: Front) -> tuple[int, int]:
    """Guard and keeper of the outer job: the guard that is no descendant of another keeper."""
    guards, keepers = named("nl-guard"), named("nl-keeper")
    guard = next(pid for pid in guards if parent_of(pid) not in keepers)
    return guard, next(pid for pid in keepers if parent_of(pid) == guard)


@pytest.mark.parametrize("to", ["front", "group"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_signal_reaches_the_inner_workers_once(
    launch: Launcher, tmp_path: Path, to: str, signum: signal.Signals
) -> None:
    front = start_nested(launch, tmp_path, "log_signals")
    wait_for_all(front, tmp_path)
    if to == "front":
        front.signal(signum)
    else:
        front.signal_group(signum)
    ended = front.end()
    # The inner fronts say what they were ended by: that is a status of their own.
    assert ended.status == 128 + signum
    for rank in "01":
        assert signals_seen(tmp_path / rank) == {"0": [signum.name], "1": [signum.name]}


@pytest.mark.parametrize("victim", ["outer front", "outer keeper", "group", "inner front", "inner guards"])
def test_nothing_outlives_the_outer_job(launch: Launcher, tmp_path: Path, victim: str) -> None:
    front = start_nested(launch, tmp_path, "family")
    wait_for_all(front, tmp_path)
    guard, keeper = outermost(front)
    if victim == "outer front":
        kill(front.pid)
    elif victim == "outer keeper":
        kill(keeper)
    elif victim == "group":
        front.signal_group(signal.SIGKILL)
    elif victim == "inner front":
        # A failure of that rank: the other has its grace.
        # The inner guards are the outer keeper's children too.
        kill(next(pid for pid in alive() if parent_of(pid) == keeper and pid not in named("nl-guard")))
    else:
        for other in set(named("nl-guard")) - {guard}:
            kill(other)
        kill(front.pid)
    if victim == "inner front":
        ended = front.end()
        assert ended.status == 137
        assert not alive()
    else:
        assert everything_is_gone(1.0), alive()
        front.end()


def test_inner_grace_is_a_second_shorter_than_the_outer(launch: Launcher, tmp_path: Path) -> None:
    # Inner workers that ignore SIGTERM: the inner fronts kill them, before the outer one kills the inner fronts.
    front = start_nested(launch, tmp_path, "log_signals", "--grace", "1.5", arguments=("0", "never"))
    wait_for_all(front, tmp_path)
    start = time.monotonic()
    front.signal(signal.SIGTERM)
    ended = front.end()
    assert 0.5 <= time.monotonic() - start < 1.5
    assert ended.status == 143
    assert ended.err.count("nativelaunch: ranks 0, 1 were ended (SIGKILL)") == 2


def test_inner_workers_are_told_the_inner_grace(launch: Launcher) -> None:
    ended = launch.run(
        "--grace",
        "5",
        "--no-python",
        launch.binary,
        "--no-python",
        "sh",
        "-c",
        "echo $NATIVELAUNCH_OUTER_GRACE",
    )
    assert (ended.status, ended.out) == (0, b"4\n")
