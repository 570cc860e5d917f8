"""Whether a long session leaves anything behind: runs, kills, cancels, bad files and full disks.

    python -m benchmarks.soak [--minutes 10] [--seed 0]

Actions follow each other in random order in one process, as in a notebook.  Each ends with a
complete run, or with the line that its input deserves.  After each, what the process holds is
counted: in the last quarter of the time it must be no more than in the second.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import ipywidgets
import psutil

import labkit as lab
from benchmarks import frame
from labkit import units
from labkit.panel import job
from labkit.photos.make import make_photos
from labkit.runs.launcher import end_ready_server

BASE = {
    "device": "cpu", "step": "nothing", "preprocessor": "vectorized", "cache": "as found",
    "input_px": 64, "batch_size": 4, "images": 8, "num_workers": 1, "epochs": 1,
}  # fmt: skip
OTHERS = (
    {"decoder": "pillow"}, {"loader": "threads"}, {"num_workers": 2}, {"storage": "tmpfs"},
    {"prefetcher": "prefetch_generator"}, {"packing": "raw"}, {"packing": "lmdb"},
)  # fmt: skip
RUN_S = 6.0  # about what a run takes: within it, it is killed or cancelled
PATIENCE_S = 120.0
ROOM_BYTES = 200  # on a full disk: less than a row
HELD = ("memory", "threads", "open files", "processes", "temporary files")
MEMORY_GROWTH = 1.1  # an allocator does not give everything back at once
QUARTERS = ("1st quarter", "2nd", "3rd", "last")


class Watcher:
    """A run's progress, which does something once the first row has been written."""

    shown = False

    def __init__(self, at_row: Callable[[], object]) -> None:
        self.rate = lambda rate: at_row()

    def __getattr__(self, name: str) -> object:
        return lambda *given, **named: None


