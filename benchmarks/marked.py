"""Processes that began here, wherever in the tree they are now.

    environment of a first process ─▶ all that it starts inherit the mark ─▶ marked(name, value)

Main trap: a process number is soon another's, and a parent that ends is no longer a parent; what a
process was started with stays true.
"""

from __future__ import annotations

import os

import psutil


def marked(name: str, value: str) -> list[psutil.Process]:
    """List the processes that have a mark in their environment.

    Args:
        name: of the environment's variable.
        value: unlike any other run's.

    Returns:
        All but this one and those that have ended and only wait to be asked how.
    """
    return [process for process in psutil.process_iter() if _is_marked(process, name, value)]


def _is_marked(process: psutil.Process, name: str, value: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            return False
        return process.environ().get(name) == value
    except (psutil.Error, OSError):
        return False  # another's, or gone
