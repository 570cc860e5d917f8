"""Room: whether a batch fits into memory at all, and what to say where it did not.

    settings ─ check_room ─▶ refused before anything is made     error ─ why_no_room ─▶ one line

A batch that is larger than the machine's memory is refused by arithmetic, as the kernel may grant
it and kill somebody when it is filled.  What fits once may still be too much for several at a time:
then a library fails, each in words of its own.  Main trap: an error in a loader worker comes as
another one, with the worker's traceback for its text.
"""

from __future__ import annotations

import re
from math import prod

import numpy as np

from labkit import machine, units
from labkit.contracts import BATCHES
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.settings import Settings

# NumPy's, Python's and C++'s own; torch's on the CPU and on CUDA; OpenCV's; TensorFlow's.
NO_ROOM = re.compile(
    r"MemoryError|bad_alloc|(can't|cannot) allocate|OutOfMemory|out of memory|OOM when allocating",
    re.IGNORECASE,
)
LONGEST_SAID = 160  # characters of a library's own message: it has to stay one line


def batch_bytes(settings: Settings) -> int | None:
    """Count the bytes of one finished batch; None for a preprocessor that makes one of its own."""
    describe = BATCHES.get(PREPROCESSORS[settings.preprocessor].batch)
    if describe is None:
        return None
    specs = describe(settings.batch_size, settings.input_px).values()
    return sum(prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs)


def check_room(settings: Settings) -> None:
    """Refuse a batch that is larger than all of this machine's memory.

    Raises:
        ValueError: saying how many images would fit.
    """
    needed_bytes, there_bytes = batch_bytes(settings) or 0, machine.memory_bytes()
    if needed_bytes > there_bytes:
        fitting = there_bytes * settings.batch_size // needed_bytes
        raise ValueError(
            f"batch_size must be at most {fitting} at input_px {settings.input_px}, so that one "
            f"batch fits into memory ({units.count_bytes(there_bytes)}), got {settings.batch_size} "
            f"({units.count_bytes(needed_bytes)}); use a smaller one or a smaller input_px"
        )


def why_no_room(error: BaseException, settings: Settings) -> str:
    """Say in one line that memory ran out; empty where something else went wrong."""
    name, lines = type(error).__name__, str(error).strip().splitlines() or [""]
    # Of a worker's traceback the last line says what it was.
    said = lines[-1] if lines[0].startswith("Caught ") else f"{name}: {lines[0]}"
    if not NO_ROOM.search(said):
        return ""
    needed_bytes = batch_bytes(settings)
    size = f" ({units.count_bytes(needed_bytes)} a batch)" if needed_bytes else ""
    return (
        f"batch_size must leave room in memory, got {settings.batch_size}{size}; use a smaller "
        f"one, a smaller input_px or fewer workers ({said[:LONGEST_SAID]})"
    )
