"""Signals reach each worker exactly once, and decide when the job ends and with which status."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.fronts import everything_is_gone, program, signals_seen, wait_until
from tests.python.processes import alive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.fronts import Launcher

TERMINATING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
STUBBORN = 'trap "" TERM; touch "$0/$RANK.ready"; exec sleep 1000'


def each(count: int, *names: str) -> dict[str, list[str]]:
    return {str(rank): list(names) for rank in range(count)}


@pytest.mark.parametrize("signum", TERMINATING, ids=lambda s: s.name)
@pytest.mark.parametrize("to", ["front", "group"])
def test_a_terminating_signal_reaches_each_worker_once(
    launch: Launcher, tmp_path: Path, signum: signal.Signals, to: str
) -> None:
    front = launch.start("-n", "4", *program("log_signals", tmp_path))
    front.wait_ready(4)
    if to == "front":
        front.signal(signum)
    else:
        front.signal_group(signum)
    ended = front.end()
    assert ended.status == 128 + signum
    assert signals_seen(tmp_path) == each(4, signum.name)
    assert ended.lines == [
        f"nativelaunch: ended by {signum.name}",
        "nativelaunch: ranks 0-3 then exited with 0",
    ]


@pytest.mark.parametrize("to", ["front", "group"])
@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGCONT,
        signal.SIGURG,
        signal.SIGIO,
        signal.SIGPWR,
        signal.SIGALRM,
        signal.SIGRTMIN + 3,
    ],
    ids=str,
)
def test_another_signal_is_passed_on_once_and_the_front_lives(
    launch: Launcher, tmp_path: Path, signum: int, to: str
) -> None:
    front = launch.start("-n", "2", *program("log_signals", tmp_path))
    front.wait_ready(2)
    if to == "front":
        front.signal(signum)
    else:
        front.signal_group(signum)
    wait_until(lambda: all(signals_seen(tmp_path).values()), "a note by each worker")
    front.signal(signal.SIGTERM)
    assert front.end().status == 143
    name = signal.Signals(signum).name if signum < 32 else f"SIG{signum}"
    assert signals_seen(tmp_path) == each(2, name, "SIGTERM")


def test_status_chosen_by_a_rank_after_the_signal_wins(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start("-n", "4", *program("log_signals", tmp_path, "0.1", "2=75"))
    front.wait_ready(4)
    front.signal(signal.SIGTERM)
    ended = front.end()
    assert ended.status == 75
    assert ended.lines[0] == "nativelaunch: ended by SIGTERM"
    assert ended.lines[1].startswith("nativelaunch: rank 2 (")
    assert " exited with 75 after " in ended.lines[1]


def test_death_by_the_signal_itself_is_its_status(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start(
        "-n", "2", "--no-python", "sh", "-c", 'touch "$0/$RANK.ready"; exec sleep 1000', tmp_path
    )
    front.wait_ready(2)
    front.signal(signal.SIGHUP)
    ended = front.end()
    assert ended.status == 129
    assert ended.lines == [
        "nativelaunch: ended by SIGHUP",
        "nativelaunch: ranks 0, 1 were ended (SIGHUP)",
    ]


@pytest.mark.parametrize("to", ["front", "group"])
def test_two_signals_within_50_ms_are_one(launch: Launcher, tmp_path: Path, to: str) -> None:
    front = launch.start("-n", "2", *program("log_signals", tmp_path, "0.6"))
    front.wait_ready(2)
    send = front.signal if to == "front" else front.signal_group
    send(signal.SIGTERM)
    time.sleep(0.03)
    send(signal.SIGTERM)
    ended = front.end()
    # Nobody was killed. A group's second signal is the sender's doing, and beyond our power.
    assert ended.status == 143
    assert "nativelaunch: ranks 0, 1 then exited with 0" in ended.lines
    if to == "front":
        assert signals_seen(tmp_path) == each(2, "SIGTERM")


@pytest.mark.parametrize("to", ["front", "group"])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_a_second_signal_is_at_once(
    launch: Launcher, tmp_path: Path, to: str, second: signal.Signals
) -> None:
    front = launch.start("-n", "2", "--grace", "60", *program("log_signals", tmp_path, "0", "never"))
    front.wait_ready(2)
    send = front.signal if to == "front" else front.signal_group
    send(signal.SIGTERM)
    wait_until(lambda: all(signals_seen(tmp_path).values()), "a note by each worker")
    time.sleep(0.3)
    send(second)
    ended = front.end(timeout=1.0)
    assert ended.status == 143
    assert "nativelaunch: ranks 0, 1 were ended (SIGKILL)" in ended.lines


@pytest.mark.parametrize("option", ["--grace", "--shutdown-timeout"])
def test_workers_that_ignore_sigterm_are_killed_at_the_grace(
    launch: Launcher, tmp_path: Path, option: str
) -> None:
    front = launch.start("-n", "2", option, "0.7", "--no-python", "sh", "-c", STUBBORN, tmp_path)
    front.wait_ready(2)
    start = time.monotonic()
    front.signal(signal.SIGTERM)
    ended = front.end()
    assert 0.7 <= time.monotonic() - start < 0.7 + 1.0
    assert ended.status == 143
    assert "nativelaunch: ranks 0, 1 were ended (SIGKILL)" in ended.lines


def test_the_grace_ends_with_the_last_worker(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start("-n", "2", "--grace", "60", *program("log_signals", tmp_path, "0"))
    front.wait_ready(2)
    front.signal(signal.SIGTERM)
    assert front.end(timeout=5).status == 143


def test_peers_that_ignore_sigterm_are_killed_at_the_peer_grace(launch: Launcher, tmp_path: Path) -> None:
    body = f'[ $RANK = 1 ] || {{ {STUBBORN}; }}; touch "$0/1.ready"; read line; exit 7'
    body = body.replace("read line", 'while [ ! -e "$0/go" ]; do sleep 0.01; done')
    front = launch.start("-n", "3", "--peer-grace", "0.7", "--no-python", "sh", "-c", body, tmp_path)
    front.wait_ready(3)
    start = time.monotonic()
    (tmp_path / "go").touch()
    ended = front.end()
    assert 0.7 <= time.monotonic() - start < 0.7 + 1.0
    assert ended.status == 7
    assert ended.lines[1:] == ["nativelaunch: ranks 0, 2 were ended (SIGKILL)"]


def test_a_signal_shortens_the_peer_grace(launch: Launcher, tmp_path: Path) -> None:
    body = f"[ $RANK = 1 ] && exit 7; {STUBBORN}"
    front = launch.start(
        "-n", "2", "--grace", "0.2", "--peer-grace", "60", "--no-python", "sh", "-c", body, tmp_path
    )
    front.wait_ready(1)
    wait_until(lambda: len(front.workers()) == 1, "the death of rank 1")
    front.signal(signal.SIGTERM)
    ended = front.end(timeout=5)
    # The rank that failed is why.
    assert ended.status == 7


def test_nohup_lasts_in_front_and_workers(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start(
        "-n",
        "2",
        "--no-python",
        "sh",
        "-c",
        'grep SigIgn /proc/self/status > "$0/$RANK.ready"; exec sleep 1000',
        tmp_path,
        command=("nohup", launch.binary),
        stderr=os.open(os.devnull, os.O_WRONLY),
    )
    front.wait_ready(2)
    wait_until(lambda: all(path.read_text() for path in tmp_path.glob("*.ready")), "the workers' masks")
    front.signal(signal.SIGHUP)
    front.signal_group(signal.SIGHUP)
    for path in tmp_path.glob("*.ready"):
        assert int(path.read_text().split()[1], 16) & 1
    time.sleep(0.2)
    assert len(front.workers()) == 2
    front.signal(signal.SIGTERM)
    assert front.end().status == 143


def test_failure_soon_after_an_ignored_hangup_ends_the_others(launch: Launcher, tmp_path: Path) -> None:
    # The hang-up reached nobody: it explains no death, and is no end that the others have heard of.
    body = 'touch "$0/$RANK.ready"; [ $RANK = 1 ] || exec sleep 1000; '
    body += 'while [ ! -e "$0/go" ]; do sleep 0.01; done; kill -SEGV $$'
    front = launch.start(
        "-n",
        "2",
        "--no-python",
        "sh",
        "-c",
        body,
        tmp_path,
        command=("nohup", launch.binary),
    )
    front.wait_ready(2)
    front.signal_group(signal.SIGHUP)
    (tmp_path / "go").touch()
    ended = front.end(timeout=5)
    assert ended.status == 139
    assert ended.lines[-1] == "nativelaunch: rank 0 was ended (SIGTERM)"


def test_sigterm_right_after_the_start_leaves_nothing(launch: Launcher) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for run in range(100):
        front = launch.start("-n", "4", "--no-python", "sleep", "1000")
        time.sleep(dice.uniform(0.0, 0.009))
        front.signal(signal.SIGTERM)
        ended = front.end(timeout=5)
        assert ended.status in (-signal.SIGTERM, 143), (run, ended)
        assert everything_is_gone(1.0), (run, alive())


def test_sigterm_to_the_group_while_workers_start_is_missed_by_none(launch: Launcher) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for run in range(60):
        front = launch.start("-n", "32", "--no-python", "sleep", "1000")
        time.sleep(dice.uniform(0.002, 0.02))
        front.signal_group(signal.SIGTERM)
        # Far below the grace, at which a worker that missed it would be killed.
        ended = front.end(timeout=10)
        assert ended.status in (-signal.SIGTERM, 143), (run, ended)
        assert "SIGKILL" not in ended.err, (run, ended)


@pytest.mark.parametrize(
    ("rank_1", "what", "more"),
    [("exit 7", "a rank has failed", 2), ("while :; do sleep 0.01; done", "asked to end", 1)],
)
def test_ranks_that_take_long_to_end_are_waited_for_aloud(
    launch: Launcher, tmp_path: Path, rank_1: str, what: str, more: int
) -> None:
    body = f"""
    trap '' TERM
    touch "$0/$RANK.ready"
    while ! [ -e "$0/0.ready" ]; do sleep 0.01; done
    if [ $RANK = 1 ]; then {rank_1}; fi
    while :; do sleep 0.01; done
    """
    front = launch.start(
        "-n", "2", "--grace", "60", "--peer-grace", "60", "--no-python", "sh", "-c", body, tmp_path
    )
    front.wait_ready(2)
    if what == "asked to end":
        front.signal(signal.SIGTERM)
    assert front.process.stderr is not None
    line = front.process.stderr.readline().decode()
    assert line.startswith(f"nativelaunch: {what}: the ranks have 60 s to end in order; ")
    assert line.endswith(f"SIGTERM {'twice' if more == 2 else 'again'} kills them at once\n")
    # What it says is so. More than 250 ms lie between two signals, or they are one.
    for _ in range(more):
        time.sleep(0.3)
        front.signal(signal.SIGTERM)
    assert front.end(timeout=5).status == (7 if more == 2 else 143)
