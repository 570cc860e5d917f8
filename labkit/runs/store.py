"""Run folders: write, read, list and find them.

    results/<experiment>/<utc>-<short id>/run.json      what was run, how, on what
                                          trials.jsonl  one whole row per line
    results/shared/<experiment>/…         runs of colleagues, opened with `share`

A row is flushed and synced as soon as its trial is done, so a crash loses at most the trial that
was running. Half a line, left by a killed process or a full disk, is skipped and counted; rows are
never rewritten.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from labkit import units
from labkit.analysis.summary import Summary, summarize
from labkit.contracts import Trial
from labkit.files import locked, write_whole
from labkit.runs import local
from labkit.settings import AS_PUBLISHED

# Format history of run.json
#   1  first version
#   2  `local`: what may not leave this machine; request
SCHEMA = 2
RUN_FILE, TRIALS_FILE = "run.json", "trials.jsonl"
SHARED = "shared"  # the folder of results, and what run.json says, of runs made elsewhere
REPORTS = "reports"  # the folder of results for what is made of several runs
RESERVED = (SHARED, REPORTS)  # no experiment's runs can lie there
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run as it lies on disk."""

    folder: Path
    info: dict[str, object]
    """What `run.json` holds: experiment, mode, variants, status, provenance …"""
    trials: tuple[Trial, ...]
    set_aside: int = 0
    """Lines of `trials.jsonl` that were only half written."""

    @cached_property
    def summary(self) -> Summary:
        """What the trials mean: a row per variant."""
        more = {"set_aside": self.set_aside, "run": self.folder.name}
        return summarize({**self.info, **more}, self.trials)


def create_run(results: Path, info: dict[str, object]) -> Path:
    """Make a new run folder with its `run.json`.

    Args:
        results: folder that holds all results; made if missing.
        info: at least the experiment's name.

    Raises:
        OSError: results cannot be written; the message says what to do.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = results / str(info["experiment"]) / f"{stamp}-{secrets.token_hex(2)}"
    with explain_unwritable(results):
        folder.mkdir(parents=True)
    write_info(folder, info)
    return folder


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Let no other process run or resume a run meanwhile; a killed process holds nothing.

    Args:
        folder: the run folder.

    Raises:
        RuntimeError: another process holds it.
        OSError: it cannot be written; the message says what to do.
    """
    busy = RuntimeError(
        f"run must be under way in one process at a time, got another that has {folder}; "
        "wait until it has ended, or end it, and resume again"
    )
    with contextlib.ExitStack() as held:
        with explain_unwritable(folder):
            # Of the files here, this one is never replaced by another.
            held.enter_context(locked(folder / TRIALS_FILE, busy=busy, make=True))
        yield


def is_under_way(folder: Path) -> bool:
    """Return whether a process runs or resumes a run now, whatever its `run.json` says."""
    try:
        with hold(folder):
            return False
    except RuntimeError:
        return True
    except OSError:  # of another user's, or on a disk that cannot be written
        return False


@contextlib.contextmanager
def explain_unwritable(folder: Path | str) -> Iterator[None]:
    """Turn the errors of a folder that cannot be written into a sentence.

    Raises:
        OSError: the disk is full.
        PermissionError: what is done inside could not write to the folder for another reason.
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
        has_begun = (Path(folder) / RUN_FILE).is_file()
        raise OSError(
            f"results must have room for more, got {free} free in {folder} ({error.strerror}); "
            + (
                f"free some space, then complete the run with: labkit run --resume {folder}"
                if has_begun
                else "free some space or choose another folder with --results"
            )
        ) from error


def write_info(folder: Path, info: dict[str, object]) -> None:
    """Replace `run.json` in one step."""
    text = json.dumps(local.split(info), indent=1, ensure_ascii=False) + "\n"
    with explain_unwritable(folder):
        write_whole(folder / RUN_FILE, text)


def read_info(folder: Path) -> dict[str, object]:
    """Read `run.json` alone.

    Raises:
        ValueError: it is not a run's, or one that this version cannot read.
    """
    text = (folder / RUN_FILE).read_text(encoding="utf-8")
    try:
        stored = json.loads(text)
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        raise ValueError(f"{RUN_FILE} must be a JSON object, got another file in {folder.name}")
    check_version(stored, folder.name)
    return local.join(stored)


def check_version(info: Mapping[str, object], name: str) -> None:
    """Refuse a run that this version cannot read.

    Args:
        info: what `run.json` holds.
        name: of its folder or file.

    Raises:
        ValueError: it was written by a newer labkit, or by one that timed operations otherwise.
    """
    if not isinstance(schema := info.get("schema", 0), int) or schema > SCHEMA:
        raise ValueError(
            f"schema must be at most {SCHEMA}, got {schema!r} in {name}; "
            "update labkit to read this run"
        )
    if info.get("kind") == "operations":
        raise ValueError(
            f"run must be one that this version can read, got operations in {name}, made by an "
            "earlier version; run them again: labkit run operations"
        )


def append_trial(folder: Path, trial: Trial) -> None:
    """Add one trial and return when it is safely on the disk."""
    append_rows(folder, [trial.to_row()])


def append_rows(folder: Path, rows: Iterable[dict[str, object]]) -> None:
    """Add rows together and return when they are safely on the disk.

    Raises:
        OSError: the disk is full, or cannot be written to; the message says what to do.
    """
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    with explain_unwritable(folder), (folder / TRIALS_FILE).open("ab+") as file:
        # After a crash the last line may lack its end: keep the new rows off it.
        if file.tell() and not _ends_with_newline(file):
            lines = b"\n" + lines
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())


def load_run(folder: Path | str) -> StoredRun:
    """Read a run folder back.

    Raises:
        FileNotFoundError: there is no run in this folder.
        ValueError: the run was written by a newer labkit, or an earlier one that timed operations.
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
            except ValueError:
                set_aside += bool(line.strip())
                continue
            trials.append(Trial.from_row(row))
    return StoredRun(folder=folder, info=info, trials=tuple(trials), set_aside=set_aside)


