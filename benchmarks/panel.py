"""What the panel costs: seconds until it can be used, seconds to a row, a ratio of measured times.

    python -m benchmarks.panel [--data FOLDER] [--rounds 8] [--starts 3]

    make jupyter ─▶ the server answers ─▶ the notebook is ready ─▶ the panel can be used
    Run ─▶ the first row on disk
    rounds of two runs: from the panel in a browser / headless ─▶ ratio of their times

Both runs of a round have the same settings, and their trials are compared variant by variant.
During the headless one, browser and server are suspended.  A device that computes meanwhile would
hide what the panel takes, so in the rounds there is none, and only loading is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from benchmarks import frame
from benchmarks.jupyter import ROOT, Server, make_workplace, rows_in, serve, until
from benchmarks.lab_page import LabPage, browse, why_no_browser
from labkit import units
from labkit.runs.store import load_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

USUAL, TIMED = "02_prefetching", "04_preprocessing"
EXPERIMENTS = {USUAL: "prefetching", TIMED: "preprocessing"}
# Epochs of about half a second; the original runs twice, vectorized and simplified once.
CHANGES = {"device": "cpu", "step": "nothing", "images": 64, "num_workers": 2}
DEVICE_SPEED = 500.0  # images/s; calibrating one takes up to a minute, once for a machine
TRIALS = 4
IMAGES = 200


class Measured(NamedTuple):
    """One run of one block."""

    first_row_s: float
    """From asking for it."""
    typical_s: float
    """Geometric mean of the trials' times."""


