"""What a launcher asks of a cluster environment."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ClusterEnvironment(Protocol):
    """The place of this process in its cluster. Lightning's environments have this shape and can be used."""

    @property
    def creates_processes_externally(self) -> bool:
        """Whether somebody else has started, or will start, all ranks."""

    @property
    def main_address(self) -> str:
        """Where rank 0 listens."""

    @property
    def main_port(self) -> int:
        """The port on which rank 0 listens."""

    def world_size(self) -> int:
        """Number of ranks on all nodes."""

    def set_world_size(self, size: int) -> None:
        """Tells the number of ranks; environments that know it themselves ignore this."""

    def global_rank(self) -> int:
        """The rank of this process, from 0."""

    def set_global_rank(self, rank: int) -> None:
        """Tells the rank of this process; environments that know it themselves ignore this."""

    def local_rank(self) -> int:
        """The rank of this process on its node, from 0."""

    def node_rank(self) -> int:
        """The node of this process, from 0."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Raises an exception if these counts do not fit what the environment knows."""

    def teardown(self) -> None:
        """Ends what the environment set up."""
