"""Charts: equal bytes for equal summaries, honest axes, and nothing cut off or overlapping.

Geometry is asked of matplotlib's own text extents after drawing.
Run: python -m pytest tests/test_charts.py
"""

import itertools
import pickle
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import matplotlib
import pytest
from fakes import (
    LABELS,
    fake_info,
    fake_judged_trials,
    fake_media_info,
    fake_throttled_hdd,
    fake_trials,
)
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written, texts
from matplotlib.colors import to_rgb
from matplotlib.font_manager import fontManager

from labkit import charts, figures, units
from labkit.epoch_chart import LOOKS as EPOCH_LOOKS
from labkit.row_figure import ROW_IN
from labkit.summary import summarize

SVG = "{http://www.w3.org/2000/svg}"
SMALLEST_PT = 5  # that can be read in print
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


def test_saving_twice_changes_nothing_and_leaves_matplotlib_as_it_was():
    before = dict(matplotlib.rcParams)
    figure = charts.chart(make_summary())
    assert figures.to_bytes(figure, "svg") == figures.to_bytes(figure, "svg")
    assert figures.to_bytes(figure, "png") == figures.to_bytes(figure, "png")
    assert dict(matplotlib.rcParams) == before


def test_charts_drawn_in_several_threads_are_equal():
    summary = make_summary(published=PUBLISHED)

    def draw(_):
        return figures.to_bytes(charts.chart(summary), "png", dpi=60)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(draw, range(8)))) == 1


def test_files_start_as_their_format_says_and_pdf_text_is_truetype():
    figure = charts.chart(make_summary())
    assert figures.to_bytes(figure, "png").startswith(b"\x89PNG")
    assert b"<svg" in figures.to_bytes(figure, "svg")[:1000]
    pdf = figures.to_bytes(figure, "pdf")
    assert pdf.startswith(b"%PDF")
    assert b"/CIDFontType2" in pdf  # an embedded TrueType font; the default would be Type 3
    assert b"/Type3" not in pdf


def test_png_background_is_opaque_white(tmp_path):
    from PIL import Image

    png, *_ = figures.save(charts.chart(make_summary()), tmp_path / "chart")
    image = Image.open(png).convert("RGBA")
    assert image.getpixel((2, 2)) == (255, 255, 255, 255)
    assert image.getextrema()[3] == (255, 255)
    assert image.info.get("dpi", (0, 0))[0] == pytest.approx(300, abs=1)


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


def test_a_column_is_85_mm_wide_in_every_format(tmp_path):
    from PIL import Image

    figure = charts.chart(make_summary(), figures.COLUMN)
    png, svg, pdf = figures.save(figure, tmp_path / "chart-column")
    width_pt = float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", pdf.read_bytes())[1])
    assert width_pt / 72 * 25.4 == pytest.approx(85, abs=0.5)
    assert ElementTree.parse(svg).getroot().get("width") == f"{width_pt:g}pt"
    assert Image.open(png).width / 300 * 25.4 == pytest.approx(85, abs=0.5)


def test_importing_and_drawing_never_loads_pyplot():
    code = (
        "import sys; sys.path.insert(0, 'tests'); import test_charts as t;"
        "t.figures.to_bytes(t.charts.chart(t.make_summary()), 'png');"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- what is shown ------------------------------------------------------------------------


@pytest.mark.parametrize("times", [TIMES, {"a": 1.0, "b": 0.99}, {"a": 1.0, "b": 40.0}])
def test_the_axis_starts_at_zero_and_holds_every_dot(times):
    summary = make_summary(times)
    (axes,) = charts.chart(summary).axes
    low, high = axes.get_xlim()
    assert low == 0
    assert high > max(ratio for row in summary.rows for ratio in row.ratios)


def test_bars_are_as_long_as_the_normalized_times_and_the_baseline_is_on_top():
    summary = make_summary()
    (axes,) = charts.chart(summary).axes
    assert [bar.get_width() for bar in axes.patches] == [r.normalized_time for r in summary.rows]
    # The y axis points down, so the first row is the highest.
    middles = [bar.get_y() for bar in axes.patches]
    assert middles == sorted(middles)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]


def test_every_trial_has_a_dot_and_published_figures_have_their_own_mark():
    summary = make_summary(published={"data_prefetcher": 0.891})
    figure = charts.chart(summary)
    by_marker = {}
    for line in figure.axes[0].lines:
        by_marker.setdefault(line.get_marker(), []).extend(line.get_xdata())
    assert sorted(by_marker["o"]) == sorted(x for row in summary.rows for x in row.ratios)
    assert by_marker["D"] == [0.891]
    assert "published" in everything_written(figure)


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


def test_rejected_blocks_are_counted_on_the_chart():
    assert "9 blocks, 1 rejected" in everything_written(charts.chart(judged_summary()))


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


def test_stand_ins_are_named_in_the_title_area_and_for_whom():
    summary = summarize(fake_info(["hdd", "ssd"]), fake_throttled_hdd())
    figure = charts.chart(summary)
    (line,) = [t for t in texts(figure) if t.get_text().startswith("Throttled")]
    assert line.get_window_extent().y0 > figure.axes[0].get_window_extent().y1


def test_a_figure_shows_itself_in_a_notebook_with_its_description():
    figure = charts.chart(make_summary({"<b>": 1.0, "&": 0.9}))
    data, _ = figure._repr_mimebundle_(include=None, exclude=None)
    assert set(data) == {"text/html", "image/png"}
    assert 'alt="' in data["text/html"]
    assert "<b>" not in data["text/html"]
    assert pickle.loads(pickle.dumps(figure))._repr_mimebundle_()[0] == data


