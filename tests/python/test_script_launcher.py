"""Rank 0 is the script itself, the other ranks are copies of it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from nativelaunch import LauncherError, SpawnError, UsageError
from nativelaunch.environments import LocalEnvironment
from nativelaunch.launchers import ChildCommand, ProcessHandle, SubprocessScriptLauncher
from tests.python.processes import STUBBORN, alive, read_lines, run_host, start_host, until

SCRIPT = """
import atexit, ctypes, json, os, signal, sys, threading, time
import nativelaunch
from nativelaunch.environments import LocalEnvironment
from nativelaunch.launchers import SubprocessScriptLauncher

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def rank():
    return int(os.environ.get("LOCAL_RANK", 0))

def meet(count={ranks}):
    # Waits until every rank is here.
    here = os.environ["NATIVELAUNCH_TEST_MEETING"]
    open(here + "/rank" + str(rank()), "w").close()
    while len(os.listdir(here)) < count: time.sleep(0.005)

launcher = SubprocessScriptLauncher(LocalEnvironment(), {ranks}, 1, grace={grace}, peer_grace={peer_grace})
atexit.register(lambda: say("atexit", "0" if "NATIVELAUNCH_CHILD" not in os.environ else "child"))
"""


def script(body: str, ranks: int = 3, grace: float = 20.0, peer_grace: float = 10.0) -> str:
    return SCRIPT.format(ranks=ranks, grace=grace, peer_grace=peer_grace) + textwrap.dedent(body)


def environ(folder: Path) -> dict[str, str]:
    meeting = folder / "meeting"
    meeting.mkdir()
    return {**os.environ, "NATIVELAUNCH_TEST_MEETING": str(meeting)}


def run(folder: Path, body: str, *, timeout: float = 30, **options: Any) -> tuple[int, list[str], str]:
    status, out, err = run_host(folder, script(body, **options), timeout=timeout, env=environ(folder))
    return status, out.splitlines(), err


def start(folder: Path, body: str, **options: Any) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return start_host(folder, script(body, **options), start_new_session=True, env=environ(folder))


def test_launch_runs_the_function_in_every_rank(tmp_path: Path) -> None:
    body = f"""
    before = dict(os.environ)
    def main(a, *, b):
        with open({str(tmp_path)!r} + f"/rank{{rank()}}", "w") as f:
            json.dump({{"environ": dict(os.environ), "got": [a, b], "cwd": os.getcwd(), "argv": sys.argv,
                       "stdin": os.readlink("/proc/self/fd/0")}}, f)
        return rank()
    result = launcher.launch(main, 1, b=2, trainer="not passed on")
    if result == 0:
        assert [process.wait(20) for process in launcher.procs] == [0, 0]
        assert [process.local_rank for process in launcher.procs] == [1, 2]
        launcher.close()
        assert dict(os.environ) == before
        say("result", result)
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    assert "result 0" in out
    told = [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in range(3)]
    for rank, got in enumerate(told):
        environ = got["environ"]
        assert got["got"] == [1, 2]
        assert (environ["LOCAL_RANK"], environ["NODE_RANK"], environ["WORLD_SIZE"]) == (str(rank), "0", "3")
        assert environ["MASTER_ADDR"] == "127.0.0.1"
        assert environ["MASTER_PORT"] == told[0]["environ"]["MASTER_PORT"]
        assert environ["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 3))
        # Else Lightning takes a rank for one of torchelastic.
        assert not {name for name in environ if name == "RANK" or name.startswith("TORCHELASTIC")}
        assert got["cwd"] == told[0]["cwd"]
        assert got["argv"] == told[0]["argv"]
    assert "NATIVELAUNCH_CHILD" not in told[0]["environ"]
    marks = [got["environ"]["NATIVELAUNCH_CHILD"].split(":") for got in told[1:]]
    assert [mark[1] for mark in marks] == ["1", "2"]
    assert [got["environ"]["NATIVELAUNCH_JOB"] for got in told[1:]] == [mark[0] for mark in marks]
    assert [got["stdin"] for got in told[1:]] == ["/dev/null"] * 2


def test_close_restores_the_process(tmp_path: Path) -> None:
    body = """
    def state():
        gone = lambda fd: not os.path.lexists(f"/proc/self/fd/{fd}")
        return {
            "environ": dict(os.environ),
            "handlers": [signal.getsignal(n) for n in signal.valid_signals()],
            "tasks": len(os.listdir("/proc/self/task")),
            "fds": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if not gone(fd)),
        }
    os.environ["WORLD_SIZE"] = "as before"
    launcher.cluster_environment.main_port  # the environment holds its port as long as it lives
    if "NATIVELAUNCH_CHILD" in os.environ:
        os.environ["WORLD_SIZE"] = "3"
    before = state()
    with launcher:
        launcher.launch(lambda: None)
        if rank() == 0:
            assert len(os.listdir("/proc/self/task")) == before["tasks"] + 1
            assert callable(signal.getsignal(signal.SIGTERM)) and callable(signal.getsignal(signal.SIGHUP))
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    if "NATIVELAUNCH_CHILD" not in os.environ:
        after = state()
        assert after == before, {k: (after[k], before[k]) for k in before if after[k] != before[k]}
        say("done")
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    assert "done" in out


def test_interpreter_options_reach_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "s.py"
    path.write_text(
        script("launcher.launch(lambda: say(sys.flags.optimize, sys.flags.dev_mode, sys.argv[1:]))")
    )
    done = subprocess.run(
        [sys.executable, "-O", "-X", "dev", "s.py", "a b", ""],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("atexit")]
    assert lines == ["1 True ['a b', '']"] * 3


WAITS = {
    "sleeping": "time.sleep(1000)",
    "computing": "while True: sum(range(100))",
    "in a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "in a join": "t = threading.Thread(target=time.sleep, args=(1000,), daemon=True); t.start(); t.join()",
    "reading": "os.read(os.pipe()[0], 1)",
    "in C that holds the GIL and can be interrupted": "ctypes.PyDLL(None).sleep(1000); time.sleep(1000)",
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_ranks_death_ends_rank_0_with_its_status_and_its_finalizers(tmp_path: Path, wait: str) -> None:
    body = f"""
    def main():
        meet()
        if rank() == 2:
            time.sleep(0.3)
            os._exit(7)
        try:
            {wait}
        finally:
            if rank() == 0: say("finally")
    launcher.launch(main)
    """
    begun = time.monotonic()
    status, out, err = run(tmp_path, body)
    assert status == 7, err
    assert out[:1] == ["finally"]
    assert "atexit 0" in out
    assert time.monotonic() - begun < 9
    report = [line for line in err.splitlines() if line.startswith("nativelaunch: ")]
    assert report[0].startswith("nativelaunch: rank 2 (local 2, pid ")
    assert " exited with 7 after " in report[0]
    assert report[1:] == ["nativelaunch: rank 1 was ended (SIGTERM)"]
    # The last thing told, after the traceback that shows where rank 0 was.
    assert err.splitlines()[-len(report) :] == report
    assert err.count("WorkerFailed: rank 2 (local 2, pid ") == 1


def test_a_rank_that_is_killed_ends_all_with_137(tmp_path: Path) -> None:
    body = """
    def main():
        if rank() == 1: os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)
    launcher.launch(main)
    """
    status, _, err = run(tmp_path, body)
    assert status == 137, err
    assert " was killed by SIGKILL after " in err


def test_a_rank_that_raises_ends_all_with_1(tmp_path: Path) -> None:
    body = """
    def main():
        if rank() == 1: raise KeyError("rank 1 is wrong")
        time.sleep(1000)
    launcher.launch(main)
    """
    status, _, err = run(tmp_path, body)
    assert status == 1, err
    assert "KeyError: 'rank 1 is wrong'" in err


HOLDS = {
    "swallowing every exception": "while True:\n        try: time.sleep(1000)\n        except BaseException: pass",
    "in C that holds the GIL": "sum(range(10**13))",
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_a_rank_0_that_does_not_end_is_ended_after_the_peer_grace(tmp_path: Path, hold: str) -> None:
    body = f"""
