"""The interface of the data to loaders; pinning, for loaders other than torch's.

    source.order ─▶ keys ─▶ source[key] ─▶ arrays ─▶ source.collate ─▶ batch
    source.outside() ─▶ files, labels, numbers ─▶ tf.data, DALI or FFmpeg ─▶ batch

`order` has other keys in every epoch.  tf.data and DALI read, decode and preprocess by themselves,
so they support only preprocessing that numbers describe in full.  Both start threads, and a fork
with threads running may hang: they are imported where a loader is opened, in the trial's process.

    loader ─▶ thread: copy to page-locked memory ─▶ training loop
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from labkit import install
from labkit.contracts import Annotation, Content, Reader
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch

    Batch = dict[str, torch.Tensor]

RIVALS = install.extra("rivals")  # the loaders of other libraries than torch


class Source(Protocol):
    """The interface of the data to loaders."""

    reader: Reader
    """The data, opened."""

    @property
    def order(self) -> Iterable[tuple[int, int]]:
        """Keys (epoch, image index) of the current epoch, shuffled by the seed."""

    def __getitem__(self, key: tuple[int, int]) -> dict:
        """Read, decode and preprocess one image."""

    def read(self, key: tuple[int, int]) -> tuple[Content, Annotation]:
        """Read one image as it is stored."""

    def make(self, key: tuple[int, int], stored: tuple[Content, Annotation]) -> dict:
        """Decode and preprocess what was read."""

    def collate(self, samples: list[dict]) -> dict[str, torch.Tensor]:
        """Join samples into one batch."""

    def outside(self) -> Outside:
        """Return what a pipeline needs that reads, decodes and preprocesses by itself."""

    def start_worker(self, worker_id: int) -> None:
        """Set this process's thread limits and its garbage collector."""


@dataclass(frozen=True, kw_only=True)
class Outside:
    """An epoch's images, for a pipeline that reads, decodes and preprocesses by itself."""

    ids: np.ndarray
    """(N,) int64 image indices, ascending."""
    files: tuple[str, ...]
    """The file of each; in a pack the files that hold them."""
    names: tuple[str, ...]
    """The name of each, as packs keep it."""
    labels: np.ndarray
    """(N,) int64."""
    scale_rgb: tuple[float, float, float] | None
    """What pixels are multiplied by; None: they stay uint8."""
    shift_rgb: tuple[float, float, float] | None
    input_px: int
    draw_crops: Callable[[int], np.ndarray] | None = None
    """An epoch -> its crops, as of `crops`; None: whole images are taken."""

    @property
    def entry(self) -> str:
        """The name of the images in a batch."""
        return "pixels" if self.scale_rgb is None else "image"

    def positions(self, source: Source, batch_size: int) -> np.ndarray:
        """Return the epoch's images as places in these lists, in the source's order.

        Returns:
            (B, batch_size) int64; what does not fill a batch is left out.
        """
        ids = np.array([image_id for _, image_id in source.order], np.int64)
        ids = ids[: len(ids) // batch_size * batch_size]
        return np.searchsorted(self.ids, ids).reshape(-1, batch_size)

    def crops(self, source: Source) -> np.ndarray:
        """Return the crops of the source's epoch.

        Returns:
            (N, 5) int64: left, top, width and height in pixels, and 1 where the crop is flipped.
        """
        epoch, _ = next(iter(source.order))
        return self.draw_crops(epoch)


def threads_of(settings: Settings) -> int:
    """Return the number of threads: as many as torch's loader has workers, at least one."""
    return max(1, settings.num_workers)


class PinningLoader:
    """Copy each batch of a loader once more, as torch's pin_memory does.

    With workers, torch has a thread that takes batches off their queue and copies them, so that the
    training loop does not unpickle them.  Without this copy, a machine without CUDA would credit
    prefetch_generator with what pin_memory does on one with CUDA.

    Args:
        loader: iterable of batches.
        threaded: copy in a thread, as torch does with workers.  Without workers it copies in the
            loop: a thread would load ahead while the device computes.
        page_locked: copy to page-locked memory, which needs CUDA.  Otherwise the page lock is all
            that is missing.

    Source: torch/utils/data/_utils/pin_memory.py; _SingleProcessDataLoaderIter._next_data.
    """

    def __init__(
        self, loader: Iterable[Batch], *, threaded: bool, page_locked: bool = False
    ) -> None:
        self._loader, self._threaded, self._page_locked = loader, threaded, page_locked

    def __iter__(self) -> Iterator[Batch]:
        """Start the loader in this thread, and the thread that copies, if there is one."""
        batches = iter(self._loader)
        if not self._threaded:
            return map(self._copy, batches)
        copies = self._copy_in_thread(batches)
        next(copies)  # a generator that has begun ends its thread however it is dropped
        return copies

    def _copy_in_thread(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        finished: queue.SimpleQueue = queue.SimpleQueue()
        dropped = threading.Event()
        ahead = threading.Semaphore(1)  # batches besides the one that is next in the loop

        def copy_all() -> None:
            try:
                for batch in batches:
                    finished.put(self._copy(batch))
                    ahead.acquire()
                    if dropped.is_set():
                        return
                finished.put(None)
            except Exception as error:
                finished.put(error)

        # Not a ThreadPoolExecutor: a loader that forks in its thread has workers that cannot exit.
        thread = threading.Thread(target=copy_all, name="PinningLoader", daemon=True)
        thread.start()
        try:
            yield None
            while isinstance(batch := finished.get(), dict):
                ahead.release()
                yield batch
            if batch is not None:
                raise batch
        finally:
            dropped.set()
            ahead.release()
            thread.join()

    def _copy(self, batch: Batch) -> Batch:
        if not self._page_locked:
            return {name: tensor.clone() for name, tensor in batch.items()}
        # A loader with a GPU pipeline delivers batches that are on the device already.
        return {name: t if t.is_cuda else t.pin_memory() for name, t in batch.items()}


def pin(loader: Iterable[Batch], settings: Settings, *, threaded: bool) -> Iterable[Batch]:
    """Pin batches where the settings ask for it; see `PinningLoader`."""
    if not settings.pin_memory or settings.device == "cpu":
        return loader
    return PinningLoader(loader, threaded=threaded, page_locked=settings.device == "cuda")
