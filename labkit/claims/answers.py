"""Answers that are no normalized time: by phases, GPU-util, CPU use, or counted operations.

    rows of a run ─▶ ANSWERS[number] ─▶ Found: word, figures, the rows they rest on ─▶ claims

Main trap: phases are the host's time, so "forward and backward" holds the wait for the device only
where the loop waits for it.  What stood in, and whether a word may be spoken, `claims` adds.

Source: DOCUMENTS A, items 1 to 3, 5 and 23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from labkit import units
from labkit.analysis.statistics import UNSTABLE
from labkit.analysis.summary import Row, Summary
from labkit.experiments.training_loop import COMPUTING, LOADING
from labkit.experiments.tuning import EQUALLY_FAST
from labkit.settings import MIN_JUDGED_BLOCKS, MODES

# What GPU-util must differ by, as a share: NVML's periods and a loop's steps do not divide.
CLEARLY = 0.1


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run says of a claim."""

    figures: str
    rows: Sequence[Row]
    """What it rests on, the baseline first."""
    word: str = ""
    """agrees or differs; empty where there is nothing to agree with."""


Rows = Mapping[str, Row]


def reading_is_seen(rows: Rows, variant: str, settings: Mapping) -> Found:
    """Claim 1: is reading the largest part of the loop exactly where it was made the bottleneck?

    The parts are those of the call graph's first level, in the process that trains.
    """
    parts = _parts(rows[variant])
    largest = max(parts, key=parts.get)
    agrees = (largest == "waiting for batches") == (variant == LOADING)
    return Found(figures=_shares(parts), rows=_with_baseline(rows, variant), word=_agrees(agrees))


def phases_tell(rows: Rows, variant: str, settings: Mapping) -> Found:
    """Claim 2: in [002]'s phases, where the device's computing is the bottleneck."""
    parts = _parts(rows[variant])
    loading = parts.pop("waiting for batches") + parts.pop("transfer")
    phases = {"loading with transfer": loading, **parts}
    return Found(
        figures=_shares(phases),
        rows=_with_baseline(rows, variant),
        word=_agrees(loading < phases["forward and backward"]),
    )


def waiting_lowers_gpu_util(rows: Rows, variant: str, settings: Mapping) -> Found:
    """Claim 3: GPU-util where loading, and where computing is the bottleneck."""
    both = {name: rows[name] for name in (LOADING, COMPUTING) if name in rows}
    utils = {name: row.gpu_util for name, row in both.items()}
    if len(both) == 2 and None not in utils.values():
        agrees = utils[LOADING] < utils[COMPUTING] - CLEARLY
        said = [f"{units.percent(util)} {name}" for name, util in utils.items()]
        return Found(
            figures=f"GPU-util {', '.join(said)}", rows=tuple(both.values()), word=_agrees(agrees)
        )
    said = "not testable here: GPU-util is NVML's, of an NVIDIA GPU"
    busy = [
        f"{units.percent(row.emulated_busy_share)} {name}"
        for name, row in both.items()
        if row.emulated_busy_share is not None
    ]
    if busy:
        said += f"; the device computed for {', '.join(busy)} of the time"
    return Found(figures=said, rows=tuple(both.values()))


def cheapest_of_equals(rows: Rows, variant: str, settings: Mapping) -> Found:
    """Claim 5: waiting and CPU use beside the number of workers, and what [002]'s rule takes.

    What waits no more than 3 % of an epoch longer than the best counts as loading equally fast.
    """
    counts = {
        settings[name]["num_workers"]: row
        for name, row in rows.items()
        if None not in (row.wait_share, row.time_s, row.cpu_percent)
    }
    if len(counts) < 2:
        return Found(figures="not run: this run has no two numbers of workers", rows=())
    waits_s = {n: row.wait_share * row.time_s for n, row in counts.items()}
    least_s, whole_s = min(waits_s.values()), min(row.time_s for row in counts.values())
    equal = [n for n, wait_s in waits_s.items() if wait_s - least_s <= EQUALLY_FAST * whole_s]
    taken = min(equal, key=lambda n: (counts[n].cpu_percent, n))
    curve = [
        f"{n}: {units.seconds(waits_s[n])}, {counts[n].cpu_percent:.0f} %" for n in sorted(counts)
    ]
    return Found(
        figures=f"by this rule {units.count(taken, 'worker')}; workers, waiting, CPU: "
        + "; ".join(curve),
        rows=tuple(counts.values()),
    )


# Number of a claim -> what answers it, given rows by variant, the variant, all variants' settings.
ANSWERS: dict[int, Callable[[Rows, str, Mapping], Found]] = {
    1: reading_is_seen,
    2: phases_tell,
    3: waiting_lowers_gpu_util,
    5: cheapest_of_equals,
}


def beside_baselines(info: Mapping[str, object], summary: Summary, variant: str) -> str:
    """Answer a claim on a variant that is in many groups: count those in which it is faster.

    Args:
        info: what `run.json` holds.
        summary: what `summary.summarize` returns for it.
        variant: its name in the groups.
    """
    rows = [
        row
        for row in summary.rows
        if row.name == variant and row.ratios and not summary.is_baseline(row)
    ]
    if not rows and summary.rejected and not summary.n_blocks:
        return "not run: every block was rejected"
    if not rows:
        return f"not run: this run has no group with {variant} and another baseline"
    if summary.judged and not summary.stable:
        return f"{UNSTABLE}, no verdict"
    if not any(row.verdict for row in rows):
        less = sum(row.normalized_time < 1 for row in rows)
        why = f"{summary.mode} mode: no verdict"
        if MODES[info["mode"]].judged:
            why = f"{summary.n_blocks} complete blocks, a verdict needs {MIN_JUDGED_BLOCKS}"
        return f"{variant} took less time in {less} of {len(rows)} groups; {why}"
    faster = sum(row.verdict == "faster" for row in rows)
    slower = sum(row.verdict == "slower" for row in rows)
    # "Mostly" is more than half.
    word = {faster * 2 > len(rows): "agrees", slower * 2 > len(rows): "differs"}.get(
        True, "inconclusive"
    )
    return f"{word}: {variant} faster in {faster}, slower in {slower} of {len(rows)}"


def _parts(row: Row) -> dict[str, float]:
    """Divide the epochs among what the host did; the device's wait belongs to its computing."""
    epochs_s = [epoch_s for trial in row.epochs_s for epoch_s in trial]
    startup = row.startup_s * len(epochs_s) / sum(epochs_s)
    return {
        "waiting for batches": row.wait_share + startup,
        "transfer": row.transfer_share,
        "forward and backward": row.step_share + row.sync_share,
    }


def _shares(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {units.percent(share)}" for name, share in parts.items())


def _with_baseline(rows: Rows, variant: str) -> tuple[Row, ...]:
    return tuple(rows[name] for name in dict.fromkeys((next(iter(rows)), variant)))


def _agrees(agrees: bool) -> str:
    return "agrees" if agrees else "differs"
