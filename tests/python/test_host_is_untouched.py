"""A host's signals, children, threads, descriptors and bits are its own, during a job and after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.processes import run_host


def check(folder: Path, source: str, timeout: float = 30) -> None:
    status, out, err = run_host(folder, source, timeout=timeout)
    assert status == 0, err
    assert out.splitlines()[-1:] == ["done"], (out, err)


def test_host_is_untouched_by_signals_masks_threads_and_descriptors(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        import ctypes, os, signal
        import nativelaunch
        PR_GET_CHILD_SUBREAPER = 37
        def state():
            bit = ctypes.c_int(-1)
            assert ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(bit), 0, 0, 0) == 0
            fields = open("/proc/self/status").read().splitlines()
            keep = ("SigBlk", "SigIgn", "SigCgt", "ShdPnd", "Threads", "PPid", "Umask", "Cpus_allowed:")
            return {
                "handlers": [signal.getsignal(n) for n in signal.valid_signals()],
                "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
                "subreaper": bit.value,
                "status": [line for line in fields if line.startswith(keep)],
                "group": (os.getpgid(0), os.getsid(0)),
                "environ": dict(os.environ),
                "cwd": os.getcwd(),
                "limits": open("/proc/self/limits").read(),
            }
        def fds():
            return {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                    if os.path.lexists(f"/proc/self/fd/{fd}")}
        nativelaunch.run(["true"])
        before, fds_before = state(), fds()
        for status in (0, 3):
            with nativelaunch.start(["sh", "-c", f"sleep 0.1; exit {status}"], nproc_per_node=3) as job:
                assert state() == before, (state(), before)
                assert os.listdir("/proc/self/task") == [str(os.getpid())]
                children = open(f"/proc/self/task/{os.getpid()}/children").read()
                assert children == "", children
                assert job.wait().status == status
            del job
            assert state() == before
            assert fds() == fds_before, (fds(), fds_before)
        assert before["subreaper"] == 0
        print("done")
        """,
    )


def test_host_is_untouched_by_sigchld_and_wait_any(tmp_path: Path) -> None:
    # A thief waits for any child all the time, and a handler counts: neither ever sees a process of ours.
    check(
        tmp_path,
        """
        import os, signal, tempfile, threading, time
        import nativelaunch
        seen, stolen = [], []
        signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
        stop = threading.Event()
        def thief():
            while not stop.is_set():
                try:
                    stolen.append(os.waitpid(-1, os.WNOHANG))
                except ChildProcessError:
                    time.sleep(0.0005)
        thread = threading.Thread(target=thief, daemon=True)
        thread.start()
        # Each comes to its own end, although the first ends the others: they leave when all are there.
        code = "trap '' TERM; : > $0/$RANK; until [ -e $0/7 ] && [ $(ls $0 | wc -l) = 8 ]; do sleep 0.01; done; "
        code += "exit $((RANK + 1))"
        for _ in range(10):
            here = tempfile.mkdtemp(dir=os.path.dirname(__file__))
            outcome = nativelaunch.run(["sh", "-c", code, here], nproc_per_node=8)
            assert [rank.status for rank in outcome.ranks] == [1, 2, 3, 4, 5, 6, 7, 8], outcome.to_json()
            assert outcome.status == outcome.first_failure.status
        stop.set()
        thread.join()
        assert seen == [], seen
        assert stolen == [], stolen
        print("done")
        """,
    )


@pytest.mark.parametrize("handler", ["SIG_IGN", "SIG_DFL"])
def test_statuses_are_exact_whatever_the_host_does_with_sigchld(tmp_path: Path, handler: str) -> None:
    check(
        tmp_path,
        f"""
        import os, signal, subprocess
        import nativelaunch
        signal.signal(signal.SIGCHLD, signal.{handler})
        for status in (0, 3, 255):
            assert nativelaunch.run(["sh", "-c", f"exit {{status}}"], nproc_per_node=2).status == status
        # Workers do not inherit it: a shell that waits for its child has to get its status.
        assert nativelaunch.run(["sh", "-c", "sh -c 'exit 7' & wait $!; exit $?"]).status == 7
        assert signal.getsignal(signal.SIGCHLD) is signal.{handler}
        print("done")
        """,
    )


