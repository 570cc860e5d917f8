"""Remedies: which apply, what each is predicted to gain, and what the bottleneck is.

One function for each remedy yields it where its precondition holds.  A precondition only says that
a change is possible; the simulation of the measured parts predicts what it gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from labkit import units
from labkit.analysis.statistics import DELTA
from labkit.diagnosis.predict import HostStep, Measured, Work

MOST_WORKERS = 16
MOST_PREFETCHED_BYTES = 2 << 30
RESET_S = 0.01  # start of an epoch with persistent workers, which only get a new order
LESS_OFTEN = 10
MOST = 5
# Gains closer to each other than this are equal: the easier change comes first.
EQUAL = 0.03
SMALLEST_SHARE = 0.01  # of preparing a batch; smaller stages are no remedy


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change, and what it is predicted to gain."""

    name: str
    bottleneck: str
    """What it removes."""
    predicted: float
    """Normalized time of an epoch: the time with it ÷ the time without."""
    reason: str
    change: str
    """What to write."""
    knobs: Mapping[str, object] = field(default_factory=dict)
    """Arguments of the DataLoader that apply it; empty where the user has to."""
    at_most: bool = False
    """Whether the prediction is a bound, as if the work took no time at all."""
    measured: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


def keep_workers(measured: Measured) -> Iterator[Remedy]:
    """Workers that start anew in every epoch could persist."""
    parts = measured.parts
    if not parts.workers or measured.persistent_workers:
        return
    yield Remedy(
        name="persistent workers",
        bottleneck="start-up",
        predicted=measured.predict(startup_s=min(parts.startup_s, RESET_S)),
        reason=f"starting workers takes {units.seconds(parts.startup_s)} of every epoch of "
        f"{units.count(parts.steps, 'step')}",
        change="DataLoader(…, persistent_workers=True)",
        knobs={"persistent_workers": True},
    )


def prefetch_more(measured: Measured) -> Iterator[Remedy]:
    """Late batches delay the loop where too few are prepared ahead."""
    parts = measured.parts
    if not parts.workers:
        return
    tried = {
        factor: measured.predict(prefetch_factor=factor)
        for factor in (parts.prefetch_factor * 2**k for k in range(1, 5))
        if factor * parts.workers * measured.batch_bytes <= MOST_PREFETCHED_BYTES
    }
    if not tried:
        return
    factor = _least_that_suffices(tried)
    ahead_bytes = factor * parts.workers * measured.batch_bytes
    slowest_s = max(work.wait_s + work.cpu_s for work in parts.works)
    mean_s = sum(work.wait_s + work.cpu_s for work in parts.works) / len(parts.works)
    yield Remedy(
        name="more prefetching",
        bottleneck="jitter",
        predicted=tried[factor],
        reason=f"a batch takes {units.seconds(mean_s)} to prepare, but some take "
        f"{units.seconds(slowest_s)}, and only {parts.prefetch_factor} per worker are ahead",
        change=f"DataLoader(…, prefetch_factor={factor}): "
        f"{units.count_bytes(ahead_bytes)} of batches in memory",
        knobs={"prefetch_factor": factor},
    )


def _least_that_suffices(tried: Mapping[int, float]) -> int:
    best = min(tried.values())
    return next(number for number, predicted in tried.items() if predicted <= best * (1 + DELTA))


def limit_threads(measured: Measured) -> Iterator[Remedy]:
    """Workers that start threads of their own may need more cores than there are."""
    parts = measured.parts
    if measured.limited is None:
        return
    wanted = parts.workers * measured.worker_threads
    works = tuple(Work(wait_s=w.wait_s, cpu_s=w.cpu_s * measured.limited) for w in parts.works)
    yield Remedy(
        name="limit threads",
        bottleneck="threads",
        predicted=measured.predict(works=works),
        reason=f"{parts.workers} workers × {measured.worker_threads:.2g} threads need "
        f"{wanted:.2g} cores of {parts.cores:g}; with one thread each the loader alone takes "
        f"{units.normalized(measured.limited)} of its time",
        change="worker_init_fn=lambda _: (cv2.setNumThreads(0), torch.set_num_threads(1))",
        knobs={"limit_threads": True},
    )


def more_workers(measured: Measured) -> Iterator[Remedy]:
    """More workers help where the loop waits for batches and cores are free, or not needed."""
    parts = measured.parts
    if not measured.is_data_loader:
        return
    counts = sorted({1, 2, 4, 8, 16, int(parts.cores), 2 * int(parts.cores)})
    tried = {
        count: measured.predict(workers=count)
        for count in counts
        if parts.workers < count <= MOST_WORKERS
        and count * parts.prefetch_factor * measured.batch_bytes <= MOST_PREFETCHED_BYTES
    }
    if not tried:
        return
    count = _least_that_suffices(tried)
    waits = sum(work.wait_s for work in parts.works)
    share = waits / (sum(work.cpu_s for work in parts.works) + waits or 1.0)
    if not parts.workers:
        why = "the training loop prepares batches itself, and the device is idle meanwhile"
    elif share > 0.5:
        why = f"preparing a batch is {units.percent(share)} waiting, which needs no core"
    else:
        why = f"{parts.workers} of {parts.cores:g} cores prepare batches, and the others are free"
    yield Remedy(
        name="more workers",
        bottleneck="workers",
        predicted=tried[count],
        reason=why,
        change=f"DataLoader(…, num_workers={count})",
        knobs={"num_workers": count},
    )


