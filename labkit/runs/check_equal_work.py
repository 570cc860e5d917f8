"""Check before anything is timed that all variants do the same work.

One batch of each variant, built on the CPU, must have the baseline's images, shapes, dtypes and
channel order, and its pixels within a named tolerance.  Batches of different sizes are compared as
far as the smaller one goes.  A variant that fails becomes a row with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit import units
from labkit.analysis.equal_work import difference
from labkit.analysis.thresholds import (
    AVERAGED_TOLERANCE_LEVELS,
    DECODED_TOLERANCE_LEVELS,
    SCALED_DECODING_TOLERANCE_LEVELS,
    SCALED_TOLERANCE_LEVELS,
)
from labkit.batches import BATCHES, ArraySpec, check_batch
from labkit.contracts import Skip
from labkit.machine import hardware
from labkit.parts.preprocessing.classification import STD_RGB
from labkit.pipeline import first_batch
from labkit.resolve import Resolved, label_samples, resolve
from labkit.runs.active_run import ActiveRun
from labkit.runs.failure_reasons import batch_bytes, out_of_memory
from labkit.runs.launcher import TrialKilled
from labkit.settings import Settings


def check_equal_work(run: ActiveRun) -> None:
    """Drop what cannot run here and what is not the same work as the baseline's."""
    run.progress.say("checks: one batch of every variant, compared with the baseline's")
    baseline, labels = run.info.baseline, list(run.remaining)
    try:
        verdicts = _ask(run, "compare_work", labels)
    except TrialKilled:  # one of them killed the process: a process each shows which
        verdicts = {}
        for label in sorted(labels, key=lambda label: label != baseline):
            try:
                verdicts |= _ask(run, "compare_work", [baseline, label])
            except TrialKilled as killed:
                verdicts[label] = ("failed", str(killed))
            if verdicts[baseline][0] != "ok":
                break
    run.drop_all(verdicts)
    others = [
        label
        for label, settings in run.remaining.items()
        if label != baseline and "images" in label_samples(settings)
    ]
    if others:
        run.save(psnr_db=_ask(run, "measure_psnr", [baseline, *others]))


def _ask(run: ActiveRun, job: str, labels: Sequence[str]) -> dict[str, Any]:
    return run.ask(
        job,
        variants={label: run.variants[label] for label in labels},
        baseline=run.info.baseline,
        excluded=run.info.excluded,
    )


def compare_work(
    variants: dict[str, Settings], baseline: str, *, excluded: frozenset[int] = frozenset()
) -> dict[str, tuple[str, str]]:
    """Build one batch of every variant and compare it with the baseline's.

    Args:
        variants: label -> complete settings.
        baseline: the label to compare with.
        excluded: indices of unreadable images.

    Returns:
        label -> (status, reason): "ok", "skipped" or "failed".
    """
    verdicts: dict[str, tuple[str, str]] = {}
    first: dict[Settings, str] = {}  # label; other groups may have the same settings
    reference = None
    # Batches of different sizes begin with the same images in epochs of the same images.
    images = math.lcm(*(settings.batch_size for settings in variants.values()))
    for label in sorted(variants, key=lambda label: label != baseline):  # the baseline first
        settings = variants[label]
        if (same := first.setdefault(settings, label)) != label:
            verdicts[label] = verdicts[same]
            continue
        try:
            parts = resolve(settings)
            check_batch_fits(settings)
            batch = first_batch(parts, excluded, images)
            describe = BATCHES[parts.preprocessor.batch]
            loaded = images if parts.loader.has_own_order else settings.batch_size
            specs = describe(loaded, settings.input_px)
            check_batch(batch, specs)
            if reference is None:
                reference, base, compared_with = batch, parts, label
            elif apart := _difference(batch, reference, parts, base, specs):
                raise ValueError(f"not the same work as {compared_with}: {apart}")
        except (Skip, ImportError) as reason:
            verdicts[label] = ("skipped", str(reason))
        except Exception as error:  # any failure of a part is shown as its row
            why = out_of_memory(error, settings) or f"{type(error).__name__}: {error}"
            verdicts[label] = ("failed", why)
        else:
            verdicts[label] = ("ok", "")
    return verdicts


