"""A rank that imports torch, then says what its launcher cost before, what itself cost, and when it was.

It imports nothing else: whatever it shared with torch would be missing from the figures.
"""

from __future__ import annotations

import os
import time

own_start = time.process_time()
walk_start = time.monotonic()


def launcher_cpu(root: int) -> float:
    """CPU seconds of all descendants of ``root`` that are no ranks."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parents[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                pass
    tree = {root}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    total = 0.0
    for pid in tree - {root}:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                is_rank = any(variable.startswith(b"RANK=") for variable in file.read().split(b"\0"))
            # Linux: the clock of a process, exited threads included, is (~pid << 3) | CPUCLOCK_SCHED
            total += 0.0 if is_rank else time.clock_gettime((~pid << 3) | 2)
        except OSError:
            pass
    return total


launcher = launcher_cpu(int(os.environ["BENCH_ROOT"]))
walk = time.monotonic() - walk_start
own_walk = time.process_time()

import torch  # noqa: E402, F401

own = own_start + time.process_time() - own_walk
at = time.monotonic() - walk
os.write(1, f"{launcher:.6f} {own:.6f} {at:.6f}\n".encode())
