"""Variants of the values of one setting."""

from dataclasses import replace

import pytest

from labkit.experiments.sweep import change_all, in_groups, sweep
from labkit.settings import Settings

BASE = Settings(num_workers=3)


def test_a_value_is_a_variant_with_everything_else_equal():
    variants = sweep(BASE, "batch_size", [4, 8], label="{} images".format)
    assert list(variants) == ["4 images", "8 images"]
    assert variants["8 images"].settings == replace(BASE, batch_size=8)


def test_of_equal_values_the_first_stays():
    variants = sweep(BASE, "batch_size", {"four": 4, "eight": 8}, full=[8, 4, 16])
    assert {label: each.full_only for label, each in variants.items()} == {
        "four": False, "eight": False, "16": True,
    }  # fmt: skip


def test_a_sweep_keeps_its_marks_where_all_its_variants_are_changed():
    warm = change_all(sweep(BASE, "batch_size", [4], full=[8]), "{}, warm", cache="warm")
    assert {label: (each.settings.cache, each.full_only) for label, each in warm.items()} == {
        "4, warm": ("warm", False), "8, warm": ("warm", True),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "values", "message"),
    [("batchsize", [4], "setting must be one of"), ("batch_size", [0], "batch_size must be at")],
)
def test_an_unknown_setting_or_value_is_refused(setting, values, message):
    with pytest.raises(ValueError, match=message):
        sweep(BASE, setting, values)


def test_two_values_of_one_label_are_refused():
    message = "labels must differ, got '4' for two values; name the values"
    with pytest.raises(ValueError, match=message):
        sweep(BASE, "batch_size", {"4": 8}, full=[4])
    with pytest.raises(ValueError, match="got 'x' for two values"):
        sweep(BASE, "batch_size", [4, 8], label=lambda n: "x")


def test_groups_keep_what_only_full_mode_measures():
    grouped = in_groups({"warm": sweep(BASE, "batch_size", [4], full=[8])})
    assert {label: each.full_only for label, each in grouped.items()} == {
        "warm: 4": False, "warm: 8": True,
    }  # fmt: skip
