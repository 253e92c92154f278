"""Trains a small network on 4 ranks, loses one of them half way, and takes the training up again.

`make demo` runs this. It checks what it says on the way, and ends with status 1 at the first untruth.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import nativelaunch

SCRIPT = Path(__file__).with_name("train_digits.py")
RANKS, VICTIM = 4, 2
LAST_EPOCH = 5  # of 12, in the run that is cut short
PATIENCE = 300.0  # seconds for one run


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on 4 ranks, lose one, and resume.")
    parser.add_argument("--seed", default="0", help="of weights, order and dropout; default: 0")
    seed = ["--seed", parser.parse_args().seed]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nativelaunch-demo-") as folder:
        checkpoint = Path(folder, "digits.pt")

        print(f"1. train on {RANKS} ranks", flush=True)
        whole = train_to_the_end(Path(folder, "whole.json"), *seed)
        check(whole["accuracy"] >= 0.95, f"accuracy {whole['accuracy']:.1%} on images never trained on")

        print(f"\n2. the same again, but rank {VICTIM} is killed after epoch {LAST_EPOCH}", flush=True)
        status, report = train_and_lose_a_rank("--checkpoint", checkpoint, *seed)
        check(status == 128 + signal.SIGKILL, f"exit status {status}, that of rank {VICTIM}: 128 + SIGKILL")
        named = any(f"rank {VICTIM} " in line and "SIGKILL" in line for line in report)
        check(named, f"the report names rank {VICTIM} and its signal")

        print("\n3. go on from the last checkpoint", flush=True)
        resumed = train_to_the_end(
            Path(folder, "resumed.json"), "--checkpoint", checkpoint, "--resume", *seed
        )
        apart = abs(resumed["loss"] - whole["loss"])
        check(apart <= 1e-5, f"the final loss is that of the first run (difference {apart:.1e})")
    print(f"\nall of it holds, {time.monotonic() - began:.0f} s")


def command(*arguments: str | Path) -> list[str | Path]:
    words = [nativelaunch.find_bin(), "-n", str(RANKS), SCRIPT, *arguments]
    print("$", " ".join(Path(word).name for word in words), flush=True)
    return words


def train_to_the_end(metrics: Path, *arguments: str | Path) -> dict[str, Any]:
    whole = command("--metrics", metrics, *arguments)
    status = subprocess.run(whole, timeout=PATIENCE, check=False).returncode
    check(status == 0, f"exit status {status}")
    result: dict[str, Any] = json.loads(metrics.read_text())
    return result


def train_and_lose_a_rank(*arguments: str | Path) -> tuple[int, list[str]]:
    """Returns exit status and output of a run whose victim is killed as by the out-of-memory killer."""
    name, value = "NATIVELAUNCH_DEMO", str(uuid.uuid4())
    mark = f"{name}={value}"  # ranks hand it on to all that they start
    lines = []
    killed = math.nan
    with subprocess.Popen(
        command(*arguments),
        env=os.environ | {name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as job:
        assert job.stdout
        for line in job.stdout:
            print(line, end="", flush=True)
            lines.append(line)
            if line.startswith(f"epoch {LAST_EPOCH}/"):
                (victim,) = processes_with(mark, f"RANK={VICTIM}")
                os.kill(victim, signal.SIGKILL)
                killed = time.monotonic()
                print(f"$ kill -KILL {victim}", flush=True)
    left = processes_with(mark)
    check(not left, f"{time.monotonic() - killed:.2f} s after the kill, nothing is left running")
    return job.returncode, lines


def processes_with(*variables: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
        if all(variable.encode() in environ for variable in variables):
            found.append(int(folder.name))
    return found


def check(holds: bool, text: str) -> None:  # noqa: FBT001
    print(f"{'ok' if holds else 'not true'}: {text}", flush=True)
    if not holds:
        sys.exit(1)


if __name__ == "__main__":
    main()
