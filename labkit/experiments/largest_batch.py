"""Find the largest batch that trains in a GPU's memory, and compare fuller with emptier ones.

Equal work needs epochs that are whole numbers of every batch size, so the variants are 5, 9 and 10
tenths of the largest, and an epoch takes nine times the largest batch.

Source: [002] 3.1; disputed, as reserved memory is the allocator's cache (DOCUMENTS D11).
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.contracts import Skip
from labkit.machine import gpu
from labkit.resolve import complete_here
from labkit.runs.active_run import single_run_lock
from labkit.runs.experiment import Experiment
from labkit.runs.largest_batch import BATCH_SIZE_MULTIPLE, PeakBytes
from labkit.runs.launcher import Launcher
from labkit.settings import Settings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Largest:
    """The result of `largest_batch`; shown as a table."""

    settings: Settings
    """Complete settings with the largest batch."""
    tried: Mapping[int, PeakBytes | None]
    """Batch size -> peak bytes allocated and reserved; None: it did not fit."""
    total_bytes: int
    """Bytes of the GPU's memory."""
    images: int
    """Number of images in the data: no batch is larger."""

    def experiment(self) -> Experiment:
        """Return an experiment that compares 50 %, 90 % and 100 % of the largest batch.

        Raises:
            ValueError: the largest is below 10 images.
        """
        tenth, base = self.settings.batch_size // 10, self.settings
        if not tenth:
            raise ValueError(
                f"the largest batch must be at least 10 images, got {base.batch_size}; "
                "choose a smaller input_px"
            )
        sizes = {f"{10 * n} % of the largest": n * tenth for n in (5, 9, 10)}
        return Experiment(
            "batch_size_fill",
            question="Does a fuller GPU train faster?",
            variants={label: replace(base, batch_size=size) for label, size in sizes.items()},
            baseline=next(iter(sizes)),
            source="[002] 3.1: 90 % of the GPU's memory or more",
            notes=(
                "Batches: "
                + ", ".join(f"{label} {size}" for label, size in sizes.items())
                + " images.",
            ),
        )

    def table(self) -> pd.DataFrame:
        """Return the peak memory of every batch size that was tried; NaN: it does not fit."""
        import pandas as pd

        rows = {
            size: (*(peak_bytes or (None, None)), peak_bytes and peak_bytes[0] / self.total_bytes)
            for size, peak_bytes in self.tried.items()
        }
        columns = ["allocated_bytes", "reserved_bytes", "allocated_share"]
        table = pd.DataFrame.from_dict(rows, orient="index", columns=columns, dtype=float)
        return table.rename_axis("batch_size")

    def caption(self) -> str:
        """Return the largest batch in words."""
        size = self.settings.batch_size
        text = f"The largest batch that fits: {size} images."
        if size + BATCH_SIZE_MULTIPLE > self.images:
            text += f" There are only {self.images} images: no larger batch was tried."
        return text

    def __repr__(self) -> str:
        return f"{self.caption()}\n{self.table().to_string(float_format='{:,.2f}'.format)}"

    def _repr_html_(self) -> str:
        return (
            self.table()
            .style.format(precision=2, thousands=",")
            .set_caption(self.caption())
            .to_html()
        )


@single_run_lock()
def largest_batch(
    settings: Settings | None = None,
    *,
    cancel: threading.Event | None = None,
) -> Largest:
    """Find the largest batch, in multiples of 4, that trains in the memory of the CUDA device.

    Args:
        settings: what is to be trained; loader and storage settings have no effect.
        cancel: set by another thread to stop.

    Raises:
        Skip: there is no CUDA device that works here.
        ValueError: settings that cannot work, or not even the smallest batch fits.
        TrialFailed: training failed for another reason than memory.
    """
    if not gpu.cuda().works:
        raise Skip(f"largest_batch needs a CUDA device: {gpu.cuda().reason}")
    given = complete_here(replace(settings or Settings(), device="cuda"))
    # Nothing is read: the data says how many images there are.
    tried_on = replace(
        given,
        images=None, batch_size=BATCH_SIZE_MULTIPLE, storage="here", cache="as found",
        packing="folder", storage_format="jpeg", loader="torch", prefetcher="none",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        with Launcher(Path(folder) / "worker.log", cancel) as launcher:
            result = launcher.run("search_on_cuda", settings=tried_on)
    return describe(given, result)


def describe(settings: Settings, result: Mapping[str, Any]) -> Largest:
    """Make a `Largest` of the result of `search_on_cuda`.

    Raises:
        ValueError: nothing fits.
    """
    tried = {
        size: None if allocated is None else (allocated, reserved)
        for size, allocated, reserved in result["tried"]
    }
    largest = max((size for size, peak_bytes in tried.items() if peak_bytes), default=0)
    if not largest:
        raise ValueError(
            f"a batch of {BATCH_SIZE_MULTIPLE} must fit into the GPU's memory, got "
            f"{min(tried, default=0)} that does not, of {result['images']} images; "
            "choose a smaller input_px, or more images"
        )
    return Largest(
        settings=replace(settings, batch_size=largest),
        tried=tried,
        total_bytes=result["total_bytes"],
        images=result["images"],
    )
