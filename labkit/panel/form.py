"""The form of a panel: the variants, and a control for every setting that all variants share.

    Request ──▶ Form ── request() ──▶ Request

Variants are ticks with the values that they vary.  Values that are added make another variant, like
the baseline or another one but for these.  A control that is left alone shows "auto", and its help
says what a run would use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.analysis.summary import in_common
from labkit.experiments.device_speeds import has_roofline
from labkit.experiments.request import Request, variant_like
from labkit.records import EPOCHS, effective_settings
from labkit.resolve import NAME_EXAMPLES, TABLES, complete_here
from labkit.runs.experiment import Experiment, Variant
from labkit.runs.schedule import default_blocks
from labkit.settings import (
    MODES,
    NUMBERS_OR_NAMES,
    SAME_FOR_ALL,
    Settings,
    field_kinds,
    help_texts,
)

if TYPE_CHECKING:
    from ipywidgets import Widget

AUTO = "auto"
# Shown at once, of the settings that all variants share; the others are behind a button.
SHOWN_FIRST = (
    "num_workers", "prefetch_factor", "batch_size", "input_px", "preprocessor", "decoder",
    "storage", "cache", "device",
)  # fmt: skip
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

        self._start = start
        self._experiment = replace(start, added=()).whole()
        self._controls = {
            "mode": widgets.Dropdown(options=list(MODES), description="mode"),
            "blocks": _text(description="blocks"),
            "baseline": widgets.Dropdown(options=[AUTO], description="baseline"),
            "roofline": widgets.Dropdown(
                options=[("no", False), ("yes", True)], description="roofline"
            ),
        }
        self._controls |= {name: _control(name, start) for name in _shared(self._experiment)}
        self._help = {name: widgets.HTML() for name in self._controls}
        self._added: list[str] = []  # the user's own variants, also those that are not ticked
        self._changed: Callable[[object], None] = lambda _: None
        self._ticks: dict[str, Widget] = {}
        self._variants = _Variants(self._experiment)
        self.add_button = self._variants.button
        self.box = self._layout()
        self.reset()

    def request(self) -> Request:
        """Return what is asked for; what shows "auto" is left unset.

        Raises:
            ValueError: no variant is chosen, or a number is none.
        """
        kept = tuple(label for label in self._labels() if self._ticks[label].value)
        if not kept:
            raise ValueError("variants must be at least one, got none; switch one on")
        added = tuple(label for label in self._added if label in kept)
        asked = replace(self._all_variants(), added=added)
        is_whole = _measured(asked).keys() == set(kept)
        return replace(asked, variants=() if is_whole else kept)

    def reset(self) -> None:
        """Show what was there at first."""
        start = self._start
        self._show_variants(start.added)
        for name, control in self._controls.items():
            value = getattr(start, name) if name in ASKED else start.settings.get(name)
            value = AUTO if value is None else value
            control.value = value if isinstance(value, bool) else str(value)
        for label, tick in self._ticks.items():
            tick.value = not start.variants or label in start.variants
        self._variants.clear()

    def refresh(self) -> Request:
        """Show the variants of the mode chosen, and what "auto" means now.

        Returns:
            What is asked for.

        Raises:
            ValueError: as `request`, or what is chosen cannot be run.
        """
        labels = self._labels()
        for label, tick in self._ticks.items():
            _display(tick, is_shown=label in labels)
        self._variants.describe({label: self._ticks[label] for label in labels}, self._whole())
        request = self.request()
        whole = replace(request, added=()).whole()
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
        for control in (*self._controls.values(), *self._ticks.values()):
            control.observe(handler, "value")

    def add(self) -> None:
        """Tick the variant with the values that are filled in; add it where there is none.

        Raises:
            ValueError: there is no such setting or value.
        """
        text = self._variants.filled_in(self._added)
        if not text:
            return
        wanted = variant_like(replace(self._all_variants(), added=()).whole(), text)
        whole = self._whole().variants
        known = [
            label
            for label in self._labels()
            if (whole[label].settings, whole[label].group) == (wanted.settings, wanted.group)
        ]
        if not known:
            self._show_variants([*self._added, text])
        self._ticks[(known or [text])[0]].value = True
        self._variants.clear()

    def _all_variants(self) -> Request:
        """Return what the controls ask for, with all variants."""
        given = {name: _value(control) for name, control in self._controls.items()}
        asked: dict[str, Any] = {name: given.pop(name) for name in ASKED}
        start = self._start.settings
        hidden = {name: start[name] for name in start if name not in self._controls}
        settings = hidden | {name: value for name, value in given.items() if value is not None}
        added = tuple(self._added)
        return replace(self._start, settings=settings, variants=(), added=added, **asked)

    def _whole(self) -> Experiment:
        return self._all_variants().whole()

    def _show_variants(self, added: Iterable[str]) -> None:
        """Show these variants of the user's own after the experiment's."""
        added = list(added)
        whole = replace(self._start, added=tuple(added)).whole()
        self._added, labels = added, [*self._experiment.variants, *added]
        for label in labels:
            if label not in self._ticks:
                tick = self._ticks[label] = _tick(label)
                tick.observe(self._changed, "value")
        self._ticks = {label: self._ticks[label] for label in labels}
        self._variants.show(self._ticks)
        baseline = self._controls["baseline"]
        chosen = baseline.value
        baseline.options = [AUTO, *whole.variants]
        baseline.value = chosen if chosen in baseline.options else AUTO

    def disable(self, *, is_disabled: bool) -> None:
        """Let nothing be changed while a run is in progress, or let it again."""
        for control in self._all():
            control.disabled = is_disabled

    def _layout(self) -> Widget:
        import ipywidgets as widgets

        boxes = {name: _field(x, self._help[name]) for name, x in self._controls.items()}
        if not has_roofline(self._experiment):
            del boxes["roofline"]
        shown = ("mode", "roofline", "blocks", "data", *SHOWN_FIRST)
        first = _grid([boxes.pop(name) for name in shown if name in boxes])
        hidden = _grid(boxes.values())
        fold = widgets.ToggleButton(description="More settings", tooltip="Show all other settings")
        _display(hidden, is_shown=False)
        fold.observe(lambda change: _display(hidden, is_shown=change["new"]), "value")
        add: list[Widget] = []
        if self._experiment.kind == EPOCHS:
            *first_fields, other, other_value, button = self._variants.fields()
            # In one box, so that no line ends between a setting and its value.
            last_fields = row([other, other_value, button])
            add = [widgets.Label("Add a variant"), *first_fields, last_fields]
        return widgets.VBox([self._variants.box, row([*add, fold]), first, hidden])

    def _labels(self) -> list[str]:
        """List the variants that the chosen mode measures, and the user's own."""
        return [label for label in _measured(self._all_variants()) if label in self._ticks]

    def _all(self) -> list[Widget]:
        return [*self._controls.values(), *self._ticks.values(), *self._variants.fields()]


