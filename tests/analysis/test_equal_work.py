"""Whoever did other work than the baseline is found by what the rows recorded of it.

ROWS holds made-up measurements with a known answer: what the baseline's row and the variant's have
beside TRAINING, and what is wrong with the variant.  Tolerances stand on either side of a limit.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from fakes import MEANS, fake_info, fake_work

from labkit.analysis.equal_work import difference, unequal_work
from labkit.batches import ArraySpec
from labkit.records import Facts
from labkit.resolve import gather_facts

INFO = fake_info(["base", "v"])
IDS = "the last batch of epoch 2 must hold the same images, got others"
NAN, INF = math.nan, math.inf
PILLOW = {"decoder": "pillow"}
ON_CPU = {"device": "cpu", "torch_threads": 1, "facts": Facts(is_on_cpu=True)}
AMP = {"precision": "amp"}
SCALED = {"decoder": "simplejpeg_scaled", "facts": Facts(decodes_scaled=True)}
OUTSIDE = {"loader": "dali", "facts": Facts(loads_outside=True)}
OWN_ORDER = {"loader": "rival", "facts": Facts(has_own_order=True)}
GRAY = {"decoder": "gray", "facts": Facts(other_pixels="in gray")}
SHORT = {"prefetcher": "both_as_published", "facts": Facts(steps_short=1)}
WRONG = {"ids_crc": 8, "loss": 9.0, "means": {**MEANS, "label": 1.0}}


def loss(base, other, **both):
    """The last losses of two rows that have the rest in common."""
    return {"loss": base, **both}, {"loss": other, **both}


def first_loss(first, last=9.0, **other):
    """Rows that are compared by their first losses; the baseline's is 4."""
    return {"loss": 2.0, "first_loss": 4.0}, {"loss": last, "first_loss": first, **other}


def mean(name, value, **other):
    """A variant whose last batch has another mean."""
    return {}, {"means": {**MEANS, name: value}, **other}


def last_within(percent, wanted, got):
    return f"the last loss must be within {percent} % of {wanted}, got {got}"


def first_within(percent, got):
    return f"the first loss must be within {percent} % of 4, got {got}"


def mean_within(what, most, wanted, got):
    return (
        f"the mean of {what} in the last batch of epoch 2 must be within {most} of {wanted}, "
        f"got {got}"
    )


