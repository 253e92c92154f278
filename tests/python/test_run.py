"""What `run` gives workers, and what it says about their end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import nativelaunch
from nativelaunch import RankOptions, WorkerFailed, run, start
from nativelaunch.arguments import Text
from tests.python.processes import STUBBORN, named


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("status", [0, 1, 7, 42, 75, 126, 127, 128, 255])
def test_status_is_the_ranks_own(status: int) -> None:
    outcome = run(["sh", "-c", f"exit {status}"])
    assert outcome.status == status
    assert outcome.reason == ("failed" if status else "ok")
    (rank,) = outcome.ranks
    assert (rank.status, rank.signal, rank.reason) == (status, None, outcome.reason)


@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGUSR1, 35]
)
def test_status_of_a_signal_is_128_and_its_number(signum: int) -> None:
    outcome = run(python(f"import os; os.kill(os.getpid(), {int(signum)})"))
    assert (outcome.status, outcome.reason) == (128 + signum, "failed")
    (rank,) = outcome.ranks
    assert (rank.status, rank.signal, rank.reason) == (None, signum, "signaled")


def test_status_is_the_first_failure() -> None:
    code = "import os, time; r = int(os.environ['RANK']); r == 2 and os._exit(7); time.sleep(1000)"
    outcome = run(python(code), nproc_per_node=4)
    assert (outcome.status, outcome.reason, outcome.restarts) == (7, "failed", 0)
    assert outcome.first_failure is not None
    assert outcome.first_failure.rank == 2
    assert [rank.reason for rank in outcome.ranks] == ["stopped", "stopped", "failed", "stopped"]
    assert [rank.signal for rank in outcome.ranks] == [signal.SIGTERM, signal.SIGTERM, None, signal.SIGTERM]
    assert outcome.first_failure.order == 0
    assert sorted(rank.order for rank in outcome.ranks if rank.order is not None) == [0, 1, 2, 3]
    assert outcome.report().splitlines()[0].startswith("rank 2 (local 2, pid ")
    with pytest.raises(WorkerFailed) as caught:
        outcome.check()
    assert (caught.value.rank, caught.value.outcome) == (2, outcome)
    assert str(caught.value).startswith("rank 2 (local 2, pid ")


def test_an_outcome_without_fault_checks_and_reports_nothing() -> None:
    outcome = run(["true"], nproc_per_node=2)
    outcome.check()
    assert outcome.report() == ""
    assert outcome.first_failure is None
    told = json.loads(outcome.to_json())
    assert (told["version"], told["status"], told["reason"], len(told["ranks"])) == (1, 0, "ok", 2)
    assert told["job"] == outcome.job
    for rank in outcome.ranks:
        assert rank.started_ns is not None
        assert rank.ended_ns is not None
        assert 0 < rank.started_ns < rank.ended_ns <= time.monotonic_ns()


def test_timeout_stops_the_job_with_124() -> None:
    outcome = run(["sleep", "1000"], nproc_per_node=2, timeout=0.2)
    assert (outcome.status, outcome.reason) == (124, "timeout")


def test_timeout_kills_after_the_grace(tmp_path: Path) -> None:
    begun = time.monotonic()
    outcome = run(["sh", "-c", 'trap "" TERM; while :; do sleep 1; done'], timeout=0.3, grace=0.5)
    assert (outcome.status, outcome.reason) == (124, "timeout")
    assert outcome.ranks[0].signal == signal.SIGKILL
    assert 0.8 <= time.monotonic() - begun < 5


def test_nothing_outlives_the_job(tmp_path: Path) -> None:
    # The stubborn ones go with the sweep; the fixture looks for them.
    with (tmp_path / "out").open("wb") as out:
        code = STUBBORN.replace("time.sleep(1000)", "")
        outcome = run(python(code), nproc_per_node=2, stdout=out.fileno(), sweep_grace=0.2)
    assert outcome.status == 0
    assert (tmp_path / "out").read_text() == "ready\n" * 2


def dump(folder: Path) -> list[str]:
    """A worker that writes what it got."""
    code = f"""
