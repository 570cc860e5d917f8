"""Experiment: a question, and the variants that answer it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from labkit.contracts import EPOCHS, Dial
from labkit.runs.store import RESERVED
from labkit.settings import CORRECTED, PROTOCOLS, Settings, pick


@dataclass(frozen=True)
class Experiment:
    """A question, the variants that answer it, and what the documents reported."""

    name: str
    _: KW_ONLY
    question: str
    """Becomes the chart's title."""
    variants: Mapping[str, Settings]
    """Label -> settings, in the order of the tables."""
    baseline: str = ""
    """The label that all others of its group are divided by; unset: the first variant's."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Label -> what it is compared within, as "decode, 640×480"; unset: one group has all.

    The baseline of a group is `baseline` if that is in it, else the group's first variant."""
    kind: str = EPOCHS
    """What a trial times, a key of `kinds.KINDS`."""
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Label -> what its trials need beside the settings, for kinds that need more."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Label -> the document's normalized time, where it gives one."""
    singles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Label of a published combination -> the published time of each of its changes alone."""
    source: str = ""
    """Document and section."""
    in_full: Mapping[str, Settings] = field(default_factory=dict)
    """Label -> settings of variants that only full mode measures."""
    protocol: str = CORRECTED
    """"corrected", or "as in the document": each variant in its order, nothing repeated."""
    notes: tuple[str, ...] = ()
    """Sentences about the machine that belong to every run, such as what stands in for what."""
    as_published: Mapping[str, Settings] = field(default_factory=dict)
    """Label -> settings in the document's own order; empty: it is not run that way."""
    at_points: bool = False
    """Whether it is measured at several speeds of the simulated GPU: what its variants save
    depends on that."""
    main_road: bool = False
    """Whether `labkit run` runs it by default."""
    knobs: tuple[str, ...] = ("num_workers", "batch_size", "input_px", "device")
    """Names of the settings that the form shows first, after the data."""
    dial: Dial | None = None
    """The setting whose steps are the axis of a second chart."""
    otherwise: Callable[[Experiment, str], Experiment] | None = None
    """Returns what to run instead of an experiment whose throttled disk cannot be put up.

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
        if not self.baseline:
            object.__setattr__(self, "baseline", next(iter(self.variants)))
        pick(dict(self.variants), self.baseline, "baseline")
        for label in self.published:
            pick({**self.variants, **self.in_full}, label, "published label")
        pick(dict.fromkeys(PROTOCOLS), self.protocol, "protocol")

    def grouped(self, labels: Iterable[str]) -> dict[str, Any]:
        """Return the fields of a run's `RunInfo` for groups and tasks; none where there are none.

        Args:
            labels: the variants that are measured.
        """
        told: dict[str, Any] = {}
        if self.tasks:
            told["tasks"] = {label: self.tasks[label] for label in labels}
        if self.groups:
            groups = {label: self.groups.get(label, "") for label in labels}
            firsts = {group: label for label, group in reversed(groups.items())}
            firsts[groups[self.baseline]] = self.baseline
            order = [group for group in self.groups.values() if group in firsts]
            told |= {"groups": groups, "baselines": {g: firsts[g] for g in order}}
        return told


def in_groups(
    groups: Mapping[str, Mapping[str, Settings]],
    is_quick: Callable[[str, str], bool],
) -> dict[str, Any]:
    """Return an experiment's variants, named "group: label", and their groups.

    Args:
        groups: group -> label -> settings.
        is_quick: of group and label; the others are for full mode only.
    """
    variants: dict[str, Settings] = {}
    in_full: dict[str, Settings] = {}
    group_of: dict[str, str] = {}
    for group, its in groups.items():
        for label, settings in its.items():
            name = f"{group}: {label}"
            (variants if is_quick(group, label) else in_full)[name] = settings
            group_of[name] = group
    return {"variants": variants, "in_full": in_full, "groups": group_of}
