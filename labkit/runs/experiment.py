"""Experiment: the variants that are compared, and the checks before a run folder is made.

Settings may be unset in an experiment; `check` fills them in for this machine, and the run folder
holds what was really run.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace

from labkit import pipeline
from labkit.contracts import Skip, utc_now
from labkit.machine import hardware
from labkit.parts.packing.remote import local_folder
from labkit.resolve import (
    Resolved,
    complete_here,
    open_original,
    open_reader,
    original,
    resolve,
)
from labkit.runs import timing
from labkit.runs.kinds import EPOCHS, KINDS
from labkit.runs.schedule import check_blocks
from labkit.runs.staging import why_not_throttled
from labkit.runs.store import RESERVED, SCHEMA, SHARED, Run
from labkit.settings import (
    CORRECTED,
    MODES,
    PROTOCOLS,
    Settings,
    pick,
    read_settings,
)

# Variants that differed in these would do different work.
SAME_FOR_ALL = ("data", "images", "subset", "seed", "epochs", "on_bad_image")


@dataclass(frozen=True, kw_only=True)
class Dial:
    """How often the training loop does something, as one setting."""

    setting: str
    """Name of a setting that counts steps; 0 is never."""
    advice: int | None = None
    """Steps that a document recommends."""
    source: str = ""
    """Document and section of the advice."""


@dataclass(frozen=True)
class Experiment:
    """A question, the variants that answer it, and what the documents reported."""

    name: str
    _: KW_ONLY
    question: str
    """Becomes the chart's title."""
    variants: Mapping[str, Settings]
    """Label -> settings, in the order of the tables."""
    baseline: str
    """The label that all others of its group are divided by."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Label -> what it is compared within, as "decode, 640×480"; unset: one group has all.

    The baseline of a group is `baseline` if that is in it, else the group's first variant."""
    kind: str = EPOCHS
    """What a trial times, a key of `kinds.KINDS`."""
    tasks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Label -> what its trials need beside the settings, for kinds that need more."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Label -> the document's normalized time, where it gives one."""
    source: str = ""
    """Document and section."""
    in_full: Mapping[str, Settings] = field(default_factory=dict)
    """Label -> settings of variants that only full mode measures."""
    protocol: str = CORRECTED
    """"corrected", or "as in the document": each variant in its order, nothing repeated."""
    notes: tuple[str, ...] = ()
    """Sentences about the machine that belong to every run, such as what stands in for what."""
    dial: Dial | None = None
    """The setting whose steps are the axis of a second chart, `lab.dial_chart`."""
    otherwise: Callable[[str], Experiment] | None = None
    """What to run instead where the throttled disk cannot be put up; takes the reason."""
    # Not in __init__, so that `dataclasses.replace` drops it: a changed experiment is the user's.
    request: Mapping[str, object] | None = field(init=False, default=None, compare=False)
    """The arguments that the catalog made it from; None: an experiment of the user's own."""

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
        pick(dict(self.variants), self.baseline, "baseline")
        for label in self.published:
            pick(dict(self.variants), label, "published label")
        pick(dict.fromkeys(PROTOCOLS), self.protocol, "protocol")
        pick(KINDS, self.kind, "kind")

    def grouped(self, labels: Iterable[str]) -> dict[str, dict]:
        """Return what `run.json` holds of groups and tasks; nothing where there are none.

        Args:
            labels: the variants that are measured.
        """
        told = {}
        if self.tasks:
            told["tasks"] = {label: self.tasks[label] for label in labels}
        if self.groups:
            groups = {label: self.groups.get(label, "") for label in labels}
            firsts = {group: label for label, group in reversed(groups.items())}
            firsts[groups[self.baseline]] = self.baseline
            told |= {"groups": groups, "baselines": {g: firsts[g] for g in groups.values()}}
        return told


def requested(experiment: Experiment, request: Mapping[str, object]) -> Experiment:
    """Return the same experiment with the request that it came from."""
    made = replace(experiment)
    object.__setattr__(made, "request", request)
    return made


def choose(
    experiment: Experiment, variants: Iterable[str] = (), baseline: str | None = None
) -> Experiment:
    """Leave variants out of an experiment, or compare them with another one.

    Args:
        experiment: what to choose from.
        variants: labels that stay; none: all.
        baseline: what the others are divided by; unset: the experiment's own.

    Returns:
        The smaller experiment, without the document's figures if it has another baseline.

    Raises:
        ValueError: an unknown label, or a baseline that is left out.
    """
    known = {**experiment.variants, **experiment.in_full}
    kept = list(variants) or list(known)
    for label in kept:
        pick(known, label, "variant")
    request = {"variants": list(variants), "baseline": baseline}
    baseline = baseline or experiment.baseline
    if baseline not in kept:
        raise ValueError(
            f"baseline must be one of the chosen variants ({', '.join(kept)}), got {baseline!r}; "
            "choose it too, or take another baseline"
        )
    chosen = {label: known[label] for label in known if label in kept}
    in_full = {label: chosen[label] for label in experiment.in_full if label in chosen}
    in_full.pop(baseline, None)
    is_other = baseline != experiment.baseline
    otherwise = experiment.otherwise
    found = replace(
        experiment,
        variants={label: settings for label, settings in chosen.items() if label not in in_full},
        in_full=in_full,
        baseline=baseline,
        published={} if is_other else {k: v for k, v in experiment.published.items() if k in kept},
        otherwise=otherwise and (lambda why: choose(otherwise(why), kept, baseline)),
    )
    asked = experiment.request
    return found if asked is None else requested(found, {**asked, **request})


