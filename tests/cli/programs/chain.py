"""Workers that fail in a certain order: the highest rank first, each of the others when it sees the one before dead.

usage: chain.py FOLDER

Rank r exits with 10 + r. SIGTERM is ignored.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    folder, rank, size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    before = None
    if rank < size - 1:
        path = folder / f"{rank + 1}.ready"
        while not path.exists():
            time.sleep(0.001)
        before = os.pidfd_open(int(path.read_text()))
    unnamed = folder / f"{rank}.unnamed"
    unnamed.write_text(str(os.getpid()))
    unnamed.rename(folder / f"{rank}.ready")
    if before is not None:
        select.select([before], [], [])
    else:
        while len(list(folder.glob("*.ready"))) < size:
            time.sleep(0.001)
    os._exit(10 + rank)


main()
