"""NVIDIA DALI: a graph of C++ operators with threads of its own, on the CPU or partly on the GPU.

    positions ─▶ external source ─▶ read ─▶ decode ─▶ resize ─▶ finish ─▶ torch tensors
                                            └─ mixed ──────── on the GPU ────────┘

Batches are handed to torch without a copy: the dynamic executor does not write to memory that is
still referenced.  A pipeline is kept from one epoch to the next, as DALI's users do, and dropped
where the loop leaves an epoch early.  With CUDA, images are on the device when the loop gets them:
their transfer is part of loading, and loading takes GPU memory and time from training.

Source: docs.nvidia.com/deeplearning/dali, Pipeline, Pipeline.run, fn.io.file.read and
fn.decoders.image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.contracts import open_library
from labkit.parts.loading.source import RIVALS, Outside, Source, pin, threads_of
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


def load_with_dali(
    source: Source, settings: Settings, *, on_gpu: bool = True
) -> Iterable[dict[str, torch.Tensor]]:
    """Load files in the source's order.

    Args:
        source: the images.
        settings: `num_workers` threads, `prefetch_factor` batches ahead.
        on_gpu: decode, resize and normalize there.  The equal-work gate, which has the device cpu,
            compares a batch of the CPU's; a GPU's are compared by their means after the run.

    Raises:
        Skip: DALI is missing or broken, or the work is none that it can do.
    """
    images = source.outside()
    return pin(
        DaliLoader(source, settings, images, on_gpu=on_gpu and settings.device == "cuda"),
        settings,
        threaded=True,
    )


class DaliLoader:
    """Epochs of a DALI pipeline as torch tensors."""

    def __init__(
        self, source: Source, settings: Settings, images: Outside, *, on_gpu: bool
    ) -> None:
        self._source, self._settings = source, settings
        self._images, self._entry, self._on_gpu = images, images.entry, on_gpu
        self.idle = self._build()  # the pipeline, while no epoch runs

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Start an epoch, in a pipeline of its own where another still runs."""
        pipeline, paths = self.idle or self._build()
        self.idle = None
        paths.start(self._source, self._settings.batch_size)
        pipeline.reset()
        return self._batches(pipeline, paths)

    def _batches(self, pipeline: Any, paths: _Paths) -> Iterator[dict[str, torch.Tensor]]:
        import torch

        # On the stream that computes: otherwise an output counts as free when the host drops it,
        # and DALI writes the next one over what a queued step has still to read.
        # By position: what is named is an input of the pipeline.
        stream = [torch.cuda.current_stream()] if self._on_gpu else []
        while True:
            try:
                outputs = pipeline.run(*stream)
            except StopIteration:
                break
            tensors = [torch.from_dlpack(output.as_tensor()) for output in outputs]
            batch = dict(zip((self._entry, "label", "sample_id"), tensors))
            del outputs, tensors  # the loop alone decides how long a batch is kept
            yield batch
            del batch
        self.idle = pipeline, paths

    def _build(self) -> tuple[Any, _Paths]:
        import torch

        open_library("nvidia.dali.fn", RIVALS)
        dali = open_library("nvidia.dali", RIVALS)
        fn, types = dali.fn, dali.types
        images, settings, paths = self._images, self._settings, _Paths(self._images)
        pipeline = dali.Pipeline(
            batch_size=settings.batch_size,
            num_threads=threads_of(settings),
            device_id=torch.cuda.current_device() if self._on_gpu else None,
            prefetch_queue_depth=settings.prefetch_factor,
            exec_dynamic=True,
        )
        crop_dims = () if images.draw_crops is None else (1, 1, 0)  # left top, width height, flip
        with pipeline:
            path, label, sample_id, *crop = fn.external_source(
                source=paths,
                num_outputs=3 + len(crop_dims),
                batch=True,
                cycle="raise",
                dtype=[types.UINT8, types.INT64, types.INT64, *[types.INT32] * len(crop_dims)],
                ndim=[1, 0, 0, *crop_dims],
            )
            # Bytes read from mapped files are not counted as read.
            jpeg = fn.io.file.read(path, dont_use_mmap=True)
            decoding = {
                "device": "mixed" if self._on_gpu else "cpu",
                "output_type": types.RGB,
                "jpeg_fancy_upsampling": True,
                "adjust_orientation": False,  # as all decoders here
            }
            # Crops are decoded in part, and averaged where they shrink, as in DALI's own examples.
            if crop:
                left_top, width_height, flipped = crop
                in_pixels = {"normalized_anchor": False, "normalized_shape": False}
                pixels = fn.decoders.image_slice(
                    jpeg, left_top, width_height, axis_names="WH", **in_pixels, **decoding
                )
                how = {"interp_type": types.INTERP_TRIANGULAR}
            else:
                pixels = fn.decoders.image(jpeg, **decoding)
                how = {"interp_type": types.INTERP_LINEAR, "antialias": False}
            image = fn.resize(pixels, size=[images.input_px] * 2, **how)
            if crop:
                image = fn.flip(image, horizontal=flipped)
            if images.scale_rgb is not None:
                scale, shift = np.array(images.scale_rgb), np.array(images.shift_rgb)
                image = fn.crop_mirror_normalize(
                    image,
                    dtype=types.FLOAT,
                    output_layout="CHW",
                    mean=(-shift / scale).tolist(),
                    std=(1 / scale).tolist(),
                )
            pipeline.set_outputs(image, label, sample_id)
        pipeline.build()
        return pipeline, paths


class _Paths:
    """The source of the pipeline's next batch: paths, labels, ids, and crops if there are any."""

    def __init__(self, images: Outside) -> None:
        self._images = images
        self._paths = [np.frombuffer(file.encode(), np.uint8) for file in images.files]
        self._batches: Iterator[np.ndarray] = iter(())
        self._crops: np.ndarray | None = None

    def start(self, source: Source, batch_size: int) -> None:
        """Begin the source's epoch."""
        self._batches = iter(self._images.positions(source, batch_size))
        if self._images.draw_crops is not None:
            self._crops = self._images.crops(source).astype(np.int32)

    def __iter__(self) -> _Paths:
        return self

    def __next__(self) -> tuple[Any, ...]:
        at = next(self._batches)
        numbers = [self._images.labels[at], self._images.ids[at]]
        if self._crops is not None:
            crops = self._crops[at]
            parts = crops[:, :2], crops[:, 2:4], crops[:, 4]
            numbers += map(np.ascontiguousarray, parts)
        return [self._paths[i] for i in at], *numbers
