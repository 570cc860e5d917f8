"""Sections: what a report shows of one run, before it becomes HTML or Markdown.

    run ─ notebook.section ─▶ Section ─┬─ page ─▶ HTML
                                       └─ markdown_report ─▶ Markdown

Main trap: two forms that each choose what to show soon say different things, so what is shown
and in which tables is decided here, once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from labkit import units

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.frame import Frame

# What a page shows of run.json in its own place; the rest is provenance.
SHOWN_ABOVE = {"question", "variants", "published", "source", "skipped", "notes"}
INTRODUCTION = (
    "Normalized epoch time is a variant's time over the baseline's in the same block; "
    "lower is better."
)
CLAIMS_HEADER = ("", "document", "claim", "published", "this run")
NO_CLAIMS = "None: claims are answered by finished runs of this machine."


@dataclass(frozen=True, kw_only=True)
class Section:
    """What a page shows of one run; all texts plain."""

    title: str
    run: str
    """Experiment and run id: where a person keeps results is nobody else's business."""
    warnings: Sequence[str] = ()
    """What stood in for the real thing."""
    conditions: Sequence[str] = ()
    setup: Sequence[tuple[str, str]] = ()
    """(what, how) that all variants have in common."""
    differences: Sequence[tuple[str, str]] = ()
    """(variant, settings in which it differs from another)."""
    hardware: Sequence[tuple[str, str]] = ()
    """(what, which): the machine and its software."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """What its files are called -> figure, with its description as its label."""
    header: Sequence[str]
    cells: Sequence[Sequence[str]]
    second_lines: Sequence[str] = ()
    """For every row of cells what it rests on, or nothing."""
    checks: Sequence[str] = ()
    """How close the stand-ins came to what they stand for."""
    results: Sequence[str] = ()
    """A sentence per variant."""
    tables: Mapping[str, Frame] = field(default_factory=dict)
    """Title -> what else the rows support."""
    beside_document: Sequence[Sequence[str]] = ()
    """Rows of `report_words.BESIDE_DOCUMENT`."""
    claims: Sequence[Mapping[str, object]] | None = None
    """Rows of `claims.answers_of`; None: they stand elsewhere."""
    notes: Sequence[str] = ()
    command: str = ""
    """A line that runs it again; empty where there is none."""
    code: str = ""
    """The same as Python."""
    info: Mapping[str, object]
    """What the run's `run.json` holds."""


def claim_cells(section: Section) -> list[list[str]]:
    """Lay out the claims that a run answers, under `CLAIMS_HEADER`."""
    shown = ("number", "document", "claim", "published", "answer")
    return [[str(row[name]) for name in shown] for row in section.claims or ()]


def table_cells(frame: Frame) -> tuple[list[str], list[list[str]]]:
    """Return a table's header and its cells as text."""
    shown = frame.reset_index()
    return list(shown.columns), [[_text(x) for x in row] for row in shown.itertuples(index=False)]


def _text(x: object) -> str:
    if isinstance(x, str):
        return x
    if x is None or x != x:  # NaN
        return units.UNKNOWN
    return f"{x:,.3f}" if x % 1 else f"{x:,.0f}"


def provenance_text(section: Section) -> str:
    """Write as JSON everything that `run.json` holds and that stands nowhere else."""
    known = {name: value for name, value in section.info.items() if name not in SHOWN_ABOVE}
    return json.dumps({"run": section.run, **known}, indent=2, ensure_ascii=False, default=str)
