"""Launchers: how a function comes to run in every rank."""

from __future__ import annotations

from nativelaunch.command import ChildCommand
from nativelaunch.launchers.base import Launcher
from nativelaunch.launchers.process import ProcessHandle
from nativelaunch.launchers.script import SubprocessScriptLauncher

__all__ = ["ChildCommand", "Launcher", "ProcessHandle", "SubprocessScriptLauncher"]
