"""The running job."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import select
import signal
import sys
import threading
import time

import pytest

from nativelaunch import Event, Job, LauncherError, Outcome, UsageError, run, start
from tests.python.processes import alive, until

SLEEP = ["sleep", "1000"]


def test_events_tell_the_whole_story_in_order() -> None:
    with start(["sh", "-c", "[ $RANK = 0 ] || sleep 0.3; exit $RANK"], nproc_per_node=2) as job:
        events = list(job.events())
        outcome = job.wait()
    for rank in (0, 1):
        kinds = [event.kind for event in events if event.rank == rank]
        assert kinds == ["started", "exec", "exited"]
    assert events[-1].kind == "ended"
    assert [event.time_ns for event in events] == sorted(event.time_ns for event in events)
    exited = {event.rank: event.data for event in events if event.kind == "exited"}
    assert (exited[0]["status"], exited[1]["status"]) == (0, 1)
    assert exited[1]["signal"] is None
    stopping = [event.data for event in events if event.kind == "stopping"]
    assert stopping == [{"reason": "failed"}]
    assert all(event.pid in job.pids for event in events if event.rank is not None)
    assert outcome.status == 1
    assert list(job.events()) == []


def test_events_end_at_their_timeout_and_the_job_goes_on() -> None:
    with start(SLEEP) as job:
        kinds = [event.kind for event in job.events(timeout=0.2)]
        assert kinds == ["started", "exec"]
        assert job.poll() is None


def test_events_can_be_awaited() -> None:
    async def kinds(job: Job) -> list[str]:
        return [event.kind async for event in job.events()]

    async def both() -> tuple[list[str], list[str], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.02)
                ticks += 1

        ticker = asyncio.create_task(tick())
        with start(["sleep", "0.3"]) as first, start(["sh", "-c", "sleep 0.2; exit 3"]) as second:
            result = await asyncio.gather(kinds(first), kinds(second))
        ticker.cancel()
        return result[0], result[1], ticks

    first, second, ticks = asyncio.run(both())
    assert first == ["started", "exec", "exited", "ended"]
    assert second == ["started", "exec", "exited", "stopping", "ended"]
    assert ticks >= 5


def test_awaited_events_end_at_their_timeout() -> None:
    async def kinds(job: Job) -> list[str]:
        return [event.kind async for event in job.events(timeout=0.2)]

    with start(SLEEP) as job:
        assert asyncio.run(kinds(job)) == ["started", "exec"]


def test_fileno_is_readable_when_the_job_has_ended() -> None:
    with start(["sleep", "0.2"]) as job:
        assert job.poll() is None
        list(job.events(timeout=0))
        readable, _, _ = select.select([job], [], [], 10)
        assert readable
        assert until(job.poll, 5)
        assert select.select([job], [], [], 0)[0]


def test_wait_that_times_out_leaves_the_job_running() -> None:
    with start(SLEEP) as job:
        with pytest.raises(TimeoutError, match=r"the job has not ended after 0\.1 s"):
            job.wait(0.1)
        with pytest.raises(TimeoutError):
            job.wait(0)
        assert job.poll() is None
        os.kill(job.pids[0], 0)
    outcome = job.poll()
    assert outcome is not None
    assert (outcome.reason, outcome.status) == ("stopped", 143)


def test_signals_reach_one_rank_or_all() -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: os._exit(10 + int(os.environ["RANK"])))
os.write(int(sys.argv[1]), b"x")
while True: signal.pause()
"""
    reader, writer = os.pipe()
    try:
        with start([sys.executable, "-c", code, str(writer)], nproc_per_node=3, pass_fds=[writer]) as job:
            count = 0
            while count < 3:
                count += len(os.read(reader, 3))
            job.signal(signal.SIGUSR1, rank=1)
            outcome = job.wait()
            job.signal(signal.SIGUSR1)
            job.signal(signal.SIGUSR1, rank=1)
    finally:
        os.close(reader)
        os.close(writer)
    assert outcome.status == 11
    assert [rank.reason for rank in outcome.ranks] == ["stopped", "failed", "stopped"]


def test_signals_that_are_none_are_refused() -> None:
    with start(SLEEP) as job:
        for signum in (0, -1, 65):
            with pytest.raises(UsageError, match="signum must be at"):
                job.signal(signum)
        with pytest.raises(UsageError, match="rank is not one of this job on this node: 1"):
            job.signal(signal.SIGUSR1, rank=1)
        with pytest.raises(UsageError, match="signum must be a whole number"):
            job.signal("TERM")  # type: ignore[arg-type]
        assert job.poll() is None


def test_stop_asks_and_kill_does_not() -> None:
    asked = ["sh", "-c", 'trap "exit 5" TERM; echo; while :; do sleep 0.01; done']
    reader, writer = os.pipe()
    try:
        with start(asked, stdout=writer) as job:
            os.read(reader, 1)
            outcome = job.stop()
        assert (outcome.reason, outcome.ranks[0].status) == ("stopped", 5)
        with start(asked, stdout=writer) as job:
            outcome = job.kill()
        assert (outcome.reason, outcome.status, outcome.ranks[0].signal) == ("stopped", 137, signal.SIGKILL)
    finally:
        os.close(reader)
        os.close(writer)


def test_stop_kills_after_its_grace() -> None:
    reader, writer = os.pipe()
    try:
        command = ["sh", "-c", 'trap "" TERM; echo; while :; do sleep 0.01; done']
        with start(command, stdout=writer) as job:
            os.read(reader, 1)
            begun = time.monotonic()
            outcome = job.stop(grace=0.3)
        assert outcome.ranks[0].signal == signal.SIGKILL
        assert 0.3 <= time.monotonic() - begun < 3
    finally:
        os.close(reader)
        os.close(writer)