ROWS = {
    "the same": ({}, {}, ""),
    # --- the images of the last batch
    "other images": ({}, {"ids_crc": 8}, IDS),
    "other images of another decoder": ({}, {"ids_crc": 8, **PILLOW}, IDS),
    "other images of another prefetcher": ({}, {"ids_crc": 8, "prefetcher": "both"}, IDS),
    "other images in gray": ({}, {"ids_crc": 8, **GRAY}, IDS),
    "images that are not known": ({}, {**WRONG, "ids_crc": None, "loss": None}, ""),
    # --- other data has another last batch
    **{f"other {name}": ({}, {**WRONG, name: value}, "") for name, value in {
        "ranks": 2, "images": 16, "input_px": 512, "epochs": 1, "seed": 1, "shuffle": False,
    }.items()},
    "one batch again and again": ({}, {**WRONG, "facts": Facts(repeats_one_batch=True)}, ""),
    "a baseline with one batch": ({"facts": Facts(repeats_one_batch=True)}, WRONG, ""),
    "a step left out": ({}, {**WRONG, **SHORT}, ""),
    "a step left out of both": (SHORT, {"ids_crc": 8, **SHORT}, IDS),
    "an order of its own": ({}, {**WRONG, **OWN_ORDER}, ""),
    "a baseline with an order of its own": (OWN_ORDER, WRONG, ""),
    "the same order of their own": (OWN_ORDER, {"ids_crc": 8, **OWN_ORDER}, IDS),
    "another batch size, not compared": ({}, {**WRONG, "batch_size": 16}, ""),
    # --- the means of its entries
    "a mean of pixels, rounded": (*mean("image", [-0.50004, 0.25, 0.000_000_9]), ""),
    "a mean of pixels": (*mean("image", [-0.5, 0.25, 0.000_002]),
        mean_within("image's blue", "1e-06", 0, "2e-06")),
    "a mean of boxes, rounded": (*mean("label", 12.5012), ""),
    "a mean of boxes": (*mean("label", 12.502), mean_within("label", "0.0013", 12.5, 12.502)),
    "a mean of boxes of another decoder": (*mean("label", 12.6, **PILLOW),
        mean_within("label", "0.0013", 12.5, 12.6)),
    "a mean that is no number": (*mean("label", NAN),
        mean_within("label", "0.0013", 12.5, "nan")),
    "a grey level of another decoder": (*mean("image", [-0.5, 0.25, 0.0185], **PILLOW), ""),
    "more than a grey level": (*mean("image", [-0.5, 0.25, 0.0186], **PILLOW),
        mean_within("image's blue", "0.019", 0, 0.0186)),
    "a grey level of another preprocessor": (
        *mean("image", [-0.482, 0.25, 0.0], preprocessor="classification_pillow"), ""),
    "a grey level of pixels that are stored": (
        *mean("image", [-0.482, 0.25, 0.0], storage_format="pixels"), ""),
    "red in place of blue": (*mean("image", [0.0, 0.25, -0.5], **PILLOW),
        mean_within("image's red", "0.019", -0.5, 0)),
    "a grey level of a loader that preprocesses": (
        *mean("image", [-0.5, 0.25, 0.018], **OUTSIDE), ""),
    "a grey level of a loader that does not": (
        *mean("image", [-0.5, 0.25, 0.018], loader="threads"),
        mean_within("image's blue", "1e-06", 0, 0.018)),
    "a scaled decode": (*mean("image", [-0.5, 0.25, 0.039], **SCALED), ""),
    "more than a scaled decode": (*mean("image", [-0.5, 0.25, 0.041], **SCALED),
        mean_within("image's blue", "0.04", 0, 0.041)),
    "a baseline that decodes scaled": (SCALED, {"means": {**MEANS, "image": [-0.5, 0.25, 0.039]}},
        ""),
    "both decode scaled": (SCALED,
        {"means": {**MEANS, "image": [-0.5, 0.25, 0.039]}, **SCALED, "preprocessor": "other"},
        mean_within("image's blue", "0.019", 0, 0.039)),
    "other pixels by design": (*mean("image", [3.0, 3.0, 3.0], **GRAY), ""),
    "other boxes in gray": (*mean("label", 3.0, **GRAY), mean_within("label", "0.0013", 12.5, 3)),
    "no number in gray": (*mean("image", [NAN, 0.25, 0.0], **GRAY),
        mean_within("image's red", "inf", -0.5, "nan")),
    "an entry that only one has": ({}, {"means": {"pixels": 128.0}}, ""),
    "unfinished pixels of another decoder": ({"means": {"pixels": 128.0}},
        {"means": {"pixels": 128.3}, **PILLOW}, ""),
    "unfinished pixels": ({"means": {"pixels": 128.0}}, {"means": {"pixels": 128.3}},
        mean_within("pixels", "0.013", 128, 128.3)),
    "no means": ({}, {"means": None}, ""),
    # --- the last loss
    "no losses, on a simulated GPU": (*loss(2.0, None), ""),
    "a loss of sums in another order": (*loss(2.0, 2.1), ""),
    "a loss": (*loss(2.0, 2.11), last_within(5, 2, 2.11)),
    "a lower loss": (*loss(2.0, 1.89), last_within(5, 2, 1.89)),
    "a loss that is no number": (*loss(2.0, NAN), last_within(5, 2, "nan")),
    "a loss near 0": (*loss(0.0005, 0.0014), ""),
    "a loss not as near 0": (*loss(0.0005, 0.0016), last_within(5, 0.0005, 0.0016)),
    "a loss of another decoder": ({"loss": 2.0}, {"loss": 2.2, **PILLOW}, ""),
    "more than a loss of another decoder": ({"loss": 2.0}, {"loss": 2.23, **PILLOW},
        last_within(10, 2, 2.23)),
    "a loss of another prefetcher": ({"loss": 2.0}, {"loss": 2.2, "prefetcher": "both"},
        last_within(5, 2, 2.2)),
    "a loss in gray": ({"loss": 2.0}, {"loss": 9.0, **GRAY}, ""),
    "a loss in gray that is no number": ({"loss": 2.0}, {"loss": NAN, **GRAY},
        "the last loss must be a number, got nan"),
    "a loss of another step": ({"loss": 2.0}, {"loss": 9.0, "step": "detector"}, ""),
    "a loss of another exchange": ({"loss": 2.0}, {"loss": 9.0, "exchange": "noop"}, ""),
    "a loss on the CPU, rounded": (*loss(2.0, 2.0001, **ON_CPU), ""),
    "a loss on the CPU": (*loss(2.0, 2.0003, **ON_CPU), last_within(0.01, 2, 2.0003)),
    "a loss on the CPU near 0": (*loss(0.0, 0.000_002, **ON_CPU), last_within(0.01, 0, "2e-06")),
    **{f"a loss on the CPU with another {name}":
        ({"loss": 2.0, **ON_CPU}, {"loss": 2.01, **ON_CPU, name: value}, "") for name, value in {
            "torch_threads": 2, "device": "cuda", "loss_": "loops", **PILLOW}.items()},
    # --- the first loss, where training magnifies what is rounded
    "a first loss in other numbers": (*first_loss(4.08, **AMP), ""),
    "another first loss in other numbers": (*first_loss(4.09, **AMP), first_within(2, 4.09)),
    "another first loss of a compiled model": (*first_loss(4.09, compile_model=True),
        first_within(2, 4.09)),
    "a first loss in another layout": (*first_loss(4.09, memory_format="channels_last"),
        first_within(2, 4.09)),
    "a last loss in other numbers that is none": (*first_loss(4.0, NAN, **AMP),
        "the last loss must be a number, got nan"),
    "no first loss": (*first_loss(None, **AMP), ""),
}  # fmt: skip


