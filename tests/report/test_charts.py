"""Charts: equal bytes for equal summaries, honest axes, and nothing cut off or overlapping.

Geometry is asked of matplotlib's own text extents after drawing.
Run: python -m pytest tests/test_charts.py
"""

import pickle
import warnings
from xml.etree import ElementTree

import matplotlib
import pytest
from fakes import (
    LABELS,
    fake_info,
    fake_judged_trials,
    fake_media_info,
    fake_trials,
)
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written, texts
from matplotlib.font_manager import fontManager

from labkit import units
from labkit.analysis.summary import summarize
from labkit.report import bars as figures
from labkit.report import captions, charts

SVG = "{http://www.w3.org/2000/svg}"
TIMES = {"original": 1.0, "prefetch_generator": 0.894, "data_prefetcher": 0.891}
PUBLISHED = {"original": 1.0, "prefetch_generator": 0.894, "data_prefetcher": 0.891}
CJK_QUESTION = "当GPU利用率为零时，哪一种方法最有帮助？"
LONG_REASON = (
    "no directory for this medium is configured: write one into labkit.toml and try again!"
)
LONG_NAME = "a variant with a very long name and_an_identifier_of_many_letters_without_any_space"


def make_summary(times=TIMES, *, labels=LABELS, blocks=3, noise=0.02, **info):
    names = [*times, *info.get("skipped", {})]
    trials = fake_trials(times, labels=labels, blocks=blocks, noise=noise) if times else []
    return summarize(fake_info(names, blocks=blocks, **info), trials)


# --- bytes --------------------------------------------------------------------------------


def test_the_same_summary_gives_the_same_files(tmp_path):
    first = figures.save(charts.chart(make_summary(published=PUBLISHED)), tmp_path / "a.b")
    with matplotlib.rc_context({"font.size": 30, "savefig.dpi": 10, "axes.facecolor": "red"}):
        again = figures.save(charts.chart(make_summary(published=PUBLISHED)), tmp_path / "again")
    assert [path.name for path in first] == ["a.b.png", "a.b.svg", "a.b.pdf"]
    for one, other in zip(first, again):
        assert one.read_bytes() == other.read_bytes()


def test_every_word_of_an_svg_is_text_and_its_letters_can_be_drawn_instead():
    figure = charts.chart(make_summary())
    root = ElementTree.fromstring(figures.to_bytes(figure, "svg"))
    written = {"".join(node.itertext()) for node in root.iter(f"{SVG}text")}
    wanted = {line for t in texts(figure) for line in t.get_text().split("\n")}
    assert wanted <= written
    assert len(wanted) > 10
    families = {style for node in root.iter(f"{SVG}text") for style in [node.get("style")]}
    assert all("'DejaVu Sans', Verdana" in style for style in families)
    outlined = ElementTree.fromstring(figures.to_bytes(figure, "svg", outlines=True))
    assert not list(outlined.iter(f"{SVG}text"))


def test_a_figure_can_be_pickled_and_still_shows_itself():
    figure = charts.chart(make_summary({"<b>": 1.0, "&": 0.9}))
    again = pickle.loads(pickle.dumps(figure))
    data, _ = again._repr_mimebundle_(include=None, exclude=None)
    assert data == figure._repr_mimebundle_()[0]
    assert set(data) == {"text/html", "image/png"}
    assert 'alt="' in data["text/html"]
    assert "<b>" not in data["text/html"]


# --- what is shown ------------------------------------------------------------------------


@pytest.mark.parametrize("times", [TIMES, {"a": 1.0, "b": 0.99}, {"a": 1.0, "b": 40.0}])
def test_bars_dots_and_published_figures_stand_on_an_axis_from_zero(times):
    summary = make_summary(times, published=dict.fromkeys(times, 0.891))
    figure = charts.chart(summary)
    (axes,) = figure.axes
    by_marker = {}
    for line in axes.lines:
        by_marker.setdefault(line.get_marker(), []).extend(line.get_xdata())
    low, high = axes.get_xlim()
    assert low == 0
    assert high > max(by_marker["o"])
    assert sorted(by_marker["o"]) == sorted(x for row in summary.rows for x in row.ratios)
    assert by_marker["D"] == [0.891] * (len(times) - 1)  # the baseline's is 1 by definition
    assert "published" in everything_written(figure)
    assert [bar.get_width() for bar in axes.patches] == [r.normalized_time for r in summary.rows]
    # The y axis points down, so the first row is the highest.
    middles = [bar.get_y() for bar in axes.patches]
    assert middles == sorted(middles)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def judged_summary(**info):
    """With an outlier of ssd and a block that is left out."""
    return summarize(fake_media_info(mode="full", blocks=10, **info), fake_judged_trials())


