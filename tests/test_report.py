"""Tables: the same numbers in every form, and no free text that breaks one.

Run: python -m pytest tests/test_report.py
"""

import json
import re

from fakes import fake_info, fake_trial, fake_trials

from labkit import report
from labkit.summary import summarize

NASTY = '<script>alert("x")</script> & | `a` *b* [c](d)'


def make_summary(times=None, *, blocks=3, **info):
    times = times or {"original": 1.0, "data_prefetcher": 0.5}
    names = [*times, *info.get("skipped", {})]
    return summarize(fake_info(names, blocks=blocks, **info), fake_trials(times, blocks=blocks))


# --- tables -------------------------------------------------------------------------------


def test_the_table_has_five_columns_of_text():
    trials = [
        fake_trial("base", 0, "A1", 2.0), fake_trial("base", 0, "A2", 2.0),
        fake_trial("other", 0, "", 1.0),
        fake_trial("base", 1, "A1", 2.0), fake_trial("base", 1, "A2", 2.0),
        fake_trial("other", 1, "", 1.0),
    ]  # fmt: skip
    names = ["base", "other", "dali"]
    info = fake_info(names, published={"other": 0.61}, skipped={"dali": "not installed"})
    table = report.table(summarize(info, trials)).reset_index()
    assert list(table.columns) == [
        "variant", "two-epoch time", "normalized time [95 % interval]", "document", "verdict",
    ]  # fmt: skip
    assert table.values.tolist() == [
        ["base", "2.00 s", "1.000", "–", "–"],
        ["other", "1.00 s", "0.500 [0.500, 0.500]", "0.610", "–"],
        ["dali", "–", "–", "–", "skipped: not installed"],
    ]


def test_the_time_column_says_how_many_epochs_it_adds_up():
    trials = []
    for trial in fake_trials({"base": 1.0, "other": 0.9}):
        row = trial.to_row()
        row["epochs"] = row["epochs"][:1]
        trials.append(type(trial).from_row(row))
    summary = summarize(fake_info(["base", "other"]), trials)
    assert report.table(summary).columns[0] == "one-epoch time"
    assert summary.rows[0].epoch2_s is None


def test_the_detailed_table_keeps_unrounded_numbers_and_labels():
    summary = make_summary(skipped={"dali": "not installed"})
    table = report.table(summary, detail=True)
    assert table.loc["data_prefetcher", "normalized_time"] == summary.rows[1].normalized_time
    assert table.loc["original", "storage"] == "real"
    assert table["time_s"].isna().tolist() == [False, False, True]


def test_rows_survive_json():
    summary = make_summary(published={"data_prefetcher": 0.891}, skipped={"dali": "no"})
    back = json.loads(json.dumps(report.rows(summary), allow_nan=False))
    assert [row["variant"] for row in back] == ["original", "data_prefetcher", "dali"]
    assert back[1]["ratios"] == list(summary.rows[1].ratios)
    assert (back[1]["published"], back[2]["normalized_time"]) == (0.891, None)
    wanted = "ci_low ci_high blocks time_s images_per_s verdict gpu_util status labels reason"
    assert set(wanted.split()) <= set(back[0])


def test_the_terminal_table_is_aligned_also_with_chinese_names():
    lines = report.text(make_summary({"original": 1.0, "数据预取": 0.5})).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("variant"))
    # A Chinese letter takes two columns of a terminal, so four of them take eight.
    latin, chinese = (
        re.search(r"\d\.\d{3}", line).start() for line in lines[start + 2 : start + 4]
    )
    assert latin == chinese + 4
    assert not any(line.endswith(" ") for line in lines)


def test_the_terminal_table_says_under_which_conditions():
    summary = make_summary(blocks=3, notes=["one image was unreadable"], status="cancelled")
    question, stand_ins, conditions, *rest = report.text(summary).splitlines()
    assert question == summary.question
    assert stand_ins == "Emulated accelerator (matched, 11.2 ms/image)"
    assert "quick mode · 3 blocks · storage: real" in conditions
    assert f"A/A ratio {summary.aa_ratio:.3f} [" in conditions
    assert "- one image was unreadable" in rest


def test_markdown_cells_hold_any_text():
    summary = make_summary(skipped={NASTY: NASTY + "\nsecond line"}, question=NASTY)
    lines = [line for line in report.markdown(summary).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {6}
    assert "<script>" not in re.sub(r"\\<", "", report.markdown(summary))
    assert "](d)" not in report.markdown(summary).replace(r"\](d)", "")


def test_a_long_reason_is_shown_whole():
    reason = "needs a library that is not installed here; " * 3 + "pip install it"
    shown = report.table(make_summary(skipped={"dali": reason}))
    assert reason in shown._repr_html_()
    assert reason in repr(shown)
