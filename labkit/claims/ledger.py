"""Judge the documents' claims by this machine's newest runs, and by the reference runs.

`claims.toml` holds the claims, who says otherwise, and the contrasts that test them.  A contrast
with the baseline has the verdict of its run; all others of a run are judged together (Holm).
Agreement takes full mode, and over a stand-in a result is at most consistent with a claim.
Source: EVIDENCE 1.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from labkit import units
from labkit.analysis.roofline import ALONE, least_time
from labkit.analysis.stand_ins import EMULATED_WORDS, find_stand_ins
from labkit.analysis.statistics import DELTA, UNSTABLE, agreement
from labkit.analysis.summary import Ratio, Row, ratios
from labkit.machine import hardware
from labkit.runs.store import StoredRun, best_runs, newest_runs
from labkit.settings import AS_PUBLISHED, MIN_JUDGED_BLOCKS, MODES

# Runs in full mode that come with the project, a folder for each machine: in `results`.
REFERENCE = "examples"
NO_DIFFERENCE = "no practical difference"
OPPOSITE = {"faster": "slower", "slower": "faster"}
MIN_GPU_UTIL_DIFFERENCE = 0.1  # NVML's sampling periods do not match a loop's steps


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Two variants of an experiment whose times are compared; see `claims.toml`."""

    experiment: str
    variant: str = ""
    against: str = ""
    expected: float | str | Sequence[str] = ""
    judge: str = ""
    made_by: str = ""


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


def answers(
    results: Path | str, machine_id: str | None = None, *, numbers: Sequence[int] = ()
) -> list[dict[str, object]]:
    """Answer claims from the newest runs.

    Args:
        results: folder that holds all results.
        machine_id: whose runs count; unset: this machine's.
        numbers: which claims; none: all.

    Returns:
        A record per claim: number, document, claim, published, sides (by, says), footnote,
        experiment, answer, roofline (what the published times take of a loader and a GPU, where
        there is a roofline), run (ids of the runs that the answer rests on), reference (what the
        reference runs say, and their machine; empty without), and contrasts: of each experiment,
        compared, answer, ratio, low, high (95 % interval) and verdict.

    Raises:
        ValueError: there is no claim of such a number.
    """
    known = {claim.number: claim for claim in CLAIMS}
    if unknown := [number for number in numbers if number not in known]:
        raise ValueError(
            f"numbers must be from 1 to {len(known)}, got {unknown[0]}; leave them out for all"
        )
    machine_id = machine_id or hardware.provenance()["machine_id"]
    runs = newest_runs(results, lambda info: weigh_answer(info, machine_id))
    evidence = {name: _Evidence(run) for name, run in runs.items()}
    references = _reference_evidence(Path(results) / REFERENCE)
    return [
        {**_answer(claim, evidence), "reference": _reference(claim, references)}
        for n, claim in known.items()
        if n in (numbers or known)
    ]


def answers_of(run: StoredRun, machine_id: str) -> list[dict[str, object]]:
    """Answer the claims that a run's experiment tests from this run alone.

    Args:
        run: any run.
        machine_id: whose runs count.

    Returns:
        Records as of `answers`; none for a run that is not finished or of another machine.
    """
    if weigh_answer(run.info, machine_id) is None:
        return []
    name, evidence = run.info["experiment"], _Evidence(run)
    asked = [
        replace(claim, contrasts=[c for c in claim.contrasts if c.experiment == name])
        for claim in CLAIMS
    ]
    return [_answer(claim, {name: evidence}) for claim in asked if claim.contrasts]


def weigh_answer(info: Mapping[str, object], machine_id: str) -> int | None:
    """Rank a run as an answer: finished, on this machine, and best with verdicts.

    Args:
        info: what `run.json` holds.
        machine_id: whose runs count.

    Returns:
        More is better; None: it answers nothing.
    """
    measured_on = (info.get("provenance") or {}).get("machine_id")
    if info.get("status") != "finished" or measured_on != machine_id:
        return None
    if info.get("protocol") == AS_PUBLISHED:
        return 0  # its fixed order may explain what it shows
    return 2 if _is_judged(info) else 1