import json, os, sys
place = os.environ.get("LOCAL_RANK", "x")
fds = {{}}
for fd in os.listdir("/proc/self/fd"):
    try: fds[fd] = os.readlink("/proc/self/fd/" + fd)
    except OSError: pass
with open({str(folder)!r} + "/" + place, "w") as f:
    json.dump({{"environ": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[1:], "fds": fds,
               "umask": os.umask(0), "stdin": sys.stdin.read()}}, f)
"""
    return [sys.executable, "-c", code]


def told(folder: Path, place: str = "0") -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / place).read_text())
    return result


def test_torch_variables(tmp_path: Path) -> None:
    run(dump(tmp_path), nproc_per_node=2, stdin="null", env={"OMP_NUM_THREADS": None}).check()
    for rank in ("0", "1"):
        environ = told(tmp_path, rank)["environ"]
        want = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "NODE_RANK": "0",
        }
        assert want.items() <= environ.items()
        assert environ["MASTER_ADDR"] == "127.0.0.1"
        assert environ["NATIVELAUNCH"] == "1"
        assert environ["NATIVELAUNCH_VERSION"] == nativelaunch.__version__
        assert int(environ["OMP_NUM_THREADS"]) >= 1
        assert "TORCHELASTIC_RUN_ID" in environ
    ports = {told(tmp_path, rank)["environ"]["MASTER_PORT"] for rank in ("0", "1")}
    assert len(ports) == 1


def test_lightning_variables_are_five(tmp_path: Path) -> None:
    run(dump(tmp_path), nproc_per_node=2, rank_env="lightning", stdin="null").check()
    environ = told(tmp_path, "1")["environ"]
    own = {name for name in environ if name not in os.environ and not name.startswith("NATIVELAUNCH")}
    assert own - {"LC_CTYPE"} == {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"}


def test_no_variables(tmp_path: Path) -> None:
    run(dump(tmp_path), rank_env="none", stdin="null").check()
    environ = told(tmp_path, "x")["environ"]
    own = {name for name in environ if name not in os.environ and not name.startswith("NATIVELAUNCH")}
    assert own <= {"LC_CTYPE"}


def test_a_node_of_several(tmp_path: Path) -> None:
    run(
        dump(tmp_path),
        nproc_per_node=2,
        nnodes=3,
        node_rank=1,
        main_address="10.0.0.1",
        main_port=2950,
        stdin="null",
    ).check()
    environ = told(tmp_path, "1")["environ"]
    want = {
        "RANK": "3",
        "WORLD_SIZE": "6",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "2950",
        "GROUP_RANK": "1",
    }
    assert want.items() <= environ.items()


def test_bytes_pass_unchanged(tmp_path: Path) -> None:
    odd = b"\xff\xfe \n \x01'\"$HOME*"
    command: list[Text] = [*dump(tmp_path), odd, "ü", "", Path("/a")]
    run(command, stdin="null", env={"ODD": odd.decode("utf-8", "surrogateescape")}).check()
    got = told(tmp_path)
    argv = [os.fsencode(argument) for argument in got["argv"]]
    assert argv == [odd, "ü".encode(), b"", b"/a"]
    assert os.fsencode(got["environ"]["ODD"]) == odd


def test_environment_cwd_and_what_is_different_for_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("KEPT", "1")
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()

    def options(rank: int) -> RankOptions:
        return RankOptions(env={"MINE": str(rank), "KEPT": None}, cwd=two) if rank == 1 else RankOptions()

    run(
        dump(tmp_path),
        nproc_per_node=2,
        stdin="null",
        env={"GONE": None, "NEW": "2"},
        cwd=one,
        per_rank=options,
    ).check()
    first, second = told(tmp_path, "0"), told(tmp_path, "1")
    assert (first["cwd"], second["cwd"]) == (str(one), str(two))
    assert "GONE" not in first["environ"]
    assert (first["environ"]["NEW"], first["environ"]["KEPT"]) == ("2", "1")
    assert "KEPT" not in second["environ"]
    assert second["environ"]["MINE"] == "1"


def test_workers_get_the_standard_descriptors_and_those_passed(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        os.set_inheritable(reader, True)
        run(dump(tmp_path), stdin="null", pass_fds=[writer]).check()
    finally:
        os.close(reader)
        os.close(writer)
    fds = told(tmp_path)["fds"]
    # One more is the listing's own, which is gone when it is looked at.
    assert set(fds) == {"0", "1", "2", str(writer)}


@pytest.mark.parametrize(
    ("stdin", "want"),
    [(0, ["text", ""]), (1, ["", "text"]), ("null", ["", ""])],
)
def test_stdin_goes_to_one_rank(tmp_path: Path, stdin: int, want: list[str]) -> None:
    reader, writer = os.pipe()
    saved = os.dup(0)
    try:
        os.write(writer, b"text")
        os.close(writer)
        os.dup2(reader, 0)
        run(dump(tmp_path), nproc_per_node=2, stdin=stdin).check()
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(reader)
    assert [told(tmp_path, rank)["stdin"] for rank in ("0", "1")] == want


def test_streams_go_where_they_are_sent(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        code = "import os; os.write(1, b'to out\\n'); os.write(2, b'to err\\n')"
        run(python(code), nproc_per_node=2, stdout=out.fileno(), stderr=err.fileno()).check()
    assert (tmp_path / "out").read_text() == "to out\n" * 2
    assert (tmp_path / "err").read_text() == "to err\n" * 2
    code = "import os; assert os.readlink('/proc/self/fd/1') == '/dev/null' == os.readlink('/proc/self/fd/2')"
    run(python(code), stdout="null", stderr="null").check()


def test_waiting_lets_other_threads_run() -> None:
    import threading

    ticks = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.01):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    run(["sleep", "0.5"])
    done.set()
    thread.join()
    assert len(ticks) > 10


def test_a_handler_runs_while_run_waits_as_it_would_elsewhere() -> None:
    seen = []

    def handler(*_: object) -> None:
        # What a handler starts inherits the mask.
        seen.append((time.monotonic(), signal.pthread_sigmask(signal.SIG_BLOCK, [])))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        run(["sleep", "0.6"])
    finally:
        signal.signal(signal.SIGALRM, before)
    ended = time.monotonic()
    ((ran, mask),) = seen
    assert ended - ran > 0.2
    assert mask == set()


def test_an_exception_of_a_handler_stops_the_job_and_is_raised() -> None:
    class Enough(Exception):
        pass

    def handler(*_: object) -> None:
        raise Enough

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Enough):
            run(["sleep", "1000"], nproc_per_node=2)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_outcome_tells_where_when_and_what_was_left() -> None:
    import socket

    begun = time.time()
    outcome = run(["sh", "-c", "(sleep 1001 &) ; exit 0"], sweep_grace=0.1)
    assert outcome.host == socket.gethostname()
    # Told in the report to the millisecond.
    assert begun - 0.01 <= outcome.started <= outcome.ended <= time.time() + 0.01
    assert (outcome.swept, outcome.unkillable, outcome.guard_lost) == (1, (), False)
    assert (outcome.signal, outcome.restarts) == (None, 0)


def test_an_outcome_tells_the_signal_that_asked_for_the_end() -> None:
    with start(["sleep", "1000"]) as job:
        job.signal(signal.SIGTERM)
        outcome = job.wait()
    assert (outcome.reason, outcome.signal, outcome.status) == ("signal", signal.SIGTERM, 143)


def test_an_outcome_tells_that_the_guard_was_lost() -> None:
    with start(["sleep", "1000"]) as job:
        (guard,) = named("nl-guard")
        os.kill(guard, signal.SIGKILL)
        assert any(event.kind == "guard-lost" for event in job.events(timeout=10))
        outcome = job.stop()
    assert outcome.guard_lost
