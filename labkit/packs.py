"""Packs: makes the packed, scaled or preprocessed copy of a data set that settings ask for.

    data ─ reader ─ Converter (decode, scale, preprocess) ─ engine (joblib, Spark) ─ write

The work on an image is one function (`converter`), whoever runs it (`offline`).  Main trap: a pack
outlives what it was made from.  It keeps the hash of that data and what was done to it, and one
that says something else is made again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from labkit import machine, units
from labkit.contracts import Annotation
from labkit.converter import Converter, about
from labkit.files import locked, write_whole
from labkit.offline import ENGINES
from labkit.parts.packing import JPEG, PACKINGS, Content
from labkit.parts.packing.content import encode
from labkit.parts.packing.manifest import read_manifest
from labkit.places import is_url, place
from labkit.progress import bar
from labkit.settings import Settings, pick
from labkit.stored import is_original, open_reader, stored_folder
from labkit.tables import own_parts
from labkit.trial import Cancelled, Skip

COST = "cost.json"  # in a pack: what making it took
SPENT = "spent.json"  # in an unfinished one: what it has taken
SPENT_EVERY_S = 5
TURN_S = 0.2  # between two looks whether another process has ended
TRIED = 8  # records from which the size of a pack is estimated
SPARE_SHARE = 0.05
ROUND_BYTES = 128 << 20  # of results that may wait to be written: what bounds the memory


def ensure_pack(
    settings: Settings,
    *,
    to: Path | None = None,
    engine: str = "local",
    jobs: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
    progress: bool = False,
    shard_bytes: int | None = None,
) -> dict[str, object] | None:
    """Make the pack that settings read, unless it is there already.

    Args:
        settings: complete; data, packing, stored, input_px, decoder, preprocessor and seed count.
        to: the pack's folder; unset: beside the data, where runs look for it.
        engine: a key of `offline.ENGINES`, with its master after a colon: who does the work.
        jobs: processes; unset: as many as there are cores.
        say: takes one line for the person.
        cancel: set by another thread to stop.
        progress: show a bar.
        shard_bytes: what a file of a pack takes about; unset: as its format does by itself.

    Returns:
        What it costs: folder, images, bytes, source_bytes, pack_s (what making it took), jobs and
        engine; None where settings read the data as it is.

    Raises:
        Skip: it cannot be made here; the text says why.
        ValueError: settings that cannot work, or an image that cannot be read.
        Cancelled: `cancel` was set; what is whole of it stays, and the same call goes on.
    """
    if to is None and is_original(settings):
        return None
    pick(PACKINGS, settings.packing, "packing")
    # Absolute: other processes may run in another directory.
    where = place(settings.data)
    settings = replace(settings, data=str(where if is_url(where) else where.absolute()))
    open_reader.cache_clear()  # the data may have changed since this process opened it
    converter = Converter(settings=settings, own=own_parts())
    reader = converter.reader
    wanted, folder = about(settings, reader), to or stored_folder(settings)

    def check() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled

    with _turn(folder, say, check):
        return _make(
            converter, folder, wanted, ours=to is None, engine=engine, jobs=jobs, say=say,
            check=check, progress=progress, shard_bytes=shard_bytes,
        )  # fmt: skip


def _make(
    converter: Converter,
    folder: Path,
    wanted: dict[str, object],
    *,
    ours: bool,
    engine: str,
    jobs: int | None,
    say: Callable[[str], None],
    check: Callable[[], None],
    progress: bool,
    shard_bytes: int | None,
) -> dict[str, object]:
    """Make a pack, unless it is there; as `ensure_pack`, alone, and `check` raises to stop."""
    settings, reader = converter.settings, converter.reader
    packing = PACKINGS[settings.packing]
    if _is_there(folder, settings, wanted, len(reader), may_remove=ours, say=say):
        return read_cost(folder)
    packing.ready()
    part = folder.with_name(f".{folder.name}.part")
    mean_bytes = _check_room(folder, part, converter, len(reader))
    engine, _, master = engine.partition(":")
    start = pick(ENGINES, engine, "engine")
    jobs = jobs or (1 if (engine, settings.stored) == ("local", JPEG) else machine.cores())
    how = {"jobs": jobs, "engine": engine}
    start_s, kept_s, noted_s = time.perf_counter(), 0.0, 0.0

    def converted(done: int) -> Iterator[tuple[str, Content, Annotation]]:
        nonlocal kept_s, noted_s
        if done == len(reader):
            kept_s = _kept_s(part, done, {})
            return
        shown = bar(
            desc=f"packing {folder.name}", total=len(reader), initial=done,
            unit="image", disable=not progress,
        )  # fmt: skip
        with contextlib.closing(shown), start(jobs, master, check) as pool:
            how["jobs"] = pool.jobs
            kept_s = _kept_s(part, done, how)
            images = max(pool.jobs, min(pool.round_images, int(ROUND_BYTES / max(1, mean_bytes))))
            for first in range(done, len(reader), images):
                indices = range(len(reader))[first : first + images]
                with contextlib.closing(pool.run(converter, indices)) as results:
                    for i, sample in zip(indices, results):
                        check()
                        spent_s = time.perf_counter() - start_s
                        if kept_s is not None and spent_s - noted_s > SPENT_EVERY_S:
                            noted_s = spent_s
                            _note(part, {**how, "images": i, "pack_s": kept_s + spent_s})
                        yield sample
                        shown.update()

    def samples(done: int) -> Iterator[tuple[str, Content, Annotation]]:
        rows = converted(done)
        opened.callback(rows.close)  # an error would keep it, and what it has started, alive
        return rows

    try:
        with contextlib.ExitStack() as opened:
            more = {} if shard_bytes is None else {"shard_bytes": shard_bytes}
            size_bytes = packing.write(samples, folder, about=wanted, **more)
        took_s = time.perf_counter() - start_s
        cost = {
            "images": len(reader),
            "bytes": size_bytes,
            "source_bytes": int(reader.image_bytes.sum()),
            "pack_s": None if kept_s is None else kept_s + took_s,
            **how,
        }
        write_whole(folder / COST, json.dumps(cost))
    except OSError as error:
        beside = settings if ours else None
        raise Skip(_cannot_write(folder, error, beside, mean_bytes * len(reader))) from error
    say(f"packed {units.count_bytes(size_bytes)} as {folder.name} in {units.seconds(took_s)}")
    return {"folder": str(folder), **cost}


@contextlib.contextmanager
def _turn(folder: Path, say: Callable[[str], None], check: Callable[[], None]) -> Iterator[None]:
    """Wait until no other process packs into the same place: it may be making what is wanted."""
    with contextlib.ExitStack() as turn:
        waiting = False
        while True:
            try:
                folder.parent.mkdir(parents=True, exist_ok=True)
                turn.enter_context(locked(folder.parent))
                break
            except BlockingIOError:
                if not waiting:
                    say(f"another run is packing in {folder.parent}: waiting until it has ended")
                waiting = True
                time.sleep(TURN_S)
                check()
            except OSError:  # a place that will be complained of
                break
        yield


def _is_there(
    folder: Path, settings: Settings, wanted: dict, images: int, *, may_remove: bool, say: Callable
) -> bool:
    """Say whether a pack is there, whole and of this data; remove one that is not."""
    wrong = "of other data, or made otherwise"
    packing = PACKINGS[settings.packing]
    try:
        found = read_manifest(folder)
        if found is None:
            return False
        as_wanted = wanted.items() <= found.items() and found.get("images") == images
        if as_wanted and found.get("packing", "folder") == (packing.packed_as or settings.packing):
            packing.open(folder)
            return True
    except ValueError as error:
        wrong = f"damaged: {error}"
    if not may_remove:
        raise ValueError(
            f"to must be a new folder, got {str(folder)!r} with a pack that is {wrong}; "
            "remove it or choose another folder"
        )
    say(f"{folder} is {wrong}: it is made again")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise Skip(_cannot_write(folder, error, settings)) from error
    return False


def _note(part: Path, spent: dict[str, object]) -> None:
    if part.is_dir():  # a folder of files has no such place, and is not gone on with
        write_whole(part / SPENT, json.dumps(spent))


def _kept_s(part: Path, done: int, how: dict[str, object]) -> float | None:
    """Give the seconds that went into the records that are gone on with; None: unknown."""
    if not done:
        return 0.0
    try:
        spent = json.loads((part / SPENT).read_bytes())
        if {name: spent[name] for name in how} != how:
            return None
        return spent["pack_s"] * min(1, done / spent["images"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


def _cannot_write(
    folder: Path, error: OSError, beside: Settings | None, needed_bytes: float | None = None
) -> str:
    """Word an error; `beside` has the data that the folder lies beside, unset: anywhere."""
    got = f"{error.strerror or error} ({error.filename or folder})"
    if error.errno == errno.ENOSPC and needed_bytes:
        place = next(parent for parent in folder.absolute().parents if parent.exists())
        got += (
            f" after what it held, {units.count_bytes(shutil.disk_usage(place).free)} being free "
            f"and {units.count_bytes(needed_bytes)} needed in all"
        )
    step = "choose another folder"
    if beside is not None:
        link = shlex.join(["ln", "-s", beside.data])
        step = f"put a link to the data where packs can be made beside it, with {link} FOLDER"
    room = "free some space, or " if error.errno in (errno.ENOSPC, errno.EIO) else ""
    return f"{folder} must be a folder that can be written, got {got}; {room}{step}"


def read_cost(folder: Path) -> dict[str, object]:
    """Read what making a pack took; unknown where it came from elsewhere."""
    unknown = {"pack_s": None, "jobs": None, "engine": None, "source_bytes": None}
    try:
        known = json.loads((folder / COST).read_bytes())
    except (OSError, ValueError):
        manifest = read_manifest(folder) or {}
        known = {"images": manifest.get("images"), "bytes": manifest.get("bytes")}
    return {"folder": str(folder), **unknown, **known}


def _check_room(folder: Path, part: Path, converter: Converter, images: int) -> float:
    """Refuse before the work what would not fit after it; give the bytes of an image."""
    if not images:
        raise ValueError(f"data must hold at least one image to be packed, got none for {folder}")
    tried = np.linspace(0, images - 1, min(TRIED, images)).astype(int)
    mean_bytes = float(np.mean([len(encode(converter(int(i))[1])[0]) for i in tried]))
    if converter.settings.stored == JPEG:
        mean_bytes = float(converter.reader.image_bytes.mean())
    there_bytes = sum(file.stat().st_size for file in part.glob("*")) if part.is_dir() else 0
    needed_bytes = mean_bytes * images * (1 + SPARE_SHARE) - there_bytes
    place = next(parent for parent in folder.absolute().parents if parent.exists())
    free_bytes = shutil.disk_usage(place).free
    if needed_bytes > free_bytes:
        raise Skip(
            f"{folder.parent} must have {units.count_bytes(needed_bytes)} free for "
            f"{folder.name}, got {units.count_bytes(free_bytes)}; free some space or use less data"
        )
    return mean_bytes