def check(
    experiment: Experiment,
    mode: str,
    blocks: int | None,
    cancel: threading.Event | None = None,
) -> dict[str, object]:
    """Refuse what cannot work, before anything is made or started.

    Returns:
        What `run.json` holds at the start of a run.

    Raises:
        ValueError: settings, data or parts that cannot work.
        Cancelled: `cancel` was set while data at a URL was copied to this machine.
    """
    chosen = pick(MODES, mode, "mode")
    request = {**(experiment.request or {}), "mode": mode, "blocks": blocks}
    blocks = check_blocks(chosen, blocks)
    if experiment.otherwise is not None:
        baseline = experiment.variants[experiment.baseline]
        if reason := why_not_throttled(complete_here(baseline, chosen)):
            experiment = experiment.otherwise(reason)
    wanted = {**experiment.variants, **(experiment.in_full if chosen.judged else {})}
    variants = {label: complete_here(settings, chosen) for label, settings in wanted.items()}
    parts, skipped = {}, {}
    for label, settings in variants.items():
        try:
            parts[label] = resolve(settings, cuda=hardware.cuda)
        except Skip as reason:
            skipped[label] = str(reason)
    local_folder(variants[experiment.baseline].data, cancel=cancel)
    data = _describe_data(variants[experiment.baseline])
    _check_equal_work(variants)
    _check_together(parts, data["images"])
    names = KINDS[experiment.kind].settings
    return {
        "schema": SCHEMA,
        "kind": experiment.kind,
        "experiment": experiment.name,
        "question": experiment.question,
        "mode": mode,
        "request": request,
        "protocol": experiment.protocol,
        "shuffled": chosen.shuffled and experiment.protocol == CORRECTED,
        "blocks": blocks,
        "baseline": experiment.baseline,
        "variants": {
            label: {name: value for name, value in asdict(settings).items() if name in names}
            for label, settings in variants.items()
        },
        **experiment.grouped(variants),
        "published": dict(experiment.published),
        "source": experiment.source,
        "dial": experiment.dial and asdict(experiment.dial),
        "skipped": skipped,
        "failed": {},
        "status": "running",
        "notes": [*experiment.notes, *_notes(variants)],
        "order_seed": secrets.randbits(32),
        "created_utc": utc_now(),
        "data": data,
        "timing": timing.HOW,
        "provenance": hardware.provenance(),
    }


def check_resumable(run: Run) -> None:
    """Refuse to resume a run whose new rows would not be comparable with its old ones.

    Raises:
        ValueError: it came from another machine or version, a part of it is not known here, or
            its data changed.
    """
    info = run.info
    if shared := info.get(SHARED):
        raise ValueError(
            f"run must be one of this machine's to be resumed, got one from {shared['from']}; "
            f"start one here: labkit run {info['experiment']}"
        )
    variants = {label: read_settings(values) for label, values in info["variants"].items()}
    mode = MODES[info["mode"]]
    for settings in variants.values():
        with contextlib.suppress(Skip):  # its row says why
            resolve(complete_here(settings, mode))
    data = _describe_data(variants[info["baseline"]])
    if {name: data[name] for name in info["data"]} != info["data"]:
        raise ValueError(
            f"data must be what the run began with ({info['data']}), got {data}; start a new run"
        )
    began_on, here = info["provenance"]["machine_id"], hardware.provenance()["machine_id"]
    if began_on != here:
        raise ValueError(
            f"run must be resumed on the machine it began on ({began_on}), got {here}; "
            "start a new run"
        )


def _describe_data(settings: Settings) -> dict[str, object]:
    open_reader.cache_clear()  # a notebook lives long, and its data may change
    reader = open_original(settings)
    # Missing files are all named at once when the images are checked.
    size_bytes = sum(path.stat().st_size for path in reader.paths if path.exists())
    return {
        "folder": settings.data,
        "images": len(reader),
        "bytes": size_bytes,
        "mean_bytes": size_bytes / max(1, len(reader)),
        "boxes": reader.boxes,
        "manifest_hash": reader.manifest_hash,
    }


def _check_equal_work(variants: Mapping[str, Settings]) -> None:
    """Refuse variants whose settings ask for different work, whether or not they run here."""
    for name in SAME_FOR_ALL:
        values = sorted({str(getattr(settings, name)) for settings in variants.values()})
        if len(values) > 1:
            raise ValueError(
                f"{name} must be the same for all variants, got {', '.join(values)}; "
                "make them experiments of their own"
            )


def _check_together(running: Mapping[str, Resolved], available: int) -> None:
    """Refuse variants that cannot be compared on this machine or that need too many images.

    Args:
        running: label -> parts; a variant that cannot run here must not limit the others.
        available: images there are.
    """
    real = [
        label for label, parts in running.items() if not parts.storage.label.startswith("modelled")
    ]
    if 0 < len(real) < len(running):
        raise ValueError(
            f"storage must be modelled for all variants or for none, got {', '.join(real)} on "
            "real storage; a model's figures must not stand beside measured ones"
        )
    settings = [parts.settings for parts in running.values()]
    for chosen in settings:
        pipeline.choose_images(original(chosen))  # not packed or copied yet
    sizes = sorted({chosen.batch_size for chosen in settings})
    wanted = min((chosen.images or available for chosen in settings), default=available)
    if math.lcm(*sizes) > wanted:
        raise ValueError(
            f"batch_size must have a common multiple of at most {wanted} images in all variants, "
            f"got {', '.join(map(str, sizes))}; choose sizes that divide each other"
        )


def _notes(variants: Mapping[str, Settings]) -> list[str]:
    most = max(settings.num_workers for settings in variants.values())
    if most > hardware.cores():
        return [f"num_workers {most} is more than this machine's {hardware.cores()} cores"]
    return []
