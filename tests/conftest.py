"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With `NATIVELAUNCH_TEST_NO_SKIPS` a test that skips fails: the machine was to have all that tests want."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("NATIVELAUNCH_TEST_NO_SKIPS"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, but NATIVELAUNCH_TEST_NO_SKIPS is set: {reason}"
    return report


@pytest.fixture(autouse=True, scope="session")
def _signals_are_as_from_a_shell() -> Iterator[None]:
    """Behind `nohup` or in the background of a script some are ignored, and would be so in all that tests start."""
    before = {}
    # The C library keeps 32 and 33 for itself; Python ignores two, and hands on neither to what it starts.
    for signum in signal.valid_signals() - {32, 33, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(signum) is signal.SIG_IGN:
            is_interrupt = signum == signal.SIGINT
            before[signum] = signal.signal(
                signum, signal.default_int_handler if is_interrupt else signal.SIG_DFL
            )
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)
