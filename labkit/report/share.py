"""Write a run as one file for a colleague, and open such a file as a run.

    run folder ─ write() ─▶ FILE.labkit.zip: run.json without its block `local`, and trials.jsonl
    FILE.labkit.zip ─ open_shared() ─▶ results/shared/<experiment>/<run id>/

A file is data from a stranger: two JSON texts of limited size, checked before anything is written.
Tables and charts are drawn from them again.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.files import write_whole
from labkit.machine import hardware
from labkit.records import SCHEMA as ROW_SCHEMA
from labkit.records import RunInfo, Trial
from labkit.report.report import facts
from labkit.report.thresholds import MAX_FILE_BYTES, MAX_MEMBER_BYTES
from labkit.runs.store import (
    RESERVED,
    RUN_FILE,
    SHARED,
    TRIALS_FILE,
    Facts,
    StoredRun,
    check_version,
    explain_unwritable,
    fits,
    from_json,
    is_in_progress,
    load_run,
    shareable,
    write_info,
)


def write(run: StoredRun, file: Path | str | None = None) -> Path:
    """Write a run as one file for a colleague, without names, hosts and paths of this machine.

    Args:
        run: finished, cancelled or failed.
        file: a name, or a folder that takes it; unset: the run's own folder.

    Returns:
        The file.

    Raises:
        RuntimeError: the run is in progress.
        ValueError: a variant is labelled with a folder, or the run exceeds the limits of a file.
        OSError: the file cannot be written.
    """
    if is_in_progress(run.folder):
        raise RuntimeError(
            f"run must have ended before it is shared, got one in progress in {run.folder}; "
            "wait for it or cancel it"
        )
    info = replace(
        run.info,
        # A process that was killed left "running" behind.
        status=run.info.status.replace("running", "cancelled"),
        run=run.info.run or re.sub(r"[^\w-]", "-", run.folder.name, flags=re.ASCII)[:80],
    )
    stored, rows = shareable(info, run.trials)
    members = {
        RUN_FILE: json.dumps(stored, indent=1, ensure_ascii=False).encode(),
        TRIALS_FILE: "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(),
    }
    _parse(members)
    path = run.folder if file is None else Path(file)
    if path.is_dir():
        path /= f"{info.experiment}-{info.run}.labkit.zip"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return write_whole(path, buffer.getvalue())


def open_shared(file: Path | str, results: Path | str) -> StoredRun:
    """Open a colleague's file: check it, and put the run beside this machine's own.

    Args:
        file: from `write`.
        results: folder that holds all results.

    Returns:
        The run; of a file that was opened before, the one that is there.
        `run.info.shared_from` names the machine.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not what `write` writes, or is of a newer labkit; nothing is kept of it.
        OSError: results cannot be written.
    """
    members = _read(Path(file))
    info, rows = _parse(members)
    digest = hashlib.sha256(members[RUN_FILE] + members[TRIALS_FILE]).hexdigest()
    folder = Path(results) / SHARED / info.experiment / f"{info.run}-{digest[:6]}"
    if (folder / RUN_FILE).exists():
        return load_run(folder)
    try:
        info = replace(info, shared_from=hardware.describe(info.provenance))
        run = StoredRun(folder=folder, info=info, trials=tuple(map(info.trial_type.from_row, rows)))
        facts(run)  # all that users see of it
    except Exception as error:  # a stranger's numbers can be wrong in any way
        raise _refused("hold a run that can be shown", f"{error!r:.200}") from None
    with explain_unwritable(results):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TRIALS_FILE).write_bytes(members[TRIALS_FILE])
        write_info(folder, info)  # last: a folder with this file is a run
    return load_run(folder)


def _read(path: Path) -> dict[str, bytes]:
    """Read the two members of a zip, and no more than allowed."""
    if not path.is_file():
        raise FileNotFoundError(
            f"file must be a share file, got {path}, where no file is; "
            "make one with: labkit share RUN"
        )
    if (size_bytes := path.stat().st_size) > MAX_FILE_BYTES:
        raise _refused(f"have at most {MAX_FILE_BYTES:,} bytes", f"{size_bytes:,}")
    members = {}
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
            if sorted(names) != [RUN_FILE, TRIALS_FILE]:
                raise _refused(f"hold {RUN_FILE} and {TRIALS_FILE}", f"{names[:5]}")
            for entry in file.infolist():
                # With other methods one small block can expand to gigabytes in a single read.
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise _refused("be a plain zip", f"another compression of {entry.filename}")
                with file.open(entry) as member:  # the size that an entry states may be false
                    content = members[entry.filename] = member.read(MAX_MEMBER_BYTES + 1)
                if len(content) > MAX_MEMBER_BYTES:
                    raise _refused(f"have at most {MAX_MEMBER_BYTES:,} bytes unpacked", "more")
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, UnicodeError) as error:
        raise _refused("be a zip that can be read", f"{error!s:.200}") from None
    return members


def _parse(members: dict[str, bytes]) -> tuple[RunInfo, list[Facts]]:
    """Return the run and the rows of a share file.

    Raises:
        ValueError: they are not what a run of this labkit holds.
    """
    try:
        stored = json.loads(members[RUN_FILE])
        rows = [json.loads(line) for line in members[TRIALS_FILE].splitlines()]
        # A full run of all media has some 2,000 rows.
        is_plain = len(rows) <= 5_000 and all(
            isinstance(each, dict) and _is_small(_without_losses(each)) for each in (stored, *rows)
        )
    except (ValueError, RecursionError):
        raise _refused("hold JSON texts", "others, or one nested too deeply") from None
    if isinstance(stored, dict):
        check_version(stored, RUN_FILE)
    if not is_plain:
        raise _refused("hold plain JSON objects within the limits of size", "others")
    try:
        info = from_json(stored)
    except ValueError as fact:
        name = str(fact)
        raise _refused(f"hold {name} as labkit writes it", f"{stored.get(name)!r:.80}") from None
    for name in (info.experiment, info.run or ""):
        if not re.fullmatch(r"[\w-]{1,80}", name, re.ASCII) or name in RESERVED:
            raise _refused("name its experiment and run in letters, digits, - and _", repr(name))
    for row in rows:
        if isinstance(schema := row.get("schema"), int) and schema > ROW_SCHEMA:
            raise ValueError(
                f"schema must be at most {ROW_SCHEMA}, got {schema!r} in {TRIALS_FILE}; "
                "update labkit to open this file"
            )
        # Earlier versions wrote epochs for operations, too.
        is_row = fits(row, info.trial_type) or fits(row, Trial)
        if not is_row or row["variant"] not in info.variants:
            raise _refused("hold rows as labkit writes them", f"{row!r:.80}")
    return info, rows


def _without_losses(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out the losses: those of a training that diverges are NaN, infinite or very large."""
    losses = {name for name in ("loss", "first_loss") if isinstance(row.get(name), float)}
    return {name: value for name, value in row.items() if name not in losses}


def _is_small(value: Any) -> bool:
    """Return whether a value from JSON is within the limits of size."""
    if isinstance(value, str):
        # These control a terminal, reverse the direction of writing, or are no UTF-8.
        control = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
        return len(value) <= 2_000 and not re.search(control, value)
    if isinstance(value, list):
        return len(value) <= 20_000 and all(map(_is_small, value))
    if isinstance(value, dict):
        names = all(len(name) <= 100 and _is_small(name) for name in value)
        # A roofline of all variants of an experiment has some 200 variants.
        return len(value) <= 2_000 and names and all(map(_is_small, value.values()))
    return value is None or abs(value) < 1e18


def _refused(rule: str, got: str) -> ValueError:
    return ValueError(f"share file must {rule}, got {got}; ask for it again")
