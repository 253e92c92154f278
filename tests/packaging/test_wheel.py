"""The wheel: what is in it, and that its tag is true."""

from __future__ import annotations

import email
import importlib.util
import io
import re
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = Path(__file__).parents[2]


def elf_files(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    return {name: content for name, content in contents.items() if content.startswith(b"\x7fELF")}


def needed_glibc_minor(program: bytes) -> int:
    """By the section that the loader reads."""
    needs = [s for s in ELFFile(io.BytesIO(program)).iter_sections() if isinstance(s, GNUVerNeedSection)]
    versions = [
        auxiliary.name for section in needs for _, aux in section.iter_versions() for auxiliary in aux
    ]
    return max(int(match[1]) for version in versions if (match := re.match(r"GLIBC_2\.(\d+)", version)))


@pytest.fixture
def backend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_backend", ROOT / "tools" / "build_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_wheel_holds_extension_and_binary(wheel: Path, version: str) -> None:
    binary = f"nativelaunch-{version}.data/scripts/nativelaunch"
    assert sorted(elf_files(wheel)) == [binary, "nativelaunch/_core.abi3.so"]
    with zipfile.ZipFile(wheel) as archive:
        assert stat.S_IMODE(archive.getinfo(binary).external_attr >> 16) == 0o755
        assert {"nativelaunch/py.typed", "nativelaunch/_core.pyi"} <= set(archive.namelist())
        scripts = [name for name in archive.namelist() if ".data/" in name]
    assert scripts == [binary]


def test_wheel_depends_on_typing_extensions_alone(wheel: Path, version: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"nativelaunch-{version}.dist-info/METADATA"))
    requirements = metadata.get_all("Requires-Dist", [])
    assert [text for text in requirements if "extra ==" not in text] == ["typing-extensions>=4.6"]
    assert sorted(metadata.get_all("Provides-Extra", [])) == ["hydra", "lightning", "torch", "xla"]
    assert metadata["Version"] == version
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"


def test_wheel_carries_license_and_notices(wheel: Path, version: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in ("LICENSE", "THIRD-PARTY"):
            carried = archive.read(f"nativelaunch-{version}.dist-info/licenses/{name}")
            assert carried == (ROOT / name).read_bytes()


@pytest.mark.parametrize("part", ["all", "extension", "binary"])
def test_auditwheel_agrees_with_the_tag(
    wheel: Path, run: Callable[..., str], part: str, tmp_path: Path
) -> None:
    tag = wheel.stem.rsplit("-", 1)[1]
    assert tag.startswith(("manylinux_2_", "musllinux_1_"))
    left_out = {"all": "none", "extension": "scripts/nativelaunch", "binary": "_core.abi3.so"}[part]
    audited = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(audited, "w") as partial:
        for entry in whole.infolist():
            content = whole.read(entry)
            if entry.filename.endswith("/RECORD"):
                content = b"\n".join(line for line in content.splitlines() if left_out.encode() not in line)
            if not entry.filename.endswith(left_out):
                partial.writestr(entry, content)
    told = " ".join(run(sys.executable, "-m", "auditwheel", "show", audited).split())
    found = re.search(r'consistent with the following platform tag: "([^"]*)"', told)
    assert found is not None, told
    if part == "all":
        assert found[1] == tag
    else:
        minor, promised = (int(re.findall(r"_(\d+)_", text)[-1]) for text in (found[1], tag))
        assert minor <= promised


def test_glibc_versions_are_read_from_programs(wheel: Path, backend: ModuleType) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    for program in [*elf_files(wheel).values(), Path(shell).read_bytes()]:
        assert backend.glibc_minor(program) == needed_glibc_minor(program) > 0


def test_binary_that_needs_a_newer_glibc_raises_the_tag(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(backend, "glibc_minor", lambda _program: 39)
    monkeypatch.setenv("MATURIN_PEP517_ARGS", "--compatibility pypi")
    name = backend.build_wheel(str(tmp_path))
    assert name.rsplit("-", 1)[1].startswith("manylinux_2_39_")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_tag_that_is_not_true_for_the_binary_is_refused(
    backend: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(backend, "glibc_minor", lambda _program: 39)
    monkeypatch.setenv("MATURIN_PEP517_ARGS", "--compatibility manylinux_2_38")
    with pytest.raises(
        SystemExit, match=r"tagged manylinux_2_38_\w+, but `nativelaunch` in it needs glibc 2\.39"
    ):
        backend.build_wheel(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_no_staged_binary_is_left_for_the_next_build(wheel: Path) -> None:
    assert not (ROOT / "nativelaunch._core.data").exists()


def test_cargo_arguments_reach_the_binary(backend: ModuleType) -> None:
    known, rest = backend.parse_args(
        ["--target", "aarch64-unknown-linux-gnu", "--profile=dev", "--compatibility", "pypi", "--offline"]
    )
    assert (known.target, known.profile, known.compatibility) == (
        "aarch64-unknown-linux-gnu",
        "dev",
        ["pypi"],
    )
    assert rest == ["--offline"]
