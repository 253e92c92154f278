"""The exceptions of this package. A worker that fails is an `Outcome` first; `WorkerFailed` is its exception."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nativelaunch._core import Outcome


class NativelaunchError(Exception):
    """Anything that this package raises on its own account."""


class UsageError(NativelaunchError, ValueError):
    """A value was refused before anything was started; the text names the field and the value."""


class SpawnError(NativelaunchError, OSError):
    """A rank or the supervisor could not be started; nothing is left running. Only a start raises it.

    Attributes:
        rank: The global rank concerned; None for the supervisor.
        stage: The step that failed, such as `exec` or `chdir`.
        errno: The error number of the system, if there is one.
    """

    rank: int | None
    stage: str | None

    def __init__(
        self, errno: int | None, text: str, rank: int | None = None, stage: str | None = None
    ) -> None:
        super().__init__(errno, text)
        self.rank = rank
        self.stage = stage

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errno, self.strerror, self.rank, self.stage)


class LauncherError(NativelaunchError, RuntimeError):
    """A job or a launcher was used in a way that cannot work, or the supervisor of a running job cannot go on."""


class WorkerFailed(NativelaunchError, RuntimeError):
    """A worker failed.

    Attributes:
        outcome: How the job ended; None while other ranks are still being ended.
        rank: The global rank that failed first; None if no rank did (the job ran out of time, say).
        cause: The exception that ended this rank, where it is known.
    """

    outcome: Outcome | None
    rank: int | None
    cause: BaseException | None

    def __init__(
        self,
        text: str,
        outcome: Outcome | None = None,
        rank: int | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.rank = rank
        self.cause = cause

    def __reduce__(self) -> tuple[object, ...]:
        # The outcome belongs to the process that saw it.
        return type(self), (str(self), None, self.rank, self.cause)


class ClusterError(NativelaunchError, RuntimeError):
    """What the environment says about our place in the cluster does not hold together.

    Attributes:
        variables: The names of the environment variables concerned.
        hint: What to do about it.
    """

    variables: tuple[str, ...]
    hint: str

    def __init__(self, text: str, variables: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(f"{text}: {hint}" if hint else text)
        self._text = text
        self.variables = tuple(variables)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._text, self.variables, self.hint)
