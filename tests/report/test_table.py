"""Tables: the same numbers in every form, and no free text that breaks one.

Run: python -m pytest tests/test_report.py
"""

import json
import re

from fakes import (
    CHECKED,
    fake_info,
    fake_judged_trials,
    fake_media_info,
    fake_trial,
    fake_trials,
)

from labkit.analysis.summary import summarize
from labkit.report import table as report

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


def test_the_terminal_table_is_aligned_also_with_chinese_names():
    lines = report.text(make_summary({"original": 1.0, "数据预取": 0.5})).splitlines()
    # A Chinese letter takes two columns of a terminal, so four of them take eight.
    latin, chinese = (
        re.search(r"\d\.\d{3}", line).start()
        for name in ("original", "数据预取")
        for line in lines
        if line.startswith(name)
    )
    assert latin == chinese + 4
    assert not any(line.endswith(" ") for line in lines)


def test_the_terminal_table_says_under_which_conditions():
    summary = make_summary(blocks=3, notes=["one image was unreadable"], status="cancelled")
    question, stand_ins, conditions, *rest = report.text(summary).splitlines()
    assert question == summary.question
    assert stand_ins == "Emulated accelerator (matched, 11.2 ms/image)"
    assert "quick mode · 3 blocks · storage: real" in conditions
    assert any(f"(A/A {summary.aa_ratio:.3f} [" in line for line in rest)
    assert "- one image was unreadable" in rest


def test_markdown_cells_hold_any_text():
    summary = make_summary(skipped={NASTY: NASTY + "\nsecond line"}, question=NASTY)
    lines = [line for line in report.markdown(summary).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {6}
    assert "<script>" not in re.sub(r"\\<", "", report.markdown(summary))
    assert "](d)" not in report.markdown(summary).replace(r"\](d)", "")


# --- second lines -------------------------------------------------------------------------


def judged_summary(**info):
    info = fake_media_info(mode="full", blocks=10, **info)
    info["variants"] |= {name: {"storage": name} for name in info.get("skipped", {})}
    return summarize(info, fake_judged_trials())


def test_in_a_terminal_each_row_is_followed_by_what_it_rests_on():
    summary = judged_summary(skipped={"nvme": "not named"}, **CHECKED)
    lines = report.text(summary).splitlines()
    for row, second in zip(summary.rows, report.second_lines(summary)):
        (at,) = [i for i, line in enumerate(lines) if line.startswith(f"{row.variant}  ")]
        below = []
        for line in lines[at + 1 :]:
            if not line.startswith("    "):
                break
            below.append(line.strip())
        assert " ".join(below) == second
    assert not second  # the last row was skipped
    assert any(line.startswith("- throttled checked: 80.0 of 81.0 files/s") for line in lines)


def test_every_field_of_a_row_survives_json_as_what_it_is():
    summary = judged_summary()
    back = json.loads(json.dumps(report.rows(summary), allow_nan=False))
    assert back == report.rows(summary)  # lists, not tuples
    (place,) = back[1]["outliers"]
    assert back[1]["ratios"][place] == max(back[1]["ratios"])
    assert (back[1]["left_out"], back[1]["agreement"]) == (1, "inconclusive")
    detail = report.table(summary, detail=True)
    assert {"outliers", "left_out", "mde", "agreement", "level"} <= set(detail.columns)


def test_the_notebooks_table_says_what_it_stands_on():
    summary = judged_summary(**CHECKED)
    table = report.table(summary)
    for shown in (repr(table), table._repr_html_().replace("&quot;", '"')):
        for words in (
            summary.question,
            "Throttled storage (7200 rpm: 81 reads/s, 106 MB/s)",
            "full mode · 9 blocks, 1 rejected",
            "throttled checked: 80.0 of 81.0 files/s",
            "1 block rejected: ",
        ):
            assert words in shown