def row(variant, *, facts=None, loss_="vectorized", **done):
    """A trial; the setting `loss` is called `loss_`."""
    trial = fake_work(variant, **done)
    return replace(trial, settings={**trial.settings, "loss": loss_})


def unequal(base, other, info=INFO):
    facts = {"base": base.get("facts", Facts()), "v": other.get("facts", Facts())}
    return unequal_work(replace(info, facts=facts), [row("base", **base), row("v", **other)])


@pytest.mark.parametrize("what", ROWS)
def test_a_variant_did_the_same_work_or_what_differs_is_named(what):
    base, other, reason = ROWS[what]
    expected = {"v": f"not the same work as base: {reason}"} if reason else {}
    assert unequal(base, other) == expected


@pytest.mark.parametrize(
    ("first", "changes", "reason"),
    [
        (4.0, {}, ""),
        (4.3, {}, first_within(2, 4.3)),
        (4.4, PILLOW, ""),
        (4.5, PILLOW, first_within(10, 4.5)),
    ],
)
def test_batches_that_are_trained_on_several_times_are_compared_by_their_first_loss(
    first, changes, reason
):
    info = replace(INFO, tasks={"v": {"gpu_slowdown": 3}})
    expected = {"v": f"not the same work as base: {reason}"} if reason else {}
    assert unequal(*first_loss(first, **changes), info) == expected


@pytest.mark.parametrize("other", [{"ids_crc": 8}, {"means": {**MEANS, "label": 1.0}}, {}])
def test_batches_of_another_size_are_compared_by_their_last_images_and_no_loss(other):
    info = replace(INFO, compared_images=8)
    found = unequal({"loss": 2.0}, {"batch_size": 16, "loss": 9.0, **other}, info)
    assert bool(found) is bool(other)
    # Where steps are left out, these are others.
    assert unequal(SHORT, {"batch_size": 16, **SHORT, **other}, info) == {}
    # And so they are where the loader has an order of its own.
    assert unequal(OWN_ORDER, {"batch_size": 16, **OWN_ORDER, **other}, info) == {}


def test_one_unequal_trial_of_many_is_enough_and_the_baseline_may_come_last():
    losses = {"v": (2.0, 9.0, 2.0), "base": (2.0,)}
    trials = [row(name, loss=each) for name in losses for each in losses[name]]
    assert set(unequal_work(INFO, trials)) == {"v"}
    failed = [replace(trial, status="failed") for trial in trials[:3]]
    assert unequal_work(INFO, [*failed, trials[3]]) == {}


def test_where_the_runs_baseline_has_no_trial_that_of_another_group_is_compared_with():
    names = ["x = 1: base", "x = 2: base", "x = 2: v"]
    groups = {name: name.partition(":")[0] for name in names}
    info = fake_info(names, groups=groups, baselines={"x = 1": names[0], "x = 2": names[1]})
    found = unequal_work(info, [row(names[1]), row(names[2], ids_crc=8)])
    assert found == {"x = 2: v": f"not the same work as x = 2: base: {IDS}"}
    assert unequal_work(info, [row(names[2], ids_crc=8)]) == {}


@pytest.mark.parametrize("loss", [NAN, INF])
def test_a_baseline_that_learnt_no_number_is_what_failed(loss):
    found = unequal({"loss": loss}, {"loss": 2.0})
    assert found == {"base": f"its last loss must be a number, got {loss}"}


@pytest.mark.parametrize(
    ("loader", "workers", "is_compared"),
    [
        ("shards", (2, 4), False),  # their order depends on the workers
        ("shards", (2, 2), True),
        ("torch_any_order", (2, 2), False),  # batches come as they get ready
    ],
)
def test_an_order_that_depends_on_the_workers_is_compared_for_equal_numbers_of_them(
    loader, workers, is_compared
):
    base, other = ({"loader": loader, "num_workers": count} for count in workers)
    rows = [row("base", **base), row("v", ids_crc=8, **other)]
    facts = {each.variant: gather_facts(each.settings) for each in rows}
    assert ("v" in unequal_work(replace(INFO, facts=facts), rows)) is is_compared


def test_an_epoch_whose_last_images_are_unknown_hides_no_other():
    rows = [row("base"), row("v", ids_crc=8)]
    rows = [replace(x, epochs=(replace(x.epochs[0], last_ids_crc=None), x.epochs[1])) for x in rows]
    assert unequal_work(INFO, rows) == {"v": f"not the same work as base: {IDS}"}


def test_pixels_are_compared_by_their_mean_difference_over_all_images():
    black = {"image": np.zeros((3, 3, 4, 4), np.float32)}
    other = {"image": black["image"] + np.float32([1, 2, 3])[:, None, None, None]}
    specs = {"image": ArraySpec(shape=(3, 3, 4, 4), dtype="float32", tolerance=0.5)}
    assert difference(other, black, specs).endswith("by at most 0.5, got 3")
    assert difference(other, black, specs, levels=57).endswith("on average at most 0.997899, got 2")
    assert difference(other, black, specs, levels=115) == ""
