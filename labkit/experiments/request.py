"""A user's request: the object that form, command line, notebook and `run.json` share.

form, command line, notebook ──▶ Request ── build() ──▶ Experiment ── run() ──▶ run.json
run.json ── Request.read() ──▶ command_line(), python_code()
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from labkit import units
from labkit.experiments import catalog
from labkit.experiments.device_speeds import at_several_speeds, over_device_speeds
from labkit.records import EPOCHS, RunInfo
from labkit.resolve import check_names, complete_here
from labkit.runs.calibrated_device import is_calibrated
from labkit.runs.experiment import Experiment, Variant
from labkit.settings import CORRECTED, MODES, pick, read_changes, with_new_names, with_settings


@dataclass(frozen=True, kw_only=True)
class Request:
    """An experiment, and the changes of its definition."""

    experiment: str | Experiment | None
    """A key of `CATALOG`, or the user's own; None: the user's own, of a run read from disk."""
    mode: str = "quick"
    blocks: int | None = None
    """Number of blocks; unset: the mode's."""
    protocol: str = CORRECTED
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for all variants."""
    variants: tuple[str, ...] = ()
    """Labels of the variants to run; empty: all."""
    added: tuple[str, ...] = ()
    """Variants of the user's own: "num_workers=8" is like the baseline, "simplified, num_workers=8"
    like the variant simplified."""
    baseline: str | None = None
    """Label of the baseline; unset: the experiment's."""
    roofline: bool = False
    """Whether to measure at several speeds of the device."""

    @classmethod
    def of(cls, experiment: Experiment | str) -> Request:
        """Return the request that an experiment was built from; of a name, without changes."""
        return cls._from({"experiment": experiment, **(getattr(experiment, "request", None) or {})})

    @classmethod
    def read(cls, info: RunInfo) -> Request:
        """Return the request of a stored run; of runs before schema 2 its name and mode only."""
        if info.request:
            return cls._from(info.request)
        name = info.experiment
        return cls(experiment=name if name in catalog.CATALOG else None, mode=info.mode)

    @classmethod
    def _from(cls, stored: Mapping[str, Any]) -> Request:
        given = {name: value for name, value in stored.items() if value is not None}
        new_labels = {  # of labels in runs of earlier versions
            "best of the document": "ssd + data_prefetcher + on_device",
            "best with prefetch_generator": "ssd + prefetch_generator + on_device",
        }
        variants = tuple(new_labels.get(label, label) for label in given.pop("variants", ()))
        settings = with_new_names(given.pop("settings", {}))
        for name in settings:
            if not name.isidentifier():  # `python_code` writes it as it stands
                raise ValueError(f"settings must be named as in `Settings`, got {name!r:.80}")
        added = tuple(given.pop("added", ()))
        changed = {"settings": settings, "variants": variants, "added": added}
        return cls(**{"experiment": None, **given, **changed})

    def to_dict(self) -> dict[str, Any]:
        """Return what a run holds as its `request`; an own experiment is left out."""
        lists = {"variants": list(self.variants), "added": list(self.added)}
        stored = {**vars(self), "settings": dict(self.settings), **lists}
        if not isinstance(self.experiment, str):
            del stored["experiment"]
        return stored

    def whole(self) -> Experiment:
        """Return the experiment with the settings, and all of its variants.

        Raises:
            ValueError: an unknown name, or a setting that this experiment decides itself.
        """
        settings = dict(self.settings)
        if self.roofline:  # it chooses among the cache states of an experiment that compares them
            settings.pop("cache", None)
        if isinstance(self.experiment, str):
            whole = catalog.build(self.experiment, self.protocol, settings)
        else:
            own: Any = self.experiment
            whole = own.change(lambda chosen: with_settings(chosen, settings))
        return _with_own(whole, self.added)

    def build(self) -> Experiment:
        """Return the experiment that is to be run.

        Raises:
            ValueError: as `whole`; or a variant or baseline that is not there, or not in this mode.
        """
        whole = self.whole()
        is_judged = pick(MODES, self.mode, "mode").judged
        whole.check_measured(filter(None, (*self.variants, self.baseline)), self.mode)
        built = _kept(whole, self.variants, self.baseline)
        if self.roofline:
            self._check_roofline()
            built = replace(built, variants=built.measured(in_full=is_judged))
            built = over_device_speeds(built, self.settings.get("cache"))
        elif (
            self.protocol == CORRECTED and whole.at_several_speeds and _trains_on_calibrated(built)
        ):
            built = at_several_speeds(built)
        object.__setattr__(built, "request", self.to_dict())
        return built

    def _check_roofline(self) -> None:
        """Refuse what a roofline decides itself, instead of dropping it silently."""
        decided = {"mode": ("quick", "full"), "protocol": (CORRECTED,)}
        given = {"mode": self.mode, "protocol": self.protocol, **self.settings}
        for name, choices in {**decided, "epochs": (1,)}.items():
            if given.get(name, choices[0]) not in choices:
                raise ValueError(
                    f"{name} must be {' or '.join(map(str, choices))} for a roofline, got "
                    f"{given[name]}; leave it out"
                )

    def command_line(self, results: str | None = None) -> str:
        """Return the command that runs the request again.

        Args:
            results: folder that takes the run folder.

        Returns:
            One line for a POSIX shell; empty for an experiment of the user's own.
        """
        if not isinstance(self.experiment, str):
            return ""
        is_corrected = self.protocol == CORRECTED
        options = [
            ("mode", self.mode),
            ("blocks", self.blocks),
            ("protocol", None if is_corrected else self.protocol.replace(" ", "-")),
            *(("variant", label) for label in self.variants),
            *(("add", changes) for changes in self.added),
            ("baseline", self.baseline),
            *self.settings.items(),
            ("results", results),
        ]
        words = ["labkit", "roofline" if self.roofline else "run", self.experiment]
        for name, value in options:
            if value is not None:
                text = units.text_of(value)
                option = f"--{name.replace('_', '-')}"
                # After a blank, a value such as "-1" would be taken for an option.
                words += [f"{option}={text}"] if text.startswith("-") else [option, text]
        return shlex.join(words)

    def python_code(self, results: str | None = None) -> str:
        """Return the Python call for a notebook; arguments as of `command_line`.

        Returns:
            Lines that end in ``run = …``; of an experiment of the user's own without its
            definition.
        """
        settings, chosen = dict(self.settings), {}
        if self.roofline:
            chosen = {"cache": settings.pop("cache", None)}
        if isinstance(self.experiment, str):
            protocol = None if self.protocol == CORRECTED else self.protocol
            given = _arguments({"protocol": protocol, **settings}, self.experiment)
            lines = [f"experiment = lab.experiment({given})"]
        else:
            given = _arguments(settings)
            changed = f", with {given} for all variants" if given else ""
            lines = [f"# experiment: as defined in the notebook{changed}"]
        chosen_variants = {
            "variants": self.variants or None,
            "baseline": self.baseline,
            "add": self.added or None,
        }
        if kept := _arguments(chosen_variants):
            lines.append(f"experiment = lab.choose(experiment, {kept})")
        given = _arguments({"blocks": self.blocks, "results": results, **chosen}, self.mode)
        lines.append(f"run = lab.{'roofline' if self.roofline else 'run'}(experiment, {given})")
        return "\n".join(["import labkit as lab\n", *lines]) + "\n"