class _Variants:
    """The ticks of the variants, and a field for another value of each setting that they vary.

    Args:
        experiment: without variants of the user's own.
    """

    def __init__(self, experiment: Experiment) -> None:
        import ipywidgets as widgets

        self._labels, shared = tuple(experiment.variants), _shared(experiment)
        self._baseline = experiment.baseline
        # A variant that is like this one is named by its values alone.
        self._unnamed = "" if experiment.has_groups else experiment.baseline
        used = effective_settings(experiment.kind)
        names = [name for name in field_kinds() if name in used and name not in SAME_FOR_ALL]
        self._name, self._help = widgets.Label(), widgets.HTML()
        self._ticks = row([])
        self._values = {name: _new_value(name) for name in names if name not in shared}
        self._like = widgets.Dropdown(
            description="like", tooltip="The variant to change", layout={"width": "180px"}
        )
        self._like.style.description_width = "initial"
        self._other = widgets.Dropdown(
            description="another setting", options=["", *(name for name in names if name in shared)]
        )
        self._other_value = _new_value("", "=")
        self._other.observe(self._offer_values, "value")
        self.button = widgets.Button(
            description="Add",
            tooltip="Measure this variant with these values, too",
            layout={"width": "auto"},
        )
        self._other.style.description_width = "initial"
        self._other.layout.width = "210px"
        self.box = widgets.VBox([self._ticks, self._help]).add_class("labkit-variants")

    def fields(self) -> list[Widget]:
        """List what can be filled in and pressed."""
        return [self._like, *self._values.values(), self._other, self._other_value, self.button]

    def show(self, ticks: Mapping[str, Widget]) -> None:
        """Show a tick for each variant, and offer each as the one that another is like."""
        self._ticks.children = [self._name, *ticks.values()]
        like = self._like.value
        self._like.options = list(ticks)
        self._like.value = like if like in ticks else self._baseline

    def describe(self, ticks: Mapping[str, Widget], whole: Experiment) -> None:
        """Write the values that variants vary beside their ticks.

        Args:
            ticks: label -> tick, of the variants that are shown.
            whole: has these variants, and others.
        """
        shown = {label: whole.settings[label] for label in ticks if label in self._labels}
        varied = [name for name in self._values if len(_values_of(name, shown)) > 1]
        for name, field in self._values.items():
            _display(field, is_shown=name in varied)
        # The values of a single setting stand for the variants.
        name = varied[0] if len(varied) == 1 else ""
        is_named = bool(name) and len(_values_of(name, shown)) == len(shown)
        self._name.value = name if is_named else "variants"
        differ = f"Variants differ in {', '.join(varied)}." if varied else ""
        self._help.value = help_line(help_texts()[name] if is_named else differ)
        base = whole.settings[whole.baseline]
        for label, tick in ticks.items():
            settings = whole.settings[label]
            changes = {x: y for x, y in vars(settings).items() if y != getattr(base, x)}
            tick.tooltip = ", ".join(f"{x}={units.text_of(y)}" for x, y in changes.items())
            tick.description = label
            if is_named:
                value = getattr(settings, name)
                text = AUTO if value is None else units.text_of(value)
                if label not in shown:  # the user's own
                    tick.description = text if changes.keys() == {name} else label
                elif text not in label:
                    tick.description = f"{text} ({label})"

    def filled_in(self, added: Collection[str]) -> str:
        """Return the variant that is filled in, as in `Request.added`; "" without values.

        Args:
            added: the variants of the user's own.
        """
        words = {name: field.value.strip() for name, field in self._values.items()}
        if self._other.value:
            words[self._other.value] = self._other_value.value.strip()
        values = ",".join(f"{name}={word}" for name, word in words.items() if word)
        if not values or self._like.value == self._unnamed:
            return values
        # One of the user's own gets more values; others are named by their labels.
        separator = "," if self._like.value in added else ", "
        return f"{self._like.value}{separator}{values}"

    def clear(self) -> None:
        """Fill in nothing."""
        self._like.value = self._baseline
        for field in (*self._values.values(), self._other, self._other_value):
            field.value = ""

    def _offer_values(self, change: dict) -> None:
        self._other_value.options = _choices(change["new"]) if change["new"] else ()


