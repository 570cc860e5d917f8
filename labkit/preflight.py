"""Preflight: before anything is timed, every variant must do the same work.

One batch of each variant is built on the CPU and compared with the baseline's:
same images, shapes, dtypes, channel order, pixels within the named tolerance,
normalized once.  Unreadable images are found once, for all variants alike.
Main trap: a variant that fails here must become a row with its reason, never a
fast bar in the chart.
"""

from __future__ import annotations

import numpy as np

from labkit.contracts import BATCHES, check_batch, difference, tolerance_levels
from labkit.jpeg import read_size_px
from labkit.parts.decoding import SCALED
from labkit.parts.loading import OWN_ORDER
from labkit.parts.packing import PIXELS, RESIZED
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.room import check_room, why_no_room
from labkit.settings import Settings
from labkit.source import first_batch
from labkit.stored import open_source
from labkit.tables import check
from labkit.trial import Skip


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
    # The baseline first: what it delivers is what the others must.
    for label in sorted(variants, key=lambda label: label != baseline):
        settings = variants[label]
        try:
            check(settings)
            check_room(settings)
            batch = first_batch(settings, excluded)
            specs = BATCHES[PREPROCESSORS[settings.preprocessor].batch](
                settings.batch_size, settings.input_px
            )
            check_batch(batch, specs)
            if reference is None:
                reference = batch
            elif set(reference) != set(batch):
                raise ValueError(
                    f"batch must have the baseline's entries {', '.join(sorted(reference))}, "
                    f"got {', '.join(sorted(batch))}"
                )
            elif settings.batch_size == variants[baseline].batch_size:
                # This one batch is the whole epoch, so whoever has an order of its own has the same
                # images in it.
                own_order = {settings.loader, variants[baseline].loader} & OWN_ORDER
                apart = difference(
                    _by_id(batch) if own_order else batch,
                    _by_id(reference) if own_order else reference,
                    specs,
                    levels=tolerance_levels(
                        decoders_differ=settings.decoder != variants[baseline].decoder,
                        scaled=_scaled(settings) != _scaled(variants[baseline]),
                        decoded_scaled=(settings.decoder in SCALED)
                        != (variants[baseline].decoder in SCALED),
                    ),
                )
                if apart:
                    raise ValueError(f"not the same work as {baseline}: {apart}")
        except Skip as reason:
            verdicts[label] = ("skipped", str(reason))
        except ImportError as error:
            verdicts[label] = ("skipped", str(error))
        except Exception as error:  # any failure of a part is shown as its row
            reason = why_no_room(error, settings) or f"{type(error).__name__}: {error}"
            verdicts[label] = ("failed", reason)
        else:
            verdicts[label] = ("ok", "")
    return verdicts


def _by_id(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.argsort(batch["sample_id"])
    return {name: array[order] for name, array in batch.items()}


def _scaled(settings: Settings) -> str:
    """Name how the stored pixels differ from the originals; a finished sample's do not."""
    return settings.stored if settings.stored in (RESIZED, PIXELS) else ""


def find_bad_images(settings: Settings, indices: list[int]) -> tuple[dict[int, str], list[str]]:
    """Look for images that cannot be read whole, and for data that changed.

    Args:
        settings: complete; only the data's place and packing count.
        indices: which images to look at.

    Returns:
        index -> one line naming the file and what is wrong with it; and a line for each
        other file that is no longer what the data's manifest says.
    """
    reader = open_source(settings)
    bad: dict[int, str] = {}
    for index in indices:
        try:
            jpeg, _ = reader.read(index)
        except (OSError, ValueError) as error:
            bad[index] = str(error)
            continue
        if not isinstance(jpeg, bytes):
            continue
        try:
            read_size_px(jpeg)
        except ValueError as error:
            bad[index] = f"{reader.where(index)}: {error}"
    return bad, reader.verify([index for index in indices if index not in bad])
