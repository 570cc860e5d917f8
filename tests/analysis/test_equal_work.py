"""Whoever did other work than the baseline is found by what the rows recorded of it.

Run: python -m pytest tests/analysis/test_equal_work.py
"""

import math
from dataclasses import replace

import pytest
from fakes import MEANS, fake_info, fake_loss, fake_work

import labkit as lab
from labkit.analysis import equal_work
from labkit.parts.decoding import Decoder
from labkit.resolve import gather_facts

INFO = fake_info(["base", "v"])


def unequal_work(info, trials):
    """As a run has it, which records what of the variants' parts counts."""
    facts = {trial.variant: gather_facts(trial.settings) for trial in trials}
    return equal_work.unequal_work(replace(info, facts=facts), trials)


def unequal(base_loss, loss, **settings):
    return unequal_work(INFO, [fake_loss("base", base_loss), fake_loss("v", loss, **settings)])


TO_5 = "not the same work as base: the last loss must be within 5 % of 2, got {:g}"
TO_10 = "not the same work as base: the last loss must be within 10 % of 2, got {:g}"
EXACT = "not the same work as base: the last loss must be within 0.01 % of 2, got {:g}"
PILLOW, ON_CPU = {"decoder": "pillow"}, {"device": "cpu", "torch_threads": 1}
ANOTHER_TRAINING = [
    {"batch_size": 16}, {"images": 16}, {"step": "detector"}, {"input_px": 512}, {"epochs": 1},
    {"seed": 1}, {"loader": "resident"}, {"prefetcher": "both_as_published"},
    {"loader": "torch_any_order"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (2.09, {}, ""),  # rounding, or sums in another order
        (2.2, {}, TO_5),
        (1.8, {}, TO_5),
        (math.nan, {}, TO_5),
        (2.19, PILLOW, ""),  # other pixels
        (2.5, PILLOW, TO_10),
        (2.5, {"preprocessor": "classification_pillow"}, TO_10),
        *((9.0, other, "") for other in ANOTHER_TRAINING),
        (9.0, {"prefetcher": "data_prefetcher"}, TO_5),  # only delivers the batches otherwise
        (9.0, {"loader": "mine"}, TO_5),
        (None, {}, ""),  # the simulated GPU has no losses
    ],
)
def test_last_losses_of_the_same_training_are_compared(loss, settings, message):
    expected = {"v": message.format(loss)} if message else {}
    assert unequal(2.0, loss, **settings) == expected


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (2.0001, {}, ""),
        (2.001, {}, EXACT),
        (2.01, {"torch_threads": 2}, ""),
        (2.01, {"device": "cuda"}, ""),
        (2.01, PILLOW, ""),
        (2.01, {"loss": "loops"}, ""),
    ],
)
def test_on_the_cpu_the_same_pixels_give_the_same_loss(loss, settings, message):
    base, other = fake_loss("base", 2.0, **ON_CPU), fake_loss("v", loss, **ON_CPU)
    other = replace(other, settings={**other.settings, **settings})
    expected = {"v": message.format(loss)} if message else {}
    assert unequal_work(INFO, [base, other]) == expected


def test_one_unequal_trial_of_many_is_enough_and_the_baseline_may_come_last():
    trials = [fake_loss("v", 2.0), fake_loss("v", 9.0), fake_loss("v", 2.0), fake_loss("base", 2.0)]
    assert set(unequal_work(INFO, trials)) == {"v"}


# --- other numbers --------------------------------------------------------------------------


def unequal_in_other_numbers(first_loss, loss=9.0, base_first=4.0, **settings):
    base = replace(fake_loss("base", 2.0), first_loss=base_first)
    other = replace(fake_loss("v", loss, **settings), first_loss=first_loss)
    return unequal_work(INFO, [base, other])


@pytest.mark.parametrize(
    "other",
    [{"precision": "amp"}, {"memory_format": "channels_last"}, {"compile_model": True}],
)
def test_in_other_numbers_the_first_losses_are_compared(other):
    # Training magnifies what was rounded: the last losses say nothing.
    assert unequal_in_other_numbers(4.07, **other) == {}
    message = "not the same work as base: the first loss must be within 2 % of 4, got 4.1"
    assert unequal_in_other_numbers(4.1, **other) == {"v": message}
    message = "not the same work as base: the last loss must be a number, got nan"
    assert unequal_in_other_numbers(4.0, math.nan, **other) == {"v": message}
    assert unequal_in_other_numbers(None, **other) == {}
    assert unequal_in_other_numbers(4.1, base_first=None, **other) == {}


def test_where_batches_are_trained_on_several_times_the_first_losses_are_compared():
    assert unequal_in_other_numbers(4.0, gpu_slowdown=3) == {}
    assert unequal_in_other_numbers(4.3, gpu_slowdown=3, **PILLOW) == {}
    message = "not the same work as base: the first loss must be within 2 % of 4, got 4.3"
    assert unequal_in_other_numbers(4.3, gpu_slowdown=3) == {"v": message}


def other_work(**what):
    return unequal_work(INFO, [fake_work("base"), fake_work("v", **what)])


def test_the_last_batches_must_hold_the_same_images_whatever_made_them():
    reason = "the last batch of epoch 2 must hold the same images, got others"
    assert other_work() == {}
    for settings in ({}, {"decoder": "pillow"}, {"prefetcher": "prefetch_generator"}):
        found = other_work(ids_crc=8, **settings)
        assert found == {"v": f"not the same work as base: {reason}"}