def _measured(asked: Request) -> dict[str, Variant]:
    return asked.whole().measured(in_full=MODES[asked.mode].judged)


def _values_of(name: str, settings: Mapping[str, Settings]) -> dict[Any, None]:
    return dict.fromkeys(getattr(each, name) for each in settings.values())


def _new_value(name: str, description: str = "") -> Widget:
    """Make a field for a value of a setting."""
    import ipywidgets as widgets

    field = widgets.Combobox(
        description=description or name, options=_choices(name) if name else (), placeholder="value"
    )
    field.style.description_width = "initial"
    return field.add_class("labkit-value")


def _choices(name: str) -> tuple[str, ...]:
    """Return the values that a setting can have; none where it is a number or any text."""
    kind, choices, _ = field_kinds()[name]
    if kind is bool:
        return ("yes", "no")
    examples = NAME_EXAMPLES[name]() if name in NAME_EXAMPLES else ()
    return choices or tuple(examples or TABLES.get(name, ()))


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

    texts = {"description": name, "tooltip": help_texts()[name]}
    if field_kinds()[name][0] is bool:
        return widgets.Dropdown(options=[(AUTO, AUTO), ("yes", True), ("no", False)], **texts)
    choices = _choices(name)
    if name in NAME_EXAMPLES or name in NUMBERS_OR_NAMES:  # a folder's path, or a number
        return widgets.Combobox(options=[AUTO, *choices], **texts)
    if choices:
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
    control.style.description_width = "110px"  # longer names end in an ellipsis
    return widgets.VBox([control, text]).add_class("labkit-field")


def _grid(children: Iterable[Widget]) -> Widget:
    return row(children).add_class("labkit-form")


def _display(box: Widget, *, is_shown: bool) -> None:
    box.layout.display = None if is_shown else "none"
