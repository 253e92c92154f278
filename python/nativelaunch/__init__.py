"""A compiled-core launcher for distributed training.

Names are imported when first used, so that `import nativelaunch` costs next to nothing.
"""

from __future__ import annotations

import os as _os

TYPE_CHECKING = False  # `typing` is not imported for this; type checkers know the name
if TYPE_CHECKING:
    from nativelaunch._core import Event, Outcome, RankOutcome, __version__
    from nativelaunch._find import find_bin
    from nativelaunch.api import Job, RankOptions, run, start
    from nativelaunch.errors import (
        ClusterError,
        LauncherError,
        NativelaunchError,
        SpawnError,
        UsageError,
        WorkerFailed,
    )

__all__ = [
    "ClusterError",
    "Event",
    "Job",
    "LauncherError",
    "NativelaunchError",
    "Outcome",
    "RankOptions",
    "RankOutcome",
    "SpawnError",
    "UsageError",
    "WorkerFailed",
    "__version__",
    "find_bin",
    "run",
    "start",
]

_HOME = {
    "ClusterError": "errors",
    "Event": "_core",
    "Job": "api",
    "LauncherError": "errors",
    "NativelaunchError": "errors",
    "Outcome": "_core",
    "RankOptions": "api",
    "RankOutcome": "_core",
    "SpawnError": "errors",
    "UsageError": "errors",
    "WorkerFailed": "errors",
    "__version__": "_core",
    "find_bin": "_find",
    "run": "api",
    "start": "api",
}

# Where the program was started, for the ranks that run this script again: a relative script name or module path
# means nothing any more once the program has changed its directory.
try:
    _start_directory: str | None = _os.getcwd()
except OSError:  # the directory was removed
    _start_directory = None


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
