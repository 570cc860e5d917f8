"""Experiment: a question with its variants, and the run that answers it.

    preflight ─ calibrate ─ block 1 ─ block 2 ─ … ─ finished
    (equal work) (how many    each variant once, the baseline twice (A1, A2),
                  images)     in random order; every trial saved as it ends

Comparing single runs in a fixed order is how the documents came by their
figures; blocks in random order with the baseline twice are how ours are made
(EVIDENCE 1).  Main trap: nothing may run beside a measurement, so trials run one
after another, each in a fresh process, and the runner sleeps meanwhile.
"""

from __future__ import annotations

import math
import random
import re
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path

from labkit import machine, pipeline, units
from labkit.launcher import Cancelled, Launcher, TrialFailed
from labkit.progress import RunProgress
from labkit.results import Run, append_trial, create_run, load_run, write_info
from labkit.settings import MIN_JUDGED_BLOCKS, MODES, Mode, Settings, complete, pick
from labkit.trial import Skip, Trial

# Enough for preflight and calibration on any machine; the rest is looked at once the run
# knows how many images it takes, so that a big data set on a slow disk is not read in vain.
FIRST_LOOK_IMAGES = 512
EMULATOR_MIN_UTILIZATION = 0.99  # EVIDENCE 2: a free loader must reach it, or no figure
EMULATOR_TRIES = 3  # two noisy cores: a single hiccup of 3 ms fails the check
FAILURES_BEFORE_DROPPED = 2


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
    """The label that all others are divided by."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Label -> the document's normalized time, where it gives one."""
    source: str = ""
    """Document and section."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            raise ValueError(
                f"name must be lower-case letters, digits and _, got {self.name!r}; "
                "it becomes a folder of results"
            )
        if not self.variants:
            raise ValueError("variants must be at least one, got none")
        pick(dict(self.variants), self.baseline, "baseline")
        for label in self.published:
            pick(dict(self.variants), label, "published label")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One trial to run."""

    block: int
    position: int
    variant: str
    role: str


def plan(labels: list[str], baseline: str, mode: Mode, blocks: int, seed: int) -> list[Planned]:
    """Lay out the trials of a run.

    Args:
        labels: all variants, in the experiment's order.
        baseline: the label that runs twice per block where the mode shuffles.
        mode: shuffled blocks, or each variant once in the given order.
        blocks: how many times.
        seed: of the order; recorded with the run.
    """
    planned = []
    for block in range(blocks):
        order = list(labels)
        if mode.shuffled:
            order.append(baseline)
            random.Random(f"{seed}/{block}").shuffle(order)
        runs_of_baseline = 0
        for position, label in enumerate(order):
            role = ""
            if label == baseline:
                runs_of_baseline += 1
                role = f"A{runs_of_baseline}"
            planned.append(Planned(block=block, position=position, variant=label, role=role))
    return planned


def run(
    experiment: Experiment,
    mode: str = "quick",
    *,
    results: Path | str = "results",
    blocks: int | None = None,
    cancel: threading.Event | None = None,
    progress: bool = True,
) -> Run:
    """Run an experiment and return it as it lies on disk.

    Args:
        experiment: what to compare.
        mode: quick, document or full.
        results: folder that takes the run folder.
        blocks: repetitions; unset: the mode's.
        cancel: set by another thread to stop; finished trials stay.
        progress: print a bar with ETA.

    Returns:
        The run; `run.info["status"]` is finished or cancelled.

    Raises:
        ValueError: settings, data or parts that cannot work, before anything is timed.
        RuntimeError: the baseline cannot be measured here; what was finished stays.
    """
    chosen = pick(MODES, mode, "mode")
    blocks = _blocks(chosen, blocks)
    variants = {
        label: _complete(settings, chosen) for label, settings in experiment.variants.items()
    }
    skipped = {}
    for label, settings in variants.items():
        try:
            pipeline.check(settings)
        except Skip as reason:
            skipped[label] = str(reason)
    own = pipeline.own_parts()
    data = _describe_data(variants[experiment.baseline])
    info = {
        "schema": 1,
        "experiment": experiment.name,
        "question": experiment.question,
        "mode": mode,
        "blocks": blocks,
        "baseline": experiment.baseline,
        "variants": {label: asdict(settings) for label, settings in variants.items()},
        "published": dict(experiment.published),
        "source": experiment.source,
        "skipped": skipped,
        "status": "running",
        "notes": _notes(variants),
        "order_seed": secrets.randbits(32),
        "created_utc": _utc(),
        "data": data,
        "provenance": machine.provenance(),
    }
    folder = create_run(Path(results), info)
    return _Runner(folder, info, own=own, cancel=cancel, progress=progress).run()


def resume(
    folder: Path | str, *, cancel: threading.Event | None = None, progress: bool = True
) -> Run:
    """Run what is missing of a run that was cancelled or killed.

    Args:
        folder: a run folder.
        cancel: as in `run`.
        progress: as in `run`.

    Raises:
        FileNotFoundError: there is no run in this folder.
        ValueError: a part of it is not known here, or its data changed.
    """
    old = load_run(folder)
    for values in old.info["variants"].values():
        pipeline.check_names(Settings(**values))
    runner = _Runner(
        old.folder, old.info, own=pipeline.own_parts(), cancel=cancel, progress=progress
    )
    return runner.run()


