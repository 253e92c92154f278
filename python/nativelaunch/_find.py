"""Finding the binary that came with this package."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = "nativelaunch"


def find_bin() -> str:
    """Finds the `nativelaunch` binary.

    Looked at in this order: the variable `NATIVELAUNCH_BIN`; the path that the installer wrote into the distribution's
    RECORD; the folders for scripts of the interpreter, of the user, and of a `--target` install; and PATH, where the
    first one counts whose `--version` is that of this package.

    Returns:
        A path to an executable file.

    Raises:
        SpawnError: There is none; the text lists the places looked at.
    """
    named = os.environ.get("NATIVELAUNCH_BIN")
    if named:
        if _is_program(named):
            return named
        raise _not_found(f'NATIVELAUNCH_BIN is not an executable file: "{named}"')
    seen: list[str] = []
    for path in _installed():
        if path not in seen:
            if _is_program(path):
                return path
            seen.append(path)
    places = [f'"{path}"' for path in seen]
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, _NAME)
        if path not in seen and _is_program(path):
            if _is_same_version(path):
                return path
            places.append(f'"{path}" (another version)')
    raise _not_found(
        f"the {_NAME} binary is not where it was installed: reinstall the package or set NATIVELAUNCH_BIN: "
        f"looked at {', '.join(places)} and PATH"
    )


def _installed() -> Iterator[str]:
    """The paths where an installer puts the binary."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for folder in dict.fromkeys((home, *sys.path)):
        yield from _recorded(folder)

    import sysconfig

    yield os.path.join(sysconfig.get_path("scripts"), _NAME)
    user = sysconfig.get_preferred_scheme("user")
    yield os.path.join(sysconfig.get_path("scripts", scheme=user), _NAME)
    yield os.path.join(home, "bin", _NAME)


def _recorded(folder: str) -> Iterator[str]:
    """The binary's path in the RECORD of this distribution, if it is installed in the folder.

    `importlib.metadata` would do, but takes longer to import than all the rest of a start.
    """
    try:
        names = os.listdir(folder or os.curdir)
    except OSError:
        return
    for name in names:
        if not (name.startswith(f"{_NAME}-") and name.endswith(".dist-info")):
            continue
        import csv

        try:
            with open(os.path.join(folder, name, "RECORD"), encoding="utf-8", newline="") as record:
                paths = [row[0] for row in csv.reader(record) if row]
        except OSError:
            continue
        for path in paths:
            parts = path.split("/")
            # Scripts are recorded relative to the folder, or absolute.
            if parts[-1] == _NAME and len(parts) > 1:
                yield os.path.normpath(os.path.join(folder, path))


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_same_version(path: str) -> bool:
    import subprocess

    from nativelaunch._core import __version__

    try:
        told = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == 0 and told.stdout.split() == [_NAME.encode(), __version__.encode()]


def _not_found(text: str) -> Exception:
    import errno

    from nativelaunch.errors import SpawnError

    return SpawnError(errno.ENOENT, text, stage="find")
