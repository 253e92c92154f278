"""What every launcher can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

T = TypeVar("T")


class Launcher(ABC):
    """Runs a function in every rank. As a context manager it closes itself."""

    @property
    @abstractmethod
    def is_interactive_compatible(self) -> bool:
        """Whether it works from a notebook or an interactive session."""

    @abstractmethod
    def launch(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs `function(*args, **kwargs)` in every rank and returns what it returned here."""

    @abstractmethod
    def kill(self, signum: int) -> None:
        """Sends a signal to every rank that this launcher started."""

    @abstractmethod
    def close(self) -> None:
        """Waits for the ranks, ends those that do not end, and leaves nothing behind."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
