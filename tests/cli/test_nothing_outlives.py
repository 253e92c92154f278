"""Whatever ends front, guard or keeper: all workers and all their descendants are gone a second later."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.fronts import (
    everything_is_gone,
    is_stopped,
    kill,
    parent_of,
    program,
    signals_seen,
    wait_until,
)
from tests.python.processes import alive, named

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.fronts import Front, Launcher


def start_families(launch: Launcher, folder: Path) -> Front:
    front = launch.start("-n", "4", *program("family", folder))
    front.wait_ready(4)
    # The hopping daemons not counted: while one looks, they are elsewhere.
    wait_until(lambda: len(alive()) >= 4 * 3 + 3, "all of four families")
    return front


def kill_front(front: Front) -> None:
    kill(front.pid)


def kill_group(front: Front) -> None:
    front.signal_group(signal.SIGKILL)


def kill_front_with_stopped_keeper(front: Front) -> None:
    # The guard continues it at once: stopped again and again, it is so at some moment of the death.
    keeper = front.keeper()
    os.kill(keeper, signal.SIGSTOP)
    kill(front.pid)
    os.kill(keeper, signal.SIGSTOP)


def kill_front_with_stopped_guard(front: Front) -> None:
    guard = front.guard()
    os.kill(guard, signal.SIGSTOP)
    wait_until(lambda: is_stopped(guard), "a stopped guard")
    kill(front.pid)


def kill_front_with_both_stopped(front: Front) -> None:
    keeper, guard = front.keeper(), front.guard()
    os.kill(guard, signal.SIGSTOP)
    wait_until(lambda: is_stopped(guard), "a stopped guard")
    os.kill(keeper, signal.SIGSTOP)
    wait_until(lambda: is_stopped(keeper), "a stopped keeper")
    kill(front.pid)
    os.kill(guard, signal.SIGCONT)


def kill_front_with_stopped_workers(front: Front) -> None:
    for worker in front.workers():
        with contextlib.suppress(ProcessLookupError):  # a daemon that has hopped on
            os.kill(worker, signal.SIGSTOP)
    kill(front.pid)


@pytest.mark.parametrize(
    "end",
    [
        kill_front,
        kill_group,
        kill_front_with_stopped_keeper,
        kill_front_with_stopped_guard,
        kill_front_with_both_stopped,
        kill_front_with_stopped_workers,
    ],
    ids=lambda end: end.__name__,
)
def test_nothing_outlives_the_job(launch: Launcher, tmp_path: Path, end: Callable[[Front], None]) -> None:
    front = start_families(launch, tmp_path)
    end(front)
    assert everything_is_gone(1.0), alive()
    assert front.end().status == -signal.SIGKILL


def test_killed_keeper_leaves_nothing_and_the_front_says_so(launch: Launcher, tmp_path: Path) -> None:
    front = start_families(launch, tmp_path)
    kill(front.keeper())
    assert everything_is_gone(1.0), alive()
    ended = front.end()
    assert ended.status == 1
    assert ended.lines == [
        "nativelaunch: supervisor lost: the keeper was killed, the ranks were ended with it and their status is unknown"
    ]


def test_keeper_killed_while_its_guard_is_stopped_leaves_nothing(launch: Launcher, tmp_path: Path) -> None:
    front = start_families(launch, tmp_path)
    keeper, guard = front.keeper(), front.guard()
    os.kill(guard, signal.SIGSTOP)
    wait_until(lambda: is_stopped(guard), "a stopped guard")
    kill(keeper)
    assert everything_is_gone(1.0), alive()
    assert front.end().status == 1


def test_killed_guard_ends_nothing_and_is_told(launch: Launcher, tmp_path: Path) -> None:
    said = tmp_path / "stderr"
    with said.open("wb") as stderr:
        front = launch.start("-n", "4", *program("family", tmp_path), stderr=stderr)
    front.wait_ready(4)
    kill(front.guard())
    wait_until(
        lambda: "nativelaunch: the guard was killed; the job goes on\n" in said.read_text(), "a word of it"
    )
    assert front.process.poll() is None
    assert len(alive()) >= 4 * 3
    kill(front.pid)
    assert everything_is_gone(1.0), alive()


@pytest.mark.parametrize("victim", ["front", "keeper"])
def test_daemons_are_asked_before_they_are_killed(launch: Launcher, tmp_path: Path, victim: str) -> None:
    daemon = (
        'trap "touch $1/asked.$RANK.$2; exit" TERM; touch $1/$RANK.$2.ready; while :; do sleep 0.01; done'
    )
    body = "for i in 1 2 3; do setsid sh -c '" + daemon + '\' sh "$0" $i & done; exec sleep 1000'
    for run in range(3):
        folder = tmp_path / str(run)
        folder.mkdir()
        front = launch.start("-n", "4", "--no-python", "sh", "-c", body, folder)
        front.folder = folder
        front.wait_ready(12)
        kill(front.pid if victim == "front" else front.keeper())
        assert everything_is_gone(1.0), alive()
        front.end()
        assert len(list(folder.glob("asked.*"))) == 12, run


def test_job_without_its_guard_ends_as_it_would(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start(
        "-n",
        "2",
        "--no-python",
        "sh",
        "-c",
        'touch "$0/$RANK.ready"; while [ ! -e "$0/go" ]; do sleep 0.01; done; exit $((RANK * 7))',
        tmp_path,
    )
    front.wait_ready(2)
    kill(front.guard())
    wait_until(lambda: not named("nl-guard"), "the end of the guard")
    (tmp_path / "go").touch()
    ended = front.end()
    assert ended.status == 7
    assert "exited with 7" in ended.err


def test_families_are_swept_after_a_normal_end(launch: Launcher, tmp_path: Path) -> None:
    start = time.monotonic()
    front = launch.start("-n", "4", *program("family", tmp_path, "leave"))
    front.wait_ready(4)
    ready = time.monotonic()
    ended = front.end(timeout=60)
    # What is left gets SIGTERM and has the sweep grace, 2 s.
    assert time.monotonic() - ready < 2.0 + 1.0, time.monotonic() - start
    assert ended.status == 0
    (line,) = ended.lines
    assert line.startswith("nativelaunch: ")
    assert line.endswith(" processes that the ranks had left behind were ended")
    assert not alive()


def test_families_are_gone_with_the_grace_after_a_signal(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start("-n", "4", "--grace", "1", *program("family", tmp_path))
    front.wait_ready(4)
    start = time.monotonic()
    front.signal(signal.SIGTERM)
    ended = front.end()
    assert time.monotonic() - start < 1.0 + 1.0
    assert ended.status == 143
    assert not alive()


def test_stopped_worker_gets_its_sigterm(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start("-n", "2", *program("log_signals", tmp_path))
    front.wait_ready(2)
    stopped = front.workers()[1]
    os.kill(stopped, signal.SIGSTOP)
    wait_until(lambda: is_stopped(stopped), "a stopped worker")
    front.signal(signal.SIGTERM)
    ended = front.end(timeout=5)
    assert ended.status == 143
    assert [seen.count("SIGTERM") for seen in signals_seen(tmp_path).values()] == [1, 1]


def test_stopped_leftover_gets_its_sigterm(launch: Launcher) -> None:
    start = time.monotonic()
    ended = launch.run("--no-python", "sh", "-c", "sleep 1000 & kill -STOP $!")
    assert (ended.status, ended.lines) == (
        0,
        ["nativelaunch: 1 process that the ranks had left behind was ended"],
    )
    # Long before the sweep would kill.
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize("victim", ["front", "group", "keeper", "guard"])
def test_killed_at_any_moment_of_the_start_leaves_nothing(launch: Launcher, victim: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    body = "setsid sleep 1002 & exec sleep 1000"
    for run in range(25):
        front = launch.start("-n", "4", "--no-python", "sh", "-c", body)
        time.sleep(dice.uniform(0.0, 0.012))
        if victim == "front":
            kill(front.pid)
        elif victim == "group":
            front.signal_group(signal.SIGKILL)
        else:
            # A worker that has not executed yet bears the keeper's name, and at first the keeper the guard's.
            guards = named("nl-guard")
            family = guards if victim == "guard" else named("nl-keeper")
            victims = [pid for pid in family if (parent_of(pid) in guards) == (victim == "keeper")]
            for pid in victims:
                kill(pid)
            if not victims or victim == "guard":
                front.signal(signal.SIGTERM)
            assert front.end(timeout=10).status != 0
        assert everything_is_gone(1.0), (run, alive())
        front.end()


@pytest.mark.parametrize("victim", ["front", "keeper"])
def test_killed_with_stubborn_children_half_way_leaves_nothing(launch: Launcher, victim: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    body = "trap '' TERM; sleep 1001 & setsid sleep 1002 & exec sleep 1000"
    for run in range(8):
        front = launch.start("-n", "8", "--no-python", "sh", "-c", body)
        delay = dice.uniform(0.0, 0.02)
        if victim == "front":
            time.sleep(delay)
            kill(front.pid)
        else:
            keeper = front.keeper()
            time.sleep(delay)
            kill(keeper)
        assert everything_is_gone(1.0), (run, alive())
        front.end()


def test_unrelated_processes_live_on(launch: Launcher) -> None:
    # In the front's own group and session: a job ends what it made, and nothing by group or name.
    script = 'sleep 1003 & echo $!; exec "$@"'
    front = launch.start(
        "-n", "2", "--no-python", "sleep", "0.2", command=("sh", "-c", script, "sh", launch.binary)
    )
    wait_until(lambda: front.process.poll() is not None, "the end of the front")
    assert front.process.stdout is not None
    neighbour = int(front.process.stdout.readline())
    assert os.getpgid(neighbour) == front.pid
    assert alive() == [neighbour]
    kill(neighbour)
    assert front.end().status == 0
