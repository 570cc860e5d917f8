"""Find the images that cannot be read or decoded, before anything is timed.

They are listed once, and left out for all variants or refused (`on_bad_image`).  Which images of a
data set with a manifest are unreadable is kept (`kept_checks`): the others are compared with the
manifest then, and not decoded again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from labkit import contracts, jpeg, pipeline, units
from labkit.analysis.notes import LISTED_IMAGES
from labkit.analysis.thresholds import DECODED_TOLERANCE_LEVELS
from labkit.machine import hardware
from labkit.machine.clock import utc_now
from labkit.parts import decoding, packing
from labkit.records import UNKNOWN, RunInfo
from labkit.resolve import find_part, open_data, original
from labkit.runs.active_run import ActiveRun
from labkit.runs.failure_reasons import one_line
from labkit.runs.kept_checks import KeptCheck, find_kept, hash_sources, keep
from labkit.runs.launcher import TrialFailed
from labkit.runs.thresholds import FIRST_LOOK_IMAGES
from labkit.settings import Settings


def check_images(run: ActiveRun, stop: int | None = None) -> None:
    """Find unreadable images among those that the run takes, and leave them out or stop.

    Args:
        run: the active run, whose info takes them.
        stop: look at images up to this one, in the run's order, that were not looked at before;
            None: the first ones.

    Raises:
        ValueError: an image cannot be read and `on_bad_image` is stop, or the data changed.
    """
    start, run.images_looked_at = run.images_looked_at, stop or FIRST_LOOK_IMAGES
    excluded, unreadable = (run.info.excluded, run.info.unreadable) if start else ((), ())
    settings = original(run.baseline)  # opened once for all such jobs
    decoders = sorted({chosen.decoder for chosen in run.remaining.values()})
    which = {"start": start, "stop": run.images_looked_at, "decoders": decoders}
    results, depends_on = run.folder.parents[1], _dependencies(run.info, settings) | which
    has_manifest = run.info.data.data_hash != UNKNOWN  # else an image may be another one now
    kept = find_kept(results, depends_on) if has_manifest else None
    run.progress.say(
        "comparing images, which were decoded before, with the manifest"
        if kept
        else f"reading images, and decoding each with {', '.join(decoders)}"
    )
    suspects = kept.result if kept else None
    try:
        bad, changed = run.ask("find_bad_images", settings=settings, suspects=suspects, **which)
    except TrialFailed as failure:
        raise ValueError(str(failure)) from failure
    if changed:
        raise ValueError(
            f"data must be what its manifest says, got {len(changed)} changed files "
            f"({'; '.join(changed[:3])}); make the data again, or remove "
            "manifest.json to take it as it is"
        )
    if has_manifest and not kept:
        indices = [index for index, _ in bad]
        keep(results, KeptCheck(depends_on=depends_on, result=indices, checked_utc=utc_now()))
    run.save(
        excluded=(*excluded, *(index for index, _ in bad)),
        unreadable=(*unreadable, *(line for _, line in bad)),
    )
    if not bad:
        return
    lines = "; ".join(line for _, line in bad[:LISTED_IMAGES])
    if settings.on_bad_image == "stop":
        raise ValueError(
            f"images must all be readable, got {len(bad)} that are not ({lines}); "
            "replace them, or leave them out for all variants with on_bad_image=skip"
        )
    count = units.count(len(bad), "unreadable image")
    run.progress.say(f"{count} left out for all variants: {lines}")


def _dependencies(info: RunInfo, settings: Settings) -> dict[str, object]:
    """Return the facts on which it depends whether an image can be read."""
    return {
        "check": "images",
        "data": info.data.data_hash,
        "subset": settings.subset,
        "seed": settings.seed,
        "machine_id": info.provenance.machine_id,
        "python": info.provenance.python,
        "versions": dict(info.provenance.versions),
        "sources": hash_sources(contracts, decoding, jpeg, packing, pipeline),
    }


def find_bad_images(
    settings: Settings,
    start: int,
    stop: int,
    decoders: list[str],
    suspects: list[int] | None = None,
) -> tuple[list[tuple[int, str]], list[str]]:
    """Find images that cannot be read, or that a decoder refuses, and files that changed.

    Each image is read once and decoded once with each decoder, on all cores. One that a decoder
    turns, as EXIF asks, is bad too: the others do not, and boxes are in the pixels as stored.

    Args:
        settings: complete; the data as it lies is looked at, in the order of subset and seed.
        start: first image to look at, counted in the order of the seed.
        stop: the image after the last.
        decoders: names of the decoders that the variants use.
        suspects: the images to decode; the others were once, so that they need only be what the
            manifest says.  Unset: all.

    Returns:
        (index, one line naming the file and what is wrong with it) of each bad image; and a line
        for each other file that is no longer what the data's manifest says.
    """
    reader = open_data(settings)
    shuffled = pipeline.shuffled_images(settings, len(reader))
    indices = [int(index) for index in shuffled[start:stop]]
    # The others say so in their rows.
    usable = sorted(set(decoders) - decoding.unusable_decoders(decoders).keys())

    def fault(index: int) -> str:
        try:
            content, _ = reader.read(index)
        except OSError as error:
            link = ", a broken link" if Path(reader.where(index)).is_symlink() else ""
            return f"{reader.where(index)}{link}: {error.strerror or error}"
        except ValueError as error:  # names the file itself
            return str(error)
        if not isinstance(content, bytes):  # stored as pixels, or finished
            return "" if len(content) else f"{reader.where(index)}: unreadable when it was packed"
        try:
            jpeg.read_size_px(content)
            orientation = decoding.read_orientation(content)
            for name in usable:
                image_rgb = decoding.DECODERS[name](content)
                contracts.check_image(image_rgb)
                if orientation != 1 and _is_turned(image_rgb, content, name):
                    raise ValueError(
                        f"image must be decoded as it is stored, got it turned by {name}, as its "
                        f"EXIF orientation {orientation} asks; choose another decoder"
                    )
        except Exception as error:  # of a library, or of a decoder of the user's own
            line = str(error) if isinstance(error, ValueError) else one_line(error)
            return f"{reader.where(index)}: {line}"
        return ""

    decoded = indices if suspects is None else sorted({*indices} & {*suspects})
    with ThreadPoolExecutor(hardware.cores()) as pool:
        faults = dict(zip(decoded, pool.map(fault, decoded)))
    bad = sorted((index, line) for index, line in faults.items() if line)
    return bad, reader.verify([index for index in indices if not faults.get(index)])


def _is_turned(image_rgb: np.ndarray, content: bytes, decoder: str) -> bool:
    """Return whether an image was turned or mirrored while it was decoded in full."""
    as_stored = decoding.decode_opencv(content)
    if image_rgb.shape != as_stored.shape:
        return True
    if find_part(decoding.Decoder, decoder).other_pixels:
        return False
    apart = np.abs(image_rgb.astype(np.int16) - as_stored.astype(np.int16))
    return bool(apart.mean() > DECODED_TOLERANCE_LEVELS)
