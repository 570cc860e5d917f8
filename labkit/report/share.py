"""Write a run as one file for a colleague, and open such a file as a run.

    run folder ─ pack() ─▶ FILE.labkit.zip: run.json without its block `local`, and trials.jsonl
    FILE.labkit.zip ─ open_shared() ─▶ results/shared/<experiment>/<run id>/

Only fields that are listed here leave the machine, and only they are accepted. A file is data:
two JSON texts of limited size are read in memory, and tables and charts are drawn from them.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
import types
import typing
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

from labkit.contracts import SCHEMA as ROW_SCHEMA
from labkit.contracts import Trial, utc_now
from labkit.files import write_whole
from labkit.machine import hardware
from labkit.report import report_words, table
from labkit.runs import local
from labkit.runs.experiment import Dial
from labkit.runs.store import (
    RESERVED,
    RUN_FILE,
    SHARED,
    TRIALS_FILE,
    StoredRun,
    check_version,
    explain_unwritable,
    is_under_way,
    load_run,
    write_info,
)

SUFFIX = ".labkit.zip"
MEMBERS = (RUN_FILE, TRIALS_FILE)
# A full run of all media takes some MB.
MAX_FILE_BYTES, MAX_MEMBER_BYTES, MAX_LINE_BYTES = 20_000_000, 100_000_000, 16_000_000
MAX_ROWS, MAX_LABELS, MAX_LABEL, MAX_TEXT = 20_000, 200, 100, 2_000
MAX_NUMBER = 1e18
# A terminal obeys these, or writes from right to left.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# What becomes a folder's name.
EXPERIMENT = re.compile(r"[a-z0-9_]{1,80}")
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")

Plain = str | int | float | bool | None
Facts = dict[str, object]
NEEDED = {
    "schema": int, "run": str, "experiment": str, "question": str, "mode": str, "status": str,
    "created_utc": str, "provenance": Facts,
}  # fmt: skip
INFO: dict[str, object] = {
    **NEEDED,
    **dict.fromkeys(("kind", "source", "protocol", "accelerator", "baseline"), str),
    **{"blocks": int, "order_seed": int, "shuffled": bool, "epoch_chart": bool},
    **{"notes": list[str], "excluded": list[int], "twice": list[str]},
    **{"published": dict[str, float], "skipped": dict[str, str], "failed": dict[str, str]},
    **dict.fromkeys(("variants", "reads", "costs", "tasks"), dict[str, dict[str, Plain]]),
    **dict.fromkeys(("groups", "baselines"), dict[str, str]),
    **{"data": dict[str, Plain], "storages": dict[str, Facts], "dial": Dial | None},
    **dict.fromkeys(("request", "calibration", "timing", "forecast"), Facts),
}
TRIAL_ROW: dict[str, object] = typing.get_type_hints(Trial)


def pack(run: StoredRun, file: Path | str | None = None) -> Path:
    """Write a run as one file for a colleague, without names, hosts and paths of this machine.

    Args:
        run: finished, cancelled or failed.
        file: a name, or a folder that takes it; unset: the run's own folder.

    Returns:
        The file.

    Raises:
        RuntimeError: the run is under way.
        ValueError: a variant is labelled with a folder, or the run cannot be shared.
        OSError: the file cannot be written.
    """
    if is_under_way(run.folder):
        raise RuntimeError(
            f"run must have ended before it is packed, got one under way in {run.folder}; "
            "wait for it or cancel it"
        )
    info, rows = _shared_parts(run)
    _check(info, rows)
    path = run.folder if file is None else Path(file)
    if path.is_dir():
        path /= f"{info['experiment']}-{info['run']}{SUFFIX}"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr(RUN_FILE, json.dumps(info, indent=1, ensure_ascii=False) + "\n")
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        target.writestr(TRIALS_FILE, "".join(lines))
    return write_whole(path, buffer.getvalue())


def open_shared(file: Path | str, results: Path | str = "results") -> StoredRun:
    """Open a colleague's file: check it, and put the run beside this machine's own.

    Args:
        file: from `pack`.
        results: folder that holds all results.

    Returns:
        The run; of a file that was opened before, the one that is there.
        `run.info["shared"]` holds opened_utc and from, the machine.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not what `pack` writes, or is of a newer labkit; nothing is kept of it.
        OSError: results cannot be written.
    """
    members = _read(Path(file))
    info = _parse(members[RUN_FILE])
    rows = [_parse(line) for line in members[TRIALS_FILE].splitlines()]
    try:
        _check(info, rows)
    except RecursionError:
        raise _refused("one of JSON texts", "one that is nested too deeply") from None
    digest = hashlib.sha256(members[RUN_FILE] + members[TRIALS_FILE]).hexdigest()
    shared, name = Path(results) / SHARED, str(info["experiment"])
    final = shared / name / f"{info['run']}-{digest[:6]}"
    if final.exists():
        return load_run(final)
    info[SHARED] = {"opened_utc": utc_now(), "from": hardware.describe(info["provenance"])}
    with explain_unwritable(results):
        shared.mkdir(parents=True, exist_ok=True)
        # Two folders deeper than runs are looked for: a half-made one is never listed.
        with tempfile.TemporaryDirectory(prefix=".part-", dir=shared) as place:
            folder = Path(place, name, final.name)
            folder.mkdir(parents=True)
            write_info(folder, info)
            (folder / TRIALS_FILE).write_bytes(members[TRIALS_FILE])
            _try_to_show(folder)
            final.parent.mkdir(exist_ok=True)
            folder.rename(final)
    return load_run(final)


def _shared_parts(run: StoredRun) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Take the known fields of a run's facts and rows, without what is local."""
    _check_labels(run.info)
    info = {name: value for name, value in local.split(run.info).items() if name in INFO}
    if info["status"] == "running":  # its process was killed
        info["status"] = "cancelled"
    info["run"] = str(run.info.get("run", run.folder.name))
    if not RUN_ID.fullmatch(info["run"]):  # renamed
        digits = re.sub(r"[-:]", "", str(run.info["created_utc"]))
        info["run"] = f"{digits}-{hashlib.sha256(digits.encode()).hexdigest()[:4]}"
    manifest = str((run.info.get("data") or {}).get("manifest_hash") or "unknown")
    path, rows = run.folder / TRIALS_FILE, []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            row = local.shared_row(json.loads(line), manifest)
        except ValueError:
            continue  # half written
        rows.append({name: value for name, value in row.items() if name in TRIAL_ROW})
    return info, rows


