"""Trials of single operations: one operation, one library or way and one size each.

    compare_operations: compare each output with that of the operation's first library
    time_operation: 4 photographs ─ pictures of one size ─ repeated calls ─▶ seconds per image
                    boxes of 100 images ─ labels among so many names ─ the same

The epoch of such a trial is one image, the mean over all calls, so that epochs compare whatever
the number of calls.
"""

from __future__ import annotations

import gc
import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from statistics import fmean
from typing import Any

import numpy as np

from labkit import units
from labkit.analysis.equal_work import DECODED_TOLERANCE_LEVELS
from labkit.contracts import Annotation, Content, Sample, Skip
from labkit.machine.clock import Clock, SystemClock
from labkit.machine.disturbance import disturbance, since
from labkit.parts import operations
from labkit.parts.decoding import DECODERS
from labkit.parts.operations import Labels, Operation, Picture, make_configuration, make_picture
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.pipeline import shuffled_images
from labkit.records import Epoch
from labkit.resolve import open_data
from labkit.settings import Settings

PHOTOS = 4  # different ones, so that no library is judged by one image
BOXED_IMAGES = 100  # whose boxes' labels are looked up
SAMPLE_PX = 512  # side of the input of the documents' detector
# Seconds that the timed calls of a trial take together, at least.
TRIAL_S = {"quick": 0.02, "document": 0.02, "full": 0.1}
TRIAL_OVERHEAD_S = 0.1  # fork, disturbance readings, first call
MAX_CALLS = 100_000  # of one input
LABELS = {"input": "in memory", "threads": "1"}
LOOK_UPS = "look-ups per image"  # a label of the trials that have some
# Of libraries that the server has not loaded yet.
MODULES = {
    "pillow": "PIL.Image", "simplejpeg": "simplejpeg", "kornia_rs": "kornia_rs",
    "torchvision": "torchvision",
}  # fmt: skip

DECODE = "decode"
OPERATIONS: dict[tuple[str, str], Operation] = {
    **{
        (DECODE, library): Operation(lambda picture: picture.jpeg, DECODERS[library])
        for library in ("pillow", "opencv", "simplejpeg", "kornia_rs", "torchvision")
    },
    **operations.OPERATIONS,
}
SAMPLE = "one sample"


def load_sample(given: tuple[int, bytes, Annotation]) -> np.ndarray:
    """Decode and preprocess as the documents' detector does, and copy the planes into a batch."""
    index, jpeg, annotation = given
    image = DECODERS[Settings.decoder](jpeg)
    sample = Sample(image_rgb=image, annotation=annotation, sample_id=index, epoch=0, seed=0)
    arrays = PREPROCESSORS[Settings.preprocessor](sample, SAMPLE_PX)
    return np.ascontiguousarray(arrays["image"])


LOOKUPS: dict[tuple[str, str], Operation] = {
    **operations.LOOKUPS,
    (SAMPLE, "decoded and preprocessed"): Operation(tuple, load_sample),
}

# How closely the outputs of two libraries must agree: the largest difference of one value, in grey
# levels down to rotate, in values of 0..1 or -2..3 after it; and the share of values so close.
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
    **dict.fromkeys((name for name, _ in LOOKUPS), (0, 1.0)),
}


def load(settings: Settings, task: Mapping[str, Any]) -> None:
    """Make the inputs and import the library, for all trials forked from this process."""
    name, library, *size = task.values()
    make_inputs(settings, name, *size)
    if module := MODULES.get(library):
        with suppress(ImportError):  # the comparison gives the reason
            importlib.import_module(module)


def make_inputs(settings: Settings, name: str, *size: int) -> list:
    """Return what an operation is timed with; errors as of the functions in `INPUTS`."""
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
    shuffled = shuffled_images(settings, len(reader))
    return [(int(i), *reader.read(int(i))) for i in shuffled[:PHOTOS]]


