"""Share: a run as one file, without whose machine it was; and such a file as a run here.

    run folder ─ clean ─ draw anew ─ search ─▶ FILE.labkit.zip          pack(run)
    FILE.labkit.zip ─ check ─▶ results/shared/<experiment>/<run id>/    open_shared(file)

Opened, a run stands beside this machine's own and is never taken for one of them: it lies one
folder deeper, where nothing looks for measurements, and its `run.json` has an entry "shared".
Nothing in a file is run: two JSON files are read, and tables and charts are drawn anew from them.
Main trap: what a person would not send hides in free text, in labels and in metadata of pictures,
so what was made is searched once more, and rather refused than sent.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from importlib import metadata
from pathlib import Path

from labkit import machine, media, notebook, units
from labkit.files import write_whole
from labkit.operations_run import NAME as OPERATIONS
from labkit.operations_summary import SCHEMA as OPERATIONS_SCHEMA
from labkit.results import (
    RESERVED,
    RUN_FILE,
    SHARED,
    TRIALS_FILE,
    Run,
    append_rows,
    explain_unwritable,
    hold,
    load_run,
    read_info,
    write_info,
)
from labkit.settings import MODES, PROTOCOLS, field_kinds
from labkit.sharing import file_texts, privacy, record
from labkit.sharing.privacy import Cleaner
from labkit.sharing.share_file import (
    EXPERIMENT,
    NAMES,
    RUN_ID,
    SUFFIX,
    parse,
    read,
    refused,
    to_bytes,
)
from labkit.trial import SCHEMA, Epoch, Trial, utc_now

INFO_SCHEMA = 1  # of run.json


def pack(run: Run, file: Path | str | None = None, *, keep: Collection[str] = ()) -> Path:
    """Write a run as one file for a colleague, without names, hosts and absolute paths.

    Args:
        run: finished, cancelled or failed.
        file: a name, or a folder that takes it; unset: the run's own folder.
        keep: the account's or the machine's names that may stay, because they are common words.

    Returns:
        The file.

    Raises:
        RuntimeError: the run is under way.
        ValueError: something private would be left; the message says where.
        OSError: the file cannot be written.
    """
    cleaner = _cleaner(run, keep)
    info = cleaner.clean(_plain(_ended(run)))
    rows = [cleaner.clean(_plain(row)) for row in _parsed(_lines(run.folder / TRIALS_FILE))]
    if not EXPERIMENT.fullmatch(info["experiment"]) or info["experiment"] in RESERVED:
        raise ValueError(
            "experiment must be lower-case letters, digits and _, and none of "
            f"{', '.join(RESERVED)}, got {info['experiment']!r}; rename it in the run's run.json"
        )
    record.check_labels(info, rows)
    info, rows = record.tame(info), record.tame(rows)  # a path is known by its whole length only
    about = {
        "labkit": metadata.version("labkit"),
        "experiment": info["experiment"],
        "run": _run_id(run, rows),
    }
    with tempfile.TemporaryDirectory(prefix="labkit-pack-") as place:
        folder = Path(place, about["experiment"], about["run"])
        _lay_out(folder, info, rows)
        there = {path.name: path.read_bytes() for path in folder.iterdir()}
    members = {name: there[name] for name in NAMES if name in there}
    _search(cleaner, {"share.json": json.dumps(about).encode(), **members})
    path = run.folder if file is None else Path(file)
    if path.is_dir():
        path /= f"{about['experiment']}-{about['run']}{SUFFIX}"
    _write(path, to_bytes(members, about))
    return path


def open_shared(file: Path | str, results: Path | str = "results") -> Run:
    """Open a colleague's file: check it, and lay the run beside this machine's own.

    Args:
        file: from `pack`.
        results: folder that holds all results.

    Returns:
        The run; of a file that was opened before, the one that is there.
        `run.info["shared"]` says since when (opened_utc) and what machine it is from.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not what `pack` makes, or is of a newer labkit; nothing is kept of it.
        OSError: results cannot be written.
    """
    manifest, contents = read(Path(file))
    info, rows = _checked(manifest, contents)
    digest = hashlib.sha256(contents[RUN_FILE] + contents[TRIALS_FILE]).hexdigest()
    shared, name = Path(results) / SHARED, info["experiment"]
    for final in _candidates(shared / name, str(manifest["run"])):
        if not final.exists():
            break
        if (final / RUN_FILE).is_file() and _digest_of(final) == digest:
            return load_run(final)
    from_machine = machine.describe(info["provenance"])
    info[SHARED] = {"opened_utc": utc_now(), "from": from_machine, "sha256": digest}
    with explain_unwritable(results):
        shared.mkdir(parents=True, exist_ok=True)
        # Two folders deeper than runs are looked for: a half-made one is never listed.
        with tempfile.TemporaryDirectory(prefix=".part-", dir=shared) as place:
            folder = Path(place, name, final.name)
            try:
                _lay_out(folder, info, rows)
            except OSError:
                raise
            except Exception as error:  # a stranger's rows can be wrong in any way
                raise _unshown(error) from None
            try:
                record.show(load_run(folder))
            except Exception as error:
                raise _unshown(error) from None
            final.parent.mkdir(exist_ok=True)
            folder.rename(final)
    return load_run(final)


def _cleaner(run: Run, keep: Collection[str]) -> Cleaner:
    data = {str(settings.get("data") or "") for settings in _variants(run.info)}
    data.add(str((run.info.get("data") or {}).get("folder") or ""))
    data.discard("")
    folders = [*data, run.folder, *run.folder.absolute().parents[:2], *media.media().values()]
    texts = (
        (run.folder / name).read_text(encoding="utf-8", errors="replace")
        for name in (RUN_FILE, TRIALS_FILE)
        if (run.folder / name).exists()
    )
    # Somebody else may have made the run, or the same person under another account.
    others = {name for text in texts for name in privacy.accounts_in(text)}
    private = privacy.of_this_machine(folders, names=sorted(others))
    return Cleaner(private, data=data, keep={*keep, *_own_words(run.info)})


def _own_words(info: Mapping[str, object]) -> set[str]:
    """List the lab's words that rows are made of: with another one they could not be read."""
    kinds = field_kinds()
    texts = [*kinds, *MODES, *PROTOCOLS, *info, *(info.get("provenance") or {})]
    texts += [str(choice) for _, choices, _ in kinds.values() for choice in choices or ()]
    texts += [field.name for kind in (Trial, Epoch) for field in fields(kind)]
    texts += ["ok", "skipped", "failed", "cancelled", "finished", "running", OPERATIONS]
    return {word.lower() for text in texts for word in re.split(r"[^A-Za-z0-9]+", text) if word}


