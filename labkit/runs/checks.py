"""Preflight: checks before anything is timed.

    find_bad_images: images that cannot be read or decoded, left out for all variants alike
    compare_work:    one batch of each variant, built on the CPU and compared with the baseline's:
                     same images, shapes, dtypes, channel order, pixels within the named tolerance

A variant that fails here becomes a row with its reason.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import numpy as np

from labkit import units
from labkit.contracts import (
    BATCHES,
    ArraySpec,
    Skip,
    check_batch,
    check_image,
    difference,
    tolerance_levels,
)
from labkit.jpeg import read_size_px
from labkit.machine import hardware
from labkit.parts.decoding import DECODERS, SCALED, sample_jpeg
from labkit.parts.loading import OWN_ORDER
from labkit.parts.packing import PIXELS, RESIZED
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.pipeline import first_batch, shuffled_images
from labkit.resolve import check, open_source
from labkit.settings import Settings

# NumPy's, Python's and C++'s own; torch's on the CPU and on CUDA; OpenCV's; TensorFlow's.
OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|(can't|cannot) allocate|OutOfMemory|out of memory|OOM when allocating",
    re.IGNORECASE,
)
LONGEST_MESSAGE = 160  # characters of a library's own message: it has to stay one line


def find_bad_images(
    settings: Settings, start: int, stop: int, decoders: list[str]
) -> tuple[list[tuple[int, str]], list[str]]:
    """Find images that cannot be read, or that a decoder refuses, and files that changed.

    Each image is read once and decoded once with each decoder, on all cores.

    Args:
        settings: complete; only the data's place and packing count.
        start: first image to look at, counted in the order of the seed.
        stop: the image after the last.
        decoders: names of the decoders that the variants use.

    Returns:
        (index, one line naming the file and what is wrong with it) of each bad image; and a line
        for each other file that is no longer what the data's manifest says.
    """
    reader = open_source(settings)
    indices = [int(index) for index in shuffled_images(settings)[start:stop]]
    usable = [name for name in decoders if _decodes(name, sample_jpeg())]

    def fault(index: int) -> str:
        try:
            content, _ = reader.read(index)
        except OSError as error:
            link = ", a broken link" if Path(reader.where(index)).is_symlink() else ""
            return f"{reader.where(index)}{link}: {error.strerror or error}"
        except ValueError as error:  # names the file itself
            return str(error)
        if not isinstance(content, bytes):  # stored as pixels
            return ""
        try:
            read_size_px(content)
            for name in usable:
                check_image(DECODERS[name](content))
        except Exception as error:  # of a library, or of a decoder of the user's own
            line = str(error) if isinstance(error, ValueError) else one_line(error)
            return f"{reader.where(index)}: {line}"
        return ""

    with ThreadPoolExecutor(hardware.cores()) as pool:
        faults = dict(zip(indices, pool.map(fault, indices)))
    bad = sorted((index, line) for index, line in faults.items() if line)
    return bad, reader.verify([index for index, line in faults.items() if not line])


def _decodes(name: str, jpeg: bytes) -> bool:
    """Try a decoder: one that is missing or broken says so in its variants' rows."""
    try:
        check_image(DECODERS[name](jpeg))
    except Exception:  # a decoder of the user's own may raise anything
        return False
    return True


