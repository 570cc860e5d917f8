"""The roofline of a run: how fast each pipeline trains over how fast the device is.

    rows in groups "x = 2" and "loading alone" ─▶ a Pipeline per variant: what was measured, and
    the ideal, 1 ÷ max(load, compute) of what was measured alone

Source: EVIDENCE 2, "The roofline".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit import units
from labkit.analysis.rows import Row
from labkit.analysis.summary import Summary

ALONE = "loading alone"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speed of a pipeline at one speed of the device, or of loading alone.

    Rates are steady ones, over whole rounds of workers: in short epochs, starting and ending the
    workers would take a visible part of the time.
    """

    device_images_per_s: float
    """Training rate of the device with the model alone; infinite for loading alone."""
    images_per_s: float
    """Geometric mean over blocks."""
    low: float | None
    """Lower end of the 95 % interval over blocks; None below two."""
    high: float | None
    row: Row


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A variant at all speeds of the device."""

    name: str
    points: tuple[Speed, ...]
    """The slowest device first."""
    loading: Speed | None
    """Loading alone; None where it was not measured."""
    on_device: bool
    """Whether the device does a part of the preprocessing."""

    def ideal_images_per_s(self, device_images_per_s: float) -> float | None:
        """Return the rate if loading and the device overlapped in full; None if not known.

        The device's part of a variant, such as preprocessing on the device, was measured with the
        model's.  A real device does not tell how long it computed.
        """
        if self.loading is None or not self.points:
            return None
        fastest, more_s = self.points[-1], 0.0
        if fastest.row.compute_share is not None:
            part_s = fastest.row.compute_share / fastest.row.images_per_s
            more_s = max(part_s - 1 / fastest.device_images_per_s, 0.0)
        elif self.on_device:
            return None
        return min(self.loading.images_per_s, 1 / (1 / device_images_per_s + more_s))


def pipelines(summary: Summary) -> tuple[Pipeline, ...]:
    """Return the measured pipelines of a roofline's run, the baseline first."""
    load_rate = summary.calibration.load_images_per_s
    speeds_by_name: dict[str, list[Speed]] = {}
    for row in summary.rows if load_rate else ():
        device = math.inf if row.group == ALONE else row.device_images_per_s
        if row.steady_rates and device:
            speeds_by_name.setdefault(row.name, []).append(_speed(row, device))
    return tuple(_pipeline(summary, name, speeds) for name, speeds in speeds_by_name.items())


def published_takes(summary: Summary) -> dict[str, str]:
    """Return how fast a loader and a GPU each published time needs, in words by variant."""
    alone = {row.name: row for row in summary.rows if row.group == ALONE}
    base = next((row for row in alone.values() if row.is_baseline), None)
    sentences = {}
    for name, row in alone.items() if base else ():
        compared = summary.compare([(row, base)], steady=True).get((row.variant, base.variant))
        if compared is None or row.published is None or row.published >= 1:
            continue
        here, times = f"{1 / compared.ratio:.2f}", f"{1 / row.published:.2f} times as fast"
        if compared.low is not None:
            here += f" {units.interval(1 / compared.high, 1 / compared.low)}"
        sentences[name] = (
            f"{units.normalized(row.published)} ({name}) takes a loader at least {times}, "
            f"here {here}, and a GPU at least {times} as the loader"
        )
    return sentences


def _pipeline(summary: Summary, name: str, speeds: Sequence[Speed]) -> Pipeline:
    in_order = sorted(speeds, key=lambda speed: speed.device_images_per_s)
    points = tuple(one for one in in_order if one.device_images_per_s < math.inf)
    alone = in_order[-1] if len(points) < len(in_order) else None
    on_device = summary.facts(in_order[0].row.variant).finishes_on_device
    return Pipeline(name=name, points=points, loading=alone, on_device=on_device)


def _speed(row: Row, device_images_per_s: float) -> Speed:
    low, high = row.steady_interval
    return Speed(
        device_images_per_s=device_images_per_s,
        images_per_s=row.mean_steady_images_per_s,
        low=low,
        high=high,
        row=row,
    )
