"""Write, read, list and find run folders.

    results/<experiment>/<utc>-<short id>/run.json      what was run, how, on what
                                          trials.jsonl  one whole row per line
    results/shared/<experiment>/…         runs of colleagues, from share files

A row is flushed and synced as soon as its trial is done, so a crash loses at most the trial that
was running. A half-written line, left by a killed process or a full disk, is skipped and counted.

In `run.json`, what may not leave this machine stands in the block `local`; a share file leaves it
out. Labels of variants, questions and notes are the user's own words and are shared.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit import units
from labkit.analysis.summary import Summary, summarize
from labkit.contracts import Facts as PartFacts
from labkit.contracts import Trial
from labkit.files import write_whole
from labkit.resolve import record_facts
from labkit.settings import AS_PUBLISHED

# Format history of run.json
#   1  first version
#   2  `local`: what may not leave this machine; request
#   3  the host of a simulated GPU spins and needs a core to launch and to copy; it slept before
SCHEMA = 3
RUN_FILE, TRIALS_FILE = "run.json", "trials.jsonl"
SHARED = "shared"  # folder of results and field of run.json, for runs made elsewhere
REPORTS = "reports"  # folder of results, for files made from several runs
RESERVED = (SHARED, REPORTS)  # an experiment cannot have these names
FULL = (errno.ENOSPC, errno.EDQUOT)

Plain = str | int | float | bool | None
Facts = dict[str, Any]
# Of run.json; its other fields may hold any JSON.
INFO_TYPES = {
    **dict.fromkeys(("experiment", "question", "mode", "baseline", "status", "created_utc"), str),
    **dict.fromkeys(("blocks", "order_seed"), int),
    "variants": dict[str, dict[str, Plain]],
    "facts": dict[str, PartFacts] | None,
    "data": dict[str, Plain],
    "provenance": Facts,
    **dict.fromkeys(("skipped", "failed"), dict[str, str]),
    "notes": list[str],
    "excluded": list[int] | None,
    "calibration": dict[str, Plain] | None,
    **dict.fromkeys(("costs", "reads", "tasks"), dict[str, dict[str, Plain]] | None),
    **dict.fromkeys(("storages", "links"), dict[str, Facts] | None),
    **dict.fromkeys(("dial", "request", "forecast", "timing"), Facts | None),
    **dict.fromkeys(("source", "protocol", "reason", "kind", "accelerator"), str | None),
    **dict.fromkeys(("groups", "baselines", SHARED), dict[str, str] | None),
    **dict.fromkeys(("local_notes", "unreadable"), list[str] | None),
    "published": dict[str, float] | None,
    "singles": dict[str, dict[str, float]] | None,
}

NAME = r"\w+"  # other storages, and other values of the settings below, are folders or addresses
A_PLACE = "a folder"
NOT_SHARED = "not shared"
# Beginnings of labkit's own sentences on why a variant cannot run, which tell nothing private:
# they hold names of public libraries and numbers alone.
PUBLIC_REASON = re.compile(
    r"(?:cv2|PIL|simplejpeg|kornia_rs|torch|torchvision|tensorflow|nvidia\.dali|safetensors|h5py"
    r"|lmdb|prefetch_generator)(?:\.(?:io|fn|numpy|Image))? is "
    r"(?:not installed|installed and broken)"
    r"|no NVIDIA driver(?: answers NVML)?|the NVIDIA driver sees no GPU"
    r"|no CUDA device works with this torch build"
    r"|torch [\w.+]{1,40} is built without CUDA|it takes \d+ GPUs, got \d+ GPUs?"
)
SETTINGS = {"data": NOT_SHARED, "storage|checkpoint_to|report_to": A_PLACE}


def _public_reason(reason: object) -> str:
    """Return the part of a reason that may be shared, or the placeholder."""
    found = PUBLIC_REASON.match(str(reason))
    return found[0] if found else NOT_SHARED


def readable_reason(reason: str) -> str:
    """Return a reason as it is shown; where a share file left it out, that it did."""
    return "the shared run does not say why" if reason == NOT_SHARED else reason


# What may not leave this machine, in run.json and in rows: pattern of a field's name -> patterns
# of the fields below it, or what replaces its value in a share file (None: nothing).
LOCAL = {
    "variants": {".*": SETTINGS},
    # Without its data, as it is run again with others.
    "request": {"settings": {**SETTINGS, "data": None}, "variants": {".*": SETTINGS}},
    "settings": SETTINGS,
    "data": {"folder": None},
    "storages": {NAME: {"device|remark": None}, ".*": None},
    "costs": {".*": {"folder": None}},
    "provenance": {"gpu": {"reason": None}},
    "medium": {"device": None},
    "disturbance": {"busiest_program|busiest_gpu_program": None},
    "skipped|failed": {".*": _public_reason},
    "reason": _public_reason,
    "unreadable": None,
    "local_notes": None,  # the same, of earlier versions
}


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as it lies on disk."""

    folder: Path
    info: dict[str, Any]
    """What `run.json` holds: experiment, mode, variants, status, provenance …"""
    trials: tuple[Trial, ...]
    set_aside: int = 0
    """Lines of `trials.jsonl` that were only half written, or are no rows."""

    def __post_init__(self) -> None:
        if self.info.get("facts") is None:  # of an earlier version
            self.info["facts"] = record_facts(self.info["variants"])

    @cached_property
    def summary(self) -> Summary:
        """What the trials mean: a row per variant."""
        more = {"set_aside": self.set_aside, "run": self.folder.name}
        return summarize({**self.info, **more}, self.trials)


