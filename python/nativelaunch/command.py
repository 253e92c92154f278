"""The command that runs this very program again, for ranks that are copies of a script."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import nativelaunch
from nativelaunch.errors import LauncherError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# CPython's short options (Python/getopt.c); these take an argument, in the same word or the next.
_WITH_ARGUMENT = "cmWX"
_LONG_WITH_ARGUMENT = ("--check-hash-based-pycs",)


@dataclass(frozen=True)
class ChildCommand:
    """How one rank is started.

    Attributes:
        argv: Program and arguments.
        cwd: Working directory; None is the caller's.
        env: Changes of the caller's environment; None removes a variable.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str | None] = field(default_factory=dict)


class Program(NamedTuple):
    """A Python command line in its parts.

    Attributes:
        options: Interpreter options, without `-i`.
        kind: "script" (also a folder or a zip file), "module", "code" or "stdin".
        target: The path, the module's name or the code.
        arguments: What the program finds behind its name in `sys.argv`.
    """

    options: tuple[str, ...]
    kind: str
    target: str
    arguments: tuple[str, ...]


def parse(argv: Sequence[str]) -> Program:
    """Takes apart a command line of CPython ("Command line and environment", 1.1), its first word the interpreter."""
    options: list[str] = []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if word == "-" or not word.startswith("-"):
            words.insert(0, word)
            break
        if word.startswith("--"):
            options.append(word)
            if word in _LONG_WITH_ARGUMENT and words:
                options.append(words.pop(0))
            continue
        letters = word[1:]
        at = next((index for index, letter in enumerate(letters) if letter in _WITH_ARGUMENT), len(letters))
        # After an interactive look at a failed rank its status would be 0.
        flags = letters[:at].replace("i", "")
        if flags:
            options.append(f"-{flags}")
        if at == len(letters):
            continue
        letter = letters[at]
        value = letters[at + 1 :] or (words.pop(0) if words else "")
        if letter in "cm":
            return Program(tuple(options), "code" if letter == "c" else "module", value, tuple(words))
        options.append(f"-{letter}{value}")
    if not words or words[0] == "-":
        return Program(tuple(options), "stdin", "-", tuple(words[1:]))
    return Program(tuple(options), "script", words[0], tuple(words[1:]))


def child_command(
    orig_argv: Sequence[str] | None = None,
    *,
    executable: str | None = None,
    start_directory: str | None = None,
    env: Mapping[str, str | None] | None = None,
) -> ChildCommand:
    """The command that starts this program again, with the interpreter options and arguments it was given.

    A child runs the program from its beginning, so it starts where the program did: in the directory that was current
    when `nativelaunch` was imported. Import it before the program changes its directory.

    Args:
        orig_argv: The whole command line; None is `sys.orig_argv`.
        executable: The interpreter; None is `sys.executable`.
        start_directory: Where the program was started; None is where the package was imported.
        env: Changes of the environment for the child.

    Raises:
        LauncherError: The program cannot be run again: it came from standard input, is an interactive session, or is
            embedded in another program; or its script is not where it was.
    """
    if executable is None:
        executable = sys.executable
    if start_directory is None:
        start_directory = nativelaunch._start_directory
    if not executable:
        raise LauncherError(
            "cannot run this program again: Python is embedded in another program (sys.executable is empty): "
            "start the ranks from outside, with the nativelaunch binary"
        )
    program = parse(sys.orig_argv if orig_argv is None else orig_argv)
    if program.kind == "stdin":
        raise LauncherError(
            "cannot run this program again: it was read from standard input or is an interactive session: "
            "save it to a file and start that"
        )
    start = [executable, *program.options]
    if program.kind == "code":
        argv = (*start, "-c", program.target, *program.arguments)
    elif program.kind == "module":
        argv = (*start, "-m", program.target, *program.arguments)
    else:
        argv = (*start, _script_path(program.target, start_directory), *program.arguments)
    if start_directory is not None and not os.path.isdir(start_directory):
        start_directory = None
    return ChildCommand(argv, start_directory, dict(env or {}))


def _script_path(script: str, start_directory: str | None) -> str:
    # `__file__` is absolute since Python 3.9, from before the program could change its directory. It is no help for a
    # folder or a zip file, nor where another program (a profiler, say) runs the script.
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(main, str) and os.path.isabs(main) and os.path.basename(main) == os.path.basename(script):
        path = main
    elif start_directory is None:
        path = script
    else:
        # Joined, not normalized: `link/../train.py` is not `train.py`.
        path = os.path.join(start_directory, script)
    if not os.path.exists(path):
        raise LauncherError(
            f'cannot run this program again: no such file: "{path}" '
            "(import nativelaunch before the program changes its directory)"
        )
    return path
