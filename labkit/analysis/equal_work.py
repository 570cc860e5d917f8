"""Equal work: whether variants do the same, by their settings and by what they deliver.

    settings what a variant leaves out or does besides                ─▶ `is_floor`, `other_work`
    before   one batch of each variant, pixel by pixel                ─▶ `difference`
    after    every epoch's last images: ids, means of their entries ┐
             the last loss of a real training, or the first loss    ┴─▶ `unequal_work`

Two libraries can agree on the shape and still differ in channel order, so pixels are compared.
Batches of different sizes end with the same images, so as many are compared as the smallest has.
A loss hardly moves for black images (1 %, measured), so the batches themselves are compared, and
losses to the last digit where nothing may differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from labkit.analysis.cache_state import other_cache
from labkit.analysis.thresholds import (
    LOSS_TOLERANCE,
    MAX_FIRST_LOSS_DIFFERENCE,
    MAX_LOSS_DIFFERENCE,
    MAX_LOSS_DIFFERENCE_OTHER_PIXELS,
    MAX_MEAN_DIFFERENCE_SCALED_DECODING,
    SAME_NUMBERS_TOLERANCE,
    SAME_NUMBERS_TOLERANCE_SHARE,
)
from labkit.batches import RESIZED_TOLERANCE, ArraySpec
from labkit.records import AnyTrial, Facts, RunInfo, Trial
from labkit.settings import Settings

# Settings on which the rate of a real device with the model alone depends.
STEP = (
    "step", "loss", "precision", "memory_format", "compile_model", "input_px", "batch_size",
    "ranks", "exchange",
)  # fmt: skip


def is_floor(facts: Facts, baseline: Facts) -> bool:
    """Return whether a variant does only part of its baseline's work, which is never judged.

    Args:
        facts: of the variant.
        baseline: of what it is divided by; where it leaves out the same, that is the question, as
            of what a loop does beside its steps.
    """
    return bool(facts.leaves_out - baseline.leaves_out)


def other_work(info: RunInfo, variant: str, baseline: str) -> str:
    """Return how a variant's work or cache differs from the baseline's; '' where it may win."""
    settings, base = info.variants[variant], info.variants[baseline]
    facts, base_facts = info.facts_of(variant), info.facts_of(baseline)
    if is_floor(facts, base_facts):
        return "it does only part of the work"
    if _does_more(settings, base):
        return "its loop does more than the baseline's, so its time is noise"
    if facts.steps_short:
        return "it leaves out a step of each epoch"
    if (settings.shuffle, settings.subset) != (base.shuffle, base.subset):
        return "it trains on other images or in another order"
    if facts.other_pixels != base_facts.other_pixels:
        return "its decoder's pixels differ by design"
    if facts.stores_fewer_pixels and not base_facts.stores_fewer_pixels:
        return "its images are stored with fewer pixels"
    return other_cache(settings, base, facts)


def _does_more(settings: Settings, baseline: Settings) -> bool:
    """Return whether a training loop does more beside its steps than the baseline's."""
    nothing = {"checkpoint_every": 0, "report_every": 0, "metrics": "none", "progress_bar": "none"}
    return any(
        getattr(settings, name) != value == getattr(baseline, name)
        for name, value in nothing.items()
    )


def difference(
    batch: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    specs: Mapping[str, ArraySpec],
    *,
    levels: float | None = None,
) -> str:
    """Return in one line how a batch differs from the baseline's; '' where the work is the same.

    Args:
        batch: entry name -> array, already checked by `check_batch`.
        reference: the baseline's batch, likewise.
        specs: the tolerances.
        levels: compare pixels by their mean difference, within so many grey levels (infinity: they
            need only be numbers); None: every pixel must be the same, within the tolerance.

    Returns:
        "" or a sentence naming the entry, the rule and the value.
    """
    for name, spec in specs.items():
        # Image by image: a batch that fits into memory must not fail for want of its comparison.
        largest, mean = _apart(zip(batch[name], reference[name]))
        allowed, value, rule = spec.tolerance, largest, "at most"
        if name == "image" and levels is not None:
            # 0.224 is the smallest standard deviation that images are normalized by.
            allowed, value, rule = levels / 255 / 0.224, mean, "on average at most"
        if not value <= allowed:  # nor where it is no number
            return f"{name} must differ from the baseline's by {rule} {allowed:g}, got {value:g}"
    return ""


