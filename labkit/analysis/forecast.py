"""Forecast how long a run takes, and the smallest effect it can detect.

The noise is that of an earlier run on the same machine; without one, the effect is unknown.

Source: EVIDENCE 1, "Minimum detectable effect".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from labkit import units
from labkit.analysis.equal_work import is_floor
from labkit.analysis.statistics import detectable_share
from labkit.analysis.summary import Summary
from labkit.analysis.thresholds import ALPHA
from labkit.records import Facts
from labkit.settings import MODES, Settings


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Duration and precision of a run before it starts; None is unknown."""

    trials: int
    total_s: float | None
    timed: bool
    """Whether epochs like these were timed here; else the run takes at least `total_s`."""
    noise: float | None
    """Standard deviation of an earlier run's paired log-ratios, pooled over the variants."""
    mde: float | None
    """Smallest effect that is detected with 80 % power, as a share."""

    def __str__(self) -> str:
        sentence = "Reads all images, however many there are."
        if self.total_s is not None:
            known = "About" if self.timed else "At least"
            sentence = f"{known} {units.whole_seconds(self.total_s)}."
        if self.mde is None:
            return f"{sentence} The smallest detectable effect is known after the first run."
        detected = units.whole_percent(math.ceil(100 * self.mde) / 100)
        return f"{sentence} Detects differences of {detected} or more."

    __repr__ = __str__


def forecast(
    earlier: Iterable[Summary],
    *,
    mode: str,
    blocks: int,
    variants: Mapping[str, Settings],
    baselines: Collection[str],
    facts: Mapping[str, Facts],
    epoch_s: float | None = None,
    round_s: float | None = None,
    epoch_share: float = 1.0,
) -> Forecast:
    """Forecast a run from earlier ones.

    Args:
        earlier: runs of the experiment on this machine, the most similar first; read only as
            far as needed.
        mode: quick, document or full.
        blocks: repetitions.
        variants: label -> settings, complete.
        baselines: the labels that run twice per block where the order is shuffled.
        facts: label -> what of the variant's parts counts where it is compared.
        epoch_s: seconds of the baseline's epoch, from calibration; None: as in the last run in
            this mode, else as long as the mode wants it.
        round_s: least seconds that an operation is timed for in a round; None: epochs are timed.
        epoch_share: how long epochs should be, as a share of the mode's.
    """
    chosen, noise, last = MODES[mode], None, None
    for summary in earlier:
        last = last or summary
        if (noise := noise_of(summary)) is not None:
            break
    trials = blocks * (len(variants) + chosen.shuffled * len(baselines))
    baseline = next(iter(baselines))
    times_s = []
    if last is not None and last.mode == mode:
        times_s = [trial.timed_s for row in last.rows for trial in row.trials]
    timed = round_s is None and bool(epoch_s or times_s)
    if round_s is not None:
        # Without making the inputs and choosing the number of calls.
        trial_s = fmean(times_s) if times_s else round_s
    else:
        epochs_s = variants[baseline].epochs * (epoch_s or epoch_share * chosen.epoch_s)
        if times_s and epoch_s is None:
            epochs_s = fmean(times_s)
        # Starting a process, and making and checking the cache state, takes 0.05 to 0.2 s.
        trial_s = epochs_s + 0.1 if epochs_s else None
    judged = [
        name
        for name in variants
        if name not in baselines and not is_floor(facts[name], facts[baseline])
    ]
    mde = None
    if noise is not None and blocks >= 2 and judged:
        # Holm's procedure may hold any variant to the strictest level.
        mde = detectable_share(noise, blocks, ALPHA / len(judged))
    return Forecast(
        trials=trials,
        total_s=None if trial_s is None else trials * trial_s,
        timed=timed,
        noise=noise,
        mde=mde,
    )


def noise_of(summary: Summary) -> float | None:
    """Return the noise of a run; None where it has fewer than two blocks."""
    known = [
        row.s for row in summary.rows if row.s is not None and not summary.is_floor(row.variant)
    ]
    return math.sqrt(fmean(s * s for s in known)) if known else None
