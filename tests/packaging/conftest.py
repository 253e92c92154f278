"""Wheel and sdist, built once, and the empty places they are installed into."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Beside the other build outputs, so that a second run has little to compile.
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

Run = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives the tests of this folder time to compile."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(600))


@functools.cache
def cargo_metadata() -> dict[str, object]:
    """What `cargo metadata` says for the machine at hand."""
    host = next(
        line.split()[1]
        for line in subprocess.check_output(["rustc", "-vV"], text=True).splitlines()
        if line.startswith("host:")
    )
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host]
    metadata: dict[str, object] = json.loads(subprocess.check_output(command, cwd=ROOT))
    return metadata


@pytest.fixture(scope="session")
def version() -> str:
    """The version in Cargo.toml."""
    command = ["cargo", "pkgid", "--locked", "--package", "nativelaunch-cli"]
    return subprocess.check_output(command, cwd=ROOT, text=True).strip().rpartition("@")[2].rpartition("#")[2]


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs a command and returns its stdout; all that it printed is in the failure."""

    def run(
        *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT, status: int = 0
    ) -> str:
        done = subprocess.run(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def build(run: Run, kind: str, tree: Path, out: Path) -> Path:
    """Builds a wheel or sdist of a source tree, as `make wheel` does but without a network."""
    env = {**os.environ, "CARGO_TARGET_DIR": str(TARGET), "MATURIN_PEP517_ARGS": "--compatibility pypi"}
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, tree, env=env)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="session")
def wheel(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return build(run, "wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of this tree."""
    return build(run, "sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def sdist_tree(sdist: Path) -> Path:
    """The sdist, unpacked."""
    folder = TARGET / "packaging"
    shutil.rmtree(folder, ignore_errors=True)
    now = time.time()
    with tarfile.open(sdist) as archive:
        # cargo takes files from 2006 for the ones that it compiled here the last time
        archive.extractall(folder, filter=lambda file, _: file.replace(mtime=now))
    (tree,) = folder.iterdir()
    return tree


@pytest.fixture(scope="session")
def wheel_of_sdist(run: Run, sdist_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the sdist builds."""
    return build(run, "wheel", sdist_tree, tmp_path_factory.mktemp("wheel_of_sdist"))


@pytest.fixture(scope="session")
def only_sh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose PATH has `sh` and nothing else: no python, no cargo."""
    folder = tmp_path_factory.mktemp("only_sh")
    (folder / "sh").symlink_to("/bin/sh")
    return {"PATH": str(folder), "HOME": str(folder)}


@pytest.fixture
def empty_venv(run: Run, tmp_path: Path) -> Path:
    """An environment of the running interpreter with nothing in it, pip included."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    return venv


@pytest.fixture
def install(run: Run, only_sh: Mapping[str, str]) -> Callable[..., None]:
    """Installs a wheel by pip, with no compiler at hand."""

    def install(wheel: Path, *options: str | Path, python: Path = Path(sys.executable)) -> None:
        # from the wheel alone: the dependency is looked at in test_wheel.py
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        run(*pip, "install", "--quiet", "--no-deps", "--no-index", *options, wheel, env=only_sh)

    return install


@pytest.fixture(scope="session")
def assert_four_ranks(run: Run, only_sh: Mapping[str, str]) -> Callable[[Path], None]:
    """Checks that a binary starts four ranks where no Python is to be found."""

    def check(binary: Path) -> None:
        script = "echo $RANK/$WORLD_SIZE"
        lines = run(binary, "-n", "4", "--no-python", "sh", "-c", script, env=only_sh).splitlines()
        assert sorted(lines) == ["0/4", "1/4", "2/4", "3/4"]

    return check
