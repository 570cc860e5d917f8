"""What benchmarks conclude from measurements, which themselves take minutes."""

import json
from argparse import Namespace

import pytest

from benchmarks import diagnosis, frame, repeat
from benchmarks.diagnosis import Outcome
from benchmarks.truth import judge
from labkit.analysis.summary import Row


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


@pytest.mark.parametrize(("right", "met"), [(18, True), (17, False)])
def test_nine_of_ten_bottlenecks_must_be_right(right, met):
    outcomes = [RIGHT] * right + [WRONG] * (20 - right)
    assert diagnosis.judge(outcomes)[0][0] == met


@pytest.mark.parametrize(("wrong", "met"), [(2, True), (3, False)])
def test_two_of_twenty_equal_variants_may_be_called_different(wrong, met):
    others = ["no practical difference", "inconclusive", "real but small", "machine unstable", ""]
    equal = (["faster", "slower", "slower"][:wrong] + others * 4)[:20]
    text = f"{wrong} of 20 equal variants are called faster or slower, at most 2"
    assert judge(["slower"], equal)[1] == (met, text)


@pytest.mark.parametrize("verdict", ["faster", "inconclusive", "machine unstable", ""])
def test_every_delayed_variant_must_be_called_slower(verdict):
    text = "1 of 2 delayed variants are called slower"
    assert judge(["slower", verdict], [])[0] == (False, text)


@pytest.mark.parametrize(
    ("shift", "held", "spread"), [(1.0, True, True), (1.02, True, False), (1.1, False, False)]
)
def test_runs_must_agree_as_their_intervals_promise(shift, held, spread):
    def row(x):
        return Row(variant="v", status="ok", normalized_time=x, ci_low=x / 1.05, ci_high=x * 1.05,
                   s=0.01, blocks=3)  # fmt: skip

    times = [0.7, 0.701, 0.7, 0.702, 0.7 * shift, 0.7, 0.701 * shift, 0.7 * shift]
    variant = repeat.Repeated("v", tuple(map(row, times)))
    (holds, _), (spreads, _) = repeat.judge([variant])
    assert (holds, spreads) == (held, spread)
