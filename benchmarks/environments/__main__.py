"""The lab in environments unlike a developer's machine: containers, other users, full disks.

    python -m benchmarks.environments [NAME ...] [--ci]

Each environment is made in a mount namespace of its own, as root.  The lab's commands then run in
it: each must end with status 0 and its result, or with one line that says why it cannot.  Claims
that photographs are cold or warm are counted with other code, and nothing may be left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks import frame
from benchmarks.environments import judge
from benchmarks.environments.places import (
    CHECKOUT,
    ENVIRONMENTS,
    GROUP,
    Done,
    Needs,
    Place,
    remove_group,
    run_tool,
)
from labkit.parts.storage import slow_disk
from labkit.photos.make import make_photos

PHOTOS = 160
DIAGNOSE_S = 12
CACHE = ("cold", "warm", "cold, mapped")
COLUMNS = ("doctor", "prefetching", "storage", "watch", "diagnose", *CACHE, "left")
SHORT = 24  # letters of a cell in the table; the rest is printed below it
IN_CI = ("overlay-lower",)
NOT_IN_CI = ("storage", "diagnose")
# Where memory can be looked at, and files evicted: there cold and warm have to be claimed.
CLAIMS = ("overlay-lower", "overlay-upper", "shm-64mb", "no-sys-admin", "ext4", "no-sys")
CELLS = "cells.jsonl"
MARK = "LABKIT_ENVIRONMENTS"  # in the environment of every process of ours


def commands(place: Place, *, calibrates: bool, ci: bool) -> dict[str, list[str]]:
    """Return the lab's commands by the names of their columns."""
    results = ["--data", "photos", "--results", str(place.results), "--blocks", "1"]
    if ci or not calibrates:  # which takes a minute
        results += ["--gpu-images-per-s", "100"]
    few = ["--variant", "original", "--variant", "both", "--input-px", "128"] if ci else []
    every = {
        "doctor": ["doctor", "--data", "photos"],
        "prefetching": ["run", "prefetching", "--mode", "quick", *results, *few],
        "storage": ["run", "storage", "--mode", "quick", *results],
        "watch": ["watch", "--json", str(place.results / "watch.json"), "train.py"],
        "diagnose": ["diagnose", "--budget-s", str(DIAGNOSE_S), "train.py"],
    }
    return {name: words for name, words in every.items() if not (ci and name in NOT_IN_CI)}


