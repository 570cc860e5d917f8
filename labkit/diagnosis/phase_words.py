"""Phases in words: a line while an epoch goes on, and a table with sentences when it is over.

    EpochPhases ──▶ line: "120/500, 38 s left: wait 44 %, transfer 1 %, …"
                └─▶ text: what stays apart, per-step times on both clocks, what they say

Main trap: a phase that could not be seen is left out or a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Mapping

from labkit import units
from labkit.diagnosis.phases import PHASES, EpochPhases

IN_FULL = {"backward": "backward+optimizer"}
# Between two clocks that tell a phase's share, less than this is noise.
MISLEADS = 0.05
NO_CUDA = (
    "No CUDA: seconds of the host's clock. On a CPU the work is done when a call returns; a device "
    "that works on its own may do it in a later phase."
)


def line(phases: EpochPhases, total: int | None) -> str:
    """Write where the time of an epoch's whole steps went so far, in a terminal's width.

    Args:
        phases: of an epoch that goes on.
        total: how many batches it has, where that is known.
    """
    shown = f"{phases.steps}/{total}" if total else units.count(phases.steps, "step")
    if not phases.timed_steps:
        wait, step = units.seconds(phases.first_wait_s), units.seconds(phases.first_step_s)
        return f"{shown}: first batch {wait}, first step {step}"
    split = _split(phases.host_s)
    all_s = sum(split.values())
    if total and total > phases.steps:
        left_s = (total - phases.steps) * all_s / phases.timed_steps
        shown += f", {units.whole_seconds(left_s)} left"
    shares = ", ".join(f"{name} {units.whole_percent(x)}" for name, x in _shares(split).items())
    return f"{shown}: {shares}"


def text(phases: EpochPhases, number: int) -> str:
    """Write an epoch's phases per step, as a table of fixed width with sentences below.

    Args:
        phases: of an epoch that is over.
        number: which epoch it was, from 1.
    """
    apart = {
        "start-up": phases.startup_s,
        "first batch": phases.first_wait_s,
        "first step": phases.first_step_s,
        "shutdown": phases.shutdown_s,
    }
    known = ", ".join(f"{name} {units.seconds(s)}" for name, s in apart.items() if s is not None)
    lines = [
        f"epoch {number}: {units.count(phases.steps, 'step')} in {units.seconds(phases.epoch_s)}; "
        f"apart from the table: {known}"
    ]
    if phases.timed_steps:
        lines += _table(phases)
    said = sentences(phases)
    if phases.timed_steps and not phases.device_s and number == 1:  # once is enough
        said.append(NO_CUDA)
    return "\n".join([*lines, *(f"- {sentence}" for sentence in said)])


def sentences(phases: EpochPhases) -> list[str]:
    """Say what has to be known beside the numbers: what is missing, and where they mislead."""
    said = []
    if phases.ended == "stopped":
        said.append("The loop stopped before the loader did; its last step is not in the table.")
    if phases.ended == "failed":
        said.append("The loader failed; this is what was measured until then.")
    if not phases.steps:
        said.append(
            "The loader gave no batch: a generator is used up after one epoch, and drop_last drops "
            "a batch that is not full."
        )
    if phases.none_batches:
        said.append(f"{units.count(phases.none_batches)} of {phases.steps} batches were None.")
    if not phases.timed_steps:
        return said
    if phases.host_s["forward"] is None:
        said.append(
            "Only wait and step are known: no torch module with parameters was called in the loop "
            "(models that are compiled in place, or called in a compiled function, cannot be seen)."
        )
    elif phases.host_s["backward"] is None:
        said.append("What follows the forward is one: no torch optimizer made a step.")
    return [*said, _compare(phases)] if phases.device_s else said


def _compare(phases: EpochPhases) -> str:
    """Compare what the host's clock says with what CUDA's says."""
    host, device = _shares(_split(phases.host_s)), _shares(_split(phases.device_s))
    excess = {name: host[name] - device[name] for name in host}
    late, early = max(excess, key=excess.get), min(excess, key=excess.get)
    if excess[late] < MISLEADS:
        return "Both clocks agree: the host waits for the device within each phase."
    return (
        f"The host's clock misleads: {early} is {units.percent(device[early])} of CUDA's time and "
        f"{units.percent(host[early])} of the host's, which only queues work there. It waits for "
        f"that work in {late}: {units.percent(host[late])} of the host's time, "
        f"{units.percent(device[late])} of CUDA's."
    )


def _table(phases: EpochPhases) -> list[str]:
    columns = [("host, per step", _split(phases.host_s), phases.timed_steps)]
    if phases.device_s is not None:
        columns.append(("CUDA, per step", _split(phases.device_s), phases.device_steps))
    rows = [["", *(title for title, _, _ in columns)]]
    for name in columns[0][1]:
        cells = [
            f"{units.seconds(split[name] / steps)} {units.percent(_shares(split)[name]):>8}"
            for _, split, steps in columns
        ]
        rows.append([IN_FULL.get(name, name), *cells])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "   ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))])
        for row in rows
    ]


def _split(seconds: Mapping[str, float | None]) -> dict[str, float]:
    """Name what is known, so that it adds up: what cannot be told apart is one."""
    known = {phase: s for phase in PHASES if (s := seconds[phase]) is not None}
    if seconds["forward"] is None:
        known["step"] = seconds["step"]
    elif seconds["backward"] is None:
        known["after the forward"] = seconds["step"] - seconds["transfer"] - seconds["forward"]
    return known


def _shares(split: Mapping[str, float]) -> dict[str, float]:
    all_s = sum(split.values()) or 1.0  # a clock may be too coarse for a loop that does nothing
    return {name: s / all_s for name, s in split.items()}
