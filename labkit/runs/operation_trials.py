"""Trials of single operations: each library, or way, of an operation, timed beside the first.

    run_operations:   a group of variants ─▶ a fresh process ─▶ the group's rows, saved together
    time_operations:  equal output? ─ calls of a repeat ─▶ rounds ─▶ an `OperationTrial` each

A round is a block of the run: each variant once and the baseline twice, in random order.  A row is
the median of a variant's repeats in a round: calls on 4 pictures of one size, or on the boxes of
100 images, so many that the clock's error is negligible.
"""

from __future__ import annotations

import statistics
import sys
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter
from statistics import fmean
from typing import Any

import numpy as np

from labkit import units
from labkit.analysis.thresholds import DECODED_TOLERANCE_LEVELS
from labkit.contracts import Annotation, Cancelled, Content, Sample, Skip, as_part
from labkit.machine.clock import Clock, SystemClock
from labkit.machine.disturbance import disturbance, since
from labkit.parts import operations
from labkit.parts.decoding import DECODERS, Decoder
from labkit.parts.operations import Labels, Operation, Picture, make_configuration, make_picture
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.pipeline import shuffled_images
from labkit.records import AnyTrial, OperationTrial
from labkit.resolve import open_data
from labkit.runs.active_run import ActiveRun
from labkit.runs.launcher import TrialFailed
from labkit.runs.schedule import Planned, next_trials
from labkit.runs.store import append_trials
from labkit.runs.thresholds import MIN_ROUND_S
from labkit.settings import Settings

LOOK_UPS = "look-ups per image"  # a label of the trials that have some
SAMPLE = "one sample"


def all_operations() -> dict[tuple[str, str], Operation]:
    """Return every operation: (operation, library or way) -> `Operation`.

    An operation's first library is its baseline.  Decoding has every decoder in `DECODERS`, the
    user's own too, but scaled ones: they return fewer pixels.
    """
    whole = [name for name in DECODERS if not as_part(Decoder, DECODERS[name]).scaled]
    whole.sort(key=lambda name: name != "pillow")
    return {
        **{("decode", name): Operation(attrgetter("jpeg"), DECODERS[name]) for name in whole},
        **operations.OPERATIONS,
        (SAMPLE, "decoded and preprocessed"): Operation(tuple, load_sample),
    }


def load_sample(given: tuple[int, bytes, Annotation]) -> np.ndarray:
    """Decode and preprocess as the documents' detector does, and copy the planes into a batch."""
    index, jpeg, annotation = given
    image = DECODERS[Settings.decoder](jpeg)
    sample = Sample(image_rgb=image, annotation=annotation, sample_id=index, epoch=0, seed=0)
    # The input of the documents' detector has sides of 512 px.
    arrays = PREPROCESSORS[Settings.preprocessor](sample, 512)
    return np.ascontiguousarray(arrays["image"])


# How closely the outputs of two libraries must agree: the largest difference of one value, in grey
# levels down to rotate, in values of 0..1 or -2..3 after it; and the share of values so close.
# Look-ups must return the same.
AGREEMENTS: dict[str, tuple[float, float]] = {
    # The JPEG standard leaves the interpolation of chroma open; swapped channels differ everywhere.
    "decode": (DECODED_TOLERANCE_LEVELS, 0.9),
    # OpenCV and torch round where Pillow's affine transform drops the fraction.
    "resize": (1, 1.0),
    "resize, antialiased": (1, 1.0),
    "crop": (0, 1.0),
    "flip": (0, 1.0),
    # As resize; at the border Pillow cuts off what OpenCV blends with black.
    "rotate": (1, 0.99),
    # float32: a division against a multiplication by the reciprocal.
    "to-tensor": (1e-6, 1.0),
    "normalize": (1e-5, 1.0),
}


