"""A terminal, and who sits between it and the command."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.cli.fronts import PATIENCE, PROGRAMS, PYTHON

if TYPE_CHECKING:
    from pathlib import Path

CTRL_C, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x1a", b"\x1c"


class Terminal:
    """A pseudo terminal with a program on it that leads its session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master, self._slave = pty.openpty()
        self.screen = b""
        self.process: subprocess.Popen[bytes] | None = None
        self._read_log, self._write_log = os.pipe()
        self._read_commands, self._write_commands = os.pipe()
        self._log = b""

    def start(self, *command: str | Path) -> subprocess.Popen[bytes]:
        """The program as session leader, without a shell."""
        return self._popen([*PYTHON, str(PROGRAMS / "on_terminal.py"), *map(str, command)])

    def start_job(self, *command: str | Path) -> int:
        """The program as the foreground job of a shell; its pid."""
        fds = (self._read_commands, self._write_log)
        shell = [*PYTHON, str(PROGRAMS / "shell.py"), *map(str, fds), *map(str, command)]
        self._popen(shell, fds)
        return self.wait_log("started")

    def _popen(self, command: list[str], fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            command,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            pass_fds=fds,
            cwd=self.folder,
            env=dict(os.environ) | {"PYTHON_EXEC": sys.executable, "PS1": "prompt> ", "HISTFILE": ""},
        )
        os.close(self._slave)
        self._slave = -1
        return self.process

    def type(self, keys: bytes) -> None:
        """Types."""
        os.write(self.master, keys)

    def resume(self, command: bytes) -> None:
        """Tells the shell `fg` or `bg`."""
        os.write(self._write_commands, command)

    def _read(self, seconds: float) -> None:
        ready, _, _ = select.select([self.master, self._read_log], [], [], seconds)
        if self.master in ready:
            try:
                self.screen += os.read(self.master, 65536)
            except OSError:
                # Nobody has the terminal open any more.
                time.sleep(0.01)
        if self._read_log in ready:
            self._log += os.read(self._read_log, 65536)

    def wait_screen(self, text: bytes, seconds: float = PATIENCE) -> None:
        """Waits for text on the screen, and forgets everything up to it."""
        deadline = time.monotonic() + seconds
        while text not in self.screen:
            left = deadline - time.monotonic()
            assert left > 0, f"not within {seconds} s on the screen: {text!r}; there is {self.screen!r}"
            self._read(left)
        self.screen = self.screen.partition(text)[2]

    def wait_log(self, word: str, seconds: float = PATIENCE) -> int:
        """Waits for the shell's next word, which has to be this, and gives the number with it."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._log:
            left = deadline - time.monotonic()
            assert left > 0, f"not within {seconds} s: {word}; on the screen: {self.screen!r}"
            self._read(left)
        line, _, self._log = self._log.partition(b"\n")
        found, _, number = line.decode().partition(" ")
        assert found == word, (line, self.screen)
        return int(number)

    def wait_end(self, seconds: float = PATIENCE) -> int:
        """Waits for the end of the session's leader; its status as subprocess has it."""
        assert self.process is not None
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            left = deadline - time.monotonic()
            assert left > 0, f"not ended within {seconds} s; on the screen: {self.screen!r}"
            self._read(min(left, 0.02))
        # The rest of what was written.
        while select.select([self.master], [], [], 0)[0]:
            try:
                self.screen += os.read(self.master, 65536)
            except OSError:
                break
        return self.process.returncode

    def close(self) -> None:
        """Hangs up."""
        for fd in (
            self.master,
            self._slave,
            self._read_log,
            self._write_log,
            self._read_commands,
            self._write_commands,
        ):
            if fd >= 0:
                os.close(fd)
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
