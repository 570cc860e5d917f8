"""The sentences that tables, charts, the report and the panel share.

Summary -> conditions(), proofs(), checks()               of a run
Row     -> published(), reason(), proof()                 of a variant
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from labkit import units
from labkit.analysis import cache_state, published
from labkit.analysis.compare import NOTHING, Comparison
from labkit.analysis.equal_work import other_work
from labkit.analysis.roofline import Pipeline, Speed, pipelines, published_takes
from labkit.analysis.rows import Row
from labkit.analysis.simulated import beside_the_loader, describe_rate, simulated
from labkit.analysis.summary import Summary
from labkit.analysis.thresholds import DELTA
from labkit.analysis.winner import reasons_against_others, winner
from labkit.experiments.request import Request
from labkit.machine import hardware
from labkit.records import EPOCHS, ROOFLINE, UNKNOWN, ProvedRates, Provenance, RunInfo
from labkit.report.thresholds import FIRST_EPOCH_READS_SHARES
from labkit.resolve import libraries_of
from labkit.runs.store import StoredRun, readable_reason
from labkit.runs.thresholds import MAX_RATE_ERROR_SHARE, MIN_FREE_LOADER_UTILIZATION
from labkit.settings import CORRECTED, MODES

# --- a run ------------------------------------------------------------------------------


def conditions(summary: Summary) -> str:
    """Return in one line how a run was measured: mode, blocks, labels, source."""
    info = summary.info
    source = f"source: {info.source}" if info.source else ""
    parts = [*how_measured(summary), *plain_labels(summary), source]
    return " · ".join(filter(None, parts))


def how_measured(summary: Summary) -> list[str]:
    """Return the mode, the blocks that count, and what is special about the run."""
    blocks = units.count(summary.n_blocks, "block")
    if summary.valid.disturbed:
        left_out = ", left out" if summary.valid.are_disturbed_left_out else ""
        blocks += f", {len(summary.valid.disturbed)} disturbed{left_out}"
    parts = [f"{summary.mode} mode", blocks]
    if summary.judged and not summary.stable:
        parts.append("machine unstable, no verdicts")
    if summary.protocol != CORRECTED:
        parts.append(summary.protocol)
    return parts


def plain_labels(summary: Summary) -> list[str]:
    """Return the labels and the real hardware that all variants share, and what the data is."""
    labels = summary.labels | {
        hardware.kind: str(hardware) for hardware in summary.hardware if hardware.how == "real"
    }
    own = [row for row in summary.rows if row.hardware and row.variant == summary.baseline]
    if summary.kind != "roofline":
        own = [row for row in summary.rows if row.hardware]
    rates = {row.device_images_per_s for row in own}
    if "device" in labels and len(rates) == 1 and None not in rates:
        labels["device"] += f", {units.rate(*rates)}"
        labels["device"] += f" ({x})" if (x := beside_the_loader(own)) else ""
    if summary.info.data.kind:
        labels["data"] = summary.info.data.kind
    return [f"{name}: {label}" for name, label in sorted(labels.items())]


def other_images(summary: Summary) -> list[str]:
    """Return the variants that read or decode other images than the rest, which charts must say."""
    if "images" in summary.labels:
        return []
    names_by_images: dict[
        str, dict[str, None]
    ] = {}  # each name once, however many groups a variant is in
    for row in summary.rows:
        if "images" in row.labels:
            names_by_images.setdefault(row.labels["images"], {})[row.name] = None
    return [f"{', '.join(names)}: {images}" for images, names in names_by_images.items()]


def same_code_twice(noise_floor: Comparison) -> str:
    """Return how far two trials of a baseline differ: "two runs of the same code differ by …"."""
    if not noise_floor.blocks:
        return ""
    change = units.change(noise_floor.ratio, noise_floor.low, noise_floor.high)
    return f"two runs of the same code differ by {change}"


def checks(summary: Summary) -> list[str]:
    """Return how close simulated hardware came to what it simulates, measured before the run.

    Returns:
        Lines such as "simulated GPU: 99.7 % utilization without loading (at least 99 % required)";
        empty where nothing is simulated.
    """
    sentences, info, calibration = [], summary.info, summary.calibration
    if calibration.free_loader_au is not None:
        # Several beside each other have not proved it.
        one = "one " * any(settings.ranks > 1 for settings in info.variants.values())
        sentences.append(
            f"{one}simulated GPU: {units.percent(calibration.free_loader_au)} utilization without "
            f"loading (at least {units.limit(MIN_FREE_LOADER_UTILIZATION)} required"
            f"{_when(calibration.free_loader_checked_utc)})"
        )
    proved: dict[str, ProvedRates] = {**info.storages, **info.links}
    for name, facts in proved.items():
        if facts.rates:
            sentences.append(
                f"{name}: {', '.join(map(describe_rate, facts.rates))} (tolerance: "
                f"{units.limit(MAX_RATE_ERROR_SHARE)}{_when(facts.rates_checked_utc)})"
            )
    return sentences


def result(summary: Summary) -> list[str]:
    """Return what a run shows, a sentence each."""
    if summary.kind == "roofline":
        takes = [f"Published: {text}" for text in published_takes(summary).values()]
        return [*filter(None, [with_this_device(summary, pipelines(summary))]), *takes]
    if summary.kind == "operation":
        return _fastest_operations(summary)
    if summary.has_groups:
        of_speeds = [
            f"x = {x:g}: {line}"
            for x, compared in summary.at_speeds.items()
            for line in result(compared)[:1]
        ]
        return [*several_gpus(summary), *of_speeds]
    base = summary.rows[0]
    if base.normalized_time is None:
        return several_gpus(summary)
    if summary.protocol != CORRECTED:
        again = [row for row in summary.rows if _is_the_same_code(summary, row)]
        return [
            f"{row.variant}, the same code: {normalized(row)} of its first time" for row in again
        ]
    best = winner(summary)
    if not comparable(summary):
        return bound(summary)
    if best is None:
        answer = "; ".join(
            [
                f"No variant is measurably faster than {base.name}",
                *(f"{name}: {why}" for name, why in reasons_against_others(summary).items()),
            ]
        )
    else:
        verdict = best.verdict or f"no verdict in {summary.mode} mode"
        answer = f"{best.name}: {normalized(best)} of the time of {base.name}, {verdict}"
    return [answer, *bound(summary)]


def in_short(summary: Summary) -> str:
    """Return a run's headline, or else the first sentence of its result; "" where it has none."""
    answers = [headline(summary), *result(summary)]
    if all(row.normalized_time is None for row in summary.rows[1:]):
        answers.append("No variant has a time")
    return next(filter(None, answers), "")


