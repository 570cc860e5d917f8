"""The form of `lab.advise`: two sizes, and the table for them."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.machine import hardware
from labkit.report.advise import GB, advise

if TYPE_CHECKING:
    from ipywidgets import Widget


def advise_form(data_gb: float = 300, *, results: Path | str = "results") -> Widget:
    """Show `lab.advise` for sizes that can be changed.

    Args:
        data_gb: size of the images at first, in GB; the memory is this machine's at first.
        results: as of `lab.advise`.
    """
    import ipywidgets as widgets

    # Only whole tables are shown: callbacks may run on a thread in which nothing can be printed.
    table = widgets.HTML()
    data = widgets.FloatText(value=data_gb, description="data, GB")
    memory = widgets.FloatText(
        value=round(hardware.memory_bytes() / GB, 1), description="memory, GB"
    )

    def show(_: object = None) -> None:
        try:
            table.value = advise(data.value, memory.value, results=results).to_html()
        except ValueError as error:
            table.value = escape(str(error))

    for size in (data, memory):
        size.observe(show, "value")
    show()
    return widgets.VBox([widgets.HBox([data, memory]), table])
