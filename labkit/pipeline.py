"""From settings to batches on a device: the parts, opened and joined.

    Source: storage → reader → decoder → preprocessor ─▶ loader → prefetcher → device → step

Everything up to the loader happens in its workers, so a `Source` is picklable.  Which images an
epoch has, and in which order, depends on the seed alone, never on the loader, its workers or the
variant.
"""

from __future__ import annotations

import functools
import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import contracts
from labkit.contracts import Annotation, Content, Device, DeviceBatch, ImageInParts, Reader, Sample
from labkit.jpeg import read_size_px
from labkit.machine import shared_memory
from labkit.machine.clock import Clock
from labkit.parts.loading.source import Outside
from labkit.parts.preprocessing import device_bytes, typical_arrays
from labkit.parts.training import Step
from labkit.recipes.thread_loader import join
from labkit.resolve import Resolved, own_parts, register, resolve
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


class Order:
    """The keys (epoch, image) of the current epoch: all images, shuffled by seed and epoch.

    Args:
        image_ids: (images,) int64; of all ranks.
        seed: of the shuffling.
        sequential: as they are stored instead, every epoch.
        rank: whose images these are: every `ranks`-th, as of torch's DistributedSampler.
        ranks: divides the number of images, so that none is padded.
    """

    def __init__(
        self,
        image_ids: np.ndarray,
        seed: int,
        *,
        sequential: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.epoch = 0
        self.image_ids = image_ids
        self._seed = seed
        self._sequential = sequential
        self._own = slice(rank, None, ranks)

    def __len__(self) -> int:
        return len(self.image_ids[self._own])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        if self._sequential:
            ids = np.sort(self.image_ids)
        else:
            ids = np.random.default_rng((self._seed, self.epoch)).permutation(self.image_ids)
        # The epoch travels with the key: persistent workers never see `self.epoch` change.
        return zip(itertools.repeat(self.epoch), ids[self._own].tolist())


@dataclass(kw_only=True)
class Source:
    """Images by key, as the loaders take them; picklable, and opened anew in each worker."""

    reader: Reader
    parts: Resolved
    order: Order

    def __len__(self) -> int:
        return len(self.order)

    @property
    def settings(self) -> Settings:
        """The settings that name the parts."""
        return self.parts.settings

    def __getitem__(self, key: tuple[int, int]) -> dict[str, np.ndarray]:
        """Read, decode and preprocess one image.

        Args:
            key: (epoch, image index).

        Raises:
            ValueError: the image cannot be decoded; the message names the file.
        """
        return self.make(key, self.read(key))

    def read(self, key: tuple[int, int]) -> tuple[Content, Annotation]:
        """Read one image as it is stored; arguments and errors as `__getitem__`'s."""
        epoch, image_id = key
        if self.settings.jitter_ms:
            time.sleep(jitter_s(self.settings, epoch, image_id))
        return self.reader.read(image_id)

    def make(
        self, key: tuple[int, int], stored: tuple[Content, Annotation]
    ) -> dict[str, np.ndarray]:
        """Decode and preprocess what `read` returned; errors as `__getitem__`'s."""
        epoch, image_id = key
        content, annotation = stored
        if isinstance(content, dict):  # finished when it was stored
            return content
        image_rgb, size_px = self.decode(key, content)
        sample = Sample(
            image_rgb=image_rgb,
            annotation=annotation,
            sample_id=image_id,
            epoch=epoch,
            seed=self.settings.seed,
            size_px=size_px or annotation.size_px,
        )
        return self.parts.preprocessor(sample, self.settings.input_px)

    def decode(
        self, key: tuple[int, int], content: bytes | np.ndarray | ImageInParts
    ) -> tuple[np.ndarray, tuple[int, int] | None]:
        """Decode an image, unless its pixels are stored.

        Args:
            key: (epoch, image index).
            content: as it was read.

        Returns:
            (H, W, 3) uint8 RGB, or an image in parts for a preprocessor that takes one; and of a
            scaled decoder the width and height as stored.

        Raises:
            ValueError: it cannot be decoded; the message names the file.
        """
        if isinstance(content, np.ndarray):
            return content, None
        if not isinstance(content, bytes):
            planes: Any = content  # a `Sample` may have them in place of an array
            return planes if self.parts.preprocessor.in_parts else np.asarray(planes), None
        parts, settings = self.parts, self.settings
        try:
            if not parts.decoder.scaled:
                return parts.decode(content), None
            size_px = read_size_px(content)
            at_least_px = parts.preprocessor.at_least_px(
                (settings.seed, *key), size_px, settings.input_px
            )
            return parts.decode(content, at_least_px=at_least_px), size_px
        except ValueError as error:
            raise ValueError(f"{self.reader.where(key[1])}: {error}") from error

    def collate(self, samples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        """Stack equal shapes as torch does; join ragged entries and say how many each had.

        Returns:
            entry name -> tensor; for every `x_ragged` also `x_ragged_counts`, (B,) int64.
        """
        batch: dict[str, torch.Tensor] = {}
        for name in samples[0]:
            batch |= join(name, [sample[name] for sample in samples])
        return batch

    def outside(self) -> Outside:
        """Describe the epoch for a loader that reads, decodes and preprocesses by itself."""
        in_numbers, reader = self.parts.preprocessor.in_numbers, self.reader
        ids = np.sort(self.order.image_ids)
        return Outside(
            ids=ids,
            files=tuple(map(str, reader.files_of(ids))),
            names=tuple(reader.name(i) for i in ids),
            labels=np.array([in_numbers.label(reader.annotation(i)) for i in ids], np.int64),
            scale_rgb=in_numbers.scale_rgb,
            shift_rgb=in_numbers.shift_rgb,
            input_px=self.settings.input_px,
            draw_crops=self._crops_of(ids) if self.parts.preprocessor.crop else None,
        )

    def _crops_of(self, ids: np.ndarray) -> Callable[[int], np.ndarray]:
        """Return what draws an epoch's crops, as `Outside.crops` returns them.

        Those of the settings' epochs are drawn here, as other libraries take next to no time for
        theirs.
        """
        draw, seed = self.parts.preprocessor.crop, self.settings.seed
        jpegs: Any = (self.reader.read(i)[0] for i in ids)
        sizes_px = list(map(read_size_px, jpegs))

        @functools.cache
        def draw_all(epoch: int) -> np.ndarray:
            keys = ((seed, epoch, image_id) for image_id in ids.tolist())
            return np.array([draw(key, *size_px) for key, size_px in zip(keys, sizes_px)])

        for epoch in range(self.settings.epochs):
            draw_all(epoch)
        return draw_all

    def prepare_cache(self, cache: str | int) -> dict[str, Any]:
        """Produce a cache state of the epoch's images and measure it; see `Storage`.

        Which images stay in memory is drawn anew for every epoch.
        """
        # 8 tells this draw from others with the same seed and epoch.
        drawn = np.random.default_rng((self.settings.seed, self.order.epoch, 8))
        ids = drawn.permutation(self.order.image_ids)
        return self.parts.storage.prepare_cache(self.reader, ids, cache)

    def prove_cache(self, proof: dict[str, Any]) -> dict[str, Any]:
        """Complete the proof after the epochs; see `Storage`."""
        return self.parts.storage.prove_cache(self.reader, self.order.image_ids, proof)

    def start_worker(self, worker_id: int) -> None:
        """Set this process's thread limits and its garbage collector, as after a fresh start."""
        import cv2

        gc.enable()  # a forked worker inherits what the training process has chosen for itself
        shared_memory.note_worker()
        cv2.setNumThreads(self.settings.cv2_threads)

    def __getstate__(self) -> dict:
        # The user's own parts can only be sent by cloudpickle, so a spawned worker resolves again.
        return {**self.__dict__, "parts": (own_parts(), self.settings)}

    def __setstate__(self, state: dict) -> None:
        own, settings = state["parts"]
        register(own)
        self.__dict__.update({**state, "parts": resolve(settings)})


def shuffled_images(settings: Settings, images: int) -> np.ndarray:
    """List all images in the order in which runs with this seed take them.

    Args:
        settings: `subset` and `seed` count.
        images: how many the data has.

    Returns:
        (N,) int64 indices.
    """
    if settings.subset == "first":
        return np.arange(images)
    return np.random.default_rng(settings.seed).permutation(images)


def jitter_s(settings: Settings, epoch: int, image_id: int) -> float:
    """Draw how late a sample comes: the same in every variant, whoever loads it.

    Returns:
        0 to `jitter_ms`, in seconds, all equally likely.
    """
    # 7 tells this draw from the preprocessor's, with the same seed, epoch and image.
    rng = np.random.default_rng((settings.seed, epoch, image_id, 7))
    return rng.uniform(0, settings.jitter_ms) / 1000


def choose_images(
    settings: Settings, available: int, excluded: frozenset[int] = frozenset()
) -> np.ndarray:
    """Choose an epoch's images: the same for all variants with the same seed.

    Args:
        settings: `images` (None: all), `batch_size`, `ranks`, `subset` and `seed` count.
        available: how many images the data has.
        excluded: indices of unreadable images.

    Returns:
        (images,) int64 indices, a whole number of batches for each rank.

    Raises:
        ValueError: fewer images than one batch, or more wanted than there are.
    """
    shuffled = shuffled_images(settings, available)
    usable = shuffled[~np.isin(shuffled, list(excluded))]
    least = settings.batch_size * settings.ranks
    if len(usable) < least:
        raise ValueError(
            f"batch_size must be at most the number of readable images ({len(usable)})"
            f"{f' ÷ {settings.ranks} ranks' * (settings.ranks > 1)}, got {settings.batch_size}; "
            "use a smaller batch or more images"
        )
    wanted = settings.images or len(usable)
    if not least <= wanted <= len(usable):
        raise ValueError(
            f"images must be at least one batch for each rank ({least}) and at most the number of "
            f"readable images ({len(usable)}), got {wanted}; leave it unset to use what fits"
        )
    return usable[: wanted // least * least]


def open_loader(
    parts: Resolved, *, excluded: frozenset[int] = frozenset(), rank: int = 0
) -> tuple[Source, Iterable[Any]]:
    """Open the data and what assembles its batches.

    Args:
        parts: from `resolve`.
        excluded: indices of unreadable images.
        rank: whose batches; it has its share of the workers.

    Returns:
        The images by key, and an iterable of CPU batches.
    """
    settings, reader = parts.settings, parts.reader
    order = Order(
        choose_images(settings, len(reader), excluded),
        settings.seed,
        sequential=not settings.shuffle,
        rank=rank,
        ranks=settings.ranks,
    )
    if reader.stored != settings.storage_format:
        raise ValueError(
            f"storage_format must be {reader.stored!r} for {settings.data}, got "
            f"{settings.storage_format!r}"
        )
    reader = parts.storage.open(reader, settings.multiprocessing_context)
    source = Source(reader=reader, parts=parts, order=order)
    workers = settings.num_workers // settings.ranks
    return source, parts.loader(source, replace(settings, num_workers=workers))


def first_batch(
    parts: Resolved, excluded: frozenset[int], images: int | None = None
) -> dict[str, np.ndarray]:
    """Build the first batch of epoch 0 on the CPU, as the step would see it, in shuffled order.

    Args:
        parts: from `resolve`.
        excluded: indices of unreadable images.
        images: of the epoch: the order depends on their number. Unset: one batch.

    Returns:
        The finished batch's arrays; see `batches.BATCHES`.  Of a loader with an order of its own,
        all batches of the epoch as one.

    Raises:
        Skip: the batches of the loader's workers may not fit into shared memory.
        ValueError: the decoder does not keep its contract.
    """
    settings = parts.settings
    images = images or settings.batch_size
    one_batch: dict[str, Any] = {"images": images, "shuffle": True, "ranks": 1}
    # What threads do to each other shows only with threads; processes would only take time.
    workers = settings.num_workers if parts.loader.workers == "threads" else 0
    alone = replace(settings, device="cpu", num_workers=workers, **one_batch)
    source, loader = open_loader(replace(parts, settings=alone), excluded=excluded)
    first = int(source.order.image_ids[0])
    content, _ = source.reader.read(first)
    if not isinstance(content, dict):
        image_rgb, _ = source.decode((0, first), content)
        contracts.check_image(np.asarray(image_rgb))  # it may be Pillow's
    batches = iter(loader)
    batch = next(batches)
    if parts.loader.workers == "processes":
        shared_memory.check_room(
            sum(tensor.nbytes for tensor in batch.values()),
            workers=settings.num_workers,
            prefetch_factor=settings.prefetch_factor,
            ranks=settings.ranks,
        )
    if parts.loader.has_own_order and images > settings.batch_size:
        import torch

        several = [batch, *batches]
        batch = {name: torch.cat([one[name] for one in several]) for name in batch}
    on_device = parts.preprocessor.on_device
    if on_device is not None:
        batch = on_device(batch, settings.input_px)
    return {name: tensor.numpy() for name, tensor in batch.items()}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Everything a trial needs, opened."""

    parts: Resolved
    source: Source
    loader: Iterable[Any]
    device: Device
    step: Step
    device_bytes: int = 0
    """What a simulated GPU is charged for finishing a batch."""

    @property
    def settings(self) -> Settings:
        """The settings that name the parts."""
        return self.parts.settings

    def batches(self, loader: Iterable[Any], device: Any) -> Iterable[DeviceBatch]:
        """Start an epoch: iterate batches that are on the device.

        Args:
            loader: `self.loader`, or something that measures it.
            device: `self.device`, likewise.
        """
        how: dict[str, Any] = {"pinned": self.settings.pin_memory}
        if self.parts.finishes_on_side_stream:
            how["finish"] = self._on_device
        return self.parts.prefetcher(loader, device, **how)

    def finished(self, batch: DeviceBatch) -> dict[str, torch.Tensor]:
        """Return the batch as the step sees it; a simulated GPU finishes nothing."""
        return self._on_device(batch) if self.parts.finishes_on_device else batch

    def _on_device(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.parts.preprocessor.on_device(batch, self.settings.input_px)

    def forward(self, batch: DeviceBatch) -> object:
        """Finish the batch on the device where its preprocessor works there, then step."""
        if self.device_bytes:
            device: Any = self.device  # a simulated one
            device.process(self.device_bytes)
        return self.step.forward(self.finished(batch))

    def resident_batch(self) -> dict[str, torch.Tensor]:
        """Make a batch out of nothing, for warming up without touching the data."""
        arrays = typical_arrays(self.parts.preprocessor, self.settings.input_px)
        return self.source.collate([arrays] * self.settings.batch_size)


def build(
    settings: Settings,
    clock: Clock,
    *,
    excluded: frozenset[int] = frozenset(),
    rank: int = 0,
) -> Pipeline:
    """Open every part that the settings name.

    Args:
        settings: complete (`settings.complete`).
        clock: what the simulated GPU tells the time by.
        excluded: indices of unreadable images.
        rank: of the process, where `ranks` train together.

    Raises:
        ValueError: settings that cannot work.
        Skip: this machine lacks what they need.
    """
    parts = resolve(settings)
    source, loader = open_loader(parts, excluded=excluded, rank=rank)
    device = parts.device(parts.gpu_speeds, clock)
    charged = (parts.preprocessor, settings.batch_size, settings.input_px)
    return Pipeline(
        parts=parts,
        source=source,
        loader=loader,
        device=device,
        step=parts.step(settings, device),
        device_bytes=device_bytes(*charged) if parts.charges_device else 0,
    )
