"""Costs: seconds once against seconds per epoch, said only where there is a gain."""

import math

import pytest
from fakes import fake_info, fake_trials

from labkit.costs import cost_lines, costs, costs_table
from labkit.summary import summarize

DATA = {"images": 1000, "bytes": 100_000_000, "folder": "data/photos"}


def made(pack_s, size_bytes=100_000_000):
    return {"folder": "packs/x", "images": 1000, "bytes": size_bytes, "pack_s": pack_s}


def run(times, made_of, *, mode="full", blocks=10, noise=0.002, **info):
    """The baseline takes 2 s for two epochs of 100 images: 10 s for an epoch of all images."""
    told = fake_info(
        list(times), mode=mode, blocks=blocks, data=DATA, costs=made_of,
        calibration={"images": 100}, **info,
    )  # fmt: skip
    trials = fake_trials(times, blocks=blocks, noise=noise)
    return told, summarize(told, trials)


def by_name(found):
    return {cost.variant: cost for cost in found}


def test_seconds_once_over_seconds_saved_per_epoch_of_all_images():
    times = {"original": 1.0, "prefetch_generator": 0.8, "data_prefetcher": 0.5}
    info, summary = run(
        times, {"prefetch_generator": made(7.0), "data_prefetcher": made(50.0, 250_000_000)}
    )
    found = by_name(costs(info, summary))
    epoch_s = 10 * summary.rows[0].time_s / 2
    one, other = found["prefetch_generator"], found["data_prefetcher"]
    assert one.saved_s == pytest.approx(0.2 * epoch_s, rel=0.05)
    assert one.pays_after == pytest.approx(7.0 / one.saved_s, abs=1)
    assert one.pays_after >= 7.0 / one.saved_s  # whole epochs
    assert other.times_original == 2.5
    assert found["original"].remark == "baseline"
    assert found["original"].size_bytes == DATA["bytes"]


@pytest.mark.parametrize(("time", "remark"), [(1.0, "no practical difference"), (1.3, "slower")])
def test_what_does_not_gain_never_pays(time, remark):
    info, summary = run({"original": 1.0, "both": time}, {"both": made(1.0)})
    cost = by_name(costs(info, summary))["both"]
    assert (cost.pays_after, cost.remark) == (None, remark)
    (line,) = cost_lines(costs(info, summary), summary)
    assert line == "No gain that would earn back the making: both"


def test_what_the_baseline_reads_too_has_nothing_to_earn_back():
    for time in (0.5, 1.0):
        packs = dict.fromkeys(("original", "both"), made(9.0))
        info, summary = run({"original": 1.0, "both": time}, packs)
        cost = by_name(costs(info, summary))["both"]
        assert (cost.pays_after, cost.remark) == (None, "the baseline reads the same")
        assert cost_lines(costs(info, summary), summary) == []


def test_without_a_verdict_it_is_by_these_numbers_only():
    info, summary = run({"original": 1.0, "both": 0.5}, {"both": made(1.0)}, mode="quick", blocks=3)
    (line,) = cost_lines(costs(info, summary), summary)
    assert line.endswith("by these numbers (quick mode speaks no verdict)")
    assert "earned back after 1 epoch" in line


def test_a_pack_that_was_there_has_unknown_seconds():
    info, summary = run({"original": 1.0, "both": 0.5}, {"both": made(None)})
    cost = by_name(costs(info, summary))["both"]
    assert (cost.pays_after, cost.remark) == (None, "made elsewhere or stopped: seconds unknown")
    assert cost_lines(costs(info, summary), summary) == []


def test_packing_and_copying_are_added_up():
    copied = {**made(3.0), "copy_s": 4.0}
    info, summary = run({"original": 1.0, "both": 0.5}, {"both": copied})
    assert by_name(costs(info, summary))["both"].made_s == 7.0


def test_where_all_read_the_data_as_it_is_there_is_nothing_to_say():
    info, summary = run({"original": 1.0, "both": 0.5}, {})
    assert costs(info, summary) == []


def test_the_table_shows_what_was_counted_and_a_dash_for_the_unknown():
    reads = {"original": {"opens": 1.0, "calls": 2.25, "requests": None}}
    info, summary = run({"original": 1.0, "both": 0.5}, {"both": made(2.0)}, reads=reads)
    table = costs_table(costs(info, summary))
    original, both = table.loc["original"], table.loc["both"]
    assert list(original[["opened per image", "read calls per image"]]) == ["1", "2.25"]
    assert original["disk requests per image"] == both["opened per image"] == "–"
    assert both["to make"] == "2.00 s"
    assert both["earned back after"].endswith("epoch")


def test_beside_a_baseline_that_is_a_pack_only_the_difference_has_to_pay():
    times = {"original": 1.0, "both": 0.5}
    info, summary = run(times, {"original": made(20.0), "both": made(26.0)})
    cost = by_name(costs(info, summary))["both"]
    assert (cost.made_s, cost.pays_after) == (26.0, math.ceil(6.0 / cost.saved_s))
    info, summary = run(times, {"original": made(20.0), "both": made(1.0)})
    assert by_name(costs(info, summary))["both"].pays_after == 0
