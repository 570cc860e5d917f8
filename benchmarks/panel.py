"""What the panel costs a person, and a measurement: seconds to use it, seconds to a row, a ratio.

    make jupyter ─▶ the server answers ─▶ the notebook is ready ─▶ the panel can be used
    Run ─▶ the first row on disk
    rounds of two runs, turn about: from the panel in a browser / headless ─▶ ratio of their times

A round's two runs have the same settings, and their trials are compared variant by variant.
While the headless one goes on, browser and server stand still, as if they were not there.  Main
trap: a device that computes meanwhile, or is matched anew to every run, would hide what the panel
takes; so in the rounds there is none, and loading is all that is timed.

    python -m benchmarks.panel [DATA] [--rounds N] [--times N] [--pictures FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.jupyter import ENDS_WITHIN_S, ROOT, Server, make_workplace, rows_in, serve, until
from benchmarks.lab_page import LabPage, browse, why_no_browser
from labkit import units
from labkit.analysis.statistics import paired_interval
from labkit.progress import bar
from labkit.runs.store import load_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

USUAL, TIMED = "02_prefetching", "04_preprocessing"
EXPERIMENTS = {USUAL: "prefetching", TIMED: "preprocessing"}
# Epochs of about half a second; the original runs twice, vectorized and simplified once.
CHANGES = {"device": "cpu", "step": "nothing", "images": 64, "num_workers": 2}
TRIALS = 4
TALL = {"width": 1280, "height": 3200}  # all of the panel at once, for a picture


@dataclass(frozen=True, kw_only=True)
class Start:
    """Seconds from ``make jupyter``."""

    answers_s: float
    ready_s: float
    usable_s: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run of one block."""

    first_row_s: float
    """From asking for it."""
    rows_s: float
    """From the first row to the last."""
    times_s: dict[tuple[str, str], float]
    """(variant, role) -> two epochs."""


