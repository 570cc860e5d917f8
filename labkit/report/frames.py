"""What charts draw, as one tidy DataFrame: a row for each mark.

    run ─▶ times_frame(), epochs_frame() ─▶ a row of the chart per variant
    run ─▶ find_axis() ─▶ over_axis() ────▶ points over a number that the variants vary

Columns: variant; panel, row and series (where a mark is drawn), x (over an axis: its number, or a
text where it has none); value, low, high (95 % interval), trials, outliers (places in trials) and
published, as normalized times or seconds; is_baseline; note (written beside a row); text (all of it
for screen readers).  An unknown number is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.analysis.describe import epoch_bars
from labkit.analysis.rows import Row
from labkit.analysis.summary import Summary
from labkit.analysis.thresholds import NEGLIGIBLE_SHARE
from labkit.parts.training.exchange import mbit_per_s
from labkit.records import OPERATION, ROOFLINE
from labkit.report import words
from labkit.report.thresholds import MIN_CURVE_NUMBERS, MIN_SIZE_RATIO
from labkit.settings import CORRECTED

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "variant", "panel", "row", "series", "x", "value", "low", "high", "trials", "outliers",
    "published", "is_baseline", "note", "text",
)  # fmt: skip
# How an axis names a setting; others have their own name.
AXIS_LABELS = {
    "batch_size": "batch size",
    "cache": "data in memory before each epoch, %",
    "exchange": "link between the machines, Mbit/s",
    "num_workers": "workers",
    "prefetch_factor": "batches that each worker loads ahead",
    "ranks": "GPUs",
}
SPEED_LABEL = "speed of the GPU ÷ the baseline's loading rate (x)"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The number that the variants of a run vary."""

    setting: str = ""
    """Name of the setting; empty where it is none."""
    labels: Mapping[str, str]
    """Panel -> label of its x axis."""
    x: Mapping[str, float | str]
    """Variant -> its number, or a text where it has none."""
    series: Mapping[str, str]
    """Variant -> its line."""
    panels: Mapping[str, str] = field(default_factory=dict)
    """Variant -> its panel; empty for one panel."""
    in_seconds: bool = False
    """Whether times are not divided by the baseline's, as each number has a baseline of its own."""


