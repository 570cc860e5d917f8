"""Check that simulated hardware does what its label says.

    check_storages_and_links   simulated disks and networks deliver the rates of their labels
    check_simulated_gpu        the simulated GPU is always busy with a loader that costs nothing

A simulated disk takes seconds to prove its rates, so they are kept (`kept_checks`).  All else is
checked in every run.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit import units
from labkit.analysis.simulated import describe_rate
from labkit.contracts import Skip
from labkit.machine.clock import SystemClock, utc_now
from labkit.parts import storage
from labkit.parts.storage.disks import Rate
from labkit.parts.training.exchange import LINK, Link
from labkit.pipeline import build
from labkit.records import UNKNOWN, ProvedRates, StagedStorage
from labkit.resolve import find_gpu_speeds, resolve
from labkit.runs.active_run import ActiveRun
from labkit.runs.kept_checks import KeptCheck, find_kept, hash_sources, keep
from labkit.runs.launcher import TrialFailed, TrialKilled
from labkit.runs.ranks import Ranks
from labkit.runs.thresholds import (
    GPU_TRIES,
    MAX_RATE_ERROR_SHARE,
    MIN_FREE_LOADER_UTILIZATION,
    RATE_TRIES,
)
from labkit.runs.timing import time_epoch
from labkit.settings import Settings

# --- disks and networks ---------------------------------------------------------------------


def check_storages_and_links(run: ActiveRun) -> None:
    """Measure the rates of simulated disks and networks; drop the variants of those that fail."""
    storages = dict(run.info.storages)
    for name, facts in run.info.storages.items():
        labels = [label for label, settings in run.remaining.items() if settings.storage == name]
        if labels and run.parts(labels[0]).storage.hardware.is_simulated:
            storages[name] = replace(facts, **vars(_prove_disk(run, name, labels, facts)))
    sharing: dict[str, list[str]] = {}  # link -> the variants that use it
    for label, settings in run.remaining.items():
        if settings.ranks > 1 and LINK.fullmatch(settings.exchange):
            sharing.setdefault(f"{settings.exchange} between {settings.ranks} ranks", []).append(
                label
            )
    links = {
        name: _prove_rates(run, "check_link", name, labels) for name, labels in sharing.items()
    }
    run.save(storages=storages, links=links)


def _prove_disk(
    run: ActiveRun, name: str, labels: Sequence[str], facts: StagedStorage
) -> ProvedRates:
    """Return what a simulated disk delivers, as an earlier run or this one measured it."""
    settings, here = run.variants[labels[0]], run.info.provenance
    results = run.folder.parents[1]
    depends_on = {
        "check": "rates",
        "hardware": str(facts.hardware),
        "data": run.info.data.data_hash,
        "packing": settings.packing,
        "storage_format": settings.storage_format,
        "readers": settings.num_workers,
        "multiprocessing_context": settings.multiprocessing_context,
        "machine_id": here.machine_id,
        "cores": here.cores,
        "kernel": here.kernel,
        "python": here.python,
        "sources": hash_sources(storage),
        "max_rate_error_share": MAX_RATE_ERROR_SHARE,
    }
    is_data_known = run.info.data.data_hash != UNKNOWN  # else a check may be of other files
    if is_data_known and (kept := find_kept(results, depends_on)):
        return ProvedRates(rates=tuple(kept.result), rates_checked_utc=kept.checked_utc)
    proved = _prove_rates(run, "check_rates", name, labels)
    if proved.rates:
        rates, checked_utc = list(proved.rates), proved.rates_checked_utc
        keep(results, KeptCheck(depends_on=depends_on, result=rates, checked_utc=checked_utc))
    return proved


def _prove_rates(run: ActiveRun, job: str, name: str, labels: Sequence[str]) -> ProvedRates:
    """Return what was measured; without rates where its variants had to be dropped."""
    try:
        for _ in range(RATE_TRIES):
            rates = run.ask(job, settings=run.variants[labels[0]], excluded=run.info.excluded)
            off = [rate for rate in rates if rate["error_share"] > MAX_RATE_ERROR_SHARE]
            if not off:
                return ProvedRates(rates=tuple(rates), rates_checked_utc=utc_now())
    except TrialKilled:
        raise  # it says nothing of the hardware, and what is dropped here stays out for good
    except (Skip, TrialFailed) as reason:
        run.skip(labels, reason)
        return ProvedRates()
    run.skip(
        labels,
        f"{name} must deliver the rates it stands for within "
        f"{units.percent(MAX_RATE_ERROR_SHARE)}, got {'; '.join(map(describe_rate, off))}; "
        "close other programs and run again",
    )
    return ProvedRates()


def check_rates(
    settings: Settings, excluded: frozenset[int] = frozenset(), seconds: float = 1.0
) -> list[dict[str, Any]]:
    """Measure what a simulated disk delivers; call it in a process of its own.

    Args:
        settings: complete; the workers are the readers.
        excluded: indices of unreadable images.
        seconds: how long each pattern is measured.

    Returns:
        For each pattern (random, sequential, round trips, together): readers, unit (files, bytes,
        requests), requested_per_s (None: as fast as this machine reads), delivered_per_s and
        error_share; empty where nothing is simulated.

    Raises:
        Skip: it cannot be measured.
    """
    parts = resolve(settings)
    reader = parts.reader
    # The first ones: images that are not neighbours cannot be read in sequence.
    ids = [i for i in range(min(len(reader), 512)) if i not in excluded]
    readers = max(1, settings.num_workers)
    rates = parts.storage.measure(reader, ids, readers, settings.multiprocessing_context, seconds)
    return [rate.facts() for rate in rates]


def check_link(settings: Settings, excluded: frozenset[int] = frozenset()) -> list[dict[str, Any]]:
    """Measure what a simulated link between ranks delivers; as `check_rates`."""
    link, delivered = Link(settings), []

    def measure(ranks: Ranks) -> None:
        ranks.meet()
        delivered.append(link.measure())
        ranks.meet()

    with Ranks(settings, measure) as ranks:
        measure(ranks)
    rate = Rate(
        pattern="to the other ranks",
        unit="Mbit",
        readers=0,
        requested_per_s=link.bits_per_s / 1e6,
        delivered_per_s=delivered[0] / 1e6,
    )
    return [rate.facts()]


# --- the simulated GPU ----------------------------------------------------------------------


def check_simulated_gpu(run: ActiveRun, settings: Settings) -> dict[str, Any]:
    """Check that the simulated GPU itself does not slow a training loop down.

    With a loader that costs nothing, it must be busy for `MIN_FREE_LOADER_UTILIZATION` of the time
    in one of `GPU_TRIES` tries.

    Args:
        run: the active run.
        settings: the baseline's, complete, with `gpu_images_per_s` for a calibrated device.

    Returns:
        free_loader_au, the share of the time in which it computed, and free_loader_checked_utc.

    Raises:
        Skip: it does not reach `MIN_FREE_LOADER_UTILIZATION`.

    Source: EVIDENCE 2, Accelerator.
    """
    utilization = run.ask("free_loader_utilization", settings=settings)
    if utilization < MIN_FREE_LOADER_UTILIZATION:
        step_s = find_gpu_speeds(settings).compute_s_per_image * settings.batch_size
        raise Skip(
            f"the simulated GPU must reach {units.percent(MIN_FREE_LOADER_UTILIZATION)} "
            f"utilization with a free loader, got {units.percent(utilization)} in the best of "
            f"{GPU_TRIES} tries with steps of {units.seconds(step_s)}; close other programs, or "
            "make the steps longer by a larger batch_size, and run again"
        )
    return {"free_loader_au": utilization, "free_loader_checked_utc": utc_now()}


def free_loader_utilization(settings: Settings) -> float:
    """Measure the simulated GPU with a loader that costs nothing (EVIDENCE 2, Accelerator).

    Returns:
        GPU utilization, compute time over running time, in the best of the tries; what is
        missing from 1 is the simulation's own.
    """
    import torch

    clock = SystemClock()
    # Without what the simulated training loop costs on purpose: a loss in a Python loop, a host
    # that waits for the device before it launches the next step, or for a copy.
    settings = replace(settings, loss="vectorized", sync_every=0, pin_memory=True, ranks=1)
    pipeline = build(settings, clock)
    step_s = pipeline.parts.gpu_speeds.compute_s_per_image * settings.batch_size
    steps = max(1, round(0.3 / step_s))  # of a try of 0.3 s
    empty = {"sample_id": torch.zeros(settings.batch_size, dtype=torch.int64)}
    time_epoch(replace(pipeline, loader=[empty]), clock)  # imports, once in a process
    gc.collect()
    gc.disable()  # as in trials
    filled = replace(pipeline, loader=[empty] * steps)
    best = 0.0
    for _ in range(GPU_TRIES):
        epoch, *_ = time_epoch(filled, clock)
        best = max(best, epoch.compute_s / epoch.epoch_s)
        if best >= MIN_FREE_LOADER_UTILIZATION:
            break
    gc.enable()
    return best
