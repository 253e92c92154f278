"""Installed, in each way there is: the binary runs, and the package finds it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

FIND = "import nativelaunch; print(nativelaunch.find_bin())"
ERROR = """
import nativelaunch
try:
    nativelaunch.find_bin()
except nativelaunch.SpawnError as error:
    print(isinstance(error, FileNotFoundError), error.errno, error)
"""

Run = Callable[..., str]
Install = Callable[..., None]


@pytest.fixture
def venv(wheel: Path, empty_venv: Path, install: Install) -> Path:
    install(wheel, python=empty_venv / "bin" / "python")
    return empty_venv


def fake(path: Path, version: str) -> Path:
    """A program that says it is nativelaunch of this version, and else its process id."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo nativelaunch {version} || echo $$ "$@"\n')
    path.chmod(0o755)
    return path


def test_wheel_runs_in_an_empty_environment_without_rust(
    venv: Path, run: Run, only_sh: Mapping[str, str], version: str, assert_four_ranks: Callable[[Path], None]
) -> None:
    assert shutil.which("cargo", path=only_sh["PATH"]) is None
    assert_four_ranks(venv / "bin" / "nativelaunch")
    told = run(venv / "bin" / "nativelaunch", "--version", env=only_sh)
    assert told == f"nativelaunch {version}\n"
    command = "import nativelaunch; print(nativelaunch.__version__)"
    assert run(venv / "bin" / "python", "-c", command, env=only_sh) == f"{version}\n"


def test_python_m_becomes_the_binary(venv: Path, run: Run, only_sh: Mapping[str, str], version: str) -> None:
    python = venv / "bin" / "python"
    assert run(python, "-m", "nativelaunch", "--version", env=only_sh) == f"nativelaunch {version}\n"
    # the process id stays
    binary = fake(venv / "elsewhere", version)
    command = "import os, nativelaunch.__main__ as main; print(os.getpid(), flush=True); main.main()"
    env = {**only_sh, "NATIVELAUNCH_BIN": str(binary)}
    before, after = run(python, "-c", command, "a b", "", env=env).splitlines()
    assert after.split(" ", 1)[0] == before


def test_python_m_passes_bytes_and_signal_dispositions(venv: Path, only_sh: Mapping[str, str]) -> None:
    python = venv / "bin" / "python"
    commands: list[tuple[str, list[str | bytes]]] = [
        ("/bin/grep", ["SigIgn", "/proc/self/status"]),
        ("/bin/echo", [b"\xff\xfe", b"a b", b""]),
    ]
    for name, arguments in commands:
        direct = subprocess.check_output([name, *arguments], env=only_sh)
        env = {**only_sh, "NATIVELAUNCH_BIN": name}
        assert subprocess.check_output([python, "-m", "nativelaunch", *arguments], env=env) == direct


def test_binary_is_found_by_the_record(venv: Path, run: Run, only_sh: Mapping[str, str]) -> None:
    binary = venv / "bin" / "nativelaunch"
    assert run(venv / "bin" / "python", "-c", FIND, env=only_sh) == f"{binary}\n"
    # an installer that puts scripts elsewhere says so there
    (record,) = venv.glob("lib/python*/site-packages/nativelaunch-*.dist-info/RECORD")
    moved = venv / "scripts, own" / "nativelaunch"
    moved.parent.mkdir()
    shutil.copy2(binary, moved)
    lines = record.read_text().splitlines()
    lines = [f'"{moved}",,' if line.startswith("../../../bin/nativelaunch,") else line for line in lines]
    record.write_text("\n".join(lines))
    assert run(venv / "bin" / "python", "-c", FIND, env=only_sh) == f"{moved}\n"


def test_variable_comes_before_all(venv: Path, run: Run, only_sh: Mapping[str, str], tmp_path: Path) -> None:
    binary = fake(tmp_path / "own", "0.0.1")
    env = {**only_sh, "NATIVELAUNCH_BIN": str(binary)}
    assert run(venv / "bin" / "python", "-c", FIND, env=env) == f"{binary}\n"
    # and is not passed over when it is wrong
    env["NATIVELAUNCH_BIN"] = str(tmp_path)
    told = run(venv / "bin" / "python", "-c", ERROR, env=env)
    assert told.rstrip() == f'False 2 NATIVELAUNCH_BIN is not an executable file: "{tmp_path}"'


def test_binary_is_found_in_a_target_folder(
    wheel: Path, empty_venv: Path, tmp_path: Path, install: Install, run: Run, only_sh: Mapping[str, str]
) -> None:
    target = tmp_path / "target"
    install(wheel, "--target", target)
    env = {**only_sh, "PYTHONPATH": str(target)}
    assert run(empty_venv / "bin" / "python", "-c", FIND, env=env) == f"{target}/bin/nativelaunch\n"


