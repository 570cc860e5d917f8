"""The chart of timed operations: axes from 0, true bars, nothing cut off or overlapping."""

import pytest
from fake_operations import SIZES, TIMES_MS, fake_row, fake_run
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written, texts

from labkit import figures
from labkit.operations_chart import describe_operations, operations_chart
from labkit.operations_summary import summarize_operations

LONG_REASON = (
    "ValueError: not the same work as pillow: 99.0 % of the values must be at most 1 apart, "
    "got 63.1 %, the farthest 107 apart"
)


def panels(run):
    """The rows of every panel, in the order of the figure's axes."""
    rows = summarize_operations(run)
    keys = [(o, size) for o in dict.fromkeys(row.operation for row in rows) for size in SIZES]
    return [[row for row in rows if (row.operation, row.size) == key] for key in keys]


def test_every_panel_starts_at_zero_and_its_bars_are_the_times():
    run = fake_run()
    figure = operations_chart(run)
    assert len(figure.axes) == len(panels(run)) == 6
    for axes, rows in zip(figure.axes, panels(run)):
        assert [bar.get_width() for bar in axes.patches] == [row.image_s for row in rows]
        assert {bar.get_x() for bar in axes.patches} == {0}
        low, high = axes.get_xlim()
        assert low == 0
        assert high > max(s for row in rows for s in row.blocks_s)
        dots = [x for line in axes.lines if line.get_marker() == "o" for x in line.get_xdata()]
        assert sorted(dots) == sorted(s for row in rows for s in row.blocks_s)


def test_names_stand_at_the_first_size_and_times_at_every_bar():
    run = fake_run()
    figure = operations_chart(run)
    names = [[t.get_text() for t in axes.get_yticklabels()] for axes in figure.axes]
    assert names[:2] == [["pillow", "opencv"], ["", ""]]
    written = [t.get_text() for t in texts(figure)]
    assert written.count("640×480, 118 KB") == 1
    assert {"decode", "resize", "normalize"} <= set(written)


def test_libraries_differ_by_hatch_or_outline_without_colours():
    figure = operations_chart(fake_run())
    for axes in figure.axes:
        hatches = [bar.get_hatch() for bar in axes.patches]
        assert len(set(hatches)) == len(hatches)


def test_the_same_run_gives_the_same_bytes():
    first, again = (figures.to_bytes(operations_chart(fake_run()), "png") for _ in range(2))
    assert first == again


def test_the_description_holds_every_time_and_reason():
    failed = [fake_row("flip", "numpy", 0, None, status="failed", reason=LONG_REASON)]
    run = fake_run(more=failed, noise=0.0, drift=0.0)
    said = describe_operations(run)
    assert "decode at 640×480: pillow 2.00 ms, opencv 1.40 ms (0.700 of pillow's)." in said
    assert LONG_REASON in said
    assert operations_chart(run).get_label() == said


def test_a_figure_shows_itself_in_a_notebook_with_its_description():
    data, _ = operations_chart(fake_run())._repr_mimebundle_(include=None, exclude=None)
    assert set(data) == {"text/html", "image/png"}
    assert 'alt="Which library' in data["text/html"]


FOUR = ("320x240", "640x480", "1280x960", "1920x1440")
MANY = {(f"operation {i}", name): 1.0 for i in range(3) for name in ("pillow", "opencv", "b", "c")}
AWKWARD = {
    "three blocks": fake_run(),
    "four sizes": fake_run(sizes=FOUR),
    "one block": fake_run(blocks=1, mode="document"),
    "no blocks": fake_run(blocks=0),
    "hundredfold": fake_run({**TIMES_MS, ("resize", "torch"): 110.0}, noise=1.0, blocks=2),
    "many libraries": fake_run(MANY, sizes=FOUR),
    "failed": fake_run(
        more=[
            fake_row("resize", "torch", 0, None, size=size, status="failed", reason=LONG_REASON)
            for size in SIZES
        ]
    ),
    "unstable": fake_run(second=1.5, noise=0.001, question="Which is faster? " * 12),
    "microseconds and minutes": fake_run(
        {("flip", "pillow"): 0.0011, ("flip", "opencv"): 0.0123, ("rotate", "pillow"): 99e3}
    ),
}


@pytest.mark.parametrize("run", AWKWARD.values(), ids=AWKWARD.keys())
def test_no_text_is_clipped_and_no_two_texts_overlap(run):
    check_that_all_texts_are_whole_and_apart(operations_chart(run), axes_share=0.05)


@pytest.mark.parametrize("name", ["three blocks", "four sizes", "no blocks", "failed", "unstable"])
def test_a_column_has_room_for_one_size_and_says_so(name):
    run = AWKWARD[name]
    figure = operations_chart(run, figures.COLUMN)
    check_that_all_texts_are_whole_and_apart(figure, dpi=300, axes_share=0.5)
    assert min(t.get_fontsize() for t in texts(figure)) >= 5
    rows = summarize_operations(run)
    if rows:
        sizes = list(dict.fromkeys(row.size for row in rows))
        shown = sizes[len(sizes) // 2]
        written = everything_written(figure)
        assert f"{shown.replace('x', '×')} only; the table holds the other sizes" in written
        bars = [bar.get_width() for axes in figure.axes for bar in axes.patches]
        assert bars == [row.image_s for row in rows if row.size == shown and row.image_s]
    # Whoever cannot see it is told of every size.
    assert figure.get_label() == describe_operations(run)


def test_where_the_numbers_come_from_stands_at_the_foot():
    run = fake_run(created_utc="2026-11-21T19:12:22Z")
    foot = min(texts(operations_chart(run)), key=lambda t: t.get_window_extent().y0)
    assert foot.get_text() == "run nowhere · 2026-11-21 19:12 UTC"
