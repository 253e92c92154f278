"""The sdist, and the wheel that it builds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, TARGET

SOURCES = ("rust/core/src", "rust/cli/src", "rust/py/src", "python")
ALONE = (
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "THIRD-PARTY",
    "pyproject.toml",
    "tools/build_backend.py",
)


def test_sdist_holds_every_source(sdist_tree: Path) -> None:
    listed = subprocess.check_output(["git", "ls-files", "-z", "--", *SOURCES, *ALONE], cwd=ROOT, text=True)
    wanted = {path for path in listed.split("\0") if path and (ROOT / path).exists()}
    missing = {path for path in wanted if not (sdist_tree / path).exists()}
    assert wanted
    assert not missing
    assert {path.name for path in (sdist_tree / "rust").iterdir()} == {"core", "cli", "py"}
    for path in ALONE:
        assert (sdist_tree / path).read_bytes() == (ROOT / path).read_bytes(), path


def test_sdist_holds_nothing_built(sdist_tree: Path) -> None:
    assert not [
        path for path in sdist_tree.rglob("*") if path.suffix in {".so", ".pyc"} or path.name == "target"
    ]


def test_wheel_of_the_sdist_runs_without_a_compiler(
    wheel_of_sdist: Path,
    wheel: Path,
    empty_venv: Path,
    install: Callable[..., None],
    assert_four_ranks: Callable[[Path], None],
) -> None:
    assert wheel_of_sdist.name == wheel.name
    install(wheel_of_sdist, python=empty_venv / "bin" / "python")
    assert_four_ranks(empty_venv / "bin" / "nativelaunch")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--editable",)], ids=["plain", "editable"])
def test_pip_installs_sources_by_itself(
    options: tuple[str, ...],
    sdist_tree: Path,
    empty_venv: Path,
    run: Callable[..., str],
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With build isolation, so it needs a package index."""
    monkeypatch.setenv("CARGO_TARGET_DIR", str(TARGET))
    python = empty_venv / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *options, sdist_tree)
    command = "import nativelaunch; print(nativelaunch.__version__, nativelaunch.find_bin())"
    binary = empty_venv / "bin" / "nativelaunch"
    assert run(python, "-c", command).split() == [version, str(binary)]
    assert run(binary, "--version").split() == ["nativelaunch", version]
