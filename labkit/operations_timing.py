"""One block of timed operations, in a process of its own.

    photographs -> pictures of every size -> outputs compared -> rounds -> seconds per image
                                                                └ one per photograph, all
                                                                  cells in a new random order

A cell is one library's way of one operation at one size.  Main trap: a library that
leaves work undone is fast, so outputs are compared before anything is timed, and one
that differs becomes a row with its reason.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from statistics import fmean

import numpy as np

from labkit import machine, units
from labkit.clock import SystemClock
from labkit.contracts import DECODED_TOLERANCE_LEVELS, Clock
from labkit.operations import OPERATIONS, Operation, Picture, make_picture
from labkit.parts.decoding import DECODERS
from labkit.settings import Settings
from labkit.source import shuffled_images
from labkit.stored import open_source

PHOTOS = 4  # different ones, so that no library is judged by one image
# Timed twice in every block, as A1 and A2: what noise alone does.
TWICE = ("decode", "pillow")
MAX_REPEATS = 100_000  # in a row, should a call take no time at all


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How closely two libraries must agree to have done the same work."""

    at_most: float
    """Largest difference of one value."""
    share: float = 1.0
    """Share of the values that must be that close."""


# Grey levels down to rotate; values of 0..1, or of -2 to 3, after it.
AGREEMENTS: dict[str, Agreement] = {
    # JPEG leaves open how chroma is interpolated; swapped channels are far off everywhere.
    "decode": Agreement(at_most=DECODED_TOLERANCE_LEVELS, share=0.9),
    # OpenCV and torch round where Pillow's affine transform drops the fraction.
    "resize": Agreement(at_most=1),
    "resize, antialiased": Agreement(at_most=1),
    "crop": Agreement(at_most=0),
    "flip": Agreement(at_most=0),
    # As in resize; and along the frame's edge Pillow cuts where OpenCV blends with the black.
    "rotate": Agreement(at_most=1, share=0.99),
    # float32: a division against a multiplication by the reciprocal.
    "to-tensor": Agreement(at_most=1e-6),
    "normalize": Agreement(at_most=1e-5),
}


@dataclass(kw_only=True)
class Cell:
    """One library's way of one operation at one size, and its time so far."""

    row: dict[str, object]
    """Gets the result."""
    run: Callable[[object], object]
    inputs: list
    """One per picture, in the form that the library takes."""
    repeats_per_visit: int = 1
    repeats: int = 0
    total_s: float = 0.0


def compare_work(
    picture: Picture, operations: Mapping[tuple[str, str], Operation] = OPERATIONS
) -> dict[tuple[str, str], tuple[str, str]]:
    """Let every library do its work once and compare what comes out.

    Args:
        picture: what they work on.
        operations: the table; an operation's first library that works is the reference.

    Returns:
        (operation, library) -> (status, reason): "ok", "skipped" or "failed".
    """
    verdicts: dict[tuple[str, str], tuple[str, str]] = {}
    references: dict[str, tuple[str, np.ndarray]] = {}
    for (name, library), operation in operations.items():
        try:
            found = np.asarray(operation.run(operation.prepare(picture)))
            other, reference = references.get(name, (library, found))
            if apart := difference(found, reference, AGREEMENTS[name]):
                raise ValueError(f"not the same work as {other}: {apart}")
        except ImportError as error:
            verdicts[name, library] = ("skipped", str(error))
        except Exception as error:  # whatever a library raises is shown as its row
            verdicts[name, library] = ("failed", f"{type(error).__name__}: {error}")
        else:
            references.setdefault(name, (library, found))
            verdicts[name, library] = ("ok", "")
    return verdicts


def difference(found: np.ndarray, reference: np.ndarray, agreement: Agreement) -> str:
    """Say in one line how an output differs from the reference's; empty where it is the same.

    Args:
        found: an array of any shape.
        reference: what it is compared with.
        agreement: how close it must be.
    """
    if (found.shape, found.dtype) != (reference.shape, reference.dtype):
        wanted, got = (f"{array.shape} {array.dtype}" for array in (reference, found))
        return f"output must be {wanted}, got {got}"
    if not found.flags.c_contiguous:
        return "output must be contiguous, got a strided view, whose copy is left to others"
    apart = np.subtract(found, reference, dtype=np.float32)  # uint8 alone would wrap around
    np.abs(apart, out=apart)
    close = float((apart <= agreement.at_most).mean())
    if close < agreement.share:
        return (
            f"{units.percent(agreement.share)} of the values must be at most "
            f"{agreement.at_most:g} apart, got {units.percent(close)}, "
            f"the farthest {apart.max():g} apart"
        )
    return ""


