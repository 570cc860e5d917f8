"""The CPU cores that a process may use, and what keeps it from using all of the machine's.

    machine's cores ─▶ CPU affinity ─▶ quota of control groups ─▶ ranks on this machine share them

Neither `os.cpu_count` nor the affinity knows the quota of a container.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.language import Text
from labkit.machine import procfs


@dataclass(frozen=True, kw_only=True)
class CoreLimits:
    """What limits the cores of a process."""

    machine: int = 1
    """Cores of the machine."""
    affinity: int = 1
    """Cores that the CPU affinity of this process allows, as taskset or a batch system set it."""
    quota: float | None = None
    """Cores that its control groups grant, as those of a container; None without a limit."""
    ranks: int = 1
    """Processes that train together on this machine."""
    affinity_of_ranks: int | None = None
    """Cores that the affinities of all of them allow; None: those of this one."""

    @property
    def cores(self) -> int:
        """Return how many cores this process may use, at least 1.

        A quota of one and a half cores counts as two.
        """
        return max(min(self.affinity, self.shared // self.ranks), 1)

    @property
    def shared(self) -> int:
        """Return how many cores all ranks of this machine may use together, at least 1.

        Ranks of which each has cores of its own share none, so that they are not divided again.
        """
        quota = math.inf if self.quota is None else max(math.ceil(self.quota), 1)
        return int(min(self.affinity_of_ranks or self.affinity, quota))

    def in_words(self) -> str:
        """Return how many cores that is, and why not all of the machine's; "" where it is all."""
        if self.cores >= self.machine:
            return ""
        reasons = []
        if self.ranks > 1 and self.shared // self.ranks < self.affinity:
            share = Text("{ranks} ranks share {shared}")
            reasons.append(share.format(ranks=self.ranks, shared=self.shared))
        if self.affinity < self.machine:
            reasons.append(
                Text("the CPU affinity (taskset, numactl, a batch system) leaves out the others")
            )
        if self.quota is not None and self.quota < (self.affinity_of_ranks or self.affinity):
            grants = Text("the control group, such as a container's, grants {quota:.3g}")
            reasons.append(grants.format(quota=self.quota))
        may = Text("this process may use {cores} of the machine's {machine} cores: {reasons}")
        return may.format(cores=self.cores, machine=self.machine, reasons=Text("; ").join(reasons))


def core_limits(ranks: int = 1) -> CoreLimits:
    """Return what limits the cores of this process.

    Args:
        ranks: processes that train together on this machine, all started by the same one.
    """
    quotas = [_cpu_quota(folder) for folder in procfs.cgroup_folders("cpu")]
    machine = os.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return CoreLimits(machine=machine, affinity=machine, ranks=ranks)
    allowed = os.sched_getaffinity(0)
    of_ranks = set(allowed)
    for pid in (procfs.processes_below(os.getppid()) or ()) if ranks > 1 else ():
        with suppress(OSError):  # it has ended
            of_ranks |= os.sched_getaffinity(pid)
    return CoreLimits(
        machine=machine,
        affinity=len(allowed),
        quota=min(filter(None, quotas), default=None),
        ranks=ranks,
        affinity_of_ranks=len(of_ranks),
    )


def _cpu_quota(folder: Path) -> float | None:
    """Return the cores that a control group grants; None without a limit."""
    quota: str | int | None
    period: str | int | None
    quota, _, period = procfs.text(folder / "cpu.max").strip().partition(" ")  # version 2
    if not quota:
        quota = procfs.number(folder / "cpu.cfs_quota_us")  # version 1; -1: no limit
        period = procfs.number(folder / "cpu.cfs_period_us")
    if quota in (None, "max", -1) or not period:
        return None
    return int(quota) / int(period)
