"""Ctrl-C while ranks are being started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.python.processes import run_host

HOST = """
import os, signal, sys, threading, time
from nativelaunch import run, start
from tests.python.processes import alive, until

def interrupt(delay):
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)

def fds(): return len(os.listdir("/proc/self/fd"))

before = fds()
where = []
for delay in map(float, sys.argv[1:]):
    job = None
    thread = threading.Thread(target=interrupt, args=[delay])
    try:
        thread.start()
        job = start(["sleep", "1000"], nproc_per_node=300)
        time.sleep(20)
    except KeyboardInterrupt:
        where.append("during" if job is None else "after")
        if job is not None: job.kill()
        del job
    else:
        sys.exit("no KeyboardInterrupt")
    thread.join()
    # The guard ends a moment after the job.
    assert until(lambda: not alive(), 1.0), len(alive())
    assert fds() == before
    assert run(["true"], nproc_per_node=3).status == 0
print(*where)
"""


@pytest.mark.parametrize("half", range(2))
def test_ctrl_c_while_300_ranks_start_leaves_nothing_and_the_process_can_launch_again(
    tmp_path: Path, half: int
) -> None:
    root = str(Path(__file__).parents[2])
    delays = [str(0.001 * milliseconds + 0.0005 * half) for milliseconds in (0, 2, 5, 10, 20, 40, 80)]
    status, out, err = run_host(tmp_path, HOST, *delays, timeout=100, env={**os.environ, "PYTHONPATH": root})
    assert (status, err) == (0, "")
    assert "during" in out


def test_a_handler_that_raises_ends_the_wait_for_a_supervisor_that_says_nothing(tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    # Ends when its socket is shut, as a real one does.
    mute.write_text("#!/bin/sh\nexec cat <&3\n")
    mute.chmod(0o755)
    source = """
    import os, signal, threading, time
    from nativelaunch import start
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    begun = time.monotonic()
    try:
        start(["true"])
    except KeyboardInterrupt:
        assert time.monotonic() - begun < 10
        os.write(1, b"interrupted")
    """
    status, out, err = run_host(tmp_path, source, env={**os.environ, "NATIVELAUNCH_BIN": str(mute)})
    assert (status, out, err) == (0, "interrupted", "")
