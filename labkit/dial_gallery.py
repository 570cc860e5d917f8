"""Every dial's chart, one below the other: of the newest finished runs, or the line that runs one.

    DIALS ─ newest_run() ─▶ dial_charts(results)

Main trap: a dial that nobody has turned must not look as if it cost nothing, so it says so.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from labkit import figures
from labkit.dials import DIALS
from labkit.notebook import dial_chart, newest_run
from labkit.results import Run


def dial_charts(results: Path | str = "results") -> DialGallery:
    """Show every dial's chart, as far as there are runs.

    Args:
        results: folder that holds all results.

    Returns:
        Shows itself in a notebook.
    """
    return DialGallery({name: newest_run(name, results) for name in DIALS})


class DialGallery:
    """Charts of runs along their dials, or the line that runs one."""

    def __init__(self, runs: dict[str, Run | None]) -> None:
        self._figures = {name: run and dial_chart(run) for name, run in runs.items()}

    def __repr__(self) -> str:
        return "\n".join(
            f"{name}: {figure.get_label() if figure else _not_run(name)}"
            for name, figure in self._figures.items()
        )

    def _repr_html_(self) -> str:
        return "".join(
            figures.mimebundle(figure)[0]["text/html"]
            if figure
            else f"<p><b>{escape(name)}</b>: {escape(_not_run(name))}</p>"
            for name, figure in self._figures.items()
        )


def _not_run(name: str) -> str:
    return f"not run; run it with: labkit run {name}"