def time_block(
    photos_rgb: Sequence[np.ndarray],
    sizes_px: Sequence[tuple[int, int]],
    *,
    cell_s: float,
    order_seed: str,
    clock: Clock,
    operations: Mapping[tuple[str, str], Operation] = OPERATIONS,
) -> list[dict[str, object]]:
    """Time every cell once through, interleaved.

    Args:
        photos_rgb: (H, W, 3) uint8 each.
        sizes_px: (width, height) of the pictures made of them.
        cell_s: seconds that each cell's calls should take together, at least.
        order_seed: of the order.
        clock: tells the time; a fake one in tests.
        operations: the table.

    Returns:
        A row per cell: operation, library, role, size, width_px, height_px, image_s, repeats,
        jpeg_bytes, status, reason.
    """
    cells, rows = [], []
    for width_px, height_px in sizes_px:
        pictures = [make_picture(photo, width_px, height_px) for photo in photos_rgb]
        size = {
            "size": f"{width_px}x{height_px}",
            "width_px": width_px,
            "height_px": height_px,
            "jpeg_bytes": round(fmean(len(picture.jpeg) for picture in pictures)),
        }
        for key, (status, reason) in compare_work(pictures[0], operations).items():
            inputs = [operations[key].prepare(picture) for picture in pictures]
            for role in ("A1", "A2") if key == TWICE else ("",):
                row = {"operation": key[0], "library": key[1], "role": role, **size}
                row.update(image_s=None, repeats=0, status=status, reason=reason)
                rows.append(row)
                if status == "ok":
                    cells.append(Cell(row=row, run=operations[key].run, inputs=inputs))
    _time_cells(cells, cell_s=cell_s, rng=random.Random(order_seed), clock=clock)
    for cell in cells:
        cell.row.update(image_s=cell.total_s / cell.repeats, repeats=cell.repeats)
    return rows


def time_operations(
    settings: Settings, sizes_px: Sequence[tuple[int, int]], *, cell_s: float, order_seed: str
) -> list[dict[str, object]]:
    """Time one block in this process, with one thread.

    Args:
        settings: whose data are taken, in the order of its seed.
        sizes_px: as for `time_block`.
        cell_s: likewise.
        order_seed: likewise.

    Returns:
        What `time_block` returns, and in every row disturbance: what else went on in the machine.

    Raises:
        ValueError: a photograph cannot be read; the message names the file.
    """
    import cv2
    import torch

    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    reader, photos = open_source(settings), []
    for index in shuffled_images(settings)[:PHOTOS]:
        jpeg, _ = reader.read(int(index))
        try:
            photos.append(DECODERS["opencv"](jpeg))
        except ValueError as error:
            raise ValueError(f"{reader.where(index)}: {error}") from error
    before = machine.disturbance()
    rows = time_block(photos, sizes_px, cell_s=cell_s, order_seed=order_seed, clock=SystemClock())
    disturbed = machine.since(before)
    return [{**row, "disturbance": disturbed} for row in rows]


def _time_cells(cells: Sequence[Cell], *, cell_s: float, rng: random.Random, clock: Clock) -> None:
    """Visit every cell once per picture, in a new random order each time."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # a collection would land in one cell and not in the other
    try:
        for cell in cells:
            visit_s = cell_s / len(cell.inputs)
            call_s = _time_calls(cell, cell.inputs[0], 1, clock)
            if call_s < visit_s:  # a hiccup would leave too few repeats
                call_s = min(call_s, _time_calls(cell, cell.inputs[0], 1, clock))
            wanted = math.ceil(visit_s / max(call_s, 1e-9))
            cell.repeats_per_visit = min(max(wanted, 1), MAX_REPEATS)
        for picture in range(len(cells[0].inputs) if cells else 0):
            for cell in rng.sample(cells, len(cells)):
                n = cell.repeats_per_visit
                cell.total_s += _time_calls(cell, cell.inputs[picture], n, clock)
                cell.repeats += n
    finally:
        if collecting:
            gc.enable()


def _time_calls(cell: Cell, picture: object, n: int, clock: Clock) -> float:
    run = cell.run
    start_s = clock.now()
    for _ in repeat(None, n):
        run(picture)
    return clock.now() - start_s
