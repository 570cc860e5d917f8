"""Compare two runs of a training that were watched: `labkit compare before.json after.json`.

    JSON of `watch` ─▶ Watched ─┐
    of the other run ─▶ Watched ─┴─ why_not_comparable ─▶ `analysis.two_runs` ─▶ at most five lines

Two runs are compared where they train on as many samples, in batches of the same size (where a
loader does not tell it, with as many images per step), with as many processes on the same machine;
loader, data set class and script may differ, as they are what is changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from labkit import units
from labkit.analysis.thresholds import (
    DELTA,
    MAX_OTHER_SHARE,
    MIN_COMPARED_STEPS,
    MIN_OTHER_CORES,
    NEGLIGIBLE_SHARE,
)
from labkit.analysis.two_runs import (
    StepTime,
    compare_runs,
    count_steps,
    is_long_enough,
    step_time,
    steps_needed,
)
from labkit.diagnosis.answer import UNSEEN, Device
from labkit.language import Name, Text, capitalized
from labkit.machine import hardware

VERSION = 1  # of what `watch --json` writes; the files of earlier versions had none
AGAIN = "write it again with `labkit watch --json`"


@cache
def machine(device: Device) -> dict[str, Any]:
    """Return what two runs must have in common to be compared: CPU, cores and GPU.

    Args:
        device: what the training computes on.
    """
    name: str | None = None
    if device == "cuda":
        import torch

        with suppress(RuntimeError):  # after an error of CUDA; the script's own one counts
            name = torch.cuda.get_device_name()
    return {"cpu": hardware.cpu_model(), "cores": hardware.cores(), "gpu": name or device}


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What `watch` measured of a training, as far as it is compared."""

    name: str
    """What it is called in sentences, such as the file's name."""
    stretches: list[tuple[int, float]]
    steps: int
    images: int
    loading_share: float
    starts_share: float
    """Of the training's time, waiting for the first batches of epochs."""
    unseen: str
    datasets: tuple[str, ...]
    """Classes of the training's data sets, each once; empty where no loader tells it."""
    samples: set[int | None]
    """Lengths of the training's data sets."""
    batch_sizes: set[int | None]
    arguments: dict[str, Any]
    """Of the training's first loader, those that change its speed alone."""
    ranks: int
    machine: str
    cores: int
    other_cores: float | None
    """Cores that other processes than the training and its workers used; None for unknown, or where
    several processes train."""

    @classmethod
    def of(cls, facts: Mapping[str, Any], name: str) -> Watched:
        """Return it from what `watch --json` writes.

        Raises:
            ValueError: these are not the facts of a watch of this version.
        """
        if "training" not in facts:
            raise ValueError(f"{name} must be a file of `labkit watch --json`; {AGAIN}")
        if facts.get("version") != VERSION:
            raise ValueError(f"{name} is of another version of labkit; {AGAIN}")
        try:
            training, known = facts["training"], facts["machine"]
            total_s = training["wait_s"] + training["prepare_s"] + training["step_s"]
            loaders = training["loaders"]
            return cls(
                name=name,
                stretches=[(int(steps), float(s)) for steps, s in facts["stretches"]],
                steps=training["steps"],
                images=training["images"],
                loading_share=training["loading_share"],
                starts_share=training["starts_s"] / (total_s or 1.0),
                unseen=facts["unseen"],
                datasets=tuple(sorted({each["dataset"] for each in loaders} - {""})),
                samples={each["samples"] for each in loaders},
                batch_sizes={each["batch_size"] for each in loaders},
                arguments=loaders[0]["arguments"] if loaders else {},
                ranks=facts["ranks"],
                cores=known["cores"],
                other_cores=_other_cores(facts["cpu"]) if facts["ranks"] == 1 else None,
                machine=f"{units.count(known['cores'], 'core')} of {known['cpu']}, {known['gpu']}",
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(f"{name} is damaged ({error!r}); {AGAIN}") from error

    @cached_property
    def step(self) -> StepTime:
        """The time of a step.

        Raises:
            ValueError: there are too few steps.
        """
        return step_time(self.stretches)

    @property
    def images_per_step(self) -> float | None:
        """The mean; None where batches do not tell how many images they have."""
        return self.images / self.steps if self.images and self.steps else None

    @property
    def images_per_s(self) -> float | None:
        """Over the stretches; None where batches do not tell how many images they have."""
        return None if self.images_per_step is None else self.images_per_step / self.step.mean_s


def read_watched(path: Path) -> Watched:
    """Return what a file of `watch --json` holds.

    Raises:
        ValueError: it is no such file, or one of another version.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        facts = json.loads(text) if text.strip() else None
    except ValueError as error:
        raise ValueError(
            f"{path} must be a file of `labkit watch --json`, but is no JSON ({error}); {AGAIN}"
        ) from error
    if facts is None:
        raise ValueError(f"{path} must be a file of `labkit watch --json`, but is empty; {AGAIN}")
    return Watched.of(facts if isinstance(facts, dict) else {}, str(path))


def why_not_comparable(before: Watched, after: Watched) -> str:
    """Return what else differs between two runs than their speed may show; "" for nothing."""

    def counts(values: set[int | None]) -> str:
        return ", ".join(sorted("unknown" if x is None else f"{x:,}" for x in values))

    for each in (before, after):
        if each.unseen and each.unseen != "short":
            return f"{each.name} holds no training: {UNSEEN[each.unseen]}"
    facts = [
        ("the processes that train", str(before.ranks), str(after.ranks)),
        ("the machine", before.machine, after.machine),
    ]
    if before.steps and after.steps:
        facts += [
            ("the samples of the data set", counts(before.samples), counts(after.samples)),
            ("the batch size", counts(before.batch_sizes), counts(after.batch_sizes)),
        ]
        if None in before.batch_sizes:  # a batch_sampler of the user's own, or batch_size=None
            facts.append(("the images of a step", *_images_per_step(before, after)))
    return "; ".join(f"{name}: {one}, then {other}" for name, one, other in facts if one != other)


def compare_watched(before: Watched, after: Watched) -> list[str]:
    """Return in at most five lines how many times as fast a run is as another one.

    Raises:
        ValueError: the two cannot be compared.
    """
    if reason := why_not_comparable(before, after):
        raise ValueError(f"{before.name} and {after.name} cannot be compared: {reason}")
    changed = _changed(before.arguments, after.arguments)
    short = [each for each in (before, after) if not is_long_enough(each.stretches)]
    if short:
        counted = (
            Text("{n} of {run}").format(n=count_steps(each.stretches), run=each.name)
            for each in short
        )
        needed = Text(
            "Inconclusive: {n} steps of each run are needed after its first ones, got {counted}. "
            "Let it train longer."
        )
        return [
            needed.format(n=MIN_COMPARED_STEPS, counted=Text(" and ").join(counted)),
            *changed,
        ]
    compared = compare_runs(before.step, after.step)
    interval = Text("{ratio} times as fast {interval}").format(
        ratio=f"{compared.ratio:#.3g}".removesuffix("."),
        interval=units.interval(compared.low, compared.high),
    )
    if before.images and after.images:
        first = units.rate(before.images_per_s).removesuffix(" images/s")
        rates = Text(" ({before} → {after})")
        interval += rates.format(before=first, after=units.rate(after.images_per_s))
    waits = Text("Waiting for data: {before} of the time before, {after} after.").format(
        before=units.percent(before.loading_share), after=units.percent(after.loading_share)
    )
    rest = [waits, *changed]
    rest += _other_samples(before, after)
    rest += _disturbed(before, after)
    one_sided = _starts_of_one(before, after)
    if one_sided is not None:
        share = units.percent(one_sided.starts_share)
        unlike = Text(
            "Inconclusive: {interval}, but only {run} has starts of epochs, which take {share} of "
            "its time. Let both train for several epochs."
        )
        return [unlike.format(interval=interval, run=one_sided.name, share=share), *rest]
    verdict = compared.verdict
    sentence = Text("{verdict}: {interval}.").format(
        verdict=capitalized(verdict), interval=interval
    )
    if verdict == "inconclusive":
        steps = steps_needed(before.step, after.step)
        more = Text(" About {n:,} steps of each run would tell.")
        sentence += more.format(n=_round_up(steps))
    return [sentence, *rest]


def _images_per_step(before: Watched, after: Watched) -> tuple[str, str]:
    """Return the mean images of a step of both runs; the same where they differ by at most 1 %."""
    one, other = before.images_per_step, after.images_per_step
    if one is None or other is None or abs(other / one - 1) <= NEGLIGIBLE_SHARE:
        return "", ""
    first, second = (f"{mean:,.2f}".rstrip("0").rstrip(".") for mean in (one, other))
    return first, second


def _starts_of_one(before: Watched, after: Watched) -> Watched | None:
    """Return the run that alone has starts of epochs, where they take a share that counts."""
    one, other = sorted((before, after), key=lambda each: each.starts_share)
    return other if one.starts_share == 0 and other.starts_share >= DELTA else None


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = [name for name in before if name in after and before[name] != after[name]]
    if None in (before.get("prefetch_factor"), after.get("prefetch_factor")):
        names = [name for name in names if name != "prefetch_factor"]  # torch's own, for workers
    parts = [f"{name} {before[name]} → {after[name]}" for name in names]
    changed = Text("Changed in the DataLoader: {changes}.").format(changes=", ".join(parts))
    return [changed] if parts else []


def _other_samples(before: Watched, after: Watched) -> list[str]:
    """Return a note where both runs may train on other samples."""
    if before.datasets != after.datasets:
        classes = Text(
            "Data set {before} before, {after} after: whether their samples are the same was not "
            "checked."
        )
        one, other = (Name(", ".join(each.datasets)) for each in (before, after))
        return [classes.format(before=one or "unknown", after=other or "unknown")]
    if None in before.samples:
        unknown = Text(
            "The length of the data set is unknown: whether both runs train on as many samples was "
            "not checked."
        )
        return [unknown]
    return []


def _other_cores(cpu: Mapping[str, Any] | None) -> float | None:
    if cpu is None or cpu["busy_share"] is None:
        return None
    return max(cpu["busy_share"] * cpu["cores"] - cpu["process"] - cpu["workers"], 0.0)


def _disturbed(before: Watched, after: Watched) -> list[str]:
    most = max(MAX_OTHER_SHARE * before.cores, MIN_OTHER_CORES)
    used = [each.other_cores for each in (before, after)]
    if not any(cores is not None and cores > most for cores in used):
        return []
    one, other = ("an unknown number" if cores is None else f"{cores:.1f}" for cores in used)
    text = Text(
        "Other processes used {before} of {cores} cores before and {after} after, which changes "
        "the speed as well: repeat both runs without them."
    )
    return [text.format(before=one, cores=before.cores, after=other)]


def _round_up(steps: int) -> int:
    """Return an estimate with one digit more than its order of magnitude."""
    unit = 10 ** max(len(str(steps)) - 2, 0)
    return -(-steps // unit) * unit