def main():
    if rank() == 1: os._exit(9)
    {hold}
launcher.launch(main)
"""
    begun = time.monotonic()
    status, out, err = run(tmp_path, body, peer_grace=1.0)
    assert status == 9, err
    assert "atexit 0" not in out
    assert 1.0 <= time.monotonic() - begun < 8
    assert " exited with 9 after " in err


def test_a_rank_0_that_ignores_the_failure_and_returns_ends_with_its_status(tmp_path: Path) -> None:
    body = """
    def main():
        if rank() == 1: os._exit(9)
        try: time.sleep(1000)
        except nativelaunch.WorkerFailed as error: say("caught", error.rank)
    launcher.launch(main)
    """
    status, out, err = run(tmp_path, body)
    assert status == 9, err
    assert "caught 1" in out
    assert "atexit 0" in out
    assert "Traceback" not in err


def test_a_rank_that_fails_after_the_function_fails_the_job(tmp_path: Path) -> None:
    body = """
    launcher.launch(lambda: None)
    if rank() == 1:
        time.sleep(0.5)
        os._exit(7)
    """
    status, out, err = run(tmp_path, body)
    assert status == 7, err
    assert "Traceback" not in err
    assert "atexit 0" in out
    assert err.count("nativelaunch: rank 1 (local 1, pid ") == 1


def test_close_raises_what_became_of_the_ranks(tmp_path: Path) -> None:
    body = """
    launcher.launch(lambda: None)
    if rank() == 1:
        time.sleep(0.3)
        os._exit(7)
    if rank() == 0:
        try:
            launcher.close()
        except nativelaunch.WorkerFailed as error:
            say("failed", error.rank, error.outcome.status, launcher.procs[0].returncode)
    """
    status, out, err = run(tmp_path, body)
    assert status == 7, err
    assert "failed 1 7 7" in out


def test_ranks_that_end_after_rank_0_are_waited_for(tmp_path: Path) -> None:
    body = """
    launcher.launch(lambda: None)
    if rank():
        time.sleep(0.5)
        say("saved", rank())
    """
    status, out, err = run(tmp_path, body)
    assert (status, err) == (0, "")
    assert {"saved 1", "saved 2"} <= set(out)


def test_ranks_that_do_not_end_after_rank_0_are_ended_after_the_grace(tmp_path: Path) -> None:
    body = """
    launcher.launch(lambda: None)
    if rank() == 1: time.sleep(1000)
    """
    begun = time.monotonic()
    status, _, err = run(tmp_path, body, grace=1.0)
    assert status == 1
    assert 1.0 <= time.monotonic() - begun < 10
    assert "nativelaunch: rank 0 is done, and other ranks were not 1 s later" in err


def test_an_exception_of_rank_0_ends_the_others_and_is_its_own(tmp_path: Path) -> None:
    body = """
    def main():
        if rank():
            signal.signal(signal.SIGTERM, lambda *_: (say("asked", rank()), os._exit(0)))
        meet()
        if rank() == 0: raise KeyError("rank 0 is wrong")
        time.sleep(1000)
    launcher.launch(main)
    """
    begun = time.monotonic()
    status, out, err = run(tmp_path, body)
    assert status == 1
    assert {"asked 1", "asked 2", "atexit 0"} <= set(out)
    assert "KeyError: 'rank 0 is wrong'" in err
    assert "nativelaunch: " not in err
    assert time.monotonic() - begun < 9


@pytest.mark.parametrize("code", ["", "0"], ids=["sys.exit()", "sys.exit(0)"])
def test_rank_0_may_leave_without_fault_before_the_others(tmp_path: Path, code: str) -> None:
    body = f"""
    def main():
        if rank() == 0: sys.exit({code})
        time.sleep(0.5)
        say("saved", rank())
    launcher.launch(main)
    """
    status, out, err = run(tmp_path, body)
    assert (status, err) == (0, "")
    assert {"saved 1", "saved 2"} <= set(out)


ASKED = """
def main():
    asked = []
    if rank():
        for name in ("TERM", "HUP"):
            signal.signal(getattr(signal, "SIG" + name), lambda *_, name=name: (asked.append(1), say(name, rank())))
    try:
        say("ready")
        while not asked: time.sleep(0.005)
        time.sleep(0.3)
    finally:
        if rank() == 0: say("finally")
