"""Tests of the command: the real binary, real processes, signals and terminals."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.cli.fronts import Launcher, find_binary
from tests.python.processes import TOKEN, kill_what_is_left

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def binary() -> str:
    """The binary under test: `NATIVELAUNCH_BIN`, or that of the installed package."""
    return find_binary()


@pytest.fixture
def launch(binary: str, tmp_path: Path, _nothing_is_left: None) -> Iterator[Launcher]:
    """Starts fronts; those that still run at the end of the test are killed."""
    launcher = Launcher(binary, tmp_path)
    yield launcher
    launcher.close()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Every process that a test starts inherits a variable of that test; a test that leaves one fails."""
    os.environ[TOKEN] = uuid.uuid4().hex
    yield
    left = kill_what_is_left()
    del os.environ[TOKEN]
    assert not left, f"left running: {left}"
