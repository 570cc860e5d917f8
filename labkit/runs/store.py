"""Write, read, list and find run folders.

    results/<experiment>/<utc>-<short id>/run.json      what was run, how, on what
                                          trials.jsonl  one whole row per line
    results/shared/<experiment>/…         runs of colleagues, from share files

A row is flushed and synced as soon as its trial is done, so a crash loses at most the trial that
was running. A half-written line, left by a killed process or a full disk, is skipped and counted.

Outside this module a run is a `RunInfo`, with attributes. In `run.json`, what may not leave this
machine stands in the block `local`; a share file leaves it out. Labels of variants, questions and
notes are the user's own words and are shared.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import secrets
import shutil
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from labkit import units
from labkit.analysis.summary import Summary, summarize
from labkit.files import write_whole
from labkit.records import RUN_SCHEMA, UNKNOWN, AnyTrial, Plain, RunInfo, read_hardware
from labkit.resolve import record_facts
from labkit.settings import AS_PUBLISHED, MODES, read_settings, with_new_names

RUN_FILE, TRIALS_FILE = "run.json", "trials.jsonl"
SHARED = "shared"  # folder of results, for runs made elsewhere
REPORTS = "reports"  # folder of results, for files made from several runs
RESERVED = (SHARED, REPORTS)  # an experiment cannot have these names

Facts = dict[str, Any]  # what a JSON object holds

NAME = r"\w+"  # other storages, and other values of the settings below, are folders or addresses
HIDDEN_FOLDER = "a folder"
NOT_SHARED = "not shared"
# Beginnings of labkit's own sentences on why a variant cannot run, which tell nothing private:
# they hold names of public libraries and numbers alone.
PUBLIC_REASON = re.compile(
    r"(?:cv2|PIL|simplejpeg|kornia_rs|torch|torchcodec|torchvision|tensorflow|nvidia\.dali"
    r"|safetensors|h5py|lmdb|prefetch_generator|spdl|webdataset)"
    r"(?:\.(?:io|io\.utils|fn|numpy|Image|pipeline|decoders|transforms\.v2\.functional))? is "
    r"(?:not installed|installed and broken)"
    r"|spdl\.io finds no FFmpeg \d+ to \d+"
    r"|no NVIDIA driver(?: answers NVML)?|the NVIDIA driver sees no GPU"
    r"|no CUDA device works with this torch build"
    r"|torch [\w.+]{1,40} is built without CUDA|it takes \d+ GPUs, got \d+ GPUs?"
)


def _hide_folder(value: object) -> object:
    """Return a setting's value, or the placeholder where it may be a folder."""
    return HIDDEN_FOLDER if re.search(r"[/\\]", str(value)) else value


SETTINGS = {
    "data": NOT_SHARED,
    "storage|checkpoint_to|report_to": HIDDEN_FOLDER,
    ".*": _hide_folder,  # also of a setting that this version does not know
}


def _public_reason(reason: object) -> str:
    """Return the part of a reason that may be shared, or the placeholder."""
    match = PUBLIC_REASON.match(str(reason))
    return match[0] if match else NOT_SHARED


def readable_reason(reason: str) -> str:
    """Return a reason as it is shown; "" where a share file left it out."""
    return "" if reason == NOT_SHARED else reason