def pin_memory(measured: Measured) -> Iterator[Remedy]:
    """A copy from pinned memory neither blocks the host nor needs a second buffer."""
    parts = measured.parts
    if not measured.has_device or not parts.copy_blocks or measured.pinned_s is None:
        return
    yield Remedy(
        name="pin memory",
        bottleneck="transfer",
        predicted=measured.predict(copy_blocks=False, copy_s=measured.pinned_s),
        reason=f"a copy of {units.count_bytes(measured.batch_bytes)} takes "
        f"{units.seconds(parts.copy_s)}, in which host and device wait; from pinned memory "
        f"{units.seconds(measured.pinned_s)}, in which the host does not",
        change="DataLoader(…, pin_memory=True) and batch.to(device, non_blocking=True)",
    )


def send_less(measured: Measured) -> Iterator[Remedy]:
    """Pixels of one byte can be sent as such, and be converted to floats on the device."""
    parts = measured.parts
    if not measured.has_device or measured.float_share < 0.5:
        return
    kept = 1 - 0.75 * measured.float_share
    yield Remedy(
        name="smaller batches to send",
        bottleneck="transfer",
        predicted=measured.predict(copy_s=parts.copy_s * kept),
        reason=f"{units.percent(measured.float_share)} of a batch of "
        f"{units.count_bytes(measured.batch_bytes)} are floats, made from pixels of one byte",
        change="keep images uint8 in the dataset; on the device: x.float().div_(255)",
    )


def synchronize_less(measured: Measured) -> Iterator[Remedy]:
    """A host that waits for the device in every step launches the next step late."""
    host = measured.parts.host
    if not measured.has_device or not any(step.synchronizes for step in host):
        return
    yield Remedy(
        name="synchronize less often",
        bottleneck="synchronization",
        predicted=measured.predict(host=tuple(replace(step, synchronizes=False) for step in host)),
        reason="in every step the host waits until the device is done (.item(), .cpu(), print), "
        "and the device then waits for the host",
        change="read the loss every 50 steps; keep it on the device between: loss.detach()",
    )


# Kind of work -> what it is, the remedy's name, the share that stays, and what to write.
HOST_WORK = {
    "checkpoint": (
        "saving",
        "save less often",
        1 / LESS_OFTEN,
        f"save a tenth as often (every {LESS_OFTEN}th time), or in a thread from a copy",
    ),
    "reports": (
        "reporting",
        "report less often",
        1 / LESS_OFTEN,
        f"report a tenth as often (every {LESS_OFTEN}th time), or from a thread",
    ),
    "host work": (
        "Python in the step",
        "vectorize host work",
        0.0,
        "write the loop as operations on whole tensors, or do it every 50 steps",
    ),
}


def work_less_on_host(measured: Measured) -> Iterator[Remedy]:
    """Saving, reporting and Python loops in the step delay the launch of the next step."""
    parts = measured.parts
    mean_s = sum(work.cpu_s + work.wait_s for work in parts.host) / len(parts.host)
    for kind, (what, name, kept, change) in HOST_WORK.items():
        took_s = min(measured.host_kinds_s.get(kind, 0.0), mean_s)
        if not took_s:
            continue
        yield Remedy(
            name=name,
            bottleneck=kind,
            predicted=measured.predict(host=_less_of(parts.host, took_s * (1 - kept))),
            reason=f"{what} takes {units.seconds(took_s)} of the "
            f"{units.seconds(mean_s)} that a step takes on the host",
            change=change,
            at_most=not kept,
        )


def _less_of(host: tuple[HostStep, ...], less_s: float) -> tuple[HostStep, ...]:
    """Return steps with `less_s` less work on average, taken from the longest steps first.

    What is done now and then is in a few long steps; what is done always, in all of them.
    """
    excess_s = less_s * len(host)
    lengths = sorted((step.cpu_s + step.wait_s for step in host), reverse=True)
    # Find the common length to which the longest steps are cut.
    level_s, cut_s = lengths[0], 0.0
    for count, length_s in enumerate([*lengths[1:], 0.0], 1):
        if cut_s + count * (level_s - length_s) >= excess_s:
            level_s -= (excess_s - cut_s) / count
            break
        cut_s, level_s = cut_s + count * (level_s - length_s), length_s
    return tuple(_no_longer_than(step, level_s) for step in host)


def _no_longer_than(step: HostStep, level_s: float) -> HostStep:
    kept = min(1.0, level_s / (step.cpu_s + step.wait_s or 1.0))
    # A step that is mostly gone was a save or a report, which waited for the device itself.
    waits = step.synchronizes and kept > 0.5
    return replace(step, cpu_s=step.cpu_s * kept, wait_s=step.wait_s * kept, synchronizes=waits)


