"""The environment of a single machine."""

from __future__ import annotations

import socket

import pytest

from nativelaunch import ClusterError
from nativelaunch.environments import ClusterEnvironment, LocalEnvironment

NAMES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def _no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_a_process_nobody_placed_is_the_only_rank() -> None:
    environment = LocalEnvironment()
    assert isinstance(environment, ClusterEnvironment)
    assert not environment.creates_processes_externally
    assert environment.main_address == "127.0.0.1"
    assert (environment.local_rank(), environment.node_rank()) == (0, 0)
    assert (environment.global_rank(), environment.world_size()) == (0, 1)
    environment.set_global_rank(3)
    environment.set_world_size(4)
    assert (environment.global_rank(), environment.world_size()) == (3, 4)
    environment.validate_settings(num_devices=8, num_nodes=1)


def test_a_placed_process_reads_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(NAMES, ("10.0.0.1", "2950", "1", "7", "2"), strict=True):
        monkeypatch.setenv(name, value)
    environment = LocalEnvironment()
    assert environment.creates_processes_externally
    assert (environment.main_address, environment.main_port) == ("10.0.0.1", 2950)
    assert (environment.node_rank(), environment.local_rank()) == (1, 2)
    monkeypatch.delenv("NODE_RANK")
    assert environment.node_rank() == 7


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6"])
def test_a_reserved_port_is_rank_0s_and_nobody_elses(family: socket.AddressFamily) -> None:
    if family == socket.AF_INET6 and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    environment = LocalEnvironment()
    port = environment.main_port
    assert environment.main_port == port
    here = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("", port))
    with socket.socket(family) as rank_0:
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind(("", port))
        rank_0.listen()
        with socket.socket(family) as rank_1:
            rank_1.connect((here, port))


def test_nodes_that_cannot_find_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    with pytest.raises(ClusterError) as caught:
        LocalEnvironment().validate_settings(num_devices=1, num_nodes=2)
    assert caught.value.variables == ("MASTER_PORT",)
    monkeypatch.setenv("MASTER_PORT", "2950")
    monkeypatch.setenv("NODE_RANK", "2")
    with pytest.raises(ClusterError, match="NODE_RANK must be below the number of nodes"):
        LocalEnvironment().validate_settings(num_devices=1, num_nodes=2)


@pytest.mark.parametrize(
    ("name", "value"), [("MASTER_PORT", "x"), ("MASTER_PORT", "65536"), ("LOCAL_RANK", "-1")]
)
def test_a_variable_that_is_no_number_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    environment = LocalEnvironment()
    with pytest.raises(ClusterError, match=f"{name} must be a whole number .*: '{value}'"):
        environment.main_port if name == "MASTER_PORT" else environment.local_rank()
