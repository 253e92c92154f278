"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Generator

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