def test_an_ended_job_can_be_asked_anything() -> None:
    job = start(["true"])
    outcome = job.wait()
    assert job.wait(0) == outcome
    assert job.stop() == outcome
    assert job.kill() == outcome
    job.signal(signal.SIGTERM)
    with job:
        pass
    assert [event.kind for event in job.events()] == ["started", "exec", "exited", "ended"]


def test_the_block_ends_the_job_also_by_an_exception() -> None:
    with pytest.raises(KeyError), start(SLEEP, nproc_per_node=2) as job:
        raise KeyError
    assert job.poll() is not None
    assert not alive()


def test_the_last_reference_gone_stops() -> None:
    job = start(SLEEP, nproc_per_node=2)
    assert alive()
    del job
    gc.collect()
    assert until(lambda: not alive(), 3)


def test_several_jobs_at_once() -> None:
    jobs = [start(["sh", "-c", f"sleep 0.2; exit {status}"], nproc_per_node=2) for status in range(1, 6)]
    assert [job.wait().status for job in jobs] == [1, 2, 3, 4, 5]
    assert len({job.id for job in jobs}) == 5


def test_jobs_run_from_several_threads() -> None:
    outcomes: dict[int, Outcome] = {}

    def work(status: int) -> None:
        outcomes[status] = run(["sh", "-c", f"exit {status}"], nproc_per_node=2)

    threads = [threading.Thread(target=work, args=[status]) for status in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status: outcome.status for status, outcome in outcomes.items()} == {n: n for n in range(6)}


def test_workers_live_after_the_thread_that_started_them() -> None:
    jobs: list[Job] = []
    thread = threading.Thread(
        target=lambda: jobs.append(start(["sh", "-c", "sleep 0.5; exit 3"], nproc_per_node=2))
    )
    thread.start()
    thread.join()
    with jobs[0] as job:
        assert job.wait().status == 3


def test_a_job_waited_for_by_several_threads() -> None:
    outcomes: list[Outcome] = []
    with start(["sh", "-c", "sleep 0.3; exit 4"]) as job:
        threads = [threading.Thread(target=lambda: outcomes.append(job.wait())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert [outcome.status for outcome in outcomes] == [4] * 4


def test_a_forked_child_can_do_nothing_to_a_job() -> None:
    with start(SLEEP, nproc_per_node=2) as job:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                refused = 0
                for call in (
                    lambda: job.wait(0),
                    job.poll,
                    job.stop,
                    job.kill,
                    lambda: job.signal(9),
                    lambda: next(job.events()),
                ):
                    try:
                        call()
                    except LauncherError:
                        refused += 1
                with job:
                    pass
                del job
                gc.collect()
                status = 0 if refused == 6 else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.2)
        assert job.poll() is None
        assert len(job.pids) == 2
        for pid in job.pids:
            os.kill(pid, 0)


def test_events_are_values() -> None:
    with start(["true"]) as job:
        event = next(job.events())
    assert isinstance(event, Event)
    assert "started" in repr(event)
    with pytest.raises(AttributeError):
        event.kind = "ended"  # type: ignore[misc]
    with pytest.raises(TypeError):
        Event()


def test_events_are_not_hidden_by_a_thread_that_waits() -> None:
    # Both read what the keeper says. Whoever reads it, the events come at once.
    with start(["sh", "-c", "[ $RANK = 0 ] || sleep 1000"], nproc_per_node=2) as job:
        waiter = threading.Thread(target=job.wait)
        waiter.start()
        exited = threading.Event()

        def look() -> None:
            for event in job.events():
                if event.kind == "exited":
                    exited.set()

        reader = threading.Thread(target=look)
        reader.start()
        assert exited.wait(10)
        assert job.poll() is None
        job.stop()
        reader.join(10)
        waiter.join(10)


def test_a_rank_is_waited_for_by_several_threads_beside_one_that_takes_the_events() -> None:
    command = ["sh", "-c", "[ $RANK = 0 ] && sleep 0.3; [ $RANK = 1 ] && sleep 1000; exit 0"]
    with start(command, nproc_per_node=3) as job:
        ended: list[tuple[int, object]] = []

        def wait(rank: int) -> None:
            outcome = job._core.wait_rank(rank)
            ended.append((rank, outcome and outcome.reason))

        threads = [threading.Thread(target=wait, args=[rank]) for rank in (0, 0, 1, 1, 2)]
        threads.append(threading.Thread(target=lambda: list(job.events())))
        threads.append(threading.Thread(target=job.wait))
        for thread in threads:
            thread.start()
        assert until(lambda: len(ended) == 3, 10)
        assert sorted(ended, key=lambda end: end[0]) == [(0, "ok"), (0, "ok"), (2, "ok")]
        assert job._core.wait_rank(1, 0.1) is None
        job.stop()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert [rank for rank, _ in ended[3:]] == [1, 1]
        assert job._core.wait_rank(7) is None


def test_waiting_for_a_rank_costs_nothing_and_answers_signals() -> None:
    class Enough(Exception):
        pass

    def handler(*_: object) -> None:
        raise Enough

    def switches() -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

    with start(SLEEP, nproc_per_node=2) as job:
        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 1.0)
            slept = switches()
            with pytest.raises(Enough):
                job._core.wait_rank(1)
            # One sleep for the wait, and a few that belong to nobody; a look every 20 ms would make 50.
            assert switches() - slept < 15
        finally:
            signal.signal(signal.SIGALRM, before)
