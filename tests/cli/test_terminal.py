"""At a terminal the command behaves as a program that a shell started: Ctrl-C, Ctrl-Z, input and hang-up."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.fronts import is_stopped, kill, parent_of, program, signals_seen, wait_until
from tests.cli.terminals import CTRL_BACKSLASH, CTRL_C, CTRL_Z, Terminal
from tests.python.processes import alive, named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def terminal(tmp_path: Path, _nothing_is_left: None) -> Iterator[Terminal]:
    """A terminal, hung up at the end."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def wait_ready(folder: Path, count: int) -> None:
    wait_until(lambda: len(list(folder.glob("*.ready"))) >= count, f"{count} workers")


def workers() -> list[int]:
    """The keeper's children."""
    guards = named("nl-guard")
    keepers = [pid for pid in named("nl-keeper") if parent_of(pid) in guards]
    return [pid for pid in alive() if parent_of(pid) in keepers]


def shell_of(terminal: Terminal) -> int:
    """The process that leads the terminal's session."""
    assert terminal.process is not None
    return terminal.process.pid


def test_ctrl_c_reaches_each_worker_once_and_the_front_dies_of_it(
    terminal: Terminal, binary: str, tmp_path: Path
) -> None:
    terminal.start_job(binary, "-n", "4", *program("log_signals", tmp_path))
    wait_ready(tmp_path, 4)
    terminal.type(CTRL_C)
    assert terminal.wait_log("signaled") == signal.SIGINT
    assert signals_seen(tmp_path) == {str(rank): ["SIGINT"] for rank in range(4)}
    terminal.wait_screen(b"nativelaunch: ended by SIGINT\r\n")


def test_ctrl_c_keeps_a_status_that_a_rank_chooses(terminal: Terminal, binary: str, tmp_path: Path) -> None:
    terminal.start_job(binary, "-n", "2", *program("log_signals", tmp_path, "0.1", "1=75"))
    wait_ready(tmp_path, 2)
    terminal.type(CTRL_C)
    assert terminal.wait_log("exited") == 75


def test_ctrl_backslash_reaches_each_worker_once(terminal: Terminal, binary: str, tmp_path: Path) -> None:
    terminal.start_job(binary, "-n", "2", *program("log_signals", tmp_path))
    wait_ready(tmp_path, 2)
    terminal.type(CTRL_BACKSLASH)
    assert terminal.wait_log("exited") == 128 + signal.SIGQUIT
    assert signals_seen(tmp_path) == {str(rank): ["SIGQUIT"] for rank in range(2)}


def test_ctrl_c_that_kills_a_worker_leaves_the_others_to_their_clean_up(
    terminal: Terminal, binary: str, tmp_path: Path
) -> None:
    command = program("log_signals", tmp_path, "0.5")
    body = '[ $RANK != 0 ] || { touch "$0/0.ready"; exec sleep 1000; }; exec "$@"'
    terminal.start_job(binary, "-n", "4", "--no-python", "sh", "-c", body, tmp_path, *command[1:])
    wait_ready(tmp_path, 4)
    terminal.type(CTRL_C)
    assert terminal.wait_log("signaled") == signal.SIGINT
    # No SIGTERM came between.
    assert signals_seen(tmp_path) == {str(rank): ["SIGINT"] for rank in range(1, 4)}
    terminal.wait_screen(b"nativelaunch: ranks 1-3 then exited with 0\r\n")


def test_second_ctrl_c_kills_at_once(terminal: Terminal, binary: str, tmp_path: Path) -> None:
    terminal.start_job(binary, "-n", "2", "--grace", "60", *program("log_signals", tmp_path, "0", "never"))
    wait_ready(tmp_path, 2)
    terminal.type(CTRL_C)
    wait_until(lambda: all(signals_seen(tmp_path).values()), "a note by each worker")
    # Fingers are slow; the limit is 250 ms.
    time.sleep(0.3)
    terminal.type(CTRL_C)
    assert terminal.wait_log("signaled", 2.0) == signal.SIGINT
    terminal.wait_screen(b"nativelaunch: ranks 0, 1 were ended (SIGKILL)\r\n")


