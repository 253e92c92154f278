"""A worker that notes each signal it gets, and ends as it is told after a terminating one.

usage: log_signals.py FOLDER [LINGER [STATUS]]

Writes FOLDER/RANK.signals (one name for each signal) and makes FOLDER/RANK.ready. After SIGTERM, SIGINT, SIGHUP or
SIGQUIT it goes on noting for LINGER seconds (0.3), so that a duplicate is seen, and exits with STATUS; `RANK=STATUS`
is for one rank, and the others exit with 0; `never` ignores them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

TERMINATING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
# Those stay as they are: job control, and faults.
LEFT_ALONE = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD, signal.SIGSEGV, signal.SIGPIPE}


def main() -> None:
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    linger = float(sys.argv[2]) if len(sys.argv) > 2 else 0.3
    status = sys.argv[3] if len(sys.argv) > 3 else "0"
    watched = set(signal.valid_signals()) - LEFT_ALONE
    signal.pthread_sigmask(signal.SIG_SETMASK, watched)
    log = os.open(folder / f"{rank}.signals", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    (folder / f"{rank}.ready").touch()
    end_at = None
    while True:
        left = 3600.0 if end_at is None else end_at - time.monotonic()
        info = signal.sigtimedwait(watched, max(left, 0.0))
        if info is None:
            break
        number = info.si_signo
        name = signal.Signals(number).name if number < 32 else f"SIG{number}"
        os.write(log, f"{name}\n".encode())
        if number in TERMINATING and end_at is None and status != "never":
            end_at = time.monotonic() + linger
    if "=" in status:
        chosen, _, status = status.partition("=")
        status = status if chosen == rank else "0"
    sys.exit(int(status))


main()