def why_hopeless(info: Mapping[str, object]) -> str:
    """Return why resuming cannot complete a run, as its baseline is out; '' if it can."""
    baseline = info.get("baseline")
    for status in ("skipped", "failed"):
        if why := (info.get(status) or {}).get(baseline):
            return f"{baseline!r} is out ({status}: {why})"
    return ""


def how_to_complete(run: StoredRun) -> str:
    """Return what the user can do about a run that is incomplete."""
    if why := why_hopeless(run.info):
        return f"{why}; start a new run"
    return f"complete it with: labkit run --resume {run.folder.name}"


def list_runs(results: Path | str, experiment: str = "*") -> list[Path]:
    """List the folders of runs made here, oldest first.

    Args:
        results: folder that holds all results.
        experiment: one experiment's name, or all.
    """
    found = Path(results).glob(f"{experiment}/*/{RUN_FILE}")
    return sorted((path.parent for path in found), key=lambda folder: folder.name)


def list_shared(results: Path | str, experiment: str = "*") -> list[Path]:
    """List the folders of runs that colleagues shared; arguments and order as in `list_runs`."""
    return list_runs(Path(results) / SHARED, experiment)


def newest_runs(
    results: Path | str, weigh: Callable[[Mapping[str, object]], float | None]
) -> dict[str, StoredRun]:
    """Find the run of each experiment with the largest weight, the newest of equals.

    Runs that colleagues shared are never taken, wherever they lie.

    Args:
        results: folder that holds all results.
        weigh: returns a run's weight from its `run.json`; None leaves the run out.

    Returns:
        Experiment's name -> run.
    """
    weighed: dict[str, list[tuple[float, Path]]] = {}
    for folder in list_runs(results):  # oldest first
        try:
            info = read_info(folder)
            weight = None if info.get(SHARED) else weigh(info)
        except (ValueError, KeyError):
            continue  # not a run of this lab's
        if weight is not None:
            weighed.setdefault(folder.parent.name, []).append((weight, folder))
    best = {}
    for name, runs in weighed.items():
        for _, folder in sorted(runs, key=lambda run: run[0])[::-1]:  # of equals the newest first
            try:
                best[name] = load_run(folder)
            except ValueError:
                continue  # of a newer labkit: an older run has to do
            break
    return best


def find_run(results: Path | str, name: str) -> StoredRun:
    """Find a run by its folder, its id (or the start of it), or an experiment's newest.

    A run that a colleague shared is found by folder and id, where none of this machine's is.

    Raises:
        FileNotFoundError: nothing matches; the message lists what there is.
        ValueError: several runs match.
    """
    if (Path(name) / RUN_FILE).is_file():
        return load_run(name)
    folders = list_runs(results)
    newest = [folder for folder in folders if folder.parent.name == name]
    # One in the document's own order answers another question: its id finds it.
    corrected = [folder for folder in newest if _is_corrected(folder)]
    newest = (corrected or newest)[-1:]
    matches = newest or _called(name, folders) or _called(name, list_shared(results))
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


def _is_corrected(folder: Path) -> bool:
    try:
        return read_info(folder).get("protocol") != AS_PUBLISHED
    except ValueError:  # of a newer labkit
        return False


def _ends_with_newline(file: object) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def earlier_runs(
    results: Path | str, experiment: str, *, machine_id: str, mode: str
) -> Iterator[StoredRun]:
    """Yield a machine's finished runs, those in the same mode first, the newest first.

    Args:
        results: folder that holds all results.
        experiment: its name.
        machine_id: whose runs.
        mode: quick, document or full.
    """
    found = []
    for folder in list_runs(results, experiment):
        try:
            info = read_info(folder)
            measured_on = (info.get("provenance") or {}).get("machine_id")
            is_finished = info["status"] == "finished" and info.get("shuffled", True)
            if measured_on == machine_id and is_finished:
                found.append((info["mode"] == mode, folder.name, folder))
        except (ValueError, KeyError):
            continue  # not a run of this lab's
    for _, _, folder in sorted(found, reverse=True):
        try:
            yield load_run(folder)
        except ValueError:
            continue  # of a newer labkit
