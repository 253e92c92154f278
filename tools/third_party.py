"""Writes THIRD-PARTY, the notices of all crates that are linked into what we ship.

Run as `python tools/third_party.py`, which needs the crates' sources: cargo fetches them. With `--check`, nothing is
written, and the status is 1 if the file is not what would be written now.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTICES = ROOT / "THIRD-PARTY"
SHIPPED = ("nativelaunch-cli", "nativelaunch-py")
RULE = "-" * 80

HEAD = """\
The wheel of nativelaunch holds code of the Rust crates below, each of which may be had under the MIT license, and of
the Rust standard library, Copyright (c) The Rust Project Contributors, which may be had under the Apache License,
Version 2.0 (see LICENSE): https://github.com/rust-lang/rust.
"""


def linked() -> list[dict[str, Any]]:
    """Packages whose code is in the extension or in the binary, by name: no build scripts, macros or tests."""
    command = [
        "cargo",
        "tree",
        "--locked",
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]
    command += [argument for package in SHIPPED for argument in ("--package", package)]
    tree = subprocess.check_output(command, cwd=ROOT, text=True)
    names = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    packages = json.loads(subprocess.check_output(command, cwd=ROOT))["packages"]
    others = [package for package in packages if package["source"]]
    found = [package for package in others if (package["name"], f"v{package['version']}") in names]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def notice(package: dict[str, Any]) -> str:
    """A crate's name and the text of its MIT license."""
    folder = Path(package["manifest_path"]).parent
    files = [folder / name for name in ("LICENSE-MIT", "LICENSE") if (folder / name).is_file()]
    text = "\n".join(line.rstrip() for line in files[0].read_text().strip().splitlines()) if files else ""
    if "Permission is hereby granted, free of charge" not in text:
        sys.exit(f"{package['name']} comes without the text of the MIT license: {package['license']}")
    origin = package["repository"] or package["homepage"] or ""
    return f"{RULE}\n{package['name']} {package['version']} ({package['license']})\n{origin}\n\n{text}\n"


def main() -> int:
    text = "\n".join([HEAD, *map(notice, linked())])
    if "--check" not in sys.argv[1:]:
        NOTICES.write_text(text)
    elif not NOTICES.exists() or NOTICES.read_text() != text:
        print("THIRD-PARTY is not what `make notices` writes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