def create_run(results: Path, info: dict[str, Any]) -> Path:
    """Make a new run folder with its `run.json`.

    Args:
        results: folder that holds all results; made if missing.
        info: at least the experiment's name.

    Raises:
        OSError: results cannot be written; the message says what to do.
    """
    runs = results / str(info["experiment"])
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    with explain_unwritable(results):
        runs.mkdir(parents=True, exist_ok=True)
        while True:
            folder = runs / f"{stamp}-{secrets.token_hex(2)}"
            # One of 65,536 pairs of runs of the same second has the same four digits.
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                break
    write_info(folder, info)
    return folder


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a run, so that no other process runs or resumes it; a kill ends the lock.

    Args:
        folder: the run folder.

    Raises:
        RuntimeError: another process holds it.
        OSError: it cannot be written; the message says what to do.
    """
    busy = RuntimeError(
        f"run must be in progress in one process at a time, got another process for {folder}; "
        "wait until it ends, or end it, and resume again"
    )
    with explain_unwritable(folder):
        # Of the files here, this one is never replaced by another.
        held = (folder / TRIALS_FILE).open("ab")
    with held:
        try:
            import fcntl

            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except (ImportError, OSError):
            pass  # Windows, or a network file system without locks: nothing is held
        yield


def is_in_progress(folder: Path) -> bool:
    """Return whether a process holds a run now, whatever the status in its `run.json`."""
    try:
        with hold(folder):
            return False
    except RuntimeError:
        return True
    except OSError:  # another user's, or on a disk that cannot be written
        return False


@contextlib.contextmanager
def explain_unwritable(folder: Path | str) -> Iterator[None]:
    """Explain errors of writing to a folder, and what to do.

    Raises:
        OSError: the disk is full.
        PermissionError: any other OSError inside the block.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise PermissionError(
                f"results must be a folder that can be written, got {folder} ({error.strerror}); "
                "choose another with --results"
            ) from error
        there = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
        free = units.count_bytes(shutil.disk_usage(there).free)
        advice = "free some space or choose another folder with --results"
        if (Path(folder) / RUN_FILE).is_file():
            advice = f"free some space, then complete the run with: labkit run --resume {folder}"
        raise OSError(
            f"results must have room for more, got {free} free in {folder} ({error.strerror}); "
            f"{advice}"
        ) from error


def write_info(folder: Path, info: dict[str, Any]) -> None:
    """Replace `run.json` in one step."""
    shared, local = split_local(info)
    text = json.dumps({**shared, "local": local}, indent=1, ensure_ascii=False) + "\n"
    with explain_unwritable(folder):
        write_whole(folder / RUN_FILE, text)


