"""Frame: a pandas table that shows its texts whole.

pandas cuts cells at 50 letters, and a reason or a remedy is longer.  Imported
only where a table is made: importing pandas takes half a second.
"""

from __future__ import annotations

import pandas as pd


class Frame(pd.DataFrame):
    """A DataFrame that a notebook and a shell show without cutting any cell."""

    @property
    def _constructor(self) -> type[Frame]:
        return Frame

    def _repr_html_(self) -> str:
        with pd.option_context("display.max_colwidth", None):
            return super()._repr_html_()

    def __repr__(self) -> str:
        with pd.option_context("display.max_colwidth", None, "display.width", None):
            return super().__repr__()
