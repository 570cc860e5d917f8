"""Cache state: the share of a trial's files in memory, and whether it is what the label says.

`labkit.parts.storage.cache_state` makes files cold or warm and measures them; here it is judged.

Source: EVIDENCE 2, "Page cache".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit import units
from labkit.analysis.thresholds import (
    COLD_MIN_DEVICE_SHARE,
    PROGRAM_BYTES,
    WARM_MAX_DEVICE_SHARE,
)
from labkit.records import Facts, Trial
from labkit.settings import Settings
from labkit.thresholds import CACHED_TOLERANCE_SHARE, COLD_MAX_SHARE, WARM_MIN_SHARE

NO_FACTS = Facts()


def cache_violation(trial: Trial, facts: Facts = NO_FACTS) -> str:
    """Return why a trial's cache state is not what its label says; empty where it is proved.

    Residency is looked at before the epochs, and the device's bytes over all of them.  One of the
    two suffices as proof; where neither is known, a trial is not known to be cold.  Where a
    percentage was to be in memory, residency is looked at before every epoch, and has to be known.
    """
    proof = trial.cache_proof
    wanted, before = trial.labels.get("cache"), proof.get("resident_share_before")
    fetched, files = proof.get("device_read_bytes"), proof.get("file_bytes")
    # A resident batch was read before the epochs: no byte of them shows.
    is_known = fetched is not None and files and not facts.repeats_one_batch
    from_device = fetched / files if is_known else None
    if isinstance(percent := trial.settings.get("cache"), int):
        shares = _shares_before(trial)
        if None in shares:
            return f"not known to be {wanted}: memory could not be looked at"
        for number, share in enumerate(shares, 1):
            if not math.isclose(share, percent / 100, rel_tol=0, abs_tol=CACHED_TOLERANCE_SHARE):
                measured = units.percent(share)
                return f"not {wanted}: {measured} of the data was in memory before epoch {number}"
        missing = sum(1 - share for share in shares)
        if from_device is not None and from_device < COLD_MIN_DEVICE_SHARE * missing:
            came, lacked = units.percent(from_device / missing), "of what memory lacked"
            return f"not {wanted}: only {came} {lacked} came from disk"
    if wanted == "cold":
        if before is not None and before > COLD_MAX_SHARE:
            return f"not cold: {units.percent(before)} of the files were in memory"
        # Where memory cannot be looked at, the bytes alone are the proof.
        least = 1 - COLD_MAX_SHARE if before is None else COLD_MIN_DEVICE_SHARE
        if from_device is not None and from_device < least:
            return f"not cold: only {units.percent(from_device)} of the files' bytes came from disk"
        if before is None and from_device is None:
            return "not known to be cold: neither memory nor the disk's bytes could be looked at"
    if wanted == "warm":
        after = proof.get("resident_share_after")
        for share, when in ((before, "before"), (after, "after the epochs")):
            if share is not None and share < WARM_MIN_SHARE:
                return f"not warm: {units.percent(share)} of the files were in memory {when}"
        # Where memory can be looked at, that is the better proof: programs are read, too.
        most_bytes = WARM_MAX_DEVICE_SHARE * (files or 0) + PROGRAM_BYTES
        if before is None and from_device is not None and fetched > most_bytes:
            return f"not warm: {units.percent(from_device)} of the files' bytes came from disk"
    return ""


def is_verified(cache: str, resident_share: float | None, read_share: float | None) -> bool:
    """Return whether a measurement stands behind the label of trials that count.

    Args:
        cache: the label.
        resident_share: of the files' pages, in memory before the epochs; None: unknown.
        read_share: of the files' bytes, fetched from a device; None: unknown.
    """
    if cache == "cold":
        return resident_share is not None or read_share is not None
    return cache == "warm" and resident_share is not None


def resident_share_before(trials: Sequence[Trial]) -> float | None:
    """Return the share in memory before the epoch that is furthest from what its label says."""
    shares = [share for trial in trials for share in _shares_before(trial)]
    if not shares or None in shares:
        return None
    percent = trials[0].settings.get("cache")
    cold = any(trial.labels.get("cache") == "cold" for trial in trials)
    asked = percent / 100 if isinstance(percent, int) else float(not cold)
    return max(shares, key=lambda share: abs(share - asked))


def device_read_share(trials: Sequence[Trial]) -> float | None:
    """Return the bytes fetched from a device, of those asked for, over all epochs."""
    fetched = [trial.cache_proof.get("device_read_bytes") for trial in trials]
    # Spawned workers also ask for their libraries: what the files hold is the steadier measure.
    asked = [trial.cache_proof.get("file_bytes") for trial in trials for _ in trial.epochs]
    if None in fetched or None in asked or not sum(asked):
        return None
    return sum(fetched) / sum(asked)


def other_cache(settings: Settings, baseline: Settings, facts: Facts) -> str:
    """Return how a variant's cache state helps it beyond the baseline's; '' where it does not.

    Args:
        settings: the variant's.
        baseline: the settings of what it is compared with.
        facts: of the variant.
    """
    shares = [one.cache for one in (settings, baseline) if isinstance(one.cache, int)]
    if shares and settings.cache != baseline.cache:
        return "memory held another share of its data than of the baseline's"
    # A cold start needs nothing in memory; data far away has no cache state here.
    if settings.cache not in (baseline.cache, "cold") and not facts.stays_in_memory:
        return f"it began with cache {settings.cache}, the baseline with {baseline.cache}"
    return ""


def _shares_before(trial: Trial) -> list[float | None]:
    """Return the shares of the data that memory was measured to hold before epochs."""
    proof = trial.cache_proof
    return proof.get("resident_shares_before") or [proof.get("resident_share_before")]