def test_binary_is_found_among_the_users_scripts(
    wheel: Path, empty_venv: Path, tmp_path: Path, install: Install, run: Run, only_sh: Mapping[str, str]
) -> None:
    install(wheel, "--target", tmp_path / "package")
    (tmp_path / "package" / "bin" / "nativelaunch").unlink()
    binary = fake(tmp_path / "user" / "bin" / "nativelaunch", "0.0.1")
    env = {**only_sh, "PYTHONPATH": str(tmp_path / "package"), "PYTHONUSERBASE": str(tmp_path / "user")}
    assert run(empty_venv / "bin" / "python", "-c", FIND, env=env) == f"{binary}\n"


def test_binary_on_path_counts_if_its_version_does(
    venv: Path, tmp_path: Path, run: Run, only_sh: Mapping[str, str], version: str
) -> None:
    (venv / "bin" / "nativelaunch").unlink()
    other = fake(tmp_path / "other" / "nativelaunch", "0.0.1")
    same = fake(tmp_path / "same" / "nativelaunch", version)
    env = {**only_sh, "PATH": f"{other.parent}:{same.parent}:{only_sh['PATH']}"}
    assert run(venv / "bin" / "python", "-c", FIND, env=env) == f"{same}\n"
    same.unlink()
    told = run(venv / "bin" / "python", "-c", ERROR, env=env)
    assert f'"{venv}/bin/nativelaunch"' in told
    assert f'"{other}" (another version)' in told
    assert told.count(f"{venv}/bin/nativelaunch") == 1


def test_python_m_without_a_binary_says_where_it_looked(venv: Path, only_sh: Mapping[str, str]) -> None:
    (venv / "bin" / "nativelaunch").unlink()
    python = venv / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "nativelaunch"], env=only_sh, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("nativelaunch: the nativelaunch binary is not where it was installed: ")
    assert done.stderr.count("\n") == 1


def test_uv_installs_it_as_a_tool(
    wheel: Path, tmp_path: Path, run: Run, assert_four_ranks: Callable[[Path], None]
) -> None:
    env = {**os.environ, "UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    env.pop("VIRTUAL_ENV", None)
    # the one dependency is in the cache since .venv was set up, or comes from the index
    run(sys.executable, "-m", "uv", "tool", "install", "--python", sys.executable, wheel, env=env)
    assert_four_ranks(tmp_path / "bin" / "nativelaunch")


def test_this_environment_has_the_binary_of_this_tree(run: Run, version: str) -> None:
    """Says that `make dev` was forgotten, before a hundred other tests say something odd."""
    binary = Path(sys.prefix, "bin", "nativelaunch")
    assert run(binary, "--version") == f"nativelaunch {version}\n"
    assert run(sys.executable, "-c", FIND) == f"{binary}\n"


def test_binary_builds_and_runs_without_python(
    tmp_path: Path,
    wheel: Path,
    run: Run,
    only_sh: Mapping[str, str],
    version: str,
    assert_four_ranks: Callable[[Path], None],
) -> None:
    run(
        "cargo",
        "install",
        "--quiet",
        "--locked",
        "--no-track",
        "--path",
        ROOT / "rust" / "cli",
        "--root",
        tmp_path,
    )
    assert shutil.which("python3", path=only_sh["PATH"]) is None
    assert_four_ranks(tmp_path / "bin" / "nativelaunch")
    assert run(tmp_path / "bin" / "nativelaunch", "--version", env=only_sh) == f"nativelaunch {version}\n"
    # The same profile, without a flag: a panic aborts this one too.
    with zipfile.ZipFile(wheel) as archive:
        shipped = archive.read(f"nativelaunch-{version}.data/scripts/nativelaunch")
    assert (tmp_path / "bin" / "nativelaunch").read_bytes() == shipped


@pytest.mark.slow
def test_wheel_loads_in_every_python_of_this_machine(wheel: Path, run: Run, version: str) -> None:
    """By uv, which finds them, and needs a package index for the one dependency."""
    found = run(
        sys.executable,
        "-m",
        "uv",
        "python",
        "list",
        "--only-installed",
        "--offline",
        "--output-format",
        "json",
    )
    paths = {
        python["version"]: python["path"]
        for python in json.loads(found)
        if python["implementation"] == "cpython"
        and python["version_parts"]["minor"] >= 10
        and python["variant"] == "default"
    }
    assert paths
    command = "import nativelaunch; print(nativelaunch.__version__)"
    for path in paths.values():
        uv = [
            sys.executable,
            "-m",
            "uv",
            "run",
            "--no-project",
            "--isolated",
            "--python",
            path,
            "--with",
            wheel,
        ]
        assert run(*uv, "python", "-c", command) == f"{version}\n"
