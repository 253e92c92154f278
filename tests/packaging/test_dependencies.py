"""The crates: few, known, and under licences that may be shipped. What cargo-deny checks, where it is not installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.packaging.conftest import ROOT, cargo_metadata

LICENSES = {"Apache-2.0", "Apache-2.0 WITH LLVM-exception", "MIT", "Unicode-3.0"}
OWN = {"nativelaunch-cli", "nativelaunch-core", "nativelaunch-py"}
CORE = {"bitflags", "libc", "linux-raw-sys", "nativelaunch-core", "rustix"}


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("nativelaunch-core", CORE), ("nativelaunch-cli", CORE | {"lexopt", "nativelaunch-cli", "strsim"})],
)
def test_engine_and_binary_need_few_crates(package: str, allowed: set[str], run: Callable[..., str]) -> None:
    tree = run(
        "cargo", "tree", "--locked", "--package", package, "--edges", "normal,build", "--prefix", "none"
    )
    assert {line.split()[0] for line in tree.splitlines() if line} <= allowed


def test_no_crate_is_there_twice(run: Callable[..., str]) -> None:
    assert run("cargo", "tree", "--locked", "--workspace", "--edges", "normal", "--duplicates").strip() == ""


def test_every_crate_may_be_shipped() -> None:
    for package in cast("list[dict[str, Any]]", cargo_metadata()["packages"]):
        # an SPDX expression: one side of each OR must be among ours
        required = re.split(
            r"\s+AND\s+", package["license"].replace("/", " OR ").replace("(", "").replace(")", "")
        )
        for choices in required:
            assert LICENSES & set(re.split(r"\s+OR\s+", choices)), f"{package['name']}: {package['license']}"


def test_every_linked_crate_has_its_notice(run: Callable[..., str]) -> None:
    run(sys.executable, "tools/third_party.py", "--check")
    notices = (ROOT / "THIRD-PARTY").read_text()
    for package in ("nativelaunch-cli", "nativelaunch-py"):
        tree = run("cargo", "tree", "--locked", "--package", package, "--edges", "normal,no-proc-macro")
        names = set(re.findall(r"(\S+) v(?=\d)", tree))
        assert {"libc", "rustix"} <= names
        for name in names - OWN:
            assert re.search(rf"^{name} \d", notices, re.MULTILINE), name


@pytest.mark.parametrize("package", ["nativelaunch-core", "nativelaunch-cli"])
def test_crate_comes_with_its_license_and_readme(package: str, run: Callable[..., str]) -> None:
    files = run("cargo", "package", "--locked", "--allow-dirty", "--list", "--package", package).split()
    assert {"Cargo.toml", "LICENSE", "README.md"} <= set(files)


def test_every_crate_comes_from_the_registry() -> None:
    packages = cast("list[dict[str, Any]]", cargo_metadata()["packages"])
    own = {package["name"] for package in packages if package["source"] is None}
    assert own == OWN
    assert all(package["source"].startswith("registry+") for package in packages if package["source"])
