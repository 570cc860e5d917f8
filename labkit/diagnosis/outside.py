"""Look at a training that runs already, from outside: is loading likely the limit?

    /proc/PID (the trainer) ──┐
    its loader's workers ─────┼─ 10 s ─▶ Sight ─▶ likely, unlikely or cannot tell
    NVML ─────────────────────┘

Nothing is attached to the training or changed in it.  The trainer is the process's main thread; it
sleeps while it waits for a batch, and also for other things.  So the answer is no more than likely.
Source: proc(5), stat and wchan; nvml.h (utilization rates, compute processes).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit import units
from labkit.diagnosis.thresholds import (
    GPU_BUSY_SHARE,
    NEVER_WAITING_SHARE,
    TRAINER_WAITING_SHARE,
    WORKERS_IDLE_SHARE,
    WORKERS_WORKING_SHARE,
)  # fmt: skip
from labkit.language import Text, shown
from labkit.machine.clock import Clock, SystemClock
from labkit.machine.usage import cores_s

State = Literal["running", "disk", "network", "asleep", "gone"]


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Shares of the time in which a training was looked at."""

    trainer: Counter[State]
    workers: Counter[State]
    """States of all workers, added up."""
    worker_count: int
    uses_gpu: bool
    """It has opened an NVIDIA GPU."""
    gpu: float | None
    """Utilization by NVML; None where NVML does not know of this process."""
    cores_busy: float | None
    ranks: int = 1
    below: tuple[int, ...] = ()
    """Processes that it started, other than workers."""

    def share(self, who: Literal["trainer", "workers"], *states: State) -> float:
        """Return the share of the time in some states; 0 where nothing was seen."""
        seen: Counter[State] = getattr(self, who)
        return sum(seen[state] for state in states) / (seen.total() or 1)


def watch_from_outside(pid: int) -> str:
    """Look at a process for ten seconds; return what was seen, and the answer.

    Raises:
        ValueError: there is no such process, or it may not be looked at.
    """
    if not Path("/proc/self/stat").exists():
        raise ValueError("--pid must be used on Linux, which tells what a process does")
    return "\n".join(map(shown, lines(_look(pid, SystemClock()))))


def lines(sight: Sight) -> list[Text]:
    """Return what was seen, and the answer."""
    answer, why = conclude(sight)
    conclusion = {
        "likely": Text("Loading is likely the limit: {why}."),
        "unlikely": Text("Loading is unlikely the limit: {why}."),
        "cannot tell": Text("Whether loading is the limit cannot be told from outside: {why}."),
    }[answer]
    return [*_seen(sight), conclusion.format(why=why)]


def conclude(sight: Sight) -> tuple[Literal["likely", "unlikely", "cannot tell"], str]:
    """Return whether loading is the limit, and what that rests on."""
    asleep = sight.share("trainer", "asleep", "network")
    working = sight.share("workers", "running", "disk", "network")
    sleeps = Text("the training process sleeps {share} of the time")
    sleeps = sleeps.format(share=units.percent(asleep))
    if sight.gpu is not None and sight.gpu >= GPU_BUSY_SHARE:
        busy = Text("the GPU computes {share} of the time").format(share=units.percent(sight.gpu))
        if sight.ranks > 1:
            busy += Text(", but NCCL does so, too, while it waits for other ranks")
            return "cannot tell", busy
        return "unlikely", busy
    if sight.share("trainer", "disk") >= TRAINER_WAITING_SHARE:
        waits = Text("the training process itself waits for a disk {share} of the time")
        return "likely", waits.format(share=units.percent(sight.share("trainer", "disk")))
    if not sight.worker_count:
        why = Text("it has no workers, so one process loads and computes")
        if asleep > 1 - NEVER_WAITING_SHARE and sight.below:
            why = Text("this process only waits; look at one that it started: {started}")
            why = why.format(started=", ".join(map(str, sight.below)))
        return "cannot tell", why
    if sight.uses_gpu and sight.gpu is None:
        return "cannot tell", Text("NVML does not say how much of the time its GPU computes")
    if asleep < NEVER_WAITING_SHARE:
        return "unlikely", sleeps + Text(" only")
    works = Text("its workers work or wait for storage {share} of the time")
    works = works.format(share=units.percent(working))
    both = Text(", and ").join([sleeps, works])
    if asleep >= TRAINER_WAITING_SHARE and working >= WORKERS_WORKING_SHARE:
        return "likely", both
    computes = sight.gpu is not None and sight.gpu >= 1 - asleep - TRAINER_WAITING_SHARE
    if working < WORKERS_IDLE_SHARE and computes:
        return "unlikely", works + Text(": they have nothing to do")
    return "cannot tell", both


