"""Savings: what a run's winner would save over a whole training, in days and money.

    run ─ seconds per image, first epoch and later ones ─▶ savings(epochs, images) ─▶ Savings
    bytes of the full data set against memory ─▶ does it fit: are later epochs warm, or cold too

The closing argument of [004], as a calculator.  Main trap: a run measures a subset, whose
second epoch comes from memory.  A full data set that memory cannot hold is read from the disk
in every epoch, so warm times are then not extrapolated; a medium in memory is out altogether.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from labkit import machine, media, operations_run, shared_memory
from labkit.claims import stand_ins
from labkit.parts.storage import IN_MEMORY
from labkit.results import Run, how_to_complete
from labkit.summary import Row, Summary, is_floor, summarize
from labkit.winner import winner

DAY_S, HOUR_S = 86_400, 3_600
# Assumed: programs, workers and batches take the rest, so the page cache never has it all.
CACHE_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One variant, extrapolated to the full data set."""

    variant: str
    normalized_time: float | None
    """As measured, on the run's own images."""
    verdict: str
    first_epoch_s: float | None = None
    later_epoch_s: float | None = None
    """Each epoch after the first; as the first where the data does not fit into memory."""
    total_s: float | None = None
    """All epochs; None where `reason` says why it cannot be told."""
    reason: str = ""
    not_counted: str = ""
    """What the total leaves out."""


@dataclass(frozen=True, kw_only=True)
class Savings:
    """What a run says of a whole training."""

    epochs: int
    images: int
    baseline: str
    winner: str
    """The run's winner among the variants that save anything; empty where there is none."""
    projections: tuple[Projection, ...]
    """The baseline first, then the other variants in the table's order."""
    data_bytes: float | None
    """Of the full data set, at the run's bytes per image; None: the run did not record them."""
    cache_bytes: float
    """What the page cache can hold."""
    tmpfs_bytes: float
    """What a file system in memory can hold."""
    gpu_hour: float | None
    """Price of an hour of the GPU, in any currency."""
    stand_ins: Mapping[str, str]
    """What was emulated, throttled or modelled in any variant -> details."""

    @property
    def fits_cache(self) -> bool | None:
        """Whether the page cache holds the full data set; None: unknown."""
        return None if self.data_bytes is None else self.data_bytes <= self.cache_bytes

    @property
    def fits_tmpfs(self) -> bool | None:
        """Whether a file system in memory holds the full data set; None: unknown."""
        return None if self.data_bytes is None else self.data_bytes <= self.tmpfs_bytes

    def projection(self, variant: str) -> Projection:
        """Look a variant up."""
        return next(p for p in self.projections if p.variant == variant)

    def saved_s(self, variant: str) -> float | None:
        """Seconds that a variant saves over all epochs, negative if it loses; None: unknown."""
        before_s = self.projection(self.baseline).total_s
        after_s = self.projection(variant).total_s
        return None if before_s is None or after_s is None else before_s - after_s

    def saved_money(self, variant: str) -> float | None:
        """The price of those hours; None where they or the price are unknown."""
        saved_s = self.saved_s(variant)
        unknown = self.gpu_hour is None or saved_s is None
        return None if unknown else self.gpu_hour * saved_s / HOUR_S


def savings(
    run: Run,
    *,
    epochs: int,
    images: int,
    gpu_hour: float | None = None,
    memory_bytes: int | None = None,
    shared_memory_bytes: int | None = None,
) -> Savings:
    """Extrapolate a run to a whole training.

    Args:
        run: of any experiment that measures epochs.
        epochs: of the whole training.
        images: of the full data set, per epoch.
        gpu_hour: price of an hour of the GPU, in any currency.
        memory_bytes: of the training machine; unset: of the one the run was made on.
        shared_memory_bytes: what its tmpfs can hold; unset: likewise.

    Raises:
        ValueError: an argument is out of range, or there is no complete block.
    """
    _check(run, epochs=epochs, images=images, gpu_hour=gpu_hour)
    summary = summarize(run.info, run.trials)
    if summary.rows[0].normalized_time is None:
        raise ValueError(
            f"run must hold a complete block of its baseline, got none in {run.folder.name}; "
            f"{how_to_complete(run)}"
        )
    recorded = run.info.get("provenance") or {}
    if memory_bytes is None:
        memory_bytes = recorded.get("memory_bytes") or machine.memory_bytes()
    if shared_memory_bytes is None:
        named = "tmpfs" in media.media()  # larger than /dev/shm, or nobody would mount it
        shared_memory_bytes = (not named and recorded.get("shm_bytes")) or _tmpfs_bytes()
    asked = Savings(
        epochs=epochs,
        images=images,
        baseline=summary.baseline,
        winner="",
        projections=(),
        data_bytes=_data_bytes(run, images),
        cache_bytes=CACHE_SHARE * memory_bytes,
        # A tmpfs may be given more room than there is memory: the rest is swapped.
        tmpfs_bytes=min(shared_memory_bytes, CACHE_SHARE * memory_bytes),
        gpu_hour=gpu_hour,
        stand_ins=stand_ins(summary.rows),
    )
    # All trials of a run have equally many images.
    measured = next(trial.epochs[0].images for trial in run.trials if trial.epochs)
    found = tuple(_project(row, run, summary, asked, images / measured) for row in summary.rows)
    return replace(asked, projections=found, winner=_winner(run, summary, found))


