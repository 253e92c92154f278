"""Start: what a launcher costs until its ranks do something of their own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benches.report import Figure, Goal, Section, Spread, in_turn
from benches.subject import Bench

PROBE = str(Path(__file__).with_name("probe.py"))
HEAVY_MODULES = ("multiprocessing", "subprocess", "torch")


def start(bench: Bench) -> Iterator[Section]:
    """Yields a section as soon as it is measured."""
    yield launch_nothing(bench)
    yield own_parts(bench)
    bench.cost([sys.executable, "-c", "import torch"])  # fills caches
    for ranks in (2, 8):
        yield import_torch(bench, ranks)


def launch_nothing(bench: Bench) -> Section:
    """Eight ranks that do nothing, so that what remains is the launcher."""
    section = Section("start: CPU of the whole tree, 8 ranks that are `true`")
    launchers = bench.launchers(section)
    flags = {"nativelaunch": ["-n", "8"], "torchrun": ["--standalone", "--nproc-per-node", "8"]}
    subjects: dict[str, Callable[[], float]] = {"no launcher": lambda: bench.cost(*[["true"]] * 8).cpu}
    for name, path in launchers.items():
        told = bench.output([path, *flags[name], "--no-python", "sh", "-c", "echo $RANK"])
        if sorted(told.split()) != [str(rank) for rank in range(8)]:
            raise RuntimeError(f"{name} did not start ranks 0 to 7, which printed {told!r}")
        command = [path, *flags[name], "--no-python", "true"]
        subjects[name] = lambda command=command: bench.cost(command).cpu  # type: ignore[misc]

    cpu = {name: Spread(values) for name, values in in_turn(2 * bench.rounds + 1, subjects).items()}
    section.figures = [Figure(name, "ms", spread) for name, spread in cpu.items()]
    if len(cpu) == 3:
        ratio = cpu["nativelaunch"].over(cpu["torchrun"])
        section.goals = [Goal("at most 1/100 of torchrun", 0.01, "x", ratio)]
    return section


def own_parts(bench: Bench) -> Section:
    """The binary and the package, as everything else pays for them."""
    section = Section("start: CPU of our own parts")
    rounds = 30 * bench.rounds
    if bench.nativelaunch is None:
        section.skipped.append("nativelaunch is not installed")
        return section

    subjects = {"true": ["true"], "nativelaunch --version": [str(bench.nativelaunch), "--version"]}
    cpu = _cpu_in_turn(bench, rounds, subjects)
    section.goals.append(Goal("nativelaunch --version", 0.002, "ms", cpu["nativelaunch --version"]))
    section.figures += [Figure(name, "ms", spread) for name, spread in cpu.items()]

    statements = {"python -c pass": "pass", "python -c 'import nativelaunch'": "import nativelaunch"}
    pythons = {name: [sys.executable, "-c", statement] for name, statement in statements.items()}
    bare, importing = (cpu := _cpu_in_turn(bench, rounds, pythons)).values()
    section.figures += [Figure(name, "ms", spread) for name, spread in cpu.items()]
    section.goals.append(Goal("import nativelaunch, over bare python", 0.003, "ms", importing.minus(bare)))
    count = f"import sys, nativelaunch; print(sum(module in sys.modules for module in {HEAVY_MODULES}))"
    loaded = Spread([float(bench.output([sys.executable, "-c", count]))])
    section.goals.append(Goal(f"imports of {', '.join(HEAVY_MODULES)}", 0, "x", loaded))
    return section


def _cpu_in_turn(bench: Bench, rounds: int, commands: dict[str, list[str]]) -> dict[str, Spread]:
    subjects = {name: partial(bench.cost, command) for name, command in commands.items()}
    return {name: Spread([cost.cpu for cost in costs]) for name, costs in in_turn(rounds, subjects).items()}


@dataclass(frozen=True)
class FirstLine:
    """One job of which every rank imported torch and wrote a line."""

    launcher: float  # CPU seconds until the first line of the last rank to come to it
    chain: float  # CPU seconds: the launcher until a rank's first line, then that rank; the longest of all
    wall: float  # seconds until the last rank wrote its line
    cpu: float  # CPU seconds of the whole tree, until all is over


def import_torch(bench: Bench, ranks: int) -> Section:
    """The longest chain is close to wall time on an idle machine with a core per rank."""
    section = Section(f"start: first line after `import torch`, {ranks} ranks")
    flags = {"nativelaunch": ["-n", str(ranks)], "torchrun": ["--standalone", "--nproc-per-node", str(ranks)]}
    subjects = {"python": partial(_without_launcher, bench, ranks)}
    for name, path in bench.launchers(section).items():
        subjects[name] = partial(_first_line, bench, ranks, [[path, *flags[name], PROBE]])

    jobs = in_turn(bench.rounds, subjects)
    chain = {name: Spread([job.chain for job in found]) for name, found in jobs.items()}
    for name, found in jobs.items():
        section.figures.append(Figure(f"{name}: CPU of the longest chain", "s", chain[name]))
        if name != "python":
            before = Spread([job.launcher for job in found])
            section.figures.append(Figure(f"{name}: of which is the launcher's", "ms", before))
        section.figures += [
            Figure(f"{name}: wall until the last rank's line", "s", Spread([job.wall for job in found])),
            Figure(f"{name}: CPU of the whole tree", "s", Spread([job.cpu for job in found])),
        ]
    if "torchrun" in chain:
        ratio = chain["torchrun"].over(chain["python"])
        section.figures.append(Figure("torchrun: longest chain, over bare python", "x", ratio))
    if "nativelaunch" in chain:
        ratio = chain["nativelaunch"].over(chain["python"])
        section.goals = [Goal("longest chain, over bare python", 1.05, "x", ratio, steady=False)]
    return section


def _without_launcher(bench: Bench, ranks: int) -> FirstLine:
    environs = [bench.environ | {"RANK": str(rank)} for rank in range(ranks)]
    return _first_line(bench, ranks, [[sys.executable, "-u", PROBE]] * ranks, environs)


def _first_line(
    bench: Bench, ranks: int, commands: list[list[str]], environs: list[dict[str, str]] | None = None
) -> FirstLine:
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
        cost = bench.cost(*commands, environs=environs, stdout=Path(output.name))
        lines = [[float(number) for number in line.split()] for line in output]
    if len(lines) != ranks:
        raise RuntimeError(f"{len(lines)} of {ranks} ranks of {' '.join(commands[0])!r} wrote their line")
    return FirstLine(
        launcher=max(launcher for launcher, _, _ in lines),
        chain=max(launcher + own for launcher, own, _ in lines),
        wall=max(at for _, _, at in lines) - cost.started,
        cpu=cost.cpu,
    )
