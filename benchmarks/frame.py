"""What the benchmarks share: options, photographs, paired rounds, ratios and a report with limits.

A benchmark compares its arms in one run: every round runs each arm once, and a ratio is the
geometric mean over the rounds with a 95 % confidence interval.  A report is Markdown that is
readable in a terminal, too.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from labkit import units
from labkit.analysis.statistics import ratio_interval
from labkit.machine import hardware
from labkit.machine.clock import utc_now

T = TypeVar("T")
ANSWER = "outcome.json"  # what a case's own process writes


def parser(doc: str, *, data: bool = False, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser of the common options.

    Args:
        doc: the benchmark's docstring.
        data: whether it reads photographs.
        rounds: the default of ``--rounds``; None: it has none.
    """
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("--save", type=Path, help="folder for the report and all measurements")
    if data:
        made.add_argument("--data", help="folder of .jpg files; by default synthetic ones are made")
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds, help="at least 2")
    return made


@contextlib.contextmanager
def photographs(data: str | None, images: int) -> Iterator[tuple[Path, Path]]:
    """Provide photographs and an empty folder, which is removed at the end.

    Args:
        data: the user's folder; None: that many synthetic photographs are made.
        images: how many to make.
    """
    from labkit.photos.make import make_photos

    with tempfile.TemporaryDirectory(prefix="labkit-benchmark-") as folder:
        scratch = Path(folder)
        if data is None:
            make_photos(scratch / "photos", images)
        source = Path(data or scratch / "photos").absolute()
        if next(source.rglob("*.jpg"), None) is None:
            raise SystemExit(f"--data must be a folder with .jpg files, got {data}")
        yield source, scratch


def timed(run: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that a call takes."""
    gc.collect()
    start_s = now()
    run()
    return now() - start_s


def in_turn(arms: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run every arm once in each round and return what each returned.

    A first run of every arm is dropped.  Odd rounds run in random order and even rounds in the
    reverse of the one before, so that drift affects all arms alike.
    """
    for run in arms.values():
        run()
    taken, order = {name: [] for name in arms}, list(arms)
    for number in range(rounds):
        if number % 2:
            order.reverse()
        else:
            random.shuffle(order)
        for name in order:
            taken[name].append(arms[name]())
    return taken


@dataclass(frozen=True)
class Ratio:
    """A geometric mean of paired ratios with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return units.normalized(self.mean, self.low, self.high)


def ratio(times_s: Sequence[float], others_s: Sequence[float]) -> Ratio:
    """Divide times by the others of the same round; at least two rounds."""
    logs = [math.log(a / b) for a, b in zip(times_s, others_s, strict=True)]
    return Ratio(math.exp(statistics.fmean(logs)), *ratio_interval(logs))


def in_own_process(
    words: Sequence[str], folder: Path, *, limit_s: float, inside: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a case of a benchmark in a process of its own: it leaves nothing in this one.

    Args:
        words: the benchmark's module and arguments; it writes its outcome with `write_outcome`.
        folder: its own.
        limit_s: after which it is killed.
        inside: a command that runs the process.

    Returns:
        What it wrote, or why there is nothing as "failed" or "skipped".
    """
    if why := why_not_inside(inside):
        return {"skipped": why}
    command = [*inside, sys.executable, "-m", *words, "--alone", str(folder)]
    root = Path(__file__).parents[1]
    try:
        done = subprocess.run(command, cwd=root, stderr=subprocess.PIPE, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {units.seconds(limit_s)}"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"failed": f"exit status {done.returncode}: {last}"}
    return json.loads((folder / ANSWER).read_text())


def write_outcome(outcome: Any, folder: Path) -> None:
    """Write a case's outcome, a dataclass, where `in_own_process` reads it."""
    (folder / ANSWER).write_text(json.dumps(asdict(outcome)))


def why_not_inside(inside: Sequence[str]) -> str:
    """Try a command that a case's process must run in; return "" where it works."""
    if not inside:
        return ""
    try:
        tried = subprocess.run([*inside, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        return f"needs {inside[0]}, which is not installed"
    return f"needs root on Linux: {tried.stderr.strip()}" if tried.returncode else ""


def marked(name: str, value: str) -> list[psutil.Process]:
    """Return the processes with this environment variable, except zombies and this one.

    A process number is soon reused and a parent may have ended; the environment that a process was
    started with is inherited and stays.
    """

    def is_marked(process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                return False
            return process.environ().get(name) == value
        except (psutil.Error, OSError):
            return False  # another's, or gone

    return list(filter(is_marked, psutil.process_iter()))


class Report:
    """A benchmark's result: printed as it comes, saved at the end.

    Args:
        title: what was measured.
        options: from `parser`.
    """

    def __init__(self, title: str, options: argparse.Namespace) -> None:
        if getattr(options, "rounds", 2) < 2:
            raise SystemExit(f"--rounds must be at least 2, got {options.rounds}")
        self._folder = options.save
        self._provenance = hardware.provenance()
        self._texts: list[str] = []
        self.missed = 0
        """Limits that were missed so far."""
        self._add(f"# {title}\n\n- {hardware.describe(self._provenance)}")

    def _add(self, text: str) -> None:
        self._texts.append(text)
        print(text, flush=True)

    def line(self, text: str) -> None:
        """Add a line to the list."""
        self._add(f"- {text}")

    def limit(self, met: bool, text: str) -> None:
        """Add a line that says whether a limit is met."""
        self.missed += not met
        self.line(f"{'met' if met else 'MISSED'}: {text}")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table."""
        widths = [max(map(len, column)) for column in zip(header, *rows)]
        lines = [header, ["-" * width for width in widths], *rows]
        padded = [map(str.ljust, line, widths) for line in lines]
        self._add("\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in padded) + "\n")

    def finish(self, measured: object = None) -> int:
        """Save the report and what was measured; return the exit status.

        Args:
            measured: all of it, as JSON can hold it.
        """
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "README.md").write_text("\n".join(self._texts) + "\n", "utf-8")
            provenance = asdict(self._provenance)
            kept = {"created_utc": utc_now(), "provenance": provenance, "measured": measured}
            (self._folder / "measured.json").write_text(json.dumps(kept, indent=1), "utf-8")
        return 1 if self.missed else 0