def load(settings: Settings, tasks: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the inputs of a group before its process is forked: other groups have the same."""
    for name, _, *size in (task.values() for task in tasks.values()):
        make_inputs(settings, name, *size)


def make_inputs(settings: Settings, name: str, *size: int) -> list:
    """Return the inputs of an operation; errors as of the functions in `INPUTS`."""
    return INPUTS.get(name, pictures)(settings, *size)


@lru_cache
def pictures(settings: Settings, width_px: int, height_px: int) -> list[Picture]:
    """Make pictures of one size from the first photographs in the order of the seed.

    Raises:
        ValueError: a photograph cannot be read; the message names the file.
    """
    return [make_picture(photo, width_px, height_px) for photo in _photos(settings)]


@lru_cache(maxsize=1)
def _photos(settings: Settings) -> list[np.ndarray]:
    _use_one_thread()
    photos = []
    jpeg: Any
    for index, jpeg, _ in samples(settings):
        try:
            photos.append(DECODERS["opencv"](jpeg))
        except ValueError as error:
            raise ValueError(f"{open_data(settings).where(index)}: {error}") from error
    return photos


@lru_cache(maxsize=1)
def samples(settings: Settings) -> list[tuple[int, Content, Annotation]]:
    """Read the first photographs in the order of the seed: index, file and boxes of each."""
    reader = open_data(settings)
    # Four different ones, so that no library is judged by one image.
    shuffled = shuffled_images(settings, len(reader))
    return [(int(i), *reader.read(int(i))) for i in shuffled[:4]]


@lru_cache
def draw_labels(settings: Settings, names: int) -> list[Labels]:
    """Draw a label for each box of 100 images, all names equally likely.

    Returns:
        An entry per image, the one with the most boxes first: its answers are compared.

    Raises:
        Skip: the images have no boxes.
    """
    reader, rng = open_data(settings), np.random.default_rng(settings.seed)
    images = shuffled_images(settings, len(reader))[:100]
    boxes = sorted((len(reader.annotation(int(i)).category_ids) for i in images), reverse=True)
    if not boxes[0]:
        raise Skip(
            f"data must have boxes to look up labels, got none in {len(images)} images; "
            "take a data set with annotations"
        )
    known = [f"label {i}" for i in range(names)]
    numbers = {name: i for i, name in enumerate(known)}
    # Not the same objects as in the list: labels come from a file.
    wanted = ([f"label {i}" for i in rng.integers(names, size=n)] for n in boxes)
    return [Labels(known, numbers, labels) for labels in wanted]


# Operation -> what it is timed with, made from a task's numbers; the others take pictures.
INPUTS: dict[str, Callable[..., list]] = {
    "label": draw_labels,
    "configuration": lambda settings, kilobytes: [make_configuration(kilobytes)],
    SAMPLE: samples,
}


def compare_operations(
    settings: Settings, tasks: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[str, str]]:
    """Run every library or way once and compare the outputs.

    Args:
        settings: of the data.
        tasks: label -> operation, library, and the numbers that its inputs are made from; of each
            operation the first library that works is the reference.

    Returns:
        label -> (status, reason): "ok", "skipped" or "failed".
    """
    verdicts: dict[str, tuple[str, str]] = {}
    references: dict[tuple, tuple[str, np.ndarray]] = {}
    known = all_operations()
    for label, task in tasks.items():
        name, library, *size = task.values()
        try:
            if (name, library) not in known:
                raise Skip(f"{name} by {library!r} is not known here; add it again, and resume")
            operation = known[name, library]
            given = make_inputs(settings, name, *size)[0]
            output = np.asarray(operation.run(operation.prepare(given)))
            other, reference = references.setdefault((name, *size), (library, output))
            if apart := difference(output, reference, AGREEMENTS.get(name, (0, 1.0))):
                raise ValueError(f"not the same work as {other}: {apart}")
        except (Skip, ImportError) as error:
            verdicts[label] = ("skipped", str(error))
        except Exception as error:  # a library may raise anything; its row shows it
            verdicts[label] = ("failed", f"{type(error).__name__}: {error}")
        else:
            verdicts[label] = ("ok", "")
    return verdicts


def difference(output: np.ndarray, reference: np.ndarray, agreement: tuple[float, float]) -> str:
    """Return in one line how an output differs from the reference; '' if it does not.

    Args:
        output: an array of any shape.
        reference: the first library's output.
        agreement: how close it must be, as in `AGREEMENTS`.
    """
    if (output.shape, output.dtype) != (reference.shape, reference.dtype):
        wanted, got = (f"{array.shape} {array.dtype}" for array in (reference, output))
        return f"output must be {wanted}, got {got}"
    if not output.flags.c_contiguous:
        return "output must be contiguous, got a strided view"
    apart = np.subtract(output, reference, dtype=np.float32)  # a difference of uint8 would wrap
    np.abs(apart, out=apart)
    at_most, share = agreement
    close = float((apart <= at_most).mean())
    if close < share:
        return (
            f"{units.percent(share)} of the values must be at most "
            f"{at_most:g} apart, got {units.percent(close)}, "
            f"the farthest {apart.max():g} apart"
        )
    return ""


# --- timing ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """An operation of one library, ready to be timed round by round."""

    timer: timeit.Timer
    inputs: int
    """How many inputs a call of the timer's statement takes, one after another."""
    number: int
    """Calls of the statement in a repeat."""
    repeats: int
    """Repeats in a round."""

    @classmethod
    def of(
        cls, run: Callable[[Any], object], inputs: Sequence[Any], seconds: float, clock: Clock
    ) -> Timed:
        """Choose how often an operation is called in a round.

        Like `torch.utils.benchmark.Timer.blocked_autorange`, but once for all rounds: choosing
        takes longer than a round does.

        Args:
            run: the operation.
            inputs: its arguments; a repeat takes each of them equally often.
            seconds: of a round's repeats together, at least.
            clock: a fake one in tests.
        """
        given = {"run": run, "inputs": inputs}
        timer = timeit.Timer("for one in inputs: run(one)", globals=given, timer=clock.now)
        number = 1
        # The faster of two: a disturbed one would leave too few calls.
        # Reading the clock takes some 50 ns, so a repeat takes at least 0.5 ms.
        while (repeat_s := min(timer.repeat(2, number))) < 0.0005:
            number *= 2
        repeats = max(round(seconds / repeat_s), 1)
        return cls(timer=timer, inputs=len(inputs), number=number, repeats=repeats)

    @property
    def calls(self) -> int:
        """Calls of the operation in a round."""
        return self.inputs * self.number * self.repeats

    def measure(self) -> float:
        """Return the seconds of a call: of a round's repeats the median."""
        repeats_s = self.timer.repeat(self.repeats, self.number)
        return statistics.median(repeats_s) / (self.inputs * self.number)


def time_operations(
    settings: Settings,
    tasks: Mapping[str, Mapping[str, Any]],
    planned: Sequence[Mapping[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    """Compare the variants of a group and time them in this process, with one thread.

    Args:
        settings: of the data.
        tasks: label -> task, as of `compare_operations`.
        planned: the trials, round by round in their order, each with the fields of `Planned`.
        seconds: of a trial, at least.

    Returns:
        `verdicts` as of `compare_operations`, and `trials`, an `OperationTrial` for each planned
        one that can run; none without the baseline.
    """
    _use_one_thread()
    verdicts = compare_operations(settings, tasks)
    timed: dict[str, Timed] = {}
    known = all_operations()
    labels: dict[str, dict[str, str]] = {}
    for label, task in tasks.items():
        if verdicts[label][0] == "ok":
            name, library, *size = task.values()
            operation = known[name, library]
            given = make_inputs(settings, name, *size)
            inputs = [operation.prepare(one) for one in given]
            timed[label] = Timed.of(operation.run, inputs, seconds, SystemClock())
            labels[label] = {"input": "in memory", "threads": "1", **_look_ups(given)}
    trials: list[OperationTrial] = []
    if any(trial["role"] and trial["variant"] not in timed for trial in planned):
        return {"verdicts": verdicts, "trials": trials}
    for _, round_ in groupby(planned, itemgetter("block")):
        before = disturbance()
        measured = [
            (trial, timed[trial["variant"]].measure())
            for trial in round_
            if trial["variant"] in timed
        ]
        disturbed = since(before)
        trials += [
            OperationTrial(
                **trial,
                status="ok",
                image_s=image_s,
                calls=timed[trial["variant"]].calls,
                labels=labels[trial["variant"]],
                disturbance=disturbed,
            )
            for trial, image_s in measured
        ]
    return {"verdicts": verdicts, "trials": trials}


def _look_ups(given: Sequence[object]) -> dict[str, str]:
    """Return the label that says how many labels an image has; empty where none is looked up."""
    counts = [len(one.wanted) for one in given if isinstance(one, Labels)]
    return {LOOK_UPS: f"{fmean(counts):.2f}"} if counts else {}


def _use_one_thread() -> None:
    """Limit libraries to one thread; torch only where it is imported."""
    import cv2

    cv2.setNumThreads(0)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


# --- the run --------------------------------------------------------------------------------


def run_operations(run: ActiveRun, trials: Sequence[AnyTrial]) -> None:
    """Time what a run lacks, a group at a time; finished groups stay whatever happens.

    Args:
        run: the active run.
        trials: its rows so far.

    Raises:
        RuntimeError: no group has a baseline that works.
        Cancelled: the user cancelled the run.
    """
    groups: dict[str, list[Planned]] = {}
    for planned in next_trials(run.info, trials, run.dropped):
        groups.setdefault(run.info.group_of(planned.variant), []).append(planned)
    waiting = sum(map(len, groups.values()))
    done = len({(t.block, t.variant, t.role) for t in trials if t.status == "ok"})
    run.progress.start(total=done + waiting, done=done)
    for group, wanted in groups.items():
        run.progress.next(group)
        _run_group(run, group, wanted)
        for _ in wanted:
            run.progress.advance()


def _run_group(run: ActiveRun, group: str, planned: Sequence[Planned]) -> None:
    """Time a group in a fresh process and save its rows; without its baseline, leave it out."""
    wanted = {trial.variant for trial in planned}
    tasks = {label: task for label, task in run.info.tasks.items() if label in wanted}
    try:
        result = run.ask(
            "time_operations",
            settings=run.baseline,
            tasks=tasks,
            planned=[asdict(trial) for trial in planned],
            seconds=MIN_ROUND_S[run.mode.name],
        )
    except (Cancelled, KeyboardInterrupt):
        run.append(planned[0], "cancelled", "cancelled by the user")
        raise
    except TrialFailed as failure:  # as when it is killed: a resumed run tries the group again
        baseline = run.info.baseline_by_group[group]
        others = [label for label in tasks if label != baseline]
        for label in (*others, baseline):  # without it, they would be skipped for good
            run.drop(replace(planned[0], variant=label, role=""), "failed", str(failure))
        return
    trials = [OperationTrial.from_row(row) for row in result["trials"]]
    append_trials(run.folder, *trials)
    run.drop_all(result["verdicts"])
    if trials:
        run.progress.rate(units.rate(trials[0].images_per_s))