launcher.launch(main)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("group", [False, True], ids=["rank 0 alone", "the whole group"])
def test_an_outside_signal_reaches_each_rank_once(
    tmp_path: Path, signum: signal.Signals, group: bool
) -> None:
    with start(tmp_path, ASKED) as host:
        assert read_lines(host, 3) == ["ready"] * 3
        (os.killpg if group else os.kill)(host.pid, signum)
        out, err = host.communicate(timeout=20)
    name = signum.name.removeprefix("SIG")
    lines = out.decode().splitlines()
    assert sorted(line for line in lines if line.startswith(name)) == [f"{name} 1", f"{name} 2"]
    assert {"finally", "atexit 0"} <= set(lines)
    assert host.returncode == 128 + signum, err
    assert b"Traceback" not in err


def test_a_status_chosen_after_the_signal_counts(tmp_path: Path) -> None:
    body = ASKED.replace('say("finally")', "sys.exit(75)")
    with start(tmp_path, body) as host:
        assert read_lines(host, 3) == ["ready"] * 3
        host.terminate()
        host.communicate(timeout=20)
    assert host.returncode == 75


def test_an_outside_signal_ends_a_rank_0_that_does_not_end_after_the_grace(tmp_path: Path) -> None:
    body = """
    def main():
        say("ready")
        while True:
            try: time.sleep(1000)
            except BaseException: pass
    launcher.launch(main)
    """
    with start(tmp_path, body, grace=1.0) as host:
        assert read_lines(host, 3) == ["ready"] * 3
        begun = time.monotonic()
        host.terminate()
        host.communicate(timeout=20)
    assert host.returncode == 143
    assert 1.0 <= time.monotonic() - begun < 5