def comparable(summary: Summary) -> list[Row]:
    """Return the variants with a time that do the baseline's whole work."""
    return [
        row
        for row in summary.rows[1:]
        if row.normalized_time is not None and not summary.is_floor(row.variant)
    ]


def _fastest_operations(summary: Summary) -> list[str]:
    """Return which library does how many operations fastest; those that are not clear count as one.

    The fastest of a group has 95 % intervals below 1 with all others of it.
    """
    fastest: list[str] = []
    for rows in summary.groups().values():
        measured = sorted((row for row in rows if row.time_s), key=lambda row: row.time_s)
        if len(measured) < 2:
            continue
        best, *others = measured
        compared = summary.compare([(best, other) for other in others])
        is_fastest = all(
            compared.get((best.variant, other.variant), NOTHING).is_shorter for other in others
        )
        fastest.append(best.name if is_fastest else "none clearly")
    counts = Counter(fastest).most_common()
    answer = ", ".join(f"{name} in {n}" for name, n in counts)
    return [f"Fastest, of {len(fastest)} operations: {answer}"] if counts else []


def headline(summary: Summary) -> str:
    """Return what a run answers, as the title of its chart; "" where nothing is comparable.

    Groups, as several speeds of the device, that have the same answer share it.
    """
    if summary.kind == ROOFLINE:
        return _fastest_with_this_device(summary)
    if summary.kind != EPOCHS or summary.protocol != CORRECTED:
        return next(iter(result(summary)), "")
    if not summary.has_groups:
        return _headline_of(summary)
    groups: dict[str, list[str]] = {}
    for group, compared in summary.by_group.items():
        if sentence := _headline_of(compared, with_intervals=False):
            groups.setdefault(sentence[0].lower() + sentence[1:], []).append(group)
    rates = {f"x = {x:g}": f"{x:g} ×" for x in summary.at_speeds}
    answers = []
    for sentence, names in groups.items():
        where = ", ".join(names)
        if all(name in rates for name in names):
            where = f"GPU at {' and '.join(rates[name] for name in names)} the loading rate"
        answers.append(f"{where}: {sentence}")
    return "; ".join(answers)


