"""`python -m nativelaunch`: becomes the `nativelaunch` binary."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Executes the binary in place of this interpreter, with the same arguments."""
    from nativelaunch._find import find_bin

    # Ignored signals outlive an exec, and Python ignores these from its start (pylifecycle.c).
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    if sys.executable:
        # The ranks run in this Python, wherever the binary is.
        os.environ.setdefault("PYTHON_EXEC", sys.executable)
    try:
        path = find_bin()
        os.execv(path, [path, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"nativelaunch: {error}")


if __name__ == "__main__":
    main()