# What may not leave this machine, in run.json and in rows: pattern of a field's name -> patterns
# of the fields below it, or what replaces its value in a share file (None: nothing).
LOCAL = {
    "variants": {".*": SETTINGS},
    # Without its data, as it is run again with others.
    "request": {"settings": {**SETTINGS, "data": None}, "variants": {".*": SETTINGS}},
    "settings": SETTINGS,
    "data": {"folder": None},
    "storages": {NAME: {"device|remark": None}, ".*": None},
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
    """A run as it is stored on disk."""

    folder: Path
    info: RunInfo
    trials: tuple[AnyTrial, ...]
    set_aside: int = 0
    """Number of lines of `trials.jsonl` that are incomplete or no rows."""

    @functools.cached_property
    def summary(self) -> Summary:
        """Summary of the trials: a row per variant."""
        name = self.folder.name
        return summarize(self.info, self.trials, run=name, set_aside=self.set_aside)


def create_run(results: Path, info: RunInfo) -> Path:
    """Make a new run folder with its `run.json`.

    Args:
        results: folder that holds all results; made if missing.
        info: what is known of the run.

    Raises:
        OSError: results cannot be written; the message says what to do.
    """
    runs = results / info.experiment
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
        trials_file = (folder / TRIALS_FILE).open("ab")
    with trials_file:
        try:
            import fcntl

            fcntl.flock(trials_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        except (ImportError, OSError):
            pass  # Windows, or a network file system without locks
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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
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


def write_info(folder: Path, info: RunInfo) -> None:
    """Replace `run.json` in one step."""
    shared, local = split_local(to_json(info))
    text = json.dumps({**shared, "local": local}, indent=1, ensure_ascii=False) + "\n"
    with explain_unwritable(folder):
        write_whole(folder / RUN_FILE, text)


def read_info(folder: Path) -> RunInfo:
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
    try:
        return from_json(_merge(stored, local) if isinstance(local, dict) else {})
    except ValueError:
        raise ValueError(
            f"{RUN_FILE} must be what a run writes, got another file in {folder.name}"
        ) from None


def to_json(info: RunInfo) -> Facts:
    """Return a run as `run.json` holds it, the local facts in their places."""
    stored = {name: value for name, value in asdict(info).items() if value is not None}
    stored["variants"] = {label: info.settings_of(label) for label in info.variants}
    stored["facts"] = {
        label: {name: fact for name, fact in own.items() if fact}
        for label, own in stored["facts"].items()
    }
    del stored["unknown_settings"]  # each is among its variant's
    return stored


def from_json(stored: Mapping[str, Any]) -> RunInfo:
    """Return the run that `to_json` of any version wrote; unknown facts are left out.

    Raises:
        ValueError: it is no run; the text is the name of the first fact that is not as labkit
            writes it.
    """
    stored = _migrate(stored)
    known: Facts = {}
    if not fits(stored.get("variants"), dict[str, dict[str, Plain]]):
        raise ValueError("variants")
    settings = {label: read_settings(values) for label, values in stored["variants"].items()}
    for name, hint in _hints(RunInfo).items():
        if name in stored and name not in ("variants", "unknown_settings"):
            try:
                known[name] = _read(hint, stored[name])
            except (TypeError, ValueError):
                raise ValueError(name) from None
    known["variants"] = {label: own for label, (own, _) in settings.items()}
    known["unknown_settings"] = {label: more for label, (_, more) in settings.items() if more}
    if missing := [f.name for f in fields(RunInfo) if _is_needed(f) and f.name not in known]:
        raise ValueError(missing[0])
    if known["baseline"] not in known["variants"]:
        raise ValueError("baseline")
    return RunInfo(**known)


def _migrate(stored: Mapping[str, Any]) -> Facts:
    """Return a run of any schema as today's would be stored; what is None is left out."""
    facts = {"schema": 0, **{name: x for name, x in stored.items() if x is not None}}
    notes, mode, provenance = (facts.get(name) for name in ("notes", "mode", "provenance"))
    if facts["schema"] < 2 and isinstance(notes, list) and notes:  # they named files
        facts |= {"notes": [], "local_notes": notes}
    if "dial" in facts:
        facts["x_axis"] = facts["dial"]
    if "shuffled" not in facts and isinstance(mode, str):
        facts["shuffled"] = mode not in MODES or MODES[mode].shuffled
    if isinstance(provenance, dict):  # unknown was the word, also where a number is expected
        known = {name: x for name, x in provenance.items() if x not in (None, UNKNOWN)}
        if isinstance(gpu := known.get("gpu"), dict):
            known["gpu"] = {name: x for name, x in gpu.items() if x is not None}
        facts["provenance"] = known
    if isinstance(data := facts.get("data"), dict) and "manifest_hash" in data:
        facts["data"] = {"data_hash": data["manifest_hash"], **data}
    if "names" not in facts and fits(groups := facts.get("groups"), dict[str, str]):
        facts["names"] = {label: label.removeprefix(f"{own}: ") for label, own in groups.items()}
    if "facts" not in facts and fits(facts.get("variants"), dict[str, dict[str, Plain]]):
        named = {label: with_new_names(own) for label, own in facts["variants"].items()}
        facts["facts"] = record_facts(named)
    facts |= _slowdowns_in_tasks(facts)
    if fits(storages := facts.get("storages"), dict[str, dict[str, Any]]):
        facts["storages"] = {name: _with_hardware(own) for name, own in storages.items()}
    if isinstance(rates := facts.get("calibration"), dict) and "gpu_images_per_s" in rates:
        facts["calibration"] = {"real_gpu_images_per_s": rates["gpu_images_per_s"], **rates}
    if isinstance(shared := facts.get("shared"), dict):
        facts["shared_from"] = shared.get("from")
    return facts


def _slowdowns_in_tasks(stored: Facts) -> Facts:
    """Return the tasks of a run whose variants had the setting gpu_slowdown, or step_repeats."""
    variants, tasks = stored.get("variants"), stored.get("tasks", {})
    if not all(fits(each, dict[str, dict[str, Plain]]) for each in (variants, tasks)):
        return {}
    slowed = {
        label: {**tasks.get(label, {}), "gpu_slowdown": times}
        for label, own in variants.items()
        if fits(times := own.get("gpu_slowdown", own.get("step_repeats", 1)), int) and times > 1
    }
    return {"tasks": {**tasks, **slowed}}


def _with_hardware(storage: Facts) -> Facts:
    """Return a storage whose hardware earlier versions wrote as text."""
    if not isinstance(label := storage.get("label"), str):
        return storage
    return {**storage, "hardware": asdict(read_hardware("storage", label))}


def _read(hint: Any, value: Any) -> Any:
    """Return a value from JSON as a type; unknown fields of a dataclass are left out.

    Raises:
        TypeError: it is of another type.
        ValueError: it is a value that its dataclass refuses.
    """
    origin, inner, has_fields = typing.get_origin(hint), typing.get_args(hint), is_dataclass(hint)
    if origin is types.UnionType:
        for option in inner:
            with contextlib.suppress(TypeError, ValueError):
                return _read(option, value)
        raise TypeError(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(inner[0], each) for each in value)
    if isinstance(value, dict) and origin is Mapping:
        return {name: _read(inner[1], each) for name, each in value.items()}
    if isinstance(value, dict) and has_fields:
        hints = _hints(hint)
        return hint(**{name: _read(hints[name], x) for name, x in value.items() if name in hints})
    if has_fields or not fits(value, hint):
        raise TypeError(hint)
    return value


_hints = functools.cache(typing.get_type_hints)


def _is_needed(field: Field) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def fits(value: object, hint: Any) -> bool:
    """Return whether a value from JSON is of a type; a dataclass has its fields as a dict."""
    origin, inner, has_fields = typing.get_origin(hint), typing.get_args(hint), is_dataclass(hint)
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
    if has_fields:
        hints = _hints(hint)
        needed = {field.name for field in fields(hint) if _is_needed(field)}
        return (
            isinstance(value, dict)
            and needed <= set(value) <= set(hints)
            and all(fits(each, hints[name]) for name, each in value.items())
        )
    return isinstance(value, hint)


def split_local(facts: Mapping[str, Any], rules: Mapping[str, Any] = LOCAL) -> tuple[Facts, Facts]:
    """Return what may be shared of a run's facts or of a row, and what may not leave this machine.

    Args:
        facts: what `to_json` returns, or a row, of any version; not changed.
        rules: which of them are local.
    """
    shared, local = {}, {}
    for name, value in facts.items():
        key = next((key for key in rules if re.fullmatch(key, name, re.DOTALL)), None)
        rule = rules.get(key)
        if isinstance(rule, dict):
            is_dict = isinstance(value, Mapping)
            shared[name], below = split_local(value, rule) if is_dict else (value, {})
            if below:
                local[name] = below
        elif key is None or not value or (rule == HIDDEN_FOLDER and re.fullmatch(NAME, str(value))):
            shared[name] = value
        elif callable(rule):
            shared[name] = rule(value)
            if shared[name] != value:
                local[name] = value
        else:
            local[name] = value
            if rule is not None:
                shared[name] = rule
    return shared, local


def _merge(shared: Facts, local: Mapping[str, Any]) -> Facts:
    """Insert the local values in their places."""
    for name, value in local.items():
        both = isinstance(value, dict) and isinstance(shared.get(name), dict)
        shared[name] = _merge(shared[name], value) if both else value
    return shared


def shareable(info: RunInfo, trials: Iterable[AnyTrial]) -> tuple[Facts, list[Facts]]:
    """Return what of a run and its rows may leave this machine, as JSON.

    Raises:
        ValueError: a variant is labelled with a folder.
    """
    shared, local = split_local(to_json(info))
    for label, settings in local.get("variants", {}).items():
        if any(str(place) in label for place in settings.values()):
            raise ValueError(
                f"variants must not be labelled with a folder to be shared, got {label!r}; "
                "give each a label of its own and run again"
            )
    rows = [split_local(trial.to_row())[0] for trial in trials]
    data = f"manifest {info.data.data_hash[:12]}"
    of_rows = (row["settings"] for row in rows if "settings" in row)
    for settings in (*shared["variants"].values(), *of_rows):
        if "data" in settings:
            settings["data"] = data
    return shared, rows


def check_version(stored: Mapping[str, Any], name: str) -> None:
    """Refuse a run that this version cannot read.

    Args:
        stored: what `run.json` holds.
        name: of its folder or file.

    Raises:
        ValueError: it was written by a newer labkit.
    """
    if not isinstance(schema := stored.get("schema", 0), int) or schema > RUN_SCHEMA:
        raise ValueError(
            f"schema must be at most {RUN_SCHEMA}, got {schema!r} in {name}; "
            "update labkit to read this run"
        )


def append_trials(folder: Path, *trials: AnyTrial) -> None:
    """Add the rows of trials and return when they are safely on the disk.

    Raises:
        OSError: the disk is full, or cannot be written to; the message says what to do.
    """
    text = "".join(f"{json.dumps(trial.to_row(), ensure_ascii=False)}\n" for trial in trials)
    lines = text.encode(errors="backslashreplace")  # as `write_whole`
    with explain_unwritable(folder), (folder / TRIALS_FILE).open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a crash left half a line
                lines = b"\n" + lines
        file.write(lines)
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
                trials.append(info.trial_type.from_row(row))
            except (AttributeError, KeyError, TypeError):  # JSON, but no row
                set_aside += 1
    return StoredRun(folder=folder, info=info, trials=tuple(trials), set_aside=set_aside)


def list_runs(results: Path | str, experiment: str = "*") -> list[Path]:
    """List the folders of runs, oldest first.

    Args:
        results: folder that holds all results; runs that colleagues shared lie in its `shared`.
        experiment: one experiment's name, or all.

    Examples:
        >>> [folder.parent.name for folder in lab.list_runs("results")]
        ['preprocessing']
    """
    run_files = Path(results).glob(f"{experiment}/*/{RUN_FILE}")
    return sorted((path.parent for path in run_files), key=lambda folder: folder.name)


def best_runs(
    results: Path | str,
    weigh: Callable[[RunInfo], float | str | None],
    experiment: str = "*",
    *,
    one_each: bool = False,
) -> Iterator[StoredRun]:
    """Yield runs, those with the largest weight first, of equals the newest.

    Runs that colleagues shared and runs that cannot be read are left out.

    Args:
        results: folder that holds all results.
        weigh: returns a run's weight; None leaves the run out.
        experiment: one experiment's name, or all.
        one_each: only the first run of each experiment.
    """
    weighed, seen = [], set()
    for folder in list_runs(results, experiment):
        with contextlib.suppress(ValueError):  # of a newer labkit, or no run
            info = read_info(folder)
            if not info.shared_from and (weight := weigh(info)) is not None:
                weighed.append((weight, folder.name, folder, info.experiment))
    for _, _, folder, name in sorted(weighed, reverse=True):
        if not (one_each and name in seen):
            with contextlib.suppress(ValueError):  # rows of a newer labkit
                run = load_run(folder)
                seen.add(name)
                yield run


def newest_runs(
    results: Path | str, weigh: Callable[[RunInfo], float | str | None]
) -> dict[str, StoredRun]:
    """Return the first of `best_runs` of each experiment, by the experiment's name."""
    return {run.info.experiment: run for run in best_runs(results, weigh, one_each=True)}


def earlier_runs(
    results: Path | str, experiment: str, *, machine_id: str, mode: str
) -> Iterator[StoredRun]:
    """Yield a machine's finished runs of an experiment: those in `mode` first, the newest first."""

    def weigh(info: RunInfo) -> bool | None:
        is_finished = info.status == "finished" and info.shuffled
        is_here = info.provenance.machine_id == machine_id
        return info.mode == mode if is_here and is_finished else None

    return best_runs(results, weigh, experiment)


def find_run(results: Path | str, name: str) -> StoredRun:
    """Find a run by its folder, its id (or the start or end of it), or an experiment's newest.

    A run id may also be that of a run that a colleague shared, where none of this machine has it.

    Raises:
        FileNotFoundError: nothing matches; the message lists what there is.
        ValueError: several runs match.
    """
    if (Path(name) / RUN_FILE).is_file():
        return load_run(name)
    folders = list_runs(results)
    if name in {folder.parent.name for folder in folders}:
        # A run in the document's own order answers another question: its id finds it.
        corrected = best_runs(results, lambda info: info.protocol != AS_PUBLISHED, name)
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