def _fastest_with_this_device(summary: Summary) -> str:
    """Return the baseline's and the fastest pipeline's speed beside this device's."""
    points = _points_with_this_device(summary, pipelines(summary))
    if len(points) < 2:
        return ""
    base, *others = points
    compared = summary.compare([(point.row, base.row) for point in others], steady=True)
    faster = [
        point
        for point in others
        if compared.get((point.row.variant, base.row.variant), NOTHING).is_shorter
    ]
    at = f"At a GPU speed of {units.rate(base.device_images_per_s)}"
    if not faster:
        return f"{at}, no pipeline is measurably faster than {base.row.name}"
    best = max(faster, key=lambda point: point.images_per_s)
    return f"{at}: {base.images_per_s:,.0f} → {best.images_per_s:,.0f} images/s {best.row.name}"


def _headline_of(summary: Summary, *, with_intervals: bool = True) -> str:
    """Return which variant saves most, which costs most, or that none differs, in one group."""
    base, measured = summary.rows[0], comparable(summary)
    if base.normalized_time is None or not measured:
        return ""
    best, rest = winner(summary), ""
    fastest, slowest = (f(measured, key=lambda row: row.normalized_time) for f in (min, max))
    if best is not None:
        answer = f"{less_time(best.normalized_time)} {using(best)}"
        ends = f" [{units.percent(1 - best.ci_high)}, {units.percent(1 - best.ci_low)}]"
        if (faster := _faster_by_other_work(summary)) is not None:
            saved = units.percent(1 - faster.normalized_time)
            rest = f" ({saved} {using(faster)}: other work)"
    elif _costs(summary, slowest) and slowest.normalized_time * fastest.normalized_time > 1:
        ratio = units.three_digits(slowest.normalized_time)
        answer = f"{ratio} times as long {using(slowest)} as {using(base)}"
        ends = f" {units.interval(slowest.ci_low, slowest.ci_high)}"
    else:
        lows = [row.ci_low for row in measured if row.ci_low is not None]
        highs = [row.ci_high for row in measured if row.ci_high is not None]
        answer = f"No variant is measurably faster than {base.name}"
        if len(measured) == 1:
            kind = "practical" if fastest.verdict == "no practical difference" else "clear"
            answer = f"No {kind} difference between {fastest.name} and {base.name}"
            ends = f": {units.change(fastest.normalized_time, fastest.ci_low, fastest.ci_high)}"
            if kind == "clear" and lows and not lows[0] <= 1 <= highs[0]:
                answer = f"{less_time(fastest.normalized_time)} {using(fastest)}"
                ends = f" (95 % interval {units.change(lows[0])} to {units.change(highs[0])})"
                if reason := reasons_against_others(summary).get(fastest.name):
                    rest = f"; {reason}"
        elif lows:
            ends = f" (95 % intervals from {units.change(min(lows))} to {units.change(max(highs))})"
        if not lows:
            answer = f"One block shows no difference from {base.name}"
            times = (fastest.normalized_time, slowest.normalized_time)
            ends = f" ({' to '.join(dict.fromkeys(map(units.change, times)))})"
    return f"{answer}{ends}{rest}" if with_intervals else f"{answer}{rest}"


def _faster_by_other_work(summary: Summary) -> Row | None:
    """Return what took less time than the winner and cannot win, as its work is not the same."""
    names = reasons_against_others(summary)
    faster = [
        row
        for row in summary.rows
        if row.name in names
        and (row.ci_high or 1) < 1
        and other_work(summary.info, row.variant, summary.baseline)
    ]
    return min(faster, key=lambda row: row.normalized_time, default=None)


def _costs(summary: Summary, row: Row) -> bool:
    """Return whether a variant is measurably slower than the baseline."""
    if row.ci_low is None or row.ci_low <= 1 or row.normalized_time < 1 + DELTA:
        return False
    return row.verdict == "slower" if summary.judged else True


def _is_the_same_code(summary: Summary, row: Row) -> bool:
    """Whether a variant is the baseline once more, from the cache that was left behind."""
    own, base = (summary.info.settings_of(label) for label in (row.variant, summary.baseline))
    return row.variant != summary.baseline and {**own, "cache": base.get("cache")} == base


