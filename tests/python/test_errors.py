"""What exceptions carry."""

from __future__ import annotations

import errno
import pickle

import pytest

from nativelaunch import ClusterError, LauncherError, NativelaunchError, SpawnError, UsageError, WorkerFailed


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (UsageError, ValueError),
        (SpawnError, OSError),
        (LauncherError, RuntimeError),
        (WorkerFailed, RuntimeError),
        (ClusterError, RuntimeError),
    ],
)
def test_each_error_is_ours_and_a_builtin(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, NativelaunchError)
    assert issubclass(kind, base)


def test_spawn_error_has_rank_stage_and_errno() -> None:
    error = SpawnError(errno.ENOENT, "cannot start rank 2", rank=2, stage="exec")
    assert (error.errno, error.rank, error.stage, str(error)) == (
        errno.ENOENT,
        2,
        "exec",
        "cannot start rank 2",
    )


@pytest.mark.parametrize(
    "error",
    [
        UsageError("x must be y: 3"),
        SpawnError(2, "cannot start rank 2", rank=2, stage="exec"),
        LauncherError("no"),
        WorkerFailed("rank 1 exited with 7", rank=1),
        ClusterError("no place", ["RANK"], "set it"),
    ],
)
def test_errors_cross_processes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    public = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    assert {name: vars(copy)[name] for name in public} == public
