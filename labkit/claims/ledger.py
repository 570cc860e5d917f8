"""Judge the documents' claims by runs: this machine's newest, those of a report, the reference.

`claims.toml` holds the claims, who says otherwise, and the contrasts that test them.  A contrast
with the baseline has the verdict of its run; all others of a run are judged together (Holm).
A comparison with a document takes full mode; its words are those of `analysis.published`, with
what was simulated in brackets beside them.
Source: EVIDENCE 1.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from labkit import install, units
from labkit.analysis.compare import Comparison
from labkit.analysis.published import agreement, bound
from labkit.analysis.roofline import published_takes
from labkit.analysis.rows import Row
from labkit.analysis.simulated import beside_the_loader, simulated, simulated_hardware
from labkit.analysis.summary import Summary
from labkit.analysis.thresholds import DELTA, MIN_GPU_UTIL_DIFFERENCE, MIN_JUDGED_BLOCKS
from labkit.experiments.catalog import CATALOG
from labkit.experiments.device_speeds import SUFFIX
from labkit.machine import gpu, hardware
from labkit.records import RunInfo
from labkit.runs.store import StoredRun, newest_runs, readable_reason
from labkit.settings import AS_PUBLISHED, MODES, Settings

JUDGED = 2  # weight of a run with verdicts
# Runs in full mode that come with the project, a folder for each machine.
REFERENCE = install.SHIPPED / "results" / "examples"
MEASURED = "measured, no effect published"  # a group
# What runs show of a claim, in the words for a published time, for a direction, and others.  Any
# saving that is real confirms that something saves time.
SUPPORTED = ("as published", "saves more than published", "saves less than published", "confirmed")
DENIED = (
    "takes longer here", "no saving here", "not reproducible here", "takes less time here",
    "no loss here", "not confirmed here",
)  # fmt: skip
UNCLEAR = ("saves less than published (if anything)", "inconclusive", "no verdict yet")
GROUPS = (
    *SUPPORTED, "confirmed in part", *DENIED, MEASURED, *UNCLEAR, "not run",
    "not testable",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Two variants of an experiment whose times are compared; see `claims.toml`."""

    experiment: str
    variant: str = ""
    against: str = ""
    expected: float | str | Sequence[str] = ""
    judge: str = ""
    made_by: str = ""
    gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of the documents; see `claims.toml`."""

    number: int
    documents: Sequence[str]
    claim: str
    published: str = ""
    sides: Sequence[Mapping[str, str]] = ()
    """by, says."""
    footnote: str = ""
    reason: str = ""
    contrasts: Sequence[Contrast] = ()


def _read_claims() -> tuple[Claim, ...]:
    text = Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
    return tuple(
        Claim(**{**row, "contrasts": [Contrast(**c) for c in row.get("contrasts", ())]})
        for row in tomllib.loads(text)["claim"]
    )


CLAIMS = _read_claims()


class Answer(NamedTuple):
    """What a run shows of a contrast."""

    group: str
    """One of `GROUPS`."""
    text: str


def answers(
    results: Path | str,
    machine_id: str | None = None,
    *,
    runs: Iterable[StoredRun] | None = None,
    numbers: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """Answer claims from runs.

    Args:
        results: folder that holds all results.
        machine_id: whose newest runs count; unset: this machine's.
        runs: count instead; of several of an experiment, one with verdicts.
        numbers: which claims; none: all.

    Returns:
        A record per claim: number, document, claim, published, sides (by, says), footnote,
        experiment, group (one of `GROUPS`), simulated (what was, as "simulated GPU"; the same of
        the reference runs is reference_simulated), answer, roofline (what the published times take
        of a loader and a GPU, where there is a roofline), run (ids of the runs that the answer
        rests on), reference (what the reference runs say, and their machine; empty without),
        reference_group, and contrasts: of each experiment, compared, x (of several
        speeds of the device), group, answer, ratio, low, high (95 % interval) and verdict.

    Raises:
        ValueError: there is no claim of such a number.
    """
    known = {claim.number: claim for claim in CLAIMS}
    if unknown := [number for number in numbers if number not in known]:
        raise ValueError(
            f"numbers must be from 1 to {len(known)}, got {unknown[0]}; leave them out for all"
        )
    if runs is None:
        machine_id = machine_id or hardware.provenance().machine_id
        runs = newest_runs(results, lambda info: _rank(info, machine_id)).values()
    ranked_runs = [(_rank(run.info), run.folder.name, run) for run in runs]
    ranked = sorted((one for one in ranked_runs if one[0] is not None), key=lambda one: one[:2])
    evidence = {run.info.experiment: _Evidence(run, run.summary) for *_, run in ranked}
    published_runs = newest_runs(
        REFERENCE, lambda info: info.created_utc if rank_as_answer(info) == JUDGED else None
    )
    references = {
        name: _Evidence(run, run.summary)
        for name, run in published_runs.items()
        if name not in evidence or evidence[name].run.info != run.info
    }
    return [
        {**_answer(known[n], evidence), **_reference(known[n], references)}
        for n in known
        if n in (numbers or known)
    ]


def rank_as_answer(info: RunInfo, machine_id: str | None = None) -> int | None:
    """Rank a run as an answer: finished, against the experiment's baseline, best with verdicts.

    Args:
        info: of the run.
        machine_id: whose runs count; None: any machine's.

    Returns:
        More is better; None: it answers nothing.
    """
    if info.status != "finished" or machine_id not in (None, info.provenance.machine_id):
        return None
    if _has_own_baseline(info):
        return None  # the documents divide by another variant
    if info.protocol == AS_PUBLISHED:
        return 0  # its fixed order may explain what it shows
    return JUDGED if _is_judged(info) else 1


def _has_own_baseline(info: RunInfo) -> bool:
    """Return whether the user chose another baseline than the experiment's."""
    request = info.request or {}
    if (chosen := request.get("baseline")) is None:
        return False
    make = CATALOG.get(request.get("experiment", ""))
    return make is None or make(Settings()).baseline != chosen


