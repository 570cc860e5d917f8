"""Choices: what a person may choose of an experiment, and what they chose, as plain data.

    Experiment ─ fields() ─▶ a form ─▶ Choice ─ experiment() ─▶ the Experiment that is run

The form itself is elsewhere; here is what stands in it.  Main trap: a setting that is left alone
must stay unset, or a form that shows 2 workers would pin them in every mode and on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from labkit.experiments import catalog
from labkit.machine import media
from labkit.resolve import TABLES, complete_here
from labkit.runs.experiment import Experiment, choose
from labkit.runs.kinds import KINDS
from labkit.settings import (
    CORRECTED,
    INPUT_PX_STEP,
    LEAST,
    MODES,
    Settings,
    field_kinds,
    help_texts,
    pick,
    with_settings,
)

# What most questions about an experiment turn on, where the catalog does not say.
USUAL = ("num_workers", "batch_size", "input_px", "device")
IMAGES = (".jpg", ".jpeg")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One setting in a form."""

    name: str
    help: str
    kind: type
    """int, bool or str."""
    value: object
    """What holds if it is left alone; None: only a run finds it out."""
    choices: tuple[str, ...] = ()
    """All there are; none: free."""
    suggestions: tuple[str, ...] = ()
    """Some that make sense, where anything may be written."""
    least: int = 0
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a person chose: an experiment, and what is to be different."""

    subject: str | Experiment
    """A name of the catalog, or an experiment of their own."""
    mode: str = "quick"
    blocks: int | None = None
    """Repetitions; unset: the mode's."""
    changes: Mapping[str, object] = field(default_factory=dict)
    """Settings for all variants."""
    variants: tuple[str, ...] = ()
    """Those that take part; none: all."""
    baseline: str | None = None
    """Unset: the experiment's."""
    protocol: str = CORRECTED

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.subject if isinstance(self.subject, str) else self.subject.name

    def whole(self) -> Experiment:
        """Build the experiment with the changes, all of its variants still there.

        Raises:
            ValueError: an unknown name, or a setting that this experiment decides itself.
        """
        if isinstance(self.subject, str):
            return catalog.experiment(self.subject, protocol=self.protocol, **self.changes)
        return _changed(self.subject, self.changes)

    def request(self) -> dict[str, object]:
        """Return what is asked for, as `run.json` holds it; see `reproduce`.

        Raises:
            ValueError: as `experiment`.
        """
        own = {"settings": self.changes, "variants": self.variants, "baseline": self.baseline}
        asked = self.experiment().request or own
        return {**asked, "mode": self.mode, "blocks": self.blocks}

    def experiment(self) -> Experiment:
        """Build the experiment that is to be run.

        Raises:
            ValueError: as `whole`; or a variant or baseline that is not there, or not in this mode.
        """
        whole = self.whole()
        measured = labels(whole, self.mode)
        for label in (*self.variants, self.baseline):
            if label in whole.in_full and label not in measured:
                raise ValueError(
                    f"variant must be one that {self.mode} mode measures "
                    f"({', '.join(measured)}), got {label!r}; choose full mode, or leave it out"
                )
        return choose(whole, self.variants, self.baseline)


def fields(choice: Choice) -> tuple[list[Field], list[Field]]:
    """List the settings that a person may change for all variants alike.

    Args:
        choice: whose experiment; what unset settings become depends on its mode.

    Returns:
        Those that the experiment's question turns on, data first; and all others.
    """
    experiment = choice.whole()
    settings = [*experiment.variants.values(), *experiment.in_full.values()]
    alike = {
        name: value
        for name, value in vars(experiment.variants[experiment.baseline]).items()
        if name in KINDS[experiment.kind].settings
        and all(getattr(other, name) == value for other in settings)
    }
    shown = complete_here(Settings(**alike), pick(MODES, choice.mode, "mode"))
    first = ("data", *catalog.KNOBS.get(choice.name, USUAL))
    found = {name: _field(name, getattr(shown, name)) for name in field_kinds() if name in alike}
    main = [found.pop(name) for name in first if name in found]
    return main, list(found.values())


def labels(experiment: Experiment, mode: str) -> list[str]:
    """List the variants that a mode measures."""
    in_full = experiment.in_full if pick(MODES, mode, "mode").judged else {}
    return [*experiment.variants, *in_full]


def blocks_of(mode: str) -> int:
    """Say how many blocks a mode has if nothing is chosen."""
    return pick(MODES, mode, "mode").blocks


def protocols(choice: Choice) -> tuple[str, ...]:
    """List the protocols that an experiment knows and that its changes allow."""
    is_known = isinstance(choice.subject, str) and choice.subject in catalog.AS_PUBLISHED_TOO
    return tuple(
        protocol
        for protocol in (CORRECTED, *((catalog.AS_PUBLISHED,) if is_known else ()))
        if protocol == choice.protocol or _is_possible(replace(choice, protocol=protocol))
    )


def _is_possible(choice: Choice) -> bool:
    try:
        choice.whole()
    except ValueError:
        return False
    return True


def find_data(beside: str) -> tuple[str, ...]:
    """List the folders of images next to one, itself first.

    Args:
        beside: a folder of images; it need not be there.
    """
    parent = Path(beside).parent
    there = sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
    images = [str(path) for path in there if path != Path(beside) and _has_images(path)]
    return (beside, *images)


def _field(name: str, value: object) -> Field:
    kind, choices, _ = field_kinds()[name]
    suggestions: tuple[str, ...] = ()
    if name == "data":
        suggestions = find_data(str(value))
    elif name == "storage":  # a folder's path will do as well
        suggestions = tuple(dict.fromkeys([str(value), *TABLES["storage"], *media.media()]))
    elif name in TABLES:
        choices = tuple(dict.fromkeys([*TABLES[name], str(value)]))  # may be one that is not here
    return Field(
        name=name,
        help=help_texts()[name],
        kind=kind,
        value=value,
        choices=choices,
        suggestions=suggestions,
        least=INPUT_PX_STEP if name == "input_px" else LEAST.get(name, 0),
        step=INPUT_PX_STEP if name == "input_px" else 1,
    )


def _changed(experiment: Experiment, changes: Mapping[str, object]) -> Experiment:
    def change(variants: Mapping[str, Settings]) -> dict[str, Settings]:
        return {label: with_settings(other, dict(changes)) for label, other in variants.items()}

    otherwise = experiment.otherwise
    return replace(
        experiment,
        variants=change(experiment.variants),
        in_full=change(experiment.in_full),
        otherwise=otherwise and (lambda why: _changed(otherwise(why), changes)),
    )


def _has_images(folder: Path) -> bool:
    """Look only at the first few names: a folder may hold a million files."""
    inside = folder / "images" if (folder / "images").is_dir() else folder
    with_names = (path for path, _ in zip(inside.iterdir(), range(50)))
    return any(path.suffix.lower() in IMAGES for path in with_names)