@lru_cache
def draw_labels(settings: Settings, names: int) -> list[Labels]:
    """Draw a label for each box of some images, all names equally likely.

    Returns:
        An entry per image, the one with the most boxes first: its answers are compared.

    Raises:
        Skip: the images have no boxes.
    """
    reader, rng = open_data(settings), np.random.default_rng(settings.seed)
    images = shuffled_images(settings, len(reader))[:BOXED_IMAGES]
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
    return [Labels(known, numbers, found) for found in wanted]


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
    for label, task in tasks.items():
        name, library, *size = task.values()
        operation = (OPERATIONS | LOOKUPS)[name, library]
        try:
            given = make_inputs(settings, name, *size)[0]
            found = np.asarray(operation.run(operation.prepare(given)))
            other, reference = references.setdefault((name, *size), (library, found))
            if apart := difference(found, reference, AGREEMENTS[name]):
                raise ValueError(f"not the same work as {other}: {apart}")
        except (Skip, ImportError) as error:
            verdicts[label] = ("skipped", str(error))
        except Exception as error:  # a library may raise anything; its row shows it
            verdicts[label] = ("failed", f"{type(error).__name__}: {error}")
        else:
            verdicts[label] = ("ok", "")
    return verdicts


def difference(found: np.ndarray, reference: np.ndarray, agreement: tuple[float, float]) -> str:
    """Return in one line how an output differs from the reference; '' if it does not.

    Args:
        found: an array of any shape.
        reference: the first library's output.
        agreement: how close it must be, as in `AGREEMENTS`.
    """
    if (found.shape, found.dtype) != (reference.shape, reference.dtype):
        wanted, got = (f"{array.shape} {array.dtype}" for array in (reference, found))
        return f"output must be {wanted}, got {got}"
    if not found.flags.c_contiguous:
        return "output must be contiguous, got a strided view"
    apart = np.subtract(found, reference, dtype=np.float32)  # uint8 alone would wrap around
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


def time_operation(settings: Settings, task: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Measure one trial in this process, with one thread.

    Args:
        settings: of the data.
        task: operation, library, and the numbers that its inputs are made from.
        seconds: minimum duration of all calls together.

    Returns:
        The measured fields of `Trial`.

    Raises:
        ValueError: a photograph cannot be read; the message names the file.
    """
    name, library, *size = task.values()
    operation = (OPERATIONS | LOOKUPS)[name, library]
    given = make_inputs(settings, name, *size)
    inputs = [operation.prepare(one) for one in given]
    operation.run(inputs[0])  # imports what it needs
    _use_one_thread()
    before = disturbance()
    image_s, calls = time_calls(operation.run, inputs, seconds, SystemClock())
    epoch = Epoch(
        epoch_s=image_s, startup_s=0.0, first_batch_s=0.0, wait_s=0.0, transfer_s=0.0,
        forward_s=None, backward_s=None, launch_s=None, sync_s=0.0, steps=calls, images=1,
        batch_bytes=0, compute_s=None,
    )  # fmt: skip
    disturbed, labelled = since(before), dict(LABELS)
    if look_ups := [len(one.wanted) for one in given if isinstance(one, Labels)]:
        labelled[LOOK_UPS] = f"{fmean(look_ups):.2f}"
    return {"epochs": (epoch,), "disturbance": disturbed, "labels": labelled}


def time_calls(
    run: Callable[[object], object], inputs: Sequence[object], seconds: float, clock: Clock
) -> tuple[float, int]:
    """Time a function on several inputs, the same number of calls on each.

    Args:
        run: the function.
        inputs: its arguments, one per call.
        seconds: minimum duration of all calls together.
        clock: a fake one in tests.

    Returns:
        Mean seconds of a call, and the number of calls.
    """
    wanted_s = seconds / len(inputs)
    gc.freeze()  # a collection would copy memory that is shared since the fork
    gc.disable()  # a collection would slow one trial and not the other
    # The faster of two: a disturbed first call would leave too few.
    call_s = min(_time_calls(run, inputs[0], 1, clock) for _ in range(2))
    n = min(max(math.ceil(wanted_s / max(call_s, 1e-9)), 1), MAX_CALLS)
    total_s = sum(_time_calls(run, given, n, clock) for given in inputs)
    gc.enable()
    gc.unfreeze()
    return total_s / (n * len(inputs)), n * len(inputs)


def _time_calls(run: Callable[[object], object], given: object, n: int, clock: Clock) -> float:
    start_s = clock.now()
    for _ in repeat(None, n):
        run(given)
    return clock.now() - start_s


def _use_one_thread() -> None:
    """Limit libraries to one thread; torch only where it is imported."""
    import cv2

    cv2.setNumThreads(0)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