# Kind of stage -> what making it faster is called, and what to write.
STAGES = {
    "decode": (
        "faster decode",
        "a faster decoder (lab.DECODERS), images stored at the size that is trained on, or pixels",
    ),
    "transform": ("faster transform", "write it for whole arrays, on smaller images, or drop it"),
    "collate": ("faster collate", "torch.stack of ready tensors, and nothing else in collate_fn"),
}


def prepare_faster(measured: Measured) -> Iterator[Remedy]:
    """A stage that takes much of preparing a batch could take less."""
    total_s = sum(stage.cpu_s + stage.wait_s for stage in measured.stages)
    for kind, (name, change) in STAGES.items():
        of_kind = tuple(stage for stage in measured.stages if stage.kind == kind)
        for stage in of_kind if kind == "transform" else of_kind[:1]:
            several = (stage,) if kind == "transform" else of_kind
            took_s = sum(each.cpu_s + each.wait_s for each in several)
            if took_s < SMALLEST_SHARE * total_s:
                continue
            yield Remedy(
                name=name,
                bottleneck=kind,
                predicted=measured.predict(works=measured.works_without(*several)),
                reason=f"{stage.name} takes {units.seconds(took_s)} of the "
                f"{units.seconds(total_s)} that preparing a batch takes",
                change=f"{stage.name}: {change}",
                at_most=True,
            )


def send_simpler(measured: Measured) -> Iterator[Remedy]:
    """Objects other than tensors are pickled by the worker and unpickled by the loop."""
    parts = measured.parts
    sent_s = parts.send_s + parts.take_s
    if not parts.workers or not sent_s:
        return
    yield Remedy(
        name="cheaper serialization",
        bottleneck="serialization",
        predicted=measured.predict(send_s=0.0, take_s=0.0),
        reason=f"sending a batch from a worker takes {units.seconds(sent_s)} of pickling",
        change="return tensors (they go through shared memory), not lists, dicts or objects",
        at_most=True,
    )


def read_faster(measured: Measured) -> Iterator[Remedy]:
    """Files could lie on a faster medium, where the loader waits for the medium."""
    change = "copy the files to an SSD or tmpfs once, or pack them into one file"
    if measured.cold_s:
        yield Remedy(
            name="faster medium",
            bottleneck="storage",
            predicted=min(measured.warm_s / measured.cold_s, 1.0),
            reason=f"an epoch from the medium takes {units.seconds(measured.cold_s)}, from memory "
            f"{units.seconds(measured.warm_s)}",
            change=change,
            at_most=True,
        )
        return
    reads = tuple(stage for stage in measured.stages if stage.kind == "read")
    waits_s = sum(stage.wait_s for stage in reads)
    if not waits_s:
        return
    yield Remedy(
        name="faster medium",
        bottleneck="storage",
        predicted=measured.predict(works=measured.works_without(*reads, waits_only=True)),
        reason=f"reading waits {units.seconds(waits_s)} for a batch's files",
        change=change,
        at_most=True,
    )


# The easiest change first.
REMEDIES: tuple[Callable[[Measured], Iterator[Remedy]], ...] = (
    keep_workers,
    prefetch_more,
    limit_threads,
    more_workers,
    pin_memory,
    synchronize_less,
    work_less_on_host,
    send_less,
    send_simpler,
    prepare_faster,
    read_faster,
)

# What the easy ones remove, in the same order.
EASE = (
    *("start-up", "jitter", "threads", "workers", "transfer", "synchronization", "checkpoint"),
    *("reports", "host work"),
)


def propose(measured: Measured) -> tuple[Remedy, ...]:
    """Return at most five remedies, the largest gain first; of equals the easiest first.

    Each is predicted to save more than what counts as no practical difference.
    """
    found = [remedy for remedies in REMEDIES for remedy in remedies(measured)]
    worth = [remedy for remedy in found if remedy.predicted <= 1 - DELTA]
    ordered: list[Remedy] = []
    while worth:
        best = min(remedy.predicted for remedy in worth)
        first = next(remedy for remedy in worth if remedy.predicted <= best + EQUAL)
        worth.remove(first)
        ordered.append(first)
    return tuple(ordered[:MOST])


# An easy change is the answer if it saves this share of what the best easy change saves; work to
# rewrite, whose gain is a bound, is the answer only where easy changes save less than the second.
MOST_OF_IT, ENOUGH_OF_IT = 0.8, 0.4


def bottleneck_of(remedies: Sequence[Remedy]) -> str:
    """Return what to remove first, of at least one remedy."""
    easy = sorted(
        (remedy for remedy in remedies if not remedy.at_most),
        key=lambda remedy: EASE.index(remedy.bottleneck),
    )
    most = 1 - min(remedy.predicted for remedy in remedies)
    most_easy = 1 - min((remedy.predicted for remedy in easy), default=1.0)
    if most_easy < ENOUGH_OF_IT * most:
        return min(remedies, key=lambda remedy: remedy.predicted).bottleneck
    return next(r.bottleneck for r in easy if 1 - r.predicted >= MOST_OF_IT * most_easy)