def test_an_order_that_depends_on_the_workers_is_compared_for_equal_numbers_of_them():
    info = fake_info(["base", "v"])
    base = fake_work("base", loader="shards", num_workers=2)
    other = fake_work("v", ids_crc=8, loader="shards", num_workers=4)
    assert unequal_work(info, [base, other]) == {}
    same = fake_work("v", ids_crc=8, loader="shards", num_workers=2)
    assert list(unequal_work(info, [base, same])) == ["v"]


def test_batches_that_come_as_they_get_ready_end_an_epoch_with_other_images_each_time():
    info, any_order = fake_info(["base", "v"]), {"loader": "torch_any_order"}
    trials = [fake_work("base", **any_order), fake_work("v", ids_crc=8, **any_order)]
    assert unequal_work(info, trials) == {}


def test_where_the_runs_baseline_has_no_trial_that_of_another_group_is_compared_with():
    names = ["x = 1: base", "x = 2: base", "x = 2: v"]
    groups = {name: name.partition(":")[0] for name in names}
    baselines = {"x = 1": names[0], "x = 2": names[1]}
    info = fake_info(names, groups=groups, baselines=baselines)
    found = unequal_work(info, [fake_work(names[1]), fake_work(names[2], ids_crc=8)])
    assert list(found) == ["x = 2: v"]
    assert found["x = 2: v"].startswith("not the same work as x = 2: base: the last batch")


def test_the_same_pixels_have_the_same_means():
    means = {**MEANS, "image": [-0.5, 0.25, 0.001]}
    reason = (
        "the mean of image's blue in the last batch of epoch 2 must be within 1e-06 of 0, got 0.001"
    )
    assert other_work(means=means) == {"v": f"not the same work as base: {reason}"}
    assert other_work(means={**MEANS, "image": [-0.50004, 0.25, 0.0000009]}) == {}


@pytest.mark.parametrize(
    "other", [{"decoder": "pillow"}, {"preprocessor": "classification_pillow"}]
)
def test_other_pixels_may_move_a_mean_by_a_grey_level(other):
    assert other_work(means={**MEANS, "image": [-0.49, 0.26, -0.018]}, **other) == {}
    assert set(other_work(means={**MEANS, "image": [-0.5, 0.25, 0.02]}, **other)) == {"v"}
    assert set(other_work(means={**MEANS, "image": [0.0, 0.25, -0.5]}, **other)) == {"v"}
    # What comes from the boxes is as it was.
    assert set(other_work(means={**MEANS, "label": 12.6}, **other)) == {"v"}


def test_pixels_that_differ_by_design_are_not_compared_but_must_be_numbers(monkeypatch):
    monkeypatch.setitem(lab.DECODERS, "gray", Decoder(len, other_pixels="in gray"))

    def found(**what):
        base = replace(fake_work("base"), loss=2.0)
        loss = what.pop("loss", 9.0)
        return unequal_work(
            INFO, [base, replace(fake_work("v", decoder="gray", **what), loss=loss)]
        )

    assert found(means={**MEANS, "image": [3.0, 3.0, 3.0]}) == {}
    assert "same images" in found(ids_crc=8)["v"]
    assert "label" in found(means={**MEANS, "label": 3.0})["v"]
    assert "image's red" in found(means={**MEANS, "image": [math.nan, 0.25, 0.0]})["v"]
    assert found(loss=math.nan) == {
        "v": "not the same work as base: the last loss must be a number, got nan"
    }


def test_a_mean_that_is_no_number_is_other_work():
    assert "got nan" in other_work(means={**MEANS, "label": math.nan})["v"]


def test_only_what_both_rows_say_is_compared():
    assert other_work(means={"pixels": 128.0}) == other_work(means=None) == {}
    assert other_work(means={"label": 1.0}, ids_crc=None) == {}  # schema 1 has neither
    # Pixels before they are finished, by another decoder.
    unfinished = [
        fake_work("base", means={"pixels": 128.0}),
        fake_work("v", means={"pixels": 128.3}, decoder="pillow"),
    ]
    assert unequal_work(INFO, unfinished) == {}


@pytest.mark.parametrize("other", [x for x in ANOTHER_TRAINING if "step" not in x])
def test_other_data_has_another_last_batch_and_is_not_compared(other):
    assert other_work(ids_crc=8, means={**MEANS, "label": 1.0}, **other) == {}


def test_batches_of_another_size_are_compared_by_their_last_images():
    info, size = replace(INFO, compared_images=8), {"batch_size": 16}

    def found(**what):
        return unequal_work(info, [fake_work("base"), fake_work("v", **size, **what)])

    assert found() == {}
    assert "must hold the same images" in found(ids_crc=8)["v"]
    assert "the mean of image's red" in found(means={**MEANS, "image": [0.5, 0.25, 0.0]})["v"]
    # Another number of steps is another training.
    assert unequal_work(info, [fake_loss("base", 2.0), fake_loss("v", 9.0, **size)]) == {}


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_baseline_that_learnt_no_number_is_what_failed(loss):
    text = "nan" if math.isnan(loss) else "inf"
    assert unequal(loss, 2.0) == {"base": f"its last loss must be a number, got {text}"}
