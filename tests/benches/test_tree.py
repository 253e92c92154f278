from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benches.report import Goal, Section, Spread, in_turn

ROOT = Path(__file__).resolve().parents[2]

# A process, its child that is waited for, and one in a session of its own whose parent is gone: 0.2 s each.
FAMILY = """
import os, time

def busy():
    start = time.process_time()
    while time.process_time() - start < 0.2:
        pass

if (child := os.fork()) == 0:
    busy()
    os._exit(0)
if (middle := os.fork()) == 0:
    os.setsid()
    if os.fork() == 0:
        busy()
    os._exit(0)
os.waitpid(child, 0)
os.waitpid(middle, 0)
busy()
"""


def measure(command: list[str], **options: Any) -> dict[str, Any]:
    """Measures in a process of its own: the measuring one takes over every child it has."""
    call = f"print(json.dumps(dataclasses.asdict(tree.measure({command!r}, **{options!r}))))"
    code = f"import dataclasses, json\nfrom benches import tree\n{call}"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def test_every_descendant_is_counted_once() -> None:
    floor = measure([sys.executable, "-c", "pass"])["cpu"]
    cost = measure([sys.executable, "-c", FAMILY])
    assert cost["status"] == cost["killed"] == 0
    assert 0.6 <= cost["cpu"] < 0.6 + floor + 0.15


def test_time_asleep_is_wall_and_not_cpu() -> None:
    cost = measure(["sleep", "0.3"])
    assert cost["wall"] >= 0.3
    assert cost["cpu"] < 0.1


def test_what_outlives_the_command_is_killed_and_told() -> None:
    cost = measure(["sh", "-c", "setsid sleep 1000 & exit 3"], linger=0.2)
    assert (cost["status"], cost["killed"]) == (3, 1)


def test_a_command_past_its_time_is_killed_with_its_tree() -> None:
    cost = measure(["sh", "-c", "setsid sleep 1000 & sleep 1000"], timeout=0.3)
    assert (cost["status"], cost["killed"]) == (128 + 9, 3)


def test_subjects_run_in_turn_and_ratios_pair_their_rounds() -> None:
    order: list[str] = []
    values = {"a": iter([1.0, 10.0, 100.0]), "b": iter([2.0, 20.0, 400.0])}

    def subject(name: str) -> float:
        order.append(name)
        return next(values[name])

    found = in_turn(3, {"a": lambda: subject("a"), "b": lambda: subject("b")})
    assert order == ["a", "b"] * 3
    ratio = Spread(found["b"]).over(Spread(found["a"]))
    assert ratio.values == [2.0, 2.0, 4.0]
    assert Goal("twice", 2.0, "x", ratio).holds
    assert not Goal("less than twice", 1.9, "x", ratio).holds


def test_strict_fails_for_what_should_hold_anywhere_and_for_what_was_not_measured() -> None:
    slow, quick = Spread([3.0]), Spread([1.0])
    goals = [
        Goal("slow", 2.0, "x", slow),
        Goal("quick", 2.0, "x", quick),
        Goal("slow when busy", 2.0, "x", slow, steady=False),
    ]
    assert Section("all", goals=goals, skipped=["nobody is here"]).broken() == ["slow", "nobody is here"]
    assert Section("good", goals=goals[1:]).broken() == []


@pytest.mark.parametrize(
    ("arguments", "told"), [(["nothing"], "unknown subject: nothing"), (["--rounds", "0"], "0")]
)
def test_wrong_usage_is_refused(arguments: list[str], told: str) -> None:
    ended = subprocess.run(
        [sys.executable, "benches/run.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert told in ended.stderr
