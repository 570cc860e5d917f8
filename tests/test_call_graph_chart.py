"""The call graph's picture: nothing cut or overlapping, every name whole in its text."""

from dataclasses import replace

import pytest
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written, texts

from labkit.call_graph_chart import boxes, call_graph_chart, describe_call_graph
from labkit.diagnosis.call_graph import CallGraph, tree
from labkit.diagnosis.frames import MAIN, WORKERS, Place
from labkit.figures import COLUMN, WIDE, to_bytes

LONG = "RandomPerspectiveWithBorderReflectionAndColorJitter.apply_to_image_and_boxes"
NEXT, WAIT = Place("next batch", "", 0), Place("waiting for workers", "", 0)
STEP = Place("train_step", "train.py", 40)
GETITEM = Place("Photos.__getitem__", "train.py", 7)
DECODE, RESIZE = Place("imdecode", "built-in", 0), Place("resize", "built-in", 0)
JITTER = Place(LONG, "augmentations/geometric.py", 1200)
COLLATE = Place("default_collate", "torch/utils/data/_utils/collate.py", 300)

MAIN_TIMES = {
    (NEXT, WAIT): 2.9,
    (NEXT,): 0.1,
    (STEP,): 0.2,
    (STEP, Place("relu_", "built-in", 0)): 1.8,
}
WORKER_TIMES = {
    (GETITEM,): 0.4, (GETITEM, DECODE): 9.0, (GETITEM, RESIZE): 1.1, (GETITEM, JITTER): 3.0,
    (GETITEM, JITTER, DECODE): 1.0, (COLLATE,): 2.0, (Place("waiting for the loop", "", 0),): 1.5,
    **{(GETITEM, Place(f"tiny_{i}", "train.py", i)): 0.08 for i in range(12)},
}  # fmt: skip


def graph(main=MAIN_TIMES, workers=WORKER_TIMES, **changes):
    return CallGraph(
        main=tree(main, MAIN), workers=tree(workers, WORKERS) if workers else None,
        worker_count=4 if workers else 0, seconds=5.0, steps=37, notes=(), error=None,
    ) if not changes else replace(graph(main, workers), **changes)  # fmt: skip


DEEP = {
    tuple(Place(f"function_{i}_of_many_in_a_row", "deep.py", i) for i in range(n)): 1.0
    for n in range(1, 9)
}
WIDE_TREE = {(Place(f"function_{i}", "wide.py", i),): 1.0 for i in range(60)}
GRAPHS = {
    "main and workers": graph(),
    "main only": graph(workers=None),
    "deep": graph(main=DEEP),
    "many alike": graph(main=WIDE_TREE),
    "nothing seen": graph(main={}),
    "broken off": graph(error=ValueError("no photo 12"), notes=("a note that is as long as " * 9,)),
}


@pytest.mark.parametrize("sheet", [WIDE, COLUMN], ids=["wide", "column"])
@pytest.mark.parametrize("name", GRAPHS)
def test_no_text_is_cut_or_written_over(name, sheet):
    figure = call_graph_chart(GRAPHS[name], sheet, origin="a machine · 2026-11-22 14:03 UTC")
    check_that_all_texts_are_whole_and_apart(figure)
    check_that_all_texts_are_whole_and_apart(figure, dpi=300)


def test_labels_stay_within_their_boxes():
    figure = call_graph_chart(graph())
    axes = figure.axes[0]
    frames = [patch.get_window_extent() for patch in axes.patches]
    for text in texts(figure):
        if text.axes is axes and "%" in text.get_text():
            text.set_bbox(None)
            box = text.get_window_extent()
            assert any(
                frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 + 1
                and box.y1 <= frame.y1 + 1
                for frame in frames
            ), text.get_text()  # fmt: skip


def test_a_long_name_is_shortened_in_the_picture_and_whole_in_its_text():
    figure = call_graph_chart(graph())
    written = everything_written(figure)
    assert LONG not in written and f"{LONG[:8]}" in written and "…" in written
    assert LONG in figure.get_label()
    assert figure.get_label() == describe_call_graph(graph())
    assert "workers (4), 19.0 s added up: Photos.__getitem__ 81.5 %" in figure.get_label()


def test_a_box_is_as_high_as_its_share_and_starts_where_its_caller_does():
    drawn = {box.label: box for box in boxes(graph().workers) if box.depth < 2}
    outer, inner = drawn["Photos.__getitem__"], drawn["imdecode"]
    assert outer.share == pytest.approx(15.46 / 18.96)
    assert (inner.depth, outer.depth) == (1, 0)
    assert inner.top_in == outer.top_in
    assert inner.height_in / outer.height_in == pytest.approx(9.0 / 15.46)


def test_functions_too_thin_for_text_are_one_box():
    drawn = [box for box in boxes(graph().workers) if box.depth == 1]
    assert drawn[-1].label == "other" and not any("tiny" in box.label for box in drawn)
    assert sum(box.share for box in drawn) == pytest.approx((15.46 - 0.4) / 18.96)


def test_a_function_that_only_passes_on_shares_a_box():
    labels = [box.label for box in boxes(graph(main={(STEP, NEXT, WAIT): 1.0}).main)]
    assert labels == ["train_step › next batch › waiting for workers"]


def test_an_early_end_is_said():
    assert "ended early: ValueError: no photo 12" in everything_written(
        call_graph_chart(GRAPHS["broken off"])
    )


def test_equal_graphs_give_equal_bytes():
    one, other = (to_bytes(call_graph_chart(graph()), "png") for _ in range(2))
    assert one == other


def test_it_shows_itself_in_a_notebook():
    data, _ = call_graph_chart(graph())._repr_mimebundle_()
    assert 'alt="Where do the main process' in data["text/html"]
