"""Processes found by a mark in their environment.

A process number is soon reused and a parent may have ended; the environment that a process was
started with is inherited and stays.
"""

from __future__ import annotations

import os

import psutil


def marked(name: str, value: str) -> list[psutil.Process]:
    """Return the processes with this environment variable, except zombies and this one."""
    return [process for process in psutil.process_iter() if _is_marked(process, name, value)]


def _is_marked(process: psutil.Process, name: str, value: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
            return False
        return process.environ().get(name) == value
    except (psutil.Error, OSError):
        return False  # another's, or gone