@contextlib.contextmanager
def made(folder: Path, data: str) -> Iterator[Server]:
    """Start JupyterLab by ``make jupyter``, in a copy of what it needs."""
    given = {"data": data, "results": "../results", "mode": "quick"}
    usual = {**given, "changes": {"gpu_images_per_s": DEVICE_SPEED}}
    make_workplace(folder, {USUAL: usual, TIMED: {**given, "changes": CHANGES}})
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copy(ROOT / "notebooks/00_start.ipynb", folder / "notebooks")
    (folder / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    # What is installed already is not what is measured.
    with serve(folder, ["make", "--old-file=.venv/lab", "jupyter"]) as server:
        yield server


def show_panel(lab: LabPage) -> None:
    """Run the panel's cell, without the experiment above it, and wait for its Run button."""
    lab.run_cells("data =", "lab.panel(")
    lab.panel.get_by_role("button", name="Run", exact=True).click(trial=True)


def time_start(browser: Browser, folder: Path, data: str) -> dict[str, float]:
    """Time one start, from ``make jupyter`` to a panel whose Run button can be pressed."""
    began_s, reached_s = time.perf_counter(), {}
    with made(folder, data) as server:
        reached_s["answers_s"] = time.perf_counter() - began_s
        lab = LabPage(browser, server, USUAL)
        reached_s["ready_s"] = time.perf_counter() - began_s
        show_panel(lab)
        reached_s["usable_s"] = time.perf_counter() - began_s
        lab.close()
    return reached_s


def run_from_panel(lab: LabPage, trials: int) -> Measured:
    """Press Run and watch the rows come; cancel the rest of a longer run."""
    results = lab.server.folder / "results" / EXPERIMENTS[lab.notebook]
    measured = _watch(results, lambda: lab.press("Run"), lab.until, trials)
    if trials < TRIALS:
        lab.press("Cancel")
    lab.wait_for_status("finished", "cancelled")
    return measured


def run_headless(results: Path, data: str) -> Measured:
    """Run the same from a shell and watch the rows come."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in CHANGES.items()]
    name = EXPERIMENTS[TIMED]
    command = ["run", name, "--blocks=1", f"--data={data}", f"--results={results}", *options]
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            process = subprocess.Popen(
                [sys.executable, "-m", "labkit", *command],
                cwd=results.parent,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.enter_context(process)  # waits for its end

        def wait(condition: Callable[[], object], what: str) -> None:
            until(condition, lambda: f"{what}; labkit {' '.join(command)}")

        return _watch(results / name, begin, wait, TRIALS)


def _watch(
    runs: Path,
    begin: Callable[[], None],
    wait: Callable[[Callable[[], object], str], None],
    trials: int,
) -> Measured:
    """Begin a run and note when its rows are on disk."""

    def folders() -> set[Path]:
        return set(runs.glob("*"))

    before, began_s = folders(), time.perf_counter()
    begin()
    wait(lambda: folders() - before, "a run begins")
    (folder,) = folders() - before
    wait(lambda: rows_in(folder) >= 1, "a row comes")
    first_s = time.perf_counter()
    wait(lambda: rows_in(folder) >= trials, f"{trials} rows come")
    times_s = [trial.time_s for trial in load_run(folder).trials]
    return Measured(first_s - began_s, statistics.geometric_mean(times_s))


@contextlib.contextmanager
def standing_still(server: Server) -> Iterator[None]:
    """Stop the server, its kernels and the browser for a while."""
    browser = [
        process
        for process in psutil.Process().children(recursive=True)
        if "chrom" in process.name()
    ]
    stopped = [*server.processes(), *browser]
    try:
        for process in stopped:
            process.suspend()
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def spread(values_s: Sequence[float]) -> str:
    """Write the median and the range."""
    middle, low, high = statistics.median(values_s), min(values_s), max(values_s)
    return f"{units.seconds(middle)} ({units.seconds(low)} to {units.seconds(high)})"


def main() -> int:
    parser = frame.parser(__doc__, data=True, rounds=8)
    parser.add_argument("--starts", type=int, default=3, help="of JupyterLab, and of a run")
    options = parser.parse_args()
    if reason := why_no_browser() or ("" if shutil.which("make") else "there is no make"):
        raise SystemExit(f"panel: {reason}")
    report = frame.Report("What the panel costs", options)
    with frame.photographs(options.data, IMAGES) as (data, place), browse() as browser:
        starts = [
            time_start(browser, place / f"start {number}", str(data))
            for number in range(options.starts)
        ]
        for what in ("answers_s", "ready_s", "usable_s"):
            times_s = [start[what] for start in starts]
            report.line(f"from `make jupyter`, {what}: {spread(times_s)}")
        with made(place / "lab", str(data)) as server:
            measured = time_runs(browser, server, place / "headless", options, str(data), report)
    return report.finish({"starts": starts, **measured})


def time_runs(
    browser: Browser,
    server: Server,
    alone: Path,
    options: argparse.Namespace,
    data: str,
    report: frame.Report,
) -> dict[str, list[float]]:
    """Time runs as the panel starts them, and beside headless ones; return the rounds' times."""
    lab = LabPage(browser, server, USUAL)
    show_panel(lab)
    firsts_s = [run_from_panel(lab, trials=1).first_row_s for _ in range(options.starts + 1)]
    report.line(f"from Run to the first row, with all checks: {units.seconds(firsts_s[0])}")
    report.line(f"from Run to the first row, later: {spread(firsts_s[1:])}")
    problems = lab.problems
    lab.close()
    lab = LabPage(browser, server, TIMED)
    show_panel(lab)
    lab.type_into("blocks", 1)
    alone.mkdir()

    def run_alone() -> float:
        with standing_still(server):
            return run_headless(alone / "results", data).typical_s

    arms = {"attached": lambda: run_from_panel(lab, TRIALS).typical_s, "headless": run_alone}
    taken_s = frame.in_turn(arms, options.rounds)
    ratio = frame.ratio(taken_s["attached"], taken_s["headless"])
    report.line(f"measured times, panel attached / headless: {ratio}, {options.rounds} rounds")
    problems += lab.problems
    for problem in problems:
        report.line(problem)
    report.limit(not problems, "no error on the page, no request beyond this machine")
    return taken_s


if __name__ == "__main__":
    sys.exit(main())