def test_a_second_signal_is_at_once(tmp_path: Path) -> None:
    body = """
    def main():
        signal.signal(signal.SIGTERM, signal.SIG_IGN) if rank() else None
        say("ready")
        while True:
            try: time.sleep(1000)
            except BaseException: say("again")
    launcher.launch(main)
    """
    with start(tmp_path, body) as host:
        assert read_lines(host, 3) == ["ready"] * 3
        host.terminate()
        assert read_lines(host, 1) == ["again"]
        time.sleep(0.3)
        begun = time.monotonic()
        host.terminate()
        host.communicate(timeout=20)
    assert host.returncode == 143
    assert time.monotonic() - begun < 3


def test_handlers_of_the_program_are_left_alone(tmp_path: Path) -> None:
    body = """
    def mine(*_):
        say("mine")
        sys.exit(5)
    signal.signal(signal.SIGTERM, mine)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    def main():
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        meet()
        if rank() == 1: os._exit(7)
        time.sleep(1000)
    launcher.launch(main)
    """
    status, out, err = run(tmp_path, body, ranks=2)
    # Woken by its own handler, it chose 5; the job's status is the failed rank's.
    assert "mine" in out
    assert status == 7, err


def test_ctrl_c_interrupts_every_rank_once_and_rank_0_as_ever(tmp_path: Path) -> None:
    body = """
    def main():
        try:
            say("ready")
            time.sleep(1000)
        except KeyboardInterrupt:
            time.sleep(0.5)
            say("clean")
            raise
    launcher.launch(main)
    """
    with start(tmp_path, body) as host:
        assert read_lines(host, 3) == ["ready"] * 3
        os.killpg(host.pid, signal.SIGINT)
        out, err = host.communicate(timeout=20)
    lines = out.decode().splitlines()
    assert lines.count("clean") == 3, err
    assert "atexit 0" in lines
    assert host.returncode == -signal.SIGINT
    assert b"WorkerFailed" not in err
    assert b"nativelaunch: " not in err


