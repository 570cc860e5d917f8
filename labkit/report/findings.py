"""What a run's rows support beside its table: memory and warm disks, costs, combinations, savings.

Which variants belong together follows from their settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit import units
from labkit.analysis.describe import epoch_bars
from labkit.analysis.equal_work import other_work
from labkit.analysis.roofline import ALONE, pipelines
from labkit.analysis.rows import Row
from labkit.analysis.simulated import warnings
from labkit.analysis.winner import winner
from labkit.experiments.combined import SINGLE_EFFECTS
from labkit.machine import hardware
from labkit.parts.training.exchange import LINK
from labkit.records import Cost, ReadCounts, Trial
from labkit.report.table import Table, Tables
from labkit.report.thresholds import PAGE_CACHE_SHARE, SMALL_COMMUNICATION_SHARE
from labkit.report.words import check_baseline, not_measured, reason
from labkit.runs.store import StoredRun
from labkit.settings import Settings

PUBLISHED_TAKES = "the document's time takes"
MODELS = ("additive", "multiplicative", "best_single", "max_load_compute")


def findings(run: StoredRun) -> Tables:
    """Return what a run supports beside its table, without tables that would be empty."""
    if run.summary.kind == "roofline":
        tables = {"Training speed, images/s": _speeds(run)}
    elif run.info.groups:
        tables = {"What the network takes of a step": _communication(run)}
    else:
        tables = {
            "Memory and warm disks": _against_memory(run),
            "What storing costs": _costs(run),
            "Do the savings add up?": _combinations(run),
        }
    return Tables({title: table for title, table in tables.items() if table is not None})


def savings(run: StoredRun, *, epochs: int, images: int) -> Table:
    """Return what each variant would save over a whole training, as `Run.savings` describes it."""
    for name, value in (("epochs", epochs), ("images", images)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    check_baseline(run)
    data, summary = run.info.data, run.summary
    if not data.bytes:
        raise ValueError("run must record the size of its data, got none; run it again")
    data_bytes = data.bytes / data.images * images
    cache_bytes = PAGE_CACHE_SHARE * (run.info.provenance.memory_bytes or hardware.memory_bytes())
    fits = data_bytes <= cache_bytes
    # All trials of a run have equally many images.
    scale = images / next(
        trial.epochs[0].images for trial in run.trials if isinstance(trial, Trial) and trial.epochs
    )

    cells, base_s, extrapolated = [], None, []
    for row in summary.rows:
        first_s = later_s = total_s = None
        if row.trials:
            # Workers are started once an epoch, whatever it holds.
            first_s, *later = (
                bar.startup_s + scale * (bar.mean_s - bar.startup_s) for bar in epoch_bars(row)
            )
            later_s = first_s if not fits else later[0] if later else None
        remark = _why_left_out(row, run, fits=fits)
        if not remark and later_s is None and epochs > 1:
            remark = "later epochs were not measured; run it with epochs=2"
        if not remark:
            total_s = first_s + (epochs - 1) * (later_s or 0.0)
            extrapolated.append(row.variant)
            remark = _not_counted(row, run)
        if row is summary.rows[0]:
            base_s = total_s
        saved_h = None if None in (base_s, total_s) else (base_s - total_s) / 3600
        cells.append(
            {
                "variant": row.variant,
                "normalized_time": row.normalized_time,
                "verdict": row.verdict,
                "first_epoch_s": first_s,
                "later_epoch_s": later_s,
                "total_h": total_s and total_s / 3600,
                "saved_h": saved_h,
                "remark": remark,
            }
        )
    best = winner(summary, among=extrapolated)
    winner_text = f"Winner: {best.variant}" if best else "No variant is measurably faster"
    verdict = "" if summary.judged else f"; no verdict in {summary.mode} mode"
    return Table(
        cells,
        heading=(f"{epochs} epochs of {images:,} images", *warnings(summary)),
        notes=(
            f"{winner_text}{verdict}.",
            f"The full data set has {units.count_bytes(data_bytes)}, the page cache holds "
            f"{units.count_bytes(cache_bytes)} ({units.percent(PAGE_CACHE_SHARE)} of memory): "
            f"later epochs are read from {'memory' if fits else 'the disk'}.",
        ),
    )


def _why_left_out(row: Row, run: StoredRun, *, fits: bool) -> str:
    """Return why a variant is not extrapolated, "" where it is."""
    if why := reason(row):
        return why
    if row.normalized_time < 1:
        if why := other_work(run.info, row.variant, run.summary.baseline):
            return why
    if fits:
        return ""
    if run.summary.facts(row.variant).stays_in_memory:
        return "the full data set does not fit into memory"
    if row.cache != "cold":
        cache = row.cache or "warm"
        return f"measured {cache}, but the full data set does not fit into memory; run it cold"
    return ""


def _not_counted(row: Row, run: StoredRun) -> str:
    if run.summary.facts(row.variant).stays_in_memory:
        return "without the copy into memory"
    return "" if row.cache == "cold" else "without the first, cold epoch"


# --- speeds of a device -----------------------------------------------------------------


def _speeds(run: StoredRun) -> Table | None:
    """Return what each pipeline reaches with each speed of the device, and loading alone."""
    measured, cells = pipelines(run.summary), []
    if not measured:
        return None
    for pipeline in measured:
        cells.append({"variant": pipeline.name})
        for point in pipeline.points:
            speed = f"{point.images_per_s:,.0f}"
            cells[-1][f"GPU of {point.device_images_per_s:,.0f}"] = speed
        if pipeline.loading:
            cells[-1][ALONE] = f"{pipeline.loading.images_per_s:,.0f}"
            base = measured[0].loading
            if base and (published := pipeline.loading.row.published or 1) < 1:
                takes = f"{base.images_per_s / published:,.0f} ({units.normalized(published)})"
                cells[-1][PUBLISHED_TAKES] = takes
    notes = ["GPU of N: it trains N images/s with the model alone."]
    if any(PUBLISHED_TAKES in row for row in cells):
        notes.append(
            f"{PUBLISHED_TAKES}: the baseline's loading alone ÷ the document's normalized time; "
            "the GPU must be as fast."
        )
    return Table(cells, notes=(*notes, *not_measured(run.summary)))


# --- communication ----------------------------------------------------------------------


def _communication(run: StoredRun) -> Table | None:
    """Return the share of a step that each exchange of gradients takes, beside none at all."""
    variants, cells, bandwidths = run.info.variants, [], []
    for group, base in run.info.baselines.items():
        if variants[base].exchange != "noop":
            continue
        networks: list[tuple[float, float]] = []  # 1 ÷ Mbit/s, 0 without a link; normalized time
        for row in run.summary.rows:
            exchange = variants[row.variant].exchange
            if row.group != group or exchange in ("noop", "no_sync"):
                continue
            times = {"share": row.normalized_time, "ci_low": row.ci_low, "ci_high": row.ci_high}
            shares = {name: x and max(1 - 1 / x, 0.0) for name, x in times.items()}
            cells.append({"group": group, "variant": row.name, **shares, "remark": reason(row)})
            link = LINK.fullmatch(exchange)
            is_network = exchange == "all_reduce" or link is not None
            # Variants of the user's own may differ in more.
            is_alike = replace(variants[row.variant], exchange="noop") == variants[base]
            if row.normalized_time and is_network and is_alike:
                networks.append((1 / int(link[1]) if link else 0.0, row.normalized_time))
        networks.sort()
        if networks and networks[0][0] == 0:
            less = units.limit(SMALL_COMMUNICATION_SHARE)
            bandwidths.append(
                f"{group}: without that work, a link takes less than {less} of a "
                f"step {_from_bandwidth(networks)}."
            )
    if not cells:
        return None
    notes = [
        "share: 1 - 1 ÷ normalized time; communication that computing does not hide.",
        "this machine's loopback: the exchange's work on the processor, which the shares over "
        "links include.",
        *bandwidths,
        "Between two networks, times lie on a straight line over 1 ÷ bandwidth.",
    ]
    return Table(cells, notes=notes)


def _from_bandwidth(networks: Sequence[tuple[float, float]]) -> str:
    """Return from which bandwidth on a link takes little of a step.

    Args:
        networks: 1 ÷ Mbit/s and normalized time of each; the loopback, then the fastest link first.
    """
    _, loopback = networks[0]
    most = loopback / (1 - SMALL_COMMUNICATION_SHARE)
    too_slow = next((i for i, (_, time) in enumerate(networks) if time >= most), None)
    if too_slow is None:
        return "over every network here"
    (at, time), (next_at, next_time) = networks[too_slow - 1 : too_slow + 1]
    at += (next_at - at) * (most - time) / (next_time - time)
    return f"from about {1 / at:,.0f} Mbit/s on"


# --- memory and warm disks --------------------------------------------------------------


def _against_memory(run: StoredRun) -> Table | None:
    """Compare media in memory with warm disks."""
    variants = run.info.variants
    rows = [row for row in run.summary.rows if row.trials and row.variant in variants]
    in_memory = [row for row in rows if run.summary.facts(row.variant).stays_in_memory]
    pairs = [
        (row, disk)
        for row in in_memory
        for disk in rows
        # A row that is labelled warm was measured to be: its trials count only then.
        if disk not in in_memory
        and disk.cache == "warm"
        and _differ_only_in_medium(variants[disk.variant], variants[row.variant])
    ]
    comparisons = run.summary.compare(pairs)
    cells = []
    for row, disk in pairs:
        if compared := comparisons.get((row.variant, disk.variant)):
            pages = [row.swapped_pages, disk.swapped_pages]
            cells.append(
                {
                    "variant": row.variant,
                    "divided by": disk.variant,
                    "ratio": compared.ratio,
                    "ci_low": compared.low,
                    "ci_high": compared.high,
                    "verdict": compared.verdict,
                    "swapped_pages": None if None in pages else sum(pages),
                }
            )
    note = "swapped_pages: of the whole machine, in the trials of both."
    return Table(cells, notes=(note,)) if cells else None


def _differ_only_in_medium(one: Settings, other: Settings) -> bool:
    return replace(one, cache=other.cache, storage=other.storage) == other


# --- what storing costs -----------------------------------------------------------------


def _costs(run: StoredRun) -> Table | None:
    """Return what stored files cost once, and after how many epochs that is earned back."""
    made, summary, data = run.info.costs, run.summary, run.info.data
    differing = run.info.psnr_db
    if not made:
        return None
    base, cells = made.get(summary.baseline), []
    for row in summary.rows:
        own = made.get(row.variant)
        if own is None and row.variant != summary.baseline:
            continue  # it reads the original files
        reads = run.info.reads.get(row.variant, ReadCounts())
        size_bytes = own.bytes if own else data.bytes
        made_s, saved_s = _made_s(own), _saved_s_per_epoch(row, run)
        # Equal files cost nothing more; a gain that is not shown earns nothing back.
        gains = own != base and row.compared.is_shorter and row.verdict in ("", "faster")
        epochs = None
        if gains and made_s is not None and saved_s is not None and saved_s > 0:
            epochs = math.ceil(max(0.0, made_s - (_made_s(base) or 0.0)) / saved_s)
        cells.append(
            {
                "variant": row.variant,
                "size_bytes": size_bytes,
                "of_original": size_bytes / data.bytes if data.bytes else None,
                "made_s": made_s,
                "opens_per_image": reads.opens,
                "reads_per_image": reads.calls,
                "disk_requests_per_image": reads.requests,
                "saved_s_per_epoch": saved_s,
                "earned_back_epochs": epochs,
            }
            | ({"psnr_db": differing.get(row.variant)} if differing else {})
        )
    notes: tuple[str, ...] = (
        "Opens, reads and disk requests are counted in a separate pass over cold images, without "
        "workers; files mapped into memory are read without calls.",
        "saved_s_per_epoch is for an epoch of all images. earned_back_epochs is made_s beyond the "
        "baseline's, divided by it.",
    )
    if differing:
        notes = (
            *notes,
            "psnr_db is the peak signal-to-noise ratio of a batch to the baseline's, of variants "
            "whose pixels differ by design.",
        )
    return Table(cells, notes=notes)


def _made_s(made: Cost | None) -> float | None:
    """Add up the seconds of packing and copying; None where nothing was made, or it is unknown."""
    return None if made is None or made.pack_s is None else made.pack_s + made.copy_s


def _saved_s_per_epoch(row: Row, run: StoredRun) -> float | None:
    summary, images = run.summary, run.summary.calibration.images
    base_s = summary.rows[0].time_s
    if row.variant == summary.baseline or None in (row.normalized_time, base_s, images):
        return None
    epoch_s = base_s / summary.epochs * run.info.data.images / images
    return epoch_s * (1 - row.normalized_time)


# --- do single changes predict combined ones? -------------------------------------------


def _combinations(run: StoredRun) -> Table | None:
    """Compare combined changes with what the single ones predict.

    The max model assumes that loading and computing run side by side, so that the longer one sets
    the pace; what the baseline does not overlap is added. Loading alone is measured by a variant
    without a step, computing alone by one with a resident batch.

    Source: DOCUMENTS C, "Combined"; the differential method is DS-Analyzer's (VLDB 2021).
    """
    rows = {row.variant: row for row in run.summary.rows}
    base = run.info.base_settings
    base_key = _factors(base)
    as_in_base: dict[str, Any] = dict(zip(("storage", "prefetcher", "preprocessor"), base_key))
    combinations: dict[tuple, Row] = {}
    loads: dict[tuple, Row] = {}
    computes: dict[object, Row] = {}
    for name, settings in run.info.variants.items():
        storage, prefetcher, preprocessor = key = _factors(settings)
        facts = run.summary.facts(name)
        if facts.trains_nothing:
            if prefetcher == base.prefetcher:
                loads.setdefault((storage, preprocessor), rows[name])
        elif facts.repeats_one_batch:
            computes.setdefault(preprocessor, rows[name])
        elif replace(settings, **as_in_base) == base:
            combinations.setdefault(key, rows[name])
    changed = {key: [i for i in range(3) if key[i] != base_key[i]] for key in combinations}
    if not any(len(places) > 1 for places in changed.values()):
        return None
    cells = []
    for key, row in combinations.items():
        if not changed[key]:
            continue
        singles = [
            combinations.get((*base_key[:i], key[i], *base_key[i + 1 :])) for i in changed[key]
        ]
        if len(singles) == 1:  # a single change would predict itself
            singles = []
        parts = []
        for storage, _, preprocessor in (key, base_key):
            parts += [loads.get((storage, preprocessor)), computes.get(preprocessor)]
        predicted = [*_compose(list(map(_time, singles))), _max_model(*map(_time, parts))]
        missing = "to predict, run all variants in full mode" if None in [*singles, *parts] else ""
        measured = row.normalized_time, row.ci_low, row.ci_high
        cells.append(_predicted(row.variant, *measured, predicted, reason(row) or missing))
    for label, times in SINGLE_EFFECTS.items():
        if (row := rows.get(label)) and row.published:
            measured = row.published, None, None
            predicted, remark = [*_compose([*times.values()]), None], "single runs, no interval"
            cells.append(_predicted(f"published: {label}", *measured, predicted, remark))
    return Table(cells)


def _predicted(
    variant: str,
    measured: float | None,
    low: float | None,
    high: float | None,
    predicted: Sequence[float | None],
    remark: str,
) -> dict[str, Any]:
    inside = [
        name for name, x in zip(MODELS, predicted) if None not in (x, low) and low <= x <= high
    ]
    return {
        "variant": variant,
        "measured": measured,
        "ci_low": low,
        "ci_high": high,
        **dict(zip(MODELS, predicted)),
        "inside_interval": ", ".join(inside),
        "remark": remark,
    }


def _factors(settings: Settings) -> tuple[str, ...]:
    return settings.storage, settings.prefetcher, settings.preprocessor


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
    """Predict from loading and computing alone, as shares of the baseline's time, which is 1."""
    if None in (load, compute, base_load, base_compute):
        return None
    # Such a part is noisy: one above the baseline leaves nothing that could be unoverlapped.
    return max(load, compute) + max(0.0, 1 - max(base_load, base_compute))
