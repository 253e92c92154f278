"""Where a process stands in its cluster: the protocol, and the environment of a single machine."""

from __future__ import annotations

from nativelaunch.environments.local import LocalEnvironment
from nativelaunch.environments.protocol import ClusterEnvironment

__all__ = ["ClusterEnvironment", "LocalEnvironment"]