def _reference_evidence(folder: Path) -> dict[str, _Evidence]:
    """Return the newest judged run of each experiment, of whatever machine."""

    def weigh(info: Mapping[str, object]) -> str | None:
        is_judged = _is_judged(info) and info.get("protocol") != AS_PUBLISHED
        return info["created_utc"] if is_judged and info["status"] == "finished" else None

    found: dict[str, _Evidence] = {}
    for run in best_runs(folder, weigh):
        found.setdefault(run.info["experiment"], _Evidence(run))
    return found


def _reference(claim: Claim, evidence: Mapping[str, _Evidence]) -> str:
    """Return what the reference runs say of a claim, and on which machines; or ''."""
    known = [c for c in claim.contrasts if c.experiment in evidence]
    if not known:
        return ""
    said = _join(claim, [_judge(claim, c, evidence[c.experiment]) for c in known])
    provenances = [evidence[c.experiment].run.info["provenance"] for c in known]
    machines = dict.fromkeys(map(hardware.describe, provenances))
    return f"{said}; on {' and '.join(machines)}"


class _Evidence:
    """A run, its rows by variant, and what its contrasts came to."""

    def __init__(self, run: StoredRun) -> None:
        self.run = run

    @cached_property
    def rows(self) -> dict[str, Row]:
        return {row.variant: row for row in self.run.summary.rows}

    @cached_property
    def ratios(self) -> dict[tuple[str, str], Ratio]:
        """(variant, against) -> ratio; against the baseline as the run itself has it."""
        found = {
            (row.variant, ""): Ratio(
                ratio=row.normalized_time, low=row.ci_low, high=row.ci_high,
                blocks=row.blocks, verdict=row.verdict,
            )
            for row in self.rows.values()
            if row.normalized_time is not None
        }  # fmt: skip
        name = self.run.info["experiment"]
        asked = [c for claim in CLAIMS for c in claim.contrasts if c.experiment == name]
        pairs = dict.fromkeys((c.variant, c.against) for c in asked if c.against)
        wanted = [
            (self.rows[variant], self.rows[against], "total")
            for variant, against in pairs
            if variant in self.rows and against in self.rows
        ]
        for (variant, against, _), ratio in ratios(self.run.summary, wanted).items():
            found[variant, against] = ratio
        return found


def _answer(claim: Claim, evidence: Mapping[str, _Evidence]) -> dict[str, object]:
    experiments = list(dict.fromkeys(c.experiment for c in claim.contrasts))
    judged = [_judge(claim, c, evidence.get(c.experiment)) for c in claim.contrasts]
    takes = [_roofline(c, evidence) for c in claim.contrasts]
    return {
        "number": claim.number,
        "document": ", ".join(claim.documents),
        "claim": claim.claim,
        "published": claim.published,
        "sides": [dict(side) for side in claim.sides],
        "footnote": claim.footnote,
        "experiment": ", ".join(experiments),
        "answer": _join(claim, judged),
        "roofline": "; ".join(filter(None, takes)),
        "run": ", ".join(evidence[x].run.folder.name for x in experiments if x in evidence),
        "contrasts": judged,
    }


def _roofline(contrast: Contrast, evidence: Mapping[str, _Evidence]) -> str:
    """Return what a published time takes, if a roofline measured its loader; else ''."""
    name, published = f"{contrast.experiment}_roofline", contrast.expected
    found = evidence.get(name) or evidence.get(f"{name}_cold")
    if found is None or not isinstance(published, float) or published >= 1:
        return ""
    summary = found.run.summary
    alone = {row.name: row for row in summary.rows if row.group == ALONE}
    base = next(filter(summary.is_baseline, alone.values()), None)
    row = alone.get(contrast.variant)
    if base is None or row is None or row.published != published:  # of another baseline
        return ""
    for ratio in ratios(summary, [(row, base, "steady")]).values():
        here = f"{1 / ratio.ratio:.2f}"
        if ratio.low is not None:
            here += f" {units.interval(1 / ratio.high, 1 / ratio.low)}"
        return (
            f"{units.normalized(published)} ({contrast.variant}) takes a loader at least "
            f"{1 / published:.2f} times as fast, here {here}, and a GPU at least "
            f"{1 / published:.2f} times as fast as the loader"
        )
    return ""


