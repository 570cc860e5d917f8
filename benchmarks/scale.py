"""Whether time and memory stay in proportion to the number of files in a folder.

    python -m benchmarks.scale [--files 100000 1000000]

    hard links to small images ─▶ a process each: list, hash names and sizes, start a run ─▶ s, MB

All files lie in one temporary folder, which is removed at the end.  Memory is what the processes
hold during a trial.  Only what more files add to it counts: the libraries' own is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import psutil

import labkit as lab
from benchmarks import frame
from labkit import units
from labkit.parts.packing.folder import open_folder
from labkit.parts.packing.manifest import MANIFEST, SCHEMA, sha256

LINKS = 60_000  # of one file; ext4 allows 65,000
IMAGES, JITTER_MS = 200, 40  # a trial of two workers takes 2 s, long enough to look at it
LOOK_EVERY_S = 0.1
WORKER_DEPTH = 4  # this process ─ server ─ server of the run ─ trial ─ loader worker
MOST_BYTES, MOST_START_S = 300, 60.0
MOST_TIMES = 1.5  # as much per file as in the smallest folder

TIMES = {
    "list_s": "list the folder",
    "hash_s": "hash names and sizes",
    "start_s": "from the start of a run to its first trial",
    "listed_list_s": "list it with a manifest of every file",
    "listed_start_s": "from the start of a run with this manifest to its first trial",
}
SEEN = {
    "main_bytes": "the main process",
    "others_bytes": "the run's other processes together",
    "worker_bytes": "of which a loader worker's own",
}
MEMORY = SEEN | {f"listed_{name}": f"{text}, with this manifest" for name, text in SEEN.items()}


@contextlib.contextmanager
def linked(files: int) -> Iterator[Path]:
    """Make a folder of hard links, and remove it in the end."""
    jpeg = cv2.imencode(".jpg", np.full((64, 64, 3), 99, np.uint8))[1].tobytes()
    with tempfile.TemporaryDirectory(prefix="labkit-scale-") as place:
        folder = Path(place, "files")
        folder.mkdir()
        for number in range(files):
            path = folder / f"{number:08}.jpg"
            if number % LINKS == 0:
                first = path
                first.write_bytes(jpeg)
            else:
                path.hardlink_to(first)
        yield folder


def measure(folder: Path) -> dict[str, float]:
    """Measure in this process, which has opened nothing yet."""
    measured = {}
    start_s = time.perf_counter()
    reader = open_folder(folder)
    measured["list_s"] = time.perf_counter() - start_s
    start_s = time.perf_counter()
    _ = reader.data_hash
    measured["hash_s"] = time.perf_counter() - start_s
    del reader
    return measured | _run(folder)


def write_manifest(folder: Path) -> None:
    """Give the folder a manifest of every file."""
    entry = {"bytes": (folder / "00000000.jpg").stat().st_size}
    entry["sha256"] = sha256((folder / "00000000.jpg").read_bytes())
    entries = {path.name: entry for path in folder.iterdir()}
    (folder / MANIFEST).write_text(json.dumps({"schema": SCHEMA, "files": entries}))


def in_a_process(folder: Path) -> dict[str, float]:
    """Call `measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--measure", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


class _Watched:
    """A run's progress: when its first trial starts, and the memory during trials."""

    shown = False

    def __init__(self) -> None:
        self.began_s, self.largest = None, dict.fromkeys(SEEN, 0)
        self.ended = threading.Event()

    def next(self, trial: str) -> None:
        if self.began_s is None:
            self.began_s = time.perf_counter()
            threading.Thread(target=self._look).start()

    def __getattr__(self, name: str) -> object:
        return lambda *given, **named: None

    def _look(self) -> None:
        main = psutil.Process()
        gc.collect()
        while not self.ended.wait(LOOK_EVERY_S):
            seen = {"main_bytes": main.memory_full_info().uss, "others_bytes": 0}
            depths = {main.pid: 0}
            for process in main.children(recursive=True):  # parents come first
                with contextlib.suppress(psutil.Error, KeyError):
                    depths[process.pid] = depth = 1 + depths[process.ppid()]
                    memory = process.memory_full_info()
                    seen["others_bytes"] += memory.pss
                    if depth == WORKER_DEPTH:
                        seen["worker_bytes"] = max(seen.get("worker_bytes", 0), memory.uss)
            self.largest = {name: max(self.largest[name], seen.get(name, 0)) for name in SEEN}


def _run(folder: Path) -> dict[str, float]:
    settings = lab.Settings(
        data=str(folder), device="cpu", step="nothing", preprocessor="vectorized", input_px=64,
        cache="as found", batch_size=4, images=IMAGES, num_workers=2, jitter_ms=JITTER_MS, epochs=1,
    )  # fmt: skip
    experiment = lab.Experiment("scale", question="?", variants={"a": settings}, baseline="a")
    watched, start_s = _Watched(), time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="labkit-scale-") as results:
            lab.run(experiment, blocks=1, results=results, progress=watched)
    finally:
        watched.ended.set()
    return {"start_s": watched.began_s - start_s, **watched.largest}


def rows(files: Sequence[int], measured: Sequence[dict]) -> list[tuple[str, ...]]:
    """Return the table: a line per measurement, a column per folder, and what a file adds."""
    more = files[-1] - files[0]
    lines = []
    for name, text in TIMES.items():
        each = [units.seconds(one[name]) for one in measured]
        lines.append((text, *each, units.seconds(measured[-1][name] / files[-1])))
    for name, text in MEMORY.items():
        each = [units.count_bytes(one[name]) for one in measured]
        added = (measured[-1][name] - measured[0][name]) / more if more else 0
        lines.append((text, *each, f"{added:.0f} B"))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = frame.parser(__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return 0
    report, measured, files = frame.Report("Many files", options), [], sorted(options.files)
    for count in files:
        with linked(count) as folder:
            row = in_a_process(folder)
            write_manifest(folder)
            row |= {f"listed_{name}": value for name, value in in_a_process(folder).items()}
            measured.append(row)
    report.table(("", *(units.count(n, "file") for n in files), "a file"), rows(files, measured))
    few, many, more = measured[0], measured[-1], files[-1] - files[0]
    report.limit(many["start_s"] <= MOST_START_S, f"a run starts within {MOST_START_S:.0f} s")
    if more:
        for name, text in TIMES.items():
            times = many[name] / few[name] * files[0] / files[-1]
            remark = f"{text}: a file takes {times:.1f} times as long, at most {MOST_TIMES}"
            report.limit(times <= MOST_TIMES, remark)
        for name, text in MEMORY.items():
            added = (many[name] - few[name]) / more
            report.limit(added <= MOST_BYTES, f"{text}: {added:.0f} B a file, at most {MOST_BYTES}")
    return report.finish(dict(zip(map(str, files), measured)))


if __name__ == "__main__":
    sys.exit(main())