def read_info(folder: Path) -> dict[str, Any]:
    """Read `run.json` alone.

    Raises:
        ValueError: it is another file, or of a version that cannot be read.
    """
    try:
        stored = json.loads((folder / RUN_FILE).read_bytes())
    except (ValueError, RecursionError):
        stored = None
    stored = stored if isinstance(stored, dict) else {}
    check_version(stored, folder.name)
    local = stored.pop("local", {})
    info = _merge(stored, local) if isinstance(local, dict) else {}
    if misfit(info, INFO_TYPES) or info["baseline"] not in info["variants"]:
        raise ValueError(f"{RUN_FILE} must be what a run writes, got another file in {folder.name}")
    return info


def misfit(info: Mapping[str, Any], hints: Mapping[str, Any]) -> str:
    """Return the first field whose value is not of its type; empty where all are."""
    return next((name for name, hint in hints.items() if not fits(info.get(name), hint)), "")


def fits(value: object, hint: Any) -> bool:
    """Return whether a value from JSON is of a type; a dataclass has its fields as a dict."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if hint in (int, float):
        is_number = isinstance(value, int if hint is int else (int, float))
        return is_number and not isinstance(value, bool)
    if origin is types.UnionType:
        return any(fits(value, each) for each in inner)
    if origin is typing.Literal:
        return value in inner
    if origin in (list, tuple):
        return isinstance(value, list) and all(fits(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(each, inner[1]) for each in value.values())
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        has_none = MISSING, MISSING
        needed = {f.name for f in fields(hint) if (f.default, f.default_factory) == has_none}
        return (
            isinstance(value, dict)
            and needed <= set(value) <= set(hints)
            and all(fits(each, hints[name]) for name, each in value.items())
        )
    return isinstance(value, hint)


def split_local(
    facts: Mapping[str, Any], fields: Mapping[str, Any] = LOCAL
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what may be shared of a run's facts or of a row, and what may not leave this machine.

    Args:
        facts: what `run.json` holds, or a row, of any version; not changed.
        fields: which of them are local.
    """
    shared, local = {}, {}
    for name, value in facts.items():
        key = next((key for key in fields if re.fullmatch(key, name, re.DOTALL)), None)
        rule = fields.get(key)
        if isinstance(rule, dict):
            is_dict = isinstance(value, Mapping)
            shared[name], below = split_local(value, rule) if is_dict else (value, {})
            if below:
                local[name] = below
        elif key is None or not value or (rule == A_PLACE and re.fullmatch(NAME, str(value))):
            shared[name] = value
        else:
            local[name] = value
            if rule is not None:
                shared[name] = rule(value) if callable(rule) else rule
    return shared, local


def _merge(shared: dict[str, Any], local: Mapping[str, Any]) -> dict[str, Any]:
    """Put what is local back in its place."""
    for name, value in local.items():
        both = isinstance(value, dict) and isinstance(shared.get(name), dict)
        shared[name] = _merge(shared[name], value) if both else value
    return shared


def check_version(info: Mapping[str, Any], name: str) -> None:
    """Refuse a run that this version cannot read.

    Args:
        info: what `run.json` holds.
        name: of its folder or file.

    Raises:
        ValueError: it was written by a newer labkit.
    """
    if not isinstance(schema := info.get("schema", 0), int) or schema > SCHEMA:
        raise ValueError(
            f"schema must be at most {SCHEMA}, got {schema!r} in {name}; "
            "update labkit to read this run"
        )


def append_trial(folder: Path, trial: Trial) -> None:
    """Add a trial's row and return when it is safely on the disk.

    Raises:
        OSError: the disk is full, or cannot be written to; the message says what to do.
    """
    text = json.dumps(trial.to_row(), ensure_ascii=False)
    line = f"{text}\n".encode(errors="backslashreplace")  # as `write_whole`
    with explain_unwritable(folder), (folder / TRIALS_FILE).open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a crash left half a line
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def load_run(folder: Path | str) -> StoredRun:
    """Read a run folder back.

    Raises:
        FileNotFoundError: there is no run in this folder.
        ValueError: the run was written by a newer labkit.
    """
    folder = Path(folder)
    if not (folder / RUN_FILE).is_file():
        raise FileNotFoundError(
            f"run must be a run folder with {RUN_FILE}, got {folder}; `labkit list` shows the runs"
        )
    info = read_info(folder)
    trials, set_aside = [], 0
    if (folder / TRIALS_FILE).exists():
        for line in (folder / TRIALS_FILE).read_bytes().splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                set_aside += bool(line.strip())
                continue
            try:
                trials.append(Trial.from_row(row))
            except (AttributeError, KeyError, TypeError):  # JSON, but no row
                set_aside += 1
    return StoredRun(folder=folder, info=info, trials=tuple(trials), set_aside=set_aside)


