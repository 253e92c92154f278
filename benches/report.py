"""What a subject reports: figures, goals and what was left out; as a table and as data."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")


def in_turn(rounds: int, subjects: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Runs A B C A B C ..., so that whatever slows the machine for a while slows all of them."""
    results: dict[str, list[T]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            results[name].append(subject())
    return results


@dataclass(frozen=True)
class Spread:
    """The values of one figure, one per round."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        """The one figure to quote: a single slow round does not move it."""
        return statistics.median(self.values)

    def over(self, other: Spread) -> Spread:
        """Ratios, each of two values of the same round."""
        return Spread([mine / theirs for mine, theirs in zip(self.values, other.values, strict=True)])

    def minus(self, other: Spread) -> Spread:
        """Differences, each of two values of the same round."""
        return Spread([mine - theirs for mine, theirs in zip(self.values, other.values, strict=True)])

    def text(self, unit: str) -> str:
        """Median, lowest and highest, for a table."""
        factor = 1000 if unit == "ms" else 1
        low, middle, high = (f"{factor * v:.4g}" for v in (min(self.values), self.median, max(self.values)))
        return f"{middle:>8} {unit:<3} {low:>8} to {high}"


@dataclass(frozen=True)
class Figure:
    """One thing measured."""

    name: str
    unit: str  # of the table: "s", "ms" or "x"; values are seconds or ratios
    spread: Spread


@dataclass(frozen=True)
class Goal:
    """One thing promised: the median is at most the limit."""

    name: str
    limit: float
    unit: str
    spread: Spread
    steady: bool = True  # the same from run to run on a quiet machine: CPU seconds of a small part

    @property
    def holds(self) -> bool:
        """Whether this machine, this time, was fast enough."""
        return self.spread.median <= self.limit


@dataclass
class Section:
    """One table."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def table(self) -> str:
        """The section for people."""
        lines = [self.title]
        lines += [f"  {figure.name:<48} {figure.spread.text(figure.unit)}" for figure in self.figures]
        for goal in self.goals:
            verdict = "holds" if goal.holds else "does not hold"
            lines.append(f"  {'goal: ' + goal.name:<48} {goal.spread.text(goal.unit):<34} {verdict}")
        lines += [f"  skipped: {reason}" for reason in self.skipped]
        return "\n".join(lines)

    def broken(self) -> list[str]:
        """What a strict run does not accept: a steady goal that does not hold, and what was not measured."""
        return [goal.name for goal in self.goals if goal.steady and not goal.holds] + self.skipped

    def data(self) -> dict[str, object]:
        """The section for JSON; times in seconds."""
        return {
            "title": self.title,
            "figures": [_data(figure.name, figure.unit, figure.spread) for figure in self.figures],
            "goals": [
                _data(goal.name, goal.unit, goal.spread) | {"limit": goal.limit, "holds": goal.holds}
                for goal in self.goals
            ],
            "skipped": self.skipped,
        }


def _data(name: str, unit: str, spread: Spread) -> dict[str, object]:
    values = list(spread.values)
    shown = {"median": spread.median, "min": min(values), "max": max(values), "values": values}
    return {"name": name, "unit": "x" if unit == "x" else "s", **shown}
