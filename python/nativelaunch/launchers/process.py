"""A rank that a launcher started, as its callers see it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from nativelaunch import arguments

if TYPE_CHECKING:
    from nativelaunch import _core


class ProcessHandle:
    """A rank in another process. It is the keeper's child: only the keeper waits for it and knows its status.

    Attributes:
        pid: Its process.
        local_rank: Its rank on this node.
    """

    def __init__(self, job: _core.Job, pid: int, rank: int, local_rank: int) -> None:
        self._job: _core.Job | None = job
        self._outcome: _core.RankOutcome | None = None
        self._rank = rank
        self.pid = pid
        self.local_rank = local_rank

    @property
    def returncode(self) -> int | None:
        """Its exit status, -n for signal n, 1 if nobody knows; None while it lives."""
        if self._outcome is None and self._job is not None:
            self._outcome = self._job.rank(self._rank)
        outcome = self._outcome
        if outcome is None:
            return None
        if outcome.signal is not None:
            return -outcome.signal
        return 1 if outcome.status is None else outcome.status

    def poll(self) -> int | None:
        """As `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns `returncode`.

        Raises:
            TimeoutError: It lives after `timeout` seconds.
        """
        limit = None if timeout is None else arguments.seconds("timeout", timeout)
        if self._job is not None and self._job.wait_rank(self._rank, limit) is None:
            raise TimeoutError(f"rank {self._rank} (pid {self.pid}) has not ended after {limit} s")
        returncode = self.returncode
        assert returncode is not None
        return returncode

    def send_signal(self, signum: int) -> None:
        """Sends a signal. Nothing happens when the rank has ended, whoever may have its pid by then."""
        number = arguments.count("signum", signum, least=1, most=64)
        if self._job is not None:
            self._job.signal(number, self._rank)

    def release(self) -> None:
        """Keeps how the rank ended and lets go of the job; to be called when the job has ended."""
        self.poll()
        self._job = None

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __repr__(self) -> str:
        return f"<ProcessHandle local_rank={self.local_rank} pid={self.pid} returncode={self.returncode}>"
