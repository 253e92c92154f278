"""Leaves a daemon behind whose first thread has ended, and which the kernel therefore calls a zombie."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import threading
import time
from pathlib import Path

EXIT = {"x86_64": 60, "aarch64": 93}[platform.machine()]  # ends the calling thread alone

folder = Path(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    (folder / f"{os.getpid()}.daemon").touch()
    ctypes.CDLL(None).syscall(EXIT, 0)
while not list(folder.glob("*.daemon")):
    time.sleep(0.01)