def test_sigkilled_rank_0_leaves_nothing(tmp_path: Path) -> None:
    body = f"""
    def main():
        if rank():
            exec({STUBBORN!r})
        time.sleep(1000)
    launcher.launch(main)
    """
    with start(tmp_path, body, ranks=4) as host:
        assert read_lines(host, 3) == ["ready"] * 3
        ours = set(alive()) - {host.pid}
        assert len(ours) >= 9
        host.kill()
        host.wait()
        assert until(lambda: not ours & set(alive()), 1.0), ours & set(alive())


@pytest.mark.parametrize("end", ["os._exit(5)", "os.abort()", "os.execv('/bin/sh', ['sh', '-c', 'exit 6'])"])
def test_a_rank_0_that_is_gone_at_once_leaves_nothing(tmp_path: Path, end: str) -> None:
    body = f"""
    def main():
        if rank() == 0: {end}
        time.sleep(1000)
    launcher.launch(main)
    """
    status, _, _ = run(tmp_path, body)
    assert status in (5, 6, -6)
    assert until(lambda: not alive(), 2.0)


def test_the_supervisors_death_ends_rank_0(tmp_path: Path) -> None:
    body = """
    def main():
        if rank() == 1: os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    launcher.launch(main)
    """
    status, out, err = run(tmp_path, body)
    assert status == 1
    assert "atexit 0" in out
    assert "nativelaunch: supervisor lost" in err


def test_a_further_launch_starts_nobody(tmp_path: Path) -> None:
    body = """
    def main(round):
        say(round, rank(), os.getpid())
    launcher.launch(main, "one")
    launcher.launch(main, "two")
    SubprocessScriptLauncher(LocalEnvironment(), 3, 1).launch(main, "three")
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    words = [line.split() for line in out if not line.startswith("atexit")]
    pids = {word[2] for word in words}
    assert len(pids) == 3
    assert sorted(word[:2] for word in words) == [
        [n, str(r)] for n in ("one", "three", "two") for r in range(3)
    ]


def test_a_further_launch_with_other_counts_is_refused_in_every_rank(tmp_path: Path) -> None:
    body = """
    launcher.launch(lambda: None)
    try:
        SubprocessScriptLauncher(LocalEnvironment(), 2, 1).launch(lambda: say("ran"))
    except nativelaunch.LauncherError as error:
        say(rank(), error)
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    text = (
        "cannot launch 2 processes on 1 node: the ranks of this script were started as 3 processes on 1 node"
    )
    assert sorted(line for line in out if text in line) == [
        f"{rank} {text}: use the same counts" for rank in range(3)
    ]
    assert "ran" not in out


def test_a_further_launch_without_a_rank_is_refused(tmp_path: Path) -> None:
    body = """
    launcher.launch(lambda: None)
    if rank() == 1: sys.exit(0)
    if rank() == 0:
        launcher.procs[0].wait()
        try:
            launcher.launch(lambda: say("ran"))
        except nativelaunch.LauncherError as error:
            say(error)
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    assert any(line.startswith("cannot launch again: local rank 1 (pid ") for line in out)
    assert "ran" not in out


def test_a_launch_after_close_is_refused_in_every_rank(tmp_path: Path) -> None:
    body = """
    with launcher:
        launcher.launch(lambda: None)
    try:
        with SubprocessScriptLauncher(LocalEnvironment(), 3, 1) as second:
            second.launch(lambda: say("ran"))
    except nativelaunch.LauncherError as error:
        say("refused", error)
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    assert sum(line.startswith("refused cannot launch after close()") for line in out) == 3
    assert "ran" not in out


