"""A shell that does job control for one job in the foreground, and says what becomes of it.

usage: shell.py COMMANDS LOG PROGRAM [ARGS...]

COMMANDS and LOG are descriptors. In LOG: `started PID`, `stopped N`, `exited N`, `signaled N`, one a line. After a
stop it waits for a line in COMMANDS and continues the job: `fg` in the foreground, `bg` in the background.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios


def main() -> None:
    commands, log = int(sys.argv[1]), int(sys.argv[2])
    for fd in (commands, log):
        os.set_inheritable(fd, False)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(signum, signal.SIG_IGN)

    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(signum, signal.SIG_DFL)
        os.execvp(sys.argv[3], sys.argv[3:])
    try:
        os.setpgid(job, job)
    except PermissionError:
        pass  # it has done so itself, and runs its program
    os.write(log, f"started {job}\n".encode())
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        if os.WIFEXITED(status):
            os.write(log, f"exited {os.WEXITSTATUS(status)}\n".encode())
            return
        if os.WIFSIGNALED(status):
            os.write(log, f"signaled {os.WTERMSIG(status)}\n".encode())
            return
        os.write(log, f"stopped {os.WSTOPSIG(status)}\n".encode())
        command = os.read(commands, 100).strip()
        if command == b"fg":
            os.tcsetpgrp(0, job)
        elif command != b"bg":
            return
        os.killpg(job, signal.SIGCONT)


main()
