"""Every test leaves this process and the machine as it found them, or fails."""

from __future__ import annotations

import gc
import os
import threading
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.python.processes import TOKEN, descriptors, kill_what_is_left, until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No process that carries this test's token, no child, descriptor, thread or variable is left by a test."""
    os.environ[TOKEN] = uuid.uuid4().hex
    environ = variables()
    open_before = descriptors()
    threads_before = threading.active_count(), len(os.listdir("/proc/self/task"))
    yield
    gc.collect()
    left = kill_what_is_left()
    assert not left, f"left running: {left}"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert descriptors() == open_before
    until(lambda: len(os.listdir("/proc/self/task")) <= threads_before[1], 1.0)
    assert (threading.active_count(), len(os.listdir("/proc/self/task"))) == threads_before
    assert variables() == environ
    del os.environ[TOKEN]


def variables() -> dict[str, str]:
    """The environment, without what pytest changes itself."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
