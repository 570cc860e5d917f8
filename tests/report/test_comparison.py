"""Runs beside one another: what may stand together, and nothing computed across them."""

import re

import pytest
from fake_runs import fake_grouped_run, fake_machine_run, their_run

import labkit as lab
from labkit import units


@pytest.mark.parametrize(
    ("runs", "got"),
    [
        ([], "0 of none"),
        ([fake_machine_run(), fake_machine_run(experiment="storage")], "2 of prefetching, storage"),
        ([fake_grouped_run()], "1 of operations"),
        ([fake_machine_run()] * 7, "7 of prefetching"),
    ],
)
def test_what_cannot_stand_side_by_side_is_refused_by_name(runs, got):
    message = f"runs must be 1 to 6 runs of one experiment without groups, got {got}; show others"
    with pytest.raises(ValueError, match=re.escape(message)):
        lab.compare(runs)


def test_every_column_is_what_its_run_says_alone_whatever_stands_beside_it():
    mine, theirs = fake_machine_run(), their_run()
    both = lab.compare([mine, theirs]).table().data
    for run, column in zip((mine, theirs), both.columns):
        base, *others = run.summary.rows
        assert both.loc[base.variant, column] == "1.000, baseline"
        for row in others:
            said = units.normalized(row.normalized_time)
            said += f" {units.interval(row.ci_low, row.ci_high)}"
            said += f", {row.verdict}" if row.verdict else ""
            assert both.loc[row.variant, column] == said
    assert both.iloc[:, 0].tolist() == lab.compare([mine]).table().data.iloc[:, 0].tolist()
    assert "faster" in both.iloc[2, 1] and "faster" not in both.iloc[2, 0]  # quick speaks none


def test_variants_stand_in_line_and_what_a_run_lacks_is_said():
    mine = fake_machine_run({"original": 1.0, "dali": 0.8}, skipped={"ffcv": "not installed"})
    theirs = fake_machine_run({"original": 1.0, "both": 0.9, "dali": 0.5})
    table = lab.compare([mine, theirs]).table().data
    assert list(table.index) == ["original", "dali", "ffcv", "both"]
    assert table.loc["ffcv"].tolist() == ["skipped: not installed", "– not in this run"]
    assert table.loc["both"].iloc[0] == "– not in this run"


def test_the_table_says_that_runs_are_not_divided_and_what_each_stands_on():
    table = lab.compare([fake_machine_run(), their_run()]).table()
    for shown in (table._repr_html_(), " ".join(repr(table).split())):
        for part in (
            "each run against its own baseline; no run is divided by another",
            "2 cores, AMD EPYC, no GPU (machine 7a93da) · torch 2.13.0 · run mine",
            "Simulated GPU, 460 images/s · quick mode · 3 blocks",
            "16 cores, Intel Xeon, NVIDIA H200 (machine abcdef) · ",
            "noise floor",
        ):
            assert part in shown
        assert "ada" not in shown
