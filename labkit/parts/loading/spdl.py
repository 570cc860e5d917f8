"""SPDL: stages of threads that an event loop feeds, for labkit's samples or with its own decoder.

    keys ─▶ threads: source[key] ──────────────────▶ batches of samples ─▶ joined ─▶ training loop
    keys ─▶ threads: FFmpeg decodes, crops, scales ─▶ batches of frames ─▶ one array ─▶ the same

Samples keep the order of their keys.
Source: facebookresearch.github.io/spdl, "Building and Running Pipeline" and "Filter Graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.contracts import Skip, open_library
from labkit.parts.loading.source import RIVALS, Source, pin, threads_of
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


def load_with_spdl(source: Source, settings: Settings) -> Iterable[dict[str, torch.Tensor]]:
    """Load labkit's samples, joined by labkit's collate function.

    Args:
        source: the samples.
        settings: `num_workers` threads, `prefetch_factor` batches ahead for each.

    Raises:
        Skip: SPDL is missing or broken.
    """
    loader = SpdlLoader(settings, lambda: source.order, source.__getitem__, source.collate)
    return pin(loader, settings, threaded=True)


def load_with_spdls_decoder(
    source: Source, settings: Settings
) -> Iterable[dict[str, torch.Tensor]]:
    """Load files that FFmpeg decodes, crops, scales and mirrors.

    Args:
        source: the images.
        settings: as in `load_with_spdl`.

    Raises:
        Skip: SPDL is missing or broken, or finds no FFmpeg.
    """
    io, images = _open_io(), source.outside()
    side = images.input_px

    def positions() -> Iterator[tuple[int, list[int]]]:
        crops = images.crops(source)
        for i in images.positions(source, settings.batch_size).ravel().tolist():
            yield i, crops[i].tolist()

    def decode(position: tuple[int, list[int]]) -> tuple[int, Any]:
        i, (left, top, wide, high, flipped) = position
        filters = [
            f"crop={wide}:{high}:{left}:{top}:exact=1",
            f"scale={side}:{side}:flags=bilinear",
            "format=rgb24",
            *["hflip"] * flipped,
        ]
        try:
            packets = io.demux_image(images.files[i])
            return i, io.decode_packets(packets, filter_desc=",".join(filters))
        except Exception as error:  # of a file that is no image it tells nothing
            raise ValueError(
                f"image must be one that FFmpeg can decode, got {images.files[i]} ({error}); "
                "replace the file"
            ) from error

    def join(decoded: list[tuple[int, Any]]) -> dict[str, torch.Tensor]:
        import torch

        places, frames = zip(*decoded)
        at = np.array(places)
        pixels = io.to_torch(io.convert_frames(list(frames)))
        numbers = map(torch.from_numpy, (images.labels[at], images.ids[at]))
        return dict(zip(("pixels", "label", "sample_id"), (pixels, *numbers)))

    return pin(SpdlLoader(settings, positions, decode, join), settings, threaded=True)


class SpdlLoader:
    """Epochs of an SPDL pipeline.

    Args:
        settings: of the loader.
        start: returns an epoch's keys.
        make: a key -> a sample; runs in `num_workers` threads.
        join: a batch's samples -> the batch.
    """

    def __init__(
        self,
        settings: Settings,
        start: Callable[[], Iterable],
        make: Callable[[Any], Any],
        join: Callable[[list], dict[str, torch.Tensor]],
    ) -> None:
        self._pipeline = open_library("spdl.pipeline", RIVALS)
        self._settings, self._start, self._make, self._join = settings, start, make, join

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Start an epoch; its threads end with the iterator."""
        settings, threads = self._settings, threads_of(self._settings)
        errors: list[Exception] = []

        def make(key: Any) -> Any:
            try:
                return self._make(key)
            except Exception as error:
                errors.append(error)
                raise

        pipeline = (
            self._pipeline.PipelineBuilder()
            .add_source(self._start())
            .pipe(make, concurrency=threads, output_order="input")
            .aggregate(settings.batch_size, drop_last=True)
            .pipe(self._join)
            .add_sink(settings.prefetch_factor * threads)
            # One more joins batches.  SPDL leaves out samples that fail, unless it is told.
            .build(num_threads=threads + 1, max_failures=0)
        )
        try:
            with pipeline.auto_stop():
                yield from pipeline.get_iterator()
        except self._pipeline.PipelineFailure as failure:
            if not errors:
                raise
            raise errors[0] from failure


def _open_io() -> ModuleType:
    """Import SPDL's decoder, which loads FFmpeg's libraries only when it is used.

    Raises:
        Skip: SPDL is missing or broken, or finds no FFmpeg.
    """
    io = open_library("spdl.io", RIVALS)
    try:
        open_library("spdl.io.utils", RIVALS).get_ffmpeg_versions()
    except RuntimeError as error:
        raise Skip(
            "spdl.io finds no FFmpeg 4 to 9; install its shared libraries, libavfilter and "
            "libavdevice with all that they need"
        ) from error
    return io