def test_rank_zero_reads_the_terminal_and_the_others_nothing(terminal: Terminal, binary: str) -> None:
    body = 'if read line; then echo "$RANK got $line"; else echo "$RANK has $(readlink /proc/self/fd/0)"; fi'
    terminal.start_job(binary, "-n", "2", "--no-python", "sh", "-c", body)
    terminal.wait_screen(b"1 has /dev/null\r\n")
    terminal.type(b"a line\n")
    terminal.wait_screen(b"0 got a line\r\n")
    assert terminal.wait_log("exited") == 0


def test_workers_have_the_controlling_terminal(terminal: Terminal, binary: str) -> None:
    terminal.start_job(binary, "-n", "2", "--no-python", "sh", "-c", "echo $RANK has one > /dev/tty")
    terminal.wait_screen(b"has one\r\n")
    terminal.wait_screen(b"has one\r\n")
    assert terminal.wait_log("exited") == 0


def test_ctrl_z_stops_all_and_fg_continues_all(terminal: Terminal, binary: str, tmp_path: Path) -> None:
    front = terminal.start_job(binary, "-n", "3", *program("log_signals", tmp_path))
    wait_ready(tmp_path, 3)
    for _ in range(2):
        terminal.type(CTRL_Z)
        terminal.wait_log("stopped")
        assert is_stopped(front)
        wait_until(lambda: all(is_stopped(pid) for pid in workers()), "stopped workers")
        assert len(workers()) == 3
        terminal.resume(b"fg")
        wait_until(lambda: not any(is_stopped(pid) for pid in [front, *workers()]), "running workers")
    terminal.type(CTRL_C)
    assert terminal.wait_log("signaled") == signal.SIGINT
    assert signals_seen(tmp_path) == {str(rank): ["SIGCONT", "SIGCONT", "SIGINT"] for rank in range(3)}


@pytest.mark.parametrize("run", range(5))
def test_suspended_job_obeys_sigterm(terminal: Terminal, binary: str, tmp_path: Path, run: int) -> None:
    # The faster the better: SIGCONT makes the kernel forget of the stop what nobody has read of it.
    front = terminal.start_job(binary, "-n", "2", *program("log_signals", tmp_path))
    wait_ready(tmp_path, 2)
    terminal.type(CTRL_Z)
    terminal.wait_log("stopped")
    # As a shell's `kill %1` does.
    os.killpg(front, signal.SIGTERM)
    terminal.resume(b"bg")
    assert terminal.wait_log("exited") == 143
    assert [seen.count("SIGTERM") for seen in signals_seen(tmp_path).values()] == [1, 1]


def test_suspended_job_ends_with_its_killed_front(terminal: Terminal, binary: str, tmp_path: Path) -> None:
    front = terminal.start_job(binary, "-n", "2", *program("family", tmp_path))
    wait_ready(tmp_path, 2)
    terminal.type(CTRL_Z)
    terminal.wait_log("stopped")
    kill(front)
    wait_until(lambda: not set(alive()) - {shell_of(terminal)}, "the end of all", 1.0)
    terminal.resume(b"bg")
    assert terminal.wait_log("signaled") == signal.SIGKILL


def test_suspended_job_ends_with_its_shell(terminal: Terminal, binary: str, tmp_path: Path) -> None:
    terminal.start_job(binary, "-n", "2", *program("log_signals", tmp_path))
    wait_ready(tmp_path, 2)
    terminal.type(CTRL_Z)
    terminal.wait_log("stopped")
    # The kernel sends SIGHUP and SIGCONT to a stopped group that loses whoever could continue it.
    kill(shell_of(terminal))
    wait_until(lambda: not alive(), "the end of all", 10)
    assert [seen.count("SIGHUP") for seen in signals_seen(tmp_path).values()] == [1, 1]


def test_hang_up_ends_the_job(terminal: Terminal, binary: str, tmp_path: Path) -> None:
    terminal.start(binary, "-n", "2", *program("log_signals", tmp_path))
    wait_ready(tmp_path, 2)
    os.close(terminal.master)
    terminal.master = -1
    assert terminal.process is not None
    process = terminal.process
    wait_until(lambda: process.poll() is not None, "the end of the front", 10)
    assert process.returncode == 128 + signal.SIGHUP
    # The kernel sends SIGCONT too.
    assert [seen.count("SIGHUP") for seen in signals_seen(tmp_path).values()] == [1, 1]