def experiment(name: str, *, protocol: str = CORRECTED, **settings: object) -> Experiment:
    """Return an experiment of the catalog, with settings of one's own.

    Args:
        name: a key of `CATALOG`.
        protocol: "corrected", or "as in the document": its order, and a cold first variant.  Few
            experiments have the second.
        **settings: settings that all variants share, as ``data="data/coco", num_workers=4``.

    Raises:
        ValueError: unknown name, protocol or setting; the choices are listed.

    Examples:
        >>> workers = lab.experiment("workers", input_px=128)
        >>> list(workers.variants)[:2]
        ['as many as cores', 'no workers']
    """
    return Request(experiment=name, protocol=protocol, settings=settings).build()


def choose(
    experiment: Experiment,
    variants: Iterable[str] = (),
    baseline: str | None = None,
    add: Iterable[str] = (),
) -> Experiment:
    """Leave variants out of an experiment, add some, or compare them with another one.

    Args:
        experiment: what to choose from.
        variants: labels that stay; none: all.
        baseline: what the others are divided by; unset: the experiment's own.
        add: variants of one's own, as what they change of the baseline: "num_workers=8", or
            "num_workers=8,decoder=pillow"; of another variant: "simplified, num_workers=8".

    Returns:
        The changed experiment, without the document's figures if it has another baseline.

    Raises:
        ValueError: an unknown label, or a baseline that is left out.

    Examples:
        >>> whole = lab.experiment("preprocessing")
        >>> two = lab.choose(whole, ["original", "vectorized"], baseline="vectorized")
        >>> list(two.variants), two.baseline
        (['original', 'vectorized'], 'vectorized')
        >>> list(lab.choose(whole, ["original"], add=["num_workers=4"]).variants)
        ['original', 'num_workers=4']
    """
    asked = Request.of(experiment)
    variants, added = tuple(variants), (*asked.added, *add)
    chosen: dict[str, Any] = {
        "variants": tuple(dict.fromkeys([*variants, *added])) if variants else asked.variants,
        "baseline": baseline or asked.baseline,
        "added": added,
    }
    return replace(asked, mode="full", **chosen).build()  # those of full mode can be chosen, too


