"""Processes that are neither quite alive nor quite dead."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cli.fronts import PROGRAMS, PYTHON, program, stat, wait_until

if TYPE_CHECKING:
    from tests.cli.fronts import Launcher


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").glob("*")))


def test_a_daemon_whose_first_thread_has_ended_is_swept(launch: Launcher, tmp_path: Path) -> None:
    ended = launch.run("-n", "1", *program("headless", tmp_path), timeout=8)
    daemons = [int(path.stem) for path in tmp_path.glob("*.daemon")]
    assert ended.status == 0
    assert len(daemons) == 1
    assert threads_of(daemons[0]) <= 1, "at most a zombie that nobody has reaped yet"


def test_a_worker_that_a_debugger_holds_is_waited_for_silently(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start("-n", "1", "--no-python", "sleep", "1000")
    wait_until(lambda: len(front.workers()) == 1, "the worker")
    (worker,) = front.workers()
    keeper = front.keeper()
    said = tmp_path / "traced"
    tracer = subprocess.Popen([*PYTHON, str(PROGRAMS / "tracer.py"), str(worker), str(said)])
    try:
        wait_until(lambda: said.exists() and said.read_text(), "the tracer")
        assert said.read_text() == "0", "ptrace is not permitted"
        os.kill(worker, signal.SIGKILL)  # whatever else would stop it for its tracer
        wait_until(lambda: stat(worker)[0] == "Z", "the worker's death")

        def ticks() -> int:
            return sum(map(int, stat(keeper)[11:13]))

        def looks() -> int:
            status = Path(f"/proc/{keeper}/status").read_text().split()
            return int(status[status.index("voluntary_ctxt_switches:") + 1])

        before = ticks(), looks()
        time.sleep(0.5)  # nothing to wait for: it is the absence of work that is looked at
        used, looked = ticks() - before[0], looks() - before[1]
        assert used <= 5, f"the keeper used {used} of 50 ticks"
        assert looked <= 5, f"the keeper looked {looked} times"
    finally:
        tracer.kill()
        tracer.wait()
    assert front.end().status == 128 + signal.SIGKILL
