"""Timelines: what device, cores, disk and host did, moment by moment, while a loop ran.

    thread, 10 Hz ─ GPU-Util, GPU memory (NVML), every core (psutil), bytes fetched from disks
    the loop ─ when it waited and computed; a simulated GPU ─ when it computed

At 10 samples a second only what the loop and the simulated GPU report shows what is shorter than
0.1 s.  Cores are the whole machine's, other programs included; bytes are those that this process
and its workers fetched from devices, without what the page cache held.

GPU-Util is the share of a sampling period (1/6 to 1 s) in which any kernel ran.  At 100 % one part
in 100 of the GPU may work (`gpu_util`), and a period longer than the waits averages them away.
Source: proc(5) for stat and io; docs.nvidia.com/deploy/nvml-api, nvmlUtilization_t.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.contracts import Skip
from labkit.diagnosis.gpu import find_device
from labkit.diagnosis.loaders import copied, epochs, is_data_loader
from labkit.machine.clock import SystemClock
from labkit.machine.gpu import Reading, cuda, open_gpu
from labkit.machine.usage import PERIOD_S, GpuWatch, Sampler, cores_s, tree_read_bytes
from labkit.parts.devices import SimulatedGpu

if TYPE_CHECKING:
    import pandas as pd

MATRIX = 4096  # rows and columns in `gpu_util`: large enough for every multiprocessor
IN_FLIGHT = 4  # launches between two waits, so that the queue stays short and never empty

Band = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What was recorded; seconds count from the start."""

    duration_s: float
    samples: pd.DataFrame
    """A row per sample, by its time: gpu_util (a share, as NVML reports it), gpu_memory_bytes (of
    the whole GPU), read_bytes_per_s (from devices, by this process and its descendants), and the
    busy share of every core that this process may use, as "core 0".  NaN: not measured.  Rates
    and shares are those since the sample before."""
    why_no_gpu: str = ""
    host: Mapping[str, tuple[Band, ...]] = field(default_factory=dict)
    """Start and end of everything that the loop marked, by name: "wait", "compute"."""
    device: tuple[Band, ...] | None = None
    """Start and end of the simulated GPU's computing; None where there is none."""
    device_label: str = ""
    """Such as "simulated GPU, 460 images/s"."""


