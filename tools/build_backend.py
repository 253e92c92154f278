"""The PEP 517 front over maturin: one wheel with the extension and the `nativelaunch` binary.

maturin builds either an extension or a binary from one project. Files below `<module>.data/scripts/` go into the
wheel as they are, so the binary is built and laid there first, and taken away again: a stale one would be shipped
by the next plain `maturin build`.

The folder is never named in `[tool.maturin] data`: with it every hook fails in a fresh clone, where it is absent.

Read from the environment: `MATURIN_PEP517_ARGS` (`--target`, `--profile`, `--offline` and `--frozen` hold for the
binary too) and all that cargo reads itself, `CARGO_TARGET_DIR` and `CARGO_BUILD_TARGET` among them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "nativelaunch._core.data"
BINARY = "nativelaunch"
PROFILE = "release"
# The glibc minor versions that have a manylinux policy; every later one has its own.
POLICIES = (17, 24, 26, 27, 28, 31, 34)

Settings = Mapping[str, Any] | None


def build_wheel(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Builds the wheel; its tag holds for the binary too."""
    with staged_binary(settings):
        name: str = maturin.build_wheel(directory, settings, metadata)
        wheel = Path(directory, name)
        needed = glibc_minor(binary_in(wheel))
        if needed <= promised_glibc_minor(name):
            return name
        # maturin looks at the extension alone, and the binary needs a newer glibc
        args = maturin.get_maturin_pep517_args(settings)
        asked = parse_args(args)[0].compatibility
        if asked != ["pypi"]:
            wheel.unlink()
            raise SystemExit(
                f"the wheel is tagged {platform_tag(name)}, but `{BINARY}` in it needs glibc 2.{needed}: "
                "build in an image with that glibc, or ask for a later tag with --compatibility"
            )
        wheel.unlink()
        policy = next((minor for minor in POLICIES if minor >= needed), needed)
        args[args.index("pypi")] = f"manylinux_2_{policy}"
        return str(maturin.build_wheel(directory, {**(settings or {}), "maturin.build-args": args}, metadata))


def build_editable(directory: str, settings: Settings = None, metadata: str | None = None) -> str:
    """Builds the wheel of an editable install: a path to the sources, and a copy of the binary."""
    with staged_binary(settings):
        # maturin writes over the extension in place: a process that has it mapped would execute what it is not
        for extension in (ROOT / "python" / "nativelaunch").glob("_core*.so"):
            extension.unlink()
        name: str = maturin.build_editable(directory, settings, metadata)
        binary_in(Path(directory, name))
        return name


def build_sdist(directory: str, settings: Settings = None) -> str:
    """Builds the sdist.

    maturin strikes workspace members that the extension does not need, and with them the binary, from Cargo.toml:
    ours is put back.
    """
    name = str(maturin.build_sdist(directory, settings))
    path = Path(directory, name)
    manifest = f"{name.removesuffix('.tar.gz')}/Cargo.toml"
    packed = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for member in old:
            content = old.extractfile(member)
            if member.name == manifest:
                text = (ROOT / "Cargo.toml").read_bytes()
                member.size, content = len(text), io.BytesIO(text)
            new.addfile(member, content)
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return name


@contextlib.contextmanager
def staged_binary(settings: Settings) -> Iterator[None]:
    """Builds the binary and has it staged for the time of the context; one build at a time per tree."""
    with (ROOT / "pyproject.toml").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        binary = build_binary(settings)
        shutil.rmtree(STAGE, ignore_errors=True)
        try:
            (STAGE / "scripts").mkdir(parents=True)
            shutil.copy2(binary, STAGE / "scripts" / BINARY)
            yield
        finally:
            shutil.rmtree(STAGE, ignore_errors=True)


def build_binary(settings: Settings) -> Path:
    """Runs cargo and returns the path it reports, which follows target folder and triple wherever they were set."""
    if not os.environ.get("MATURIN_NO_INSTALL_RUST") and not shutil.which("cargo"):
        from puccinialin import setup_rust  # required by get_requires_for_build_wheel in this very case

        os.environ.update(setup_rust())
    known, rest = parse_args(maturin.get_maturin_pep517_args(settings))
    profile = known.profile or PROFILE
    command = ["cargo", "build", "--locked", "--package", "nativelaunch-cli", "--profile", profile]
    command += ["--message-format", "json-render-diagnostics"]
    command += [arg for arg in rest if arg in ("--offline", "--frozen")]
    if known.target:
        command += ["--target", known.target]
    print("Running `{}`".format(" ".join(command)), flush=True)
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if result.returncode != 0:
        raise SystemExit(f"cargo could not build `{BINARY}`: exit status {result.returncode}")
    messages = [json.loads(line) for line in result.stdout.splitlines() if line.startswith(b"{")]
    return next(
        Path(message["executable"])
        for message in messages
        if message.get("reason") == "compiler-artifact"
        and message["target"]["name"] == BINARY
        and message["executable"]
    )


def parse_args(args: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Splits maturin's arguments into those that concern the binary too, and the rest."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--target")
    parser.add_argument("--profile")
    parser.add_argument("--compatibility", "--manylinux", nargs="*")
    return parser.parse_known_args(args)


def binary_in(wheel: Path) -> bytes:
    """Reads the binary out of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(f".data/scripts/{BINARY}"):
                return archive.read(name)
    raise SystemExit(f"{wheel.name} came out without `{BINARY}`")


def glibc_minor(program: bytes) -> int:
    """The newest glibc that a program names; 0 for a static or musl one.

    The versions that a program needs stand in its `.dynstr`, each ended by a NUL.
    """
    return max((int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", program)), default=0)


def promised_glibc_minor(wheel: str) -> float:
    """The oldest glibc that a wheel's tag promises to run on; infinity where it promises nothing."""
    minors = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", platform_tag(wheel))]
    return min(minors, default=float("inf"))


def platform_tag(wheel: str) -> str:
    """The last part of a wheel's name."""
    return wheel.removesuffix(".whl").rsplit("-", 1)[1]
