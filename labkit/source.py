"""Source: settings → images by key, read, decoded and preprocessed, and joined to batches.

    storage → reader → decoder → preprocessor → loader → CPU batches

Everything up to the loader happens in its workers, so a source is picklable.
Main trap: which images an epoch has, and in which order, may depend on the seed
alone, never on the loader, its workers or the variant.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit import contracts, machine, shared_memory
from labkit.clock import SleepingClock
from labkit.contracts import Sample
from labkit.parts.decoding import DECODERS
from labkit.parts.loading import LOADERS
from labkit.parts.packing import PACKINGS, Reader
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.parts.storage import ModelledReader, Storage, locate, prepare, prove
from labkit.settings import Settings
from labkit.tables import register

if TYPE_CHECKING:
    import torch


class Order:
    """The keys (epoch, image) of the current epoch: all images, shuffled by seed and epoch."""

    def __init__(self, image_ids: np.ndarray, seed: int) -> None:
        self.epoch = 0
        self.image_ids = image_ids  # (images,) int64
        self._seed = seed

    def __len__(self) -> int:
        return len(self.image_ids)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        shuffled = np.random.default_rng((self._seed, self.epoch)).permutation(self.image_ids)
        # The epoch travels with the key: persistent workers never see `self.epoch` change.
        return iter([(self.epoch, int(image_id)) for image_id in shuffled])


@dataclass(kw_only=True)
class Source:
    """Images by key, as the loaders take them; picklable, and opened anew in each worker."""

    reader: Reader
    storage: Storage
    settings: Settings
    order: Order
    own: bytes = b""
    """A person's own parts, for workers that are spawned."""

    def __len__(self) -> int:
        return len(self.order)

    @property
    def files(self) -> tuple[Path, ...]:
        """The image files of an epoch, sorted by image."""
        return tuple(self.reader.paths[i] for i in sorted(self.order.image_ids))

    def __getitem__(self, key: tuple[int, int]) -> dict[str, np.ndarray]:
        """Read, decode and preprocess one image.

        Args:
            key: (epoch, image index).

        Raises:
            ValueError: the image cannot be decoded; the message names the file.
        """
        epoch, image_id = key
        image_rgb, annotation = self.decode(image_id)
        sample = Sample(
            image_rgb=image_rgb,
            annotation=annotation,
            sample_id=image_id,
            epoch=epoch,
            seed=self.settings.seed,
        )
        return PREPROCESSORS[self.settings.preprocessor].per_sample(sample, self.settings.input_px)

    def decode(self, image_id: int) -> tuple[np.ndarray, contracts.Annotation]:
        """Read and decode one image.

        Raises:
            ValueError: it cannot be decoded; the message names the file.
        """
        jpeg, annotation = self.reader.read(image_id)
        try:
            return DECODERS[self.settings.decoder](jpeg), annotation
        except ValueError as error:
            raise ValueError(f"{self.reader.paths[image_id]}: {error}") from error

    def collate(self, samples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        """Stack equal shapes as torch does; join ragged entries and say how many each had.

        Returns:
            entry name -> tensor; for every `x_ragged` also `x_ragged_counts`, (B,) int64.
        """
        import torch

        batch = {}
        for name in samples[0]:
            arrays = [sample[name] for sample in samples]
            if name.endswith("_ragged"):
                batch[name] = torch.from_numpy(np.concatenate(arrays))
                batch[f"{name}_counts"] = torch.tensor([len(array) for array in arrays])
            else:
                batch[name] = torch.utils.data.default_collate(arrays)
        return batch

    def prepare_cache(self, cache: str) -> dict[str, object]:
        """Produce a cache state of the epoch's images and measure it; see `storage.prepare`."""
        if not isinstance(self.reader, ModelledReader):
            return prepare(self.files, cache)
        prepare(self.files, "warm")  # the model charges for the disk, so nothing else may
        return self.reader.prepare(cache, self.order.image_ids)

    def prove_cache(self, proof: dict[str, object]) -> dict[str, object]:
        """Complete the proof after the epochs; see `storage.prove`."""
        if not isinstance(self.reader, ModelledReader):
            return prove(self.files, proof)
        return self.reader.prove(self.order.image_ids, proof)

    def start_worker(self, worker_id: int) -> None:
        """Limit this process's threads by call: environment variables come too late."""
        import cv2

        shared_memory.note_worker()
        cv2.setNumThreads(self.settings.cv2_threads)

    def __setstate__(self, state: dict) -> None:
        register(state["own"])  # before a spawned worker looks anything up
        self.__dict__.update(state)


@functools.lru_cache(maxsize=8)
def open_reader(packing: str, directory: Path) -> Reader:
    """Open a data set once per process; the trial server's forks inherit it."""
    return PACKINGS[packing].open(directory)


def shuffled_images(settings: Settings) -> np.ndarray:
    """List all images in the order in which runs with this seed take them.

    Returns:
        (N,) int64 indices.
    """
    return np.random.default_rng(settings.seed).permutation(len(open_source(settings)))


def open_source(settings: Settings) -> Reader:
    """Open the data that settings name, where they say it lies.

    Raises:
        ValueError: it is not there, or is not a data set.
    """
    return open_reader(settings.packing, locate_data(settings).directory)


def locate_data(settings: Settings) -> Storage:
    """Find the place that settings name for the data.

    Raises:
        ValueError: there is no storage of that name.
        Skip: this machine does not have it.
    """
    return locate(settings.storage, Path(settings.data))


def choose_images(settings: Settings, excluded: frozenset[int] = frozenset()) -> np.ndarray:
    """Choose an epoch's images: the same for all variants with the same seed.

    Args:
        settings: `images` (None: all), `batch_size` and `seed` count.
        excluded: indices of unreadable images.

    Returns:
        (images,) int64 indices, a whole number of batches.

    Raises:
        ValueError: fewer images than one batch, or more wanted than there are.
    """
    shuffled = shuffled_images(settings)
    usable = shuffled[~np.isin(shuffled, list(excluded))]
    if len(usable) < settings.batch_size:
        raise ValueError(
            f"batch_size must be at most the number of readable images ({len(usable)}), "
            f"got {settings.batch_size}; use a smaller batch or more images"
        )
    wanted = settings.images or len(usable)
    if not settings.batch_size <= wanted <= len(usable):
        raise ValueError(
            f"images must be at least one batch ({settings.batch_size}) and at most the number of "
            f"readable images ({len(usable)}), got {wanted}; leave it unset to use what fits"
        )
    return usable[: wanted // settings.batch_size * settings.batch_size]


def open_loader(
    settings: Settings,
    *,
    excluded: frozenset[int] = frozenset(),
    own: bytes = b"",
) -> tuple[Source, object]:
    """Open the data and what assembles its batches.

    Args:
        settings: complete (`settings.complete`).
        excluded: indices of unreadable images.
        own: a person's own parts, for spawned loader workers; already registered here.

    Returns:
        The images by key, and an iterable of CPU batches.
    """
    order = Order(choose_images(settings, excluded), settings.seed)
    storage, reader = locate_data(settings), open_source(settings)
    if storage.disk is not None:
        reader = ModelledReader(
            reader,
            storage.disk,
            clock=SleepingClock(),  # it makes up for waking late
            start_method=settings.start_method,
            cache_bytes=machine.memory_bytes(),
        )
    source = Source(reader=reader, storage=storage, settings=settings, order=order, own=own)
    return source, LOADERS[settings.loader](source, settings)


def first_batch(settings: Settings, excluded: frozenset[int]) -> dict[str, np.ndarray]:
    """Build the first batch of epoch 0 on the CPU, as the step would see it.

    Returns:
        The finished batch's arrays; see `contracts.BATCHES`.

    Raises:
        ValueError: the decoder does not keep its contract.
    """
    alone = replace(settings, device="cpu", num_workers=0, images=settings.batch_size)
    source, loader = open_loader(alone, excluded=excluded)
    contracts.check_image(source.decode(source.order.image_ids[0])[0])
    batch = next(iter(loader))
    on_device = PREPROCESSORS[settings.preprocessor].on_device
    if on_device is not None:
        batch = on_device(batch, settings.input_px)
    return {name: tensor.numpy() for name, tensor in batch.items()}
