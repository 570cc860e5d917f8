"""The lab's commands: experiments, their tables, reports, and what this machine has.

Every setting is an option, generated from Settings.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import labkit as lab
from labkit import install, units
from labkit.analysis.winner import winner
from labkit.claims import ledger
from labkit.experiments.request import Request
from labkit.files import write_whole
from labkit.machine import hardware, media
from labkit.records import RunInfo
from labkit.report import words
from labkit.report.recipe import write as write_recipe
from labkit.resolve import TABLES
from labkit.runs import calibrated_device, store
from labkit.runs.active_run import Progress
from labkit.runs.check_run import BaselineSkipped
from labkit.settings import (
    INPUT_PX,
    MODES,
    NUMBERS_OR_NAMES,
    PROTOCOLS,
    field_kinds,
    help_texts,
    read_value,
)

Options = argparse.Namespace


# --- commands -------------------------------------------------------------------------------


def _list(options: Options) -> None:
    newest = store.newest_runs(options.results, ledger.rank_as_answer)
    rows = [("experiment", "quick", "newest result", "question")]
    for name in lab.CATALOG:
        experiment = lab.experiment(name)
        expected = lab.forecast(experiment, "quick", results=options.results)
        takes = f"{'' if expected.timed else '≥ '}{units.whole_seconds(expected.total_s)}"
        result = _result(newest[name]) if name in newest else units.UNKNOWN
        rows.append((name, takes, result, experiment.question))
    for row in rows:
        widths = (20, 12, 26, 36)  # 100 columns with what is between
        cells = [textwrap.wrap(text, width) for text, width in zip(row, widths)]
        for line in zip_longest(*cells, fillvalue=""):
            print("  ".join(f"{x:{width}}" for x, width in zip(line, widths)).rstrip())
    print("\nquick: how long quick mode takes; ≥: at least, as the experiment has not run here")
    print(f"\nruns in {options.results}:")
    folders = [
        *lab.list_runs(options.results),
        *lab.list_runs(Path(options.results) / store.SHARED),
    ]
    for folder in folders:
        try:
            info = store.read_info(folder)
            status = f"{info.mode}, {info.status}"
            status += f", from {info.shared_from}" if info.shared_from else ""
        except (ValueError, OSError) as error:  # the others can still be listed
            status = f"cannot be read: {error}"
        print(f"  {folder.parent.name}/{folder.name}  {status}")
    if not folders:
        print("  none yet")


def _result(run: store.StoredRun) -> str:
    """Return the winner of a run and its mode."""
    summary, fastest = run.summary, []
    for compared in summary.comparisons:
        if compared.rows[0].normalized_time is not None:
            best = winner(compared)
            time = best and units.normalized(best.normalized_time)
            fastest.append(f"{best.variant} {time}" if best else "no variant measurably faster")
    return ", ".join([*dict.fromkeys(fastest), f"{summary.mode} mode"])


def _run(options: Options) -> int:
    if options.resume:
        given = {name: x for name, x in vars(options).items() if x != options.unset.get(name)}
        others = [name for name in given if name not in ("resume", "results", "unset")]
        if others:
            raise ValueError(
                f"--resume must be given without {', '.join(others)}: a run goes on as it began; "
                "leave that out, or start a new run"
            )
        return _show(lab.resume(lab.find_run(options.resume, options.results).folder))
    # Build all before running any: a typo in the third name must not cost two runs.
    built = {}
    of_documents = (name for name in lab.CATALOG if lab.experiment(name).runs_by_default)
    for name in options.names or (lab.CATALOG if options.all else of_documents):
        try:
            built[name] = request(options, name).build()
        except ValueError as error:
            if options.names:
                raise
            print(f"{name} is left out: {error}\n", file=sys.stderr)
    if options.all:
        return _run_all(options, built)
    how = {"blocks": options.blocks, "results": options.results}
    if len(built) == 1:
        (experiment,) = built.values()
        return _show(lab.run(experiment, options.mode, **how))
    status = 0 if built else 1
    for name, experiment in built.items():
        try:
            run = lab.run(experiment, options.mode, progress=_BarAlone(name, shown=True), **how)
            run.save()
            status = max(status, int(run.info.status != "finished"))
            print(textwrap.fill(f"{name}: {_answer(run)}", 100, subsequent_indent="  "), flush=True)
        except (ValueError, OSError, RuntimeError) as error:
            print(f"labkit: {name}: {error}\n", file=sys.stderr)  # the others can still be run
            status = 1
    print("Tables with proof and charts: labkit report, or labkit table NAME")
    return status


class _BarAlone(Progress):
    """A bar without lines above it: a run's notes are in its table and report."""

    def say(self, line: str) -> None:
        """Show nothing."""