def variant_like(experiment: Experiment, text: str) -> Variant:
    """Return a variant of the user's own: one of the experiment's, with changes.

    Args:
        experiment: without variants of the user's own.
        text: "num_workers=8", like the baseline, or "simplified, num_workers=8", like simplified.

    Raises:
        ValueError: an unknown setting or value; or the variants are in groups, and none is named.
    """
    # The longest, as a label may begin with another one.
    labels = sorted(experiment.variants, key=len, reverse=True)
    named = next((label for label in labels if text.startswith(f"{label}, ")), "")
    if experiment.has_groups and not named:
        raise ValueError(
            f"variant must begin with the label of one of {experiment.name}, whose variants are in "
            f"groups, got {text!r}; for example: {experiment.baseline}, {text}"
        )
    changed = text.removeprefix(f"{named}, ") if named else text
    changes = read_changes(changed)
    check_names(changes)
    like = experiment.variants[named or experiment.baseline]
    return replace(
        like,
        settings=with_settings(like.settings, changes),
        name=like.name and f"{like.name}, {changed}",
        published=None,
        full_only=False,
    )


def _with_own(experiment: Experiment, added: Iterable[str]) -> Experiment:
    """Return an experiment with variants of the user's own.

    One that the experiment has for full mode alone is measured in every mode, labelled by its text.
    """
    added = dict.fromkeys(added)
    if added and experiment.kind != EPOCHS:
        raise ValueError(
            f"add must be left out of {experiment.name}, which times single operations; "
            "add a variant to an experiment that times epochs, such as preprocessing"
        )
    variants = dict(experiment.variants)
    for text in added:
        own = variant_like(experiment, text)
        same = [
            label
            for label, each in variants.items()
            if (each.settings, each.group) == (own.settings, own.group)
        ]
        for label in same:
            if not variants[label].full_only:
                raise ValueError(
                    f"variant must differ from all others, got {text!r}, which is {label!r}"
                )
        known = [variants.pop(label) for label in same]
        variants[text] = replace(known[0], full_only=False) if known else own
    return replace(experiment, variants=variants) if added else experiment


def _trains_on_calibrated(experiment: Experiment) -> bool:
    """Return whether the baseline uses the calibrated device."""
    return is_calibrated(complete_here(experiment.settings[experiment.baseline]))


def _kept(experiment: Experiment, variants: tuple[str, ...], baseline: str | None) -> Experiment:
    kept = variants or tuple(experiment.variants)
    for label in kept:
        pick(dict(experiment.variants), label, "variant")
    baseline = baseline or experiment.baseline
    if baseline not in kept:
        raise ValueError(
            f"baseline must be one of the chosen variants ({', '.join(kept)}), got {baseline!r}; "
            "choose it too, or take another baseline"
        )
    chosen = {label: each for label, each in experiment.variants.items() if label in kept}
    chosen[baseline] = replace(chosen[baseline], full_only=False)
    if baseline != experiment.baseline:
        chosen = {label: replace(each, published=None) for label, each in chosen.items()}
    return replace(experiment, variants=chosen, baseline=baseline)


def _arguments(named: Mapping[str, Any], *positional: object) -> str:
    arguments = [repr(value) for value in positional]
    arguments += [f"{name}={value!r}" for name, value in named.items() if value is not None]
    return ", ".join(arguments)
