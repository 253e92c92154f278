"""How many threads a rank may use."""

from __future__ import annotations

import os
import sys

from nativelaunch import _core

VARIABLE = "OMP_NUM_THREADS"


def share(num_processes: int) -> int:
    """Each rank's part of the CPUs that this process may use, at least 1."""
    return max(1, _core.usable_cpus() // num_processes)


def limit_torch(number: int) -> int | None:
    """Limits torch's threads if torch is loaded: it has read the variable by then.

    Returns:
        The limit that was in force before; None if torch is not loaded.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "set_num_threads"):
        return None
    before = int(torch.get_num_threads())
    torch.set_num_threads(number)
    return before


def is_limited() -> bool:
    """Whether the user has set the number of threads already."""
    return VARIABLE in os.environ