def _difference(
    batch: dict[str, np.ndarray],
    reference: dict[str, np.ndarray],
    parts: Resolved,
    base: Resolved,
    specs: dict[str, ArraySpec],
) -> str:
    """Return in one line how a batch differs from the baseline's; '' where the work is the same."""
    if set(reference) != set(batch):
        return (
            f"batch must have the baseline's entries {', '.join(sorted(reference))}, "
            f"got {', '.join(sorted(batch))}"
        )
    if parts.loader.has_own_order or base.loader.has_own_order:  # one of them is the whole epoch
        batch, reference = _by_id(batch, reference), _by_id(reference, batch)
    common = min(len(batch["sample_id"]), len(reference["sample_id"]))
    batch, reference = (
        {name: array[:common] for name, array in one.items()} for one in (batch, reference)
    )
    levels = None
    if parts.decoder.other_pixels != base.decoder.other_pixels:
        levels = math.inf
    elif parts.decoder.scaled != base.decoder.scaled:
        levels = SCALED_DECODING_TOLERANCE_LEVELS
    elif _scaled(parts.settings) != _scaled(base.settings):
        levels = SCALED_TOLERANCE_LEVELS
    elif _averages(parts) != _averages(base):
        levels = AVERAGED_TOLERANCE_LEVELS
    elif parts.settings.decoder != base.settings.decoder:
        levels = DECODED_TOLERANCE_LEVELS
    return difference(batch, reference, specs, levels=levels)


def measure_psnr(
    variants: dict[str, Settings], baseline: str, *, excluded: frozenset[int] = frozenset()
) -> dict[str, float]:
    """Measure how far the pixels of variants are from the baseline's, in one batch.

    Args:
        variants: label -> complete settings, that `compare_work` found to do the same work.
        baseline: the label to compare with.
        excluded: indices of unreadable images.

    Returns:
        label -> peak signal-to-noise ratio in dB; without the baseline and variants with the same
        pixels.  Empty if they train a detector, as colors of its samples are drawn at random.
    """
    psnr_db: dict[str, float] = {}
    first_label: dict[Settings, str] = {}  # variants of several groups may have equal settings
    reference, base = None, resolve(variants[baseline])
    # So many images that each variant's batches fill them.
    image_count = math.lcm(*(settings.batch_size for settings in variants.values()))
    for label in sorted(variants, key=lambda label: label != baseline):  # the baseline first
        same = first_label.setdefault(variants[label], label)
        if same != label:
            if same in psnr_db:
                psnr_db[label] = psnr_db[same]
            continue
        parts = resolve(variants[label])
        if parts.preprocessor.batch != "classifier":
            return {}
        batch = first_batch(parts, excluded, image_count)
        if reference is None:
            reference = batch
            continue
        other = reference
        if parts.loader.has_own_order or base.loader.has_own_order:
            batch, other = _by_id(batch, other), _by_id(other, batch)
        common = min(len(batch["image"]), len(other["image"]))
        difference_in_std = batch["image"][:common] - other["image"][:common]
        levels = 255 * STD_RGB[:, None, None] * difference_in_std
        if mean_square := float(np.mean(np.square(levels), dtype=np.float64)):
            psnr_db[label] = 10 * math.log10(255**2 / mean_square)
    return psnr_db


def _by_id(batch: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sort a batch by its ids; of a larger one than the other, take the other's images first."""
    is_extra = np.zeros(len(batch["sample_id"]), bool)
    if len(is_extra) > len(other["sample_id"]):
        is_extra = ~np.isin(batch["sample_id"], other["sample_id"])
    order = np.lexsort((batch["sample_id"], is_extra))
    return {name: array[order] for name, array in batch.items()}


def _averages(parts: Resolved) -> str:
    """Name what shrinks a variant's crops, each of which weighs their pixels in its own way."""
    preprocessor, loader = parts.preprocessor, parts.loader
    if loader.makes_samples and preprocessor.crop is not None:
        return parts.settings.loader
    return "by distance" if preprocessor.weighs_by_distance else ""


def _scaled(settings: Settings) -> str:
    """Name how the stored pixels differ from the originals; a finished sample's do not."""
    scaled = ("resized", "pixels", "small", "yuv420")
    return settings.storage_format if settings.storage_format in scaled else ""


def check_batch_fits(settings: Settings) -> None:
    """Refuse a batch that is larger than all of this machine's memory.

    The kernel may grant it all the same, and kill a process when it is filled.

    Raises:
        ValueError: the message says how many images would fit.
    """
    needed_bytes, memory_bytes = batch_bytes(settings), hardware.memory_bytes()
    if needed_bytes > memory_bytes:
        fitting = memory_bytes * settings.batch_size // needed_bytes
        raise ValueError(
            f"batch_size must be at most {fitting} at input_px {settings.input_px}, so that one "
            f"batch fits into memory ({units.count_bytes(memory_bytes)}), got "
            f"{settings.batch_size} ({units.count_bytes(needed_bytes)}); "
            "use a smaller one or a smaller input_px"
        )