def test_children_of_the_host_are_its_own(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        import multiprocessing, os, subprocess, sys
        import nativelaunch
        def target(status):
            os._exit(status)
        if __name__ == "__main__":
            with nativelaunch.start(["sh", "-c", "sleep 0.5; exit $((RANK + 1))"], nproc_per_node=3) as job:
                assert subprocess.run(["sh", "-c", "exit 9"]).returncode == 9
                child = os.fork()
                if child == 0:
                    os._exit(4)
                assert os.wait() == (child, 4 << 8)
                try:
                    os.wait()
                except ChildProcessError:
                    pass
                else:
                    raise AssertionError("a child that is not ours")
                for method in ("fork", "spawn", "forkserver"):
                    process = multiprocessing.get_context(method).Process(target=target, args=(5,))
                    process.start()
                    process.join()
                    assert process.exitcode == 5
                assert job.wait().status in (1, 2, 3)
            print("done")
        """,
    )


def test_a_large_host_starts_workers_at_once(tmp_path: Path) -> None:
    # Not a copy of the page table: 1 GiB of touched 4 KiB pages makes a fork take tens of milliseconds.
    check(
        tmp_path,
        """
        import mmap, time
        import nativelaunch
        def took():
            begun = time.thread_time()
            with nativelaunch.start(["true"]) as job:
                passed = time.thread_time() - begun
                assert job.wait().status == 0
            return passed
        took()
        small = min(took() for _ in range(10))
        memory = mmap.mmap(-1, 1 << 30)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, 1 << 30, 4096):
            memory[at] = 1
        large = min(took() for _ in range(10))
        # A fork would copy 2 MiB of page table: 20 ms of CPU and more.
        assert large < small + 0.01, (small, large)
        print("done")
        """,
    )


def test_workers_do_not_inherit_the_hosts_signal_state(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        import signal, sys
        import nativelaunch
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        code = '''import sys
        lines = open("/proc/self/status").read().splitlines()
        masks = dict(line.split(":\\t") for line in lines if line.startswith("Sig"))
        assert int(masks["SigBlk"], 16) == 0, masks
        # Python itself ignores SIGPIPE (13) and SIGXFSZ (25); subprocess of 3.13 those of glibc (32, 33).
        assert int(masks["SigIgn"], 16) & ~(1 << 12 | 1 << 24 | 3 << 31) == 0, masks
        '''
        code = "\\n".join(line.strip() for line in code.splitlines())
        assert nativelaunch.run([sys.executable, "-c", code]).status == 0
        print("done")
        """,
    )


def test_an_ignored_hangup_stays_ignored_in_workers(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        import signal
        import nativelaunch
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert nativelaunch.run(["sh", "-c", "kill -HUP $$; exit 5"]).status == 5
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert nativelaunch.run(["sh", "-c", "kill -HUP $$; exit 5"]).status == 129
        print("done")
        """,
    )


def test_a_hundred_jobs_leave_nothing(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        import os
        import nativelaunch
        def count():
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        nativelaunch.run(["true"])
        before = count()
        for _ in range(100):
            nativelaunch.run(["true"])
        assert count() == before, (count(), before)
        print("done")
        """,
        timeout=60,
    )


def test_idle_is_silent_in_a_host_that_waits(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        import os, threading, time
        import nativelaunch
        from nativelaunch.environments import LocalEnvironment
        from nativelaunch.launchers import SubprocessScriptLauncher

        def switches():
            total = 0
            for task in os.listdir("/proc/self/task"):
                for line in open(f"/proc/self/task/{task}/status"):
                    if line.startswith("voluntary_ctxt_switches"):
                        total += int(line.split()[1])
            return total

        def main():
            if "NATIVELAUNCH_CHILD" in os.environ:
                return time.sleep(1000)
            # The native thread waits; so do the waits of another job, in a thread and in this one.
            with nativelaunch.start(["sleep", "1000"]) as job:
                thread = threading.Thread(target=job.wait)
                thread.start()
                time.sleep(0.5)
                before = switches()
                try:
                    job.wait(2)
                except TimeoutError:
                    pass
                # Two are those of this thread's own wait.
                assert switches() - before <= 6, switches() - before
            thread.join()
            for process in launcher.procs:
                process.kill()

        launcher = SubprocessScriptLauncher(LocalEnvironment(), 2, 1)
        try:
            launcher.launch(main)
            time.sleep(10)
        except nativelaunch.WorkerFailed:
            print("done", flush=True)
            os._exit(0)
        """,
    )