def _reference(claim: Claim, evidence: Mapping[str, _Evidence]) -> dict[str, str]:
    """Return what the reference runs say of a claim, and on which machines."""
    known = [c for c in claim.contrasts if c.experiment in evidence]
    if not known:
        return {"reference": "", "reference_group": "", "reference_simulated": ""}
    judged = [one for c in known for one in _judge(claim, c, evidence[c.experiment])]
    provenances = [evidence[c.experiment].run.info.provenance for c in known]
    machines = dict.fromkeys(map(hardware.describe, provenances))
    answer = f"{_join(claim, judged)}; on {' and '.join(machines)}"
    return {
        "reference": answer,
        "reference_group": _group(judged),
        "reference_simulated": _simulated(known, evidence),
    }


def _rank(info: RunInfo, machine_id: str | None = None) -> int | None:
    is_whose = machine_id in (None, info.provenance.machine_id)
    is_without_baseline = info.status == "failed" and info.baseline in info.skipped
    if is_whose and is_without_baseline and not _has_own_baseline(info):
        return -1  # no time, but the reason why the claim cannot be tested
    return rank_as_answer(info, machine_id)


class _Evidence:
    """A run, or what it measured at one speed of the device: rows by variant, and contrasts."""

    def __init__(self, run: StoredRun, summary: Summary) -> None:
        self.run = run
        self.summary = summary

    @cached_property
    def at_speeds(self) -> dict[float, _Evidence]:
        return {x: _Evidence(self.run, one) for x, one in self.summary.at_speeds.items()}

    @cached_property
    def rows(self) -> dict[str, Row]:
        is_one = not self.summary.has_groups
        return {row.name if is_one else row.variant: row for row in self.summary.rows}

    @cached_property
    def compared(self) -> dict[tuple[str, str], Comparison]:
        """(variant, against) -> comparison; against the baseline as the run itself has it."""
        against_baseline = {
            (name, ""): row.compared
            for name, row in self.rows.items()
            if row.normalized_time is not None and not row.is_baseline
        }
        name = self.run.info.experiment
        asked = [c for claim in CLAIMS for c in claim.contrasts if c.experiment == name]
        pairs = dict.fromkeys((c.variant, c.against) for c in asked if c.against)
        wanted = [
            (self.rows[variant], self.rows[against])
            for variant, against in pairs
            if {variant, against} <= self.rows.keys()
        ]
        measured = self.summary.compare(wanted)
        names = {row.variant: name for name, row in self.rows.items()}
        return against_baseline | {(names[a], names[b]): each for (a, b), each in measured.items()}