def test_an_outlier_keeps_its_place_and_has_a_mark_of_its_own():
    summary = judged_summary()
    figure = charts.chart(summary)
    dots, marks = set(), []
    for line in figure.axes[0].lines:
        if line.get_marker() == "o":
            is_open = line.get_markerfacecolor() == "none"
            marks += list(line.get_xdata()) if is_open else []
            dots |= set() if is_open else set(line.get_xdata())
    outliers = [row.ratios[i] for row in summary.rows for i in row.outliers]
    assert marks == outliers
    assert summary.rows[1].ratios[summary.rows[1].outliers[0]] in marks
    assert dots == {x for row in summary.rows for x in row.ratios} - set(outliers)
    assert "outlier" in everything_written(figure)
    assert "outlier" not in everything_written(charts.chart(make_summary()))
    assert max(outliers) < figure.axes[0].get_xlim()[1]


def test_a_whisker_that_leaves_the_axis_ends_in_an_arrow():
    summary = make_summary({"a": 1.0, "b": 1.0}, blocks=2, noise=0.5)
    (axes,) = charts.chart(summary).axes
    limit = axes.get_xlim()[1]
    assert summary.rows[1].ci_high > limit
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == ">"] == [limit]


def test_skipped_variants_keep_their_place_and_say_why():
    summary = make_summary(skipped={"dali": "nvidia-dali is not installed"})
    figure = charts.chart(summary)
    assert "skipped: nvidia-dali is not installed" in everything_written(figure)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()][-1] == "dali"
    assert len(figure.axes[0].patches) == len(TIMES)


ORIGIN = {
    "created_utc": "2026-11-21T19:12:22Z",
    "run": "20261121T191222Z-1f2e",
    "provenance": {"machine_id": "7a93da180d42", "cores": 2, "cpu_model": "A CPU with a name " * 5},
}


def test_where_the_numbers_come_from_stands_at_the_foot_in_small_letters():
    summary = make_summary(**ORIGIN)
    figure = charts.chart(summary)
    foot = min(texts(figure), key=lambda t: t.get_window_extent().y0)
    # A line ends between two parts, or inside a long one.
    said = foot.get_text().replace("\n", " ").replace(" · ", " ")
    assert said == captions.origin(summary.info).replace(" · ", " ")
    assert figure.get_label().endswith(f" From: {captions.origin(summary.info)}.")
    assert foot.get_fontsize() == min(t.get_fontsize() for t in texts(figure))
    check_that_all_texts_are_whole_and_apart(figure)


# --- geometry -----------------------------------------------------------------------------

AWKWARD = {
    "one variant": make_summary({"only": 1.0}),
    "nothing measured": make_summary({}, skipped={"a": LONG_REASON, "b": ""}),
    "twelve long names": make_summary({f"{LONG_NAME} {i}": 1 + 0.1 * i for i in range(12)}),
    "long names, long reasons": make_summary(
        {LONG_NAME: 1.0, f"{LONG_NAME} 2": 0.5}, skipped={f"{LONG_NAME} 3": LONG_REASON * 3}
    ),
    "hundredfold noise": make_summary({"a": 1.0, "b": 40.0, "c": 0.01}, blocks=2, noise=1.0),
    "unbreakable question": make_summary(question="W" * 200),
    "Chinese": make_summary({"原始": 1.0, "预取" * 20: 0.9}, question=CJK_QUESTION * 4),
    "outliers": judged_summary(published={"hdd": 1.0, "ssd": 0.86}),
    "dollars": make_summary({"$HOME": 1.0, "$a_b$ \\frac": 0.9}),
    "published far away": make_summary(published={"data_prefetcher": 7.5}),
    "document": make_summary({"a": 1.0, "b": 0.9}, mode="document", blocks=1),
}  # fmt: skip


@pytest.mark.parametrize("summary", AWKWARD.values(), ids=AWKWARD.keys())
def test_no_text_is_cut_or_written_over_on_screen_and_in_print(summary):
    figure = charts.chart(summary)
    check_that_all_texts_are_whole_and_apart(figure)
    check_that_all_texts_are_whole_and_apart(figure, dpi=300)
    assert min(t.get_fontsize() for t in texts(figure)) >= 5  # can be read in print
    written = everything_written(figure)
    for row in summary.rows:
        if row.normalized_time is not None:
            assert units.normalized(row.normalized_time) in written
            assert row.verdict in ("baseline", "") or row.verdict in written


@pytest.mark.skipif(
    not {font.name for font in fontManager.ttflist} & set(figures.CJK_FONTS),
    reason="no CJK font is installed",
)
def test_chinese_is_written_with_a_font_that_has_it(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing from font.*")
        figure = charts.chart(make_summary({"原始": 1.0, "预取": 0.9}, question=CJK_QUESTION))
        figures.save(figure, tmp_path / "chart")
