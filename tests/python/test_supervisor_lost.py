"""A supervisor that cannot go on, goes mad or is killed ends what it supervised, and its client hears of it."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from nativelaunch import LauncherError, SpawnError, start
from tests.python.processes import named, read_lines, run_host, start_host

# Speaks as guard and keeper in one: a hello, a rank that runs, and then, when the file is there, its last words.
FAKE = """\
#!{python} -S
import os, signal, socket, struct, sys, time

HELLO, EVENT, ERROR = 16, 17, 19

def frame(kind, payload):
    return struct.pack("<IHH", len(payload), kind, 0) + payload

def event(kind, rank, pid):
    return frame(EVENT, struct.pack("<BIBiQB", 1, rank, 1, pid, time.monotonic_ns(), kind))

def text(words):
    return struct.pack("<I", len(words)) + words

client = socket.socket(fileno=3)
if {hello}:
    pidfds = [os.pidfd_open(os.getpid()), os.pidfd_open(os.getpid())]
    hello = frame(HELLO, text(b"{version}"))
    socket.send_fds(client, [hello], pidfds)
    client.sendall(event(0, {rank}, os.getpid()) + event(1, {rank}, os.getpid()))
    while not os.path.exists({go!r}): time.sleep(0.005)
client.sendall({last})
if {stay}:
    client.recv(1)
"""

LAST = {
    "an error": ('frame(ERROR, text(b"the keeper cannot go on: no memory"))', "no memory"),
    "a frame of no known kind": ('frame(99, b"")', "something unknown"),
    "a second hello": ('frame(HELLO, text(b"x"))', "something unknown"),
    "a frame that is too long": ('struct.pack("<IHH", 1 << 30, EVENT, 0)', "something unknown"),
    "no frame at all": ('b"Segmentation fault (core dumped)"', "something unknown"),
}


def fake(folder: Path, last: str, *, rank: int = 0, hello: bool = True, stay: bool = True) -> Path:
    from nativelaunch import __version__

    path = folder / "fake"
    path.write_text(
        FAKE.format(
            python=sys.executable,
            version=__version__,
            rank=rank,
            hello=hello,
            go=str(folder / "go"),
            last=last,
            stay=stay,
        )
    )
    path.chmod(0o755)
    return path


RANK_ZERO = """
import atexit, os, sys, time
import nativelaunch
from nativelaunch.environments import LocalEnvironment
from nativelaunch.launchers import ChildCommand, SubprocessScriptLauncher

def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Launcher(SubprocessScriptLauncher):
    def child_command(self, local_rank): return ChildCommand(("sleep", "1000"))

launcher = Launcher(LocalEnvironment(), 2, 1, grace=20.0, peer_grace={peer_grace})
atexit.register(lambda: say("atexit"))

def main():
    say("ready")
