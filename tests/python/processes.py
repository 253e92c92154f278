"""Processes of a test, found by a variable that they inherit, and programs that play the host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = "NATIVELAUNCH_TEST_TOKEN"

PYTHON = sys.executable

# A worker that has what a training job leaves behind at its worst, and says when all of it runs: a child and a daemon
# that both ignore SIGTERM.
STUBBORN = textwrap.dedent("""
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "1001"])
    subprocess.Popen(["sleep", "1002"], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(1, b"ready\\n")
    time.sleep(1000)
""")


def alive() -> list[int]:
    """Processes, other than this one, that carry this test's token and are no zombies."""
    token = f"{TOKEN}={os.environ[TOKEN]}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if token in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue
    return found


def kill_what_is_left() -> dict[int, str]:
    """Kills what of this test's processes is there a moment after its last job, and tells what it was."""
    # The guard ends a moment after the job: it is the last.
    until(lambda: not alive(), 3.0)
    left = {pid: command_of(pid) for pid in alive()}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    return left


def command_of(pid: int) -> str:
    """The command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone"


def named(name: str) -> list[int]:
    """This test's processes of that name, such as `nl-keeper`."""
    found = []
    for pid in alive():
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(pid)
        except OSError:
            continue
    return found


def descriptors() -> dict[str, str]:
    """The open descriptors of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether the condition comes true within this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def start_host(
    folder: Path, source: str, *arguments: str, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that uses the package. It is killed at the end of the block, if it lives still."""
    path = folder / "host.py"
    path.write_text(textwrap.dedent(source))
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    with subprocess.Popen([PYTHON, str(path), *arguments], **options) as host:
        try:
            yield host
        finally:
            host.kill()


def run_host(
    folder: Path, source: str, *arguments: str, timeout: float = 30, **options: Any
) -> tuple[int, str, str]:
    """Runs a Python program that uses the package: status, output, errors."""
    with start_host(folder, source, *arguments, **options) as host:
        try:
            out, err = host.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            host.kill()
            out, err = host.communicate()
            raise AssertionError(f"the host hangs: {out.decode()}\n{err.decode()}") from None
    return host.returncode, out.decode(), err.decode()


def read_lines(process: subprocess.Popen[bytes], count: int) -> list[str]:
    """The next lines that a program prints."""
    assert process.stdout is not None
    return [process.stdout.readline().decode().rstrip("\n") for _ in range(count)]
