"""Commands: what each word after `labkit` does: it calls the library and prints.

    cli: words -> options ──▶ a command here: options -> exit status

Main trap: what a command prints is for people, so whoever needs the numbers asks for --json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import labkit as lab
from labkit import units
from labkit.claims.disputes import answers as answer_disputes
from labkit.claims.disputes import disputes_text
from labkit.claims.ledger import answers as answer_claims
from labkit.claims.ledger import claims_text
from labkit.diagnosis.diagnose import find_files, load_target
from labkit.experiments.request import Request
from labkit.machine.media import write_media
from labkit.report import bars as figures
from labkit.report import report, table
from labkit.report.doctor import doctor_rows
from labkit.runs import store
from labkit.settings import field_kinds


def show_list(options: argparse.Namespace) -> int:
    """List the experiments and the runs there are."""
    print("experiments:")
    for name in lab.CATALOG:
        experiment = lab.experiment(name)
        print(f"  {name:16} {experiment.question}")
        groups = set(experiment.groups.values())
        variants = f"{len(groups)} groups" if groups else " · ".join(experiment.variants)
        print(f"  {'':16} {variants}  ({experiment.source})")
    folders = store.list_runs(options.results)
    print(f"\nruns in {options.results}:" if folders else f"\nno runs in {options.results} yet")
    for folder in folders:
        print(f"  {folder.parent.name}/{folder.name}  {_run_line(folder)}")
    if shared := store.list_shared(options.results):
        print("\nruns of colleagues:")
    for folder in shared:
        print(f"  {folder.parent.name}/{folder.name}  {_run_line(folder)}")
    return 0


def _run_line(folder: Path) -> str:
    try:
        info = store.read_info(folder)
    except (ValueError, OSError) as error:  # the others can still be listed
        return f"cannot be read: {error}"
    shared = info.get(store.SHARED)
    said = f"{info.get('mode')}, {info.get('status')}"
    return f"{said}, from {shared['from']}" if shared else said


def run(options: argparse.Namespace) -> int:
    """Run experiments, or complete a run, and show them."""
    if options.resume:
        return _show(lab.resume(lab.find_run(options.resume, options.results).folder))
    if len(options.names) == 1:
        return _show(_run(options, _request(options, options.names[0]).build()))
    # Build all before running any: a typo in the third name must not cost two runs.
    waiting = {}
    for name in options.names or _main_road():
        try:
            waiting[name] = _request(options, name).build()
        except ValueError as error:
            if options.names:
                raise
            print(f"{name} is left out: {error}\n", file=sys.stderr)
    if not waiting:
        return 1
    status = 0
    for name, experiment in waiting.items():
        try:
            status = max(status, _show(_run(options, experiment)))
        except (ValueError, OSError, RuntimeError) as error:  # the others can still be run
            print(f"labkit: {name}: {error}\n", file=sys.stderr)
            status = 1
    return status


def _main_road() -> list[str]:
    return [name for name in lab.CATALOG if lab.experiment(name).main_road]


def _request(options: argparse.Namespace, name: str) -> Request:
    return Request(
        experiment=name,
        mode=options.mode,
        blocks=options.blocks,
        settings={key: getattr(options, key) for key in field_kinds() if hasattr(options, key)},
        variants=tuple(options.variant or ()),
        baseline=options.baseline,
        protocol=options.protocol.replace("-", " "),
    )


def _run(options: argparse.Namespace, experiment: lab.Experiment) -> lab.Run:
    return lab.run(experiment, options.mode, blocks=options.blocks, results=options.results)


def _show(run: lab.Run) -> int:
    files = run.save()
    print(f"\n{table.text(run.summary)}\n")
    for title, found in run.findings().items():
        print(f"{title}\n{found}\n")
    print(f"saved in {run.folder}: {', '.join(file.name for file in files)}\n", flush=True)
    return 0 if run.info["status"] == "finished" else 1


def show_forecast(options: argparse.Namespace) -> int:
    """Say how long runs would take and what they could see."""
    for name in options.names or _main_road():
        request = _request(options, name)
        expected = lab.forecast(
            request.build(), request.mode, blocks=request.blocks, results=options.results
        )
        print(f"{name}: {expected}")
    return 0


def show_table(options: argparse.Namespace) -> int:
    """Print a run's table."""
    run = lab.find_run(options.run, options.results)
    if options.json:
        print(_json(table.rows(run.summary)))
    elif options.detail:
        print(run.table(detail=True).T.to_string())
    else:
        print(table.text(run.summary))
    return 0


