"""The lab from a shell: one command for everything that a person asks of it.

    labkit list | forecast | run | table | chart | claims | disputes | savings | recipe | report
           pack | open | diagnose | doctor

Every setting is an option, generated from Settings like the notebooks' form.
Thin: here the words are parsed; `commands` calls the library and prints.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from labkit import commands
from labkit.resolve import TABLES
from labkit.settings import MODES, field_kinds, help_texts


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
    words = parser.add_subparsers(required=True, metavar="command")

    command = words.add_parser("list", help="the experiments, and the runs there are")
    _results_option(command)
    command.set_defaults(command=commands.show_list)

    command = words.add_parser(
        "run", help="run experiments and print their tables", allow_abbrev=False
    )
    command.add_argument(
        "names", nargs="*", metavar="NAME", help="experiments (see `labkit list`); none: all"
    )
    command.add_argument("--resume", metavar="RUN", help="complete a cancelled or killed run")
    _results_option(command)
    _choice_options(command, mode="quick")
    command.set_defaults(command=commands.run)

    command = words.add_parser(
        "forecast", help="how long a run would take, and the smallest effect it could see"
    )
    command.add_argument("names", nargs="*", metavar="NAME", help="experiments; none: all")
    _results_option(command)
    _choice_options(command, mode="full")
    command.set_defaults(command=commands.show_forecast)

    command = words.add_parser("table", help="print a run's table")
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    command.add_argument("--json", action="store_true", help="rows as JSON")
    command.add_argument("--detail", action="store_true", help="all columns")
    _results_option(command)
    command.set_defaults(command=commands.show_table)

    command = words.add_parser("chart", help="draw a run's chart into its folder")
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    _results_option(command)
    command.set_defaults(command=commands.draw_chart)

    command = words.add_parser(
        "claims", help="every claim of the documents, and what runs on this machine say of it"
    )
    command.add_argument("--json", action="store_true", help="rows as JSON")
    _results_option(command)
    command.set_defaults(command=commands.show_claims)

    command = words.add_parser(
        "disputes", help="what people disagree on, who says what, and what runs here show"
    )
    command.add_argument(
        "numbers", nargs="*", type=int, metavar="NUMBER", help="which of them; none: all"
    )
    command.add_argument("--json", action="store_true", help="rows as JSON")
    _results_option(command)
    command.set_defaults(command=commands.show_disputes)

    command = words.add_parser("savings", help="what a run's winner saves over a whole training")
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    command.add_argument("--epochs", type=int, default=100, help="epochs of the whole training")
    command.add_argument(
        "--images", type=int, default=118_287, help="images of the full data set; unset: COCO's"
    )
    command.add_argument("--gpu-hour", type=float, metavar="PRICE", help="of an hour of the GPU")
    _results_option(command)
    command.set_defaults(command=commands.show_savings)

    command = words.add_parser(
        "recipe", help="a run's winner as plain PyTorch code for your train.py"
    )
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    command.add_argument("--variant", help="another one than the winner")
    command.add_argument("--out", metavar="FILE", type=Path, help="write it there; unset: print it")
    _results_option(command)
    command.set_defaults(command=commands.write_recipe)

    command = words.add_parser(
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
    command.set_defaults(command=commands.write_report)

    command = words.add_parser(
        "pack", help="one file of a run to send, without user names, host names and paths"
    )
    command.add_argument("run", metavar="RUN", help="run folder, id, or experiment (its newest)")
    command.add_argument("--out", metavar="FILE", help="where to; unset: the run's folder")
    _results_option(command)
    command.set_defaults(command=commands.pack_run)

    command = words.add_parser("open", help="open a run that a colleague packed")
    command.add_argument("file", metavar="FILE", help="made by `labkit pack`")
    _results_option(command)
    command.set_defaults(command=commands.open_shared)

    command = words.add_parser(
        "diagnose", help="what holds your own training loop back, and what would help"
    )
    command.add_argument(
        "target", metavar="MODULE:FUNCTION",
        help="called without arguments; returns (loader, step), or a dict with loader and step",
    )  # fmt: skip
    command.add_argument(
        "--files", metavar="GLOB", help="the loader's files, for what a cold page cache costs"
    )
    command.add_argument("--verify", action="store_true", help="try the remedies, and measure them")
    command.add_argument("--budget-s", type=float, metavar="N", default=60, help="seconds to take")
    command.add_argument(
        "--chart", metavar="FILE", type=_chart_file, help="draw the time line there"
    )
    command.set_defaults(command=commands.diagnose)

    command = words.add_parser("doctor", help="what this machine has, and what will be skipped")
    command.add_argument("--data", help="probe this folder's disk too")
    command.add_argument(
        "--write", action="store_true", help="keep the folders given here in labkit.toml"
    )
    for medium in ("hdd", "ssd", "nvme", "tmpfs"):
        command.add_argument(f"--{medium}", metavar="DIR", help=f"a folder on the {medium}")
    command.set_defaults(command=commands.show_doctor)
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
    command.add_argument("--baseline", metavar="LABEL", help="reference variant (= 1.0)")
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


def _chart_file(text: str) -> Path:
    kinds = (".png", ".svg", ".pdf")
    if Path(text).suffix not in kinds:
        raise argparse.ArgumentTypeError(f"must end in one of {', '.join(kinds)}, got {text!r}")
    return Path(text)


if __name__ == "__main__":
    sys.exit(main())
