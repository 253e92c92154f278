"""What cannot work is refused before anything starts, in one line with the field and its value."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from nativelaunch import RankOptions, SpawnError, UsageError, run, start
from tests.python.processes import alive

CLOSED = 987

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"command": []}, "command must name a program: []"),
    ({"command": [""]}, "command must name a program: ['']"),
    ({"command": "true"}, "command must be a sequence of arguments, such as"),
    ({"command": Path("/bin/true")}, "command must be a sequence of arguments, such as"),
    ({"command": 3}, "command must be a sequence of arguments: 3"),
    ({"command": ["true", 3]}, "command[1] must be str, bytes or a path: 3"),
    ({"command": ["true", "a\0b"]}, "command[1] must not contain a NUL byte: 'a\\x00b'"),
    ({"command": ["true", "\ud800"]}, "command[1] cannot be encoded"),
    ({"nproc_per_node": 0}, "nproc_per_node must be at least 1: 0"),
    ({"nproc_per_node": -1}, "nproc_per_node must be at least 1: -1"),
    ({"nproc_per_node": True}, "nproc_per_node must be a whole number: True"),
    ({"nproc_per_node": "4"}, "nproc_per_node must be a whole number: '4'"),
    ({"nproc_per_node": 2.0}, "nproc_per_node must be a whole number: 2.0"),
    ({"nproc_per_node": None}, "nproc_per_node must be a whole number: None"),
    ({"nproc_per_node": 2**40}, "nproc_per_node must be at most"),
    ({"nnodes": 0}, "nnodes must be at least 1: 0"),
    ({"nnodes": 2}, "main_address and main_port must be given when nnodes is above 1: 2"),
    ({"node_rank": 1}, "node_rank must be at most 0: 1"),
    ({"node_rank": -1}, "node_rank must be at least 0: -1"),
    ({"main_address": ""}, "main_address must be a host name or address: ''"),
    ({"main_address": 127}, "main_address must be a host name or address: 127"),
    ({"main_port": 0}, "main_port must be at least 1: 0"),
    ({"main_port": 65536}, "main_port must be at most 65535: 65536"),
    ({"env": {"A=B": "c"}}, "env name must not be empty or contain \"=\": 'A=B'"),
    ({"env": {"": "c"}}, "env name must not be empty or contain \"=\": ''"),
    ({"env": {"A": "b\0"}}, "env['A'] must not contain a NUL byte: 'b\\x00'"),
    ({"env": {"A": 1}}, "env['A'] must be str, bytes or a path: 1"),
    ({"env": ["A=1"]}, "env must be a mapping of names to values: ['A=1']"),
    ({"rank_env": "slurm"}, 'rank_env must be one of "torch", "lightning", "none": \'slurm\''),
    ({"cwd": ""}, "cwd must not be empty: ''"),
    ({"cwd": "/nowhere/at/all"}, 'cwd cannot be entered: "/nowhere/at/all": no such file or directory'),
    ({"stdin": 1}, "stdin must be at most 0: 1"),
    ({"stdin": "all"}, 'stdin must be a local rank, "inherit" or "null": \'all\''),
    ({"stdin": True}, "stdin must be a whole number: True"),
    ({"stdout": "lines"}, 'stdout must be "inherit", "null" or a file descriptor: '),
    ({"stdout": CLOSED}, f"stdout must be an open file descriptor: {CLOSED}"),
    ({"stderr": -1}, "stderr must be at least 0: -1"),
    ({"pass_fds": [CLOSED]}, f"pass_fds[0] must be an open file descriptor: {CLOSED}"),
    ({"pass_fds": [1]}, "pass_fds[0] must be above 2, use stdin, stdout, stderr: 1"),
    ({"pass_fds": 3}, "pass_fds must be a sequence of file descriptors: 3"),
    ({"grace": -1}, "grace must be a number of seconds of at least 0: -1"),
    ({"grace": math.nan}, "grace must be a number of seconds of at least 0: nan"),
    ({"grace": math.inf}, "grace must be a number of seconds of at least 0: inf"),
    ({"grace": "30"}, "grace must be a number of seconds: '30'"),
    ({"grace": None}, "grace must be a number of seconds: None"),
    ({"peer_grace": -0.5}, "peer_grace must be a number of seconds of at least 0: -0.5"),
    ({"sweep_grace": True}, "sweep_grace must be a number of seconds: True"),
    ({"timeout": -1}, "timeout must be a number of seconds of at least 0: -1"),
    ({"per_rank": lambda rank: None}, "per_rank(0) must return RankOptions: None"),
    (
        {"per_rank": lambda rank: RankOptions(env={"A": "\0"})},
        "per_rank(0).env['A'] must not contain a NUL byte",
    ),
    ({"per_rank": lambda rank: RankOptions(cwd="")}, "per_rank(0).cwd must not be empty: ''"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSED, ids=[text[:50] for _, text in REFUSED])
def test_refused_by_field_and_value(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(**{"command": ["true"], **arguments})
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
    assert not alive()


def test_an_exception_of_per_rank_is_the_callers() -> None:
    def fail(rank: int) -> RankOptions:
        raise KeyError(rank)

    with pytest.raises(KeyError):
        start(["true"], per_rank=fail)
    assert not alive()


@pytest.mark.parametrize(
    ("command", "errno_name"),
    [("/nowhere/program", "ENOENT"), ("/", "EACCES"), ("no-such-program-anywhere", "ENOENT")],
)
def test_a_program_that_cannot_start_names_rank_stage_and_errno(command: str, errno_name: str) -> None:
    import errno

    with pytest.raises(SpawnError) as caught:
        run([command], nproc_per_node=2)
    error = caught.value
    assert (error.rank, error.stage, error.errno) == (0, "exec", getattr(errno, errno_name))
    assert command in str(error)


def test_a_rank_that_cannot_start_ends_those_that_did(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def options(rank: int) -> RankOptions:
        return RankOptions(env={"PATH": os.environ["PATH"] if rank < 2 else "/nowhere"})

    with pytest.raises(SpawnError) as caught:
        start(["sleep", "1000"], nproc_per_node=4, per_rank=options)
    assert caught.value.rank == 2


def test_numbers_of_other_kinds_are_numbers() -> None:
    class Two:
        def __index__(self) -> int:
            return 2

    outcome = run(["true"], nproc_per_node=Two(), grace=3, stdin=0)  # type: ignore[arg-type]
    assert len(outcome.ranks) == 2