def _answer(run: lab.Run) -> str:
    """Return an experiment's question and what the run answers, without proofs."""
    answer = words.in_short(run.summary)
    return " ".join(filter(None, [run.info.question, answer and f"{answer}."]))


def _run_all(options: Options, built: Mapping[str, lab.Experiment]) -> int:
    """Run experiments, the cheapest first, under one bar; go on where an earlier call stopped."""
    here = hardware.provenance()
    how = {"blocks": options.blocks, "results": options.results}

    def weigh(info: RunInfo) -> bool | None:
        is_asked = info.experiment in built and hardware.began_here(info.provenance, here)
        if is_asked and Request.read(info) == request(options, info.experiment):
            return info.status == "finished"
        return None

    expected = {name: lab.forecast(x, options.mode, **how) for name, x in built.items()}
    begun = store.newest_runs(options.results, weigh)
    done = {name for name, run in begun.items() if run.info.status == "finished"}
    waiting = sorted(built.keys() - done, key=lambda name: expected[name].total_s or math.inf)
    known_s = sum(expected[name].total_s or 0.0 for name in waiting)
    known = "about" if all(expected[name].timed for name in waiting) else "at least"
    plan = f"{units.count(len(waiting), 'experiment')}, {known} {units.whole_seconds(known_s)}"
    print(f"{options.mode} mode: {plan}; {len(done)} finished before", flush=True)
    status, progress = 0, _OneBar({name: expected[name].trials for name in waiting})
    for name in waiting:
        progress.enter(name)
        try:
            if name in begun:
                run = lab.resume(begun[name].folder, progress=progress)
            else:
                run = lab.run(built[name], options.mode, progress=progress, **how)
            run.save()
        except BaselineSkipped as reason:
            progress.say(f"skipped: {reason}")
        except (ValueError, OSError, RuntimeError) as error:
            progress.say(str(error))  # the others can still be run
            status = 1
    progress.end()
    _print_claims(ledger.answers(options.results))
    return status


class _OneBar(Progress):
    """One bar for several runs.

    Args:
        trials: name -> how many trials are expected.
    """

    def __init__(self, trials: Mapping[str, int]) -> None:
        super().__init__("", shown=True)
        self._left, self._before = dict(trials), 0

    def enter(self, name: str) -> None:
        """Begin the next of the runs."""
        self._name = name
        del self._left[name]

    def start(self, *, total: int, done: int) -> None:
        total += self._before + sum(self._left.values())
        super().start(total=total, done=self._before + done)

    def next(self, trial: str) -> None:
        super().next(f"{self._name}, {trial}")

    def close(self) -> None:
        self._before = self._bar.n if self._bar else 0

    def end(self) -> None:
        """End the bar."""
        super().close()


def _roofline(options: Options) -> int:
    asked = replace(request(options, options.name), roofline=True)
    how = {"blocks": options.blocks, "results": options.results}
    return _show(lab.run(asked.build(), options.mode, **how))


def request(options: Options, name: str) -> Request:
    """Return what the options of `labkit run` ask for of one experiment."""
    return Request(
        experiment=name,
        mode=options.mode,
        blocks=options.blocks,
        protocol=options.protocol.replace("-", " "),
        settings={key: getattr(options, key) for key in field_kinds() if hasattr(options, key)},
        variants=tuple(dict.fromkeys([*options.variant, *options.add])) if options.variant else (),
        added=tuple(options.add),
        baseline=options.baseline,
    )


def _show(run: lab.Run) -> int:
    files = run.save()
    print(f"\n{run.table()}\n\n{run.findings()}\n")
    print(f"saved in {run.folder}: {', '.join(file.name for file in files)}\n", flush=True)
    return 0 if run.info.status == "finished" else 1


def _table(options: Options) -> None:
    run = lab.find_run(options.run, options.results)
    if options.json:
        print(_json(run.summary.records()))
    else:
        print(run.table(detail=True).T.to_string() if options.detail else run.table())


def _claims(options: Options) -> None:
    rows = ledger.answers(options.results, numbers=options.numbers)
    if options.json:
        print(_json(rows))
    else:
        _print_claims(rows)


