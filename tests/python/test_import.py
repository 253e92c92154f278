"""What `import nativelaunch` costs, and what it offers."""

from __future__ import annotations

import subprocess
import sys

import nativelaunch


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout


def test_import_loads_next_to_nothing() -> None:
    code = "import sys; before = set(sys.modules); import nativelaunch; print(*sorted(set(sys.modules) - before))"
    assert set(python(code).split()) <= {"__future__", "nativelaunch"}


def test_import_takes_less_than_3_ms_of_cpu() -> None:
    # In one process: the time of the import itself, bytecode cached by the first round.
    code = """
import sys, time
def once():
    for name in [n for n in sys.modules if n.partition(".")[0] == "nativelaunch"]:
        del sys.modules[name]
    start = time.process_time()
    import nativelaunch
    return time.process_time() - start
once()
print(min(once() for _ in range(20)))
"""
    assert float(python(code)) < 0.003


def test_running_a_job_imports_no_torch_multiprocessing_or_subprocess() -> None:
    code = """
import sys
import nativelaunch
nativelaunch.run(["true"])
print(*sys.modules)
"""
    loaded = set(python(code).split())
    assert loaded.isdisjoint({"torch", "multiprocessing", "subprocess", "asyncio", "typing_extensions"})


def test_every_name_is_there_and_listed() -> None:
    for name in nativelaunch.__all__:
        assert getattr(nativelaunch, name) is not None
        assert name in dir(nativelaunch)
    assert nativelaunch.__version__.count(".") == 2


def test_unknown_names_are_attribute_errors() -> None:
    assert not hasattr(nativelaunch, "launch_rockets")


def test_classes_tell_their_public_names() -> None:
    for name in ("Event", "Outcome", "RankOutcome"):
        assert getattr(nativelaunch, name).__module__ == "nativelaunch"