def list_runs(results: Path | str, experiment: str = "*") -> list[Path]:
    """List the folders of runs, oldest first.

    Args:
        results: folder that holds all results; runs that colleagues shared lie in its `shared`.
        experiment: one experiment's name, or all.
    """
    found = Path(results).glob(f"{experiment}/*/{RUN_FILE}")
    return sorted((path.parent for path in found), key=lambda folder: folder.name)


def best_runs(
    results: Path | str,
    weigh: Callable[[Mapping[str, Any]], float | str | None],
    experiment: str = "*",
    *,
    one_each: bool = False,
) -> Iterator[StoredRun]:
    """Yield runs, those with the largest weight first, of equals the newest.

    Runs that colleagues shared and runs that cannot be read are left out.

    Args:
        results: folder that holds all results.
        weigh: returns a run's weight from its `run.json`; None leaves the run out.
        experiment: one experiment's name, or all.
        one_each: only the first run of each experiment.
    """
    weighed, seen = [], set()
    for folder in list_runs(results, experiment):
        with contextlib.suppress(ValueError):  # of a newer labkit, or no run
            info = read_info(folder)
            if SHARED not in info and (weight := weigh(info)) is not None:
                weighed.append((weight, folder.name, folder, info["experiment"]))
    for _, _, folder, name in sorted(weighed, reverse=True):
        if not (one_each and name in seen):
            with contextlib.suppress(ValueError):  # rows of a newer labkit
                run = load_run(folder)
                seen.add(name)
                yield run


def newest_runs(
    results: Path | str, weigh: Callable[[Mapping[str, Any]], float | str | None]
) -> dict[str, StoredRun]:
    """Return the first of `best_runs` of each experiment, by the experiment's name."""
    return {run.info["experiment"]: run for run in best_runs(results, weigh, one_each=True)}


def earlier_runs(
    results: Path | str, experiment: str, *, machine_id: str, mode: str
) -> Iterator[StoredRun]:
    """Yield a machine's finished runs of an experiment: those in `mode` first, the newest first."""

    def weigh(info: Mapping[str, Any]) -> bool | None:
        measured_on = info["provenance"].get("machine_id")
        is_finished = info["status"] == "finished" and info.get("shuffled", True)
        return info["mode"] == mode if measured_on == machine_id and is_finished else None

    return best_runs(results, weigh, experiment)


def find_run(results: Path | str, name: str) -> StoredRun:
    """Find a run by its folder, its id (or the start or end of it), or an experiment's newest.

    A run that a colleague shared is found by folder and id, where none of this machine's is.

    Raises:
        FileNotFoundError: nothing matches; the message lists what there is.
        ValueError: several runs match.
    """
    if (Path(name) / RUN_FILE).is_file():
        return load_run(name)
    folders = list_runs(results)
    if name in {folder.parent.name for folder in folders}:
        # A run in the document's own order answers another question: its id finds it.
        corrected = best_runs(results, lambda info: info.get("protocol") != AS_PUBLISHED, name)
        if (newest := next(corrected, None)) is not None:
            return newest
    matches = _called(name, folders) or _called(name, list_runs(Path(results) / SHARED))
    if not matches:
        known = ", ".join(f"{f.parent.name}/{f.name}" for f in folders[-5:]) or "none yet"
        raise FileNotFoundError(
            f"run must be a run folder, an id or an experiment with results in {results}, "
            f"got {name!r}; newest runs: {known}"
        )
    if len(matches) > 1:
        raise ValueError(
            f"run must match one run, got {name!r}, which matches "
            f"{', '.join(match.name for match in matches)}; write more of the id"
        )
    return load_run(matches[0])


def _called(name: str, folders: list[Path]) -> list[Path]:
    exact = [folder for folder in folders if folder.name == name]
    return exact or [f for f in folders if f.name.startswith(name) or f.name.endswith(name)]