def _variants(info: Mapping[str, object]) -> list[Mapping[str, object]]:
    return list((info.get("variants") or {}).values())


def _ended(run: Run) -> dict[str, object]:
    """Give what `run.json` says of a run that is over."""
    info = {name: value for name, value in run.info.items() if name != SHARED}
    if info["status"] == "running":
        try:
            with hold(run.folder):
                pass  # its process was killed
        except RuntimeError:
            raise RuntimeError(
                f"run must have ended before it is packed, got one under way in {run.folder}; "
                "wait for it or cancel it"
            ) from None
        info |= {"status": "cancelled", "reason": "its process ended before it was finished"}
    if run.set_aside:
        lost = units.count(run.set_aside, "half-written line")
        info["notes"] = [
            *info.get("notes", []),
            f"{lost} of the rows left out when this run was packed",
        ]
    return info


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _parsed(lines: Iterable[bytes]) -> Iterator[dict[str, object]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue  # half written


def _plain(value: object) -> object:
    return privacy.walk(value, lambda text: record.CONTROL.sub("", text))


def _run_id(run: Run, rows: list[dict[str, object]]) -> str:
    """Give the run's own name, also where a person renamed its folder."""
    for name in (run.folder.name, *(str(row.get("run")) for row in rows)):
        if RUN_ID.fullmatch(name):
            return name
    stamp = re.sub(r"[-:]", "", str(run.info.get("created_utc")))
    name = f"{stamp}-{hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:4]}"
    return name if RUN_ID.fullmatch(name) else f"19700101T000000Z-{name[-4:]}"


def _lay_out(folder: Path, info: dict[str, object], rows: list[dict[str, object]]) -> None:
    """Write a run folder, and draw from its rows all that a run is saved with."""
    folder.mkdir(parents=True)
    write_info(folder, info)
    append_rows(folder, rows)
    run = load_run(folder)
    notebook.save(run)
    (folder / "table.md").write_text(notebook.markdown(run), encoding="utf-8")


def _search(cleaner: Cleaner, members: Mapping[str, bytes]) -> None:
    """Refuse what still says whose machine it was: cleaning may have missed something."""
    for name, data in members.items():
        written, drawn = file_texts.texts(name, data)
        found = [word for text in written for word in cleaner.find(text)]
        found += [word for text in drawn for word in cleaner.find_known(text)]
        if found:
            raise ValueError(
                f"share file must hold nothing private, got {found[0]!r} in {name}; if that is a "
                f"common word and no name, leave it in with --keep {found[0]}"
            )


def _write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise OSError(
            f"file must be in a folder that can be written, got {path} ({error.strerror}); "
            "choose another with --out"
        ) from error


def _checked(
    manifest: Mapping[str, object], contents: Mapping[str, bytes]
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Take the run out of a file's members, as far as it is one."""
    info = parse(RUN_FILE, contents[RUN_FILE])
    rows = [parse(TRIALS_FILE, line) for line in contents[TRIALS_FILE].splitlines()]
    # These become folders here.
    record.check_name(manifest.get("experiment"))
    if not RUN_ID.fullmatch(str(manifest.get("run"))):
        raise refused("one with a plain name as its run", repr(manifest.get("run")))
    if info.get("experiment") != manifest["experiment"]:
        raise refused("one that names its experiment", repr(info.get("experiment")))
    if not isinstance(info.get("provenance"), dict):
        raise refused("one that says what machine it is from", "none")
    is_operations = info.get("kind") == OPERATIONS
    known = {
        RUN_FILE: OPERATIONS_SCHEMA if is_operations else INFO_SCHEMA,
        TRIALS_FILE: OPERATIONS_SCHEMA if is_operations else SCHEMA,
    }
    for name, values in ((RUN_FILE, [info]), (TRIALS_FILE, rows)):
        for value in values:
            schema = value.get("schema", 0)
            if not isinstance(schema, int) or schema > known[name]:
                raise ValueError(
                    f"schema must be at most {known[name]} in {name}, got {schema!r}; "
                    "update labkit to open this file"
                )
    record.check_types(info, rows)
    record.check_labels(info, rows)
    return record.tame(info), record.tame(rows)


def _unshown(error: Exception) -> ValueError:
    return refused("one whose run can be shown", f"one that cannot: {error!r:.200}")


def _digest_of(folder: Path) -> object:
    return (read_info(folder).get(SHARED) or {}).get("sha256")


def _candidates(parent: Path, run_id: str) -> Iterator[Path]:
    yield parent / run_id
    number = 2
    while True:  # another run that happens to be called the same
        yield parent / f"{run_id}-{number}"
        number += 1