def _seen(sight: Sight) -> list[Text]:
    def shares(who: Literal["trainer", "workers"]) -> Text:
        names: tuple[State, ...] = ("running", "disk", "network", "asleep")
        words = ("running", "waiting for a disk", "waiting for a network", "asleep")
        known = [(word, sight.share(who, name)) for word, name in zip(words, names)]
        part = Text("{state} {share}")
        parts = (part.format(state=w, share=units.percent(share)) for w, share in known if share)
        return Text(", ").join(parts)

    line = Text("{who}: {states}")
    seen = [line.format(who="Training process", states=shares("trainer"))]
    if sight.worker_count:
        workers = units.count(sight.worker_count, "worker")
        seen.append(line.format(who=workers, states=shares("workers")))
    gpu = Text("GPU: utilization unknown") if sight.uses_gpu else Text("GPU: none in use")
    if sight.gpu is not None:
        gpu = Text("GPU: utilization {share}").format(share=units.percent(sight.gpu))
    if sight.cores_busy is not None:
        gpu += Text("; cores busy {share}").format(share=units.percent(sight.cores_busy))
    return [*seen, gpu]


def _look(pid: int, clock: Clock) -> Sight:
    import psutil

    try:
        process = psutil.Process(pid)
        below = [each.pid for each in process.children()]
        environ = process.environ()
    except psutil.NoSuchProcess:
        raise ValueError(f"--pid must be a process that runs, got {pid}") from None
    except psutil.AccessDenied:
        user = process.username()
        raise ValueError(
            f"--pid must be a process of your own, got {pid} of {user}; run it as {user}"
        ) from None
    workers = [each for each in below if _name(each) == "pt_data_worker"]  # torch's name for them
    read_gpu = _open_gpu(pid)
    seen: Counter[State] = Counter()
    of_workers: Counter[State] = Counter()
    percents: list[int] = []
    before, until_s = _core_seconds(), clock.now() + 10.0
    while clock.now() < until_s and (state := state_of(pid)) != "gone":
        seen[state] += 1
        of_workers.update(state_of(worker) for worker in workers)
        if read_gpu is not None and (percent := read_gpu()) is not None:
            percents.append(percent)
        clock.sleep_until(clock.now() + 0.05)
    del of_workers["gone"]
    busy_s, all_s = (now - then for now, then in zip(_core_seconds(), before))
    return Sight(
        trainer=seen,
        workers=of_workers,
        worker_count=len(workers),
        uses_gpu=_uses_gpu(pid),
        gpu=sum(percents) / len(percents) / 100 if percents else None,
        cores_busy=busy_s / all_s if all_s else None,
        ranks=int(environ.get("WORLD_SIZE") or 1),
        below=tuple(each for each in below if each not in workers),
    )


def _core_seconds() -> list[float]:
    """Return seconds in which cores were busy, and all of their seconds."""
    return [sum(column) for column in zip(*cores_s().values())]


def _uses_gpu(pid: int) -> bool:
    with suppress(OSError):
        return any(
            os.path.realpath(each).startswith("/dev/nvidia")
            for each in Path(f"/proc/{pid}/fd").iterdir()
        )
    return False


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    return ""


def state_of(pid: int) -> State:
    """Return what the main thread of a process does now."""
    try:
        # The name, in brackets, may hold anything.
        letter = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        if letter == b"R":
            return "running"
        if letter == b"D":
            return "disk"
        if letter in (b"Z", b"X"):
            return "gone"
        where = Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8")
    except OSError:
        return "gone"
    # The kernel's functions that wait for a network or for a file system in user space.
    network = "wait_woken|sk_wait|tcp_|inet_|rpc_|nfs|cifs|smb|fuse|request_wait"
    return "network" if re.search(network, where) else "asleep"


def _open_gpu(pid: int) -> Callable[[], int | None] | None:
    """Return a function that reads the utilization of the GPU that a process uses."""
    import pynvml

    try:
        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        used = [
            gpu
            for gpu in gpus
            if any(each.pid == pid for each in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu))
        ]
    except pynvml.NVMLError:
        return None
    if not used:
        return None

    def read() -> int | None:
        with suppress(pynvml.NVMLError):
            return pynvml.nvmlDeviceGetUtilizationRates(used[0]).gpu
        return None

    return read