def test_a_launch_after_close_may_have_a_command_of_its_own(tmp_path: Path) -> None:
    body = """
    from nativelaunch.launchers import ChildCommand
    class Part(SubprocessScriptLauncher):
        def child_command(self, local_rank):
            command = super().child_command(local_rank)
            return ChildCommand(("sh", "-c", "echo part $LOCAL_RANK of $WORLD_SIZE"), command.cwd, command.env)
    for _ in range(2):
        with Part(LocalEnvironment(), 2, 1) as part:
            part.launch(lambda: say("part", rank(), "of", os.environ["WORLD_SIZE"]))
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    assert sorted(out) == ["atexit 0", *["part 0 of 2"] * 2, *["part 1 of 2"] * 2]


@pytest.mark.parametrize("place", ["watch", "_limit_threads"])
@pytest.mark.parametrize("what", ["a rank's death", "SIGTERM", "Ctrl-C"])
def test_what_comes_before_rank_0_begins_is_raised_in_its_place(
    tmp_path: Path, place: str, what: str
) -> None:
    body = f"""
    from nativelaunch.launchers import ChildCommand
    before = signal.getsignal(signal.SIGTERM), len(os.listdir("/proc/self/task"))
    class Slow(SubprocessScriptLauncher):
        def child_command(self, local_rank):
            return ChildCommand(("sh", "-c", {"exit 7" if "rank" in what else "exec sleep 1000"!r}))
        def {place}(self, *arguments):
            super().{place}(*arguments)
            if {what!r} == "SIGTERM": os.kill(os.getpid(), signal.SIGTERM)
            if {what!r} == "Ctrl-C": os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
            say("slept")
    try:
        with Slow(LocalEnvironment(), 2, 1) as slow: slow.launch(say, "began")
    except nativelaunch.WorkerFailed as error: say("failed", error.outcome.status)
    except SystemExit as error: say("asked", error.code)
    except KeyboardInterrupt: say("interrupted")
    assert before == (signal.getsignal(signal.SIGTERM), len(os.listdir("/proc/self/task")))
    assert "LOCAL_RANK" not in os.environ
    """
    status, out, err = run(tmp_path, body)
    expected = {
        "a rank's death": (7, ["slept", "failed 7", "atexit 0"]),
        "SIGTERM": (143, ["slept", "asked 143", "atexit 0"]),
        "Ctrl-C": (0, ["interrupted", "atexit 0"]),
    }
    assert (status, out) == expected[what], err


OWN_COMMAND = """
from nativelaunch.launchers import ChildCommand
class Part(SubprocessScriptLauncher):
    def __init__(self, code):
        super().__init__(LocalEnvironment(), 2, 1, peer_grace={peer_grace})
        self.code = code
    def child_command(self, local_rank):
        return ChildCommand(("sh", "-c", self.code), None, super().child_command(local_rank).env)
def fail():
    try:
        with Part("exit 7") as part: part.launch(time.sleep, 1000)
    except nativelaunch.WorkerFailed as error:
        say("caught", error.rank, error.outcome.status)
"""

LATER = {
    "a launch that ends well": ('with Part("exit 0") as part: part.launch(say, "again")', 0, None),
    "one that is not closed": ('Part("exit 0").launch(say, "again")', 0, None),
    "one that fails": (
        """
try:
    with Part("exit 9") as part: part.launch(time.sleep, 1000)