class _Recorder:
    """Context that samples GPU, cores and disks; keeps everything, so it is for minutes.

    Args:
        now: tells the time.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._samples: list[dict[str, Any]] = []
        self._sampler = Sampler(self._sample, PERIOD_S)
        self._read_gpu: Callable[[], Reading] | None = None
        self.why_no_gpu = "torch used no GPU"

    def __enter__(self) -> _Recorder:
        self._sample()  # what counters are counted from
        self._sampler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.__exit__()
        self._sample()

    def table(self, start_s: float) -> pd.DataFrame:
        """Return what was sampled, as in `Timeline`."""
        import pandas as pd

        seen = pd.DataFrame(self._samples, dtype=float)
        # What an ended worker fetched is counted nowhere until its parent has waited for it.
        seen["fetched"] = seen["fetched"].cummax()
        spent = seen.diff()
        samples = pd.DataFrame({"gpu_util": seen["busy_percent"] / 100})
        samples["gpu_memory_bytes"] = seen["used_bytes"]
        samples["read_bytes_per_s"] = spent["fetched"] / spent["at_s"]
        for busy in seen.filter(like="busy core"):
            core = busy.removeprefix("busy ")
            samples[core] = (spent[busy] / spent[f"total {core}"]).clip(0, 1)
        return samples.set_index(seen["at_s"] - start_s).iloc[1:]

    def _sample(self) -> None:
        sample: dict[str, Any] = {"fetched": tree_read_bytes(), **self._ask_gpu()}
        for number, (busy_s, all_s) in cores_s().items():
            sample |= {f"busy core {number}": busy_s, f"total core {number}": all_s}
        self._samples.append(sample | {"at_s": self._now()})

    def _ask_gpu(self) -> Reading:
        torch = sys.modules.get("torch")
        # A training on the CPU gets no CUDA context.
        if self._read_gpu is None and torch is not None and torch.cuda.is_initialized():
            try:
                self._read_gpu = open_gpu()
            except Skip as reason:
                self.why_no_gpu = str(reason)
        seen = {} if self._read_gpu is None else self._read_gpu()
        return {name: seen.get(name) for name in ("busy_percent", "used_bytes")}


def record_timeline(
    loader: Iterable,
    step: Callable[[object], object],
    *,
    device: SimulatedGpu | None = None,
    seconds: float = 4.0,  # several of NVML's periods
) -> Timeline:
    """Run a loop for some seconds, epoch after epoch, and record a timeline of it.

    Args:
        loader: any iterable of batches; of a DataLoader a copy runs, whose workers end with it.
        step: called with every batch; may train a model, which should be one to throw away.
        device: a simulated GPU that the step uses.
        seconds: no step begins later.

    Returns:
        A timeline in which the host has "wait" (for a batch, or for an epoch's start or end) and
        "compute" (calls of the step).
    """
    now = (SystemClock() if device is None else device.clock).now
    start_s, waits, steps, ran = now(), [], [], []
    opened = copied(loader) if is_data_loader(loader) else nullcontext(loader)
    with ExitStack() as stack:
        if device is not None:
            device.on_run = lambda *band: ran.append(band)
            stack.callback(setattr, device, "on_run", None)
        own, recorder = stack.enter_context(opened), stack.enter_context(_Recorder(now))
        batches, end = epochs(lambda: iter(own)), object()
        while (asked_s := now()) < start_s + seconds:
            batch = next(batches, end)
            arrived_s = now()
            waits.append((asked_s, arrived_s))
            if batch is end:
                break
            step(batch)
            steps.append((arrived_s, now()))
        find_device(device).synchronize()  # what is queued belongs to the timeline

    def since_start(bands: Sequence[Band]) -> tuple[Band, ...]:
        return tuple((begun_s - start_s, end_s - start_s) for begun_s, end_s in bands)

    samples = recorder.table(start_s)
    return Timeline(
        duration_s=samples.index[-1],
        samples=samples,
        why_no_gpu=recorder.why_no_gpu,
        host={"wait": since_start(waits), "compute": since_start(steps)},
        device=None if device is None else since_start(ran),
        device_label="" if device is None else str(device.hardware),
    )


# --- what GPU-Util does not say ---------------------------------------------------------------


def gpu_util(seconds: float = 2.0) -> pd.DataFrame:
    """Read GPU-Util while one thread spins on the GPU, and while the whole GPU computes.

    Args:
        seconds: of each load; a second more lets NVML's average settle.

    Returns:
        A row per load, with GPU-Util as NVML reports it and the floating-point operations that were
        done; without a GPU, why it cannot be shown.
    """
    import pandas as pd

    try:
        if not cuda().works:
            raise Skip(cuda().reason)
        rows = _measure(seconds)
    except Skip as reason:
        rows = dict.fromkeys(("one thread spinning", "matrix products"), ("skipped", str(reason)))
    return pd.DataFrame.from_dict(rows, orient="index", columns=["GPU-Util (NVML)", "achieved"])


def _measure(seconds: float) -> dict[str, tuple[str, str]]:
    import torch

    a = torch.randn(MATRIX, MATRIX, device="cuda")
    out = torch.empty_like(a)
    loads: dict[str, tuple[Callable[[], object], int]] = {
        # 10 million cycles take about 6 ms, which is long compared with a launch.
        "one thread spinning": (lambda: torch.cuda._sleep(10_000_000), 0),
        "matrix products": (lambda: torch.mm(a, a, out=out), 2 * MATRIX**3),
    }
    rows = {}
    for name, (launch, operations) in loads.items():
        _keep_busy(launch, 1.0)  # NVML averages over up to 1 s
        with GpuWatch(1) as watch:
            launches, took_s = _keep_busy(launch, seconds)
        done_per_s = launches * operations / took_s
        rows[name] = (
            units.percent(watch.totals()["gpu_util_mean"]),
            f"{done_per_s / 1e12:.1f} TFLOP/s" if operations else "nothing computed",
        )
    return rows


def _keep_busy(launch: Callable[[], object], seconds: float) -> tuple[int, float]:
    """Launch repeatedly; return how often, and the seconds until all of it had run."""
    import torch

    torch.cuda.synchronize()
    launches, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < seconds:
        for _ in range(IN_FLIGHT):
            launch()
        launches += IN_FLIGHT
        torch.cuda.synchronize()
    return launches, time.perf_counter() - start_s
