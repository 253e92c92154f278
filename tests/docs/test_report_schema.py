"""The report of a job has the form that `docs/report.schema.json` describes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from nativelaunch import Outcome, run, start

ROOT = Path(__file__).resolve().parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "report.schema.json").read_text())

TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "integer": (int,),
    "null": (type(None),),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def faults(value: Any, schema: dict[str, Any], at: str = "report") -> list[str]:
    """Where a value is not what the schema says: the part of JSON Schema that ours uses, no other keyword allowed.

    Stricter than the schema in one point: a member that it does not describe is a fault.
    """
    found = []
    for keyword, want in schema.items():
        match keyword:
            case "$schema" | "$defs" | "title" | "description" | "items":
                holds = True
            case "$ref":
                return faults(value, SCHEMA["$defs"][want.removeprefix("#/$defs/")], at)
            case "type":
                kinds = [want] if isinstance(want, str) else want
                holds = any(isinstance(value, TYPES[kind]) for kind in kinds) and not isinstance(value, bool)
            case "const":
                holds = value == want
            case "enum":
                holds = value in want
            case "pattern":
                holds = not isinstance(value, str) or re.search(want, value) is not None
            case "minimum":
                holds = not isinstance(value, (int, float)) or value >= want
            case "maximum":
                holds = not isinstance(value, (int, float)) or value <= want
            case "anyOf":
                holds = any(not faults(value, one, at) for one in want)
            case "required":
                holds = set(want) <= set(value)
            case "properties":
                holds = set(value) <= set(want)
                for name in value.keys() & want.keys():
                    found += faults(value[name], want[name], f"{at}.{name}")
            case _:
                raise AssertionError(f"this test does not know {keyword}")
        if not holds:
            found.append(f"{at}: {keyword} {want}: {value!r}")
    if "items" in schema:
        for index, item in enumerate(value):
            found += faults(item, schema["items"], f"{at}[{index}]")
    return found


def ended(what: str) -> Outcome:
    match what:
        case "ok":
            return run(["true"], nproc_per_node=2)
        case "failed":
            return run(["sh", "-c", "test $RANK = 1 && exit 7; sleep 1000"], nproc_per_node=2)
        case "signaled":
            return run([sys.executable, "-c", "import os; os.abort()"])
        case "timeout":
            return run(["sleep", "1000"], timeout=0.1)
        case "not started":
            # Rank 0 fails before the last of so many is made.
            return run(["false"], nproc_per_node=64)
        case _:
            with start(["sleep", "1000"]) as job:
                return job.kill()


@pytest.mark.parametrize("what", ["ok", "failed", "signaled", "timeout", "not started", "killed"])
def test_reports_are_as_the_schema_says(what: str) -> None:
    assert faults(json.loads(ended(what).to_json()), SCHEMA) == []


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("version", 2),
        ("job", "j"),
        ("status", 256),
        ("reason", "bored"),
        ("host", None),
        ("started", "now"),
        ("first_failure", {}),
        ("ranks", [{"rank": -1}]),
        ("colour", "red"),
    ],
)
def test_what_is_no_report_is_told(member: str, value: object) -> None:
    report = json.loads(ended("ok").to_json()) | {member: value}
    assert any(f"report.{member}" in fault or "properties" in fault for fault in faults(report, SCHEMA))


def test_every_reason_is_in_the_schema() -> None:
    source = (ROOT / "rust" / "core" / "src" / "outcome.rs").read_text()
    job, rank = (set(re.findall(r'=> "([a-z-]+)",', part)) for part in source.split("impl RankReason")[:2])
    assert job == set(SCHEMA["properties"]["reason"]["enum"])
    assert rank == set(SCHEMA["$defs"]["rank"]["properties"]["reason"]["enum"])