except nativelaunch.WorkerFailed: say("again")
""",
        9,
        "exited with 9",
    ),
    "nothing": ('say("again")', 7, "exited with 7"),
    "waiting beyond the peer grace": ('time.sleep(1.5); say("again")', 7, "exited with 7"),
    "a status of its own": ('say("again"); sys.exit(3)', 7, "exited with 7"),
    "one whose rank 0 raises": (
        """
try:
    with Part("sleep 1000") as part: part.launch(lambda: 1 / 0)
except ZeroDivisionError: say("again")
""",
        7,
        "exited with 7",
    ),
}


@pytest.mark.parametrize(("later", "status", "report"), LATER.values(), ids=LATER)
def test_a_caught_failure_is_the_status_until_a_later_launch_ends_well(
    tmp_path: Path, later: str, status: int, report: str | None
) -> None:
    peer_grace = 1.0 if "1.5" in later else 10.0
    body = OWN_COMMAND.format(peer_grace=peer_grace) + "fail()\n" + later
    got, out, err = run(tmp_path, body)
    assert got == status, err
    assert out == ["caught 1 7", "again", "atexit 0"]
    if report is None:
        assert err == ""
    else:
        (line,) = err.splitlines()
        assert line.startswith("nativelaunch: rank 1 (local 1, pid ")
        assert report in line


def test_a_thread_may_launch(tmp_path: Path) -> None:
    body = """
    def main():
        assert threading.current_thread() is not threading.main_thread()
        say(rank())
    thread = threading.Thread(target=launcher.launch, args=[main])
    thread.start()
    thread.join()
    if rank() == 0:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    assert sorted(line for line in out if line.isdigit()) == ["0", "1", "2"]


def test_a_failure_in_a_launch_by_a_thread_ends_the_process_after_the_peer_grace(tmp_path: Path) -> None:
    body = """
    def main():
        if rank() == 1: os._exit(7)
        time.sleep(1000)
    thread = threading.Thread(target=launcher.launch, args=[main])
    thread.start()
    thread.join()
    """
    begun = time.monotonic()
    status, _, err = run(tmp_path, body, peer_grace=1.0)
    assert status == 7, err
    assert 1.0 <= time.monotonic() - begun < 8


def test_a_fork_of_rank_0_takes_signals_and_ends_as_without_us(tmp_path: Path) -> None:
    body = """
    import warnings
    warnings.simplefilter("ignore")
    def main():
        if rank(): return
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            # Python forgets signals that come before it has got over the fork.
            os.write(writer, b"x")
            time.sleep(1000)
        os.read(reader, 1)
        os.kill(child, signal.SIGTERM)
        say("fork ended by", -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        child = os.fork()
        if child == 0:
            sys.exit(3)
        say("fork ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    launcher.launch(main)
    """
    status, out, err = run(tmp_path, body)
    assert status == 0, err
    assert {"fork ended by 15", "fork ended with 3"} <= set(out)


def test_processes_can_be_signalled_and_waited_for(tmp_path: Path) -> None:
    body = """
    def main():
        if rank():
            signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
            say("ready")
            time.sleep(1000)
        first, second = launcher.procs
        assert first.poll() is None and first.returncode is None
        try:
            first.wait(0.01)
        except TimeoutError as error:
            say(error)
        while "1" not in open(marker).read() or "2" not in open(marker).read(): time.sleep(0.01)
        launcher.kill(signal.SIGUSR1)
        say("codes", first.wait(20), second.wait())
        first.kill(); first.terminate(); first.send_signal(10)
        assert first.returncode == 0
    """.replace('say("ready")', 'open(marker, "a").write(str(rank()))')
    body = f"marker = {str(tmp_path / 'marker')!r}\nopen(marker, 'a').close()\n" + textwrap.dedent(body)
    status, out, err = run(tmp_path, body + "launcher.launch(main)\n")
    assert status == 0, err
    assert "codes 0 0" in out
    assert any(line.startswith("rank 1 (pid ") and "has not ended after 0.01 s" in line for line in out)


