"""The command that runs this program again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from nativelaunch import LauncherError
from nativelaunch.command import Program, child_command, parse

# Tells what it got, once by itself and once as the child command says.
PROGRAM = textwrap.dedent("""
    import os, sys
    import nativelaunch.command
    here = [sys.argv[1:], os.getcwd(), sys.flags.optimize, sys.flags.dev_mode, sys.warnoptions]
    print(here, flush=True)
    if "AGAIN" not in os.environ:
        if "MOVE" in os.environ:
            os.chdir("/")
        command = nativelaunch.command.child_command(env={"AGAIN": "1"})
        os.chdir(command.cwd)
        os.execve(command.argv[0], command.argv, {**os.environ, **command.env})
""")


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("python s.py a -m b", Program((), "script", "s.py", ("a", "-m", "b"))),
        (
            "python -O -X dev -W error -u s.py",
            Program(("-O", "-Xdev", "-Werror", "-u"), "script", "s.py", ()),
        ),
        ("python -Xdev -OO s.py", Program(("-Xdev", "-OO"), "script", "s.py", ())),
        ("python -uOm pkg.mod -x", Program(("-uO",), "module", "pkg.mod", ("-x",))),
        ("python -mpkg a", Program((), "module", "pkg", ("a",))),
        ("python -c pass a -", Program((), "code", "pass", ("a", "-"))),
        ("python -Ic pass", Program(("-I",), "code", "pass", ())),
        ("python -i s.py", Program((), "script", "s.py", ())),
        ("python -Oi s.py", Program(("-O",), "script", "s.py", ())),
        ("python -- -s.py a", Program((), "script", "-s.py", ("a",))),
        (
            "python --check-hash-based-pycs always s.py",
            Program(("--check-hash-based-pycs", "always"), "script", "s.py", ()),
        ),
        ("python", Program((), "stdin", "-", ())),
        ("python -u", Program(("-u",), "stdin", "-", ())),
        ("python - a", Program((), "stdin", "-", ("a",))),
    ],
)
def test_a_command_line_in_its_parts(line: str, want: Program) -> None:
    assert parse(line.split()) == want


def replay(arguments: list[str], cwd: Path, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "s.py").write_text(PROGRAM)
    package = tmp_path / "pkg"
    package.mkdir()
    for name in ("__init__.py",):
        (package / name).touch()
    for name in ("__main__.py", "mod.py"):
        (package / name).write_text(PROGRAM)
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", PROGRAM)
    (tmp_path / "link.py").symlink_to(tmp_path / "s.py")
    return tmp_path


FORMS = [
    ["s.py", "--a", "b c", "", "*", "$HOME"],
    ["./s.py"],
    ["link.py"],
    ["pkg/../s.py"],
    ["-m", "pkg", "x"],
    ["-m", "pkg.mod", "x"],
    ["pkg", "x"],
    ["pkg/", "x"],
    ["app.pyz", "x"],
    ["-c", PROGRAM, "x", "-c"],
    ["-O", "-X", "dev", "-W", "error", "-u", "s.py", "x"],
]


@pytest.mark.parametrize("moves", [False, True], ids=["", "after a chdir"])
@pytest.mark.parametrize("arguments", FORMS, ids=[" ".join(form)[:30].strip() for form in FORMS])
def test_a_child_sees_what_its_parent_saw(program: Path, arguments: list[str], moves: bool) -> None:
    first, second = replay(arguments, program, **({"MOVE": "1"} if moves else {}))
    assert first == second


def test_a_program_from_stdin_is_refused_in_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=PROGRAM, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "read from standard input or is an interactive session" in done.stderr


def test_an_embedded_interpreter_is_refused() -> None:
    with pytest.raises(LauncherError, match=r"sys\.executable is empty"):
        child_command(["host"], executable="")


def test_a_script_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="no such file"):
        child_command(["python", "gone.py"], start_directory=str(tmp_path))
