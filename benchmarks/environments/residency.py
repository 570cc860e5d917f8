"""Cache states as the lab produces them, counted by other code than the lab's.

python -m benchmarks.environments.residency FOLDER cold|warm    # prints what the lab says
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

COLD_MAX_SHARE, WARM_MIN_SHARE = 0.02, 0.98  # the lab's promises
PROT_READ, MAP_SHARED = 1, 1


def resident_share(paths: Iterable[Path]) -> float:
    """Return how much of some files is in memory, by mincore(2).

    The caller must be root, or own the files: of other files the kernel says nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    resident = pages = 0
    for path in paths:
        if not (size := path.stat().st_size):
            continue
        count = -(-size // mmap.PAGESIZE)
        answers = ctypes.create_string_buffer(count)
        with path.open("rb") as file:
            address = libc.mmap(None, size, PROT_READ, MAP_SHARED, file.fileno(), 0)
        if address == ctypes.c_void_p(-1).value or libc.mincore(address, size, answers):
            raise OSError(ctypes.get_errno(), f"mincore refuses {path}")
        libc.munmap(address, size)
        resident += sum(byte & 1 for byte in answers.raw)
        pages += count
    return resident / pages


@contextlib.contextmanager
def held_in_memory(paths: Iterable[Path]) -> Iterator[None]:
    """Map files, so that the kernel keeps them in memory whoever asks it to evict them."""
    with contextlib.ExitStack() as stack:
        for path in paths:
            file = stack.enter_context(path.open("rb"))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            stack.enter_context(mapped)
            mapped[:: mmap.PAGESIZE]
        yield


def main(folder: str, state: str) -> None:
    """Produce a state with the lab and print what it claims."""
    from labkit.contracts import Skip
    from labkit.parts.storage.cache_state import prepare

    paths = sorted(Path(folder).rglob("*.jpg"))
    try:
        proof = prepare(paths, state)
        answer = {"share": proof["resident_share_before"], "by": proof["measured_by"]}
    except Skip as reason:
        answer = {"skip": str(reason)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