def bound(summary: Summary) -> list[str]:
    """Return how far faster loading can shorten the epoch here; nothing where it is not known."""
    base = next((row for row in summary.rows if row.is_baseline), None)
    if summary.x is None or summary.has_groups or base.normalized_time is None:
        return []
    if any(settings.ranks > 1 for settings in summary.info.variants.values()):
        return []  # several GPUs are faster than one
    # What the device computes in the baseline's epochs remains.
    most = max(0.0, 1 - published.least_time(base))
    if most < 0.001:
        return ["Faster loading saves nothing here: the device is the limit"]
    return [f"Faster loading can save about {units.percent(most)} of the time at most"]


def several_gpus(summary: Summary) -> list[str]:
    """Return what several GPUs need and this machine loads; nothing of a run with one GPU."""
    info, calibration = summary.info, summary.calibration
    if (loaded := calibration.load_images_per_s) is None:
        return []
    # The run's own, or a real one that was measured beside it.
    own = calibration.device_images_per_s or calibration.real_gpu_images_per_s
    needs: dict[float, list[str]] = {}  # images/s of one GPU -> what several need
    for label, settings in info.variants.items():
        x = info.x_of(label)
        one = x * loaded if x else own
        if one and settings.ranks > 1:
            needs.setdefault(one, []).append(f"{settings.ranks} need {settings.ranks * one:,.0f}")
    return [
        f"GPUs that train {units.rate(one)} each: {', '.join(several)}; this machine loads "
        f"{units.rate(loaded)}"
        for one, several in needs.items()
    ]


def _when(checked_utc: str) -> str:
    return f"; checked {units.minute(checked_utc)}" if checked_utc else ""


def origin(summary: Summary) -> str:
    """Return in one line the machine, versions, run and time; nothing personal."""
    info, provenance = summary.info, summary.info.provenance
    parts = [hardware.describe(provenance) if provenance.machine_id != UNKNOWN else ""]
    parts += [", ".join(_versions(info)), revision(provenance)]
    parts.append(f"run {summary.run}" if summary.run else "")
    parts.append(units.minute(info.created_utc))
    return " · ".join(filter(None, parts))


def revision(provenance: Provenance) -> str:
    """Return the commit of labkit that measured, "" where it is not known."""
    changed = " with changes" * bool(provenance.dirty)
    commit = provenance.revision
    return "" if commit == UNKNOWN else f"labkit {commit[:7]}{changed}"


def _versions(info: RunInfo) -> list[str]:
    """Return the versions of torch and of the libraries that the variants work with."""
    used = {"torch", *(task.get("library") for task in info.tasks.values())}
    used = used.union(*(libraries_of(info.settings_of(label)) for label in info.variants))
    return [
        f"{name} {version}"
        for name, version in info.provenance.versions.items()
        if name in used and version != UNKNOWN
    ]


# --- a variant --------------------------------------------------------------------------


def reason(row: Row) -> str:
    """Return why a variant has no number; "" where it has one."""
    if row.normalized_time is not None:
        return ""
    return ": ".join(filter(None, [row.status, readable_reason(row.reason)]))


def check_baseline(run: StoredRun) -> None:
    """Refuse a run whose variants have no common baseline with a number.

    Raises:
        ValueError: there is none.
    """
    if run.info.groups:
        is_roofline = run.info.kind == ROOFLINE
        of = Request.read(run.info).experiment if is_roofline else "combined"
        raise ValueError(
            f"run must be of an experiment without groups, got {run.info.experiment}; "
            f"take a run of {of or 'another one'}"
        )
    if why := reason(run.summary.rows[0]):
        raise ValueError(
            f"run must hold a complete block of its baseline, got none in {run.folder.name}; "
            f"complete it with: labkit run --resume {run.folder.name}, or start a new run ({why})"
        )


def normalized(row: Row) -> str:
    """Return a normalized time and its 95 % interval: "0.894 [0.881, 0.907]"."""
    return units.normalized(row.normalized_time, row.ci_low, row.ci_high)


def published_text(summary: Summary, row: Row) -> str:
    """Return the document's figure, or a dash, and what this run says of it."""
    return ", ".join(filter(None, [units.normalized(row.published), agreement_text(summary, row)]))


def using(row: Row) -> str:
    """Return a variant as part of a sentence: "with threads", whether or not its name says so."""
    return f"with {row.name.removeprefix('with ')}"


