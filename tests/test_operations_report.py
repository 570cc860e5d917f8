"""Tables of timed operations: every number with its unit, every gap with its reason."""

import json

import pytest
from fake_operations import TIMES_MS, fake_row, fake_run

from labkit import units
from labkit.operations_report import (
    operations_cells,
    operations_markdown,
    operations_rows,
    operations_table,
    operations_text,
)
from labkit.operations_summary import summarize_operations

BROKEN = [
    fake_row("decode", "mine", 0, None, size=size, status="failed", reason="ValueError: a|b")
    for size in ("640x480", "1280x960")
]


def test_the_table_has_a_line_per_library_and_a_pair_of_columns_per_size():
    run = fake_run()
    table = operations_table(run)
    assert list(table.index) == list(TIMES_MS)
    assert list(table.columns) == [
        "640×480", "640×480 ratio [95 % interval]",
        "1280×960", "1280×960 ratio [95 % interval]",
    ]  # fmt: skip
    (row,) = (
        row
        for row in summarize_operations(run)
        if (row.library, row.operation, row.size) == ("opencv", "resize", "1280x960")
    )
    time, ratio = table.loc[("resize", "opencv")].iloc[2:]
    assert time == units.seconds(row.image_s)
    assert ratio == f"{units.normalized(row.ratio)} {units.interval(row.ci_low, row.ci_high)}"
    assert table.loc[("resize", "pillow")].iloc[1] == "baseline"


def test_the_detailed_table_holds_numbers_in_seconds():
    table = operations_table(fake_run(noise=0.0, drift=0.0), detail=True)
    assert table.loc[("resize", "opencv", "640x480"), "image_s"] == pytest.approx(0.11e-3)


def test_rows_go_through_json_as_they_are():
    rows = operations_rows(fake_run(blocks=1, more=BROKEN))
    assert json.loads(json.dumps(rows)) == rows
    assert [row["reason"] for row in rows if row["library"] == "mine"] == ["ValueError: a|b"] * 2


def test_cells_are_the_tables_texts_with_a_header():
    run = fake_run(more=BROKEN)
    header, *lines = operations_cells(run)
    assert header[2:] == list(operations_table(run).columns)
    assert {len(line) for line in lines} == {len(header)}


def test_a_library_that_did_other_work_says_failed_and_why():
    run = fake_run(more=BROKEN)
    assert list(operations_table(run).loc[("decode", "mine")]) == ["failed", "–"] * 2
    line = "- decode by mine, 640×480, 1280×960: failed: ValueError: a|b"
    assert line in operations_text(run).splitlines()
    assert line.replace("|", "\\|") in operations_markdown(run).splitlines()


def test_the_text_fits_a_terminal_and_its_columns_stand_below_each_other():
    lines = operations_text(fake_run()).splitlines()
    start = lines.index("640×480, JPEGs of 118 KB")
    header, rule, *body = lines[start + 2 : start + 4 + len(TIMES_MS)]
    at = header.index("time per image")
    assert all(line[at - 2 : at].isspace() and not line[at].isspace() for line in body)
    assert set(rule) == {"-", " "}
    assert max(map(len, [header, rule, *body])) <= 80


def test_every_form_carries_its_conditions():
    run = fake_run(mode="quick", blocks=3)
    for form in (operations_text(run), operations_markdown(run)):
        for words in ("quick mode · 3 blocks", "one thread", "A/A ratio", "opencv 1.2.3",
                      "document: [000] OpenCV vs PIL", "numbers, no verdicts",
                      "pictures may be enlarged", "lower is faster"):  # fmt: skip
            assert words in form


def test_verdicts_stand_beside_their_ratio_in_full_mode():
    table = operations_table(fake_run(mode="full", blocks=8, noise=0.01))
    assert table.loc[("decode", "opencv")].iloc[1].endswith("], faster")


def test_an_unfinished_or_unstable_run_says_so_first():
    run = fake_run(blocks=2, second=1.5, noise=0.001, status="cancelled")
    run.info["blocks"] = 3
    notes = [line for line in operations_text(run).splitlines() if line.startswith("- ")]
    assert notes[0] == "- cancelled: 2 of 3 blocks are there"
    assert notes[1].startswith("- machine unstable: decoding by pillow, timed twice")


def test_a_run_without_rows_still_makes_its_tables():
    run = fake_run(blocks=0, status="cancelled")
    run.info["blocks"] = 3
    assert operations_table(run).empty
    assert operations_table(run, detail=True).empty
    assert "cancelled: 0 of 3 blocks are there" in operations_text(run)
    assert "cancelled: 0 of 3 blocks are there" in operations_markdown(run)


def test_markdown_lines_have_the_same_number_of_cells():
    lines = [line for line in operations_markdown(fake_run()).splitlines() if line[:1] == "|"]
    assert {line.count("|") for line in lines} == {7}
    assert len(lines) == 2 + len(TIMES_MS)


def test_the_notebooks_table_says_how_its_numbers_came_about():
    run = fake_run()
    for detail in (False, True):
        table = operations_table(run, detail)
        for shown in (table._repr_html_(), repr(table)):
            for words in (run.info["question"], "quick mode · 3 blocks", "A/A ratio", "lower is"):
                assert words in shown
