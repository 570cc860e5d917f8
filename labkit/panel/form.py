"""The form of a panel: a control for every setting that all variants of an experiment share.

    Request ──▶ Form ── request() ──▶ Request

A control that is left alone shows "auto", and its help says what a run would use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from labkit.experiments.request import Request
from labkit.experiments.roofline import has_roofline
from labkit.machine import media
from labkit.resolve import TABLES, complete_here
from labkit.runs.experiment import Experiment
from labkit.runs.kinds import KINDS
from labkit.settings import MODES, PROTOCOLS, Settings, field_kinds, help_texts

if TYPE_CHECKING:
    from ipywidgets import Widget

AUTO = "auto"
LABEL_WIDTH = "110px"  # longer names end in an ellipsis
MODE_HELP = "quick: look; document: as the document ran it; full: verdicts."
BLOCKS_HELP = "Repetitions of all variants; verdicts need 6 or more."
PROTOCOL_HELP = "The document's order, cold first variant and loop, or what corrects them."
BASELINE_HELP = "The reference variant (= 1.0)."
ROOFLINE_HELP = "Train at several speeds of the GPU; cold or warm files as the baseline's."
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

        self._start, self._experiments = start, _by_protocol(start)
        self._mode = widgets.Dropdown(options=list(MODES), description="mode")
        self._blocks = _text(description="blocks")
        protocols = list(self._experiments)
        self._protocol = widgets.Dropdown(options=protocols, description="protocol")
        found = {name: None for one in self._experiments.values() for name in _shared(one)}
        self._settings = {name: _control(name, start) for name in found}
        self._roofline = widgets.Dropdown(
            options=[("no", False), ("yes", True)], description="roofline"
        )
        self._help = {name: widgets.HTML() for name in ("blocks", "baseline", *found)}
        measured = {
            label: None
            for one in self._experiments.values()
            for label in (*one.variants, *one.in_full)
        }
        box = {"indent": False, "layout": {"width": "auto"}}
        self._variants = {one: widgets.Checkbox(description=one, **box) for one in measured}
        self._baseline = widgets.Dropdown(options=[AUTO, *measured], description="baseline")
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
        given = {name: _value(self._settings[name]) for name in self._names()}
        start = self._start.settings
        hidden = {name: start[name] for name in start if name not in self._settings}
        return replace(
            self._start,
            mode=self._mode.value,
            blocks=_value(self._blocks),
            protocol=self._protocol.value,
            settings=hidden | {name: value for name, value in given.items() if value is not None},
            variants=() if len(kept) == len(labels) else kept,
            baseline=_value(self._baseline),
            roofline=self._roofline.value,
        )

    def reset(self) -> None:
        """Show what was there at first."""
        start = self._start
        self._mode.value, self._protocol.value = start.mode, start.protocol
        self._roofline.value = start.roofline
        _show(self._blocks, start.blocks)
        _show(self._baseline, start.baseline)
        for name, control in self._settings.items():
            _show(control, start.settings.get(name))
        for label, box in self._variants.items():
            box.value = not start.variants or label in start.variants

    def refresh(self) -> Request:
        """Show what applies to the mode and protocol chosen, and what "auto" means now.

        Returns:
            What is asked for.

        Raises:
            ValueError: as `request`, or what is chosen cannot be run.
        """
        labels, names = self._labels(), self._names()
        for label, box in self._variants.items():
            _display(box, is_shown=label in labels)
        for name in self._settings:
            _display(self._boxes[name], is_shown=name in names)
        request = self.request()
        whole = request.whole()
        shared = Settings(**_shared(whole))
        mode = MODES[request.mode]
        found = {**vars(complete_here(shared, mode)), "blocks": mode.blocks}
        self._say("blocks", BLOCKS_HELP, self._blocks, found["blocks"])
        self._say("baseline", BASELINE_HELP, self._baseline, whole.baseline)
        for name in names:
            self._say(name, help_texts()[name], self._settings[name], found[name])
        return request

    def observe(self, handler: Callable[[object], None]) -> None:
        """Have a function called after every change."""
        for control in self._all():
            control.observe(handler, "value")

    def disable(self, *, is_disabled: bool) -> None:
        """Let nothing be changed while a run is in progress, or let it again."""
        for control in self._all():
            control.disabled = is_disabled

    def _layout(self) -> Widget:
        import ipywidgets as widgets

        self._boxes = {
            name: _field(control, self._help[name]) for name, control in self._settings.items()
        }
        knobs = ("data", *next(iter(self._experiments.values())).knobs)
        first = [_field(self._mode, widgets.HTML(help_line(MODE_HELP)))]
        first.append(_field(self._blocks, self._help["blocks"]))
        first += [self._boxes[name] for name in knobs if name in self._boxes]
        more = [_field(self._baseline, self._help["baseline"])]
        if has_roofline(next(iter(self._experiments.values()))):
            more.append(_field(self._roofline, widgets.HTML(help_line(ROOFLINE_HELP))))
        if len(self._experiments) > 1:
            more.append(_field(self._protocol, widgets.HTML(help_line(PROTOCOL_HELP))))
        more += [box for name, box in self._boxes.items() if name not in knobs]
        hidden = _grid(more)
        fold = widgets.ToggleButton(
            description="More settings", tooltip="Show the settings that matter less here"
        )
        _display(hidden, is_shown=False)
        fold.observe(lambda change: _display(hidden, is_shown=change["new"]), "value")
        variants = row([*self._variants.values(), fold])
        variants.add_class("labkit-variants")
        return widgets.VBox([_grid(first), variants, hidden])

    def _labels(self) -> list[str]:
        """List the variants that the chosen mode and protocol measure."""
        whole = self._experiments[self._protocol.value]
        return [*whole.variants, *(whole.in_full if MODES[self._mode.value].judged else ())]

    def _names(self) -> list[str]:
        """List the settings that the chosen protocol leaves open."""
        return list(_shared(self._experiments[self._protocol.value]))

    def _say(self, name: str, text: str, control: Widget, found: object) -> None:
        is_auto = _value(control) is None and found is not None
        self._help[name].value = help_line(text, f"{AUTO}: {_text_of(found)}" if is_auto else "")

    def _all(self) -> list[Widget]:
        own = [self._mode, self._blocks, self._roofline, self._protocol, self._baseline]
        return [*own, *self._settings.values(), *self._variants.values()]


def help_line(text: str, auto: str = "") -> str:
    """Show one line of help, after what "auto" means; in full where the mouse points at it."""
    said = " · ".join(filter(None, (auto, text)))
    return f'<div class="labkit-help" title="{escape(text)}">{escape(said)}</div>'


def row(children: Iterable[Widget]) -> Widget:
    """Put widgets beside each other, in as many lines as they need."""
    import ipywidgets as widgets

    return widgets.HBox(list(children), layout={"flex_flow": "row wrap"})


def _by_protocol(start: Request) -> dict[str, Experiment]:
    """Build the experiment in every protocol that it has and that its settings allow."""
    built = {}
    for protocol in PROTOCOLS if isinstance(start.experiment, str) else ():
        try:
            built[protocol] = replace(start, protocol=protocol).whole()
        except ValueError:
            continue  # raised below where it is the one that is asked for
    return built if start.protocol in built else {start.protocol: start.whole()}


def _shared(experiment: Experiment) -> dict[str, object]:
    """Return the settings that all variants share, of those that this kind of trial uses."""
    baseline = experiment.variants[experiment.baseline]
    others = [*experiment.variants.values(), *experiment.in_full.values()]
    return {
        name: value
        for name, value in vars(baseline).items()
        if name in KINDS[experiment.kind].settings
        and all(getattr(other, name) == value for other in others)
    }


def _control(name: str, start: Request) -> Widget:
    import ipywidgets as widgets

    kind, choices, _ = field_kinds()[name]
    said = {"description": name, "tooltip": help_texts()[name]}
    if kind is bool:
        return widgets.Dropdown(options=[(AUTO, AUTO), ("yes", True), ("no", False)], **said)
    if name == "storage":  # a folder's path can be written, too
        return widgets.Combobox(options=[AUTO, *TABLES[name], *media.media()], **said)
    if choices := choices or tuple(TABLES.get(name, ())):
        given = start.settings.get(name)
        others = [] if given in (*choices, None) else [given]  # the run says that it is unknown
        return widgets.Dropdown(options=[AUTO, *choices, *others], **said)
    return _text(**said)


def _text(**said: str) -> Widget:
    import ipywidgets as widgets

    return widgets.Text(continuous_update=False, **said)


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


def _show(control: Widget, value: object) -> None:
    control.value = AUTO if value is None else value if isinstance(value, bool) else str(value)


def _text_of(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _field(control: Widget, text: Widget) -> Widget:
    """Put a line of help under a control."""
    import ipywidgets as widgets

    control.layout.width = "auto"
    control.style.description_width = LABEL_WIDTH
    box = widgets.VBox([control, text])
    box.add_class("labkit-field")
    return box


def _grid(children: list[Widget]) -> Widget:
    box = row(children)
    box.add_class("labkit-form")
    return box


def _display(box: Widget, *, is_shown: bool) -> None:
    box.layout.display = None if is_shown else "none"