def less_time(ratio: float) -> str:
    """Return a normalized time as a change: "34.0 % less time", "2.0 % more time"."""
    return f"{units.percent(abs(1 - ratio))} {'less' if ratio <= 1 else 'more'} time"


def beside_the_documents(summaries: Sequence[Summary]) -> list[tuple[Summary, Row]]:
    """Return the variants with a published figure, whichever their run.

    Runs as in the document are left out: the order of their variants may explain what they show.
    """
    return [
        (compared, row)
        for summary in summaries
        if summary.protocol == CORRECTED
        for compared in summary.comparisons
        for row in compared.rows
        if row.published is not None and not row.is_baseline
    ]


def answer(summaries: Sequence[Summary]) -> str:
    """Return in one sentence what runs say of the documents' figures; "" without such figures."""
    measured = [
        (summary, row)
        for summary, row in beside_the_documents(summaries)
        if row.normalized_time is not None
    ]
    text = published.answer([summary.agreement(row) for summary, row in measured])
    what = simulated([row for summary, own in measured for row in (summary.rows[0], own)])
    return f"{text.removesuffix('.')} ({what})." if what else text


def agreement_text(summary: Summary, row: Row) -> str:
    """Return what a run says of the document's figure, with what was simulated beside it.

    Returns:
        "saves more than published · simulated GPU"; empty where nothing is judged.
    """
    word = summary.agreement(row)
    if not word:
        return ""
    base = next(r for r in summary.rows if r.is_baseline and r.group == row.group)
    why = f": {published.bound(base)}" if word == "not reproducible here" else ""
    return " · ".join(filter(None, [f"{word}{why}", simulated([base, row])]))


def proofs(summary: Summary) -> list[str]:
    """Return what each variant's number rests on, for those that have one.

    Returns:
        "ssd: 8 of 10 blocks · smallest detectable effect 4.1 % · cold, verified: epoch 1 from disk,
        epoch 2 from memory", then simulated hardware, outliers and trials that were left out.
    """
    text_by_variant, n = {}, summary.n_blocks
    # Labels of variants whose work is not the same as the baseline's.
    of_work = ("images", "order", "loss", "precision", "model", "training loop", "ranks")
    for row in summary.rows:
        if row.normalized_time is None:
            continue
        is_judged = MODES[summary.mode].judged and row.mde is not None
        noise = f"smallest detectable effect {units.percent(row.mde)}" if is_judged else ""
        if row.is_baseline:
            noise = same_code_twice(summary.noise_floors[row.group])
        parts = [
            f"{row.blocks} of {n} blocks" if row.blocks < n else "",
            noise,
            _cache(row),
            *(row.labels.get(kind, "") for kind in of_work if kind not in summary.labels),
            *_own_hardware(summary, row),
            _outliers(row),
            _disturbed(row),
        ]
        text_by_variant[row.variant] = " · ".join(filter(None, parts))
    return [f"{name}: {text}" for name, text in text_by_variant.items() if text]


def proof(row: Row) -> tuple[str, str, str]:
    """Return what was measured of a variant's files: in memory, read from disk, pages swapped.

    Returns:
        "0.0 % (cold)" (before epoch 1), "50.0 %" (of the bytes of all epochs), "0".
    """
    cache, share = row.cache, row.resident_share_before
    in_memory = UNKNOWN if share is None else units.percent(share)
    read = UNKNOWN if row.device_read_share is None else units.percent(row.device_read_share)
    swapped = UNKNOWN if row.swapped_pages is None else units.count(row.swapped_pages)
    return f"{in_memory} ({cache})" if cache else in_memory, read, swapped


def _outliers(row: Row) -> str:
    values = ", ".join(units.normalized(row.ratios[place]) for place in row.outliers)
    return f"{units.count(len(row.outliers), 'outlier')}, kept: {values}" if values else ""


def _disturbed(row: Row) -> str:
    values = ", ".join(f"{units.normalized(ratio)} (block {b + 1})" for b, ratio in row.disturbed)
    return f"disturbed, left out of the verdict: {values}" if values else ""


