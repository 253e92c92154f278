"""A compiled-core launcher for distributed training."""

from nativelaunch._core import __version__

__all__ = ["__version__"]