def _answer(claim: Claim, evidence: Mapping[str, _Evidence]) -> dict[str, Any]:
    experiments = list(dict.fromkeys(c.experiment for c in claim.contrasts))
    judged = [one for c in claim.contrasts for one in _judge(claim, c, evidence.get(c.experiment))]
    takes = [_roofline(c, evidence) for c in claim.contrasts]
    return {
        "number": claim.number,
        "document": ", ".join(claim.documents),
        "claim": claim.claim,
        "published": claim.published,
        "sides": [dict(side) for side in claim.sides],
        "footnote": claim.footnote,
        "experiment": ", ".join(experiments),
        "group": _group(judged),
        "simulated": _simulated(claim.contrasts, evidence),
        "answer": _join(claim, judged),
        "roofline": "; ".join(filter(None, takes)),
        "run": ", ".join(evidence[x].run.folder.name for x in experiments if x in evidence),
        "contrasts": judged,
    }


def _group(judged: Sequence[Mapping[str, Any]]) -> str:
    """Return what the contrasts of a claim come to; what was decided comes first."""
    groups = {one["group"] for one in judged} or {"not testable"}
    if groups & {*SUPPORTED} and groups & {*DENIED}:
        return "confirmed in part"
    return next(group for group in GROUPS if group in groups)


def _simulated(contrasts: Iterable[Contrast], evidence: Mapping[str, _Evidence]) -> str:
    """Return what was simulated in the rows that answer a claim; "" for nothing."""
    rows = []
    for one in contrasts:
        measured = evidence.get(one.experiment)
        if measured is not None and measured.summary.has_groups:
            names = {one.variant, one.against} - {""}  # labels, or what a judge looks up in groups
            rows += [row for row in measured.rows.values() if names & {row.variant, row.name}]
        elif measured is not None and measured.rows:
            names = {one.against or next(iter(measured.rows)), one.variant} - {""}
            rows += [measured.rows[name] for name in names if names <= measured.rows.keys()]
    return simulated(rows)