def _print_claims(rows: list[dict[str, Any]]) -> None:
    print(textwrap.fill(ledger.answer_in_short(rows), 100), end="\n\n")
    for row in rows:
        print(textwrap.fill(f"{row['number']:>2}  {row['claim']} {row['document']}", 100))
        documents_say = [f"{side['by']}: {side['says']}" for side in row["sides"]]
        published = f"published: {row['published']}" if row["published"] else ""
        here = ": ".join(filter(None, ("here", row["experiment"], row["answer"])))
        reference = f"reference runs: {row['reference']}" if row["reference"] else ""
        lines = published, *documents_say, row["footnote"], here, row["roofline"], reference
        for line in filter(None, lines):
            print(textwrap.indent(textwrap.fill(line, 94), "      "))


def _json(rows: list[dict[str, Any]]) -> str:
    return json.dumps(rows, indent=1, ensure_ascii=False)


def _advise(options: Options) -> None:
    print(lab.advise(options.data_gb, options.memory_gb, results=options.results))


def _report(options: Options) -> None:
    chosen = [lab.find_run(name, options.results) for name in options.runs] or None
    for path in lab.report(chosen, options.out, results=options.results, markdown=options.markdown):
        print(f"wrote {path}")


def _recipe(options: Options) -> None:
    run = lab.find_run(options.run, options.results)
    if options.out is None:
        print(run.recipe(options.variant), end="")
    else:
        print(f"wrote {write_recipe(run, options.out, options.variant)}")


def _share(options: Options) -> None:
    path = lab.find_run(options.run, options.results).share(options.out)
    print(f"wrote {path}, {units.count_bytes(path.stat().st_size)}; open it with: labkit open")


def _open(options: Options) -> None:
    run = lab.open_shared(options.file, options.results)
    print(f"opened in {run.folder}, from {run.info.shared_from}\n\n{run.table()}")


def _calibrate(options: Options) -> None:
    for input_px in options.input_px:
        device = lab.calibrate(options.data, input_px, results=options.results)
        print(f"{device}\nkept in {Path(options.results) / calibrated_device.FILE}")


def _notebooks(options: Options) -> None:
    pages = [
        *(install.SHIPPED / "notebooks").glob("*.ipynb"),
        *(install.SHIPPED / "docs").glob("*.md"),
    ]
    copied = 0
    for page in pages:
        copy = options.folder / ("docs" if page.suffix == ".md" else "") / page.name
        if not copy.exists():  # may have been changed
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = page.read_text(encoding="utf-8").replace("](../docs/", "](docs/")
            write_whole(copy, text)
            copied += 1
    kept = f"; {units.count(len(pages) - copied, 'file')} left as before" * (copied < len(pages))
    print(f"{units.count(copied, 'file')} in {options.folder}{kept}")
    print(f"open them with: jupyter lab {options.folder / '00_start.ipynb'}")


def _doctor(options: Options) -> None:
    folders = {name: getattr(options, name) for name in media.NAMES}
    given = {name: Path(folder) for name, folder in folders.items() if folder}
    if options.write:
        media.write_media(Path("labkit.toml"), **given)
    for topic, value, remark in lab.doctor(**given).rows:
        print(f"{topic:18} {value}" + (f"\n{'':18} → {remark}" if remark else ""))


