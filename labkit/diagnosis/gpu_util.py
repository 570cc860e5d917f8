"""GPU-Util: a tiny kernel that spins reads 100 %, and a meter that polls seldom hides the waits.

    one thread spins on one multiprocessor ─┐
    matrix products on all of them ─────────┴─▶ NVML's GPU-Util beside what was computed

    busy bands ─ polled every so often ─▶ the readings one would see

Main trap: GPU-Util is the share of a sampling period in which some kernel or other ran.  100 % may
be a GPU of which 1 part in 100 works, and a period longer than the waits averages them away.
Source: docs.nvidia.com/deploy/nvml-api, nvmlUtilization_t (a period of 1/6 to 1 s).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from labkit import units
from labkit.contracts import Skip
from labkit.machine.gpu import GpuWatch, cuda

if TYPE_CHECKING:
    from labkit.diagnosis.timeline import Band
    from labkit.report.frame import Frame

SECONDS = 2.0  # NVML averages over up to 1 s
SETTLE_S = 1.0  # until its average has forgotten what was before
SPIN_CYCLES = 10_000_000  # some 6 ms at a GPU's clock: long beside a launch
MATRIX = 4096  # large enough for every multiprocessor
IN_FLIGHT = 4  # launches between two waits, so that the queue stays short and never empty


def gpu_util(seconds: float = SECONDS) -> Frame:
    """Read GPU-Util while one thread spins, and while the whole GPU computes.

    Args:
        seconds: of each; a second more to let NVML's average settle.

    Returns:
        A row for each: GPU-Util as NVML reports it beside the floating-point operations that were
        done; without a GPU, why it cannot be shown.
    """
    from labkit.report.frame import Frame

    try:
        if not cuda().works:
            raise Skip(cuda().reason)
        rows = _measure(seconds)
    except Skip as reason:
        rows = dict.fromkeys(("one thread spinning", "matrix products"), ("skipped", str(reason)))
    frame = Frame.from_dict(rows, orient="index", columns=["GPU-Util (NVML)", "achieved"])
    frame.caption = (
        "What GPU-Util does not say",
        "share of NVML's sampling period in which some kernel ran, beside the work done",
    )
    return frame


def _measure(seconds: float) -> dict[str, tuple[str, str]]:
    import torch

    a = torch.randn(MATRIX, MATRIX, device="cuda")
    out = torch.empty_like(a)
    loads: dict[str, tuple[Callable[[], object], int]] = {
        "one thread spinning": (lambda: torch.cuda._sleep(SPIN_CYCLES), 0),
        "matrix products": (lambda: torch.mm(a, a, out=out), 2 * MATRIX**3),
    }
    rows = {}
    for name, (launch, operations) in loads.items():
        _keep_busy(launch, SETTLE_S)
        watch = GpuWatch(wanted=True)
        try:
            launches, took_s = _keep_busy(launch, seconds)
        finally:
            watch.stop()
        done_per_s = launches * operations / took_s
        rows[name] = (
            units.percent(watch.totals()["gpu_util_mean"]),
            f"{done_per_s / 1e12:.1f} TFLOP/s" if operations else "nothing computed",
        )
    return rows


def _keep_busy(launch: Callable[[], object], seconds: float) -> tuple[int, float]:
    """Launch again and again; give how often, and the seconds until all of it had run."""
    import torch

    torch.cuda.synchronize()
    launches, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < seconds:
        for _ in range(IN_FLIGHT):
            launch()
        launches += IN_FLIGHT
        torch.cuda.synchronize()
    return launches, time.perf_counter() - start_s


def polled(bands: Sequence[Band], duration_s: float, period_s: float) -> list[float]:
    """Give what a meter would read that averages over whole periods, as NVML's does.

    Args:
        bands: when the device was busy, in order and apart, as of `Timeline.device`.
        duration_s: until when; a last part of a period is left out.
        period_s: of the meter.

    Returns:
        The busy share of each period.

    Raises:
        ValueError: the period is not above 0.
    """
    if not period_s > 0:
        raise ValueError(f"period_s must be above 0, got {period_s:g}")
    # A duration of 0.3 s has three periods of 0.1 s, whatever floating-point numbers say.
    busy_s = [0.0] * int(duration_s / period_s + 1e-9)
    for start_s, end_s in bands:
        first, last = int(start_s / period_s), int(end_s / period_s)
        for i in range(first, min(last + 1, len(busy_s))):
            busy_s[i] += max(min(end_s, (i + 1) * period_s) - max(start_s, i * period_s), 0.0)
    return [min(each_s / period_s, 1.0) for each_s in busy_s]


def polled_table(
    bands: Sequence[Band], duration_s: float, periods_s: Sequence[float] = (0.01, 0.1, 1.0)
) -> Frame:
    """Show how a meter's period hides waits: the same bands, read at several periods.

    Args:
        bands: as of `polled`.
        duration_s: likewise.
        periods_s: of the meters; those longer than the duration have no reading.

    Returns:
        A row per period: readings, lowest, highest, and the share of them that are 0 %.
    """
    from labkit.report.frame import Frame

    rows = {}
    for period_s in periods_s:
        shares = polled(bands, duration_s, period_s)
        # A meter shows whole percents, as NVML does.
        zeros = sum(round(100 * share) == 0 for share in shares) / len(shares) if shares else None
        low, high = min(shares, default=None), max(shares, default=None)
        said = map(units.percent, (low, high, zeros))
        rows[units.seconds(period_s)] = (units.count(len(shares)), *said)
    columns = ["readings", "lowest", "highest", "readings of 0 %"]
    frame = Frame.from_dict(rows, orient="index", columns=columns)
    frame.index.name = "read every"
    return frame
