"""Checks what callers pass, before anything is started. Each refusal is one line with the field and its value."""

from __future__ import annotations

import fcntl
import math
import operator
import os
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

from nativelaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Text: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"

LARGEST_COUNT = 2**31 - 1
LONGEST_SECONDS = 10 * 366 * 86400.0


def text(field: str, value: object) -> bytes:
    """The bytes that the system gets for a str, bytes or path."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise UsageError(f"{field} must be str, bytes or a path: {value!r}")
    try:
        raw = os.fsencode(value)
    except UnicodeEncodeError as error:
        raise UsageError(f"{field} cannot be encoded ({error.reason}): {value!r}") from None
    if b"\0" in raw:
        raise UsageError(f"{field} must not contain a NUL byte: {value!r}")
    return raw


def command(field: str, value: Sequence[Text]) -> list[bytes]:
    """The arguments of a program, the first one naming it."""
    if isinstance(value, (str, bytes, os.PathLike)):
        raise UsageError(
            f'{field} must be a sequence of arguments, such as ["python", "train.py"]: {value!r}'
        )
    try:
        items = list(value)
    except TypeError:
        raise UsageError(f"{field} must be a sequence of arguments: {value!r}") from None
    if not items:
        raise UsageError(f"{field} must name a program: {value!r}")
    argv = [text(f"{field}[{index}]", item) for index, item in enumerate(items)]
    if not argv[0]:
        raise UsageError(f"{field} must name a program: {items!r}")
    return argv


def directory(field: str, value: Text | None) -> bytes | None:
    """A working directory; None is the caller's."""
    if value is None:
        return None
    raw = text(field, value)
    if not raw:
        raise UsageError(f"{field} must not be empty: {value!r}")
    return raw


def variables(field: str, value: Mapping[str, str | None] | None) -> dict[bytes, bytes | None]:
    """Changes of the environment: None removes a variable."""
    if value is None:
        return {}
    try:
        items = list(value.items())
    except AttributeError:
        raise UsageError(f"{field} must be a mapping of names to values: {value!r}") from None
    changes: dict[bytes, bytes | None] = {}
    for name, content in items:
        raw = text(f"{field} name", name)
        if not raw or b"=" in raw:
            raise UsageError(f'{field} name must not be empty or contain "=": {name!r}')
        changes[raw] = None if content is None else text(f"{field}[{name!r}]", content)
    return changes


def environment(changes: Mapping[bytes, bytes | None]) -> dict[bytes, bytes]:
    """The caller's environment with these changes."""
    environ = dict(os.environb)
    for name, content in changes.items():
        if content is None:
            environ.pop(name, None)
        else:
            environ[name] = content
    return environ


def count(field: str, value: SupportsIndex, *, least: int, most: int = LARGEST_COUNT) -> int:
    """A whole number in a range. True and False are mistakes, not numbers."""
    if isinstance(value, bool):
        raise UsageError(f"{field} must be a whole number: {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{field} must be a whole number: {value!r}") from None
    if number < least:
        raise UsageError(f"{field} must be at least {least}: {number}")
    if number > most:
        raise UsageError(f"{field} must be at most {most}: {number}")
    return number


def seconds(field: str, value: float) -> float:
    """A time of at least 0 seconds."""
    if isinstance(value, (bool, str, bytes)):
        raise UsageError(f"{field} must be a number of seconds: {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{field} must be a number of seconds: {value!r}") from None
    if math.isnan(number) or not 0 <= number <= LONGEST_SECONDS:
        raise UsageError(f"{field} must be a number of seconds of at least 0: {value!r}")
    return number


def choice(field: str, value: object, choices: Sequence[str]) -> str:
    """One of a few words."""
    if isinstance(value, str) and value in choices:
        return str(value)
    words = ", ".join(f'"{word}"' for word in choices)
    raise UsageError(f"{field} must be one of {words}: {value!r}")


def descriptor(field: str, value: SupportsIndex) -> int:
    """An open file descriptor."""
    number = count(field, value, least=0)
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        raise UsageError(f"{field} must be an open file descriptor: {number}") from None
    return number


def descriptors(field: str, value: Iterable[SupportsIndex]) -> list[int]:
    """File descriptors that workers get under the same numbers."""
    try:
        items = list(value)
    except TypeError:
        raise UsageError(f"{field} must be a sequence of file descriptors: {value!r}") from None
    numbers = []
    for index, item in enumerate(items):
        number = descriptor(f"{field}[{index}]", item)
        if number <= 2:
            raise UsageError(f"{field}[{index}] must be above 2, use stdin, stdout, stderr: {number}")
        if number not in numbers:
            numbers.append(number)
    return numbers
