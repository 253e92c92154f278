"""What a worker is told: torchrun's variables, its own arguments, and nothing else changed by a byte."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.cli.fronts import PROGRAMS, PYTHON, program
from tests.python.processes import TOKEN

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.fronts import Launcher


def variables(folder: Path, rank: int) -> Counter[bytes]:
    """The variables of a worker at its start, as the kernel has them."""
    raw = (folder / f"{rank}.environ").read_bytes()
    assert raw.endswith(b"\0")
    return Counter(raw.split(b"\0")[:-1])


def base() -> dict[str, str]:
    """An environment of a few variables."""
    return {"PATH": os.environ["PATH"], TOKEN: os.environ[TOKEN], "HOME": "/", "KEEP": "as it is"}


def added(folder: Path, rank: int, given: dict[str, str]) -> dict[str, str]:
    """What a worker has beyond the given variables, all of which it has to have."""
    found = variables(folder, rank)
    before = Counter(f"{name}={value}".encode() for name, value in given.items())
    assert not before - found
    return dict(item.decode().split("=", 1) for item in (found - before).elements())


def run_bare(launch: Launcher, environ: dict[str, str], *arguments: str) -> None:
    """Runs a front with exactly this environment."""
    assignments = [f"{name}={value}" for name, value in environ.items()]
    ended = launch.run(*arguments, command=("env", "-i", *assignments, launch.binary))
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.parametrize("count", [1, 2])
def test_environment_is_that_of_torchrun(launch: Launcher, tmp_path: Path, count: int) -> None:
    given = base()
    run_bare(launch, given, "-n", str(count), *program("show", tmp_path))
    jobs, ports = set(), set()
    for rank in range(count):
        found = added(tmp_path, rank, given)
        jobs.add(found["NATIVELAUNCH_JOB"])
        ports.add(int(found.pop("MASTER_PORT")))
        assert found.pop("TORCHELASTIC_RUN_ID") == found.pop("NATIVELAUNCH_JOB")
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", found.pop("NATIVELAUNCH_VERSION"))
        if count > 1:
            assert 1 <= int(found.pop("OMP_NUM_THREADS")) <= max(1, len(os.sched_getaffinity(0)) // count)
        assert found == {
            "LOCAL_RANK": str(rank),
            "RANK": str(rank),
            "GROUP_RANK": "0",
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default",
            "LOCAL_WORLD_SIZE": str(count),
            "WORLD_SIZE": str(count),
            "GROUP_WORLD_SIZE": "1",
            "ROLE_WORLD_SIZE": str(count),
            "NODE_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCHELASTIC_ERROR_FILE": "",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "NATIVELAUNCH": "1",
            "NATIVELAUNCH_OUTER_GRACE": "30",
        }
    assert len(jobs) == 1
    assert len(ports) == 1
    assert 1024 <= ports.pop() < 65536


def test_set_thread_count_and_error_handling_stay(launch: Launcher, tmp_path: Path) -> None:
    given = base() | {"OMP_NUM_THREADS": "", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    run_bare(launch, given, "-n", "2", *program("show", tmp_path))
    found = added(tmp_path, 1, given)
    assert "OMP_NUM_THREADS" not in found
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in found


def test_threads_are_shared_out_of_the_usable_cpus(launch: Launcher, tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    given = base()
    ended = launch.run(
        "-n",
        "2",
        *program("show", tmp_path),
        command=(
            *PYTHON,
            "-c",
            f"import os, sys; os.sched_setaffinity(0, {{{cpu}}}); os.execv(sys.argv[1], sys.argv[1:])",
            launch.binary,
        ),
        env=given,
    )
    assert ended.status == 0
    assert b"OMP_NUM_THREADS=1" in variables(tmp_path, 0)


def test_stale_ranks_are_replaced(launch: Launcher, tmp_path: Path) -> None:
    stale = base() | {"RANK": "77", "WORLD_SIZE": "78", "MASTER_PORT": "79", "NATIVELAUNCH_JOB": "80"}
    run_bare(launch, stale, *program("show", tmp_path, "x"), "RANK=81")
    found = variables(tmp_path, 0)
    assert found[b"RANK=0"] == found[b"WORLD_SIZE=1"] == 1
    names = Counter(item.split(b"=", 1)[0] for item in found)
    assert set(names.values()) == {1}


# What a process may be given, and what tools along the way like to change.
STRANGE_BYTES = [
    b"",
    b" ",
    b"a\nb\n",
    b"\xff\xfe\x80",
    b"$HOME ${RANK} `true` %d \\",
    b"--",
    b"-h",
    b"--nproc-per-node=7",
    b"-n",
    "ü→\U0001f600".encode(),
    b"*",
    b"'\"",
    b"x" * 100_000,
]


def test_arguments_pass_unchanged(launch: Launcher, tmp_path: Path) -> None:
    command = [os.fsencode(argument) for argument in (*PYTHON, PROGRAMS / "show.py", tmp_path)]
    ended = launch.run("--no-python", *command, *STRANGE_BYTES)
    assert (ended.status, ended.err) == (0, "")
    assert (tmp_path / "0.cmdline").read_bytes().split(b"\0")[:-1] == [*command, *STRANGE_BYTES]


def test_script_gets_its_arguments_from_the_interpreter_unbuffered(launch: Launcher, tmp_path: Path) -> None:
    ended = launch.run(str(PROGRAMS / "show.py"), str(tmp_path), *STRANGE_BYTES)
    assert (ended.status, ended.err) == (0, "")
    found = (tmp_path / "0.cmdline").read_bytes().split(b"\0")[:-1]
    assert found == [
        os.fsencode(sys.executable),
        b"-u",
        os.fsencode(PROGRAMS / "show.py"),
        os.fsencode(tmp_path),
        *STRANGE_BYTES,
    ]


def test_module_runs_as_by_python(launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "a_module.py").write_text("import sys; print(__name__, sys.argv[1:])")
    ended = launch.run("-m", "a_module", "-m", "x")
    assert (ended.status, ended.out, ended.err) == (0, b"__main__ ['-m', 'x']\n", "")


def test_variables_pass_unchanged(launch: Launcher, tmp_path: Path) -> None:
    strange = [b"S%d=%s" % (number, value) for number, value in enumerate(STRANGE_BYTES)]
    strange += [
        b"\xff\xfe=name",
        b"a b=blank",
        b"BASH_FUNC_f%%=() { :; }",
        b"EQUALS=a=b=",
        b"lower=",
        b"A.B-C=1",
        b"=x=y",
    ]
    start = [f"{name}={value}".encode() for name, value in base().items()]
    ended = launch.run(*program("show", tmp_path), command=("env", "-i", *start, *strange, launch.binary))
    assert (ended.status, ended.err) == (0, "")
    found = variables(tmp_path, 0)
    assert all(found[item] == 1 for item in [*start, *strange]), Counter([*start, *strange]) - found


def try_to_bind(port: int, address: str = "127.0.0.1") -> int:
    """What the system says to a process that wants this port: 0 or an errno."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as other:
        try:
            other.bind((address, port))
        except OSError as error:
            return error.errno or -1
    return 0


def test_port_is_held_for_rank_zero_and_from_everybody_else(launch: Launcher, tmp_path: Path) -> None:
    front = launch.start("-n", "3", *program("listen", tmp_path))
    front.wait_ready(3)
    port = int((tmp_path / "0.ready").read_text())
    # Rank 0 no longer listens; the job's port is still nobody else's.
    assert try_to_bind(port) == errno.EADDRINUSE
    assert try_to_bind(port, "0.0.0.0") == errno.EADDRINUSE
    (tmp_path / "go").touch()
    ended = front.end()
    assert (ended.status, ended.err) == (0, "")
    assert try_to_bind(port) in (0, errno.EADDRINUSE)


def test_two_jobs_at_once_have_two_ports(launch: Launcher, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    fronts = []
    for folder in folders:
        folder.mkdir()
        fronts.append(launch.start("-n", "2", *program("listen", folder)))
        fronts[-1].folder = folder
    for front in fronts:
        front.wait_ready(2)
    assert len({(folder / "0.ready").read_text() for folder in folders}) == 2
    for front in fronts:
        (front.folder / "go").touch()
        assert front.end().status == 0
