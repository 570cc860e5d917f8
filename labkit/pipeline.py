"""Pipeline: settings → batches on a device, every part taken from its table.

    Source (reader, decoder, preprocessor) → loader → prefetcher → device → step

Main trap: where the preprocessor works on the device, the step has to finish the
batch first; the emulated device only charges for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labkit import contracts
from labkit.contracts import Clock, Device, DeviceBatch, Sample
from labkit.parts import devices
from labkit.parts.devices import DEVICES, PROFILES
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.preprocessing import PREPROCESSORS, device_bytes
from labkit.parts.storage import Storage
from labkit.parts.training import STEPS, Step
from labkit.settings import Settings
from labkit.source import Source, open_loader
from labkit.tables import check

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Everything a trial needs, opened."""

    settings: Settings
    source: Source
    loader: object
    device: Device
    step: Step
    storage: Storage

    def batches(self, loader: object, device: Device) -> Iterator[DeviceBatch]:
        """Start an epoch: iterate batches that are on the device.

        Args:
            loader: `self.loader`, or something that measures it.
            device: `self.device`, likewise.
        """
        prefetch = PREFETCHERS[self.settings.prefetcher]
        return prefetch(loader, device, pinned=self.settings.pin_memory)

    def forward(self, batch: DeviceBatch) -> object:
        """Finish the batch on the device where its preprocessor works there, then step."""
        settings = self.settings
        preprocessor = PREPROCESSORS[settings.preprocessor]
        if preprocessor.on_device is not None and settings.step != "nothing":
            if settings.step == "timed":
                self.device.process(
                    device_bytes(settings.preprocessor, settings.batch_size, settings.input_px)
                )
            else:
                batch = preprocessor.on_device(batch, settings.input_px)
        return self.step.forward(batch)

    def resident_batch(self) -> dict[str, torch.Tensor]:
        """Make a batch out of nothing, for warming up without touching the data."""
        settings = self.settings
        sample = Sample(
            image_rgb=np.full((480, 640, 3), 128, np.uint8),
            annotation=contracts.Annotation(
                boxes_xyxy=np.array([[100, 100, 300, 300]], np.float32),
                category_ids=np.array([1], np.int64),
            ),
            sample_id=0,
            epoch=0,
            seed=settings.seed,
        )
        per_sample = PREPROCESSORS[settings.preprocessor].per_sample
        arrays = per_sample(sample, settings.input_px)
        return self.source.collate([arrays] * settings.batch_size)


def build(
    settings: Settings,
    clock: Clock,
    *,
    excluded: frozenset[int] = frozenset(),
    compute_s_per_image: float | None = None,
    own: bytes = b"",
) -> Pipeline:
    """Open every part that the settings name.

    Args:
        settings: complete (`settings.complete`).
        clock: what the emulated device tells the time by.
        excluded: indices of unreadable images.
        compute_s_per_image: the matched profile's speed, from calibration.
        own: a person's own parts, for spawned loader workers; already registered here.

    Raises:
        ValueError: settings that cannot work.
        Skip: this machine lacks what they need.
    """
    check(settings)
    source, loader = open_loader(settings, excluded=excluded, own=own)
    profile = devices.with_compute(PROFILES[settings.profile], compute_s_per_image)
    device = DEVICES[settings.device](profile, clock)
    return Pipeline(
        settings=settings,
        source=source,
        loader=loader,
        device=device,
        step=STEPS[settings.step](settings, device),
        storage=source.storage,
    )
