"""Runner: takes a run folder from preflight to the last block.

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
import statistics
import threading
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path

from labkit import machine, units
from labkit.launcher import Cancelled, Launcher, TrialFailed
from labkit.plan import Planned, plan
from labkit.progress import RunProgress
from labkit.results import Run, append_trial, explain_unwritable, load_run, write_info
from labkit.settings import MODES, Settings
from labkit.trial import Skip, Trial, utc_now

# Enough for preflight and calibration on any machine; the rest is looked at once the run
# knows how many images it takes, so that a big data set on a slow disk is not read in vain.
FIRST_LOOK_IMAGES = 512
EMULATOR_MIN_UTILIZATION = 0.99  # EVIDENCE 2: a free loader must reach it, or no figure
EMULATOR_TRIES = 3  # their median counts: one hiccup of 3 ms fails a try of 0.3 s
EMULATOR_ROUNDS = 8  # how long to wait for a quiet moment
FAILURES_BEFORE_DROPPED = 2


class Runner:
    """One run under way: what is known so far and where it is written.

    Args:
        folder: the run folder.
        info: what its `run.json` holds; kept up to date there.
        own: a person's own parts, from `tables.own_parts`.
        cancel: set by another thread to stop.
        progress: show a bar with ETA.
    """

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
        # What is not the same work or cannot run here stays out, also when the run is resumed.
        self.dropped = {**info["skipped"], **info["failed"]}
        self.cancel = cancel
        self.progress = RunProgress(info["experiment"], shown=progress)
        with explain_unwritable(folder):
            self.launcher = Launcher(folder / "worker.log", fork=machine.can_fork(), own=own)

    def run(self) -> Run:
        """Do everything that is missing; what is finished stays whatever happens."""
        for note in self.info["notes"]:
            self.progress.say(note)
        self._save(status="running", reason="")
        try:
            with self.launcher:
                if self.baseline in self.dropped:
                    raise self._no_baseline(self.dropped[self.baseline])
                if "calibration" not in self.info:
                    self._prepare()
                self._run_blocks()
        except Cancelled:
            self._save(status="cancelled")
        except KeyboardInterrupt:
            self._save(status="cancelled")
            self.progress.say(f"cancelled; complete it with: labkit run --resume {self.folder}")
            raise
        except Exception as error:
            self._save(status="failed", reason=str(error))
            raise
        else:
            self._save(status="finished")
        finally:
            self.progress.close()
        return load_run(self.folder)

    def _ask(self, job: str, **arguments: object) -> object:
        return self.launcher.run(job, arguments, self.cancel)

    def _save(self, **changes: object) -> None:
        self.info.update(changes)
        write_info(self.folder, self.info)

    def _prepare(self) -> None:
        """Preflight and calibration: everything that comes before the first timed trial."""
        baseline = self.variants[self.baseline]
        looked_at = FIRST_LOOK_IMAGES
        excluded = self._look_at_images(0, looked_at, [])
        try:
            self._compare_work(excluded)
            self.progress.say("calibrating: how fast is the baseline here?")
            # Only what has been looked at: it may not read, or evict, a whole big data set.
            usable = min(looked_at, self.info["data"]["images"]) - len(excluded)
            tried = replace(baseline, images=min(baseline.images or usable, usable))
            calibration = self._ask("calibrate", settings=asdict(tried), excluded=excluded)
            if baseline.device == "emulated":
                calibration["free_loader_au"] = self._check_emulator(
                    tried, calibration["compute_s_per_image"]
                )
        except (TrialFailed, Skip) as reason:
            raise self._no_baseline(reason) from reason
        images = self._epoch_images(calibration["images_per_s"])
        while looked_at < images + len(excluded):  # what is left out is made up for by later images
            looked_at, start = images + len(excluded), looked_at
            excluded = self._look_at_images(start, looked_at, excluded)
        calibration["images"] = self._whole_batches(
            min(images, self.info["data"]["images"] - len(excluded))
        )
        steps = calibration["images"] // baseline.batch_size
        if steps < self.mode.min_steps:
            self._note(
                f"epochs of {steps} steps: there are too few images for {self.mode.min_steps}"
            )
        self._save(calibration=calibration, excluded=excluded)
        epoch_s = calibration["images"] / calibration["images_per_s"]
        self.progress.say(
            f"{calibration['images']} images per epoch, about {units.seconds(epoch_s)} each"
        )

    def _compare_work(self, excluded: list[int]) -> None:
        """Drop what cannot run here and what is not the same work as the baseline's."""
        self.progress.say("preflight: one batch of every variant, compared with the baseline's")
        compared = {
            label: asdict(settings)
            for label, settings in self.variants.items()
            if label not in self.dropped
        }
        verdicts = self._ask(
            "compare_work", variants=compared, baseline=self.baseline, excluded=excluded
        )
        for label, (status, reason) in verdicts.items():
            if status != "ok":
                self.info["failed" if status == "failed" else "skipped"][label] = reason
                self._drop(Planned(block=0, position=0, variant=label, role=""), status, reason)

    def _epoch_images(self, images_per_s: float) -> int:
        """Choose how many images an epoch takes, from the baseline's rate."""
        baseline, available = self.variants[self.baseline], self.info["data"]["images"]
        if baseline.images or not self.mode.epoch_s:
            return baseline.images or available
        least = self.mode.min_steps * baseline.batch_size
        return min(max(least, round(images_per_s * self.mode.epoch_s)), available)

    def _look_at_images(self, start: int, stop: int, excluded: list[int]) -> list[int]:
        """Find unreadable images among those the run will take; stop, or leave them out."""
        settings = self.variants[self.baseline]
        try:
            found = self._ask("find_bad_images", settings=asdict(settings), start=start, stop=stop)
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
        self._note(f"{len(found['bad'])} unreadable images are left out for all variants: {lines}")
        return [*excluded, *(index for index, _ in found["bad"])]

    def _note(self, line: str) -> None:
        """Keep a sentence with the run, and say it now."""
        if line not in self.info["notes"]:
            self.info["notes"].append(line)
            self.progress.say(line)

    def _whole_batches(self, images: int) -> int:
        """Round to what every variant's batch size divides, so that all do equal work."""
        together = math.lcm(*(settings.batch_size for settings in self.variants.values()))
        return max(images // together, 1) * together

    def _check_emulator(self, settings: Settings, compute_s_per_image: float | None) -> float:
        """Let the emulated device prove that it is not in the way."""
        for _ in range(EMULATOR_ROUNDS):
            found = statistics.median(
                self._ask(
                    "check_emulator",
                    settings=asdict(settings),
                    compute_s_per_image=compute_s_per_image,
                )
                for _ in range(EMULATOR_TRIES)
            )
            if found >= EMULATOR_MIN_UTILIZATION:
                return found
        raise RuntimeError(
            f"the emulated device must reach {units.percent(EMULATOR_MIN_UTILIZATION)} utilization "
            f"with a free loader, got {units.percent(found)}; stop other programs and run again"
        )

    def _no_baseline(self, reason: object) -> RuntimeError:
        return RuntimeError(f"baseline {self.baseline!r} must be able to run here, got: {reason}")

    def _drop(self, planned: Planned, status: str, reason: str) -> None:
        """Take a variant out of this run; its reason stays in the table."""
        self.dropped[planned.variant] = reason
        self._append(planned, status, reason)
        self.progress.say(f"{planned.variant} is {status}: {reason}")
        if planned.variant == self.baseline:
            raise self._no_baseline(reason)

    def _run_blocks(self) -> None:
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
        waiting = deque(p for p in planned if (p.block, p.variant, p.role) not in done)
        failures = dict.fromkeys(self.variants, 0)
        self.progress.start(total=len(planned), done=len(planned) - len(waiting))
        while waiting:
            trial = waiting.popleft()
            if trial.variant not in self.dropped:
                self.progress.next(
                    f"block {trial.block + 1}: {trial.variant} {trial.role}".rstrip()
                )
                try:
                    self._measure(trial, calibration)
                except Skip as reason:
                    self._drop(trial, "skipped", str(reason))
                except TrialFailed as failure:
                    failures[trial.variant] += 1
                    if failures[trial.variant] >= FAILURES_BEFORE_DROPPED:
                        self._drop(trial, "failed", str(failure))
                    else:
                        self._append(trial, "failed", str(failure))
                        self.progress.say(f"{trial.variant} failed, again later: {failure}")
                        waiting.append(trial)
                        continue
                except (Cancelled, KeyboardInterrupt):
                    self._append(trial, "cancelled", "cancelled by the person")
                    raise
            self.progress.advance()

    def _measure(self, planned: Planned, calibration: dict) -> None:
        """Run one trial and append its row."""
        settings = replace(self.variants[planned.variant], images=calibration["images"])
        started_utc = utc_now()
        measured = self._ask(
            "measure",
            settings=asdict(settings),
            excluded=self.info["excluded"],
            compute_s_per_image=calibration["compute_s_per_image"],
        )
        row = self._row(planned, status="ok", settings=asdict(settings), started_utc=started_utc)
        trial = Trial.from_row({**row, **measured})
        expected = settings.images * settings.epochs
        if trial.images != expected:
            raise TrialFailed(
                f"the loader must deliver {expected} images, got {trial.images}: "
                "not the same work as the others"
            )
        append_trial(self.folder, trial)
        self.progress.rate(units.rate(trial.images / trial.time_s))

    def _append(self, planned: Planned, status: str, reason: str) -> None:
        settings = asdict(self.variants[planned.variant])
        row = self._row(planned, status=status, settings=settings, started_utc=utc_now())
        append_trial(self.folder, Trial.from_row({**row, "reason": reason}))

    def _row(self, planned: Planned, **values: object) -> dict:
        return {
            "experiment": self.info["experiment"],
            **asdict(planned),
            "epochs": (),
            "machine_id": self.info["provenance"]["machine_id"],
            **values,
        }
