"""Letters: what no font has is written by its number, and no chart draws a box for it."""

import warnings

import pytest
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written
from matplotlib.font_manager import FontProperties
from test_charts import make_summary

from labkit import charts, figures
from labkit.letters import drawable

DEJAVU = FontProperties(family="DejaVu Sans")  # comes with matplotlib
KHMER = "/mnt/ទិន្នន័យ"  # a script that no font that charts look for has


@pytest.mark.parametrize("text", ["$a_b$ \\ plain", "café Łódź 50 µs ≤ 1 × 2 ·", "Δ Привет\nдва"])
def test_what_a_font_has_stays(text):
    assert drawable(text, DEJAVU) == text


@pytest.mark.parametrize(
    ("text", "written"),
    [("盘 1", "\\u76d8 1"), ("a\x1bb", "a\\x1bb"), ("\udcff", "\\udcff"), ("𓀀", "\\U00013000")],
)
def test_what_no_font_has_is_written_as_python_would(text, written):
    assert drawable(text, DEJAVU) == written


def test_each_face_is_asked_for_its_own_letters():
    upright, slanted = DEJAVU, FontProperties(family="DejaVu Sans", style="italic")
    arabic = "\u0628"  # only the upright face has it
    assert drawable(arabic, upright) == arabic
    assert drawable(arabic, slanted) == "\\u0628"


@pytest.mark.parametrize("sheet", [figures.WIDE, figures.COLUMN])
def test_a_chart_draws_no_boxes_where_fonts_are_missing(monkeypatch, tmp_path, sheet):
    monkeypatch.setattr(figures, "CJK_FONTS", ())  # as on a machine without one
    summary = make_summary(
        {"原始": 1.0, "b": 0.9},
        question="哪一种方法最有帮助？",
        skipped={"hdd": f"hdd must be an existing directory, got {KHMER}; create it"},
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*missing from font.*")
        figure = charts.chart(summary, sheet)
        for kind in ("png", "svg", "pdf"):
            assert figures.to_bytes(figure, kind)
    check_that_all_texts_are_whole_and_apart(figure)
    written = everything_written(figure).replace(" ", "")
    assert "\\u539f\\u59cb" in written
    assert "\\u54ea\\u4e00" in written
    assert "/mnt/\\u1791" in written
