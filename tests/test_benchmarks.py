"""What benchmarks conclude from measurements, which themselves take minutes."""

import json
from argparse import Namespace

from benchmarks import diagnosis, frame
from benchmarks.diagnosis import Outcome


def test_a_missed_limit_is_printed_saved_and_the_exit_status(tmp_path, capsys):
    report = frame.Report("Speed", Namespace(save=tmp_path / "kept"))
    report.table(("arm", "ratio"), [("faster", "0.5")])
    report.limit(True, "kept")
    assert report.finish() == 0
    report.limit(False, "not kept")
    assert report.finish({"a_s": [1.0]}) == 1
    text = (tmp_path / "kept" / "README.md").read_text()
    assert text == capsys.readouterr().out
    assert "| faster | 0.5   |" in text
    assert text.endswith("- met: kept\n- MISSED: not kept\n")
    assert json.loads((tmp_path / "kept" / "measured.json").read_text())["measured"] == {
        "a_s": [1.0]
    }


RIGHT = Outcome(
    name="slow_transform",
    said="transform",
    predicted=0.44,
    times_s={"broken": [2.0, 2.0], "fixed": [0.8, 0.8]},
)
WRONG = Outcome(**{**vars(RIGHT), "said": "decode"})
SKIPPED = Outcome(name="slow_disk", skipped="no root")
UNTIMED = Outcome(name="small_shared_memory", said="shared memory")
FAILED = Outcome(name="no_workers", failed="exit status 1")


def test_skipped_cases_do_not_count_and_failed_ones_do():
    assert diagnosis.judge([RIGHT, SKIPPED, UNTIMED]) == [
        (True, "the right bottleneck: 2 of 2, at least 90 %"),
        (True, "predicted within 15 % of measured: 1 of 1, at least 80 %"),
    ]
    assert diagnosis.judge([RIGHT, FAILED]) == [
        (False, "the right bottleneck: 1 of 2, at least 90 %"),
        (False, "predicted within 15 % of measured: 1 of 2, at least 80 %"),
    ]