def _join(claim: Claim, judged: Sequence[Mapping[str, object]]) -> str:
    """Return the answers of all contrasts in one line; equal ones are named together."""
    if not judged:
        return f"not testable here: {claim.reason}" if claim.reason else "no experiment yet"
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


def _judge(claim: Claim, contrast: Contrast, evidence: _Evidence | None) -> dict[str, object]:
    against = f" ÷ {contrast.against}" if contrast.against else ""
    found = {
        "experiment": contrast.experiment, "compared": contrast.variant + against,
        "answer": "not run", "ratio": None, "low": None, "high": None, "verdict": "",
    }  # fmt: skip
    if evidence is None:
        how = f"not run: {contrast.made_by} makes it"
        return found | ({"answer": how} if contrast.made_by else {})
    if why := _why_missing(contrast, evidence):
        return found | {"answer": why}
    if contrast.judge:
        return found | {"answer": JUDGES[contrast.judge](contrast, evidence)}
    ratio = evidence.ratios.get((contrast.variant, contrast.against))
    if ratio is None:
        return found | {"answer": "not run: no block has both"}
    return found | {
        "answer": _say_ratio(claim, contrast, evidence, ratio),
        "ratio": ratio.ratio, "low": ratio.low, "high": ratio.high, "verdict": ratio.verdict,
    }  # fmt: skip


def _why_missing(contrast: Contrast, evidence: _Evidence) -> str:
    """Return why a run has no number for a variant, or ''."""
    if evidence.run.summary.has_groups:
        return ""  # a judge looks the variant up in each of them
    for name in filter(None, (contrast.against, contrast.variant)):
        row = evidence.rows.get(name)
        if row is None:
            return "not run: this run has no such variant"
        if row.normalized_time is None:
            whose = f"{name}: " if contrast.against else ""
            if row.status == "missing":
                return f"{whose}not run: {row.reason}"
            failed = "failed: " if row.status == "failed" else ""
            return f"{whose}not testable here: {failed}{row.reason or row.status}"
    return ""


def _say_ratio(claim: Claim, contrast: Contrast, evidence: _Evidence, ratio: Ratio) -> str:
    rows, expected, verdict = _compared(contrast, evidence), contrast.expected, ratio.verdict
    figures = units.normalized(ratio.ratio)
    if ratio.low is not None:
        figures += f" {units.interval(ratio.low, ratio.high)}"
    if isinstance(expected, float):
        figures += f" measured, {units.normalized(expected)} published"
    if not verdict:
        return _say(figures, rows, why_unjudged=_why_unjudged(evidence.run.info, ratio.blocks))
    if verdict == UNSTABLE:
        return _say(figures, rows, f"{UNSTABLE}, no verdict")
    if isinstance(expected, float):
        word = agreement(ratio.low, ratio.high, expected)
        if word == "differs" and (why := _why_out_of_reach(expected, ratio, rows[0])):
            return _say(f"{figures}; {why}", rows, "not reproducible here")
        return _say(figures, rows, word)
    if expected and isinstance(expected, str):
        word = {expected: "agrees", OPPOSITE[expected]: "differs", NO_DIFFERENCE: "differs"}.get(
            verdict, "inconclusive"
        )
        return _say(figures if word == verdict else f"{verdict}, {figures}", rows, word)
    if right := [s["by"] for s, word in zip(claim.sides, expected) if word == verdict]:
        word = f"{EMULATED_WORDS['agrees']}, emulated," if find_stand_ins(rows) else "agrees"
        figures += f", {word} with {'; '.join(right)}"
    elif any(expected) and verdict in (*OPPOSITE, NO_DIFFERENCE):
        figures += ", no side expects that"
    return _say(figures, rows, verdict)


