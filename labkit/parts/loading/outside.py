"""Outside: what rivals need that read, decode and preprocess by themselves, tf.data and DALI.

    source.outside() -> files, labels, numbers ─▶ another library's pipeline ─▶ CPU batches
    source.order ─────▶ positions in them, anew for every epoch

They get around labkit's reader, decoder and preprocessor; so they take only work that numbers
describe in full, and the equal-work gate compares what comes out.  Main trap: these libraries have
threads, and a fork with threads running may hang; so nothing here is imported before a loader is
opened, which happens in the trial's own process.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from labkit.parts.loading.pinning import PinningLoader
from labkit.parts.loading.source import Source
from labkit.settings import Settings
from labkit.trial import Skip

if TYPE_CHECKING:
    import torch

INSTALL = "pip install 'labkit[rivals]'"
LONGEST_REASON = 200  # characters of a library's own message; it has to stay one line


@dataclass(frozen=True, kw_only=True)
class Outside:
    """An epoch's images for a pipeline that does everything by itself."""

    ids: np.ndarray
    """(N,) int64 image indices, ascending."""
    files: tuple[str, ...]
    """The file of each; in a pack the files that hold them."""
    names: tuple[str, ...]
    """The name of each, as packs keep it."""
    labels: np.ndarray
    """(N,) int64."""
    scale_rgb: tuple[float, float, float]
    shift_rgb: tuple[float, float, float]
    input_px: int

    def positions(self, source: Source, batch_size: int) -> np.ndarray:
        """Give the epoch's images as places in these lists, in the source's order.

        Returns:
            (B, batch_size) int64; what does not fill a batch is left out.
        """
        ids = np.array([image_id for _, image_id in source.order], np.int64)
        ids = ids[: len(ids) // batch_size * batch_size]
        return np.searchsorted(self.ids, ids).reshape(-1, batch_size)


def threads_of(settings: Settings) -> int:
    """Give a rival as many threads as torch's loader has workers; none has no threads at all."""
    return max(1, settings.num_workers)


def open_library(module: str, package: str, needs: Sequence[str]) -> ModuleType:
    """Import a rival's library.

    Args:
        module: what to import.
        package: what people call it.
        needs: names in it that the loader uses, as "data.Dataset".

    Raises:
        Skip: it is missing, or it is installed and broken; one line says which.
    """
    try:
        library = importlib.import_module(module)
        for name in needs:
            operator.attrgetter(name)(library)
    except Exception as error:  # a broken library may raise whatever it likes
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise Skip(f"{package} is not installed; {INSTALL}") from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
        raise Skip(
            f"{package} is installed and broken ({reason}); install it anew: {INSTALL}"
        ) from error
    return library


def pin(
    loader: Iterable[dict[str, torch.Tensor]], settings: Settings, *, threaded: bool
) -> Iterable[dict[str, torch.Tensor]]:
    """Pin batches, where settings say so, as torch's loader does with its own.

    Args:
        loader: what delivers the batches.
        settings: `pin_memory` and `device` count.
        threaded: beside the loop; False where nothing may be loaded ahead.
    """
    if not settings.pin_memory or settings.device == "cpu":
        return loader
    return PinningLoader(loader, threaded=threaded, page_locked=settings.device == "cuda")
