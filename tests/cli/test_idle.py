"""While nothing happens nothing of ours runs, and it is small."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.fronts import program, wait_until

if TYPE_CHECKING:
    from tests.cli.fronts import Front, Launcher


def switches(pids: list[int]) -> list[int]:
    """Context switches of each process so far, of both kinds."""
    counts = []
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        counts.append(sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line))
    return counts


def ours(front: Front) -> list[int]:
    return [front.pid, front.keeper(), front.guard()]


def test_idle_is_silent(launch: Launcher) -> None:
    front = launch.start("-n", "4", "--no-python", "sleep", "1000")
    wait_until(lambda: len(front.workers()) == 4, "four workers")
    pids = ours(front)

    def is_settled() -> bool:
        before = switches(pids)
        time.sleep(0.1)
        return switches(pids) == before

    wait_until(is_settled, "an end of the start")
    before = switches(pids)
    time.sleep(3.0)
    assert switches(pids) == before
    front.signal(15)
    assert front.end().status == 143


def test_front_guard_and_keeper_are_small(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start("-n", "4", *program("log_signals", tmp_path))
    front.wait_ready(4)
    sizes = {}
    for pid in ours(front):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes[pid] = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    print(f"PSS in kB: {sizes}, together {sum(sizes.values())}")
    front.signal(15)
    assert front.end().status == 143
    is_debug = b".debug_info" in Path(launch.binary).read_bytes()
    # What is not optimised is larger, and is not what is installed.
    assert sum(sizes.values()) <= (12_000 if is_debug else 4_000)
