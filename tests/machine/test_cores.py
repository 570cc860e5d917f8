"""Cores that a process may use, on made-up machines."""

import os

import pytest

from labkit.language import shown
from labkit.machine import procfs
from labkit.machine.cores import CoreLimits, core_limits

AFFINITY = "the CPU affinity (taskset, numactl, a batch system) leaves out the others"
QUOTA = "the control group, such as a container's, grants "
CASES = {
    "the whole machine": ({"affinity": 16}, 16, ""),
    "taskset": ({"affinity": 2}, 2, AFFINITY),
    "a container": ({"affinity": 16, "quota": 1.5}, 2, QUOTA + "1.5"),
    "both": ({"affinity": 4, "quota": 2.0}, 2, f"{AFFINITY}; {QUOTA}2"),
    "a quota that is larger than what the affinity allows": (
        {"affinity": 2, "quota": 8.0},
        2,
        AFFINITY,
    ),
    "less than a core": ({"affinity": 16, "quota": 0.5}, 1, QUOTA + "0.5"),
    "ranks": ({"affinity": 16, "ranks": 4}, 4, "4 ranks share 16"),
    "ranks with cores of their own": (
        {"affinity": 4, "ranks": 4, "affinity_of_ranks": 16},
        4,
        AFFINITY,
    ),
    "eight ranks on two NUMA nodes": (
        {"affinity": 8, "ranks": 8, "affinity_of_ranks": 16},
        2,
        f"8 ranks share 16; {AFFINITY}",
    ),
    "ranks in a container": (
        {"affinity": 16, "quota": 8.0, "ranks": 4},
        2,
        f"4 ranks share 8; {QUOTA}8",
    ),
    "more ranks than cores": ({"affinity": 2, "ranks": 4}, 1, f"4 ranks share 2; {AFFINITY}"),
}


@pytest.mark.parametrize("name", CASES)
def test_cores_are_counted_once_and_the_reasons_named(name):
    known, cores, reasons = CASES[name]
    limits = CoreLimits(machine=16, **known)
    assert limits.cores == cores
    sentence = f"this process may use {cores} of the machine's 16 cores: {reasons}"
    assert limits.in_words() == (sentence if reasons else "")


def test_the_sentence_is_chinese_in_a_chinese_terminal(monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    limits = CoreLimits(machine=16, affinity=8, quota=4.0, ranks=2)
    assert shown(limits.in_words()) == (
        "这台机器有 16 个核，这个进程可以用 2 个：2 个 rank 共用 4 个；"
        "CPU 亲和性（taskset、numactl 或作业系统所设）不含其余的核；"
        "控制组（例如容器的）只给 4 个"
    )


@pytest.mark.parametrize(
    ("of_others", "cores"),
    [
        ([range(4, 8), range(8, 12), range(12, 16)], 4),  # each rank has four of its own
        ([range(4)] * 3, 1),  # all share the same four
        ([None, range(4, 8), range(4, 8)], 2),  # one has ended
    ],
)
def test_ranks_that_are_bound_to_cores_of_their_own_do_not_share_them(
    monkeypatch, of_others, cores
):
    allowed = {0: range(4), **dict(enumerate(of_others, 1))}

    def affinity(pid):
        if allowed[pid] is None:
            raise ProcessLookupError
        return set(allowed[pid])

    monkeypatch.setattr(os, "sched_getaffinity", affinity, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(procfs, "processes_below", lambda pid: [1, 2, 3])
    monkeypatch.setattr(procfs, "cgroup_folders", lambda controller: [])
    assert core_limits(ranks=4).cores == cores
    assert core_limits().cores == 4
