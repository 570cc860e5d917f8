"""The lab from a shell: one command for everything that a person asks of it.

    labkit list | forecast | run | table | chart | claims | savings | recipe | report
           pack | open | doctor

Every setting is an option, generated from Settings like the notebooks' form.
Thin: each command parses, calls the library and prints.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import labkit as lab
from labkit import catalog, machine, notebook, results, units
from labkit.choices import Choice
from labkit.claims import answers, claims_text
from labkit.operations_run import NAME as OPERATIONS
from labkit.settings import CORRECTED, MODES, field_kinds, help_texts
from labkit.tables import TABLES


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after `labkit`; unset: the shell's.

    Returns:
        Exit status: 0 done, 1 could not (one line on stderr says why), 2 wrong use,
        130 cancelled.
    """
    options = _parser().parse_args(arguments)
    if threading.current_thread() is threading.main_thread():
        # Asked to end from outside, leave nothing behind, just as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("labkit: cancelled", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 1


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, instead of after all options."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments"):
            message += f"; a setting must be one of {', '.join(field_kinds())}"
        self.exit(2, f"labkit: {message}; `labkit --help` and `labkit COMMAND --help` tell more\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="labkit", description="Why is my GPU at 0 %, and what fixes it?")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("list", help="the experiments, and the runs there are")
    _results_option(command)
    command.set_defaults(command=_list)

    command = commands.add_parser(
        "run", help="run experiments and print their tables", allow_abbrev=False
    )
    command.add_argument(
        "names", nargs="*", metavar="NAME", help="experiments (see `labkit list`); none: all"
    )
    command.add_argument("--resume", metavar="RUN", help="complete a cancelled or killed run")
    _results_option(command)
    _choice_options(command, mode="quick")
    command.set_defaults(command=_run)

    command = commands.add_parser(
        "forecast", help="how long a run would take, and the smallest effect it could see"
    )
    command.add_argument("names", nargs="*", metavar="NAME", help="experiments; none: all")
    _results_option(command)
    _choice_options(command, mode="full")
    command.set_defaults(command=_forecast)

    command = commands.add_parser("table", help="print a run's table")
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    command.add_argument("--json", action="store_true", help="rows as JSON")
    command.add_argument("--detail", action="store_true", help="all columns")
    _results_option(command)
    command.set_defaults(command=_table)

    command = commands.add_parser("chart", help="draw a run's chart into its folder")
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    _results_option(command)
    command.set_defaults(command=_chart)

    command = commands.add_parser(
        "claims", help="every claim of the documents, and what runs on this machine say of it"
    )
    command.add_argument("--json", action="store_true", help="rows as JSON")
    _results_option(command)
    command.set_defaults(command=_claims)

    command = commands.add_parser("savings", help="what a run's winner saves over a whole training")
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    command.add_argument("--epochs", type=int, default=100, help="epochs of the whole training")
    command.add_argument(
        "--images", type=int, default=118_287, help="images of the full data set; unset: COCO's"
    )
    command.add_argument("--gpu-hour", type=float, metavar="PRICE", help="of an hour of the GPU")
    _results_option(command)
    command.set_defaults(command=_savings)

    command = commands.add_parser(
        "recipe", help="a run's winner as plain PyTorch code for your train.py"
    )
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    command.add_argument("--variant", help="another one than the winner")
    command.add_argument("--out", metavar="FILE", type=Path, help="write it there; unset: print it")
    _results_option(command)
    command.set_defaults(command=_recipe)

    command = commands.add_parser(
        "report", help="write results/index.html from the newest runs, or a report of chosen runs"
    )
    command.add_argument(
        "runs", nargs="*", metavar="RUN", help="run folders, ids or experiments; none: the newest"
    )
    command.add_argument("--out", metavar="FOLDER", help="folder that takes report.html")
    command.add_argument(
        "--markdown", action="store_true", help="also report.md, with figure files beside it"
    )
    _results_option(command)
    command.set_defaults(command=_report)

    command = commands.add_parser(
        "pack", help="one file of a run to send, without user names, host names and paths"
    )
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    command.add_argument("--out", metavar="FILE", help="where to; unset: the run's folder")
    command.add_argument(
        "--keep", metavar="WORD", action="append", default=[],
        help="leave a word in, although it is the account's or the machine's name",
    )  # fmt: skip
    _results_option(command)
    command.set_defaults(command=_pack)

    command = commands.add_parser("open", help="open a run that a colleague packed")
    command.add_argument("file", metavar="FILE", help="made by `labkit pack`")
    _results_option(command)
    command.set_defaults(command=_open)

    command = commands.add_parser("doctor", help="what this machine has, and what will be skipped")
    command.add_argument("--data", help="probe this folder's disk too")
    command.add_argument(
        "--write", action="store_true", help="keep the folders given here in labkit.toml"
    )
    for medium in ("hdd", "ssd", "nvme", "tmpfs"):
        command.add_argument(f"--{medium}", metavar="DIR", help=f"a folder on the {medium}")
    command.set_defaults(command=_doctor)
    return parser


def _results_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--results", default="results", help="folder that holds the results")


def _choice_options(command: argparse.ArgumentParser, *, mode: str) -> None:
    command.add_argument("--mode", default=mode, choices=MODES, help="how much is measured")
    command.add_argument("--blocks", type=int, help="repetitions; full mode needs 6 or more")
    command.add_argument(
        "--protocol",
        choices=("corrected", "as-in-the-document"),
        default="corrected",
        help="the document's order, cold first variant and loop, instead of what corrects them",
    )
    command.add_argument(
        "--variant", action="append", metavar="LABEL", help="only this one; may be repeated"
    )
    command.add_argument("--baseline", metavar="LABEL", help="what the others are divided by")
    _settings_options(command.add_argument_group("settings, for all variants alike"))


def _settings_options(group: argparse._ArgumentGroup) -> None:
    texts = help_texts()
    for name, (kind, choices, _) in field_kinds().items():
        table = TABLES.get(name)
        described = texts[name] + (f" One of: {', '.join(table)}." if table else "")
        group.add_argument(
            f"--{name.replace('_', '-')}",
            dest=name,
            type=_yes_or_no if kind is bool else kind,
            choices=choices or None,
            metavar=None if choices else {int: "N", bool: "yes|no"}.get(kind, "NAME"),
            default=argparse.SUPPRESS,
            help=described.replace("%", "%%"),
        )


def _yes_or_no(text: str) -> bool:
    answers = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if text.lower() not in answers:
        raise argparse.ArgumentTypeError(f"must be yes or no, got {text!r}")
    return answers[text.lower()]


def _list(options: argparse.Namespace) -> int:
    print("experiments:")
    for name in lab.CATALOG:
        experiment = lab.experiment(name)
        print(f"  {name:16} {experiment.question}")
        print(f"  {'':16} {' · '.join(experiment.variants)}  ({experiment.source})")
    print(f"  {OPERATIONS:16} Which library does which image operation faster?")
    folders = results.list_runs(options.results)
    print(f"\nruns in {options.results}:" if folders else f"\nno runs in {options.results} yet")
    for folder in folders:
        info = results.load_run(folder).info
        print(f"  {folder.parent.name}/{folder.name}  {info['mode']}, {info['status']}")
    if shared := results.list_shared(options.results):
        print("\nruns of colleagues:")
    for folder in shared:
        info = results.load_run(folder).info
        said = f"{info['mode']}, {info['status']}, from {info[results.SHARED]['from']}"
        print(f"  {folder.parent.name}/{folder.name}  {said}")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.resume:
        return _show(lab.resume(results.find_run(options.results, options.resume).folder))
    if len(options.names) == 1:
        return _show(_prepared(_choice(options, options.names[0]), options.results)())
    # Build all before running any: a typo in the third name must not cost two runs.
    waiting = {}
    for name in options.names or (*catalog.MAIN_ROAD, OPERATIONS):
        try:
            waiting[name] = _prepared(_choice(options, name), options.results)
        except ValueError as error:
            if options.names:
                raise
            print(f"{name} is left out: {error}\n", file=sys.stderr)
    if not waiting:
        return 1
    status = 0
    for name, run in waiting.items():
        try:
            status = max(status, _show(run()))
        except (ValueError, OSError, RuntimeError) as error:  # the others can still be run
            print(f"labkit: {name}: {error}\n", file=sys.stderr)
            status = 1
    return status


def _choice(options: argparse.Namespace, name: str) -> Choice:
    return Choice(
        subject=name,
        mode=options.mode,
        blocks=options.blocks,
        changes={key: getattr(options, key) for key in field_kinds() if hasattr(options, key)},
        variants=tuple(options.variant or ()),
        baseline=options.baseline,
        protocol=options.protocol.replace("-", " "),
    )


def _prepared(choice: Choice, folder: str) -> Callable[[], results.Run]:
    """Build what a choice stands for, ready to be run; refuses what cannot work."""
    given = {"mode": choice.mode, "blocks": choice.blocks, "results": folder}
    if choice.name != OPERATIONS:
        return partial(lab.run, choice.experiment(), **given)
    own = {key: value for key, value in choice.changes.items() if key in ("data", "seed")}
    if choice.protocol != CORRECTED:
        raise ValueError(f"protocol must be {CORRECTED} for {OPERATIONS}, got {choice.protocol}")
    if choice.variants or choice.baseline:
        raise ValueError(
            f"variant and baseline must be left out for {OPERATIONS}, which times every operation"
        )
    if len(own) < len(choice.changes):
        others = ", ".join(key for key in choice.changes if key not in own)
        raise ValueError(
            f"settings must be data or seed for {OPERATIONS}, got {others}; leave them out"
        )
    return partial(lab.run_operations, **own, **given)


def _show(run: results.Run) -> int:
    files = notebook.save(run)
    print(f"\n{notebook.text(run)}\n")
    if found := notebook.findings(run):
        print(f"{found}\n")
    if run.info.get("costs"):
        print(f"{notebook.costs(run)}\n")
    if run.info["experiment"] == "combined":
        print(f"{notebook.predictions(run).to_string()}\n")
    print(f"saved in {run.folder}: {', '.join(file.name for file in files)}\n", flush=True)
    return 0 if run.info["status"] == "finished" else 1


def _forecast(options: argparse.Namespace) -> int:
    for name in options.names or catalog.MAIN_ROAD:
        choice = _choice(options, name)
        expected = lab.forecast(
            choice.experiment(), choice.mode, blocks=choice.blocks, results=options.results
        )
        print(f"{name}: {expected}")
    return 0


def _table(options: argparse.Namespace) -> int:
    run = results.find_run(options.results, options.run)
    if options.json:
        print(json.dumps(notebook.rows(run), indent=1, ensure_ascii=False))
    elif options.detail:
        print(notebook.table(run, detail=True).T.to_string())
    else:
        print(notebook.text(run))
    return 0


def _chart(options: argparse.Namespace) -> int:
    run = results.find_run(options.results, options.run)
    for path in notebook.save(run):
        print(path)
    return 0


def _claims(options: argparse.Namespace) -> int:
    rows = answers(options.results)
    print(json.dumps(rows, indent=1, ensure_ascii=False) if options.json else claims_text(rows))
    return 0


def _savings(options: argparse.Namespace) -> int:
    run = results.find_run(options.results, options.run)
    asked = {"epochs": options.epochs, "images": options.images, "gpu_hour": options.gpu_hour}
    print(notebook.savings(run, **asked))
    return 0


def _recipe(options: argparse.Namespace) -> int:
    written = lab.recipe(results.find_run(options.results, options.run), options.variant)
    if options.out is None:
        print(written, end="")
        return 0
    options.out.write_text(written, encoding="utf-8")
    print(f"wrote {options.out}")
    return 0


def _report(options: argparse.Namespace) -> int:
    if not options.runs and not options.markdown and options.out is None:
        print(f"wrote {notebook.write_page(options.results)}")
        return 0
    chosen = [results.find_run(options.results, name) for name in options.runs] or None
    asked = {"results": options.results, "markdown": options.markdown}
    for path in lab.write_report(chosen, options.out, **asked):
        print(f"wrote {path}")
    return 0


def _pack(options: argparse.Namespace) -> int:
    run = results.find_run(options.results, options.run)
    path = lab.pack(run, options.out, keep=options.keep)
    print(f"packed in {path}, {units.count_bytes(path.stat().st_size)}; open it with: labkit open")
    return 0


def _open(options: argparse.Namespace) -> int:
    before = results.list_shared(options.results)
    run = lab.open_shared(options.file, options.results)
    done = "opened before" if run.folder in before else "opened"
    print(f"{done}: {run.folder}, from {run.info[results.SHARED]['from']}\n\n{notebook.text(run)}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in ("data", "hdd", "ssd", "nvme", "tmpfs")}
    given = {name: Path(folder) for name, folder in given.items() if folder}
    if options.write:
        machine.write_media(Path("labkit.toml"), **given)
    for topic, value, remark in notebook.doctor_rows(given):
        print(f"{topic:18} {value}" + (f"\n{'':18} → {remark}" if remark else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
