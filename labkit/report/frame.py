"""Frame: a pandas table that shows its texts whole, with the words that belong to it.

    caption (question, stand-ins, conditions)     above
    row, and under it in small print its second line
    notes                                         below

pandas cuts cells at 50 letters, and a reason or a remedy is longer.  Imported only where a
table is made: importing pandas takes half a second.  Main trap: people sort, filter and copy
tables, so second lines follow their rows by name, and what is shown never is a cell that a
person computes with.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from html import escape
from typing import ClassVar

import pandas as pd

from labkit import units

NO_MATH = "tex2jax_ignore mathjax_ignore"  # $HOME is no formula
# Inline, as front ends drop style sheets of notebooks that are not trusted.  Opacity keeps the
# ink that fits the theme, light or dark.
SOFT = "opacity:.8;font-size:.92em;line-height:1.35"
_LEFT = "text-align:left;vertical-align:top"
_LINE = "border-top:1px solid rgba(128,128,128,.35)"
SHORT = 24  # letters of a cell that stays on one line: "0.894 [0.872, 0.917]"
ROOMY = 6  # of more columns than these, cells get several lines rather than a scroll bar
LEFT = f'style="{_LEFT}"'
CELL = f'style="{_LEFT};{_LINE}"'
SHORT_CELL = f'style="{_LEFT};{_LINE};white-space:nowrap"'
FIRST = f'style="{_LEFT};{_LINE};min-width:9em;overflow-wrap:anywhere"'
UNDER = f'style="{_LEFT};padding-top:0"'
SMALL = f'style="{SOFT}"'
PLAIN = 'style="background:transparent"'  # stripes would tell a row from its second line


class Frame(pd.DataFrame):
    """A DataFrame that a notebook and a shell show without cutting any cell."""

    # pandas hands these on to sorted, filtered and copied tables.
    _metadata: ClassVar[list[str]] = ["caption", "second_lines", "notes"]

    caption: Sequence[str] = ()
    """Shown above: what the table is about; the last line in small print."""
    second_lines: Mapping[Hashable, str] = {}
    """Row's name, or names -> what its numbers rest on; rows of other names have none."""
    notes: Sequence[str] = ()
    """Shown below."""

    @property
    def _constructor(self) -> type[Frame]:
        return Frame

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None, "display.precision", 3):
            table = self._html_rows() if self._has_second_lines() else super()._repr_html_()
        if not self.caption and not self.notes:
            return table
        return f'<div class="{NO_MATH}">{self._html_caption()}{table}{self._html_notes()}</div>'

    def __repr__(self) -> str:
        with pd.option_context(
            "display.max_colwidth", None, "display.width", None, "display.precision", 3,
            "display.unicode.east_asian_width", True,
        ):  # fmt: skip
            table = self._text_rows() if self._has_second_lines() else super().__repr__()
        above = [*self.caption, ""] if self.caption else []
        below = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([*above, table, *below])

    def _has_second_lines(self) -> bool:
        """Whether rows still are what the second lines belong to: each name stands for one."""
        names = self.index
        return names.is_unique and any(map(self.second_lines.get, names))

    def _html_rows(self) -> str:
        # pandas' own words for the cells: people may have added columns of numbers.
        cells = self.to_html(header=False, index=False, max_rows=None, max_cols=None)
        _, *rows = cells.partition("<tbody>")[2].split("<tr>")
        columns = [*(name or "" for name in self.index.names), *self.columns]
        head = "".join(f'<th scope="col" {LEFT}>{escape(str(name))}</th>' for name in columns)
        left = _left if len(columns) <= ROOMY else _left_and_wrapped
        groups = []
        for name, row in zip(self.index, rows, strict=True):
            row = re.sub(r"<td>(.*?)</td>", left, row.partition("</tr>")[0], flags=re.DOTALL)
            levels = name if isinstance(name, tuple) else (name,)
            # Several short names share the room of a long one.
            first = FIRST if len(levels) == 1 else CELL
            heads = "".join(f'<th scope="row" {first}>{escape(str(x))}</th>' for x in levels)
            under = self.second_lines.get(name, "")
            if under:
                small = f"<small {SMALL}>{escape(under)}</small>"
                under = (
                    f'<tr class="labkit-second" {PLAIN}>'
                    f'<td colspan="{len(columns)}" {UNDER}>{small}</td></tr>'
                )
            groups.append(f"<tbody><tr {PLAIN}>{heads}{row}</tr>{under}</tbody>")
        return (
            '<div style="overflow-x:auto;margin-top:.6em"><table class="dataframe">'
            f"<thead><tr>{head}</tr></thead>{''.join(groups)}</table></div>"
        )

    def _html_caption(self) -> str:
        if not self.caption:
            return ""
        *title, conditions = map(escape, self.caption)
        lines = [f'<strong style="font-size:1.1em">{line}</strong>' for line in title[:1]]
        lines += [f"<strong>{line}</strong>" for line in title[1:]]
        lines.append(f'<span style="{SOFT}">{conditions}</span>')
        return f'<p style="text-align:left;margin:0 0 .5em">{"<br>".join(lines)}</p>'

    def _html_notes(self) -> str:
        items = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f'<ul style="{SOFT}">{items}</ul>' if items else ""

    def _text_rows(self) -> str:
        lines = self.to_string(sparsify=False).splitlines()
        head = len(lines) - len(self)
        for name, line in zip(self.index, lines[head:], strict=True):
            lines += [line.rstrip(), *units.small_print(self.second_lines.get(name, ""))]
        return "\n".join(lines[:head] + lines[head + len(self) :])


def frame_of(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Frame:
    """Return a table whose first column names the rows; None becomes NaN."""
    cells = [[float("nan") if x is None else x for x in row] for row in rows]
    return Frame(cells, columns=list(columns)).set_index(columns[0])


def _left(cell: re.Match[str]) -> str:
    words = cell[1]
    return f"<td {SHORT_CELL if len(words) <= SHORT else CELL}>{words}</td>"


def _left_and_wrapped(cell: re.Match[str]) -> str:
    words = re.sub(r"(\[[^\]]*?), ", r"\1,&nbsp;", cell[1])  # an interval stays whole
    return f"<td {CELL}>{words}</td>"
