"""A worker with what a training job leaves behind at its worst.

usage: family.py FOLDER [leave]

A child, a daemon in a session of its own, and a daemon that hops from pid to pid, all of which ignore SIGTERM. When all
of them run, makes FOLDER/RANK.ready; then sleeps, or with `leave` ends with 0.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def sleep_long(*, daemon: bool) -> None:
    """Forks a process that ignores SIGTERM, and waits until it runs its program."""
    read, write = os.pipe()
    if os.fork() == 0:
        if daemon:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execvp("sleep", ["sleep", "1001"])
    os.close(write)
    os.read(read, 1)
    os.close(read)


def hop() -> None:
    """Forks a process that is a new one every 10 ms."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(write)
        while True:
            if os.fork() != 0:
                os._exit(0)
            time.sleep(0.01)
    os.close(write)
    os.read(read, 1)
    os.close(read)


def main() -> None:
    sleep_long(daemon=False)
    sleep_long(daemon=True)
    hop()
    (Path(sys.argv[1]) / f"{os.environ['RANK']}.ready").touch()
    if sys.argv[2:] != ["leave"]:
        time.sleep(1000)


main()
