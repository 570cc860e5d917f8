"""Assembling: the pipeline's parts out of what was collected, and a simulation that fits them.

Main trap: no arm sees one part alone.  Two workers on two cores each go slower than one did, so
how much slower is set by what the loader alone took; the simulation is then asked for what
changes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from labkit.diagnosis import batches, knobs
from labkit.diagnosis.arms import Stretch
from labkit.diagnosis.collect import Collected, length, worker_threads
from labkit.diagnosis.measured import Knobs, Measured, Stage
from labkit.diagnosis.model import HostStep, Parts, Work, simulate
from labkit.diagnosis.stage_summary import SERIALIZATION
from labkit.machine import hardware


def mean(values: Iterable[float]) -> float:
    """Average what may be nothing; 0 then."""
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def parts_of(found: Collected) -> Parts:
    """Put the parts together that the simulation needs.

    Args:
        found: with stretches of every arm.
    """
    loop = found.loop
    loader, resident, warm = loop.loader, found.of("resident"), found.of("warm")
    is_torch = knobs.is_data_loader(loader)
    workers = loader.num_workers if is_torch else 0
    works = _works(found)
    readings = [stretch.readings for stretch in resident]
    copy_s, how = _copying(found)
    sent = found.stages.sent if found.stages else ()
    host = _host(resident, loop.device.has_queue)
    device_s = mean(each.device_s for each in readings)
    # In a step that waits for its end, what is neither device nor copy comes after that wait.
    host_s = mean(work.wait_s + work.cpu_s for work in host)
    apart_s = mean(s.step_s for s in resident) - device_s - copy_s
    waits = mean(step.synchronizes for step in host) > 0.5
    later = min(max(apart_s / host_s, 0.0), 1.0) if waits and host_s else 0.0
    parts = Parts(
        works=works,
        workers=workers,
        prefetch_factor=(loader.prefetch_factor or 2) if is_torch else 2,
        send_s=_median(one.pickle_cpu_s for one in sent),
        take_s=_median(one.unpickle_cpu_s for one in sent),
        copy_s=copy_s,
        copy_blocks=how == "blocks",
        copy_beside=how == "beside",
        host=host,
        after_sync=later,
        device_s=device_s,
        steps=length(loader) or max(len(stretch.steps) for stretch in warm),
        cores=float(hardware.cores()),
    )
    parts = _calibrated(parts, found)
    # Workers that are kept are not started; what they had in hand when an arm broke off takes
    # time at the next one's start, which no whole epoch has.
    if not workers or loader.persistent_workers:
        return parts
    first_s = mean(stretch.startup_s for stretch in warm)
    return replace(parts, startup_s=max(first_s - simulate(parts).first_s, 0.0))


def _works(found: Collected) -> tuple[Work, ...]:
    """Say what batches take: from inside a worker, or what the loader alone took."""
    if found.stages is None or not found.stages.batches:
        alone = (step for stretch in found.of("alone") for step in stretch.steps)
        return tuple(Work(wait_s=0.0, cpu_s=step.wait_s) for step in alone)
    works = []
    for one in found.stages.batches:
        cpu_s = one.fetch_cpu_s + one.collate_cpu_s
        caller_s = one.fetch_thread_cpu_s + one.collate_cpu_s
        threads = max(1.0, cpu_s / caller_s) if caller_s else 1.0
        wait_s = max(one.fetch_s + one.collate_s - cpu_s / threads, 0.0)
        works.append(Work(wait_s=wait_s, cpu_s=cpu_s, threads=threads))
    return tuple(works)


def _median(values: Iterable[float]) -> float:
    """Give the middle of what may be nothing; 0 then."""
    values = list(values)
    return statistics.median(values) if values else 0.0


def _stages(found: Collected) -> tuple[Stage, ...]:
    """Give the stages of making a batch; sending it is none of them here."""
    return tuple(
        Stage(
            name=stage.functions[0] if stage.functions else stage.name,
            kind=stage.kind,
            cpu_s=stage.batch_cpu_s,
            wait_s=stage.waiting_s,
        )
        for stage in (found.stages.stages if found.stages else ())
        if stage.kind != SERIALIZATION
    )


def _host(resident: Sequence[Stretch], has_queue: bool) -> tuple[HostStep, ...]:
    """Say what steps take on the host, without what they wait for the device."""
    works = []
    for stretch in resident:
        own_s = mean(step.cpu_s for step in stretch.steps)
        # Where the host computes, its library's threads do, too.
        threads = 1.0 if has_queue or not own_s else max(1.0, stretch.cpu_s / own_s)
        for step in stretch.steps:
            busy_s = step.cpu_s + step.device_wait_s + step.queued_s
            idle_s = max(step.step_s - busy_s, 0.0)
            works.append(
                HostStep(
                    wait_s=idle_s,
                    cpu_s=step.cpu_s * threads,
                    threads=threads,
                    synchronizes=has_queue and step.syncs > 0,
                )
            )
    return tuple(works)


def _copying(found: Collected) -> tuple[float, str]:
    """Say how long a copy takes, and whether it blocks the host or goes beside the computing."""
    device = found.loop.device
    if not device.has_queue or found.pageable_s is None:
        return 0.0, ""
    if found.resident_on_device is not None:  # CUDA: what the step takes less without copying
        saved_s = mean(s.step_s for s in found.of("resident")) - found.resident_on_device.step_s
        pinned = all(t.is_pinned() for t in batches.arrays(found.loop.resident[0]))
        return max(saved_s, 0.0), "" if pinned else "blocks"
    readings = found.of("resident")[-1].readings
    if readings.copy_wait_s > 0.5 * found.pinned_s:
        return found.pageable_s, "blocks"
    return found.pinned_s, "beside" if readings.side_stream else ""


def _calibrated(parts: Parts, found: Collected) -> Parts:
    """Let the simulated loader alone take what the real one took."""
    alone = found.of("alone")
    if not alone:
        return parts
    nothing = {"host": (HostStep(wait_s=0.0, cpu_s=0.0),), "device_s": 0.0, "copy_s": 0.0}
    nothing |= {"startup_s": 0.0, "steps": 200}
    if parts.workers < parts.cores and found.alone_full is not None:
        full = replace(parts, **nothing, workers=int(parts.cores))
        parts = replace(parts, share_when_full=_share(full, found.alone_full.step_s))
    if parts.workers > 1:
        bare = replace(parts, **nothing)
        return replace(parts, share_when_full=_share(bare, mean(s.step_s for s in alone)))
    took_s = simulate(replace(parts, **nothing)).epoch_s / nothing["steps"]
    wanted_s = mean(s.step_s for s in alone)
    waits_s = mean(work.wait_s for work in parts.works)
    cpu_s = took_s - waits_s
    scale = max(wanted_s - waits_s, 0.1 * cpu_s) / cpu_s if cpu_s > 0 else 1.0
    return replace(parts, works=tuple(replace(w, cpu_s=w.cpu_s * scale) for w in parts.works))


def _share(parts: Parts, wanted_s: float) -> float:
    """Find how much of a core each worker gets when all work, so that a step takes as long."""
    low, high = 0.2, 1.3
    for _ in range(12):
        middle = (low + high) / 2
        took_s = simulate(replace(parts, share_when_full=middle)).epoch_s / parts.steps
        low, high = (middle, high) if took_s > wanted_s else (low, middle)
    return (low + high) / 2


def _kinds_s(found: Collected) -> dict[str, float]:
    """Say how long each kind of the step's work takes in a step."""
    step_s = mean(stretch.step_s for stretch in found.of("resident"))
    return {kind: share * step_s for kind, share in found.host_kinds.items()}