def _apart(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """Return the largest and the mean difference of rows of equal size."""
    differences = [(0.0, 0.0)]
    for a, b in pairs:
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
        differences.append((apart.max(initial=0.0), apart.mean() if apart.size else 0.0))
    largest, means = np.array(differences).T
    return float(largest.max()), float(means.sum() / max(1, len(differences) - 1))


def unequal_work(info: RunInfo, trials: Sequence[AnyTrial]) -> dict[str, str]:
    """Find variants whose records show that they did not do all of the baseline's work.

    Args:
        info: of the run.
        trials: the run's rows, of any status.

    Returns:
        Variant -> what is wrong; those that work on other data or leave out steps by design are
        not compared, nor is what either row does not say.
    """
    done = [t for t in trials if isinstance(t, Trial) and t.status == "ok"]
    # Where the run's own baseline has no trial, that of another group does the same work.
    baselines = dict.fromkeys([info.baseline, *info.baseline_by_group.values()])
    base = next((t for name in baselines for t in done if t.variant == name), None)
    if base is None:
        return {}
    if base.loss is not None and not math.isfinite(base.loss):
        return {base.variant: f"its last loss must be a number, got {base.loss}"}
    reasons: dict[str, str] = {}
    for trial in done:
        is_same_size = _are_same(trial, base, ("batch_size",))
        # Earlier versions recorded whole batches only, and of other sizes these hold other images.
        is_compared = is_same_size or info.compared_images is not None
        if trial.variant != base.variant and is_compared:
            facts, base_facts = (info.facts_of(one.variant) for one in (trial, base))
            apart = ""
            if _is_same_data(trial, base, facts, base_facts):
                apart = _other_work(info, trial, base, is_same_size=is_same_size)
            if apart:
                reasons[trial.variant] = f"not the same work as {base.variant}: {apart}"
    return reasons


def _other_work(info: RunInfo, trial: Trial, base: Trial, *, is_same_size: bool) -> str:
    """Compare the last batches, and the losses of batches of the same size."""
    facts, base_facts = (info.facts_of(one.variant) for one in (trial, base))
    is_outside = facts.loads_outside or base_facts.loads_outside
    of_pixels = ["decoder", "preprocessor", "storage_format"]
    if is_outside:  # loaders that preprocess by themselves round in ways of their own
        of_pixels.append("loader")
    same_pixels = _are_same(trial, base, of_pixels)
    is_comparable = facts.other_pixels == base_facts.other_pixels
    # A plane's mean moves by 0.008 from OpenCV's to Pillow's resizing, which drops fractions of a
    # grey level (measured); noise moves it by 0.1 and more, red in place of blue mostly by 0.05 and
    # more.
    floor = SAME_NUMBERS_TOLERANCE if same_pixels else RESIZED_TOLERANCE
    is_scaled = facts.decodes_scaled or base_facts.decodes_scaled
    if is_scaled and not _are_same(trial, base, ("decoder",)):
        floor = MAX_MEAN_DIFFERENCE_SCALED_DECODING
    if not is_comparable:
        floor = math.inf
    apart = _other_batches(trial, base, same_pixels, floor)
    if not apart and not is_comparable:
        apart = _loss_that_is_no_number(trial)
    elif not apart and is_same_size:
        apart = _other_loss(info, trial, base, same_pixels)
    return apart


def _other_batches(trial: Trial, base: Trial, same_pixels: bool, floor: float) -> str:
    """Compare the last batch of every epoch: its images, and the means of its entries.

    Means of pixels may always differ by `floor`.
    """
    for number, (epoch, wanted) in enumerate(zip(trial.epochs, base.epochs), 1):
        batch = f"the last batch of epoch {number}"
        if None in (epoch.last_ids_crc, wanted.last_ids_crc):
            continue
        if epoch.last_ids_crc != wanted.last_ids_crc:
            return f"{batch} must hold the same images, got others"
        means, wanted_means = epoch.last_means or {}, wanted.last_means or {}
        of_boxes = ("heatmap", "size_wh", "offset_xy", "cell", "mask", "label")
        for name in wanted_means:  # unfinished batches have other entries
            of_pixels = name not in of_boxes
            if name not in means or (of_pixels and not same_pixels and name != "image"):
                continue
            pairs = list(zip(_planes(name, means[name]), _planes(name, wanted_means[name])))
            for (what, mean), (_, wanted_mean) in pairs:
                most = max(
                    SAME_NUMBERS_TOLERANCE_SHARE * abs(wanted_mean),
                    floor if of_pixels else SAME_NUMBERS_TOLERANCE,
                )
                if not abs(mean - wanted_mean) <= most:  # nor where one is no number
                    return (
                        f"the mean of {what} in {batch} must be within {most:.2g} of "
                        f"{wanted_mean:.6g}, got {mean:.6g}"
                    )
    return ""


def _planes(name: str, mean: float | list[float]) -> list[tuple[str, float]]:
    """Name what was averaged by itself."""
    if isinstance(mean, list):
        return [(f"{name}'s {color}", one) for color, one in zip(("red", "green", "blue"), mean)]
    return [(name, mean)]


def _other_loss(info: RunInfo, trial: Trial, base: Trial, same_pixels: bool) -> str:
    """Compare the last losses of the same training."""
    if None in (trial.loss, base.loss) or not _are_same(trial, base, ("step", "exchange")):
        return ""
    slowdown, base_slowdown = (info.gpu_slowdown_of(one.variant) for one in (trial, base))
    rounding = ("precision", "memory_format", "compile_model")
    if slowdown != base_slowdown or not _are_same(trial, base, rounding):
        return _other_first_loss(trial, base, same_pixels)
    on_cpu = info.facts_of(base.variant).is_on_cpu
    most, floor = MAX_LOSS_DIFFERENCE, LOSS_TOLERANCE
    if not same_pixels:
        most = MAX_LOSS_DIFFERENCE_OTHER_PIXELS
    elif on_cpu and _are_same(trial, base, ("device", "torch_threads", "loss")):
        most, floor = SAME_NUMBERS_TOLERANCE_SHARE, SAME_NUMBERS_TOLERANCE
    if math.isclose(trial.loss, base.loss, rel_tol=most, abs_tol=floor):
        return ""
    return f"the last loss must be within {100 * most:g} % of {base.loss:.6g}, got {trial.loss:.6g}"


def _other_first_loss(trial: Trial, base: Trial, same_pixels: bool) -> str:
    """Compare the first losses, before training magnified what one of them rounds away."""
    if apart := _loss_that_is_no_number(trial):
        return apart
    first, wanted, most = trial.first_loss, base.first_loss, MAX_FIRST_LOSS_DIFFERENCE
    if not same_pixels:
        most = MAX_LOSS_DIFFERENCE_OTHER_PIXELS
    if None in (first, wanted) or math.isclose(first, wanted, rel_tol=most, abs_tol=LOSS_TOLERANCE):
        return ""
    return f"the first loss must be within {100 * most:g} % of {wanted:.6g}, got {first:.6g}"


def _loss_that_is_no_number(trial: Trial) -> str:
    if trial.loss is None or math.isfinite(trial.loss):
        return ""
    return f"the last loss must be a number, got {trial.loss}"


def _is_same_data(trial: Trial, other: Trial, a: Facts, b: Facts) -> bool:
    # One batch over and over, or another image last; an epoch of those was compared before timing.
    repeats = a.repeats_one_batch or b.repeats_one_batch
    names = ("loader", "batch_size", "num_workers")  # of its own order each may be a part
    reorders = (a.has_own_order or b.has_own_order) and not _are_same(trial, other, names)
    reorders |= a.order_varies or b.order_varies
    is_same_end = a.steps_short == b.steps_short and not repeats and not reorders
    is_same_end &= not a.steps_short or _are_same(trial, other, ("batch_size",))
    of_data = ("ranks", "images", "input_px", "epochs", "seed", "shuffle")
    return is_same_end and _are_same(trial, other, of_data)


def _are_same(trial: Trial, other: Trial, names: Sequence[str]) -> bool:
    # Earlier versions did not record a setting that is newer than they.
    mine, others = (
        [one.settings.get(name, getattr(Settings, name)) for name in names]
        for one in (trial, other)
    )
    return mine == others