@contextlib.contextmanager
def made(folder: Path, data: str) -> Iterator[Server]:
    """Start JupyterLab by ``make jupyter``, in a copy of what it needs."""
    given = {"data": data, "results": "../results", "mode": "quick"}
    make_workplace(folder, {USUAL: given, TIMED: {**given, "changes": CHANGES}})
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copy(ROOT / "notebooks/00_start.ipynb", folder / "notebooks")
    (folder / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    # What is installed already is not what is measured.
    with serve(folder, ["make", "--old-file=.venv/core", "jupyter"]) as server:
        yield server


def show_panel(lab: LabPage) -> None:
    """Run the panel's cell, without the experiment above it, and wait for its Run button."""
    lab.execute("import labkit as lab")
    lab.run_cells("data =", "lab.panel(")
    lab.panel.get_by_role("button", name="Run", exact=True).click(trial=True)


def time_start(browser: Browser, folder: Path, data: str) -> Start:
    """Time one start, from the command to a panel whose Run button can be pressed."""
    began_s = time.perf_counter()
    with made(folder, data) as server:
        answers_s = time.perf_counter() - began_s
        lab = LabPage(browser, server, USUAL)
        ready_s = time.perf_counter() - began_s
        show_panel(lab)
        usable_s = time.perf_counter() - began_s
        lab.close()
    return Start(answers_s=answers_s, ready_s=ready_s, usable_s=usable_s)


def run_from_panel(lab: LabPage, trials: int) -> Measured:
    """Press Run and watch the rows come; cancel the rest."""
    results = lab.server.folder / "results" / EXPERIMENTS[lab.notebook]
    measured = _watch(results, lambda: lab.press("Run"), lab.until, trials)
    if lab.panel.get_by_role("button", name="Cancel", exact=True).is_enabled():
        lab.press("Cancel")
    lab.wait_for_status("finished", "cancelled")
    return measured


def run_headless(results: Path, data: str) -> Measured:
    """Run the same from a shell and watch the rows come."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in CHANGES.items()]
    name = EXPERIMENTS[TIMED]
    command = ["run", name, "--blocks=1", f"--data={data}", f"--results={results}", *options]
    processes = []

    def begin() -> None:
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "labkit.cli", *command],
                cwd=results.parent,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def wait(condition: Callable[[], object], what: str) -> None:
        until(condition, lambda: f"{what}; labkit {' '.join(command)}: {processes[0].poll()}")

    try:
        measured = _watch(results / name, begin, wait, TRIALS)
        processes[0].wait()
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait(ENDS_WITHIN_S)
    return measured


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
    last_s = time.perf_counter()
    rows = load_run(folder).trials
    return Measured(
        first_row_s=first_s - began_s,
        rows_s=last_s - first_s,
        times_s={(trial.variant, trial.role): trial.time_s for trial in rows},
    )


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


def log_ratio(attached: Measured, headless: Measured) -> float:
    """Compare a round's two runs: the mean log-ratio of their trials' times."""
    ratios = [
        math.log(time_s / headless.times_s[trial]) for trial, time_s in attached.times_s.items()
    ]
    return statistics.fmean(ratios)


def take_pictures(lab: LabPage, folder: Path) -> None:
    """Save how the panel looks: idle, running, done, in both themes."""
    folder.mkdir(parents=True, exist_ok=True)
    lab.page.set_viewport_size(TALL)
    for theme in ("Light", "Dark"):
        lab.change_theme(f"JupyterLab {theme}")
        lab.panel.screenshot(path=folder / f"idle-{theme.lower()}.png")
        lab.press("Run")
        lab.wait_for_status("running: trial 3")
        lab.panel.screenshot(path=folder / f"running-{theme.lower()}.png")
        lab.wait_for_status("finished")
        lab.panel.screenshot(path=folder / f"done-{theme.lower()}.png")


def spread(values_s: Sequence[float]) -> str:
    """Write the median, and the range if there are several."""
    middle = units.seconds(statistics.median(values_s))
    if len(values_s) == 1:
        return middle
    return f"{middle} ({units.seconds(min(values_s))} to {units.seconds(max(values_s))})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", default="data/photos")
    parser.add_argument("--rounds", type=int, default=8, help="of a run attached and one headless")
    parser.add_argument("--times", type=int, default=3, help="to start JupyterLab, and to Run")
    parser.add_argument("--pictures", type=Path, help="folder that takes pictures of the panel")
    options = parser.parse_args()
    data = str(Path(options.data).resolve())
    if reason := why_no_browser() or ("" if shutil.which("make") else "there is no make"):
        print(f"panel: {reason}")
        return 1
    with tempfile.TemporaryDirectory(prefix="labkit-panel-") as folder, browse() as browser:
        place = Path(folder)
        starts = [
            time_start(browser, place / f"start {number}", data) for number in range(options.times)
        ]
        print(f"from `make jupyter`, {units.count(len(starts), 'start')}, median (range):")
        print(f"  the server answers     {spread([start.answers_s for start in starts])}")
        print(f"  the notebook is ready  {spread([start.ready_s for start in starts])}")
        print(f"  the panel can be used  {spread([start.usable_s for start in starts])}")
        with made(place / "lab", data) as server:
            problems = time_runs(browser, server, place / "headless", options, data)
    print("\n".join(problems) or "no error on the page, no request beyond this machine")
    return 1 if problems else 0


def time_runs(
    browser: Browser, server: Server, alone: Path, options: argparse.Namespace, data: str
) -> list[str]:
    """Time runs as the panel starts them, print what they say, and list the page's problems."""
    lab = LabPage(browser, server, USUAL)
    show_panel(lab)
    firsts_s = [run_from_panel(lab, trials=1).first_row_s for _ in range(options.times + 1)]
    print("from Run to the first row on disk, as the notebook is:")
    print(f"  once, with the checks that are remembered for a day  {spread(firsts_s[:1])}")
    print(f"  later                  {spread(firsts_s[1:])}")
    if options.pictures:
        take_pictures(lab, options.pictures)
    problems = lab.problems
    lab.close()
    lab = LabPage(browser, server, TIMED)
    show_panel(lab)
    lab.type_into("blocks", 1)
    alone.mkdir()
    pairs = []
    for number in bar(range(options.rounds), desc="rounds"):
        runs = {}
        for kind in sorted(("attached", "headless"), reverse=bool(number % 2)):
            if kind == "attached":
                runs[kind] = run_from_panel(lab, TRIALS)
            else:
                with standing_still(server):
                    runs[kind] = run_headless(alone / "results", data)
        pairs.append((runs["attached"], runs["headless"]))
    logs = [log_ratio(*pair) for pair in pairs]
    low, high = map(math.exp, paired_interval(logs, alpha=0.05))
    between = statistics.median(one.rows_s / other.rows_s for one, other in pairs)
    print(
        "measured times, panel attached / headless: "
        f"{math.exp(statistics.fmean(logs)):.4f} [{low:.4f}, {high:.4f}], "
        f"{units.count(len(pairs), 'round')} of {TRIALS} trials each\n"
        f"from the first row to the last, charts drawn between trials: {between:.3f}"
    )
    return [*problems, *lab.problems]


if __name__ == "__main__":
    sys.exit(main())