ORIGIN = {
    "created_utc": "2026-11-21T19:12:22Z",
    "run": "20261121T191222Z-1f2e",
    "provenance": {"machine_id": "7a93da180d42", "cores": 2, "cpu_model": "A CPU with a name " * 5},
}


@pytest.mark.parametrize("sheet", [figures.WIDE, figures.COLUMN], ids=["wide", "column"])
def test_where_the_numbers_come_from_stands_at_the_foot_in_small_letters(sheet):
    summary = make_summary(**ORIGIN)
    figure = charts.chart(summary, sheet)
    foot = min(texts(figure), key=lambda t: t.get_window_extent().y0)
    # A line ends between two parts, or inside a long one.
    said = foot.get_text().replace("\n", " ").replace(" · ", " ")
    assert said == summary.origin.replace(" · ", " ")
    assert figure.get_label().endswith(f" From: {summary.origin}.")
    assert foot.get_fontsize() == min(t.get_fontsize() for t in texts(figure))
    check_that_all_texts_are_whole_and_apart(figure)


def test_nothing_stands_at_the_foot_of_a_run_that_knows_nothing_of_itself():
    summary = make_summary(created_utc=None)
    assert summary.origin == ""
    check_that_all_texts_are_whole_and_apart(charts.chart(summary))


def test_fills_differ_by_hatch_or_by_brightness_alone():
    for looks in (charts.LOOKS.values(), EPOCH_LOOKS):
        for (one, hatch), (other, other_hatch) in itertools.combinations(looks, 2):
            assert hatch != other_hatch or abs(gray(one) - gray(other)) > 0.15


def gray(color):
    return sum(share * x for share, x in zip((0.299, 0.587, 0.114), to_rgb(color)))


def test_names_in_dollars_are_no_formulas():
    figure = charts.chart(make_summary({"$a_b$": 1.0, "$\\frac": 0.9}))
    assert "$a_b$" in everything_written(figure)
    assert not any(t.get_parse_math() for t in texts(figure))


# --- geometry -----------------------------------------------------------------------------

AWKWARD = {
    "one variant": make_summary({"only": 1.0}),
    "nothing measured": make_summary({}, skipped={"a": LONG_REASON, "b": ""}),
    "twelve variants": make_summary({f"variant {i}": 1 + 0.1 * i for i in range(12)}),
    "twelve long names": make_summary({f"{LONG_NAME} {i}": 1 + 0.1 * i for i in range(12)}),
    "long reasons": make_summary(skipped={f"s{i}": LONG_REASON for i in range(3)}),
    "long names, long reasons": make_summary(
        {LONG_NAME: 1.0, f"{LONG_NAME} 2": 0.5}, skipped={f"{LONG_NAME} 3": LONG_REASON * 3}
    ),
    "a ratio of 40": make_summary({"a": 1.0, "b": 40.0}),
    "hundredfold noise": make_summary({"a": 1.0, "b": 40.0, "c": 0.01}, blocks=2, noise=1.0),
    "long question": make_summary(question="Does it matter at all which of them is used? " * 5),
    "unbreakable question": make_summary(question="W" * 200),
    "Chinese": make_summary({"原始": 1.0, "预取" * 20: 0.9}, question=CJK_QUESTION * 4),
    "verdicts": make_summary({"a": 1.0, "b": 1.0, "c": 0.8, "d": 1.2}, mode="full", blocks=8),
    "outliers": judged_summary(published={"hdd": 1.0, "ssd": 0.86}),
    "dollars": make_summary({"$HOME": 1.0, "$a_b$ \\frac": 0.9}),
    "published far away": make_summary(published={"data_prefetcher": 7.5}),
    "document": make_summary({"a": 1.0, "b": 0.9}, mode="document", blocks=1),
}  # fmt: skip


@pytest.mark.parametrize("summary", AWKWARD.values(), ids=AWKWARD.keys())
def test_no_text_is_clipped_and_no_two_texts_overlap(summary):
    check_that_all_texts_are_whole_and_apart(charts.chart(summary))


@pytest.mark.parametrize("summary", AWKWARD.values(), ids=AWKWARD.keys())
def test_a_column_is_laid_out_anew_and_its_letters_can_be_read(summary):
    figure = charts.chart(summary, figures.COLUMN)
    # 300 dpi: what is measured to fit on the screen must fit in print.
    check_that_all_texts_are_whole_and_apart(figure, dpi=300, axes_share=0.5)
    assert min(t.get_fontsize() for t in texts(figure)) >= SMALLEST_PT
    written = everything_written(figure)
    for row in summary.rows:
        if row.normalized_time is not None:
            assert units.normalized(row.normalized_time) in written
            assert row.verdict in ("baseline", "") or row.verdict in written


def test_what_fits_on_the_screen_fits_in_print():
    check_that_all_texts_are_whole_and_apart(
        charts.chart(make_summary(question="Does it matter which of them is used? " * 5)), dpi=300
    )


@pytest.mark.parametrize("times", [TIMES, {f"v{i}": 1.0 for i in range(12)}])
def test_rows_keep_their_height_however_many_there_are(times):
    figure = charts.chart(make_summary(times))
    row_in = figure.axes[0].get_window_extent().height / figure.dpi / len(times)
    assert row_in == pytest.approx(ROW_IN, rel=1e-6)


@pytest.mark.skipif(
    not {font.name for font in fontManager.ttflist} & set(figures.CJK_FONTS),
    reason="no CJK font is installed",
)
def test_chinese_is_written_with_a_font_that_has_it(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing from font.*")
        figure = charts.chart(make_summary({"原始": 1.0, "预取": 0.9}, question=CJK_QUESTION))
        figures.save(figure, tmp_path / "chart")
