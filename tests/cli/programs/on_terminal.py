"""Makes its input, a terminal, the controlling one of its session, and becomes a program.

usage: on_terminal.py PROGRAM [ARGS...]

To be started as leader of a new session: `docker run -it` and `ssh -t host command` start programs like this.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