def _check(run: Run, *, epochs: int, images: int, gpu_hour: float | None) -> None:
    if not epochs >= 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}; [004] trains 100")
    if not images >= 1:
        raise ValueError(f"images must be at least 1, got {images}; COCO's training set has 118287")
    if gpu_hour is not None and not gpu_hour >= 0:
        raise ValueError(f"gpu_hour must be at least 0, got {gpu_hour}; leave it out for no price")
    if run.info.get("kind") == operations_run.NAME:
        raise ValueError("run must measure epochs, got one of operations; take a run of combined")


def _tmpfs_bytes() -> int:
    folder = media.media().get("tmpfs", shared_memory.FOLDER)
    return shutil.disk_usage(folder).total if folder.is_dir() else 0


def _data_bytes(run: Run, images: int) -> float | None:
    data = run.info.get("data") or {}
    if not data.get("bytes") or not data.get("images"):  # older runs have no bytes
        return None
    return data["bytes"] / data["images"] * images


def _project(row: Row, run: Run, summary: Summary, asked: Savings, scale: float) -> Projection:
    """Extrapolate one variant to the full data set, or say why not."""
    found = Projection(
        variant=row.variant, normalized_time=row.normalized_time, verdict=row.verdict
    )
    if row.normalized_time is None:
        return replace(found, reason=f"{row.status}: {row.reason}" if row.reason else row.status)
    settings, base = (run.info["variants"][name] for name in (row.variant, summary.baseline))
    in_memory = settings.get("storage") in IN_MEMORY
    cache, base_cache = (r.labels.get("cache", "unknown") for r in (row, summary.rows[0]))
    stays = asked.fits_tmpfs if in_memory else asked.fits_cache
    first_s = row.epoch1_s * scale
    later_s = first_s if stays is False else row.epoch2_s and row.epoch2_s * scale
    reason = not_counted = ""
    if is_floor(settings, base):
        reason = "it does only part of the work: a floor, not a remedy"
    elif stays is None:
        reason = "the run did not record the size of its data; run the experiment again"
    elif in_memory and not stays:
        reason = "the full data set does not fit into a file system in memory"
    elif in_memory:
        not_counted = "copying the data into memory before the first epoch"
    elif cache != base_cache and base.get("storage") not in IN_MEMORY:
        reason = f"its cache was {cache}, the baseline's {base_cache}: a state, not a remedy"
    elif not stays and cache != "cold":
        reason = (
            f"measured with cache {cache}, but a full data set that does not stay in memory is "
            "read from the disk in every epoch; run it with cache=cold"
        )
    elif cache != "cold":
        not_counted = f"reading the data from the disk once; the first epoch was {cache}"
    if not reason and later_s is None and asked.epochs > 1:
        reason = "its later epochs were not measured; run it with epochs=2"
    total_s = None if reason else first_s + (asked.epochs - 1) * (later_s or 0.0)
    return replace(
        found,
        first_epoch_s=first_s,
        later_epoch_s=later_s,
        total_s=total_s,
        reason=reason,
        not_counted="" if reason else not_counted,
    )


def _winner(run: Run, summary: Summary, projections: tuple[Projection, ...]) -> str:
    """Choose the winner among the variants that can be extrapolated and that save something."""
    baseline_s = projections[0].total_s
    saving = {
        p.variant
        for p in projections[1:]
        if None not in (p.total_s, baseline_s) and p.total_s < baseline_s
    }
    best = winner(run, summary, among=saving).variant
    return best if best in saving else ""


def rows(found: Savings) -> list[dict[str, object]]:
    """List every variant's numbers in seconds and the price's currency, for a table or JSON."""
    return [
        asdict(p)
        | {"saved_s": found.saved_s(p.variant), "saved_money": found.saved_money(p.variant)}
        for p in found.projections
    ]
