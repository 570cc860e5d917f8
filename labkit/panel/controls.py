"""Small widgets that the parts of a panel are made of.

Main trap: only widgets whose label a screen reader finds are used: buttons, text, numbers, lists
and check boxes; no sliders, no radio buttons, no accordion (it cannot be opened by keyboard).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from labkit.panel import view as views

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


def row(children: Sequence[Widget]) -> Widget:
    """Put widgets beside each other, in as many lines as they need."""
    import ipywidgets as widgets

    return widgets.HBox(list(children), layout={"flex_flow": "row wrap"})


def grid(children: Sequence[Widget]) -> Widget:
    """Put fields of a form beside each other."""
    box = row(children)
    box.add_class("labkit-form")
    return box


def check_box(label: str) -> Widget:
    """Make a check box as wide as its label."""
    import ipywidgets as widgets

    return widgets.Checkbox(description=label, indent=False, layout={"width": "auto"})


def with_help(control: Widget, text: str) -> Widget:
    """Put a line of help under a control."""
    import ipywidgets as widgets

    control.layout.width = "auto"
    control.style.description_width = LABEL_WIDTH
    box = widgets.VBox([control, widgets.HTML(views.help_line(text))])
    box.add_class("labkit-field")
    return box