def _why_out_of_reach(expected: float, ratio: Ratio, baseline: Row) -> str:
    """Return why loading faster cannot save here what a document saved, or ''.

    No remedy of loading saves more than the time that the device waits in the baseline's epochs.
    """
    least = least_time(baseline)
    if ratio.low <= expected or least <= expected:
        return ""
    return (
        f"waiting is {units.whole_percent(1 - least)} of the epoch, "
        f"the document saved {units.whole_percent(1 - expected)}"
    )


def _say(figures: str, rows: Sequence[Row], word: str = "", *, why_unjudged: str = "") -> str:
    """Write an answer: the word if there is one, what stood in, the figures."""
    where = _conditions(rows)
    if why_unjudged:
        return f"{figures}{where}, {why_unjudged}"
    if not word:
        return f"{figures}{where}"
    if find_stand_ins(rows) and word in EMULATED_WORDS:
        word = f"{EMULATED_WORDS[word]}, emulated"
    return f"{word}{where}: {figures}"


def _compared(contrast: Contrast, evidence: _Evidence) -> list[Row]:
    """Return the rows of a contrast, the one that the other is divided by first."""
    first = contrast.against or next(iter(evidence.rows))
    names = dict.fromkeys((first, contrast.variant or first))
    return [evidence.rows[name] for name in names]


def _is_judged(info: Mapping[str, object]) -> bool:
    mode = MODES.get(info["mode"])
    return mode is not None and mode.judged


def _why_unjudged(info: Mapping[str, object], blocks: int) -> str:
    if info.get("protocol") == AS_PUBLISHED:
        return f"no verdict for a run {AS_PUBLISHED}"
    if not _is_judged(info):
        return f"no verdict in {info['mode']} mode"
    return f"{blocks} complete blocks, a verdict needs {MIN_JUDGED_BLOCKS}"


def _conditions(rows: Sequence[Row]) -> str:
    """Name stand-ins and what else differs from the document's experiment, in brackets."""

    def labels(of: Sequence[Row], kind: str) -> list[str]:
        return [label for row in of for label in row.labels.get(kind, "").split(" / ")]

    said = list(find_stand_ins(rows))
    if any(label.startswith("unknown") for label in labels(rows, "storage")):
        said.append("storage of unknown kind")
    if "warm" in labels(rows[:1], "cache"):
        said.append("warm cache")
    return f" ({', '.join(said)})" if said else ""


# --- answers that are no normalized time ----------------------------------------------------


def _say_finding(
    evidence: _Evidence, figures: str, rows: Sequence[Row], agrees: bool | None = None
) -> str:
    """Write an answer; `agrees` is None where there is nothing to agree with."""
    summary, word = evidence.run.summary, {None: "", True: "agrees", False: "differs"}[agrees]
    why = _why_unjudged(summary.info, summary.n_blocks) if word and not summary.judged else ""
    return _say(figures, rows, word, why_unjudged=why)


def largest_phase(contrast: Contrast, evidence: _Evidence) -> str:
    """Find the phase that takes most of the loop, as a call graph's first level shows it."""
    rows = _compared(contrast, evidence)
    phases = _phases(rows[-1])
    agrees = max(phases, key=phases.get) == contrast.expected
    return _say_finding(evidence, _shares(phases), rows, agrees)


def phases(contrast: Contrast, evidence: _Evidence) -> str:
    """Compare [002]'s phases where the device's computing is the bottleneck."""
    rows = _compared(contrast, evidence)
    parts = _phases(rows[-1])
    loading = parts.pop("waiting for batches") + parts.pop("transfer")
    figures = _shares({"loading with transfer": loading, **parts})
    return _say_finding(evidence, figures, rows, loading < parts["forward and backward"])


