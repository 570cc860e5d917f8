"""Predict combined changes from the single ones, and compare with what was measured.

The max model assumes that loading and computing run side by side, so that the longer one sets
the pace; what the baseline does not overlap is added, the same for every variant.  Prefetchers do
not enter it: it takes loading as overlapped already.

Source: DOCUMENTS C, "Combined"; the differential method is DS-Analyzer's (VLDB 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.analysis.summary import Row, Summary
from labkit.report import row_words
from labkit.resolve import traits
from labkit.runs.store import StoredRun

if TYPE_CHECKING:
    from labkit.report.frame import Frame

# What is changed; variants that differ from the baseline in anything else are no combinations.
FACTORS = ("storage", "prefetcher", "preprocessor")
MODELS = ("additive", "multiplicative", "best_single", "max_load_compute")
COLUMNS = ["variant", "measured", "ci_low", "ci_high", *MODELS, "inside_interval", "remark"]
# [004] 3.1 to 3.3, each change alone on the hard disk (DOCUMENTS 0.1), and section 4's 39 %.
DOCUMENT_SINGLES = {
    "ssd": 0.860,
    "prefetch_generator": 0.894,
    "data_prefetcher": 0.891,
    "simplified": 0.661,
}
DOCUMENT_COMBINED = 0.61


def predictions(run: StoredRun) -> Frame:
    """Return the normalized time of every combination, measured and predicted.

    Args:
        run: of any experiment.  A floor is a variant whose step is "nothing" (loading
            alone) or whose loader is "resident" (computing alone).

    Returns:
        A row per combination in the table's order; the document's own figures come last.
    """
    from labkit.report.frame import frame_of

    arms = _Arms(run.info, run.summary)
    cells = [_cells(key, arms) for key in arms.combinations if key != arms.base]
    for prefetcher in ("prefetch_generator", "data_prefetcher"):  # it does not say which
        singles = [DOCUMENT_SINGLES[name] for name in ("ssd", prefetcher, "simplified")]
        cells.append(
            [
                f"[004]: ssd, {prefetcher}, simplified", DOCUMENT_COMBINED, None, None,
                *_compose(singles), None, "", "single runs, no interval",
            ]
        )  # fmt: skip
    return frame_of(COLUMNS, cells)


def has_combinations(run: StoredRun) -> bool:
    """Return whether a run changes several factors at once."""
    arms = _Arms(run.info, run.summary)
    return any(len(_changed(key, arms.base)) > 1 for key in arms.combinations)


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
            left_out = traits(settings).leaves_out
            if "computing" in left_out:
                if prefetcher == base.get("prefetcher"):
                    self._loads.setdefault((storage, preprocessor), rows[name])
            elif "loading" in left_out:
                self._computes.setdefault(preprocessor, rows[name])
            elif _others(settings) == _others(base):
                self.combinations.setdefault(key, rows[name])

    def floors(self, key: tuple) -> tuple[Row | None, Row | None]:
        """Return loading alone and computing alone for a combination."""
        storage, _, preprocessor = key
        return self._loads.get((storage, preprocessor)), self._computes.get(preprocessor)

    def singles(self, key: tuple) -> list[Row | None]:
        """Return the variants that change only one of the factors which a combination changes."""
        return [
            self.combinations.get((*self.base[:i], key[i], *self.base[i + 1 :]))
            for i in _changed(key, self.base)
        ]


def _cells(key: tuple, arms: _Arms) -> list[object]:
    row = arms.combinations[key]
    # A single change would predict itself.
    singles = arms.singles(key) if len(_changed(key, arms.base)) > 1 else []
    floors = [*arms.floors(key), *arms.floors(arms.base)]
    predicted = [*_compose([_time(single) for single in singles]), _max_model(*map(_time, floors))]
    inside = []
    if row.ci_low is not None:
        known = [(name, x) for name, x in zip(MODELS, predicted) if x is not None]
        inside = [name for name, x in known if row.ci_low <= x <= row.ci_high]
    missing = None in singles or None in floors
    remark = row_words.reason(row) or ("full mode measures the parts" if missing else "")
    return [
        row.variant, row.normalized_time, row.ci_low, row.ci_high, *predicted,
        ", ".join(inside), remark,
    ]  # fmt: skip


def _changed(key: tuple, base: tuple) -> list[int]:
    return [i for i in range(len(FACTORS)) if key[i] != base[i]]


def _values(settings: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(settings.get(factor) for factor in FACTORS)


def _others(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if name not in FACTORS}


def _time(row: Row | None) -> float | None:
    return None if row is None else row.normalized_time


def _compose(singles: Sequence[float | None]) -> list[float | None]:
    """Return the additive, multiplicative and best-single predictions."""
    if not singles or None in singles:
        return [None, None, None]
    return [1 + sum(single - 1 for single in singles), math.prod(singles), min(singles)]


def _max_model(
    load: float | None, compute: float | None, base_load: float | None, base_compute: float | None
) -> float | None:
    """Predict from the floors, all as shares of the baseline's time, which is 1."""
    if None in (load, compute, base_load, base_compute):
        return None
    # A floor has noise: one above the baseline leaves nothing that could be unoverlapped.
    return max(load, compute) + max(0.0, 1 - max(base_load, base_compute))