class _Runner:
    """One run under way: what is known so far and where it is written."""

    def __init__(
        self,
        folder: Path,
        info: dict,
        *,
        own: bytes,
        cancel: threading.Event | None,
        progress: bool,
    ) -> None:
        self.folder, self.info = folder, info
        self.mode = MODES[info["mode"]]
        self.baseline = info["baseline"]
        self.variants = {name: Settings(**values) for name, values in info["variants"].items()}
        self.dropped = dict(info["skipped"])
        self.cancel = cancel
        self.progress = RunProgress(info["experiment"], shown=progress)
        self.launcher = Launcher(folder / "worker.log", fork=machine.can_fork(), own=own)

    def run(self) -> Run:
        try:
            with self.launcher:
                if self.baseline in self.dropped:
                    raise RuntimeError(
                        f"baseline {self.baseline!r} must be able to run here, "
                        f"got: {self.dropped[self.baseline]}"
                    )
                if "calibration" not in self.info:
                    self.prepare()
                self.run_blocks()
        except Cancelled:
            self.save(status="cancelled")
        except KeyboardInterrupt:
            self.save(status="cancelled")
            self.progress.say(f"cancelled; complete it with: labkit run --resume {self.folder}")
            raise
        except Exception as error:
            self.save(status="failed", reason=str(error))
            raise
        else:
            self.save(status="finished")
        finally:
            self.progress.close()
        return load_run(self.folder)

    def ask(self, job: str, **arguments: object) -> object:
        return self.launcher.run(job, arguments, self.cancel)

    def save(self, **changes: object) -> None:
        self.info.update(changes)
        write_info(self.folder, self.info)

    def prepare(self) -> None:
        """Preflight and calibration: everything that comes before the first timed trial."""
        baseline = self.variants[self.baseline]
        self.progress.say("preflight: one batch of every variant, compared with the baseline's")
        excluded = self.look_at_images(0, FIRST_LOOK_IMAGES, ())
        try:
            verdicts = self.ask(
                "compare_work",
                variants={
                    label: asdict(settings)
                    for label, settings in self.variants.items()
                    if label not in self.dropped
                },
                baseline=self.baseline,
                excluded=excluded,
            )
            for label, (status, reason) in verdicts.items():
                if status != "ok":
                    self.drop(label, status, reason)
            self.progress.say("calibrating: how fast is the baseline here?")
            calibration = self.ask(
                "calibrate", settings=asdict(baseline), mode=self.mode.name, excluded=excluded
            )
        except TrialFailed as failure:
            raise RuntimeError(
                f"baseline {self.baseline!r} must be able to run here, got: {failure}"
            ) from failure
        except Skip as reason:
            raise RuntimeError(
                f"baseline {self.baseline!r} must be able to run here, got: {reason}"
            ) from reason
        calibration["images"] = self.whole_batches(calibration["images"])
        excluded = self.look_at_images(FIRST_LOOK_IMAGES, calibration["images"], excluded)
        if baseline.device == "emulated":
            calibration["free_loader_au"] = self.check_emulator(
                baseline, calibration["compute_s_per_image"]
            )
        self.save(calibration=calibration, excluded=excluded)

    def look_at_images(self, start: int, stop: int, excluded: object) -> list[int]:
        """Find unreadable images among those the run will take; stop, or leave them out."""
        excluded = list(excluded)
        if stop <= start:
            return excluded
        settings = self.variants[self.baseline]
        try:
            found = self.ask("find_bad_images", settings=asdict(settings), start=start, stop=stop)
        except TrialFailed as failure:
            raise ValueError(str(failure)) from failure
        if found["changed"]:
            raise ValueError(
                f"data must be what its manifest says, got {len(found['changed'])} changed files "
                f"({'; '.join(found['changed'][:3])}); make the data again, or remove "
                "manifest.json to take it as it is"
            )
        if not found["bad"]:
            return excluded
        lines = "; ".join(line for _, line in found["bad"][:5])
        if settings.on_bad_image == "stop":
            raise ValueError(
                f"images must all be readable, got {len(found['bad'])} that are not ({lines}); "
                "replace them, or leave them out for all variants with on_bad_image=skip"
            )
        self.info["notes"].append(
            f"{len(found['bad'])} unreadable images are left out for all variants: {lines}"
        )
        return excluded + [index for index, _ in found["bad"]]

    def whole_batches(self, images: int) -> int:
        """Round to what every variant's batch size divides, so that all do equal work."""
        together = math.lcm(*(settings.batch_size for settings in self.variants.values()))
        return max(images // together, 1) * together

    def check_emulator(self, settings: Settings, compute_s_per_image: float | None) -> float:
        """Let the emulated device prove that it is not in the way."""
        best = 0.0
        for _ in range(EMULATOR_TRIES):
            best = max(
                best,
                self.ask(
                    "check_emulator",
                    settings=asdict(settings),
                    compute_s_per_image=compute_s_per_image,
                ),
            )
            if best >= EMULATOR_MIN_UTILIZATION:
                return best
        raise RuntimeError(
            f"the emulated device must reach {units.percent(EMULATOR_MIN_UTILIZATION)} utilization "
            f"with a free loader, got {units.percent(best)}; stop other programs and run again"
        )

    def drop(self, label: str, status: str, reason: str) -> None:
        """Take a variant out of the run; its reason stays in the table."""
        self.dropped[label] = reason
        self.info["skipped"][label] = reason
        self.append(Planned(block=0, position=0, variant=label, role=""), status, reason)
        self.progress.say(f"{label} is {status}: {reason}")
        if label == self.baseline:
            raise RuntimeError(f"baseline {label!r} must be able to run here, got: {reason}")

    def run_blocks(self) -> None:
        """Run what is planned and not yet there."""
        calibration = self.info["calibration"]
        planned = plan(
            list(self.variants),
            self.baseline,
            self.mode,
            self.info["blocks"],
            self.info["order_seed"],
        )
        done = {
            (trial.block, trial.variant, trial.role)
            for trial in load_run(self.folder).trials
            if trial.status == "ok"
        }
        missing = [p for p in planned if (p.block, p.variant, p.role) not in done]
        failures = dict.fromkeys(self.variants, 0)
        self.progress.start(total=len(planned), done=len(planned) - len(missing))
        for trial in missing:
            if trial.variant not in self.dropped:
                self.progress.next(
                    f"block {trial.block + 1}: {trial.variant} {trial.role}".rstrip()
                )
                try:
                    self.measure(trial, calibration)
                except Skip as reason:
                    self.drop(trial.variant, "skipped", str(reason))
                except TrialFailed as failure:
                    failures[trial.variant] += 1
                    if failures[trial.variant] >= FAILURES_BEFORE_DROPPED:
                        self.drop(trial.variant, "failed", str(failure))
                    else:
                        self.append(trial, "failed", str(failure))
                        self.progress.say(f"{trial.variant} failed: {failure}")
                except (Cancelled, KeyboardInterrupt):
                    self.append(trial, "cancelled", "cancelled by the person")
                    raise
            self.progress.advance()

    def measure(self, planned: Planned, calibration: dict) -> None:
        """Run one trial and append its row."""
        settings = replace(self.variants[planned.variant], images=calibration["images"])
        started_utc = _utc()
        measured = self.ask(
            "measure",
            settings=asdict(settings),
            excluded=self.info["excluded"],
            compute_s_per_image=calibration["compute_s_per_image"],
        )
        row = self.row(planned, status="ok", settings=asdict(settings), started_utc=started_utc)
        trial = Trial.from_row({**row, **measured})
        expected = settings.images * settings.epochs
        if trial.images != expected:
            raise TrialFailed(
                f"the loader must deliver {expected} images, got {trial.images}: "
                "not the same work as the others"
            )
        append_trial(self.folder, trial)
        self.progress.rate(units.rate(trial.images / trial.time_s))

    def append(self, planned: Planned, status: str, reason: str) -> None:
        settings = asdict(self.variants[planned.variant])
        row = self.row(planned, status=status, settings=settings, started_utc=_utc())
        append_trial(self.folder, Trial.from_row({**row, "reason": reason}))

    def row(self, planned: Planned, **values: object) -> dict:
        return {
            "experiment": self.info["experiment"],
            **asdict(planned),
            "epochs": (),
            "machine_id": self.info["provenance"]["machine_id"],
            **values,
        }


def _blocks(mode: Mode, blocks: int | None) -> int:
    blocks = mode.blocks if blocks is None else blocks
    least = MIN_JUDGED_BLOCKS if mode.judged else 1
    if blocks < least:
        raise ValueError(f"blocks must be at least {least} in mode {mode.name}, got {blocks}")
    if not mode.shuffled and blocks != 1:
        raise ValueError(
            f"blocks must be 1 in mode {mode.name}, got {blocks}; the documents ran everything once"
        )
    return blocks


def _complete(settings: Settings, mode: Mode) -> Settings:
    # A table of one's own may have the device: only an unset device needs the GPU asked.
    has_cuda = settings.device is None and machine.cuda().works
    return complete(
        settings, mode, cores=machine.cores(), has_cuda=has_cuda, can_fork=machine.can_fork()
    )


def _describe_data(settings: Settings) -> dict[str, object]:
    """Open the data once in the runner: a missing folder must cost nothing."""
    reader = pipeline.open_source(settings)
    return {
        "folder": settings.data,
        "images": len(reader),
        "boxes": reader.boxes,
        "manifest_hash": reader.manifest_hash,
    }


def _notes(variants: Mapping[str, Settings]) -> list[str]:
    most = max(settings.num_workers for settings in variants.values())
    if most > machine.cores():
        return [f"num_workers {most} is more than this machine's {machine.cores()} cores"]
    return []


def _utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
