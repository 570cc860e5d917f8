"""Predictions: what single changes let one expect of all of them together, beside the measured.

    singles ─ additive, multiplicative, best single ─────────┐
    loading alone, computing alone ─ max(load, compute) + u ─┴─▶ Prediction ─▶ predictions_table()

[004] remarks that its gains do not simply add up; here is by how much.  The max model: loading
and computing run side by side, so the longer one sets the pace, and u is what neither hides
(copies on the compute stream, waits in every step).  Assumed: u is the baseline's for every
variant.  A prefetcher has no place in it, since it overlaps what the model already takes as
overlapped; what it hides beyond that is where the model is off.  Main trap: a label says
nothing of what a variant is, so roles are read off the settings.

Source: DOCUMENTS C, "Combined"; the differential method is DS-Analyzer's (VLDB 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import row_words, units
from labkit.summary import Row, Summary

if TYPE_CHECKING:
    import pandas as pd

# What is changed; variants that differ from the baseline in anything else are no combinations.
FACTORS = ("storage", "prefetcher", "preprocessor")
# Column -> field of `Prediction`.
MODELS = {
    "additive": "additive",
    "multiplicative": "multiplicative",
    "best single": "best_single",
    "max(load, compute)": "max_model",
}
# [004] 3.1 to 3.3, each change alone on the hard disk (DOCUMENTS 0.1), and section 4's 39 %.
DOCUMENT_SINGLES = {
    "ssd": 0.860,
    "prefetch_generator": 0.894,
    "data_prefetcher": 0.891,
    "simplified": 0.661,
}
DOCUMENT_COMBINED = 0.61


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One combination's normalized time, measured and predicted; None is unknown."""

    variant: str
    changed: tuple[str, ...]
    """The factors in which it differs from the baseline."""
    measured: float | None
    ci_low: float | None = None
    ci_high: float | None = None
    additive: float | None = None
    """1 less every single change's saving; only where several factors are changed."""
    multiplicative: float | None = None
    """The single changes' normalized times multiplied; likewise."""
    best_single: float | None = None
    """The shortest of the single changes' times, as if the others did nothing; likewise."""
    max_model: float | None = None
    """The longer of loading and computing, plus what the baseline does not overlap."""
    remark: str = ""
    """Why something is unknown, or where the figures are from."""


def predict(info: Mapping[str, object], summary: Summary) -> tuple[Prediction, ...]:
    """Predict every combination of a run from its single changes and its floors.

    Args:
        info: what `run.json` holds; `variants` tells each arm's role.  A floor is an arm whose
            step is "nothing" (loading alone) or whose loader is "resident" (computing alone).
        summary: the same run, summarized.

    Returns:
        One per combination but the baseline, in the table's order.  A run without singles or
        floors, as in quick mode, has None in their place and a remark.
    """
    arms = _Arms(info, summary)
    return tuple(_predict(key, arms) for key in arms.combinations if key != arms.base)


def document_predictions() -> tuple[Prediction, ...]:
    """Do the same sums with the document's own figures: with either of its prefetchers.

    Source: [004] sections 3 and 4; "(1) or (2)" is said to have been used, not which.
    """
    return tuple(
        Prediction(
            variant=f"[004]: ssd, {prefetcher}, simplified",
            changed=FACTORS,
            measured=DOCUMENT_COMBINED,
            **_compose([DOCUMENT_SINGLES[name] for name in ("ssd", prefetcher, "simplified")]),
            remark="the document's figures: single runs, no interval",
        )
        for prefetcher in ("prefetch_generator", "data_prefetcher")
    )


