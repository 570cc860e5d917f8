"""Runs below one another: one axis from 0, every panel its own baseline.

Run: python -m pytest tests/test_side_by_side.py
"""

from dataclasses import replace

import pytest
from fake_runs import THEIRS, fake_machine_run, their_run
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written, texts

from labkit import units
from labkit.report.side_by_side import side_by_side

LONG = "a variant with a very long name and_an_identifier_of_many_letters_without_any_space"
REASON = "no directory for this medium is configured: write one into labkit.toml and try again!"


def test_panels_share_one_axis_from_zero_and_hold_their_own_runs_bars_and_dots():
    runs = [fake_machine_run(), their_run(seed=1), fake_machine_run({"original": 1.0, "slow": 7.0})]
    figure = side_by_side(runs)
    assert len(figure.axes) == 3
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    low, high = figure.axes[0].get_xlim()
    assert low == 0
    for axes, run in zip(figure.axes, runs):
        rows = run.summary.rows
        assert [bar.get_width() for bar in axes.patches] == [row.normalized_time for row in rows]
        dots = [x for line in axes.lines if line.get_marker() == "o" for x in line.get_xdata()]
        assert sorted(dots) == sorted(x for row in rows for x in row.ratios)
        assert max(dots) < high
        assert 1 in {line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"}
        assert axes.patches[0].get_hatch() == "////"  # its own baseline


def test_every_panel_says_mode_minute_machine_and_stand_ins_where_they_differ():
    written = everything_written(side_by_side([fake_machine_run(), their_run()]))
    for part in (
        "quick mode · 3 blocks", "full mode · 8 blocks",
        "2025-01-02 03:04 UTC · 2 cores", "(machine 7a93da)",
        "2025-03-04 05:06 UTC · 16 cores", "NVIDIA H200 (machine abcdef)",
        "Emulated accelerator (matched, 11.2 ms/", "accelerator: cuda:H200",
        "each run against its own baseline; no run is divided by another",
    ):  # fmt: skip
        assert written.count(part) == 1, part


def test_each_runs_origin_stands_at_the_foot_and_its_numbers_in_the_description():
    runs = [fake_machine_run(), their_run()]
    figure = side_by_side(runs)
    foot = min(texts(figure), key=lambda t: t.get_window_extent().y0).get_text()
    assert "torch 2.13.0" in foot and "torch 2.12.0" in foot
    assert "run mine" in foot and "run theirs" in foot
    for run in runs:
        for row in run.summary.rows:
            assert f"{row.variant}: {units.normalized(row.normalized_time)}" in figure.get_label()
    assert "ada" not in everything_written(figure)


NOTHING = replace(fake_machine_run(skipped={"dali": REASON}), trials=())
AWKWARD = {
    "four runs": [fake_machine_run(), their_run()] * 2,
    "six runs": [fake_machine_run(), their_run(), fake_machine_run(provenance=THEIRS)] * 2,
    "long names": [fake_machine_run({LONG: 1.0, f"{LONG} 2": 0.5}, name=LONG), their_run()],
    "nothing measured": [NOTHING, their_run(), NOTHING],
    "nothing known": [fake_machine_run(provenance={}, created_utc=None)] * 2,
    "far apart": [fake_machine_run({"original": 1.0, "b": 40.0}, blocks=2, noise=1.0), their_run()],
    "Chinese": [fake_machine_run({"原始": 1.0, "预取" * 20: 0.9}, question="哪一种最快？" * 9)] * 3,
}  # fmt: skip


@pytest.mark.parametrize("runs", AWKWARD.values(), ids=AWKWARD.keys())
def test_no_text_is_clipped_and_no_two_texts_overlap(runs):
    figure = side_by_side(runs)
    check_that_all_texts_are_whole_and_apart(figure, dpi=200, axes_share=0.1)
    for run in runs:
        for row in run.summary.rows:
            if row.verdict:
                assert row.verdict in everything_written(figure)
