"""Tables: a pandas Styler with a heading and notes.

    Summary ─▶ table() ─▶ Table ─▶ HTML in a notebook, text in a terminal, cells for Markdown

This module imports pandas, so import it where a table is made.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from labkit import units
from labkit.analysis.rows import Row
from labkit.analysis.simulated import warnings
from labkit.analysis.summary import Summary
from labkit.language import shown
from labkit.report import words
from labkit.report.text_table import text_table
from labkit.runs.operation_trials import LOOK_UPS, SAMPLE

STYLES = [
    {"selector": "", "props": "border-collapse: collapse; margin: .5em 0"},
    {"selector": "tr", "props": "background: transparent"},
    {"selector": "th, td", "props": "text-align: left; vertical-align: top; padding: .3em .5em"},
    # A line that shows on light and on dark pages.
    {"selector": "tbody th, tbody td", "props": "border-top: 1px solid rgba(128, 128, 128, .35)"},
]


_Styler: Any = Styler.from_custom_template(Path(__file__).parent, html_table="table.html.j2")


class Table(_Styler):
    """A table that shows itself: as HTML in a notebook, as text in a terminal.

    Args:
        rows: a DataFrame, whose index names the rows, or what makes one, whose first column
            does; the attribute `data` is the DataFrame.
        heading: lines above the table, the first in bold.
        notes: lines below the table.
    """

    def __init__(
        self,
        rows: Any,
        *,
        heading: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        data = rows
        if not isinstance(rows, pd.DataFrame):
            data = pd.DataFrame(rows)
            data = data.set_index(data.columns[0])
        # The same table has the same id, so that pages do not change when they are made again.
        uuid = f"{zlib.crc32(data.to_csv().encode()):x}"
        super().__init__(data, cell_ids=False, uuid=uuid)
        self.heading, self.notes = heading, notes
        self.set_table_styles(STYLES)
        self.format(lambda cell: _html(_text(cell))).format_index(lambda name: _html(str(name)))

    @property
    def header(self) -> list[str]:
        """The names of the index and the columns."""
        return [*(name or "" for name in self.data.index.names), *map(str, self.data.columns)]

    @property
    def rows(self) -> list[list[str]]:
        """The texts of every row, its name first."""
        cells = self.data.reset_index().itertuples(index=False)
        return [[_text(cell) for cell in row] for row in cells]

    def to_html(self, *args: object, **kwargs: object) -> str:
        """Return the table as HTML; arguments as of `pandas.io.formats.style.Styler.to_html`."""
        more = {"heading": self.heading, "notes": self.notes}
        # A long name may break behind its underscores.
        header = [_html(name).replace("_", "_<wbr>") for name in self.header]
        return super().to_html(*args, **{"sparse_index": False, "header": header, **more, **kwargs})

    def __repr__(self) -> str:
        # Verdicts alone are words of a language; files keep them in English.
        header, columns = self.header, zip(*self.rows)
        shown_columns = [
            map(shown, column) if name == "verdict" else column
            for name, column in zip(header, columns)
        ]
        rows = list(zip(*shown_columns))
        return text_table([shown(x) for x in header], rows, heading=self.heading, notes=self.notes)


class Tables(dict):
    """Title -> table, shown below each other."""

    def _repr_html_(self) -> str:
        return "".join(
            f"<h4>{escape(title)}</h4>{table.to_html()}" for title, table in self.items()
        )

    def __repr__(self) -> str:
        return "\n\n".join(f"{title}\n\n{table}" for title, table in self.items())


def table(summary: Summary, detail: bool = False) -> Table | pd.DataFrame:
    """Return a run's table.

    Args:
        summary: of the run.
        detail: every field of every row as numbers in seconds, bytes and shares, in a plain
            DataFrame.

    Returns:
        A row per variant: time, normalized time with its 95 % confidence interval, the
        document's figure and the verdict, with what the numbers rest on in notes.
    """
    names = ["group", "variant"] if summary.has_groups else ["variant"]
    if detail:
        left_out = [name for name in ("labels", "hardware", "group") if name not in names]
        numbers = pd.DataFrame(summary.records()).drop(columns=left_out)
        labels = [row.labels | _hardware(row) for row in summary.rows]
        return numbers.join(pd.DataFrame(labels)).set_index(names)
    return Table(
        pd.DataFrame([_cells(summary, row) for row in summary.rows]).set_index(names),
        heading=[summary.question, *warnings(summary), words.conditions(summary)],
        notes=[
            *words.proofs(summary),
            *words.checks(summary),
            *words.bound(summary),
            *words.several_gpus(summary),
            *summary.notes,
        ],
    )


def _hardware(row: Row) -> dict[str, str]:
    """Return the columns "device", "storage" and "network", as far as the row has them."""
    columns: dict[str, list[str]] = {}
    for hardware in row.hardware:
        columns.setdefault(hardware.kind, []).append(str(hardware))
    return {kind: " / ".join(names) for kind, names in columns.items()}


def _cells(summary: Summary, row: Row) -> dict[str, str]:
    measured = {"normalized time [95 % interval]": words.normalized(row)}
    verdict = {"verdict": words.reason(row) or row.verdict or units.UNKNOWN}
    epochs = {1: "one-epoch time", 2: "two-epoch time"}
    column = epochs.get(summary.epochs, f"time of {summary.epochs} epochs")
    if summary.kind == "operation":
        column = "time per image"
    beside = {**_beside_a_sample(summary, row), **_cpu_time(summary, row)}
    time = {column: units.seconds(row.time_s), **beside}
    if summary.kind == "roofline":
        time = {"steady speed": units.rate(row.mean_steady_images_per_s)}
    published = {"published": words.published_text(summary, row)}
    if not summary.has_groups:
        return {"variant": row.variant, **time, **measured, **published, **verdict}
    if not any(other.published for other in summary.rows):
        published = {}
    return {"group": row.group, "variant": row.name, **time, **measured, **published, **verdict}


def _cpu_time(summary: Summary, row: Row) -> dict[str, str]:
    """Return the CPU time of an image where loaders of several libraries are compared alone."""
    facts = [summary.facts(other.variant) for other in summary.rows]
    if not all(each.trains_nothing for each in facts) or not any(x.loads_outside for x in facts):
        return {}
    seconds = row.cpu_s_per_1000_images
    return {"CPU time per image": units.seconds(seconds and seconds / 1000)}


def _beside_a_sample(summary: Summary, row: Row) -> dict[str, str]:
    """Return the time of one look-up, and the share of a sample's time, in runs that have them."""
    cells = {}
    if any(LOOK_UPS in other.labels for other in summary.rows):
        look_ups = row.labels.get(LOOK_UPS)
        cells["per look-up"] = units.seconds(row.time_s / float(look_ups) if look_ups else None)
    if samples := [x.time_s for x in summary.rows if x.group == SAMPLE and x.time_s]:
        cells["of a sample"] = units.percent(row.time_s and row.time_s / samples[0])
    return cells


def _text(cell: Any) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None or cell != cell:  # NaN
        return units.UNKNOWN
    return f"{cell:,.3f}" if cell % 1 else f"{cell:,.0f}"


def _html(text: str) -> str:
    # An interval and a number with its unit stay on one line.
    joined = re.sub(r"\[[^\]]*\]|^[\d.,]+ \S+$", lambda m: m[0].replace(" ", "\u00a0"), text)
    return escape(joined)