def draw_chart(options: argparse.Namespace) -> int:
    """Draw a run's charts into its folder."""
    run = lab.find_run(options.run, options.results)
    for path in run.save():
        print(path)
    return 0


def show_claims(options: argparse.Namespace) -> int:
    """Print what this machine says of every claim."""
    rows = answer_claims(options.results)
    print(_json(rows) if options.json else claims_text(rows))
    return 0


def show_disputes(options: argparse.Namespace) -> int:
    """Print who says what where people disagree, and what this machine says."""
    rows = answer_disputes(options.results, numbers=options.numbers)
    print(_json(rows) if options.json else disputes_text(rows))
    return 0


def _json(rows: list[dict[str, object]]) -> str:
    return json.dumps(rows, indent=1, ensure_ascii=False)


def show_savings(options: argparse.Namespace) -> int:
    """Say what a run's winner saves over a whole training."""
    run = lab.find_run(options.run, options.results)
    asked = {"epochs": options.epochs, "images": options.images, "gpu_hour": options.gpu_hour}
    print(run.savings(**asked))
    return 0


def write_recipe(options: argparse.Namespace) -> int:
    """Write a run's winner as code."""
    written = lab.find_run(options.run, options.results).recipe(options.variant)
    if options.out is None:
        print(written, end="")
        return 0
    options.out.write_text(written, encoding="utf-8")
    print(f"wrote {options.out}")
    return 0


def write_report(options: argparse.Namespace) -> int:
    """Write a page of the newest runs, or a report of chosen ones."""
    if not options.runs and not options.markdown and options.out is None:
        print(f"wrote {report.write_page(options.results)}")
        return 0
    chosen = [lab.find_run(name, options.results) for name in options.runs] or None
    asked = {"results": options.results, "markdown": options.markdown}
    for path in lab.report(chosen, options.out, **asked):
        print(f"wrote {path}")
    return 0


def pack_run(options: argparse.Namespace) -> int:
    """Pack a run as one file to send."""
    run = lab.find_run(options.run, options.results)
    path = run.share(options.out)
    print(f"packed in {path}, {units.count_bytes(path.stat().st_size)}; open it with: labkit open")
    return 0


def open_shared(options: argparse.Namespace) -> int:
    """Open a run that a colleague packed."""
    before = store.list_shared(options.results)
    run = lab.open_shared(options.file, options.results)
    done = "opened before" if run.folder in before else "opened"
    print(
        f"{done}: {run.folder}, from {run.info[store.SHARED]['from']}\n\n{table.text(run.summary)}"
    )
    return 0


def diagnose(options: argparse.Namespace) -> int:
    """Say what holds a person's own training loop back."""
    given = load_target(options.target)
    if options.files is not None:
        given["files"] = find_files(options.files)
    diagnosis = lab.diagnose(**given, verify=options.verify, budget_s=options.budget_s)
    print(diagnosis)
    if options.chart:
        from labkit.report.timeline_chart import timeline_chart

        kind = options.chart.suffix[1:]
        figure = timeline_chart(diagnosis.timeline)
        options.chart.write_bytes(figures.to_bytes(figure, kind, dpi=300))
        print(f"wrote {options.chart}")
    return 0


def show_doctor(options: argparse.Namespace) -> int:
    """Say what this machine has."""
    given = {name: getattr(options, name) for name in ("data", "hdd", "ssd", "nvme", "tmpfs")}
    given = {name: Path(folder) for name, folder in given.items() if folder}
    if options.write:
        write_media(Path("labkit.toml"), **given)
    for topic, value, remark in doctor_rows(given):
        print(f"{topic:18} {value}" + (f"\n{'':18} → {remark}" if remark else ""))
    return 0
