"""The form of a panel: a control for every setting, generated from what may be chosen.

    Choice ─ choices.fields() ─▶ controls ─ Form.choice() ─▶ Choice

A control that is left alone follows mode, protocol and the other settings, as a run would fill it
in.  Main trap: what it shows then must not count as a choice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from labkit.experiments.request import Choice, Field, blocks_of, fields, labels, protocols
from labkit.panel.controls import check_box, grid, with_help
from labkit.settings import MODES

if TYPE_CHECKING:
    from ipywidgets import Widget

MOST = 2**53  # number fields need an end; beyond it a browser's numbers are not whole
FOUND_OUT = 0  # what stands in a number field that only a run can fill
MODE_HELP = "quick: look · document: as the document ran it · full: verdicts"
BLOCKS_HELP = "repetitions of all variants; verdicts need 6 or more"
PROTOCOL_HELP = "the document's order, cold first variant and loop, or what corrects them"


class Form:
    """Controls for a choice.

    Args:
        start: what they show at first, and after `reset`.
        on_change: called after every change.
        guard: makes a handler of an action that may raise.
    """

    def __init__(
        self,
        start: Choice,
        on_change: Callable[[], None],
        guard: Callable[[Callable[[], None]], Callable[..., None]],
    ) -> None:
        import ipywidgets as widgets

        self._start, self._on_change, self._is_filling = start, on_change, False
        self._mode = widgets.Dropdown(options=list(MODES), value=start.mode, description="mode")
        self._blocks = widgets.BoundedIntText(min=1, max=MOST, description="blocks")
        self._usual_blocks = start.blocks or blocks_of(start.mode)
        self._protocol = widgets.Dropdown(
            options=list(protocols(start)), value=start.protocol, description="protocol"
        )
        self._baseline = widgets.Dropdown(description="baseline")
        main, others = self._make_fields()
        self._variants: dict[str, Widget] = {}
        for protocol in protocols(start):
            whole = replace(start, protocol=protocol).whole()
            for label in (*whole.variants, *whole.in_full):
                self._variants.setdefault(label, check_box(label))
        self.box = self._layout(main, others)
        self.reset()
        changed = guard(self._changed)
        for control in self._all():
            control.observe(changed, "value")

    def _make_fields(self) -> tuple[list[Field], list[Field]]:
        """Make a control for each setting that any of the protocols leaves open."""
        kinds = [fields(replace(self._start, protocol=name)) for name in protocols(self._start)]
        main, others = ({field.name: field for kind in kinds for field in kind[i]} for i in (0, 1))
        self._fields = {**main, **others}
        self._controls = {name: _control(field) for name, field in self._fields.items()}
        self._boxes = {
            name: with_help(self._controls[name], _help(field))
            for name, field in self._fields.items()
        }
        return list(main.values()), list(others.values())

    def _layout(self, main: list[Field], others: list[Field]) -> Widget:
        import ipywidgets as widgets

        more = widgets.ToggleButton(
            description="More settings", tooltip="Show the settings that matter less here"
        )
        hidden = grid([self._boxes[field.name] for field in others])
        hidden.layout.display = "none"
        more.observe(lambda change: _show(hidden, is_shown=change["new"]), "value")
        first = [with_help(self._mode, MODE_HELP), with_help(self._blocks, BLOCKS_HELP)]
        if len(protocols(self._start)) > 1:
            first.append(with_help(self._protocol, PROTOCOL_HELP))
        variants = widgets.Box(list(self._variants.values()), layout={"flex_flow": "row wrap"})
        variants.add_class("labkit-variants")
        return widgets.VBox(
            [
                grid([*first, *(self._boxes[field.name] for field in main)]),
                more,
                hidden,
                widgets.HTML('<div class="labkit-help">variants that take part:</div>'),
                variants,
                with_help(self._baseline, "reference variant (= 1.0)"),
            ]
        )

    def choice(self) -> Choice:
        """Read what is chosen; what is left alone stays unset.

        Raises:
            ValueError: no variant is chosen.
        """
        mode, blocks, baseline = self._mode.value, self._blocks.value, self._baseline.value
        offered = self._offered()
        kept = tuple(label for label in offered if self._variants[label].value)
        if not kept:
            raise ValueError("variants must be at least one, got none; switch one on")
        is_usual = baseline == self._start.whole().baseline and self._start.baseline is None
        return replace(
            self._start,
            mode=mode,
            blocks=None if blocks == blocks_of(mode) else blocks,
            changes={**self._start.changes, **self._touched()},
            variants=() if len(kept) == len(offered) else kept,
            baseline=None if is_usual else baseline,
            protocol=self._protocol.value,
        )

    def reset(self) -> None:
        """Show what was there at first."""
        start = self._start
        self._is_filling = True
        try:
            self._mode.value, self._protocol.value = start.mode, start.protocol
            for name, field in self._fields.items():
                self._controls[name].value = _shown(field)
            for label, box in self._variants.items():
                box.value = not start.variants or label in start.variants
            self._usual_blocks = start.blocks or blocks_of(start.mode)
            self._blocks.value = self._usual_blocks
            self._follow()
            self._baseline.value = start.baseline or start.whole().baseline
        finally:
            self._is_filling = False

    def disable(self, *, is_disabled: bool) -> None:
        """Let nothing be changed while a run is under way, or let it again."""
        for control in self._all():
            control.disabled = is_disabled

    def _all(self) -> list[Widget]:
        own = [self._mode, self._blocks, self._protocol, self._baseline]
        return [*own, *self._controls.values(), *self._variants.values()]

    def _changed(self) -> None:
        if self._is_filling:
            return
        self._is_filling = True
        try:
            self._follow()
        finally:
            self._is_filling = False
        self._on_change()

    def _touched(self) -> dict[str, object]:
        """Give the settings that a person changed; of those that can be chosen now."""
        return {
            name: control.value
            for name, control in self._controls.items()
            if control.value != _shown(self._fields[name])
            and self._boxes[name].layout.display != "none"
        }

    def _now(self, changes: dict[str, object]) -> dict[str, Field]:
        chosen = replace(
            self._start,
            mode=self._mode.value,
            protocol=self._protocol.value,
            changes={**self._start.changes, **changes},
        )
        main, others = fields(chosen)
        return {field.name: field for field in (*main, *others)}

    def _follow(self) -> None:
        """Let what nobody touched follow what was changed; hide what does not apply."""
        usual = blocks_of(self._mode.value)
        if self._blocks.value == self._usual_blocks and self._start.blocks is None:
            self._blocks.value = self._usual_blocks = usual
        applies = self._now({})  # another protocol may decide a setting itself
        for name, box in self._boxes.items():
            _show(box, is_shown=name in applies)
        touched = self._touched()
        offered = self._now(touched)
        for name, control in self._controls.items():
            if name in touched:  # what it would be had it been left alone
                others = {key: value for key, value in touched.items() if key != name}
                self._fields[name] = self._now(others).get(name, self._fields[name])
            elif name in offered:
                self._fields[name] = offered[name]
                control.value = _shown(offered[name])
        self._follow_variants()

    def _follow_variants(self) -> None:
        offered = self._offered()
        for label, box in self._variants.items():
            _show(box, is_shown=label in offered)
        if list(self._baseline.options) != offered:
            baseline = self._baseline.value
            self._baseline.options = offered
            usual = self._start.whole().baseline
            self._baseline.value = baseline if baseline in offered else usual

    def _offered(self) -> list[str]:
        whole = replace(self._start, protocol=self._protocol.value).whole()
        return labels(whole, self._mode.value)


def _control(field: Field) -> Widget:
    import ipywidgets as widgets

    said = {"description": field.name, "tooltip": field.help}
    if field.kind is bool:
        return widgets.Checkbox(indent=False, **said)
    if field.kind is int:
        least = FOUND_OUT if field.value is None else field.least
        return widgets.BoundedIntText(min=least, max=MOST, step=field.step, **said)
    if field.choices:
        return widgets.Dropdown(options=list(field.choices), **said)
    return widgets.Combobox(options=field.suggestions, ensure_option=False, **said)


def _help(field: Field) -> str:
    is_found_out = field.kind is int and field.value is None
    return f"{field.help} {FOUND_OUT} is unset." if is_found_out else field.help


def _shown(field: Field) -> object:
    """What the control shows if the setting is left alone."""
    if field.value is None:
        return FOUND_OUT if field.kind is int else ""
    return field.value


def _show(box: Widget, *, is_shown: bool) -> None:
    box.layout.display = None if is_shown else "none"
