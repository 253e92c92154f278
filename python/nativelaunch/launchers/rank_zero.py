"""This process while it is rank 0 of a job whose other ranks live under a keeper."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from nativelaunch import _core
from nativelaunch.errors import LauncherError, WorkerFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

T = TypeVar("T")

# A signal that comes this much later than the first asks for the end at once; sooner, it is the same wish by another
# way (a process group's, say).
_SECOND_SIGNAL_AFTER = 0.25


class RankZero:
    """Binds the fates of this process and of the other ranks.

    A rank that fails raises `WorkerFailed` in the main thread: `_core.HostWatch` sends SIGTERM to it, and the handler
    here raises. Only a real signal with a Python handler reaches a main thread that sleeps or waits in C. A main thread
    that does not end by that is ended by the native thread. SIGTERM and SIGHUP from outside take the same way, with
    `SystemExit`.
    """

    def __init__(self, job: _core.Job, *, grace: float, peer_grace: float) -> None:
        self._job = job
        self._grace = grace
        self._peer_grace = peer_grace
        self._process = os.getpid()
        self._handlers: dict[signal.Signals, Any] = {}
        self._failure: WorkerFailed | None = None
        self._asked_at: float | None = None
        self._asked_status = 0
        self._interrupted = False
        self._begun = False
        self._closing = False
        # Before the handlers, which ask it; it wakes nobody before `run`.
        self._watch = _core.HostWatch(job, grace=grace, peer_grace=peer_grace)
        self._wake: int | None = None
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(signum) is signal.SIG_DFL:
                    self._handlers[signum] = signal.signal(signum, self._on_signal)
            # A handler of the program's own is as good for waking: SIGTERM asks it to end.
            if callable(signal.getsignal(signal.SIGTERM)):
                self._wake = int(signal.SIGTERM)

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs rank 0's part. Its exception ends the other ranks."""
        try:
            if not self._begun:
                self._begin()
            return function(*args, **kwargs)
        except BaseException as error:
            if self._process == os.getpid():
                self._on_exception(error)
            raise

    def _begin(self) -> None:
        """From here on a failure or a signal raises: what raises earlier would leave the launcher half open."""
        self._begun = True
        if self._asked_at is not None:
            raise SystemExit(self._asked_status)
        if self._wake is not None:
            self._watch.wake_with(self._wake)

    def close(self, error: BaseException | None = None) -> None:
        """Waits for the other ranks at most `grace` seconds, ends those that are not done, and restores the handlers.

        An `error` on its way ends them at once.

        Raises:
            WorkerFailed: A rank failed, which was not raised yet, and no `error` is on its way already.
            LauncherError: The same for a supervisor that cannot tell how the ranks ended.
            SystemExit: The same for a signal that asked this process to end.
        """
        if error is not None:
            # It may come from beside the function.
            self._on_exception(error)
        # From here on the main thread waits for an end that is bounded: nothing needs to be armed.
        self._watch.close()
        try:
            outcome = self._wait()
        except LauncherError:
            if self._failure is None and error is None and not self._interrupted:
                raise
            return
        finally:
            self._restore_handlers()
        if self._failure is not None:
            self._failure.outcome = outcome
        elif error is None and outcome.reason in ("failed", "supervisor-lost") and not self._interrupted:
            outcome.check()
        elif error is None and self._asked_at is not None:
            raise SystemExit(self._asked_status)

    def close_at_exit(self) -> None:
        """The same for an interpreter that ends.

        If this process has to end with a status that is not its own, the finalizers of others come first: waiting for
        the ranks, within the grace, is left to the native side, which has the last word.
        """
        # The interpreter gives SIGTERM back its default action soon.
        self._watch.hush()
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self._on_exception(error)
        if self._interrupted or self._watch.status is None:
            # A lost supervisor is this process's last word already.
            with contextlib.suppress(LauncherError):
                self._wait()

    def _wait(self) -> _core.Outcome:
        self._closing = True
        try:
            outcome = self._job.wait(self._grace)
            late = outcome is None
            if outcome is None:
                self._job.request_stop(self._peer_grace)
                outcome = self._job.wait()
        except LauncherError as error:
            _core.set_exit_status(None if self._interrupted else 1, f"supervisor lost: {error}")
            raise
        except BaseException as error:
            # Ctrl-C: the ranks have theirs. A second one ends the waiting.
            self._on_exception(error)
            try:
                self._job.wait()
            except BaseException:
                self._job.request_stop(0.0)
                self._job.wait()
                raise
            raise
        assert outcome is not None
        if self._interrupted:
            _core.set_exit_status(None)
        elif outcome.reason in ("failed", "supervisor-lost", "signal"):
            _core.set_exit_status(outcome.status, outcome.report())
        elif self._asked_at is not None:
            _core.set_exit_status(self._asked_status)
        elif late:
            report = f"rank 0 is done, and other ranks were not {self._grace:g} s later\n{outcome.report()}"
            _core.set_exit_status(1, report)
        elif outcome.reason == "ok":
            # An earlier launch may have failed, been caught and be made good by this one.
            _core.set_exit_status(None)
        return outcome

    def _on_exception(self, error: BaseException) -> None:
        if isinstance(error, SystemExit):
            if error.code is None or error.code == 0:
                return  # an end without fault: the others come to theirs
            if self._asked_at is not None and isinstance(error.code, int):
                # Asked to end, the program chose a status of its own (75, to be queued again).
                self._asked_status = error.code & 0xFF
                self._watch.end_with(self._asked_status, self._grace_left())
        elif isinstance(error, KeyboardInterrupt):
            # The terminal sent the ranks theirs. That they fail by it does not change how this process ends.
            self._interrupted = True
            self._watch.close()
            _core.set_exit_status(None)
        outside = self._interrupted or self._asked_at is not None
        self._job.request_stop(self._grace if outside else self._peer_grace)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGHUP: from outside, or from the native thread because a rank failed."""
        if self._process != os.getpid():
            # A fork inherits the handler: there the signal does what it would do without us.
            signal.signal(signum, signal.SIG_DFL)
            signal.raise_signal(signum)
            return
        # Where the program has not begun, an exception would leave the launcher half open; where it ends already, or
        # waits in `close`, it would only cut the clean-up short.
        leaving = (
            not self._begun
            or self._closing
            or self._interrupted
            or self._failure is not None
            or _is_leaving()
        )
        if self._watch.take_wake():
            if not leaving:
                failed = self._job.first_failure()
                self._failure = (
                    WorkerFailed(self._watch.loss or "supervisor lost: the ranks were ended with it")
                    if failed is None
                    else WorkerFailed(str(failed), rank=failed.rank)
                )
                raise self._failure
            return
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self._asked_status = 128 + signum
            self._job.signal(signum)
            self._watch.end_with(self._asked_status, self._grace)
            if not leaving:
                raise SystemExit(self._asked_status)
        elif now - self._asked_at >= _SECOND_SIGNAL_AFTER:
            self._job.request_stop(0.0)
            self._watch.end_with(128 + signum, 0.0)

    def _grace_left(self) -> float:
        assert self._asked_at is not None
        return max(0.0, self._asked_at + self._grace - time.monotonic())

    def _restore_handlers(self) -> None:
        for signum, before in self._handlers.items():
            # Somebody may have chained another one before it in the meantime: that one stays.
            if signal.getsignal(signum) == self._on_signal:
                signal.signal(signum, before)
        self._handlers.clear()


def _is_leaving() -> bool:
    """Whether the interrupted code is a clean-up on the way out, after Ctrl-C or `sys.exit`."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            return True
        error = error.__context__
    return False
