"""The form of a panel: a control for every setting, generated from what may be chosen.

    Choice ─ choices.fields() ─▶ controls ─ Form.choice() ─▶ Choice

Main trap: a mode changes what an untouched field shows; that must not count as a choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from labkit.choices import Choice, Field, blocks_of, fields, protocols
from labkit.panel_parts import check_box, grid, with_help
from labkit.settings import MODES

if TYPE_CHECKING:
    from ipywidgets import Widget

MOST = 1_000_000  # number fields need an end
FOUND_OUT = 0  # what stands in a number field that only a run can fill
MODE_HELP = "quick: look · document: as the document ran it · full: verdicts"


class Form:
    """Controls for a choice.

    Args:
        start: what they show at first, and after `reset`.
        on_change: called after every change.
    """

    def __init__(self, start: Choice, on_change: Callable[[], None]) -> None:
        import ipywidgets as widgets

        self._start, self._on_change, self._is_filling = start, on_change, False
        whole = start.whole()
        self._mode = widgets.Dropdown(options=list(MODES), value=start.mode, description="mode")
        self._blocks = widgets.BoundedIntText(min=1, max=MOST, description="blocks")
        self._protocol = widgets.Dropdown(
            options=list(protocols(start)), value=start.protocol, description="protocol"
        )
        main, others = fields(start)
        self._fields = {field.name: field for field in (*main, *others)}
        self._controls = {field.name: _control(field) for field in (*main, *others)}
        labels = [*whole.variants, *whole.in_full]
        self._variants = {label: check_box(label) for label in labels}
        self._baseline = widgets.Dropdown(options=labels, description="baseline")
        more = widgets.ToggleButton(
            description="More settings", tooltip="Show the settings that matter less here"
        )
        hidden = grid([with_help(self._controls[field.name], field.help) for field in others])
        if len(protocols(start)) > 1:
            help_text = "the document's order, cold first variant and loop, or what corrects them"
            hidden.children = (with_help(self._protocol, help_text), *hidden.children)
        hidden.layout.display = "none"
        more.observe(lambda change: _show(hidden, is_shown=change["new"]), "value")
        first = [
            with_help(self._mode, MODE_HELP),
            with_help(self._blocks, "repetitions of all variants; verdicts need 6 or more"),
        ]
        variants = widgets.Box(list(self._variants.values()))
        variants.layout.flex_flow = "row wrap"
        variants.add_class("labkit-variants")
        self.box = widgets.VBox(
            [
                grid([*first, *(with_help(self._controls[f.name], f.help) for f in main)]),
                widgets.HTML('<div class="labkit-help">variants that take part:</div>'),
                variants,
                with_help(self._baseline, "what the others are divided by"),
                more,
                hidden,
            ]
        )
        self.reset()
        for control in self._all():
            control.observe(self._changed, "value")

    def choice(self) -> Choice:
        """Read what is chosen; what is left alone stays unset."""
        changes = dict(self._start.changes)
        for name, control in self._controls.items():
            if control.value != _shown(self._fields[name]):
                changes[name] = control.value
        kept = tuple(label for label, box in self._variants.items() if box.value)
        if not kept:
            raise ValueError("variants must be at least one, got none; switch one on")
        blocks = self._blocks.value
        baseline = self._baseline.value
        is_usual = baseline == self._start.whole().baseline and self._start.baseline is None
        return replace(
            self._start,
            mode=self._mode.value,
            blocks=None if blocks == blocks_of(self._mode.value) else blocks,
            changes=changes,
            variants=() if len(kept) == len(self._variants) else kept,
            baseline=None if is_usual else baseline,
            protocol=self._protocol.value,
        )

    def reset(self) -> None:
        """Show what was there at first."""
        start = self._start
        self._is_filling = True
        self._mode.value = start.mode
        self._protocol.value = start.protocol
        self._blocks.value = start.blocks or blocks_of(start.mode)
        for name, field in self._fields.items():
            self._controls[name].value = _shown(field)
        for label, box in self._variants.items():
            box.value = not start.variants or label in start.variants
        self._baseline.value = start.baseline or start.whole().baseline
        self._is_filling = False
        self._follow_mode()

    def disable(self, *, is_disabled: bool) -> None:
        """Let nothing be changed while a run is under way, or let it again."""
        for control in self._all():
            control.disabled = is_disabled

    def _all(self) -> list[Widget]:
        own = [self._mode, self._blocks, self._protocol, self._baseline]
        return [*own, *self._controls.values(), *self._variants.values()]

    def _changed(self, change: dict) -> None:
        if self._is_filling:
            return
        if change["owner"] is self._mode:
            self._follow_mode()
        self._on_change()

    def _follow_mode(self) -> None:
        """What a mode fills in changes with it; what a person set stays."""
        mode, self._is_filling = self._mode.value, True
        if self._start.blocks is None:
            self._blocks.value = blocks_of(mode)
        main, others = fields(replace(self._start, mode=mode))
        for field in (*main, *others):
            control, before = self._controls[field.name], self._fields[field.name]
            is_untouched = control.value == _shown(before)
            self._fields[field.name] = field
            if is_untouched:
                control.value = _shown(field)
        self._is_filling = False


def _control(field: Field) -> Widget:
    import ipywidgets as widgets

    if field.kind is bool:
        return widgets.Checkbox(description=field.name, indent=False, tooltip=field.help)
    if field.kind is int:
        least = FOUND_OUT if field.value is None else field.least
        return widgets.BoundedIntText(
            description=field.name, min=least, max=MOST, step=field.step, tooltip=field.help
        )
    if field.choices:
        return widgets.Dropdown(
            description=field.name, options=list(field.choices), tooltip=field.help
        )
    return widgets.Combobox(
        description=field.name, options=field.suggestions, ensure_option=False, tooltip=field.help
    )


def _shown(field: Field) -> object:
    """What the control shows if the setting is left alone."""
    if field.value is None:
        return FOUND_OUT if field.kind is int else ""
    return field.value


def _show(box: Widget, *, is_shown: bool) -> None:
    box.layout.display = None if is_shown else "none"