def answer_in_short(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in one sentence what runs say of the claims.

    Args:
        rows: what `answers` returns.
    """
    count = Counter(row["group"] for row in rows)
    parts = [
        (sum(count[group] for group in SUPPORTED), "confirmed here"),
        (count["confirmed in part"], "confirmed in part"),
        (sum(count[group] for group in DENIED), "not confirmed here"),
        (count[MEASURED], "measured without a published effect"),
        (sum(count[group] for group in UNCLEAR), "not decided yet"),
        (count["not run"], "not run"),
        (count["not testable"], "not testable here"),
    ]
    counted = f"Of {units.count(len(rows), 'claim')} of the documents: "
    counted += ", ".join(f"{number} {what}" for number, what in parts if number)
    if on_simulated := sum(bool(row["simulated"]) for row in rows):
        counted += f"; {on_simulated} of them on simulated devices"
    return f"{counted}."


def _roofline(contrast: Contrast, evidence: Mapping[str, _Evidence]) -> str:
    """Return what a published time takes, if a roofline measured its loader; else ''."""
    name = f"{contrast.experiment}{SUFFIX}"
    evidence_of_run = evidence.get(name) or evidence.get(f"{name}_cold")
    if evidence_of_run is None or not isinstance(contrast.expected, float):
        return ""
    # A roofline of another baseline has no published times.
    return published_takes(evidence_of_run.run.summary).get(contrast.variant, "")


def _join(claim: Claim, judged: Sequence[Mapping[str, Any]]) -> str:
    """Return the answers of all contrasts in one line; equal ones are named together."""
    if not judged:
        return _not_testable(claim)
    speeds = {one["x"]: one["group"] for one in judged if one["x"] is not None}
    if speeds:
        return f"{_holds(judged)}{'; '.join(_at(one) for one in judged)}"
    alike: dict[tuple[str, str], list[str]] = {}
    for one in judged:
        alike.setdefault((one["experiment"], one["answer"]), []).append(one["compared"])
    if len({answer for _, answer in alike}) == 1:
        return judged[0]["answer"]
    experiments = [experiment for experiment, _ in alike]
    lines = []
    for (experiment, answer), compared in alike.items():
        name = [experiment] if len(set(experiments)) > 1 else []
        if not name or experiments.count(experiment) > 1:
            name.append(" and ".join(compared))
        lines.append(f"{' '.join(name)}: {answer}")
    return "; ".join(lines)


def _holds(judged: Sequence[Mapping[str, Any]]) -> str:
    """Return at which speeds of the device a claim holds: "holds at x = 1 and 2 of 0.5, 1, 2, 4; ".

    Nothing where no speed is judged.
    """
    groups_at: dict[float, set[str]] = {}
    undecided = (*UNCLEAR, "not run", "not testable", MEASURED)
    for one in judged:
        if one["x"] is not None and one["group"] not in undecided:
            groups_at.setdefault(one["x"], set()).add(one["group"])
    if not groups_at:
        return ""
    holding = [f"{x:g}" for x, groups in sorted(groups_at.items()) if groups <= {*SUPPORTED}]
    every = ", ".join(f"{x:g}" for x in sorted(groups_at))
    return (
        f"holds at x = {' and '.join(holding)} of {every}; " if holding else f"at no x of {every}; "
    )


def _at(one: Mapping[str, Any]) -> str:
    at = "" if one["x"] is None else f" at x = {one['x']:g}"
    return f"{one['compared']}{at}: {one['answer']}"


def _judge(claim: Claim, contrast: Contrast, evidence: _Evidence | None) -> list[dict[str, Any]]:
    """Judge a contrast, at each speed of the device that the run has."""
    if evidence is None or not evidence.at_speeds:
        return [_judge_one(claim, contrast, evidence)]
    return [_judge_one(claim, contrast, one) | {"x": x} for x, one in evidence.at_speeds.items()]


def _judge_one(claim: Claim, contrast: Contrast, evidence: _Evidence | None) -> dict[str, Any]:
    against = f" ÷ {contrast.against}" if contrast.against else ""
    result = {
        "experiment": contrast.experiment, "compared": contrast.variant + against,
        "x": None, "ratio": None, "low": None, "high": None, "verdict": "",
    }  # fmt: skip
    key = contrast.variant, contrast.against
    compared = None if evidence is None else evidence.compared.get(key)
    if evidence is None and gpu.nvidia_driver()[1] < contrast.gpus:
        answer = Answer("not testable", _not_testable(claim))
    elif evidence is None:
        how = f"{contrast.made_by} makes it" if contrast.made_by else ""
        answer = _not_run(how)
    elif (answer := _why_missing(contrast, evidence)) is not None:
        pass
    elif contrast.judge:
        answer = JUDGES[contrast.judge](contrast, evidence)
    elif compared is None:
        answer = _not_run("no block has both")
    else:
        answer = _say_ratio(claim, contrast, evidence, compared)
        result |= {name: getattr(compared, name) for name in ("ratio", "low", "high", "verdict")}
    return result | {"group": answer.group, "answer": answer.text}


def _not_testable(claim: Claim) -> str:
    return f"not testable here: {claim.reason}"


def _not_run(why: str = "") -> Answer:
    return Answer("not run", f"not run: {why}" if why else "not run")


def _why_missing(contrast: Contrast, evidence: _Evidence) -> Answer | None:
    """Return why a run has no number for a variant, or None."""
    if evidence.summary.has_groups and contrast.judge:
        return None  # it looks the variant up in each of them
    info = evidence.run.info
    if info.baseline in info.skipped:
        why = readable_reason(info.skipped[info.baseline])
        return Answer("not testable", f"not testable here: {why}")
    for name in filter(None, (contrast.against, contrast.variant)):
        row = evidence.rows.get(name)
        if row is None:
            return _not_run(_why_no_row(name, info))
        if row.normalized_time is None:
            whose = f"{name}: " if contrast.against else ""
            if row.status == "missing":
                return Answer("not run", f"{whose}not run: {readable_reason(row.reason)}")
            failed = "failed: " if row.status == "failed" else ""
            no_such_arm = (
                f"{whose}not testable here: {failed}{readable_reason(row.reason) or row.status}"
            )
            return Answer("not testable", no_such_arm)
    return None


def _why_no_row(name: str, info: RunInfo) -> str:
    make = CATALOG.get(info.experiment)
    variant = make(Settings()).variants.get(name) if make else None
    if variant and variant.full_only and not MODES[info.mode].judged:
        return "only full mode measures it"
    return "this run has no such variant"


def _say_ratio(
    claim: Claim, contrast: Contrast, evidence: _Evidence, compared: Comparison
) -> Answer:
    rows, expected, verdict = _compared(contrast, evidence), contrast.expected, compared.verdict
    measured = compared.ratio, compared.low, compared.high
    figures = units.normalized(*measured)
    if isinstance(expected, float):
        figures += f" measured, {units.normalized(expected)} published"
    if not verdict:
        blocks = min(compared.blocks, evidence.summary.n_undisturbed)
        return _say(figures, rows, unjudged=_why_unjudged(evidence.run.info, blocks))
    if verdict == "machine unstable":
        return _say(figures, rows, "machine unstable, no verdict", "no verdict yet")
    if isinstance(expected, float):
        word = agreement(expected, *measured, verdict, rows[0])
        if word == "not reproducible here":
            figures += f"; {bound(rows[0])}, the document saved {units.whole_percent(1 - expected)}"
        return _say(figures, rows, word)
    words = [
        agreement(one, *measured, verdict) if one else ""
        for one in ([expected] if isinstance(expected, str) else expected)
    ]
    if isinstance(expected, str) and expected:
        beginning = f"{verdict}, " if words[0] != "inconclusive" else ""
        return _say(f"{beginning}{figures}", rows, words[0])
    group = "inconclusive" if verdict == "inconclusive" else MEASURED
    right = [side["by"] for side, word in zip(claim.sides, words) if word == "confirmed"]
    if right:
        figures += f", as expected by {'; '.join(right)}"
    elif any(words) and verdict not in ("inconclusive", "real but small"):
        figures += ", contradicts all sources"
    # The claim is the document's; others may disagree about something that it does not say.
    if claim.sides and "[0" in claim.sides[0]["by"] and words[:1] not in ([], [""]):
        group = words[0]
    elif any(words) and not right and group == MEASURED:
        group = "not confirmed here"
    return _say(figures, rows, verdict, group)


def _say(
    figures: str, rows: Sequence[Row], word: str = "", group: str = MEASURED, *, unjudged: str = ""
) -> Answer:
    """Write an answer: the word if there is one, what was simulated, the figures.

    Args:
        figures: what was measured.
        rows: of which variants.
        word: what it comes to; one of `GROUPS`, or else
        group: where it belongs, unless `word` says so.
        unjudged: why there is no verdict.
    """
    where = _conditions(rows)
    if unjudged:
        return Answer("no verdict yet", f"{figures}{where}, {unjudged}")
    if not word:
        return Answer(group, f"{figures}{where}")
    if word in GROUPS:
        group = word
    return Answer(group, f"{word}{where}: {figures}")


def _compared(contrast: Contrast, evidence: _Evidence) -> list[Row]:
    """Return the rows of a contrast, the one that the other is divided by first."""
    first = contrast.against or next(iter(evidence.rows))
    names = dict.fromkeys((first, contrast.variant or first))
    return [evidence.rows[name] for name in names]


def _is_judged(info: RunInfo) -> bool:
    mode = MODES.get(info.mode)
    return mode is not None and mode.judged


def _why_unjudged(info: RunInfo, blocks: int) -> str:
    if info.protocol == AS_PUBLISHED:
        return f"no verdict for a run {AS_PUBLISHED}"
    if not _is_judged(info):
        return f"no verdict in {info.mode} mode"
    return f"{blocks} undisturbed blocks, a verdict needs {MIN_JUDGED_BLOCKS}"


def _conditions(rows: Sequence[Row]) -> str:
    """Name simulated hardware and what else differs from the document's experiment, in brackets."""
    conditions = [
        f"{name}, {speed}".rstrip(", ") for name, speed in simulated_hardware(rows).items()
    ]
    if x := beside_the_loader(rows[:1]):
        devices = [str(hardware) for hardware in rows[0].hardware if hardware.kind == "device"]
        conditions += [*([] if conditions else devices), x]
    if any(hardware.how == "unconfirmed" for row in rows for hardware in row.hardware):
        conditions.append("unconfirmed storage")
    if any(trial.labels.get("cache") == "warm" for trial in rows[0].trials):
        conditions.append("warm cache")
    return f" ({', '.join(conditions)})" if conditions else ""


# --- answers that are no normalized time ----------------------------------------------------


def _say_finding(evidence: _Evidence, figures: str, rows: Sequence[Row], word: str) -> Answer:
    """Write an answer whose word counts where the run is judged."""
    summary = evidence.summary
    why = "" if summary.judged else _why_unjudged(summary.info, summary.n_undisturbed)
    return _say(figures, rows, word, unjudged=why)


def largest_phase(contrast: Contrast, evidence: _Evidence) -> Answer:
    """Find the phase that takes most of the loop, as a call graph's first level shows it."""
    rows = _compared(contrast, evidence)
    phases = _phases(rows[-1])
    word = "confirmed" if max(phases, key=phases.get) == contrast.expected else "not confirmed here"
    return _say_finding(evidence, _shares(phases), rows, word)


def phases(contrast: Contrast, evidence: _Evidence) -> Answer:
    """Compare [002]'s phases where the device's computing is the bottleneck."""
    rows = _compared(contrast, evidence)
    parts = _phases(rows[-1])
    loading = parts.pop("waiting for batches") + parts.pop("transfer")
    figures = _shares({"loading with transfer": loading, **parts})
    word = "confirmed" if loading < parts["forward and backward"] else "not confirmed here"
    return _say_finding(evidence, figures, rows, word)


def gpu_util(contrast: Contrast, evidence: _Evidence) -> Answer:
    """Compare GPU-util where loading is the bottleneck with where computing is."""
    rows = _compared(contrast, evidence)[::-1]
    utils = [row.gpu_util for row in rows]
    if None not in utils:
        shares = [f"{units.percent(row.gpu_util)} {row.variant}" for row in rows]
        is_lower = utils[0] < utils[1] - MIN_GPU_UTIL_DIFFERENCE
        word = "confirmed" if is_lower else "not confirmed here"
        return _say_finding(evidence, f"GPU-util {', '.join(shares)}", rows, word)
    why = "not testable here: GPU-util is NVML's, of an NVIDIA GPU"
    busy = [
        f"{units.percent(row.simulated_busy_share)} {row.variant}"
        for row in rows
        if row.simulated_busy_share is not None
    ]
    if busy:
        why += f"; the device computed for {', '.join(busy)} of the time"
    return Answer("not testable", f"{why}{_conditions(rows)}")


def cheapest_workers(contrast: Contrast, evidence: _Evidence) -> Answer:
    """Find the number of workers that [002]'s rule takes: of equally fast ones the cheapest.

    Numbers of workers that wait at most 3 % of an epoch longer than the best are equally fast.
    Variants of the user's own that differ in more are left out.
    """
    variants = evidence.run.info.variants
    base = variants[evidence.summary.baseline]
    counts = {
        variants[row.variant].num_workers: row
        for row in evidence.rows.values()
        if None not in (row.wait_share, row.time_s, row.cpu_percent)
        and replace(variants[row.variant], num_workers=base.num_workers) == base
    }
    if len(counts) < 2:
        return _not_run("this run has no two numbers of workers")
    waits_s = {n: row.wait_share * row.time_s for n, row in counts.items()}
    margin_s = DELTA * min(row.time_s for row in counts.values())
    equal = [n for n in counts if waits_s[n] - min(waits_s.values()) <= margin_s]
    taken = min(equal, key=lambda n: (counts[n].cpu_percent, n))
    curve = "; ".join(
        f"{n}: {units.seconds(waits_s[n])}, {counts[n].cpu_percent:.0f} %" for n in sorted(counts)
    )
    sentence = f"by this rule {units.count(taken, 'worker')}; workers, waiting, CPU: {curve}"
    return _say(sentence, tuple(counts.values()))


def most_groups(contrast: Contrast, evidence: _Evidence) -> Answer:
    """Count the groups in which a variant is faster than their baseline; most is more than half."""
    summary, name = evidence.summary, contrast.variant
    rows = [row for row in summary.rows if row.name == name and row.ratios and not row.is_baseline]
    if not rows:
        return _not_run(f"this run has no group with {name} and another baseline")
    if not any(row.verdict for row in rows):
        less = sum(row.normalized_time < 1 for row in rows)
        figures = f"{name} took less time in {less} of {len(rows)} groups"
        return _say(figures, rows, unjudged=_why_unjudged(summary.info, summary.n_undisturbed))
    faster, slower = (sum(row.verdict == word for row in rows) for word in ("faster", "slower"))
    figures = f"{name} faster in {faster}, slower in {slower} of {len(rows)}"
    word = "no majority"
    if not summary.stable:
        word = "machine unstable, no verdict"
    elif max(faster, slower) * 2 > len(rows):
        word = "confirmed" if faster > slower else "not confirmed here"
    return _say(figures, rows, word, "no verdict yet")


JUDGES: dict[str, Callable[[Contrast, _Evidence], Answer]] = {
    judge.__name__: judge
    for judge in (largest_phase, phases, gpu_util, cheapest_workers, most_groups)
}


def _phases(row: Row) -> dict[str, float]:
    """Divide the epochs among what the host did; the device's wait belongs to its computing."""
    return {
        "waiting for batches": row.wait_share + row.startup_share,
        "transfer": row.transfer_share,
        "forward and backward": row.step_share + row.sync_share,
    }


def _shares(phases: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {units.percent(share)}" for name, share in phases.items())
