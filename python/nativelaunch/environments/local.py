"""The environment of processes that our launchers start themselves."""

from __future__ import annotations

import os
import socket
import weakref

from typing_extensions import override

from nativelaunch.environments.protocol import ClusterEnvironment
from nativelaunch.errors import ClusterError


class LocalEnvironment(ClusterEnvironment):
    """One machine, or several whose `MASTER_ADDR`, `MASTER_PORT` and `NODE_RANK` are given.

    The variables are those of Lightning's default environment: a process that finds `LOCAL_RANK` is a rank already.
    Without `MASTER_PORT` a free port is reserved: it stays bound, not listening, with SO_REUSEADDR for as long as this
    object lives, so that rank 0 can listen on it and nobody else is given it.
    """

    def __init__(self) -> None:
        self._global_rank = 0
        self._world_size = 1
        self._port: int | None = None

    @property
    @override
    def creates_processes_externally(self) -> bool:
        return "LOCAL_RANK" in os.environ

    @property
    @override
    def main_address(self) -> str:
        return os.environ.get("MASTER_ADDR") or "127.0.0.1"

    @property
    @override
    def main_port(self) -> int:
        given = os.environ.get("MASTER_PORT")
        if given:
            return _number("MASTER_PORT", given, 1, 65535)
        if self._port is None:
            reservation = reserve_port()
            self._port = int(reservation.getsockname()[1])
            weakref.finalize(self, os.close, reservation.detach())
        return self._port

    @override
    def world_size(self) -> int:
        return self._world_size

    @override
    def set_world_size(self, size: int) -> None:
        self._world_size = size

    @override
    def global_rank(self) -> int:
        return self._global_rank

    @override
    def set_global_rank(self, rank: int) -> None:
        self._global_rank = rank

    @override
    def local_rank(self) -> int:
        return _number("LOCAL_RANK", os.environ.get("LOCAL_RANK", "0"))

    @override
    def node_rank(self) -> int:
        for name in ("NODE_RANK", "GROUP_RANK"):
            if name in os.environ:
                return _number(name, os.environ[name])
        return 0

    @override
    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Refuses several nodes that could not find each other.

        Raises:
            ClusterError: There are several nodes, and each would take an address or a port of its own.
        """
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if num_nodes > 1 and missing:
            raise ClusterError(
                f"{num_nodes} nodes cannot find each other: {' and '.join(missing)} not set",
                missing,
                "set them to the address of node 0 and a free port there, the same on every node",
            )
        node_rank = self.node_rank()
        if node_rank >= num_nodes:
            raise ClusterError(
                f"NODE_RANK must be below the number of nodes ({num_nodes}): {node_rank}", ["NODE_RANK"]
            )

    @override
    def teardown(self) -> None:
        """Nothing: the port stays reserved, since frameworks tear down after each stage and go on with the next."""


def reserve_port() -> socket.socket:
    """A free port, bound on every address of this machine and not listening."""
    # Dual-stack where there is IPv6, as rank 0's store will bind.
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            reservation = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            if family == socket.AF_INET6:
                reservation.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind(("", 0))
        except OSError:
            reservation.close()
            if family == socket.AF_INET:
                raise
            continue
        return reservation
    raise OSError("no port can be reserved: neither IPv6 nor IPv4 sockets can be made")


def _number(name: str, value: str, least: int = 0, most: int = 2**31 - 1) -> int:
    if value.isascii() and value.isdigit() and least <= int(value) <= most:
        return int(value)
    raise ClusterError(f"{name} must be a whole number from {least} to {most}: {value!r}", [name])
