"""Tables of timed operations: every number with its unit, every gap with its reason."""

import json
from dataclasses import replace
from html import unescape

import pytest
from fake_operations import TIMES_MS, fake_row, fake_run

from labkit import units
from labkit.counted import say_rejected
from labkit.operations_report import (
    operations_cells,
    operations_conditions,
    operations_markdown,
    operations_rows,
    operations_second_lines,
    operations_table,
    operations_text,
)
from labkit.operations_summary import compare_twins, count_blocks, summarize_operations

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
    # Without the second lines, which are indented.
    table = [line for line in lines[start + 2 :] if not line.startswith("    ")]
    header, rule, *body = table[: 2 + len(TIMES_MS)]
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


def test_rejected_and_disturbed_blocks_are_said_with_the_words_of_trials():
    why = "other programs took 70.0 % of a core"
    full = fake_run(mode="full", blocks=9, busy=(2, 5))
    lines = operations_text(full).splitlines()
    assert lines[1].startswith("full mode · 7 blocks, 2 rejected · one thread")
    assert f"- 2 blocks rejected: {why}" in lines
    assert "- 7 of 9 blocks count" in lines
    assert f"- {say_rejected(count_blocks(full).rejected, left_out=True)}" in lines
    lines = operations_text(fake_run(blocks=3, busy=(1,))).splitlines()
    assert lines[1].startswith("quick mode · 3 blocks, 1 disturbed · one thread")
    assert f"- 1 block disturbed (full mode rejects them): {why}" in lines


def test_too_few_blocks_that_count_say_why_there_are_no_verdicts():
    text = operations_text(fake_run(mode="full", blocks=6, busy=(0,)))
    assert "- 5 complete blocks: verdicts need at least 6" in text.splitlines()


def test_every_form_stands_where_every_block_was_rejected():
    run = fake_run(mode="full", blocks=2, busy=(0, 1))
    assert set(operations_table(run).loc[("decode", "opencv")]) == {"missing", units.UNKNOWN}
    assert "full mode · 0 blocks, 2 rejected" in operations_markdown(run)


def test_full_mode_says_its_noise_and_what_shows_in_spite_of_it():
    run = fake_run(mode="full", blocks=8)
    most = max(row.mde for row in summarize_operations(run) if row.mde is not None)
    assert operations_conditions(run)[1] == (
        f"noise floor {units.percent(compare_twins(run).noise)} · "
        f"every ratio shows effects from {units.percent(most)} up"
    )
    assert "noise floor" not in " ".join(operations_conditions(fake_run(mode="quick", blocks=8)))
    assert len(operations_conditions(fake_run(mode="full", blocks=1))) == 2


def test_an_unstable_full_run_says_that_there_are_no_verdicts():
    words = "machine unstable, no verdicts"
    how = {"blocks": 8, "noise": 0.001, "second": 1.5}
    assert words in operations_conditions(fake_run(mode="full", **how))[0]
    assert words not in operations_conditions(fake_run(mode="quick", **how))[0]


def test_what_could_not_be_watched_is_said_in_full_mode():
    run = fake_run(mode="full", blocks=6)
    log = {**run.rows[0]["disturbance"], "other_cores": None}
    blind = replace(run, rows=tuple({**row, "disturbance": log} for row in run.rows))
    said = "no block could be rejected for other programs: not watched here"
    assert said in operations_text(blind)
    assert "not watched" not in operations_text(run)


def test_half_written_lines_are_said():
    torn = replace(fake_run(), set_aside=2)
    assert "- 2 half-written lines set aside: a process was killed" in operations_text(torn)
    assert "half-written" not in operations_text(fake_run())


# --- the second line ----------------------------------------------------------------------


def seen(run, operation, library):
    """The smallest visible effects, by size."""
    return [
        units.percent(row.mde)
        for row in summarize_operations(run)
        if (row.operation, row.library) == (operation, library)
    ]


def test_the_second_line_says_blocks_noise_or_visible_effect_and_that_no_disk_takes_part():
    run = fake_run()
    lines = dict(zip(TIMES_MS, operations_second_lines(run)))
    twins = compare_twins(run)
    ratio = f"A/A {units.normalized(twins.ratio)} {units.interval(twins.low, twins.high)}"
    assert lines["decode", "pillow"] == (
        f"3 blocks · noise floor {units.percent(twins.noise)} ({ratio}) · "
        "JPEG bytes (118 KB, 118 KB) in memory: no disk, no page cache"
    )
    small, large = seen(run, "resize", "opencv")
    assert lines["resize", "opencv"] == (
        f"3 blocks · shows effects from {small} (640×480), {large} (1280×960) up · "
        "pixels in memory: no disk, no page cache"
    )
    # Only decoding by pillow is timed twice.
    assert lines["resize", "pillow"] == "3 blocks · pixels in memory: no disk, no page cache"


def test_the_second_line_of_one_size_speaks_of_that_size_only():
    run = fake_run()
    _, large = seen(run, "decode", "opencv")
    assert operations_second_lines(run, "1280x960")[1] == (
        f"3 blocks · shows effects from {large} up · "
        "JPEG bytes (118 KB) in memory: no disk, no page cache"
    )


def test_blocks_that_differ_between_sizes_are_said_with_their_size():
    run = fake_run(more=[fake_row("crop", "pillow", n, 1e-3) for n in range(2)]
                   + [fake_row("crop", "pillow", 0, 1e-3, size="1280x960")])  # fmt: skip
    assert operations_second_lines(run)[-1].startswith("2 blocks (640×480), 1 block (1280×960) · ")


def test_a_library_without_a_number_has_no_second_line_and_every_form_shows_the_others():
    run = fake_run(more=BROKEN)
    *lines, broken = operations_second_lines(run)
    assert broken == "" and all(lines)
    table = operations_table(run)
    html, shown = unescape(table._repr_html_()), repr(table)
    assert html.count('class="labkit-second"') == shown.count("in memory: no disk") == len(TIMES_MS)
    markdown = operations_markdown(run)
    for line in lines:
        assert f"<small>{line}</small>" in markdown
        assert f">{line}</small>" in html
    # A table of each size: its decoding baseline alone says the noise.
    assert operations_text(run).count("noise floor") == 2
