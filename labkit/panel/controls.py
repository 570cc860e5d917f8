"""Small widgets that the parts of a panel are made of.

Main trap: only widgets whose label a screen reader finds are used: buttons, text, numbers, lists
and check boxes; no sliders, no radio buttons, no accordion (it cannot be opened by keyboard).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipywidgets import Button, Widget

LABEL_WIDTH = "120px"


def html(name: str) -> Widget:
    """Make a place for HTML; `name` is its class."""
    import ipywidgets as widgets

    box = widgets.HTML()
    box.add_class(name)
    return box


def button(text: str, tooltip: str, on_click: Callable[..., None]) -> Button:
    """Make a button as wide as its text."""
    import ipywidgets as widgets

    made = widgets.Button(description=text, tooltip=tooltip, layout={"width": "auto"})
    made.on_click(on_click)
    return made
