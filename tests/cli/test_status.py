"""The exit status is that of the first failure, and what is told of it explains it."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.cli.fronts import program
from tests.python.processes import alive

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.fronts import Launcher


def fails_in(rank: int, how: str) -> list[str]:
    """Three workers: one ends like that, the others sleep."""
    return ["-n", "3", "--no-python", "sh", "-c", f"[ $RANK = {rank} ] || exec sleep 1000; {how}"]


@pytest.mark.parametrize("count", ["1", "3"])
def test_success_is_silent(launch: Launcher, count: str) -> None:
    ended = launch.run("-n", count, "--no-python", "true")
    assert (ended.status, ended.out, ended.err) == (0, b"", "")


@pytest.mark.parametrize("status", [1, 2, 7, 126, 127, 128, 143, 255])
def test_status_of_a_rank_is_the_status(launch: Launcher, status: int) -> None:
    ended = launch.run(*fails_in(2, f"exit {status}"))
    assert ended.status == status
    assert len(ended.lines) == 2
    assert re.fullmatch(
        rf"nativelaunch: rank 2 \(local 2, pid \d+, host \S+\) exited with {status} after \d+\.\d s",
        ended.lines[0],
    )
    assert ended.lines[1] == "nativelaunch: ranks 0, 1 were ended (SIGTERM)"


@pytest.mark.parametrize(
    "signum",
    [
        signal.SIGTERM,
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGPIPE,
        signal.SIGUSR1,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGRTMIN + 2,
    ],
    ids=str,
)
def test_death_by_a_signal_is_128_and_its_number(launch: Launcher, signum: int) -> None:
    ended = launch.run(*fails_in(2, f"ulimit -c 0; kill -{int(signum)} $$; sleep 1000"))
    assert ended.status == 128 + signum
    assert re.search(
        r"^nativelaunch: rank 2 \(local 2, pid \d+, host \S+\) was killed by SIG\S+ after", ended.err
    )
    if signum < 32:
        assert f"was killed by {signal.Signals(signum).name} after" in ended.err
    assert ended.lines[1] == "nativelaunch: ranks 0, 1 were ended (SIGTERM)"


def test_report_names_the_pid_and_is_the_last_thing_printed(launch: Launcher, tmp_path: Path) -> None:
    # The others have something to say when they are ended.
    body = (
        'trap "echo farewell >&2; exit 3" TERM; touch "$0/$RANK.ready"; '
        'while [ ! -e "$0/go" ] || [ $RANK != 1 ]; do sleep 0.01; done; echo "pid $$"; exit 7'
    )
    front = launch.start("-n", "4", "--no-python", "sh", "-c", body, tmp_path)
    front.wait_ready(4)
    (tmp_path / "go").touch()
    ended = front.end()
    assert ended.status == 7
    pid = ended.out.decode().split()[1]
    assert ended.lines[:3] == ["farewell"] * 3
    assert ended.lines[3].startswith(f"nativelaunch: rank 1 (local 1, pid {pid}, host ")
    assert ended.lines[4:] == ["nativelaunch: ranks 0, 2, 3 then exited with 3"]


def test_first_failure_is_the_first_by_the_order_of_deaths(launch: Launcher, tmp_path: Path) -> None:
    for run in range(8):
        folder = tmp_path / str(run)
        folder.mkdir()
        ended = launch.run("-n", "4", *program("chain", folder))
        assert ended.status == 13, (run, ended)
        assert ended.lines[0].startswith("nativelaunch: rank 3 (local 3, pid ")


def test_statuses_of_those_that_were_ended_are_not_the_cause(launch: Launcher, tmp_path: Path) -> None:
    body = (
        'trap "exit 9" TERM; touch "$0/$RANK.ready"; '
        'while [ $RANK != 1 ] || [ ! -e "$0/go" ]; do sleep 0.01; done; exit 7'
    )
    front = launch.start("-n", "3", "--no-python", "sh", "-c", body, tmp_path)
    front.wait_ready(3)
    (tmp_path / "go").touch()
    ended = front.end()
    assert ended.status == 7
    assert ended.lines[1:] == ["nativelaunch: ranks 0, 2 then exited with 9"]


def test_a_rank_that_ends_early_with_zero_is_waited_for_by_nobody(launch: Launcher) -> None:
    ended = launch.run("-n", "3", "--no-python", "sh", "-c", "[ $RANK = 0 ] || sleep 0.3; echo $RANK")
    assert ended.status == 0
    assert sorted(ended.out.split()) == [b"0", b"1", b"2"]


def test_help_and_version_go_to_stdout(launch: Launcher) -> None:
    ended = launch.run("--version")
    assert (ended.status, ended.err) == (0, "")
    assert re.fullmatch(rb"nativelaunch \d+\.\d+\.\d+\S*\n", ended.out)
    for option in ("-h", "--help"):
        ended = launch.run(option)
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.startswith(b"usage: nativelaunch ")


N = "--nproc-per-node must be a whole number of at least 1: "
GRACE = "must be a number of seconds of at least 0: "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no script given; see nativelaunch --help"),
        ([""], "the script is an empty string"),
        (["-n", "0", "x"], N + '"0"'),
        (["-n", "-1", "x"], N + '"-1"'),
        (["-n", "two", "x"], N + '"two"'),
        (["-n", "", "x"], N + '""'),
        (["-n", "1.5", "x"], N + '"1.5"'),
        (["-n", " 1", "x"], N + '" 1"'),
        (["-n", b"\xff", "x"], N + '"\\xFF"'),
        (["-n", "99999999999999999999", "x"], N + '"99999999999999999999"'),
        (["--nproc_per_node=0", "x"], N + '"0"'),
        (["-n"], "--nproc-per-node needs a value"),
        (["--grace", "-1", "x"], f'--grace {GRACE}"-1"'),
        (["--grace", "nan", "x"], f'--grace {GRACE}"nan"'),
        (["--grace", "inf", "x"], f'--grace {GRACE}"inf"'),
        (["--grace", "", "x"], f'--grace {GRACE}""'),
        (["--grace", "5s", "x"], f'--grace {GRACE}"5s"'),
        (["--grace", "1e99", "x"], f'--grace {GRACE}"1e99"'),
        (["--peer-grace", "-0.1", "x"], f'--peer-grace {GRACE}"-0.1"'),
        (["--peer_grace=NaN", "x"], f'--peer-grace {GRACE}"NaN"'),
        (["--module=yes", "x"], '--module takes no value: "yes"'),
        (["--no-python", "-m", "x"], "--module and --no-python exclude each other"),
        (
            ["--peer-grase", "1", "x"],
            'unknown option "--peer-grase" (did you mean "--peer-grace"?); see nativelaunch --help',
        ),
        (["--frobnicate", "x"], 'unknown option "--frobnicate"; see nativelaunch --help'),
        (["-q", "x"], 'unknown option "-q"; see nativelaunch --help'),
    ],
    ids=str,
)
def test_bad_command_line_is_refused_in_one_line(
    launch: Launcher, arguments: list[str | bytes], message: str
) -> None:
    ended = launch.run(*arguments)
    assert (ended.status, ended.out, ended.err) == (2, b"", f"nativelaunch: {message}\n")


@pytest.mark.parametrize("count", ["4000000000", "1000000"])
def test_absurd_number_of_workers_is_refused_before_any_starts(launch: Launcher, count: str) -> None:
    ended = launch.run("-n", count, "--no-python", "true", timeout=5)
    assert ended.status == 2
    assert len(ended.lines) == 1
    assert count in ended.err
    assert "nproc" in ended.err


@pytest.mark.parametrize("count", ["1", "4"])
class TestNotThere:
    """What cannot be started is told once, however many ranks there are."""

    def test_missing_script(self, launch: Launcher, tmp_path: Path, count: str) -> None:
        (tmp_path / "train.py").touch()
        ended = launch.run("-n", count, "trian.py")
        assert ended.status == 127
        assert ended.err == (
            'nativelaunch: cannot start: script "trian.py": no such file (did you mean "train.py"?)\n'
        )

    def test_missing_script_in_another_folder(self, launch: Launcher, tmp_path: Path, count: str) -> None:
        ended = launch.run("-n", count, tmp_path / "nowhere" / "train.py")
        assert ended.status == 127
        assert len(ended.lines) == 1
        assert "no such file" in ended.err

    def test_missing_program(self, launch: Launcher, count: str) -> None:
        ended = launch.run("-n", count, "--no-python", "no-such-program-anywhere")
        assert ended.status == 127
        assert len(ended.lines) == 1
        assert '"no-such-program-anywhere": no such file or directory' in ended.err

    def test_missing_interpreter_of_the_first_line(
        self, launch: Launcher, tmp_path: Path, count: str
    ) -> None:
        script = tmp_path / "script"
        script.write_text("#!/no/such/interpreter -x\ntrue\n")
        script.chmod(0o755)
        ended = launch.run("-n", count, "--no-python", "./script")
        assert ended.status == 127
        assert len(ended.lines) == 1
        assert '"#!/no/such/interpreter -x"' in ended.err
        assert "interpreter" in ended.err

    def test_missing_python(self, launch: Launcher, tmp_path: Path, count: str) -> None:
        (tmp_path / "train.py").touch()
        ended = launch.run("-n", count, "train.py", env={"PYTHON_EXEC": "/no/such/python"})
        assert ended.status == 127
        assert len(ended.lines) == 1
        assert '"/no/such/python"' in ended.err

    def test_missing_module_is_told_by_python(self, launch: Launcher, count: str) -> None:
        ended = launch.run("-n", count, "-m", "no_such_module_anywhere")
        assert ended.status == 1
        assert "No module named no_such_module_anywhere" in ended.err

    def test_program_that_may_not_be_executed(self, launch: Launcher, tmp_path: Path, count: str) -> None:
        (tmp_path / "script").write_text("#!/bin/sh\n")
        ended = launch.run("-n", count, "--no-python", "./script")
        assert ended.status == 126
        assert len(ended.lines) == 1
        assert '"./script": permission denied' in ended.err

    def test_folder_as_program(self, launch: Launcher, tmp_path: Path, count: str) -> None:
        ended = launch.run("-n", count, "--no-python", tmp_path)
        assert ended.status == 126
        assert len(ended.lines) == 1

    def test_binary_for_another_machine(self, launch: Launcher, tmp_path: Path, count: str) -> None:
        program = tmp_path / "program"
        # An ELF header with a machine that nobody has.
        program.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xfe\xfe" + bytes(100))
        program.chmod(0o755)
        ended = launch.run("-n", count, "--no-python", "./program")
        assert ended.status == 126
        assert ended.lines[-1].startswith("nativelaunch: ")


@pytest.mark.parametrize("arguments", [["__guard"], ["__keeper"], ["__guard", "x"]], ids=str)
def test_hidden_commands_refuse_to_run_alone(launch: Launcher, arguments: list[str]) -> None:
    ended = launch.run(*arguments)
    assert ended.status in (2, 127)
    assert len(ended.lines) == 1
    assert not alive()