def tidy(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return records as a table with all of `COLUMNS`."""
    import pandas as pd

    frame = pd.DataFrame(records, columns=list(COLUMNS))
    numbers = ["value", "low", "high", "published"]
    return frame.astype(dict.fromkeys(numbers, float))


# --- a row per variant ------------------------------------------------------------------------


def mark(of: Row, name: str, **places: object) -> dict[str, Any]:
    """Return the record of a variant's normalized time; `name` is for screen readers."""
    interval = None if of.ci_low is None else units.interval(of.ci_low, of.ci_high)
    value = units.normalized(of.normalized_time)
    # The baseline's own is 1 by definition.
    published = None if of.is_baseline else of.published
    texts = [value, interval, of.verdict]
    if published is not None:
        texts.append(f"published {units.normalized(published)}")
    texts += [f"outlier {units.normalized(of.ratios[place])}" for place in of.outliers]
    record = {
        "variant": of.variant, "panel": "", "row": name, "series": "",
        "value": of.normalized_time, "low": of.ci_low, "high": of.ci_high,
        "trials": of.ratios, "outliers": of.outliers, "published": published,
        "is_baseline": of.is_baseline,
        "note": "\n".join(filter(None, [value, interval, of.verdict])),
        "text": f"{name}: {', '.join(filter(None, texts))}",
    }  # fmt: skip
    return {**record, **places}


def times_frame(summary: Summary) -> pd.DataFrame:
    """Return the normalized times of a run; of groups, a row each, and a series per name."""
    records, sizes = [], {} if summary.has_groups else _stored_sizes(summary)
    for row in summary.rows:
        if row.normalized_time is None:
            continue
        places = {}
        if summary.has_groups:
            row_name, panel = _place_of_group(summary, row)
            places = {"row": row_name, "panel": panel, "series": row.name, "note": ""}
        record = mark(row, row.variant, **places)
        if row.variant in sizes:
            record["note"] += f"\n{sizes[row.variant]}"
            record["text"] += f", {sizes[row.variant]}"
        if summary.has_groups:
            record["text"] += f", {units.seconds(row.time_s)}"
        records.append(record)
    return tidy(records)


def _stored_sizes(summary: Summary) -> dict[str, str]:
    """Return what an image takes where it is stored, by variant; empty where all are alike."""
    sizes = {}
    for row in summary.rows:
        stored_bytes = [trial.cache_proof.get("file_bytes") for trial in row.of_epochs]
        images = [trial.epochs[0].images for trial in row.of_epochs]
        if stored_bytes and all(stored_bytes) and images[0]:
            sizes[row.variant] = stored_bytes[0] / images[0]
    if not sizes or max(sizes.values()) < MIN_SIZE_RATIO * min(sizes.values()):
        return {}
    return {name: f"{units.count_bytes(size)} an image" for name, size in sizes.items()}


def _place_of_group(summary: Summary, row: Row) -> tuple[str, str]:
    """Return the row and the panel of a group: an operation and the size of its pictures."""
    task = summary.info.tasks.get(row.variant, {})
    if "width_px" not in task:
        return row.group, ""
    return str(task["operation"]), f"{task['width_px']}×{task['height_px']}"


def epochs_frame(summary: Summary) -> pd.DataFrame:
    """Return the seconds of each variant's first and later epochs, and where their bytes were."""
    records = []
    for row in summary.rows:
        in_memory, read, swapped = words.proof(row)
        proof = f"in memory before: {in_memory}\nfrom disk: {read}\npages swapped: {swapped}"
        for place, bar in enumerate(epoch_bars(row) if row.normalized_time is not None else ()):
            text = f"{row.variant}: {bar.name} {units.seconds(bar.mean_s)}"
            records.append(
                {
                    "variant": row.variant, "row": row.variant, "panel": "",
                    # Variants may differ in their number of epochs.
                    "series": ("epoch 1", "later epochs")[place], "value": bar.mean_s,
                    "trials": bar.all_s, "outliers": (), "is_baseline": False,
                    "note": "" if place else proof,
                    "text": text if place else f"{text}, {proof}".replace("\n", ", "),
                }
            )  # fmt: skip
    return tidy(records)


# --- over a number ----------------------------------------------------------------------------


def find_axis(summary: Summary) -> Axis | None:
    """Return the number that the variants vary; None where the chart has a row per variant."""
    if summary.kind == OPERATION:
        return _axis_of_sizes(summary)
    if summary.kind == ROOFLINE or summary.protocol != CORRECTED:
        return None
    return _axis_within_groups(summary) or _axis_of_speeds(summary) or _axis_across_groups(summary)


def over_axis(summary: Summary, axis: Axis) -> pd.DataFrame:
    """Return what was measured as points over an axis."""
    records = []
    for row in summary.rows:
        time = row.time_s if axis.in_seconds else row.normalized_time
        if time is None or row.variant not in axis.x:
            continue
        if axis.labels.get("") == SPEED_LABEL and row.is_baseline:
            continue  # 1 at every speed
        record = mark(
            row, row.variant, x=axis.x[row.variant], series=axis.series[row.variant],
            panel=axis.panels.get(row.variant, ""),
        )  # fmt: skip
        if axis.in_seconds:
            low, high = row.time_interval_s
            record |= {"value": row.time_s, "low": low, "high": high, "published": None}
            record["text"] = f"{row.variant}: {units.seconds(row.time_s)}"
        records.append(record)
    return tidy(records)


def _axis_within_groups(summary: Summary) -> Axis | None:
    """Return the setting whose numbers differ within a group, or in a run without groups."""
    info, base = summary.info, summary.info.settings_of(summary.baseline)
    groups: dict[str, list[str]] = {}
    for label in info.variants:
        groups.setdefault(info.group_of(label), []).append(label)
    # Where the experiment names the number, two of them are enough.
    least = 2 if info.x_axis else MIN_CURVE_NUMBERS
    chosen, chosen_distinct = None, 0
    for setting in [info.x_axis.setting] if info.x_axis else base:
        numbers = {label: _number(info.settings_of(label).get(setting)) for label in info.variants}
        distinct = max(
            len({numbers[label] for label in group} - {None}) for group in groups.values()
        )
        if distinct < least or distinct <= chosen_distinct:
            continue
        x: dict[str, float | str] = {}
        series = {}
        for label, number in numbers.items():
            name = info.name_of(label)
            x[label] = name if number is None else number
            if info.x_axis and number == 0:
                x[label] = "never"
            series[label] = info.group_of(label) or _differences(
                info.settings_of(label), base, setting
            )
        if len({(series[label], x[label]) for label in x}) < len(x):
            continue  # two variants in one place: it takes more than this number to tell them apart
        chosen_distinct = distinct
        chosen = Axis(setting=setting, labels={"": _label(summary, setting)}, x=x, series=series)
    return chosen


def _label(summary: Summary, setting: str) -> str:
    if summary.info.x_axis:
        return f"every N steps ({setting})"
    return AXIS_LABELS.get(setting, setting)


def _differences(settings: Mapping[str, Any], base: Mapping[str, Any], but: str) -> str:
    return ", ".join(
        f"{name} {units.text_of(value)}"
        for name, value in settings.items()
        if name != but and value != base.get(name)
    )


def _axis_of_speeds(summary: Summary) -> Axis | None:
    if len(summary.at_speeds) < 2:
        return None
    x = {row.variant: summary.info.x_of(row.variant) for row in summary.rows}
    return Axis(
        labels={"": SPEED_LABEL},
        x={label: speed for label, speed in x.items() if speed is not None},
        series={row.variant: row.name for row in summary.rows},
    )


def _axis_across_groups(summary: Summary) -> Axis | None:
    """Return the setting with one number in each group: each has a baseline of its own."""
    info = summary.info
    for setting in info.base_settings.__dataclass_fields__ if summary.has_groups else ():
        x = {label: _number(info.settings_of(label).get(setting)) for label in info.variants}
        numbers = {label: number for label, number in x.items() if number is not None}
        pairs = {(info.group_of(label), number) for label, number in numbers.items()}
        distinct = {number for _, number in pairs}
        if len(numbers) == len(x) and len(pairs) == len(distinct) >= MIN_CURVE_NUMBERS:
            return Axis(
                setting=setting,
                labels={"": AXIS_LABELS.get(setting, setting)},
                x=numbers,
                series={row.variant: row.name for row in summary.rows},
                in_seconds=True,
            )
    return None


def _axis_of_sizes(summary: Summary) -> Axis | None:
    """Return the one number that the inputs of operations are made from, a panel for each."""
    labels: dict[str, str] = {}
    x: dict[str, float | str] = {}
    panels = {}
    for label, task in summary.info.tasks.items():
        numbers = {name: n for name, n in task.items() if isinstance(n, int)}
        if len(numbers) == 1:
            ((name, x[label]),) = numbers.items()
            panels[label] = str(task["operation"])
            labels[panels[label]] = name
    series = {row.variant: row.name for row in summary.rows}
    return Axis(labels=labels, x=x, series=series, panels=panels, in_seconds=True) if x else None


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return mbit_per_s(value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# --- from how many steps on a cost is negligible ----------------------------------------------


def are_costs(table: pd.DataFrame) -> bool:
    """Return whether the baseline has no number of steps, so that times beside it are costs."""
    return all(isinstance(x, str) for x in table.x[table.is_baseline.astype(bool)])


def negligible_from(points: pd.DataFrame) -> float | None:
    """Return the fewest steps from which on each interval ends below `NEGLIGIBLE_SHARE`."""
    least = None
    for one in reversed([*points.itertuples()]):
        if not one.high <= 1 + NEGLIGIBLE_SHARE:  # NaN neither
            break
        least = one.x
    return least
