"""Processes that a test started, told from what earlier tests keep running beside it."""

import psutil


def newest_child() -> psutil.Process:
    """Find the child of this process that was started last."""
    return max(psutil.Process().children(), key=lambda child: (child.create_time(), child.pid))