class Session:
    """What a user does in an empty folder, well and badly."""

    def __init__(self, place: Path, rng: random.Random) -> None:
        self._rng, self.results = rng, place / "results"
        self._photos, self._faulty = place / "photos", place / "faulty"
        make_photos(self._photos, 16, seed=1, progress=False)
        shutil.copytree(self._photos / "images", self._faulty)
        sorted(self._faulty.iterdir())[3].write_bytes(b"")

    def complete(self) -> None:
        """Run an experiment to its end."""
        self._check(self._run())

    def by_form(self) -> None:
        """Run by the form; perhaps cancel and resume."""
        box = lab.panel(self._experiment(), blocks=2, results=self.results)
        box._view_count = 1  # as a page counts that shows it
        _press(box, "Run")
        if self._rng.random() < 0.5 and not job.current().wait(self._rng.uniform(0, RUN_S)):
            _press(box, "Cancel")
            _end_job()
            if job.current().state == "cancelled":
                _press(box, "Resume")
        _end_job()
        box._view_count = 0  # its cell was run again
        ipywidgets.Widget.close_all()
        assert job.current().state == "finished", job.current().error

    def cancel(self) -> None:
        """Cancel a run at a random moment, and resume it."""
        cancel = threading.Event()
        with self._at_some_time(cancel.set):
            self._run(cancel=cancel)
        self._complete()

    def kill(self) -> None:
        """Kill one of the processes at a random moment; resume the run if it did not survive."""

        def strike() -> None:
            if family := psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._rng.choice(family).kill()

        with self._at_some_time(strike), contextlib.suppress(RuntimeError, ValueError, OSError):
            self._run()
        self._complete()

    def full_disk(self) -> None:
        """Let files grow no further after the first row; resume when there is room again."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)

        def fill() -> None:
            (rows,) = self.results.glob("*/*/trials.jsonl")
            most_bytes = rows.stat().st_size + ROOM_BYTES
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))

        try:
            self._run(progress=Watcher(fill))
            raise AssertionError("a full disk went unnoticed")
        except OSError as error:
            assert str(error).startswith("results must "), error
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self._complete()

    def bad_file(self) -> None:
        """Meet an image that cannot be read: leave it out, or stop."""
        faulty = {"data": str(self._faulty), "images": 12}
        assert self._run(**faulty, on_bad_image="skip").info.excluded == (3,)
        try:
            self._run(**faulty)
            raise AssertionError("an empty file went unnoticed")
        except ValueError as error:
            assert str(error).startswith("images must all be readable"), error

    def _experiment(self, **settings: object) -> lab.Experiment:
        base = {"data": str(self._photos), **BASE, **settings}
        other = {**base, **self._rng.choice(OTHERS)}
        variants = {"base": lab.Settings(**base), "other": lab.Settings(**other)}
        return lab.Experiment("soak", question="?", variants=variants, baseline="base")

    def _run(self, cancel: object = None, progress: object = False, **settings: object) -> lab.Run:
        how = {"blocks": 2, "results": self.results, "cancel": cancel, "progress": progress}
        return lab.run(self._experiment(**settings), **how)

    def _complete(self) -> None:
        run = lab.find_run(lab.list_runs(self.results)[-1])
        self._check(
            run if run.info.status == "finished" else lab.resume(run.folder, progress=False)
        )

    def _check(self, run: lab.Run) -> None:
        assert [row.blocks for row in run.summary.rows] == [2, 2], run.table()

    @contextlib.contextmanager
    def _at_some_time(self, action: Callable[[], object]) -> Iterator[None]:
        timer = threading.Timer(self._rng.uniform(0, RUN_S), action)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


ACTIONS = (
    Session.complete, Session.by_form, Session.cancel, Session.kill, Session.full_disk,
    Session.bad_file,
)  # fmt: skip


def _press(box: object, text: str) -> None:
    for child in getattr(box, "children", ()):
        if getattr(child, "description", None) == text:
            child.click()
        _press(child, text)


def _end_job() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("labkit "):
            thread.join(PATIENCE_S)


def held(temporary: Path) -> tuple[int, ...]:
    """Count what this process holds now, the memory with that of all below it; see `HELD`."""
    gc.collect()
    me, memory_bytes = psutil.Process(), 0
    below = me.children(recursive=True)
    for process in (me, *below):
        with contextlib.suppress(psutil.NoSuchProcess):
            memory_bytes += process.memory_full_info().uss
    files = len([*temporary.rglob("*")])
    return memory_bytes, threading.active_count(), me.num_fds(), len(below), files


def main() -> int:
    parser = frame.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the actions and their moments")
    options = parser.parse_args()
    report, rng = frame.Report("A long session", options), random.Random(options.seed)
    done, snapshots, failures = Counter(), [], []
    with tempfile.TemporaryDirectory(prefix="labkit-soak-") as place:
        session, temporary = Session(Path(place), rng), Path(place, "tmp")
        temporary.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        # Python's own resource tracker stays for as long as the process.
        at_first, end_s = held(temporary)[-2], time.monotonic() + 60 * options.minutes
        while time.monotonic() < end_s:
            action = rng.choice(ACTIONS)
            done[action.__name__] += 1
            try:
                action(session)
            except Exception as error:  # whatever it is, it should not have come
                failures.append(f"{action.__name__}: {type(error).__name__}: {error}")
            shutil.rmtree(session.results, ignore_errors=True)  # their number would count, too
            snapshots.append(held(temporary))
        end_ready_server()
        *_, processes, files = held(temporary)
    counts = ", ".join(f"{name} {times}" for name, times in sorted(done.items()))
    asked = f"{options.minutes:g} min, seed {options.seed}"
    report.line(f"{units.count(done.total(), 'action')} ({counts}), {asked}")
    for failure in failures:
        report.line(failure)
    report.limit(not failures, f"{len(failures)} ended otherwise than they should")
    left = processes - at_first
    report.limit(not left + files, f"left in the end: {left} processes, {files} files")
    quarters = [
        snapshots[len(snapshots) * i // 4 : len(snapshots) * (i + 1) // 4] for i in range(4)
    ]
    if all(quarters):
        medians = [[statistics.median(each) for each in zip(*quarter)] for quarter in quarters]
        shown = [(units.count_bytes(memory), *map(str, rest)) for memory, *rest in medians]
        report.table(("", *QUARTERS), [*zip(HELD, *shown)])
        for name, _, before, _, after in zip(HELD, *medians):
            most = before * (MEMORY_GROWTH if name == "memory" else 1)
            report.limit(after <= most, f"{name}: in the end {after / max(before, 1):.2f} times")
    else:
        report.line("growth is not judged: four actions or more are needed")
    return report.finish({"actions": done, "failures": failures, "held": snapshots})


if __name__ == "__main__":
    sys.exit(main())
