from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import nativelaunch
from examples.demo import processes_with

SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "train_digits.py")
VICTIM = 2

# several trainings of four ranks, each of which imports torch and scikit-learn
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Run:
    """A training that is over, and left nothing running."""

    status: int
    stdout: str
    stderr: str


def run(*command: str, kill_after: str | None = None) -> Run:
    """Runs a training; with `kill_after`, kills the victim when that line begins to be written."""
    name, value = "NATIVELAUNCH_EXAMPLE_TEST", str(uuid.uuid4())
    mark = f"{name}={value}"  # every rank and its children have it
    # the same threads under every launcher: sums in another order differ in the last digits
    environ = os.environ | {"OMP_NUM_THREADS": "1", name: value}
    stdout = []
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as job:
        assert job.stdout
        assert job.stderr
        try:
            if kill_after:
                for line in job.stdout:
                    stdout.append(line)
                    if line.startswith(kill_after):
                        (pid,) = processes_with(mark, f"RANK={VICTIM}")
                        os.kill(pid, signal.SIGKILL)
                        break
            rest, stderr = job.communicate(timeout=240)
        except BaseException:
            job.kill()
            raise
    deadline = time.monotonic() + 1
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
    return Run(job.returncode, "".join(stdout) + rest, stderr)


def trained(folder: Path, *command: str) -> dict[str, Any]:
    """Runs a training to its end and returns its metrics."""
    file = folder / "metrics.json"
    ended = run(*command, "--metrics", str(file))
    assert ended.status == 0, ended.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.fixture(scope="module")
def ours() -> list[str]:
    return [nativelaunch.find_bin(), "-n", "4", SCRIPT]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, ours: list[str]) -> dict[str, Any]:
    """What a run that nobody disturbs arrives at."""
    return trained(tmp_path_factory.mktemp("whole"), *ours)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lost") / "digits.pt"


@pytest.fixture(scope="module")
def lost(checkpoint: Path, ours: list[str]) -> Run:
    """A run whose victim was killed, and which left its checkpoint."""
    return run(*ours, "--checkpoint", str(checkpoint), kill_after="epoch 5/")


def test_four_ranks_learn_to_read(whole: dict[str, Any]) -> None:
    assert whole["accuracy"] >= 0.95
    assert whole["world_size"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_four_ranks_learn_to_read_whatever_the_seed(tmp_path: Path, ours: list[str], seed: str) -> None:
    assert trained(tmp_path, *ours, "--seed", seed)["accuracy"] >= 0.95


def test_a_killed_rank_ends_the_job_with_its_status_and_its_name(lost: Run) -> None:
    assert lost.status == 128 + signal.SIGKILL
    assert f"nativelaunch: rank {VICTIM} " in lost.stderr
    assert "SIGKILL" in lost.stderr


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, ours: list[str], lost: Run, checkpoint: Path, whole: dict[str, Any]
) -> None:
    assert "epoch 12/" not in lost.stdout
    resumed = trained(tmp_path, *ours, "--checkpoint", str(checkpoint), "--resume")
    assert resumed["first_epoch"] in {4, 5}  # the fifth was over, and its checkpoint perhaps not yet written
    assert resumed["loss"] == pytest.approx(whole["loss"], rel=0, abs=1e-5)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, SCRIPT, "--launch", "4"], id="launch"),
        pytest.param(
            [
                str(Path(sys.executable).with_name("torchrun")),
                "--standalone",
                "--nproc-per-node",
                "4",
                SCRIPT,
            ],
            id="torchrun",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_way_to_run_ends_the_same(tmp_path: Path, whole: dict[str, Any], command: list[str]) -> None:
    found = trained(tmp_path, *command)
    assert found["world_size"] == 4
    assert found["loss"] == pytest.approx(whole["loss"], rel=0, abs=1e-5)


@pytest.mark.slow
def test_resuming_with_another_seed_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--checkpoint", str(tmp_path / "digits.pt"), "--epochs", "1"]
    trained(tmp_path, *command)
    ended = run(*command, "--resume", "--seed", "1")
    assert ended.status == 1
    assert "was made with --seed 0, not 1" in ended.stderr


def test_resuming_from_nowhere_is_refused() -> None:
    ended = run(sys.executable, SCRIPT, "--resume")
    assert ended.status == 2
    assert "--resume needs --checkpoint" in ended.stderr
