"""What a page and a Markdown report show of runs, and the two of them.

run ─ notebook.section ─▶ Section ─┬─ page() ────────────▶ page.html.j2
                                   └─ markdown_report() ─▶ report.md.j2
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from labkit import units
from labkit.report import bars as figures
from labkit.report import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.report.frame import Frame

# What a page shows of run.json in its own place; the rest is provenance.
SHOWN_ABOVE = {"question", "variants", "published", "source", "skipped", "notes", "local_notes"}
SHORT = 24  # letters of a cell that stays on one line: "0.894 [0.872, 0.917]"
TEXTS = {
    "INTRODUCTION": "Normalized epoch time is a variant's time over the baseline's in the same "
    "block; lower is better.",
    "NO_CLAIMS": "None: claims are answered by finished runs of this machine.",
    "CLAIMS_HEADER": ("", "document", "claim", "published", "this run"),
    "ALL_CLAIMS_HEADER": ("", "document", "claim", "published", "experiment", "this machine"),
}


@dataclass(frozen=True, kw_only=True)
class Section:
    """What a page shows of one run; all texts plain."""

    title: str
    run: str
    """Experiment and run id, without the folder of results."""
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
    tables: Mapping[str, Frame] = field(default_factory=dict)
    """Title -> what else the rows support."""
    claims: Sequence[Mapping[str, object]] | None = None
    """Rows of `claims.answers_of`; None: they stand elsewhere."""
    notes: Sequence[str] = ()
    command: str = ""
    """A line that runs it again; empty where there is none."""
    code: str = ""
    """The same as Python."""
    info: Mapping[str, object]
    """What the run's `run.json` holds."""

    def more_tables(self) -> list[tuple[str, list[str], list[list[str]], Sequence[str]]]:
        """Lay out the other tables: (title, header, cells, notes) of each."""
        shown = {title: (frame.reset_index(), frame.notes) for title, frame in self.tables.items()}
        return [
            (
                title,
                list(t.columns),
                [list(map(_text, row)) for row in t.itertuples(index=False)],
                notes,
            )
            for title, (t, notes) in shown.items()
        ]

    def claim_cells(self) -> list[list[str]]:
        """Lay out the claims that the run answers."""
        return _cells(self.claims or (), "number", "document", "claim", "published", "answer")

    def baseline(self) -> list[tuple[str, str]]:
        """List all settings of the baseline."""
        variants = self.info.get("variants") or {}
        return [(name, str(v)) for name, v in variants.get(self.info.get("baseline"), {}).items()]

    def provenance(self) -> str:
        """Write as JSON everything that `run.json` holds and that stands nowhere else."""
        known = {name: value for name, value in self.info.items() if name not in SHOWN_ABOVE}
        return json.dumps({"run": self.run, **known}, indent=2, ensure_ascii=False, default=str)


def page(sections: Sequence[Section], claims: Sequence[Mapping[str, object]] = ()) -> str:
    """Write one HTML page that needs nothing beside it.

    Args:
        sections: one per run.
        claims: rows of `claims.answers`; last, for most of a long list is not run at first.
    """
    shown = ("number", "document", "claim", "published", "experiment", "answer")
    return render.html(
        "page.html.j2",
        sections=sections,
        claims=claims,
        all_claim_cells=_cells(claims, *shown),
        svg=lambda figure: base64.b64encode(
            figures.to_bytes(figure, "svg", outlines=True)
        ).decode(),
        SHORT=SHORT,
        **TEXTS,
    )


def markdown_report(sections: Sequence[Section], images: Sequence[Sequence[str]]) -> str:
    """Write all sections as GitHub's Markdown.

    Args:
        sections: one per run.
        images: for each section and each of its figures the relative path without its suffix;
            there are a .png, an .svg and a .pdf.
    """
    return render.markdown("report.md.j2", sections=sections, images=images, **TEXTS)


def _text(cell: object) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None or cell != cell:  # NaN
        return units.UNKNOWN
    return f"{cell:,.3f}" if cell % 1 else f"{cell:,.0f}"


def _cells(rows: Sequence[Mapping[str, object]], *names: str) -> list[list[str]]:
    return [[str(row[name]) for name in names] for row in rows]
