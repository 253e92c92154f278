"""A worker that shows what it was given, byte by byte.

usage: show.py FOLDER [ARGS...]

Writes FOLDER/RANK.environ and FOLDER/RANK.cmdline as the kernel has them, FOLDER/RANK.status (/proc/self/status) and
FOLDER/RANK.json: descriptors, directory, umask, nice value, limits, parent, group, session, death signal.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from pathlib import Path


def descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def main() -> None:
    open_descriptors = descriptors()
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    death_signal = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death_signal))
    umask = os.umask(0)
    os.umask(umask)
    state = {
        "descriptors": open_descriptors,
        "cwd": os.getcwd(),
        "umask": umask,
        "nice": os.nice(0),
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "parent": os.getppid(),
        "group": os.getpgrp(),
        "session": os.getsid(0),
        "death_signal": death_signal.value,
    }
    for name in ("environ", "cmdline", "status"):
        (folder / f"{rank}.{name}").write_bytes(Path(f"/proc/self/{name}").read_bytes())
    (folder / f"{rank}.json").write_text(json.dumps(state))


main()