def _check_labels(info: Mapping[str, object]) -> None:
    for label, settings in (info.get("variants") or {}).items():
        if any(str(settings[name]) in label for name in local.places_in(settings)):
            raise ValueError(
                f"variants must not be labelled with a folder to be shared, got {label!r}; "
                "give each a label of its own and run again"
            )


def _read(path: Path) -> dict[str, bytes]:
    """Read the two members of a zip, and no more than allowed."""
    if not path.is_file():
        raise FileNotFoundError(
            f"file must be a share file, got {path}, which is not there; "
            "make one with: labkit pack RUN"
        )
    if path.stat().st_size > MAX_FILE_BYTES:
        raise _refused(f"of at most {MAX_FILE_BYTES:,} bytes", f"{path.stat().st_size:,}")
    members = {}
    try:
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
            names = [entry.filename for entry in entries]
            if sorted(names) != sorted(MEMBERS):
                said = ", ".join(map(repr, names[:5]))
                raise _refused(f"one that holds {' and '.join(MEMBERS)}", said or "an empty one")
            for entry in entries:
                # Of other methods one small block may become gigabytes at once.
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise _refused("a plain zip", f"{entry.filename} packed otherwise")
                with file.open(entry) as member:  # what an entry says of its size may be a lie
                    members[entry.filename] = member.read(MAX_MEMBER_BYTES + 1)
                if len(members[entry.filename]) > MAX_MEMBER_BYTES:
                    raise _refused(f"of at most {MAX_MEMBER_BYTES:,} bytes unpacked", "more")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _refused("a zip that can be read", str(error)) from None
    return members


