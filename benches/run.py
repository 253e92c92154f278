"""Measures nativelaunch against its rivals, and says which goals hold here and now.

    python benches/run.py                       all subjects
    python benches/run.py start --rounds 5 --json start.json

Rivals and floors run in turn, A B C A B C, on the same machine in the same minutes. Figures are medians, with
lowest and highest; ratios are of values of the same round. A goal that does not hold is no error: the status
is 0 unless nothing could be measured. With --strict it is 1 too if a steady goal does not hold (one that is about CPU
seconds of a small part: a busy machine adds up to a half to these, so use a quiet one) or a rival is missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

# a script to its user, a package to its parts
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches import machine
from benches.start import start
from benches.subject import Bench, Subject, beside_python

SUBJECTS: dict[str, Subject] = {"start": start}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure nativelaunch against its rivals.")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"{', '.join(SUBJECTS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="of what takes seconds; default: 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write figures, goals and machine")
    parser.add_argument(
        "--bin", type=Path, metavar="PATH", help="nativelaunch to measure; default: the installed one"
    )
    parser.add_argument("--strict", action="store_true", help="fail if a steady goal does not hold")
    args = parser.parse_args()
    names = args.subjects or list(SUBJECTS)
    if unknown := set(names) - SUBJECTS.keys():
        parser.error(f"unknown subject: {', '.join(sorted(unknown))} (one of {', '.join(SUBJECTS)})")
    if args.rounds < 1:
        parser.error(f"--rounds must be 1 or more: {args.rounds}")

    bench = Bench(args.rounds, args.bin or beside_python("nativelaunch"), beside_python("torchrun"))
    facts = machine.facts(bench.nativelaunch)
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    measured: dict[str, list[dict[str, object]]] = {}
    failed = False
    broken: list[str] = []
    for name in names:
        measured[name] = []
        sections = SUBJECTS[name](bench)
        try:
            for section in sections:
                print(f"\n{section.table()}", flush=True)
                measured[name].append(section.data())
                broken += [f"{section.title}: {what}" for what in section.broken()]
        except RuntimeError as error:
            failed = True
            print(f"\n{name}: stopped: {error}", file=sys.stderr)
    if args.json:
        args.json.write_text(
            json.dumps({"version": 1, "machine": facts, "subjects": measured}, indent=1) + "\n"
        )
    if args.strict and broken:
        print("\nnot as promised:", *broken, sep="\n  ", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