# --- options --------------------------------------------------------------------------------


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the lab's commands to a parser.

    Args:
        add: called with a command's name, function, help text and parents.
    """
    results = argparse.ArgumentParser(add_help=False)
    results.add_argument("--results", default="results", help="folder that holds the results")
    one_run = argparse.ArgumentParser(add_help=False, parents=[results])
    one_run.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")

    as_json: dict[str, Any] = {"action": "store_true", "help": "print the rows as JSON"}
    size_gb: dict[str, Any] = {"metavar": "GB", "type": float}

    run = add("run", _run, "run experiments and print their tables", results, _run_options())
    run.usage = "labkit run [NAME ...] [options]"
    names = "experiments of `labkit list`; unset: those of the documents"
    which = run.add_mutually_exclusive_group()
    which.add_argument("names", nargs="*", metavar="NAME", default=[], help=names)
    every = "all that can run here, the shortest first; the same command continues where it stopped"
    which.add_argument("--all", action="store_true", help=every)
    which.add_argument("--resume", metavar="RUN", help="complete a cancelled or killed run")
    run.set_defaults(unset=vars(run.parse_args([])))

    text = "list the experiments with their newest results, and the runs"
    add("list", _list, text, results)

    text = "measure how fast an experiment trains with slower and faster GPUs"
    roofline = add("roofline", _roofline, text, results, _run_options())
    roofline.add_argument("name", metavar="NAME", help="an experiment of `labkit list`")

    table = add("table", _table, "print a run's table", one_run)
    table.add_argument("--json", **as_json)
    table.add_argument("--detail", action="store_true", help="print all columns")

    text = "print the documents' claims and what runs on this machine say of each"
    claims = add("claims", _claims, text, results)
    claims.add_argument("numbers", nargs="*", type=int, metavar="NUMBER", help="unset: all")
    claims.add_argument("--json", **as_json)

    text = "estimate what an SSD, packing or a local copy would save, for data of a size"
    advise = add("advise", _advise, text, results)
    advise.add_argument("--data-gb", **size_gb, required=True, help="size of the images")
    text = "memory of the machine that trains; unset: of this one"
    advise.add_argument("--memory-gb", **size_gb, help=text)

    text = "write an HTML report of the newest or of chosen runs"
    report = add("report", _report, text, results)
    names = "run folders, ids or experiments; unset: the newest of each experiment"
    report.add_argument("runs", nargs="*", metavar="RUN", help=names)
    report.add_argument("--out", metavar="FOLDER", help="folder that takes the report")
    report.add_argument("--markdown", action="store_true", help="also report.md and its figures")

    recipe = add("recipe", _recipe, "print a run's winner as a PyTorch program", one_run)
    recipe.add_argument("--variant", metavar="LABEL", help="a variant other than the winner")
    recipe.add_argument("--out", metavar="FILE", type=Path, help="file to write; unset: print it")

    text = "write a run as one file, without names and paths of this machine"
    share = add("share", _share, text, one_run)
    share.add_argument("--out", metavar="FILE", help="file or folder; unset: the run's folder")

    open_ = add("open", _open, "open a run that a colleague shared", results)
    open_.add_argument("file", metavar="FILE", help="made by `labkit share`")

    text = "measure again how fast the simulated GPU computes, for all later runs"
    calibrate = add("calibrate", _calibrate, text, results)
    calibrate.add_argument("--data", metavar="DIR", default=lab.Settings.data, help="images")
    text = f"sides of the model input; unset: {INPUT_PX}"
    calibrate.add_argument(
        "--input-px", type=int, nargs="+", metavar="N", default=[INPUT_PX], help=text
    )

    notebooks = add(
        "notebooks", _notebooks, "copy the notebooks, and the documentation they link to"
    )
    notebooks.add_argument("folder", metavar="DIR", type=Path, help="new files are added to it")

    doctor = add("doctor", _doctor, "print what this machine has, and what will be skipped")
    for name in media.NAMES:
        text = "a folder of images" if name == "data" else "a folder on this medium"
        doctor.add_argument(f"--{name}", metavar="DIR", help=text)
    doctor.add_argument("--write", action="store_true", help="keep these folders in labkit.toml")


def _run_options() -> argparse.ArgumentParser:
    """Return the options that make a Request."""
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--mode", default="quick", choices=MODES, help="how much is measured")
    made.add_argument("--blocks", type=int, help="repetitions; full mode needs 6 or more")
    made.add_argument(
        "--protocol",
        choices=[protocol.replace(" ", "-") for protocol in PROTOCOLS],
        default=PROTOCOLS[0],
        help="the document's order and cache states, or the corrected ones",
    )
    text = "run this variant only; can be given several times"
    made.add_argument("--variant", action="append", default=[], metavar="LABEL", help=text)
    text = (
        "also run the baseline with changes, as num_workers=8,decoder=pillow, or another variant: "
        "'opencv, num_workers=8'; can be given several times"
    )
    made.add_argument("--add", action="append", default=[], metavar="CHANGES", help=text)
    made.add_argument("--baseline", metavar="LABEL", help="reference variant (= 1.0)")
    settings = made.add_argument_group("settings, for all variants")
    for name, (kind, choices, _) in field_kinds().items():
        listed = f" One of: {', '.join(TABLES[name])}." if name in TABLES else ""
        if name in NUMBERS_OR_NAMES:
            choices = ()
        settings.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            type=partial(_setting, name),
            choices=choices or None,
            metavar=None if choices else {int: "N", float: "N", bool: "yes|no"}.get(kind, "NAME"),
            default=argparse.SUPPRESS,
            help=(help_texts()[name] + listed).replace("%", "%%"),
        )
    return made


def _setting(name: str, word: str) -> Any:
    try:
        return read_value(name, word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
