"""The table a notebook shows: second lines follow their rows, and no text becomes markup.

Run: python -m pytest tests/test_frame.py
"""

import pickle
import re
from html import unescape

import pytest

from labkit.report.frame import Frame

NASTY = '<script>alert("x")</script> & $HOME'
NAMES = ["base", "fast", "skipped"]


def make_frame(names=NAMES):
    cells = [[name, f"{i}.00 s", "–"] for i, name in enumerate(names)]
    frame = Frame(cells, columns=["variant", "time", "verdict"]).set_index("variant")
    frame.second_lines = {name: f"10 blocks of {name}" for name in names if name != "skipped"}
    frame.caption = ("Is it faster?", "quick mode")
    frame.notes = ("one note",)
    return frame


def html_rows(frame):
    """The texts of every table row in order, each a list of its cells."""
    rows = re.findall(r"<tr.*?</tr>", frame._repr_html_(), re.DOTALL)
    cells = [re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in rows]
    return [[unescape(re.sub(r"<.*?>", "", cell)).strip() for cell in row] for row in cells]


def test_each_row_is_followed_by_its_second_line():
    assert html_rows(make_frame()) == [
        ["variant", "time", "verdict"],
        ["base", "0.00 s", "–"],
        ["10 blocks of base"],
        ["fast", "1.00 s", "–"],
        ["10 blocks of fast"],
        ["skipped", "2.00 s", "–"],
    ]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda t: t.sort_index(ascending=False), ["skipped", "fast", "base"]),
        (lambda t: t.sort_values("time", ascending=False), ["skipped", "fast", "base"]),
        (lambda t: t[t["time"] > "0.50 s"], ["fast", "skipped"]),
        (lambda t: t.loc[["fast", "base"]], ["fast", "base"]),
        (lambda t: t.iloc[::-1], ["skipped", "fast", "base"]),
        (lambda t: t.drop("base"), ["fast", "skipped"]),
        (lambda t: t.head(1).copy(), ["base"]),
        (lambda t: pickle.loads(pickle.dumps(t)), NAMES),
    ],
)
def test_second_lines_follow_their_rows(change, names):
    table = change(make_frame())
    expected = []
    for name in names:
        expected.append(name)
        expected += [f"10 blocks of {name}"] if name != "skipped" else []
    assert [row[0] for row in html_rows(table)[1:]] == expected
    shown = [line.split("  ")[0] for line in map(str.strip, repr(table).splitlines())]
    assert [line for line in shown if line in expected] == expected


def test_caption_and_notes_stand_around_the_table_however_it_was_cut():
    for table in (make_frame(), make_frame().iloc[:1], make_frame().reset_index()):
        for shown in (table._repr_html_(), repr(table)):
            places = [shown.index(words) for words in ("Is it faster?", "base", "one note")]
            assert places == sorted(places)
            assert "quick mode" in shown


def test_names_second_lines_and_captions_never_become_markup():
    table = make_frame([NASTY, "b"])
    table.caption, table.notes = (NASTY, NASTY), (NASTY,)
    shown = table._repr_html_()
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;") == 5  # the name twice, the caption twice, the note
    assert "mathjax_ignore" in shown  # dollars are no formula
