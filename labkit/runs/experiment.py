"""Experiment: a question, and the variants that answer it; see `labkit.experiments.sweep`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from labkit.records import EPOCHS, KINDS, StepsAxis
from labkit.runs.store import RESERVED
from labkit.settings import CORRECTED, MODES, PROTOCOLS, Settings, pick


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Settings, and what belongs to them in an experiment."""

    settings: Settings
    group: str = ""
    """The group in which it is compared, as "decode, 640×480"; "" where there are no groups.

    The baseline of a group is the experiment's if that is in it, else the group's first."""
    name: str = ""
    """How it is named in its group; unset: by its label."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """What its trials need beside the settings: "x", the device's rate ÷ the baseline's loading
    rate; "gpu_slowdown", the times that each batch is trained on; or an operation, its library, and
    the numbers that its inputs are made from."""
    published: float | None = None
    """The document's normalized time, where it gives one."""
    full_only: bool = False
    """Whether only full mode measures it."""


@dataclass(frozen=True)
class Experiment:
    """A question, the variants that answer it, and what the documents reported.

    Examples:
        >>> warm = Settings(cache="warm")
        >>> decoders = Experiment(
        ...     "decoders",
        ...     question="Which decoder is fastest?",
        ...     variants={"opencv": warm, "pillow": replace(warm, decoder="pillow")},
        ... )
        >>> decoders.baseline
        'opencv'
    """

    name: str
    _: KW_ONLY
    question: str
    """Becomes the chart's title."""
    variants: Mapping[str, Any]
    """Label -> `Variant`, in the order of the tables; settings alone become one."""
    baseline: str = ""
    """Label of the variant by whose time the others are divided; unset: the first variant."""
    kind: str = EPOCHS
    """The kind of work that a trial times, one of `labkit.records.KINDS`."""
    source: str = ""
    """Document and section."""
    protocol: str = CORRECTED
    """"corrected", or "as in the document": each variant in its order, nothing repeated."""
    notes: tuple[str, ...] = ()
    """Sentences about the machine that belong to every run, such as what is simulated."""
    document_order: Mapping[str, Settings] = field(default_factory=dict)
    """Label -> settings, as the protocol "as in the document" runs them; empty: it has none."""
    at_several_speeds: bool = False
    """Whether it is measured at several speeds of the simulated GPU: what its variants save
    depends on that."""
    runs_by_default: bool = False
    """Whether `labkit run` runs it by default."""
    x_axis: StepsAxis | None = None
    """The setting whose steps are the axis of a second chart."""
    fallback: Callable[[Experiment, str], Experiment] | None = None
    """Returns the same variants on other disks, where the throttled disk cannot be put up.

    Takes the experiment, from which variants may have been left out, and the reason."""
    # Not in __init__, so that `dataclasses.replace` drops it: a changed experiment is the user's.
    request: Mapping[str, Any] | None = field(init=False, default=None, compare=False)
    """What `labkit.experiments.request.Request` built it from; None: the user's own."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            raise ValueError(
                f"name must be lower-case letters, digits and _, got {self.name!r}; "
                "it becomes a folder of results"
            )
        if self.name in RESERVED:
            raise ValueError(
                f"name must be none of {', '.join(RESERVED)}, got {self.name!r}; "
                "those folders of results hold something else"
            )
        if not self.variants:
            raise ValueError("variants must be at least one, got none")
        object.__setattr__(self, "variants", as_variants(self.variants))
        if not self.baseline:
            object.__setattr__(self, "baseline", next(iter(self.variants)))
        pick(dict(self.variants), self.baseline, "baseline")
        pick(dict.fromkeys(PROTOCOLS), self.protocol, "protocol")
        pick(dict.fromkeys(KINDS), self.kind, "kind")

    @property
    def settings(self) -> dict[str, Settings]:
        """The settings of all variants by label."""
        return {label: variant.settings for label, variant in self.variants.items()}

    @property
    def has_groups(self) -> bool:
        """Whether its variants are compared in groups."""
        return any(variant.group for variant in self.variants.values())

    @property
    def has_tasks(self) -> bool:
        """Whether its trials need more than settings."""
        return any(variant.task for variant in self.variants.values())

    def measured(self, *, in_full: bool) -> dict[str, Variant]:
        """Return the variants that full mode measures, or the others."""
        return {
            label: variant
            for label, variant in self.variants.items()
            if in_full or not variant.full_only
        }

    def check_measured(self, chosen: Iterable[str], mode: str) -> None:
        """Refuse variants that a mode leaves out.

        Args:
            chosen: labels, or names in groups; what the experiment does not have is not looked at.
            mode: quick, document or full.

        Raises:
            ValueError: only full mode measures one of them.
        """
        measured = self.measured(in_full=MODES[mode].judged)
        every, kept = (
            {*variants, *(variant.name for variant in variants.values())}
            for variants in (self.variants, measured)
        )
        for label in chosen:
            if label in every - kept:
                raise ValueError(
                    f"variant must be one that {mode} mode measures ({', '.join(measured)}), got "
                    f"{label!r}; choose full mode, or leave it out"
                )

    def change(self, change: Callable[[Settings], Settings]) -> Experiment:
        """Return the experiment with changed settings of all variants."""
        changed = {
            label: replace(variant, settings=change(variant.settings))
            for label, variant in self.variants.items()
        }
        return replace(self, variants=changed)

    def run_fields(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return the fields of a run's `RunInfo` for groups and tasks; none where there are none.

        Args:
            labels: the variants that are measured.
        """
        run_fields: dict[str, Any] = {}
        chosen = {label: self.variants[label] for label in labels}
        if self.has_tasks:
            run_fields["tasks"] = {label: dict(variant.task) for label, variant in chosen.items()}
        if self.has_groups:
            groups = {label: variant.group for label, variant in chosen.items()}
            names = {label: variant.name or label for label, variant in chosen.items()}
            order = dict.fromkeys(variant.group for variant in self.variants.values())
            members = {
                group: [label for label in chosen if groups[label] == group] for group in order
            }
            run_fields |= {
                "groups": groups,
                "names": names,
                "baselines": {
                    group: self.baseline if self.baseline in labels_of_group else labels_of_group[0]
                    for group, labels_of_group in members.items()
                    if labels_of_group
                },
            }
        return run_fields


# What a function of the catalog returns: label -> settings, or a variant.
Variants = Mapping[str, Any]


def as_experiment(
    question: str, **fields: Any
) -> Callable[[Callable[[Settings], Variants]], Callable[[Settings], Experiment]]:
    """Make an experiment of the same name from a function that returns variants.

    Args:
        question: the experiment's.
        **fields: other fields of `Experiment`.

    Examples:
        >>> @as_experiment("How many workers does the loader need?", source="[002] 3.3")
        ... def workers(base):
        ...     return lab.sweep(base, "num_workers", [2, 0, 4])
        >>> workers(Settings()).name, list(workers(Settings()).variants)
        ('workers', ['2', '0', '4'])
    """

    def decorate(make: Callable[[Settings], Variants]) -> Callable[[Settings], Experiment]:
        @functools.wraps(make)
        def build(base: Settings) -> Experiment:
            return Experiment(make.__name__, question=question, variants=make(base), **fields)

        return build

    return decorate


def as_variants(variants: Mapping[str, Any]) -> dict[str, Variant]:
    """Return settings as variants, and variants as they are."""
    return {
        label: each if isinstance(each, Variant) else Variant(settings=each)
        for label, each in variants.items()
    }
