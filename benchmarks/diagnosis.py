"""`lab.diagnose` on trainings whose bottleneck is known, against what their remedies measure.

For each case, in a process of its own: diagnose the broken training; then time it and the one with
the remedy, whole epochs turn about.  Right is who names the planted bottleneck; near is a predicted
normalized epoch time within 15 % of the measured one (where nothing helps: a free loader's).  A
case that cannot run here is shown with its reason and not counted.  Exits with 1 where fewer than
90 % are right or fewer than 80 % near.

    python -m benchmarks.diagnosis [DATA] [--case huge_collate …] [--rounds 4]
        [--markdown] [--only-measure] [--save FOLDER]
"""

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks import diagnosis_report as report
from benchmarks.diagnosis_report import Outcome
from benchmarks.photo_training import Site
from benchmarks.planted import NAMES, Planted, pipelines
from data_scripts.make_photos import make_photos
from labkit import units
from labkit.contracts import Skip, utc_now
from labkit.machine import hardware, page_cache
from labkit.parts.storage import slow_disk

IMAGES = 200
BUDGET_S = 24
CASE_S = 75.0  # about, for the ETA of the first
LIMIT_S = 240.0
ANSWER = "outcome.json"
REPOSITORY = Path(__file__).parents[1]


def epoch_s(case: dict) -> float:
    """Time an epoch, from creating the iterator until the device has finished."""
    for path in set(case["files"] or ()):
        page_cache.evict(path)
    start_s = time.perf_counter()
    for batch in case["loader"]:
        case["step"](batch)
    if case["device"] is not None:
        case["device"].synchronize()
    return time.perf_counter() - start_s


def compare(planted: Planted, rounds: int) -> list[tuple[float, float]]:
    """Time both forms turn about: (broken, fixed) of every round."""
    forms = planted.make(fixed=False), planted.make(fixed=True)
    for form in forms:
        epoch_s(form)  # the first epoch also starts the workers that persist
    taken = []
    for number in range(rounds):
        took_s = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            took_s[which] = epoch_s(forms[which])
        taken.append(tuple(took_s))
    return taken


def diagnosed(planted: Planted) -> dict[str, object]:
    """Diagnose the broken form; give what an `Outcome` keeps of it."""
    import labkit as lab

    start_s = time.perf_counter()
    found = lab.diagnose(**planted.make(fixed=False), budget_s=BUDGET_S, progress=False)
    took_s = time.perf_counter() - start_s
    # The first of a name gains most: the last of them stays.
    predicted = {remedy.name: remedy.predicted for remedy in reversed(found.remedies)}
    return {
        "said": found.bottleneck or report.NOTHING,
        "screen": str(found),
        "predicted": predicted.get(planted.remedy) if planted.remedy else found.ceiling,
        "took_s": took_s,
    }


def outcome(planted: Planted, **found: object) -> Outcome:
    return Outcome(
        name=planted.name,
        planted=planted.bottleneck,
        remedy=planted.remedy,
        timed=planted.timed,
        **found,
    )


def examine(name: str, data: str, scratch: Path, rounds: int, *, diagnose: bool) -> Outcome:
    """Run one case in this process."""
    with Site(data, scratch) as site:
        planted = pipelines(site)[name]
        try:
            found = diagnosed(planted) if diagnose else {}
            taken = compare(planted, rounds) if planted.timed else []
        except Skip as reason:
            return outcome(planted, skipped=str(reason))
        finally:
            gc.collect()  # ends the workers, which may hold what the site takes down
        return outcome(planted, **found, taken=taken, notes=site.notes)


def in_own_process(planted: Planted, options: argparse.Namespace, scratch: Path) -> Outcome:
    """Run one case in a process of its own, which leaves nothing in this one."""
    if reason := why_not_inside(planted.inside):
        return outcome(planted, skipped=reason)
    own = scratch / planted.name
    own.mkdir()
    command = [
        *planted.inside, sys.executable, "-m", "benchmarks.diagnosis", options.data,
        "--case", planted.name, "--rounds", str(options.rounds), "--alone", str(own),
        *["--only-measure"] * options.only_measure,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return outcome(planted, failed=f"not done after {units.seconds(LIMIT_S)}")
    finally:
        if planted.name == "slow_disk":  # what a killed process left; a live one's stays
            with contextlib.suppress(OSError):
                slow_disk.down()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return outcome(planted, failed=f"exit status {done.returncode}: {last}")
    return Outcome(**json.loads((own / ANSWER).read_text()))


def why_not_inside(inside: tuple[str, ...]) -> str:
    """Try a command that a case's process must run in; empty where it works."""
    if not inside:
        return ""
    try:
        tried = subprocess.run([*inside, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        return f"needs {inside[0]}, which is not installed"
    return f"needs root on Linux: {tried.stderr.strip()}" if tried.returncode else ""


def run_cases(options: argparse.Namespace, scratch: Path) -> list[Outcome]:
    """Run them one after the other, and say of each what came of it."""
    with Site(options.data, scratch) as site:
        known = pipelines(site)
    names = options.case or list(known)
    outcomes, start_s = [], time.monotonic()
    for number, name in enumerate(names):
        each_s = (time.monotonic() - start_s) / number if number else CASE_S
        left = units.seconds(each_s * (len(names) - number))
        say(f"case {number + 1} of {len(names)}, {name}: {known[name].question} About {left} left")
        outcomes.append(in_own_process(known[name], options, scratch))
        say("  " + "  ".join(report.row(outcomes[-1])[1:]))
    return outcomes


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", help=f"folder of .jpg files; else {IMAGES} are made")
    parser.add_argument("--case", action="append", choices=NAMES, help="all unless given")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--markdown", action="store_true", help="tables for the README")
    parser.add_argument("--only-measure", action="store_true", help="diagnose nothing")
    parser.add_argument("--save", type=Path, help="folder for the tables and all that was measured")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}")
    if options.alone:
        [name], measure_only = options.case, options.only_measure
        found = examine(
            name, options.data, options.alone, options.rounds, diagnose=not measure_only
        )
        (options.alone / ANSWER).write_text(json.dumps(asdict(found)))
        return 0
    with tempfile.TemporaryDirectory(prefix="labkit-planted-") as folder:
        scratch = Path(folder)
        if options.data is None:
            make_photos(scratch / "photos", IMAGES)
        options.data = str(Path(options.data or scratch / "photos").absolute())
        outcomes = run_cases(options, scratch)
    provenance = hardware.provenance()
    conditions = (
        f"{units.count(len(outcomes), 'case')} on {hardware.describe(provenance)}, emulated GPU "
        f"but where the CPU trains, {units.count(options.rounds, 'round')}",
    )
    if options.only_measure:
        print(*report.measured_only(outcomes, conditions), sep="\n")
        return 0
    if options.markdown:
        print(report.as_markdown(outcomes, conditions))
    else:
        print(*report.as_text(outcomes, conditions), sep="\n")
    if options.save:
        report.save(outcomes, options.save, conditions, provenance, utc_now())
    return 0 if report.judge(outcomes)[1] else 1


if __name__ == "__main__":
    sys.exit(main())