def _parse(data: bytes) -> dict[str, object]:
    if len(data) > MAX_LINE_BYTES:
        raise _refused(f"one of rows of at most {MAX_LINE_BYTES:,} bytes", f"{len(data):,}")
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _refused("one of JSON texts", f"{data[:40]!r}") from None
    if not isinstance(value, dict):
        raise _refused("one of JSON objects", f"{data[:40]!r}")
    return value


def _check(info: Mapping[str, object], rows: list[dict[str, object]]) -> None:
    """Refuse what no run of this labkit holds.

    Raises:
        ValueError: the message says what.
    """
    check_version(info, RUN_FILE)
    for row in rows:
        if not isinstance(schema := row.get("schema", 0), int) or schema > ROW_SCHEMA:
            raise ValueError(
                f"schema must be at most {ROW_SCHEMA}, got {schema!r} in {TRIALS_FILE}; "
                "update labkit to open this file"
            )
    _check_fields(RUN_FILE, info, INFO, needed=NEEDED)
    if not EXPERIMENT.fullmatch(info["experiment"]) or info["experiment"] in RESERVED:
        raise _refused("one with a plain name as its experiment", repr(info["experiment"]))
    if not RUN_ID.fullmatch(info["run"]):
        raise _refused("one with a plain name as its run", repr(info["run"]))
    if len(rows) > MAX_ROWS:
        raise _refused(f"one of at most {MAX_ROWS:,} rows", f"{len(rows):,}")
    labels = set(info.get("variants") or ())
    for row in rows:
        _check_fields(TRIALS_FILE, row, TRIAL_ROW, needed=("variant", "epochs"))
        labels.add(row["variant"])
    if len(labels) > MAX_LABELS or any(len(label) > MAX_LABEL for label in labels):
        raise _refused(
            f"one of at most {MAX_LABELS} labels of at most {MAX_LABEL} letters",
            f"{len(labels)}, the longest of {len(max(labels, key=len))}",
        )


def _check_fields(
    place: str,
    values: Mapping[str, object],
    known: Mapping[str, object],
    *,
    needed: Iterable[str],
) -> None:
    for name in needed:
        if name not in values:
            raise _refused(f"one that has {name} in {place}", "one without")
    for name, value in values.items():
        if name not in known:
            raise _refused(f"one of known fields in {place}", f"{name!r:.80}")
        if not _fits(value, known[name]):
            raise _refused(f"one whose {name} in {place} is as labkit writes it", f"{value!r:.80}")


def _fits(value: object, hint: object) -> bool:
    """Return whether a value from JSON is of a type, and every text and number in it plain."""
    if hint in (int, float):
        is_number = isinstance(value, int if hint is int else (int, float))
        return is_number and not isinstance(value, bool) and abs(value) < MAX_NUMBER
    if hint is str:
        return isinstance(value, str) and len(value) <= MAX_TEXT and not CONTROL.search(value)
    if hint is object:
        return any(_fits(value, kind) for kind in (Plain, list[object], dict[str, object]))
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is typing.Literal:
        return isinstance(value, str) and value in inner
    if origin in (list, tuple):
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(name, str) and _fits(below, inner[1]) for name, below in value.items()
        )
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        needed = {field.name for field in fields(hint) if field.default is MISSING}
        return (
            isinstance(value, dict)
            and needed <= set(value) <= set(hints)
            and all(_fits(below, hints[name]) for name, below in value.items())
        )
    return isinstance(value, hint)


def _try_to_show(folder: Path) -> None:
    """Refuse a run whose numbers make no table, however well-formed it is."""
    try:
        run = load_run(folder)
        table.text(run.summary)
        report_words.setup(run.info)
        report_words.hardware(run.info)
    except Exception as error:  # a stranger's rows can be wrong in any way
        raise _refused("one whose run can be shown", f"{error!r:.200}") from None


def _refused(rule: str, got: str) -> ValueError:
    return ValueError(f"share file must be {rule}, got {got}; ask for it again")
