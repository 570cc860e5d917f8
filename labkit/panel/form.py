"""The form of a panel: a control for every setting that all variants share, and the variants.

    Request ──▶ Form ── request() ──▶ Request

A control that is left alone shows "auto", and its help says what a run would use.  Variants are
ticked; one of the user's own is another one with one setting changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.analysis.summary import in_common
from labkit.experiments.device_speeds import has_roofline
from labkit.experiments.request import Request
from labkit.machine import media
from labkit.records import EPOCHS, effective_settings
from labkit.resolve import TABLES, complete_here
from labkit.runs.experiment import Experiment
from labkit.runs.schedule import default_blocks
from labkit.settings import (
    MODES,
    NUMBERS_OR_NAMES,
    PLACES,
    Settings,
    field_kinds,
    help_texts,
    read_changes,
    with_settings,
)

if TYPE_CHECKING:
    from ipywidgets import Widget

AUTO = "auto"
# Shown at once, of the settings that all variants share; the others are behind a button.
SHOWN_FIRST = (
    "num_workers", "prefetch_factor", "batch_size", "input_px", "preprocessor", "decoder",
    "storage", "cache", "device",
)  # fmt: skip
LABEL_WIDTH = "110px"  # longer names end in an ellipsis
# What a request has beside settings -> its help.
ASKED = {
    "mode": "quick: a first look; document: each variant once, all images; full: with verdicts.",
    "blocks": "Repetitions of all variants; verdicts need 6 or more.",
    "baseline": "The reference variant (= 1.0).",
    "roofline": "Train at several speeds of the GPU, a simulated one unless device says cuda; "
    "cold or warm files as the baseline's.",
}
NUMBERS = {"blocks": int} | {
    name: kind for name, (kind, *_) in field_kinds().items() if kind in (int, float)
}


class Form:
    """Controls for a request.

    Args:
        start: what they show at first, and after `reset`.

    Raises:
        ValueError: the request's experiment cannot be built.
    """

    def __init__(self, start: Request) -> None:
        import ipywidgets as widgets

        self._start, self._whole = start, start.whole()
        measured = list(self._whole.variants)
        self._controls = {
            "mode": widgets.Dropdown(options=list(MODES), description="mode"),
            "blocks": _text(description="blocks"),
            "baseline": widgets.Dropdown(options=[AUTO, *measured], description="baseline"),
            "roofline": widgets.Dropdown(
                options=[("no", False), ("yes", True)], description="roofline"
            ),
        }
        self._controls |= {name: _control(name, start) for name in _shared(self._whole)}
        self._help = {name: widgets.HTML() for name in self._controls}
        self._added = list(start.added)
        self._changed: Callable[[object], None] = lambda _: None
        self._variants = {label: _tick(label) for label in self._whole.variants}
        self._ticks = row([]).add_class("labkit-variants")
        self._add = _Add(self._whole)
        self._add.button.on_click(self._on_add)
        self.box = self._layout()
        self.reset()

    def request(self) -> Request:
        """Return what is asked for; what shows "auto" is left unset.

        Raises:
            ValueError: no variant is chosen, or a number is none.
        """
        labels = self._labels()
        kept = tuple(label for label in labels if self._variants[label].value)
        if not kept:
            raise ValueError("variants must be at least one, got none; switch one on")
        given = {name: _value(control) for name, control in self._controls.items()}
        asked: dict[str, Any] = {name: given.pop(name) for name in ASKED}
        start = self._start.settings
        hidden = {name: start[name] for name in start if name not in self._controls}
        return replace(
            self._start,
            settings=hidden | {name: value for name, value in given.items() if value is not None},
            variants=() if len(kept) == len(labels) else kept,
            added=tuple(self._added),
            **asked,
        )

    def reset(self) -> None:
        """Show what was there at first."""
        start = self._start
        self._set_added(start.added)
        for name, control in self._controls.items():
            value = getattr(start, name) if name in ASKED else start.settings.get(name)
            value = AUTO if value is None else value
            control.value = value if isinstance(value, bool) else str(value)
        for label, box in self._variants.items():
            box.value = not start.variants or label in start.variants

    def refresh(self) -> Request:
        """Show the variants of the mode chosen, and what "auto" means now.

        Returns:
            What is asked for.

        Raises:
            ValueError: as `request`, or what is chosen cannot be run.
        """
        labels = self._labels()
        for label, box in self._variants.items():
            _display(box, is_shown=label in labels)
        request = self.request()
        whole = request.whole()
        blocks = default_blocks(MODES[request.mode], whole.kind)
        resolved = {**vars(complete_here(Settings(**_shared(whole)))), "blocks": blocks}
        resolved["baseline"] = whole.baseline
        for name, control in self._controls.items():
            is_auto = _value(control) is None and resolved[name] is not None
            auto = f"{AUTO}: {units.text_of(resolved[name])}" if is_auto else ""
            self._help[name].value = help_line((ASKED | help_texts())[name], auto)
        return request

    def observe(self, handler: Callable[[object], None]) -> None:
        """Have a function called after every change."""
        self._changed = handler
        for control in self._all():
            control.observe(handler, "value")

    def _on_add(self, button: object) -> None:
        self._add.is_pressed = True
        self._changed(button)

    def add(self) -> None:
        """Add the variant that is described below the others, where that was asked for.

        Raises:
            ValueError: there is no such setting or value, or the variant is there already.
        """
        if self._add.is_pressed:
            self._add.is_pressed = False
            self._set_added([*self._added, self._add.take(self._whole)])
            self._add.value.value = ""

    def _set_added(self, added: Iterable[str]) -> None:
        """Show these variants of the user's own beside the experiment's."""
        added = list(added)
        self._whole = replace(self._start, added=tuple(added)).whole()
        self._added = added
        for label in self._whole.variants:
            if label not in self._variants:
                tick = self._variants[label] = _tick(label)
                tick.observe(self._changed, "value")
        self._variants = {label: self._variants[label] for label in self._whole.variants}
        self._ticks.children = [*self._variants.values(), self._fold, self._add.box]
        self._add.offer(self._whole)
        baseline = self._controls["baseline"]
        chosen = baseline.value
        baseline.options = [AUTO, *self._whole.variants]
        baseline.value = chosen if chosen in baseline.options else AUTO

    def disable(self, *, is_disabled: bool) -> None:
        """Let nothing be changed while a run is in progress, or let it again."""
        for control in self._all():
            control.disabled = is_disabled

    def _layout(self) -> Widget:
        import ipywidgets as widgets

        boxes = {name: _field(x, self._help[name]) for name, x in self._controls.items()}
        if not has_roofline(self._whole):
            del boxes["roofline"]
        shown = ("mode", "roofline", "blocks", "data", *SHOWN_FIRST)
        first = _grid([boxes.pop(name) for name in shown if name in boxes])
        hidden = _grid(boxes.values())
        fold = widgets.ToggleButton(description="More settings", tooltip="Show all other settings")
        _display(hidden, is_shown=False)
        fold.observe(lambda change: _display(hidden, is_shown=change["new"]), "value")
        self._fold = fold
        self._ticks.children = [*self._variants.values(), fold, self._add.box]
        can_add = not self._whole.has_groups and self._whole.kind == EPOCHS
        _display(self._add.box, is_shown=can_add)
        return widgets.VBox([first, self._ticks, hidden])

    def _labels(self) -> list[str]:
        """List the variants that the chosen mode measures."""
        is_judged = MODES[self._controls["mode"].value].judged
        return list(self._whole.measured(in_full=is_judged))

    def _all(self) -> list[Widget]:
        return [*self._controls.values(), *self._variants.values(), self._add.button]


class _Add:
    """A line that describes a variant of the user's own: one of the others, but for a setting.

    Args:
        whole: the experiment.
    """

    def __init__(self, whole: Experiment) -> None:
        import ipywidgets as widgets

        used = effective_settings(whole.kind)
        names = [name for name in field_kinds() if name in used and name not in PLACES]
        varied = [name for name in names if name not in _shared(whole)]
        self.is_pressed = False
        self.like = widgets.Dropdown(description="like")
        others = [name for name in names if name not in varied]
        self.setting = widgets.Dropdown(description="but with", options=[*varied, *others])
        self.value = widgets.Combobox(description="=", placeholder="value")
        self.button = widgets.Button(
            description="Add variant",
            tooltip="Measure this variant, too",
            layout={"width": "auto"},
        )
        self.setting.observe(lambda _: self._list_values(), "value")
        self._list_values()
        for control, width in ((self.like, 150), (self.setting, 200), (self.value, 110)):
            control.style.description_width = "initial"
            control.layout.width = f"{width}px"
        shown = [self.like, self.setting, self.value, self.button]
        self.box = row(shown).add_class("labkit-add")

    def offer(self, whole: Experiment) -> None:
        """List the variants that the next one can be like."""
        chosen = self.like.value
        self.like.options = list(whole.variants)
        self.like.value = chosen if chosen in self.like.options else whole.baseline

    def take(self, whole: Experiment) -> str:
        """Return what the variant changes of the baseline.

        Raises:
            ValueError: there is no such value, or such a variant is there already.
        """
        word = self.value.value.strip()
        base = whole.settings[whole.baseline]
        text = f"{self.setting.value}={word}"
        wanted = with_settings(whole.settings[self.like.value], read_changes(text))
        if wanted in whole.settings.values():
            raise ValueError(f"variant must differ from all others, got {text}")
        changes = {
            name: value for name, value in vars(wanted).items() if value != getattr(base, name)
        }
        return ",".join(f"{name}={units.text_of(value)}" for name, value in changes.items())

    def _list_values(self) -> None:
        name = self.setting.value
        kind, choices, _ = field_kinds()[name]
        words = ("yes", "no") if kind is bool else choices or tuple(TABLES.get(name, ()))
        self.value.options, self.value.value = words, ""


def _tick(label: str) -> Widget:
    import ipywidgets as widgets

    return widgets.Checkbox(value=True, description=label, indent=False, layout={"width": "auto"})


def help_line(text: str, auto: str = "") -> str:
    """Show one line of help, after what "auto" means; in full where the mouse points at it."""
    shown = " · ".join(filter(None, (auto, text)))
    return f'<div class="labkit-help" title="{escape(text)}">{escape(shown)}</div>'


def row(children: Iterable[Widget]) -> Widget:
    """Put widgets beside each other, in as many lines as they need."""
    import ipywidgets as widgets

    return widgets.HBox(list(children), layout={"flex_flow": "row wrap"})


def _shared(experiment: Experiment) -> dict[str, Any]:
    """Return the settings that all variants share, of those that this kind of trial uses."""
    baseline, others = experiment.settings[experiment.baseline], experiment.settings.values()
    common = in_common(list(map(vars, (baseline, *others))))
    return {k: v for k, v in common.items() if k in effective_settings(experiment.kind)}


def _control(name: str, start: Request) -> Widget:
    import ipywidgets as widgets

    kind, choices, _ = field_kinds()[name]
    texts = {"description": name, "tooltip": help_texts()[name]}
    if kind is bool:
        return widgets.Dropdown(options=[(AUTO, AUTO), ("yes", True), ("no", False)], **texts)
    if name == "storage" or name in NUMBERS_OR_NAMES:  # a folder's path, or a number
        folders = media.media() if name == "storage" else ()
        names = choices or TABLES[name]
        return widgets.Combobox(options=[AUTO, *names, *folders], **texts)
    if choices := choices or tuple(TABLES.get(name, ())):
        given = start.settings.get(name)
        others = [] if given in (*choices, None) else [given]  # the run says that it is unknown
        return widgets.Dropdown(options=[AUTO, *choices, *others], **texts)
    return _text(**texts)


def _text(**texts: str) -> Widget:
    import ipywidgets as widgets

    return widgets.Text(continuous_update=False, **texts)


def _value(control: Widget) -> object:
    """Return what a control says; None: auto."""
    value = control.value.strip() if isinstance(control.value, str) else control.value
    if value in (AUTO, ""):
        return None
    if control.description not in NUMBERS:
        return value
    kind = NUMBERS[control.description]
    try:
        return kind(value)
    except ValueError:
        word = "whole number" if kind is int else "number"
        raise ValueError(
            f"{control.description} must be a {word} or {AUTO}, got {value!r}"
        ) from None


def _field(control: Widget, text: Widget) -> Widget:
    """Put a line of help under a control."""
    import ipywidgets as widgets

    control.layout.width = "auto"
    control.style.description_width = LABEL_WIDTH
    return widgets.VBox([control, text]).add_class("labkit-field")


def _grid(children: Iterable[Widget]) -> Widget:
    return row(children).add_class("labkit-form")


def _display(box: Widget, *, is_shown: bool) -> None:
    box.layout.display = None if is_shown else "none"
