"""What every subject is given, and what it must be."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benches.report import Section
from benches.tree import Cost, measure


def _environ() -> dict[str, str]:
    # the same threads under every launcher; and a bytecode cache, which people have, and which the first run fills
    environ = os.environ | {
        "OMP_NUM_THREADS": "1",
        "BENCH_ROOT": str(os.getpid()),
        "PYTHON_EXEC": sys.executable,
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return environ


@dataclass(frozen=True)
class Bench:
    """The programs to compare, and how often."""

    rounds: int  # of what takes seconds; what takes milliseconds has more, so that its median is steady
    nativelaunch: Path | None
    torchrun: Path | None
    environ: dict[str, str] = field(default_factory=_environ)

    def launchers(self, section: Section) -> dict[str, str]:
        """Returns the launchers that are here, by name, and notes in the section which are not."""
        found = {}
        for name, path in (("nativelaunch", self.nativelaunch), ("torchrun", self.torchrun)):
            if path:
                found[name] = str(path)
            else:
                section.skipped.append(f"{name} is not installed")
        return found

    def cost(
        self, *commands: list[str], environs: list[dict[str, str]] | None = None, stdout: Path | None = None
    ) -> Cost:
        """Measures commands that must succeed.

        Raises:
            RuntimeError: one failed, or something outlived them; its figures would mean nothing.
        """
        environs = environs or [self.environ] * len(commands)
        cost = measure(*commands, environs=environs, stdout=stdout)
        if cost.status != 0:
            raise RuntimeError(f"{' '.join(commands[0])!r} ended with status {cost.status}")
        if cost.killed != 0:
            raise RuntimeError(f"{' '.join(commands[0])!r} left processes behind: {cost.killed}")
        return cost

    def output(self, command: list[str]) -> str:
        """Returns what a command that must succeed writes to its standard output."""
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
            self.cost(command, stdout=Path(file.name))
            return file.read()


Subject = Callable[[Bench], Iterator[Section]]


def beside_python(name: str) -> Path | None:
    """Finds a program where this interpreter's environment has its scripts, else on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    return Path(found) if found else None
