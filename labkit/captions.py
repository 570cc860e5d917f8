"""The words about a run: its conditions, what stands in for what, why a variant has no number.

    Summary -> conditions(), stand_ins() -> the head of every chart, table and page
            -> describe()                -> all of a chart, for people who cannot see it

Main trap: a figure without its conditions travels alone, so charts and reports take their
words from here and never make up their own.
"""

from __future__ import annotations

from labkit import units
from labkit.summary import Row, Summary

# How labels begin that are not the real thing.
STAND_INS = {"accelerator": ("emulated",), "storage": ("throttled", "modelled")}


def describe(summary: Summary) -> str:
    """Say in one paragraph what the chart shows, for screen readers."""
    sentences = [summary.question, *stand_ins(summary), conditions(summary)]
    sentences.append(f"Bars of normalized epoch time, lower is better; {summary.baseline} is 1")
    for row in summary.rows:
        if row.variant == summary.baseline and row.normalized_time:
            continue
        if why := reason(row):
            sentences.append(f"{row.variant}: {why}")
            continue
        said = f"{row.variant}: {units.normalized(row.normalized_time)}"
        if row.ci_low is not None:
            said += f", 95 % interval {units.interval(row.ci_low, row.ci_high)}"
        if row.published is not None:
            said += f", published {units.normalized(row.published)}"
        sentences.append(f"{said}, {row.verdict}" if row.verdict else said)
    return " ".join(s if s.endswith(("?", "!", ".", "？", "。")) else f"{s}." for s in sentences)


def conditions(summary: Summary) -> str:
    """Say in one line how the numbers came about: mode, blocks, labels, document."""
    n = summary.n_blocks
    parts = [f"{summary.mode} mode", f"{n} block" if n == 1 else f"{n} blocks"]
    parts += [
        f"{name}: {label}"
        for name, label in sorted(summary.labels.items())
        if not _is_stand_in(name, label)  # these have a line of their own
    ]
    if summary.source:
        parts.append(f"document: {summary.source}")
    return " · ".join(parts)


def stand_ins(summary: Summary) -> list[str]:
    """List what was emulated, throttled or modelled, and for which variants unless for all.

    Returns:
        Sentences such as "Emulated accelerator (matched, 11.2 ms/image)"; empty where
        everything is real.
    """
    measured = [row.labels for row in summary.rows if row.labels] or [summary.labels]
    names = [row.variant for row in summary.rows if row.labels]
    found: dict[str, list[int]] = {}
    for kind in STAND_INS:
        for i, labels in enumerate(measured):
            for label in labels.get(kind, "").split(" / "):
                if _is_stand_in(kind, label):
                    word, _, detail = label.partition("(")
                    sentence = f"{word.strip()} {kind}" + (f" ({detail}" if detail else "")
                    found.setdefault(sentence[0].upper() + sentence[1:], []).append(i)
    return [
        s if len(rows) == len(measured) else f"{s}: {', '.join(names[i] for i in rows)}"
        for s, rows in found.items()
    ]


def reason(row: Row) -> str:
    """Say why a variant has no number; empty where it has one."""
    if row.normalized_time is not None:
        return ""
    return f"{row.status}: {row.reason}" if row.reason else row.status


def _is_stand_in(kind: str, label: str) -> bool:
    return kind in STAND_INS and any(x.startswith(STAND_INS[kind]) for x in label.split(" / "))