def predictions_table(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Make the table that a notebook shows, one row per combination.

    Args:
        predictions: from `predict`, `document_predictions`, or both one after the other.
    """
    from labkit.frame import Frame

    cells = [
        [
            p.variant,
            _measured(p),
            *(units.normalized(getattr(p, model)) for model in MODELS.values()),
            inside(p),
            p.remark,
        ]
        for p in predictions
    ]
    header = ["variant", "measured [95 % interval]", *MODELS, "inside the interval", "remark"]
    return Frame(cells, columns=header).set_index("variant")


def inside(prediction: Prediction) -> str:
    """Name the predictions that the measured interval holds, or say none; a dash if unknown.

    The interval is the measured time's; a prediction is made of measured times too, and has
    noise of its own that is not counted here.
    """
    known = {
        name: getattr(prediction, model)
        for name, model in MODELS.items()
        if getattr(prediction, model) is not None
    }
    if prediction.ci_low is None or not known:
        return units.UNKNOWN
    held = [name for name, x in known.items() if prediction.ci_low <= x <= prediction.ci_high]
    return ", ".join(held) or "none"


class _Arms:
    """A run's rows by role: combinations of the factors' values, and the two kinds of floors."""

    def __init__(self, info: Mapping[str, object], summary: Summary) -> None:
        rows = {row.variant: row for row in summary.rows}
        base = info["variants"][info["baseline"]]
        self.base = _values(base)
        self.combinations: dict[tuple, Row] = {}
        self._loads: dict[tuple, Row] = {}
        self._computes: dict[object, Row] = {}
        for name, settings in info["variants"].items():
            storage, prefetcher, preprocessor = key = _values(settings)
            if settings.get("step") == "nothing":
                if prefetcher == base.get("prefetcher"):
                    self._loads.setdefault((storage, preprocessor), rows[name])
            elif settings.get("loader") == "resident":
                self._computes.setdefault(preprocessor, rows[name])
            elif _others(settings) == _others(base):
                self.combinations.setdefault(key, rows[name])

    def floors(self, key: tuple) -> tuple[Row | None, Row | None]:
        """Loading alone and computing alone, with a combination's storage and preprocessor."""
        storage, _, preprocessor = key
        return self._loads.get((storage, preprocessor)), self._computes.get(preprocessor)

    def singles(self, key: tuple) -> list[Row | None]:
        """The variants that change only one of the factors which a combination changes."""
        return [
            self.combinations.get((*self.base[:i], key[i], *self.base[i + 1 :]))
            for i in _changed(key, self.base)
        ]


def _predict(key: tuple, arms: _Arms) -> Prediction:
    row, changed = arms.combinations[key], _changed(key, arms.base)
    # A single change is an ingredient: of itself it would predict itself.
    singles = arms.singles(key) if len(changed) > 1 else []
    floors = [*arms.floors(key), *arms.floors(arms.base)]
    return Prediction(
        variant=row.variant,
        changed=tuple(FACTORS[i] for i in changed),
        measured=row.normalized_time,
        ci_low=row.ci_low,
        ci_high=row.ci_high,
        **_compose([_time(single) for single in singles]),
        max_model=_max_model(*(_time(floor) for floor in floors)),
        remark=_remark(row, singles, floors),
    )


def _changed(key: tuple, base: tuple) -> list[int]:
    return [i for i in range(len(FACTORS)) if key[i] != base[i]]


def _values(settings: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(settings.get(factor) for factor in FACTORS)


def _others(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if name not in FACTORS}


def _time(row: Row | None) -> float | None:
    return None if row is None else row.normalized_time


def _compose(singles: Sequence[float | None]) -> dict[str, float]:
    """Combine single changes' normalized times; nothing where one is unknown."""
    if not singles or None in singles:
        return {}
    return {
        "additive": 1 + sum(single - 1 for single in singles),
        "multiplicative": math.prod(singles),
        "best_single": min(singles),
    }


def _max_model(
    load: float | None,
    compute: float | None,
    base_load: float | None,
    base_compute: float | None,
) -> float | None:
    """Predict from the floors, all as shares of the baseline's time, which is 1.

    The floors have noise of their own: where one takes longer than the baseline itself, nothing
    is left that could be unoverlapped.
    """
    if None in (load, compute, base_load, base_compute):
        return None
    unoverlapped = max(0.0, 1 - max(base_load, base_compute))
    return max(load, compute) + unoverlapped


def _remark(row: Row, singles: Sequence[Row | None], floors: Sequence[Row | None]) -> str:
    """Say what is unknown and why: the row itself, arms not run, arms without a number."""
    remarks = [row_words.reason(row)] if row.normalized_time is None else []
    absent = ["each change alone"] if None in singles else []
    absent += ["loading and computing alone"] if None in floors else []
    if absent:
        remarks.append(f"full mode of combined measures {', and '.join(absent)}")
    unknown = [arm.variant for arm in (*singles, *floors) if arm and arm.normalized_time is None]
    if unknown:
        remarks.append(f"no number for {', '.join(dict.fromkeys(unknown))}")
    return "; ".join(remarks)


def _measured(prediction: Prediction) -> str:
    value = units.normalized(prediction.measured)
    if prediction.ci_low is None:
        return value
    return f"{value} {units.interval(prediction.ci_low, prediction.ci_high)}"
