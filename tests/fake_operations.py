"""Rows that a run of operations leaves behind, made without running anything."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.results import Run

QUIET = {"duration_s": 9.0, "steal_share": 0.0, "other_cores": 0.0, "swapped_in_pages": 0}
BUSY = {**QUIET, "other_cores": 0.7}
# (operation, library) -> milliseconds at 640x480; an operation's first library is the baseline.
TIMES_MS = {
    ("decode", "pillow"): 2.0,
    ("decode", "opencv"): 1.4,
    ("resize", "pillow"): 1.1,
    ("resize", "opencv"): 0.11,
    ("normalize", "numpy"): 0.20,
    ("normalize", "torch"): 0.24,
}
SIZES = ("640x480", "1280x960")


def fake_row(operation, library, block, image_s, *, size="640x480", role="", **more) -> dict:
    width, height = map(int, size.split("x"))
    return {
        "kind": "operation", "schema": 2, "block": block, "operation": operation,
        "library": library, "role": role, "size": size, "width_px": width, "height_px": height,
        "jpeg_bytes": 118_000, "image_s": image_s, "repeats": 4, "status": "ok", "reason": "",
        "machine_id": "m", "started_utc": "2025-01-02T03:04:05Z", "disturbance": QUIET, **more,
    }  # fmt: skip


def fake_run(
    times_ms: Mapping[tuple[str, str], float] = TIMES_MS,
    *,
    sizes: Sequence[str] = SIZES,
    blocks: int = 3,
    noise: float = 0.02,
    drift: float = 0.3,
    second: float = 1.0,
    seed: int = 0,
    busy: Sequence[int] = (),
    more: Sequence[dict] = (),
    **info: object,
) -> Run:
    """A whole run; decoding by pillow is timed twice.

    Args:
        times_ms: true time at 640x480; other sizes take as much longer as they have pixels.
        sizes: of the pictures.
        blocks: how many.
        noise: standard deviation of a row's log time.
        drift: how much slower the machine is in the last block than in the first.
        second: how much longer A2 takes than A1.
        seed: of the noise.
        busy: blocks in which other programs ran; all but pillow is ten times as slow there.
        more: further rows.
        info: what run.json says otherwise.
    """
    rng, rows = random.Random(seed), []
    for block in range(blocks):
        speed = 1 + drift * block / max(1, blocks - 1)
        log = BUSY if block in busy else QUIET
        for size in sizes:
            width, height = map(int, size.split("x"))
            for (operation, library), time_ms in times_ms.items():
                twice = (operation, library) == ("decode", "pillow")
                for role in ("A1", "A2") if twice else ("",):
                    image_s = time_ms / 1000 * width * height / (640 * 480) * speed
                    image_s *= rng.lognormvariate(0, noise) * (second if role == "A2" else 1)
                    if block in busy and library != "pillow":
                        image_s *= 10
                    row = fake_row(operation, library, block, image_s, size=size, role=role)
                    rows.append({**row, "disturbance": log})
    names = ("pillow", "opencv", "simplejpeg", "torch", "numpy")
    written = {
        "schema": 2,
        "kind": "operations",
        "experiment": "operations",
        "question": "Which library does which image operation faster?",
        "mode": "quick",
        "blocks": blocks,
        "photos": 4,
        "source": "[000] OpenCV vs PIL",
        "status": "finished",
        "notes": ["pictures may be enlarged"],
        "provenance": {"versions": dict.fromkeys(names, "1.2.3")},
        **info,
    }
    return Run(folder=Path("nowhere"), info=written, trials=(), rows=(*rows, *more))