def inside(name: str, folder: Path, photos: Path, *, ci: bool) -> Iterator[tuple[str, str]]:
    """Make an environment, run everything in it, and yield its cells: column and text."""
    environment = ENVIRONMENTS[name]
    with ExitStack() as stack:
        try:
            place = environment.make(stack, folder, photos)
        except Needs as reason:
            yield "doctor", str(reason)
            return
        place.environ[MARK] = os.environ[MARK]
        mounts, loops = judge.mounts(), judge.loop_devices()
        for column in CACHE:
            state, _, is_mapped = column.partition(", ")
            cell = judge.judge_cache(place, state, mapped=PHOTOS // 4 if is_mapped else 0)
            if name in CLAIMS and not is_mapped and not cell.startswith("true"):
                cell = f"FAILED: it can be proved here, but: {cell}"
            yield column, cell
        done: dict[str, Done] = {}
        for column, words in commands(place, calibrates=environment.calibrates, ci=ci).items():
            done[column] = place.labkit(*words)
            can_end = column in environment.may_end
            cell = judge.judge_end(column, done[column], may_end=can_end)
            yield column, "; ".join(filter(None, (cell, judge.judge_rows(place, column))))

        def left() -> Iterator[str]:
            yield from judge.mounts() - mounts
            yield from (
                x for x, is_ours in judge.loop_devices().items() if is_ours and x not in loops
            )
            yield from judge.files_left(place)
            yield from processes_left()
            yield from (str(slow_disk.cgroup_folder()),) * slow_disk.cgroup_folder().exists()

        wrong = [environment.check(place, done), ", ".join(judge.wait_for_none(left))]
        if any(wrong):
            yield "left", f"FAILED: {'; '.join(filter(None, wrong))}"


def processes_left() -> list[str]:
    """List processes of ours that should have ended."""
    ours = [(p.pid, " ".join(p.cmdline())) for p in frame.marked(MARK, os.environ[MARK])]
    own = "benchmarks.environments"
    return [f"process {pid} ({words[:100]})" for pid, words in ours if own not in words]


def outside(name: str, scratch: Path, photos: Path, *, ci: bool) -> dict[str, str]:
    """Run `inside` in a mount namespace, and see that nothing stays."""
    folder = scratch / name
    folder.mkdir()
    mounts, loops, mark = judge.mounts(), judge.loop_devices(), secrets.token_hex(8)
    words = [sys.executable, "-m", "benchmarks.environments", name, "--inside", str(folder)]
    words += ["--photos", str(photos), *(["--ci"] if ci else [])]
    words = ["unshare", "--mount", "--propagation", "private", *words]
    with subprocess.Popen(words, env={**os.environ, MARK: mark}) as process:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.terminate()  # it cleans up
            process.wait()
            raise
        finally:
            for each in frame.marked(MARK, mark):
                each.kill()
            # Of an environment that was killed itself.
            groups = list(Path("/sys/fs/cgroup").rglob(GROUP.format(process.pid)))
            for group in groups:
                for path in (group / "inner", group):
                    remove_group(path)
    cells = {}
    if (folder / CELLS).exists():
        cells = dict(map(json.loads, (folder / CELLS).read_text().splitlines()))
    if process.returncode:
        cells["left"] = f"FAILED: the environment ended with status {process.returncode}"

    def left() -> Iterator[str]:
        yield from (line for line in judge.mounts() - mounts if str(scratch) in line)
        yield from (x for x, is_seen in judge.loop_devices().items() if not (is_seen or x in loops))

    if stays := [*map(str, groups), *judge.wait_for_none(left)]:
        cells["left"] = f"FAILED: {', '.join(stays)}"
    shutil.rmtree(folder)
    return cells


def why_not(scratch: Path) -> str:
    """Return what this machine lacks for all environments; empty if nothing."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root"
    if scratch.resolve().is_relative_to("/var/tmp"):
        return f"needs a --scratch outside /var/tmp, got {scratch}"
    try:
        run_tool("unshare", "--mount", "--propagation", "private", "true")
    except Needs as reason:
        return str(reason)
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a cell failed."""
    made = frame.parser(__doc__)
    made.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ENVIRONMENTS))
    made.add_argument("--ci", action="store_true", help="a fast subset, in at most four minutes")
    made.add_argument("--scratch", type=Path, help="a folder on a disk, not below /var/tmp")
    made.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--photos", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args(arguments)
    if unknown := [name for name in options.names if name not in ENVIRONMENTS]:
        made.error(f"NAME must be one of {', '.join(ENVIRONMENTS)}, got {', '.join(unknown)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    if options.inside:
        with (options.inside / CELLS).open("w", buffering=1) as file:  # line by line
            for cell in inside(options.names[0], options.inside, options.photos, ci=options.ci):
                file.write(json.dumps(cell) + "\n")
        return 0
    names = options.names or (IN_CI if options.ci else tuple(ENVIRONMENTS))
    report = frame.Report("The lab in other environments", options)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    rows, begun_s = {}, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="labkit-environments-", dir=options.scratch) as folder:
        scratch = Path(folder)
        scratch.chmod(0o755)
        reason = why_not(scratch)
        if not reason:
            make_photos(scratch / "photos", PHOTOS, progress=False)
        for name in names:
            rows[name] = {"doctor": reason}
            if not reason:
                rows[name] = outside(name, scratch, scratch / "photos", ci=options.ci)
            for column, cell in rows[name].items():
                report.line(f"{name}, {column}: {cell}")
    cells = [[name, *(_short(rows[name].get(c, "")) for c in COLUMNS)] for name in names]
    report.table(("environment", *COLUMNS), cells)
    failed = [f"{n}, {c}: {x}" for n in names for c, x in rows[n].items() if "FAILED" in x]
    if options.ci:
        failed += [f"{name} was not tried" for name in names if "watch" not in rows[name]]
    report.limit(not failed, f"{len(failed)} cells failed ({time.monotonic() - begun_s:.0f} s)")
    return report.finish(rows)


def _short(cell: str) -> str:
    return cell if len(cell) <= SHORT else f"{cell[: SHORT - 1]}…"


if __name__ == "__main__":
    sys.exit(main())
