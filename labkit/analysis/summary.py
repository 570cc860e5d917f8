"""From raw trials to a summary: one for each run, ready for tables and charts.

    trials ─ validity ─▶ those that count ─ rows ─▶ one Row per variant ─▶ Summary, with notes

Nothing is computed here: rows, notes and the trials that count are put together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from labkit.analysis import published
from labkit.analysis.compare import Comparison, compare, is_stable
from labkit.analysis.equal_work import is_floor
from labkit.analysis.notes import notes_of
from labkit.analysis.rows import COLUMNS, Row, make_rows, noise_floors_of
from labkit.analysis.validity import ValidTrials, valid_trials
from labkit.records import EPOCHS, OPERATION, AnyTrial, Calibration, Facts, Hardware, RunInfo


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One run of one experiment, ready for tables and charts."""

    info: RunInfo
    run: str
    """The run folder's name; empty of rows that are not on disk."""
    baseline: str
    baselines: Mapping[str, str]
    """Group -> its baseline; a run without groups has one, ""."""
    rows: tuple[Row, ...]
    """Group by group: its baseline first, then the variants in their given order."""
    valid: ValidTrials
    notes: tuple[str, ...]

    @property
    def question(self) -> str:
        """The question of the experiment."""
        return self.info.question or self.info.experiment

    @property
    def mode(self) -> str:
        """Quick, document or full."""
        return self.info.mode

    @property
    def kind(self) -> str:
        """What was timed, one of `labkit.records.KINDS`."""
        return self.info.kind

    @property
    def protocol(self) -> str:
        """Corrected, or as in the document."""
        return self.info.protocol

    @property
    def calibration(self) -> Calibration:
        """The rates that were measured before the trials."""
        return self.info.calibration or Calibration()

    @property
    def epochs(self) -> int:
        """Epochs per trial: what `time_s` adds up."""
        least = 1 if self.kind == OPERATION else 2
        return max((len(t.epochs) for row in self.rows for t in row.of_epochs), default=least)

    @property
    def n_blocks(self) -> int:
        """Blocks that count and in which the baseline is complete."""
        return len(self.valid.blocks)

    @property
    def n_undisturbed(self) -> int:
        """Of these, the blocks that a verdict may rest on."""
        return len(self.valid.undisturbed)

    @property
    def judged(self) -> bool:
        """Whether the verdicts are filled."""
        return self.valid.judged

    @cached_property
    def noise_floors(self) -> dict[str, Comparison]:
        """Group -> its baseline's second run of each block over the first."""
        floors = noise_floors_of(self.valid)
        return {group: floors[group] for group in self.groups()}

    @property
    def stable(self) -> bool:
        """Whether the baseline's two runs agree in any group; else nothing has a verdict."""
        return any(is_stable(floor.log_ratios) for floor in self.noise_floors.values())

    @property
    def labels(self) -> dict[str, str]:
        """The labels that all measured rows have in common."""
        return in_common([row.labels for row in self.rows if row.labels])

    @property
    def hardware(self) -> tuple[Hardware, ...]:
        """The hardware that all measured rows have in common."""
        first, *others = [row.hardware for row in self.rows if row.hardware] or [()]
        return tuple(each for each in first if all(each in other for other in others))

    @property
    def has_groups(self) -> bool:
        """Whether the variants are compared in groups."""
        return any(self.baselines)

    @property
    def x(self) -> float | None:
        """The device's rate ÷ the run's own loading rate."""
        return next((row.x for row in self.rows if row.variant == self.baseline), None)

    def facts(self, variant: str) -> Facts:
        """Return the facts about a variant's parts that matter when it is compared."""
        return self.info.facts_of(variant)

    def is_floor(self, variant: str) -> bool:
        """Return whether a variant does only part of the baseline's work."""
        return is_floor(self.facts(variant), self.facts(self.baseline))

    def groups(self) -> dict[str, tuple[Row, ...]]:
        """Return the rows of each group, in their order."""
        rows_by_group: dict[str, list[Row]] = {}
        for row in self.rows:
            rows_by_group.setdefault(row.group, []).append(row)
        return {group: tuple(rows) for group, rows in rows_by_group.items()}

    @property
    def by_group(self) -> dict[str, Summary]:
        """A summary for each group, with its own baseline."""
        return {
            group: replace(self, rows=rows, baseline=self.baselines[group], baselines={})
            for group, rows in self.groups().items()
        }

    @property
    def at_speeds(self) -> dict[float, Summary]:
        """A summary for each speed of the device, the slowest first; empty without several speeds.

        x, the device's rate ÷ the baseline's loading rate -> a summary with its own baseline.
        """
        if not self.has_groups or self.kind != EPOCHS:
            return {}
        speeds = {row.group: self.info.x_of(row.variant) for row in self.rows}
        if None in speeds.values():
            return {}
        by_speed = {speeds[group]: summary for group, summary in self.by_group.items()}
        return dict(sorted(by_speed.items()))

    @property
    def comparisons(self) -> tuple[Summary, ...]:
        """The parts of epochs that load every batch that are compared with one baseline each."""
        return (self,) if not self.has_groups else tuple(self.at_speeds.values())

    def compare(
        self, pairs: Sequence[tuple[Row, Row]], *, steady: bool = False
    ) -> dict[tuple[str, str], Comparison]:
        """Compare any two variants, in any mode; all pairs are judged together.

        Args:
            pairs: one row, and the row it is divided by.
            steady: compare the time per image at the steady rate, and not whole trials.

        Returns:
            (variant, the one it is divided by) -> comparison, for those with a block in common;
            with a verdict where the run is judged and they have enough blocks.
        """
        which = "steady_log_times" if steady else "log_times"
        log_times = {
            (one.variant, other.variant): (getattr(one, which), getattr(other, which))
            for one, other in pairs
        }
        floors = {
            (one.variant, other.variant): self.noise_floors[one.group] for one, other in pairs
        }
        return compare(log_times, noise_floors=floors, judged=self.judged)

    def agreement(self, row: Row) -> published.Agreement:
        """Return one of `published.WORDS` on the document's time; "" where nothing is judged."""
        if row.published is None or row.verdict in ("", "baseline", "machine unstable"):
            return ""
        base = next(one for one in self.rows if one.is_baseline and one.group == row.group)
        return published.agreement(
            row.published, row.normalized_time, row.ci_low, row.ci_high, row.verdict, base
        )

    def records(self) -> list[dict[str, Any]]:
        """Return every number of every row for JSON, in seconds, bytes and shares."""
        return [
            {
                **{name: getattr(row, name) for name in COLUMNS},
                "agreement": self.agreement(row),
                "hardware": [asdict(each) for each in row.hardware],
            }
            for row in self.rows
        ]


def summarize(
    info: RunInfo, trials: Sequence[AnyTrial], *, run: str = "", set_aside: int = 0
) -> Summary:
    """Derive one row per variant from a run's raw trials.

    Args:
        info: of the run.
        trials: the run's rows in the order they were written, of any status.
        run: the run folder's name.
        set_aside: lines of its file that are no rows.

    Returns:
        The rows, the noise floor and sentences about what is missing.
    """
    valid = valid_trials(info, trials)
    noise_floors = noise_floors_of(valid)
    rows = make_rows(info, trials, valid, noise_floors)
    return Summary(
        info=info,
        run=run,
        baseline=info.baseline,
        baselines=info.baseline_by_group,
        rows=tuple(rows),
        valid=valid,
        notes=tuple(notes_of(info, trials, valid, rows, noise_floors, set_aside)),
    )


def in_common(mappings: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all mappings hold under the same name."""
    first, *others = mappings or [{}]
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