def test_ranks_that_others_create_just_run_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launcher = SubprocessScriptLauncher(LocalEnvironment(), 2, 1)
    assert launcher.launch(lambda a: a, 3) == 3
    assert launcher.procs == []
    launcher.close()


def test_one_process_needs_no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATIVELAUNCH_BIN", "/nowhere")
    seen: list[str] = []
    with SubprocessScriptLauncher(LocalEnvironment(), 1, 1) as launcher:
        assert (
            launcher.launch(lambda: seen.append(os.environ["LOCAL_RANK"] + os.environ["WORLD_SIZE"])) is None
        )
        with pytest.raises(
            LauncherError, match=r"cannot launch 2 processes on 1 node: .* as 1 processes on 1 node"
        ):
            SubprocessScriptLauncher(LocalEnvironment(), 2, 1).launch(lambda: None)
    assert seen == ["01"]
    assert not launcher.is_interactive_compatible


def test_settings_are_validated_before_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(LocalEnvironment):
        def validate_settings(self, num_devices: int, num_nodes: int) -> None:
            raise KeyError(num_devices, num_nodes)

    for name in (None, "LOCAL_RANK"):
        if name:
            monkeypatch.setenv(name, "0")
        with pytest.raises(KeyError):
            SubprocessScriptLauncher(Strict(), 2, 1).launch(lambda: None)


def test_only_local_rank_0_starts_ranks() -> None:
    class Misplaced(LocalEnvironment):
        def local_rank(self) -> int:
            return 1

    with pytest.raises(
        LauncherError, match="local rank 0 must start the ranks, and this process has local rank 1"
    ):
        SubprocessScriptLauncher(Misplaced(), 2, 1).launch(lambda: None)


def test_a_rank_that_cannot_start_leaves_the_process_as_it_was() -> None:
    class Broken(SubprocessScriptLauncher):
        def child_command(self, local_rank: int) -> ChildCommand:
            return ChildCommand(("/nowhere/python",))

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SpawnError) as caught:
        Broken(LocalEnvironment(), 3, 1).launch(lambda: None)
    assert caught.value.rank == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_seams_can_be_replaced() -> None:
    calls: list[object] = []

    class Fake(SubprocessScriptLauncher):
        def child_command(self, local_rank: int) -> ChildCommand:
            calls.append(local_rank)
            return ChildCommand(("true",))

        def spawn(self, commands: object) -> list[ProcessHandle]:
            calls.append(commands)
            return []

        def watch(self, procs: object) -> None:
            calls.append(procs)

    with Fake(LocalEnvironment(), 3, 1) as launcher:
        assert launcher.launch(lambda: 5) == 5
        launcher.kill(signal.SIGTERM)
    assert calls == [1, 2, [ChildCommand(("true",))] * 2, []]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 1), "num_processes must be at least 1: 0"),
        ((2, 0), "num_nodes must be at least 1: 0"),
        (("2", 1), "num_processes must be a whole number: '2'"),
    ],
)
def test_bad_counts_are_refused(arguments: tuple[Any, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SubprocessScriptLauncher(LocalEnvironment(), *arguments)
    with pytest.raises(UsageError, match="grace must be a number of seconds of at least 0: -1"):
        SubprocessScriptLauncher(LocalEnvironment(), 1, 1, grace=-1)


def test_ranks_meet_in_a_process_group_of_torch(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    body = """
    def main():
        import torch, torch.distributed as dist
        dist.init_process_group("gloo", rank=rank(), world_size=int(os.environ["WORLD_SIZE"]))
        total = torch.tensor([rank() + 1.0])
        dist.all_reduce(total)
        dist.destroy_process_group()
        say("sum", total.item(), torch.get_num_threads())
    launcher.launch(main)
    """
    status, out, err = run(tmp_path, body, ranks=2, timeout=90)
    assert status == 0, err
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert out.count(f"sum 3.0 {threads}") == 2
