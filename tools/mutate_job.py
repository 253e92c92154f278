"""Shows that the tests of the job's state machine catch mistakes: breaks it in a copy, one transition at a time.

Run as `python tools/mutate_job.py [WORD ...]`, with words to choose mutations whose name has one of them. The status is
1 if a mutation survives, no longer fits the source or does not compile, or if none is named by a word. The copy and its
build lie below `$CARGO_TARGET_DIR/mutated`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "mutated"
HOUSE = TARGET / "house"
JOB = "rust/core/src/job.rs"

# What is broken, the text that stands once in job.rs, and what stands there instead.
MUTATIONS = [
    ("no SIGCONT after the signal to a stopped worker", "if stopped {", "if false {"),
    (
        "a second signal does not kill",
        ">= SECOND_SIGNAL_AFTER => self.kill(now, actions),",
        ">= SECOND_SIGNAL_AFTER => {}",
    ),
    ("a copy of a signal is a second one", ">= SECOND_SIGNAL_AFTER =>", ">= Duration::ZERO =>"),
    (
        "the client's death is ignored",
        "self.stop(now, Cause::Gone, CLIENT_GONE_GRACE, Signal::TERM, false, actions);",
        "",
    ),
    (
        "nothing is swept after a normal end",
        "actions.push(Action::Sweep { kill: false });",
        "return self.finish(now, actions);",
    ),
    ("descendants are swept while workers live", " || self.has_workers() {", " {"),
    (
        "one round of SIGKILL is all",
        "give_up };\n                actions.push(Action::Sweep { kill: true });",
        "give_up };",
    ),
    ("the unkillable are never given up", "if give_up <= now", "if give_up > give_up + now"),
    (
        "signals that wait for the exec are dropped",
        "actions.extend(waiting.into_iter().map(|signal| Action::Signal(slot, signal)));",
        "drop(waiting);",
    ),
    (
        "signals do not wait for the exec",
        "Life::Forked(waiting) if signal != Signal::KILL => waiting.push(signal),",
        "",
    ),
    ("ranks are started after a stop", "self.phase == Phase::Running && self.next", "self.next"),
    (
        "a later cause wins",
        "if self.cause.is_none() {\n            self.cause",
        "if true {\n            self.cause",
    ),
    ("a death by our signal is a rank's own", "worker.asked = true;", ""),
    (
        "a crash is blamed on an earlier signal to the group",
        "WaitStatus::Signaled(signal) => signal == group.signal,",
        "WaitStatus::Signaled(_) => true,",
    ),
    (
        "a death by the group's signal is a failure",
        "self.blame_group_signal(now, slot, status, actions);",
        "",
    ),
    (
        "the group's signal is sent once more",
        "delivered && self.workers[slot].grouped;",
        "false;",
    ),
    (
        "a rank made after the group's signal is forgotten",
        "delivered && self.workers[slot].grouped;",
        "delivered;",
    ),
    (
        "a deadline never becomes shorter",
        "Phase::Stopping(at) => self.phase = Phase::Stopping(at.min(deadline)),",
        "Phase::Stopping(_) => {}",
    ),
    (
        "a passed deadline kills nobody",
        "Phase::Stopping(at) | Phase::Sweeping(at) if at <= now => self.kill(now, actions),",
        "",
    ),
    ("the status that a rank chose is lost", "self.chosen = Some((slot, code));", "let _ = (slot, code);"),
    ("deaths are miscounted", "if !failed_to_start {\n", "if !failed_to_start {\nself.deaths += 1;\n"),
]


def cargo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["cargo", "test", "--locked", "--package", "nativelaunch-core", "--lib", *arguments]
    # The case as it was found tells enough; shrinking it takes longer than finding it.
    env = os.environ | {
        "CARGO_TARGET_DIR": str(TARGET),
        "PROPTEST_MAX_SHRINK_ITERS": "0",
        "RUST_BACKTRACE": "0",
        "RUSTFLAGS": "-Awarnings",
    }
    return subprocess.run(command, cwd=HOUSE, env=env, text=True, capture_output=True, check=False)


def caught(source: str) -> tuple[bool, str]:
    """Whether the tests fail with this job.rs, and by what."""
    (HOUSE / JOB).write_text(source)
    built = cargo("--no-run")
    if built.returncode:
        sys.exit(f"this does not compile:\n{built.stderr}")
    tested = cargo("job::")
    promises = re.findall(r"^Test failed: at \d+ ms: (.*?)(?: at rust/.*)?$", tested.stdout, re.MULTILINE)
    situations = re.findall(r"^test job::model::situations::(\w+) \.\.\. FAILED", tested.stdout, re.MULTILINE)
    return tested.returncode != 0, "; ".join([*promises, *situations[:2]])


def main() -> int:
    words = sys.argv[1:]
    if strange := [word for word in words if not any(word in name for name, _, _ in MUTATIONS)]:
        sys.exit(f"no mutation has this in its name: {', '.join(map(repr, strange))}")
    chosen = [mutation for mutation in MUTATIONS if not words or any(word in mutation[0] for word in words)]
    shutil.rmtree(HOUSE, ignore_errors=True)
    shutil.copytree(ROOT / "rust", HOUSE / "rust", copy_function=shutil.copy)
    for name in ("Cargo.toml", "Cargo.lock"):
        shutil.copy(ROOT / name, HOUSE)
    source = (HOUSE / JOB).read_text()
    failed, why = caught(source)
    if failed:
        sys.exit(f"the tests fail without a mutation: {why}")
    bad = 0
    for name, old, new in chosen:
        if source.count(old) != 1:
            print(f"no longer fits, {source.count(old)} times in {JOB}: {name}", flush=True)
            bad += 1
            continue
        failed, why = caught(source.replace(old, new))
        print(f"{'caught' if failed else 'SURVIVED'}: {name}: {why}", flush=True)
        bad += not failed
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
