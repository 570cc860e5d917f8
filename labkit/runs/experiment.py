"""Experiment: a question with its variants, and the run that answers it.

    Experiment + mode ─ complete, check ─▶ run folder ─ Runner ─▶ Run

What cannot work is refused here, before a folder is made or a process is started.  Settings may
be unset in an experiment; the run folder holds what was really run.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path

from labkit import pipeline, resolve
from labkit.contracts import Skip, utc_now
from labkit.machine import hardware
from labkit.parts.packing.remote import local_folder
from labkit.progress import Progress
from labkit.runs import timing
from labkit.runs.active import ActiveRun, single_run_lock
from labkit.runs.runner import EPOCHS, KINDS, run_to_the_end
from labkit.runs.schedule import check_blocks
from labkit.runs.staging import why_not_throttled
from labkit.runs.store import RESERVED, SCHEMA, SHARED, Run, create_run, hold, load_run
from labkit.settings import (
    CORRECTED,
    MODES,
    PROTOCOLS,
    Mode,
    Settings,
    complete,
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
    """What is asked, of which variants, and what the documents reported."""

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
    """What a trial does, a key of `runner.KINDS`."""
    tasks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Label -> what its trials are told beside the settings, where the kind wants it."""
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
    # Not in __init__, so that `dataclasses.replace` forgets it: what it makes is the user's own.
    request: Mapping[str, object] | None = field(init=False, default=None, compare=False)
    """How the catalog was asked for it, see `reproduce`; None: an experiment of the user's own."""

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
        The smaller experiment.  A document's figures hold against its own baseline, so with
        another one they are gone.

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


def completed(settings: Settings, mode: Mode) -> Settings:
    """Fill what is unset, as a run in this mode on this machine would."""
    # A table of one's own may have the device: only an unset device needs the GPU asked.
    has_cuda = settings.device is None and hardware.cuda().works
    return complete(
        settings,
        mode,
        cores=hardware.cores(),
        has_cuda=has_cuda,
        can_fork=hardware.can_fork(),
        real_step=resolve.real_step(settings),
    )