def test_background_read_stops_the_job_and_fg_lets_it_read(terminal: Terminal, binary: str) -> None:
    body = '[ $RANK = 0 ] || exec sleep 1000; read first; echo "got $first"; read second; echo "got $second"; exit 5'
    front = terminal.start_job(binary, "-n", "2", "--no-python", "sh", "-c", body)
    terminal.type(b"one\n")
    terminal.wait_screen(b"got one\r\n")
    terminal.type(CTRL_Z)
    terminal.wait_log("stopped")
    # In the background again it goes on reading, which stops it.
    terminal.resume(b"bg")
    terminal.wait_log("stopped")
    assert is_stopped(front)
    terminal.resume(b"fg")
    terminal.type(b"two\n")
    terminal.wait_screen(b"got two\r\n")
    assert terminal.wait_log("exited") == 5


def test_ctrl_z_without_a_shell_freezes_nothing(terminal: Terminal, binary: str) -> None:
    # A session leader: nobody could continue it.
    body = 'read line; echo "$RANK got $line"'
    front = terminal.start(binary, "-n", "2", "--no-python", "sh", "-c", body)
    wait_until(lambda: len(workers()) == 1, "the end of rank 1, which reads nothing")
    terminal.type(CTRL_Z + b"a line\n")
    terminal.wait_screen(b"0 got a line\r\n")
    assert terminal.wait_end() == 0
    assert front.returncode == 0


def test_ctrl_c_without_a_shell_ends_the_job(terminal: Terminal, binary: str, tmp_path: Path) -> None:
    front = terminal.start(binary, "-n", "2", *program("log_signals", tmp_path))
    wait_ready(tmp_path, 2)
    terminal.type(CTRL_C)
    assert terminal.wait_end() == -signal.SIGINT
    assert front.returncode == -signal.SIGINT
    assert signals_seen(tmp_path) == {str(rank): ["SIGINT"] for rank in range(2)}


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
class TestUnderBash:
    """The real thing."""

    @pytest.fixture
    def bash(self, terminal: Terminal) -> Terminal:
        terminal.start("bash", "--norc", "--noprofile", "-i")
        terminal.wait_screen(b"prompt> ")
        return terminal

    def test_ctrl_z_and_fg(self, bash: Terminal, binary: str, tmp_path: Path) -> None:
        command = " ".join(program("wait_for_go", tmp_path))
        bash.type(f"{binary} -n 2 {command}\n".encode())
        wait_ready(tmp_path, 2)
        bash.type(CTRL_Z)
        bash.wait_screen(b"Stopped")
        bash.wait_screen(b"prompt> ")
        wait_until(lambda: all(is_stopped(pid) for pid in workers()), "stopped workers")
        (tmp_path / "go").touch()
        bash.type(b"fg\n")
        bash.wait_screen(b"exited with 3 after")
        bash.wait_screen(b"prompt> ")
        bash.type(b"echo status=$?\n")
        bash.wait_screen(b"status=3\r\n")
        bash.type(b"exit\n")
        bash.wait_end()

    def test_ctrl_c_ends_a_loop(self, bash: Terminal, binary: str, tmp_path: Path) -> None:
        command = " ".join(program("log_signals", tmp_path, "0.1"))
        bash.type(f"for i in 1 2 3; do {binary} -n 2 {command}; done; echo done=$?\n".encode())
        wait_ready(tmp_path, 2)
        bash.type(CTRL_C)
        bash.wait_screen(b"ended by SIGINT")
        bash.wait_screen(b"prompt> ")
        bash.type(b"echo status=$?\n")
        bash.wait_screen(b"status=130\r\n")
        assert signals_seen(tmp_path) == {"0": ["SIGINT"], "1": ["SIGINT"]}
        bash.type(b"exit\n")
        bash.wait_end()

    def test_kill_of_a_background_job(self, bash: Terminal, binary: str, tmp_path: Path) -> None:
        command = " ".join(program("log_signals", tmp_path))
        bash.type(f"{binary} -n 2 {command} &\n".encode())
        wait_ready(tmp_path, 2)
        bash.type(b"kill %1\n")
        bash.wait_screen(b"ended by SIGTERM")
        bash.type(b"wait %1; echo status=$?\n")
        bash.wait_screen(b"status=143\r\n")
        assert signals_seen(tmp_path) == {"0": ["SIGTERM"], "1": ["SIGTERM"]}
        bash.type(b"exit\n")
        bash.wait_end()