def compare_work(
    variants: dict[str, Settings], baseline: str, *, excluded: frozenset[int] = frozenset()
) -> dict[str, tuple[str, str]]:
    """Build one batch of every variant and compare it with the baseline's.

    Args:
        variants: label -> complete settings.
        baseline: the label to compare with.
        excluded: indices of unreadable images.

    Returns:
        label -> (status, reason): "ok", "skipped" or "failed".
    """
    verdicts: dict[str, tuple[str, str]] = {}
    reference = None
    for label in sorted(variants, key=lambda label: label != baseline):  # the baseline first
        settings = variants[label]
        try:
            check(settings)
            check_batch_fits(settings)
            batch = first_batch(settings, excluded)
            specs = BATCHES[PREPROCESSORS[settings.preprocessor].batch](
                settings.batch_size, settings.input_px
            )
            check_batch(batch, specs)
            if reference is None:
                reference = batch
            elif apart := _difference(batch, reference, settings, variants[baseline], specs):
                raise ValueError(f"not the same work as {baseline}: {apart}")
        except (Skip, ImportError) as reason:
            verdicts[label] = ("skipped", str(reason))
        except Exception as error:  # any failure of a part is shown as its row
            reason = out_of_memory(error, settings) or f"{type(error).__name__}: {error}"
            verdicts[label] = ("failed", reason)
        else:
            verdicts[label] = ("ok", "")
    return verdicts


def _difference(
    batch: dict[str, np.ndarray],
    reference: dict[str, np.ndarray],
    settings: Settings,
    base: Settings,
    specs: dict[str, ArraySpec],
) -> str:
    """Say in one line how a batch differs from the baseline's; '' where the work is the same."""
    if set(reference) != set(batch):
        return (
            f"batch must have the baseline's entries {', '.join(sorted(reference))}, "
            f"got {', '.join(sorted(batch))}"
        )
    if settings.batch_size != base.batch_size:
        return ""
    if {settings.loader, base.loader} & OWN_ORDER:  # the same images, as this is the whole epoch
        batch, reference = _by_id(batch), _by_id(reference)
    levels = tolerance_levels(
        decoders_differ=settings.decoder != base.decoder,
        scaled=_scaled(settings) != _scaled(base),
        decoded_scaled=(settings.decoder in SCALED) != (base.decoder in SCALED),
    )
    return difference(batch, reference, specs, levels=levels)


def _by_id(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.argsort(batch["sample_id"])
    return {name: array[order] for name, array in batch.items()}


def _scaled(settings: Settings) -> str:
    """Name how the stored pixels differ from the originals; a finished sample's do not."""
    return settings.stored if settings.stored in (RESIZED, PIXELS) else ""


def batch_bytes(settings: Settings) -> int | None:
    """Return the size of a finished batch; None for a user's own preprocessor."""
    describe = BATCHES.get(PREPROCESSORS[settings.preprocessor].batch)
    if describe is None:
        return None
    specs = describe(settings.batch_size, settings.input_px).values()
    return sum(prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs)


def check_batch_fits(settings: Settings) -> None:
    """Refuse a batch that is larger than all of this machine's memory.

    The kernel may grant it all the same, and kill a process when it is filled.

    Raises:
        ValueError: the message says how many images would fit.
    """
    needed_bytes, memory_bytes = batch_bytes(settings) or 0, hardware.memory_bytes()
    if needed_bytes > memory_bytes:
        fitting = memory_bytes * settings.batch_size // needed_bytes
        raise ValueError(
            f"batch_size must be at most {fitting} at input_px {settings.input_px}, so that one "
            f"batch fits into memory ({units.count_bytes(memory_bytes)}), got "
            f"{settings.batch_size} ({units.count_bytes(needed_bytes)}); "
            "use a smaller one or a smaller input_px"
        )


def out_of_memory(error: BaseException, settings: Settings) -> str:
    """Say in one line that memory ran out; '' where something else went wrong."""
    message = one_line(error)
    if not OUT_OF_MEMORY.search(message):
        return ""
    needed_bytes = batch_bytes(settings)
    size = f" ({units.count_bytes(needed_bytes)} a batch)" if needed_bytes else ""
    return (
        f"batch_size must leave room in memory, got {settings.batch_size}{size}; use a smaller "
        f"one, a smaller input_px or fewer workers ({message[:LONGEST_MESSAGE]})"
    )


def one_line(error: BaseException) -> str:
    """Return an error's type and first line; of a loader worker's traceback, the last line."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught "):
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"