def _cold_s(found: Collected, steps: int) -> float | None:
    """Give what cold epochs take, if they take longer than warm ones in every such block."""
    pairs = [
        (cold.of_epoch(steps), warm.of_epoch(steps))
        for cold, warm in zip(found.of("cold"), found.of("warm"))
    ]
    if not pairs or any(cold_s <= warm_s for cold_s, warm_s in pairs):
        return None
    return mean(cold_s for cold_s, _ in pairs)


def measured_of(found: Collected) -> Measured:
    """Put everything together that remedies are judged by."""
    loop = found.loop
    parts, loader = parts_of(found), loop.loader
    warm, alone = found.of("warm"), found.of("alone")
    floats = sum(
        array.nbytes
        for array in batches.arrays(loop.resident[0])
        if str(array.dtype).removeprefix("torch.") in ("float32", "float64")
    )
    return Measured(
        parts=parts,
        stages=_stages(found),
        warm_s=mean(s.of_epoch(parts.steps) for s in warm),
        cold_s=_cold_s(found, parts.steps),
        knobs=Knobs(
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor or knobs.DEFAULT_PREFETCH_FACTOR,
            persistent_workers=loader.persistent_workers,
            pin_memory=loader.pin_memory,
        )
        if knobs.is_data_loader(loader)
        else None,
        batch_bytes=loop.batch_bytes,
        float_share=floats / loop.batch_bytes if loop.batch_bytes else 0.0,
        pinned_s=found.pinned_s,
        limited_s=found.limited.step_s if found.limited else None,
        alone_s=mean(s.step_s for s in alone) if alone else None,
        worker_threads=worker_threads(found.stages),
        host_kinds_s=_kinds_s(found),
        has_device=loop.device.has_queue,
    )
