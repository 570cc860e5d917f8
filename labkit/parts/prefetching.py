"""Prefetching: fetch the next batch while the device works on the current one.

    loader ──(thread?)──▶ put ──(side stream?)──▶ wait ──▶ step

`none` is the documents' original loop, `prefetch_generator` adds a thread after the loader
([004] 2.1), `data_prefetcher` copies the next batch on a side stream ([004] 2.2, NVIDIA apex),
`both` does both.  `data_prefetcher_normalizing` is the one that [003] and [004] print: it copies
uint8 batches and normalizes them on the side stream too.  All deliver every batch of the loader.

`data_prefetcher` asks the loader for the next batch *before* the current step is launched, so it
hides copies, but not a slow loader.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from labkit.contracts import Chosen, Device, DeviceBatch, Part, open_library

if TYPE_CHECKING:
    import torch
    from prefetch_generator import BackgroundGenerator

    Batches = Iterable[dict[str, torch.Tensor]]
    Prefetch = Callable[..., Iterator[DeviceBatch]]
    Finish = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def fetch_plainly(batches: Batches, device: Device, *, pinned: bool) -> Iterator[DeviceBatch]:
    """Copy each batch when it is asked for, on the stream that also computes."""
    for batch in batches:
        on_device = device.put(batch, pinned=pinned, side_stream=False)
        device.wait(on_device)
        yield on_device


def fetch_on_side_stream(
    batches: Batches,
    device: Device,
    *,
    pinned: bool,
    step_first: bool = False,
    finish: Finish | None = None,
) -> Iterator[DeviceBatch]:
    """Copy the next batch on a side stream before the current step.

    Args:
        batches: of the loader.
        device: where they are copied.
        pinned: they are in page-locked memory.
        step_first: ask the loader for the next batch after the current step is launched.
        finish: what the device does with each batch on the side stream, after the copy; only a
            CUDA device has kernels there.

    Source: NVIDIA apex, examples/imagenet/main_amp.py, data_prefetcher, for batches that are
    dicts; [004] section 2.2.
    """
    remaining = iter(batches)

    def preload() -> DeviceBatch | None:
        batch = next(remaining, None)
        if batch is None:
            return None
        how: dict[str, Any] = {} if finish is None else {"finish": finish}
        return device.put(batch, pinned=pinned, side_stream=True, **how)

    following = preload()
    while following is not None:
        current = following
        device.wait(current)
        if step_first:
            yield current
        following = preload()
        if not step_first:
            yield current


class DataLoaderX:
    """A loader whose iterator is filled by a background thread ([004] section 2.1).

    The document subclasses torch's DataLoader; this class wraps any loader.  prefetch_generator
    keeps one finished batch, and its thread holds another.  Where a loop ends early, the document's
    thread waits forever to deliver its batch, and the loader's workers with it.  This one takes the
    batch, so that the thread ends.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Start the loader in this thread, and another thread that iterates it."""
        library = open_library("prefetch_generator", "prefetch_generator")
        broken_off = threading.Event()
        batches = _until(broken_off, iter(self._batches))
        return _ending(library.BackgroundGenerator(batches, max_prefetch=1), broken_off)


def _until(broken_off: threading.Event, batches: Iterator) -> Iterator:
    for batch in batches:
        if broken_off.is_set():
            return
        yield batch


def _ending(ahead: BackgroundGenerator, broken_off: threading.Event) -> Iterator:
    try:
        yield from ahead
    finally:
        broken_off.set()
        with contextlib.suppress(Exception):  # of a batch that is not used
            deque(ahead, maxlen=0)  # the thread waits until what it has is taken
        ahead.join()


def fetch_in_thread(
    batches: Batches, device: Device, *, fetch: Prefetch = fetch_plainly, **how: Any
) -> Iterator[DeviceBatch]:
    """Wait for the loader in a thread; copy as `fetch` does."""
    return fetch(DataLoaderX(batches), device, **how)


@dataclass(frozen=True)
class Prefetcher(Part):
    """What copies batches to the device: (loader, device, *, pinned) -> device batches."""

    needs_streams: bool = False
    """It copies beside the compute stream."""
    finishes: bool = False
    """It is given `finish`: what the preprocessor leaves to the device, for the side stream."""

    def why_not(self, chosen: Chosen) -> str:
        """Refuse a side stream where there is none, or nothing to do on it; see `Part.why_not`."""
        settings = chosen.settings
        if self.needs_streams and chosen.device.is_cpu:
            return (
                f"{settings.prefetcher} copies on a side stream, which the cpu device does not "
                "have; choose device cuda or simulated"
            )
        if not self.finishes:
            return ""
        fitting = chosen.names("preprocessor", lambda each: each.on_device is not None)
        if settings.preprocessor not in fitting:
            raise ValueError(
                f"preprocessor must be one of {', '.join(fitting)} for the prefetcher "
                f"{settings.prefetcher}, which finishes batches on the device, got "
                f"{settings.preprocessor!r}"
            )
        if chosen.device.is_simulated:
            return (
                f"{settings.prefetcher} runs kernels on two streams at once, and the simulated GPU "
                "has one queue for all; choose device cuda"
            )
        return ""


PREFETCHERS: dict[str, Prefetch] = {
    "none": fetch_plainly,
    "prefetch_generator": Prefetcher(fetch_in_thread, library="prefetch_generator"),
    "data_prefetcher": Prefetcher(fetch_on_side_stream, needs_streams=True),
    "both": Prefetcher(
        partial(fetch_in_thread, fetch=fetch_on_side_stream),
        library="prefetch_generator",
        needs_streams=True,
    ),
    "data_prefetcher_step_first": Prefetcher(
        partial(fetch_on_side_stream, step_first=True), needs_streams=True
    ),
    "data_prefetcher_normalizing": Prefetcher(
        fetch_on_side_stream, needs_streams=True, finishes=True
    ),
}
