"""Nothing outlives a host, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.python.processes import STUBBORN, alive, named, read_lines, run_host, start_host, until

HOST = f"""
import os, sys, time
import nativelaunch
code = {STUBBORN!r}
"""


@contextlib.contextmanager
def start(folder: Path, then: str, count: int = 4, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    with start_host(folder, HOST + then, **options) as host:
        assert read_lines(host, count) == ["ready"] * count
        # Host, guard, keeper, and for each rank itself, a child and a daemon.
        assert len(alive()) >= 3 * count + 3
        yield host


JOB = 'job = nativelaunch.start([sys.executable, "-c", code], nproc_per_node=4)\n'


@pytest.mark.parametrize("forks", [False, True], ids=["", "with a forked child"])
def test_sigkilled_host_leaves_nothing(tmp_path: Path, forks: bool) -> None:
    then = JOB + ("if os.fork() == 0: time.sleep(5); os._exit(0)\n" if forks else "") + "time.sleep(1000)\n"
    with start(tmp_path, then) as host:
        ours = set(alive()) - {host.pid}
        if forks:
            # It holds the socket of the job: only the host's own death counts.
            (child,) = [
                pid for pid in ours if Path(f"/proc/{pid}/cmdline").read_bytes().find(b"host.py") >= 0
            ]
            ours.discard(child)
        host.kill()
        host.wait()
        assert until(lambda: not ours & set(alive()), 1.0), ours & set(alive())
        if forks:
            os.kill(child, signal.SIGKILL)


def test_sigkilled_keeper_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    then = JOB + "outcome = job.wait(); print(outcome.reason, outcome.status, job.poll() is not None)\n"
    with start(tmp_path, then) as host:
        ours = set(alive()) - {host.pid}
        (keeper,) = named("nl-keeper")
        os.kill(keeper, signal.SIGKILL)
        out, err = host.communicate(timeout=20)
        assert until(lambda: not ours & set(alive()), 1.0)
    assert out.split()[0] == b"supervisor-lost", (out, err)
    assert int(out.split()[1]) != 0
    assert host.returncode == 0


def test_sigkilled_guard_ends_nothing_and_a_later_death_leaves_nothing(tmp_path: Path) -> None:
    then = JOB + "print(*[e.kind for e in job.events(timeout=1)], flush=True); time.sleep(1000)\n"
    with start(tmp_path, then) as host:
        ours = set(alive()) - {host.pid}
        (guard,) = named("nl-guard")
        os.kill(guard, signal.SIGKILL)
        assert "guard-lost" in read_lines(host, 1)[0]
        assert len(alive()) >= 13
        host.kill()
        host.wait()
        assert until(lambda: not ours & set(alive()), 1.0)


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("os._exit(5)", 5),
        ("sys.exit(6)", 6),
        ("raise KeyError", 1),
        ("os.kill(os.getpid(), 15)", -15),
        ("os.execv('/bin/sh', ['sh', '-c', 'exit 7'])", 7),
        ("os.abort()", -6),
    ],
)
def test_a_host_that_ends_leaves_nothing(tmp_path: Path, then: str, status: int) -> None:
    with start(tmp_path, JOB + "sys.stdin.read()\n" + then + "\n", stdin=subprocess.PIPE) as host:
        ours = set(alive()) - {host.pid}
        host.communicate(timeout=10)
        assert host.returncode == status
        assert until(lambda: not ours & set(alive()), 2.0), ours & set(alive())


def test_a_host_that_ends_in_a_block_stops_the_job_first(tmp_path: Path) -> None:
    status, _, err = run_host(
        tmp_path,
        """
        import sys, nativelaunch
        with nativelaunch.start(["sleep", "1000"], nproc_per_node=2) as job:
            sys.exit(3)
        """,
    )
    assert status == 3, err
    assert not alive()


INTERRUPTED = """
import os, sys, time
import nativelaunch
code = '''
import os, time
try:
    os.write(1, b"ready\\\\n")
    time.sleep(1000)
except KeyboardInterrupt:
    time.sleep(0.3)
    os.write(1, b"clean\\\\n")
    raise SystemExit(0)
'''
try:
    nativelaunch.run([sys.executable, "-c", code], nproc_per_node=2)
finally:
    print("host", flush=True)
"""


def test_ctrl_c_lets_ranks_clean_up_and_interrupts_the_host(tmp_path: Path) -> None:
    with start_host(tmp_path, INTERRUPTED, start_new_session=True) as host:
        assert read_lines(host, 2) == ["ready"] * 2
        os.killpg(host.pid, signal.SIGINT)
        out, err = host.communicate(timeout=20)
    # No SIGTERM into their clean-up: they have been asked already.
    assert sorted(out.split()) == [b"clean", b"clean", b"host"], err
    assert out.split()[-1] == b"host"
    assert host.returncode == -signal.SIGINT
    assert b"KeyboardInterrupt" in err


def test_an_interrupt_of_the_host_alone_stops_the_ranks(tmp_path: Path) -> None:
    with start_host(
        tmp_path, INTERRUPTED.replace("KeyboardInterrupt", "ValueError"), start_new_session=True
    ) as host:
        assert read_lines(host, 2) == ["ready"] * 2
        begun = time.monotonic()
        os.kill(host.pid, signal.SIGINT)
        out, _ = host.communicate(timeout=20)
    assert out.split() == [b"host"]
    assert host.returncode == -signal.SIGINT
    assert time.monotonic() - begun < 5


def test_a_second_ctrl_c_is_at_once(tmp_path: Path) -> None:
    source = INTERRUPTED.replace("time.sleep(0.3)", 'os.write(1, b"busy\\\\n"); time.sleep(1000)')
    source = source.replace(
        "except KeyboardInterrupt:",
        "except KeyboardInterrupt:\n    import signal; signal.signal(2, signal.SIG_IGN)",
    )
    with start_host(tmp_path, source, start_new_session=True) as host:
        assert read_lines(host, 2) == ["ready"] * 2
        os.killpg(host.pid, signal.SIGINT)
        assert read_lines(host, 2) == ["busy"] * 2
        time.sleep(0.3)
        begun = time.monotonic()
        os.killpg(host.pid, signal.SIGINT)
        out, _ = host.communicate(timeout=20)
    assert out.split() == [b"host"]
    assert host.returncode == -signal.SIGINT
    assert time.monotonic() - begun < 5