def gpu_util(contrast: Contrast, evidence: _Evidence) -> str:
    """Compare GPU-util where loading is the bottleneck with where computing is."""
    rows = _compared(contrast, evidence)[::-1]
    utils = [row.gpu_util for row in rows]
    if None not in utils:
        said = [f"{units.percent(row.gpu_util)} {row.variant}" for row in rows]
        agrees = utils[0] < utils[1] - MIN_GPU_UTIL_DIFFERENCE
        return _say_finding(evidence, f"GPU-util {', '.join(said)}", rows, agrees)
    said = "not testable here: GPU-util is NVML's, of an NVIDIA GPU"
    busy = [
        f"{units.percent(row.emulated_busy_share)} {row.variant}"
        for row in rows
        if row.emulated_busy_share is not None
    ]
    if busy:
        said += f"; the device computed for {', '.join(busy)} of the time"
    return _say_finding(evidence, said, rows)


def cheapest_workers(contrast: Contrast, evidence: _Evidence) -> str:
    """Find the number of workers that [002]'s rule takes: of equally fast ones the cheapest.

    Numbers of workers that wait at most 3 % of an epoch longer than the best are equally fast.
    """
    settings = evidence.run.info["variants"]
    counts = {
        settings[name]["num_workers"]: row
        for name, row in evidence.rows.items()
        if None not in (row.wait_share, row.time_s, row.cpu_percent)
    }
    if len(counts) < 2:
        return "not run: this run has no two numbers of workers"
    waits_s = {n: row.wait_share * row.time_s for n, row in counts.items()}
    margin_s = DELTA * min(row.time_s for row in counts.values())
    equal = [n for n in counts if waits_s[n] - min(waits_s.values()) <= margin_s]
    taken = min(equal, key=lambda n: (counts[n].cpu_percent, n))
    curve = "; ".join(
        f"{n}: {units.seconds(waits_s[n])}, {counts[n].cpu_percent:.0f} %" for n in sorted(counts)
    )
    said = f"by this rule {units.count(taken, 'worker')}; workers, waiting, CPU: {curve}"
    return _say_finding(evidence, said, tuple(counts.values()))


def most_groups(contrast: Contrast, evidence: _Evidence) -> str:
    """Count the groups in which a variant is faster than their baseline; most is more than half."""
    summary, name = evidence.run.summary, contrast.variant
    rows = [
        row
        for row in summary.rows
        if row.name == name and row.ratios and not summary.is_baseline(row)
    ]
    if summary.rejected and not summary.n_blocks:
        return "not run: every block was rejected"
    if not rows:
        return f"not run: this run has no group with {name} and another baseline"
    if not any(row.verdict for row in rows):
        less = sum(row.normalized_time < 1 for row in rows)
        figures = f"{name} took less time in {less} of {len(rows)} groups"
        why = _why_unjudged(summary.info, summary.n_blocks)
        return _say(figures, rows, why_unjudged=why)
    faster = sum(row.verdict == "faster" for row in rows)
    slower = sum(row.verdict == "slower" for row in rows)
    word = "inconclusive"
    if not summary.stable:
        word = f"{UNSTABLE}, no verdict"
    elif max(faster, slower) * 2 > len(rows):
        word = "agrees" if faster > slower else "differs"
    return _say(f"{name} faster in {faster}, slower in {slower} of {len(rows)}", rows, word)


JUDGES: dict[str, Callable[[Contrast, _Evidence], str]] = {
    judge.__name__: judge
    for judge in (largest_phase, phases, gpu_util, cheapest_workers, most_groups)
}


def _phases(row: Row) -> dict[str, float]:
    """Divide the epochs among what the host did; the device's wait belongs to its computing."""
    epochs_s = [epoch_s for trial in row.epochs_s for epoch_s in trial]
    startup = row.startup_s * len(epochs_s) / sum(epochs_s)
    return {
        "waiting for batches": row.wait_share + startup,
        "transfer": row.transfer_share,
        "forward and backward": row.step_share + row.sync_share,
    }


def _shares(phases: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {units.percent(share)}" for name, share in phases.items())