"""


def rank_zero(folder: Path, body: str, peer_grace: float = 10.0) -> tuple[int, list[str], str]:
    """Runs rank 0 beside a fake supervisor whose last words it provokes by `go`."""
    source = RANK_ZERO.format(peer_grace=peer_grace) + textwrap.dedent(body)
    source = source.replace("go()", f"open({str(folder / 'go')!r}, 'w').close()")
    env = {**os.environ, "NATIVELAUNCH_BIN": str(folder / "fake")}
    status, out, err = run_host(folder, source, env=env)
    return status, out.splitlines(), err


@pytest.mark.parametrize(("last", "words"), LAST.values(), ids=LAST)
def test_last_words_of_the_supervisor_wake_rank_0(tmp_path: Path, last: str, words: str) -> None:
    fake(tmp_path, last, rank=1)
    body = """
        go()
        try: time.sleep(1000)
        finally: say("finally")
    launcher.launch(main)
    """
    begun = time.monotonic()
    status, out, err = rank_zero(tmp_path, body)
    assert (status, out) == (1, ["ready", "finally", "atexit"]), err
    assert time.monotonic() - begun < 9
    report = [line for line in err.splitlines() if line.startswith("nativelaunch: ")]
    assert len(report) == 1
    assert report[0].startswith("nativelaunch: supervisor lost: ")
    assert words in report[0]
    assert err.splitlines()[-1] == report[0]
    assert err.count("WorkerFailed: supervisor lost: ") == 1


def test_a_rank_0_that_does_not_hear_it_is_ended_after_the_peer_grace_and_sleeps_until_then(
    tmp_path: Path,
) -> None:
    fake(tmp_path, LAST["an error"][0], rank=1)
    body = """
        import threading
        def tell():
            time.sleep(0.3)
            go()
            time.sleep(0.3)
            before = time.process_time()
            time.sleep(1.0)
            say("spent", time.process_time() - before)
        threading.Thread(target=tell, daemon=True).start()
        while True:
            try: time.sleep(1000)
            except BaseException: pass
    launcher.launch(main)
    """
    status, out, err = rank_zero(tmp_path, body, peer_grace=2.5)
    assert status == 1, err
    assert out[0] == "ready"
    # No finalizers; and the native thread did not turn round and round.
    assert "atexit" not in out
    assert float(out[1].split()[1]) < 0.3
    assert err.count("nativelaunch: supervisor lost: the keeper cannot go on: no memory") == 1


def test_last_words_that_come_while_rank_0_waits_at_its_end_are_told(tmp_path: Path) -> None:
    fake(tmp_path, LAST["an error"][0], rank=1)
    body = """
    import threading
    launcher.launch(main)
    # Told when the main thread is behind the script's end.
    threading.Thread(target=lambda: (time.sleep(0.5), go()), daemon=True).start()
    """
    status, out, err = rank_zero(tmp_path, body)
    assert (status, out) == (1, ["ready", "atexit"]), err
    assert err == "nativelaunch: supervisor lost: the keeper cannot go on: no memory\n"


def test_close_raises_what_the_supervisor_said(tmp_path: Path) -> None:
    fake(tmp_path, LAST["an error"][0], rank=1)
    body = """
    import threading
    launcher.launch(main)
    threading.Thread(target=lambda: (time.sleep(0.5), go())).start()
    try:
        launcher.close()
    except nativelaunch.LauncherError as error:
        say(error)
    say(launcher.procs[0].returncode, "LOCAL_RANK" in os.environ, len(os.listdir("/proc/self/task")))
    """
    status, out, err = rank_zero(tmp_path, body)
    assert (status, out) == (1, ["ready", "the keeper cannot go on: no memory", "None False 1", "atexit"]), (
        err
    )
    assert err == "nativelaunch: supervisor lost: the keeper cannot go on: no memory\n"


def test_a_caught_loss_is_not_raised_again_by_close(tmp_path: Path) -> None:
    fake(tmp_path, LAST["an error"][0], rank=1)
    body = """
        go()
        time.sleep(1000)
    with launcher:
        try: launcher.launch(main)
        except nativelaunch.WorkerFailed as error: say(error)
    say("closed")
    """
    status, out, err = rank_zero(tmp_path, body)
    assert status == 1, err
    assert out == ["ready", "supervisor lost: the keeper cannot go on: no memory", "closed", "atexit"]
    assert err == "nativelaunch: supervisor lost: the keeper cannot go on: no memory\n"


@pytest.mark.parametrize("peer_grace", [10.0, 0.5], ids=["that ends", "that holds on"])
def test_a_sigkilled_keeper_ends_a_rank_0(tmp_path: Path, peer_grace: float) -> None:
    wait = "time.sleep(1000)" if peer_grace > 1 else "sum(range(10**13))"
    source = RANK_ZERO.format(peer_grace=peer_grace) + f"    {wait}\nlauncher.launch(main)\n"
    with start_host(tmp_path, source) as host:
        assert read_lines(host, 1) == ["ready"]
        (keeper,) = named("nl-keeper")
        os.kill(keeper, signal.SIGKILL)
        out, err = host.communicate(timeout=20)
    assert host.returncode == 1
    assert (b"atexit" in out) == (peer_grace > 1)
    assert err.count(b"nativelaunch: supervisor lost: the keeper was killed") == 1, err


@pytest.mark.parametrize(("last", "words"), LAST.values(), ids=LAST)
def test_waits_raise_what_the_supervisor_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, words: str
) -> None:
    monkeypatch.setenv("NATIVELAUNCH_BIN", str(fake(tmp_path, last)))
    job = start(["sleep", "1000"])
    assert [event.kind for event in job.events(timeout=0.0)] == ["started", "exec"]
    (tmp_path / "go").touch()
    for call in (job.wait, lambda: next(job.events()), job.poll, job.stop, job.kill):
        with pytest.raises(LauncherError, match=words):
            call()
    job.signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ('frame(ERROR, text(b"no memory"))', "cannot start the supervisor: no memory"),
        ('frame(99, b"")', "malformed message between client and keeper"),
        ("event(0, 0, os.getpid())", "the keeper did not begin with a hello"),
        ("b''", "ended before it answered: is it the nativelaunch binary"),
    ],
    ids=["an error", "an unknown frame", "no hello", "nothing"],
)
def test_a_supervisor_that_does_not_start_is_a_spawn_error_of_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, words: str
) -> None:
    monkeypatch.setenv("NATIVELAUNCH_BIN", str(fake(tmp_path, last, hello=False, stay=False)))
    with pytest.raises(SpawnError, match=words) as caught:
        start(["true"])
    assert (caught.value.rank, caught.value.stage) == (None, None)


def test_a_supervisor_that_cannot_be_executed_is_a_spawn_error_of_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fake"
    path.write_text("#!/nowhere/python\n")
    path.chmod(0o755)
    monkeypatch.setenv("NATIVELAUNCH_BIN", str(path))
    with pytest.raises(SpawnError, match="cannot start the supervisor: exec") as caught:
        start(["true"])
    assert (caught.value.rank, caught.value.stage) == (None, None)


def test_a_supervisor_that_goes_mad_while_the_ranks_start_is_a_spawn_error_of_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATIVELAUNCH_BIN", str(fake(tmp_path, LAST["an error"][0])))
    (tmp_path / "go").touch()
    with pytest.raises(SpawnError, match="no memory") as caught:
        # The fake tells of one.
        start(["sleep", "1000"], nproc_per_node=2)
    assert (caught.value.rank, caught.value.stage) == (None, None)
    assert isinstance(caught.value, OSError)
