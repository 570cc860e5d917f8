"""What a step does on the host, by kind: saving, reporting, waiting for the device, Python loops.

    resident step under pyinstrument ─ stacks ─▶ the first name on each that tells its kind

A step's own functions have any name, so kinds are told by what they end in: torch.save, fsync, a
socket, item().  Main trap: a wait for the device may stand in any of them; only names of torch
and of emulated devices count as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

# Kind -> what a frame "file:function" looks like that belongs to it, the outermost first.
KINDS = {
    "checkpoint": re.compile(
        r"torch/serialization\.py:(save|_save)|safetensors|:f?sync$|:fdatasync$|pickle\.py:dump"
        r"|checkpoint\w*\.py:|:\w*checkpoint\w*$|:save_file$|:save$",
        re.IGNORECASE,
    ),
    "reports": re.compile(
        r"logging/__init__|socket|http/client|urllib|requests/|wandb|tensorboard|mlflow|tqdm"
        r"|:print$|iostream\.py|sqlite",
        re.IGNORECASE,
    ),
    "synchronization": re.compile(
        r":(TensorBase|Tensor)?\.?(item|tolist|cpu|numpy|nonzero)$|:synchronize$"
        r"|labkit/(parts/devices|clock|diagnosis/devices)\.py:",
    ),
}
# Calls of torch, numpy and the like: computing, whoever asked for it.
LIBRARY = re.compile(r"site-packages/(torch|numpy|scipy|cv2)/|^<built-in>:_?(Tensor|Variable)")
INTERVAL_S = 0.001


def kinds_of(run: Callable[[], object]) -> Mapping[str, float]:
    """Run something under a profiler and say what its time went into.

    Args:
        run: calls the step some hundred times.

    Returns:
        Kind -> share of the time; "host work" is Python of no other kind, "compute" what
        libraries did.
    """
    from pyinstrument import Profiler

    profiler = Profiler(interval=INTERVAL_S, async_mode="disabled")
    profiler.start()
    try:
        run()
    finally:
        session = profiler.stop()
    seconds: dict[str, float] = {}
    for stack, spent_s in session.frame_records:
        kind = kind_of([name_of(frame) for frame in stack])
        seconds[kind] = seconds.get(kind, 0.0) + spent_s
    total_s = sum(seconds.values()) or 1.0
    return {kind: spent_s / total_s for kind, spent_s in seconds.items()}


def name_of(identifier: str) -> str:
    """Write a frame of pyinstrument's as "file:function"."""
    function, file = identifier.split("\x00")[:2]
    return f"{file}:{function}"


def kind_of(stack: list[str]) -> str:
    """Say what kind of work a stack of frames is, the outermost first."""
    for frame in stack:
        for kind, pattern in KINDS.items():
            if pattern.search(frame):
                return kind
    # A built-in function has no file: it is torch's where torch called it.
    computes = LIBRARY.search(stack[-1]) or any(map(LIBRARY.search, stack[-2:-1]))
    return "compute" if computes else "host work"
