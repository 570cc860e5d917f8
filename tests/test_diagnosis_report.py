"""What `benchmarks.diagnosis` concludes from its cases, which themselves take half an hour.

Run: python -m pytest tests/test_diagnosis_report.py
"""

import json
from dataclasses import replace

import pytest

from benchmarks.diagnosis_report import (
    Outcome,
    judge,
    save,
)

RIGHT = Outcome(
    name="slow_transform",
    planted="transform",
    remedy="faster transform",
    said="transform",
    predicted=0.44,
    taken=[(2.0, 0.8), (2.0, 0.8)],
)
SKIPPED = Outcome(name="slow_disk", planted="storage", remedy="faster medium", skipped="no root")
UNTIMED = Outcome(
    name="small_shared_memory",
    planted="shared memory",
    remedy="smaller batches to send",
    said="shared memory",
    timed=False,
)
FAILED = Outcome(
    name="no_workers", planted="workers", remedy="more workers", failed="exit status 1"
)


def test_what_is_skipped_does_not_count_and_what_failed_does():
    assert judge([RIGHT, SKIPPED, UNTIMED]) == (
        [
            "met    the right bottleneck: 2 of 2 (100.0 %), target 90 %",
            "met    predicted within 15 % of measured: 1 of 1 (100.0 %), target 80 %",
        ],
        True,
    )
    lines, met = judge([RIGHT, FAILED])
    assert not met
    assert lines[0].startswith("MISSED the right bottleneck: 1 of 2 (50.0 %)")
    assert lines[1].startswith("MISSED predicted within 15 % of measured: 1 of 2")


@pytest.mark.parametrize(("right", "met"), [(18, True), (17, False)])
def test_nine_of_ten_must_be_right(right, met):
    found = [RIGHT] * right + [replace(RIGHT, said="decode")] * (20 - right)
    assert judge(found)[1] == met


def test_a_run_is_kept_with_its_cases_and_machine(tmp_path):
    save([RIGHT, FAILED], tmp_path / "kept", ["made up"], {"cores": 2}, "2026-11-22T10:00:00Z")
    kept = json.loads((tmp_path / "kept" / "cases.json").read_text())
    assert kept["cases"][0]["taken"] == [[2.0, 0.8], [2.0, 0.8]]
    assert kept["cases"][0]["measured"] == pytest.approx(0.4)
    assert kept["provenance"] == {"cores": 2}
    assert "## " not in (tmp_path / "kept" / "README.md").read_text()
