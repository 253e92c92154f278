"""What the figures were taken on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path


def facts(nativelaunch: Path | None) -> dict[str, object]:
    """Returns what a reader needs to compare figures: machine, load and versions."""
    return {
        "cpu": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory": _field(Path("/proc/meminfo"), "MemTotal"),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": _version("torch"),
        "nativelaunch": _output(nativelaunch, "--version") if nativelaunch else None,
    }


def _field(file: Path, key: str) -> str | None:
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
