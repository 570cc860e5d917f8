"""Cold reads: how fast a throttled disk really is.  A program of its own as well.

    measure ──files──▶ reader 1 (process in the group) ──times──┐
                  └──▶ reader 2                        ──times──┴──▶ reads in whole slices

Readers are fresh small processes, because the caller may have threads and much memory, and
is not to join the group itself.  Main trap: the kernel lets reads through in bunches, one
each 100 ms, and the first for nothing.  Reads divided by seconds would be a tenth off, so they
are counted over whole slices of 100 ms, whose borders lie between the bunches.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

# This file runs by its path too, so it can import nothing of labkit.

LEAD_IN_S = 0.25  # the bunch at the start, and the next two
PATIENCE_S = 30.0
SLICE_S = 0.1  # of the kernel's throttle, block/blk-throttle.c


class CannotMeasure(Exception):  # noqa: N818 - the reason, for whoever says it in a sentence
    """The readers could not read, or hardly; the text says why."""


def measure(
    files: Sequence[Path], *, group: Path, readers: int, seconds: float, request_bytes: int = 0
) -> float:
    """Measure bytes or files a second, read by processes in a control group.

    Args:
        files: on the disk and not in memory, at least one for each reader.
        group: the control group to join.
        readers: how many processes share the files.
        seconds: how long they read, after a lead-in.
        request_bytes: read a file once in steps of this size, and count bytes; 0: read whole
            files again and again, and count those.

    Raises:
        CannotMeasure: the reason.
    """
    processes = []
    with ExitStack() as running:
        for number in range(readers):
            program = [sys.executable, "-I", __file__, str(group), str(LEAD_IN_S + seconds)]
            program += [str(request_bytes), *map(str, files[number::readers])]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            process = running.enter_context(subprocess.Popen(program, **pipes, text=True))
            running.callback(process.kill)  # whatever happens, before waiting for it
            processes.append(process)
        for process in processes:
            process.stdout.readline()  # it has joined, or ended
        for process in processes:
            with suppress(BrokenPipeError):  # ended: it is asked why below
                print(file=process.stdin, flush=True)
        told = [_result(process, seconds) for process in processes]
    start_s = min(begun_s for begun_s, _ in told)
    return _per_s(sorted(read for _, reads in told for read in reads), start_s)


def _per_s(reads: list[tuple[float, int]], start_s: float) -> float:
    """Count over whole slices, from the middle of a pause between two bunches."""
    steady = [(time_s, count) for time_s, count in reads if time_s >= start_s + LEAD_IN_S]
    times_s = [time_s for time_s, _ in steady]
    pairs = [pair for pair in itertools.pairwise(times_s) if pair[0] < times_s[0] + SLICE_S]
    if not pairs:
        raise CannotMeasure(f"there were {len(reads)} reads only")
    before_s, after_s = max(pairs, key=lambda pair: pair[1] - pair[0])
    begin_s = (before_s + after_s) / 2
    slices = int((times_s[-1] - begin_s) / SLICE_S)
    if slices == 0:
        raise CannotMeasure(f"all {len(reads)} reads were over at once")
    end_s = begin_s + slices * SLICE_S
    return sum(count for time_s, count in steady if begin_s < time_s <= end_s) / (end_s - begin_s)


def _result(process: subprocess.Popen, seconds: float) -> tuple[float, list[tuple[float, int]]]:
    try:
        told, said = process.communicate(timeout=seconds + PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"a read takes more than {PATIENCE_S:g} s") from None
    if process.returncode:
        raise CannotMeasure((said.strip().splitlines() or ["a reader was ended"])[-1])
    return json.loads(told)


def main() -> None:
    """Join the group, wait for a line, read, and print when each read was over."""
    group, seconds, request_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    try:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        print("ready", flush=True)  # noqa: T201 - this is the way it talks
        sys.stdin.readline()
        reads = _parts(sys.argv[4], request_bytes) if request_bytes else _files(sys.argv[4:])
        times, begun_s = [], time.monotonic()
        for count in reads:
            now_s = time.monotonic()
            times.append((now_s, count))
            if now_s >= begun_s + seconds:
                break
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")
    print(json.dumps((begun_s, times)))  # noqa: T201


def _files(paths: Sequence[str]) -> Iterator[int]:
    """Read whole files, and forget each at once, so that it is cold when its turn comes again."""
    while True:
        for path in paths:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - with the least around it
                file.read()
                yield 1
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _parts(path: str, request_bytes: int) -> Iterator[int]:
    """Read a file from its beginning to its end."""
    buffer = bytearray(request_bytes)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while count := file.readinto(buffer):
            yield count


if __name__ == "__main__":
    main()
