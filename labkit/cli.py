"""The command line: `labkit COMMAND`.  Here are the core's commands; the lab adds its own."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

from labkit import install
from labkit.diagnosis.compare import compare_watched, read_watched
from labkit.diagnosis.diagnose import check_budget
from labkit.diagnosis.live_script import diagnose_script
from labkit.diagnosis.loader_arguments import EXAMPLE, read_arguments
from labkit.diagnosis.outside import watch_from_outside
from labkit.diagnosis.script import Program, load, run
from labkit.diagnosis.thresholds import BUDGET_S, TUNING_BUDGET_S
from labkit.language import shown
from labkit.nccl import read_nccl_log
from labkit.settings import field_kinds

Options = argparse.Namespace
EXAMPLES = {
    "watch": "labkit watch train.py --lr 0.1",
    "compare": "labkit compare before.json after.json",
    "diagnose": "labkit diagnose train.py --lr 0.1, or labkit diagnose --tune train.py",
    "nccl": "labkit nccl train.log",
    "run": "labkit run prefetching --num-workers 4",
    "list": "labkit list",
    "roofline": "labkit roofline preprocessing",
    "table": "labkit table prefetching",
    "claims": "labkit claims 1 2",
    "advise": "labkit advise --data-gb 150",
    "report": "labkit report prefetching storage",
    "recipe": "labkit recipe preprocessing --out fast.py",
    "share": "labkit share prefetching",
    "open": "labkit open prefetching.zip",
    "calibrate": "labkit calibrate --data /my/images",
    "notebooks": "labkit notebooks lab",
    "doctor": "labkit doctor --hdd /mnt/disk",
}
"""Command -> the example below its help."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after `labkit`; unset: the shell's.

    Returns:
        Exit status: 0 done, 1 could not (one line on stderr says why), 2 wrong use, or files that
        cannot be compared, 130 cancelled.
    """
    options = parser().parse_args(arguments)
    if options.command is _diagnose or (options.command is _watch and options.pid is None):
        return options.command(options)  # signals and errors are the script's
    # The name of a file may hold what the terminal's encoding does not.
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread():
        # A terminated run cleans up as after Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = options.command(options) or 0
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read the output, as head does, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("labkit: cancelled", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 1


# --- commands -------------------------------------------------------------------------------


def _diagnose(options: Options) -> int:
    default_s = TUNING_BUDGET_S if options.tune else BUDGET_S
    budget_s = default_s if options.budget_s is None else options.budget_s
    try:
        check_budget(budget_s, default_s)
    except ValueError as error:
        parser().error(str(error))
    return diagnose_script(
        _program("diagnose", options),
        budget_s=budget_s,
        tuned=options.tune,
        details=options.details,
        json_file=options.json,
    )


def _program(command: str, options: Options) -> Program:
    """Return what the options of a command say to run."""
    words = ["-m", *options.module] if options.module else options.words
    if not words or words == ["-m"]:
        pid = ", or --pid PID" * (command == "watch")
        parser().error(f"{command} needs a script or -m MODULE{pid}")
    try:
        return load(words)
    except (ValueError, OSError) as error:
        parser().error(str(error))


def _watch(options: Options) -> int:
    if options.pid is not None:
        if options.loader or options.compare:
            parser().error("--pid looks at a training that runs: it takes no --loader, --compare")
        print(watch_from_outside(options.pid))
        return 0
    try:
        loader = read_arguments(options.loader) if options.loader is not None else None
        if options.compare is not None:
            read_watched(options.compare)
            if options.json is not None and options.json.absolute() == options.compare.absolute():
                raise ValueError(f"--json must be another file than --compare, got {options.json}")
    except (ValueError, OSError) as error:
        parser().error(str(error))
    run(
        _program("watch", options),
        json_file=options.json,
        loader=loader,
        before=options.compare,
    )
    return 0


def _compare(options: Options) -> int:
    try:
        lines = compare_watched(read_watched(options.before), read_watched(options.after))
    except (ValueError, OSError) as error:
        print(f"labkit: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(shown, lines)))
    return 0


def _nccl(options: Options) -> None:
    print(read_nccl_log(options.log))


# --- options --------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Prints what is wrong in one line, instead of after all options."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments"):
            message += f"; a setting must be one of {', '.join(field_kinds())}"
        if "invalid choice" in message and (why := install.why_no_lab()):
            message += f"; every other command {why}"
        self.exit(2, f"labkit: {message}; see `labkit --help` and `labkit COMMAND --help`\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = _Parser(prog="labkit", description="Why is my GPU at 0 %, and what fixes it?")
    commands = whole.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def add(name: str, command: Callable, text: str, *parents: argparse.ArgumentParser) -> _Parser:
        how: dict[str, Any] = {
            "help": text,
            "description": text,
            "parents": parents,
            "allow_abbrev": False,
            "epilog": f"Example: {EXAMPLES[name]}",
        }
        made = commands.add_parser(name, **how)
        made.set_defaults(command=command)
        return made

    def runs_script(command: _Parser) -> None:
        # PARSER takes all words from the first one on that is no option.
        script = command.add_argument(
            "words", metavar="SCRIPT", nargs=argparse.PARSER, type=_script_word(),
            help="such as train.py, or a command as torchrun; what follows are its arguments",
        )  # fmt: skip
        script.required = False
        text = "run a module as python -m does"
        command.add_argument(
            "-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help=text
        )
        command.add_argument("--json", metavar="FILE", type=Path, help="write what was measured")

    text = "run a training script, and print how much of its time it waits for data"
    watch = add("watch", _watch, text)
    watch.usage = (
        "labkit watch [--json FILE] [--compare FILE] [--loader NAME=VALUE,...] "
        "(SCRIPT | -m MODULE) [arguments], or --pid PID"
    )
    runs_script(watch)
    text = "look at a training that runs already, from outside, for ten seconds"
    watch.add_argument("--pid", metavar="PID", type=int, help=text)
    text = "afterwards compare this run with an earlier one, from the file of its --json"
    watch.add_argument("--compare", metavar="FILE", type=Path, help=text)
    text = "give every DataLoader that the script makes, of training and validation, these "
    text += f"arguments in place of its own, such as {EXAMPLE}"
    watch.add_argument("--loader", metavar="NAME=VALUE,...", help=text)

    text = "run a training script until it is known what slows it down and what would help"
    diagnose = add("diagnose", _diagnose, text)
    diagnose.usage = (
        "labkit diagnose [--tune] [--json FILE] [--details] [--budget-s S] "
        "(SCRIPT | -m MODULE) [arguments]"
    )
    runs_script(diagnose)
    diagnose.add_argument("--details", action="store_true", help="also print the measurements")
    text = "only find the fastest arguments of its DataLoader: workers, prefetch_factor, and others"
    diagnose.add_argument("--tune", action="store_true", help=text)
    text = f"seconds of measuring; unset: {BUDGET_S:g}, with --tune {TUNING_BUDGET_S:g}"
    diagnose.add_argument("--budget-s", type=float, metavar="S", help=text)

    if install.why_no_lab():
        whole.epilog = f"Experiments, notebooks and reports: pip install {install.extra('lab')}"
    else:
        from labkit.cli_lab import add_commands

        add_commands(add)
    text = "print how many times as fast a watched training is as before a change"
    compare = add("compare", _compare, text)
    compare.add_argument("before", metavar="BEFORE", type=Path, help="written by watch --json")
    compare.add_argument("after", metavar="AFTER", type=Path, help="the same after the change")
    text = "print how NCCL connects the GPUs, and where it does not use GPUDirect RDMA"
    nccl = add("nccl", _nccl, text)
    nccl.add_argument("log", metavar="LOG", help="output of a training with NCCL_DEBUG=INFO")
    return whole


def _script_word() -> Callable[[str], str]:
    """Return a check of the first word: a file, or a command written in Python."""
    words: list[str] = []

    def check(text: str) -> str:
        words.append(text)
        if len(words) > 1 or Path(text).is_file():
            return text
        command = shutil.which(text)
        if command is None or b"python" not in Path(command).read_bytes()[:100]:
            raise argparse.ArgumentTypeError(f"must be a Python file, got {text!r}")
        return command

    return check