@single_run_lock()
def run(
    experiment: Experiment,
    mode: str = "quick",
    *,
    results: Path | str = "results",
    blocks: int | None = None,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> Run:
    """Run an experiment and return it as it lies on disk.

    Args:
        experiment: what to compare.
        mode: quick, document or full.
        results: folder that takes the run folder.
        blocks: repetitions; unset: the mode's.
        cancel: set by another thread to stop; finished trials stay.
        progress: print a bar with ETA; or who is told instead.

    Returns:
        The run; `run.info["status"]` is finished or cancelled.

    Raises:
        ValueError: settings, data or parts that cannot work, before anything is timed.
        RuntimeError: the baseline cannot be measured here (what was finished stays), or another
            thread has a run under way.
        Cancelled: `cancel` was set while data at a URL was copied to this machine.
    """
    chosen = pick(MODES, mode, "mode")
    request = {**(experiment.request or {}), "mode": mode, "blocks": blocks}
    blocks = check_blocks(chosen, blocks)
    if experiment.otherwise is not None:
        baseline = experiment.variants[experiment.baseline]
        if reason := why_not_throttled(completed(baseline, chosen)):
            experiment = experiment.otherwise(reason)
    wanted = {**experiment.variants, **(experiment.in_full if chosen.judged else {})}
    variants = {label: completed(settings, chosen) for label, settings in wanted.items()}
    skipped = {}
    for label, settings in variants.items():
        try:
            resolve.check(settings)
            if settings.device == "cuda" and not hardware.cuda().works:
                raise Skip(hardware.cuda().reason)
        except Skip as reason:
            skipped[label] = str(reason)
    own = resolve.own_parts()
    local_folder(variants[experiment.baseline].data, cancel=cancel)
    data = _describe_data(variants[experiment.baseline])
    _check_together(variants, data["images"])
    knobs = KINDS[experiment.kind].knobs
    info = {
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
            label: {name: value for name, value in asdict(settings).items() if name in knobs}
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
    folder = create_run(Path(results), info)
    with hold(folder):
        return run_to_the_end(ActiveRun(folder, info, own=own, cancel=cancel, progress=progress))


@single_run_lock()
def resume(
    folder: Path | str,
    *,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> Run:
    """Run what is missing of a run that was cancelled or killed.

    Args:
        folder: a run folder.
        cancel: as in `run`.
        progress: as in `run`.

    Raises:
        FileNotFoundError: there is no run in this folder.
        ValueError: a part of it is not known here, its data changed, or it began on another
            machine.
        RuntimeError: another process has it under way.
    """
    old = load_run(folder)
    if shared := old.info.get(SHARED):
        raise ValueError(
            f"run must be one of this machine's to be resumed, got one from {shared['from']}; "
            f"start one here: labkit run {old.info['experiment']}"
        )
    for values in old.info["variants"].values():
        resolve.check_names(read_settings(values))
    _check_unchanged(old)
    own = resolve.own_parts()
    with hold(old.folder):
        info = load_run(folder).info  # as whoever had it last left it
        return run_to_the_end(
            ActiveRun(old.folder, info, own=own, cancel=cancel, progress=progress)
        )


def _describe_data(settings: Settings) -> dict[str, object]:
    """Open the data once in the runner: a missing folder must cost nothing."""
    resolve.open_reader.cache_clear()  # a notebook lives long, and its data may change
    reader = resolve.open_original(settings)
    # One that is missing is named by preflight, together with all others.
    size_bytes = sum(path.stat().st_size for path in reader.paths if path.exists())
    return {
        "folder": settings.data,
        "images": len(reader),
        "bytes": size_bytes,
        "mean_bytes": size_bytes / max(1, len(reader)),
        "boxes": reader.boxes,
        "manifest_hash": reader.manifest_hash,
    }


def _check_together(variants: Mapping[str, Settings], available: int) -> None:
    """Refuse variants that could not do equal work, or more of it than there is."""
    for name in SAME_FOR_ALL:
        values = sorted({str(getattr(settings, name)) for settings in variants.values()})
        if len(values) > 1:
            raise ValueError(
                f"{name} must be the same for all variants, got {', '.join(values)}; "
                "make them experiments of their own"
            )
    modelled = {label: _is_modelled(settings) for label, settings in variants.items()}
    if any(modelled.values()) and not all(modelled.values()):
        beside = [label for label, is_modelled in modelled.items() if not is_modelled]
        raise ValueError(
            f"storage must be modelled for all variants or for none, got {', '.join(beside)} on "
            "real storage; a model's figures must not stand beside measured ones"
        )
    for settings in variants.values():
        pipeline.choose_images(resolve.original(settings))  # not packed or copied anywhere yet
    sizes = sorted({settings.batch_size for settings in variants.values()})
    wanted = next(iter(variants.values())).images or available
    if math.lcm(*sizes) > wanted:
        raise ValueError(
            f"batch_size must have a common multiple of at most {wanted} images in all variants, "
            f"got {', '.join(map(str, sizes))}; choose sizes that divide each other"
        )


def _is_modelled(settings: Settings) -> bool:
    try:
        return resolve.locate_data(settings).disk is not None
    except Skip:  # stays out, with its reason
        return False


def _check_unchanged(old: Run) -> None:
    """Refuse to go on with a run whose rows would not be comparable."""
    settings = read_settings(old.info["variants"][old.info["baseline"]])
    data = _describe_data(settings)
    if {name: data[name] for name in old.info["data"]} != old.info["data"]:
        raise ValueError(
            f"data must be what the run began with ({old.info['data']}), got {data}; "
            "start a new run"
        )
    began_on, here = old.info["provenance"]["machine_id"], hardware.provenance()["machine_id"]
    if began_on != here:
        raise ValueError(
            f"run must be resumed on the machine it began on ({began_on}), got {here}; "
            "start a new run"
        )


def _notes(variants: Mapping[str, Settings]) -> list[str]:
    most = max(settings.num_workers for settings in variants.values())
    if most > hardware.cores():
        return [f"num_workers {most} is more than this machine's {hardware.cores()} cores"]
    return []