def _cache(row: Row) -> str:
    """Return the cache state with its measurement; "warm, not verified" without one."""
    cache, before, read = row.cache, row.resident_share_before, row.device_read_share
    measured = [] if before is None else [f"{units.percent(before)} in memory before"]
    if read is not None:
        measured.append(f"{units.percent(read)} of bytes from disk")
    is_verified = cache_state.is_verified(cache, before, read)
    low, high = FIRST_EPOCH_READS_SHARES
    if is_verified and len(row.of_epochs[0].epochs) == 2 and low < (read or 0.0) < high:
        measured = ["epoch 1 from disk, epoch 2 from memory"]
    if row.swapped_pages:
        measured.append(f"{units.count(row.swapped_pages, 'page')} swapped")
    shares = ", ".join(measured)
    if is_verified:
        return f"{cache}, verified: {shares}"
    if cache in ("cold", "warm"):
        return f"{cache}, not verified" + f": {shares}" * bool(shares)
    return f"{cache} ({shares or 'not measured'})" if cache else shares


def _own_hardware(summary: Summary, row: Row) -> list[str]:
    """Return the storages and devices of a variant that the others do not share."""
    names = [
        hardware.name
        for hardware in dict.fromkeys(each for other in summary.rows for each in other.hardware)
    ]
    # The details stand above the table, unless they tell two variants apart.
    return [
        hardware.name if names.count(hardware.name) == 1 else str(hardware)
        for hardware in row.hardware
        if hardware not in summary.hardware
    ]


# --- a roofline -------------------------------------------------------------------------


def own_device(summary: Summary) -> tuple[float | None, str]:
    """Return the speed of the device that a roofline is read at, and what it is."""
    if (rate := summary.calibration.real_gpu_images_per_s) is not None:
        return rate, "your GPU"
    base = summary.info.variants[summary.baseline]
    is_simulated, gpu = summary.facts(summary.baseline).is_simulated, base.gpu_images_per_s
    name = "simulated GPU" if is_simulated else "your GPU"
    if isinstance(gpu, str):
        name += f" ({gpu})"
    return summary.calibration.device_images_per_s, name


def _points_with_this_device(
    summary: Summary, measured_pipelines: Sequence[Pipeline]
) -> list[Speed]:
    """Return each pipeline's speed at the measured speed of the GPU next to this device's.

    What was not measured is not said. The baseline is the first; without it there is none.
    """
    own, _ = own_device(summary)
    measured = [point for pipeline in measured_pipelines for point in pipeline.points]
    if not own or not measured:
        return []
    at = min(
        {point.device_images_per_s for point in measured}, key=lambda x: abs(math.log(x / own))
    )
    points = [point for point in measured if point.device_images_per_s == at]
    points.sort(key=lambda point: not point.row.is_baseline)
    return points if points[0].row.is_baseline else []


def with_this_device(summary: Summary, measured_pipelines: Sequence[Pipeline]) -> str:
    """Return each pipeline's speed at the measured speed of the GPU next to this device's."""
    base, *others = _points_with_this_device(summary, measured_pipelines) or [None]
    if base is None or not others:
        return ""
    own, name = own_device(summary)
    at = base.device_images_per_s
    compared = summary.compare([(point.row, base.row) for point in others], steady=True)
    alike = {point.row.variant for point in others} - {
        variant for (variant, _), each in compared.items() if each.excludes_1
    }
    remarks = dict.fromkeys(alike, " (no difference shown)")
    speeds = [
        f"{point.row.name} {point.images_per_s:,.0f}{remarks.get(point.row.variant, '')}"
        for point in others
    ]
    which = f"a GPU of {units.rate(at)} (nearest to {name}: {own:,.0f})"
    if at == own:
        which = f"{name} of {units.rate(own)}"
    instead = f"instead of {base.images_per_s:,.0f} images/s"
    return f"With {which}: {', '.join(speeds)} {instead}"


def not_measured(summary: Summary) -> list[str]:
    """Return which variants of a roofline have no speed at which speeds of the GPU, and why."""
    missing: dict[tuple[str, str], list[str]] = {}
    for row in summary.rows:
        if why := reason(row) or row.steady_reason:
            missing.setdefault((row.name, why), []).append(row.group)
    alike: dict[tuple[str, str], list[str]] = {}
    for (name, why), groups in missing.items():
        where = "" if len(groups) == len(summary.baselines) else f" at {', '.join(groups)}"
        alike.setdefault((where, why), []).append(f"“{name}”")
    return [f"{', '.join(names)}{where}: {why}" for (where, why), names in alike.items()]
