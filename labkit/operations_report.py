"""Timed operations in words: the table of a notebook, a terminal's text, Markdown.

    run ─ operations_summary ─▶ operations_table(), operations_text(), operations_markdown()
                                operations_rows(): for JSON, operations_cells(): for a page
                                operations_conditions(), operations_notes(): the words beside

A ratio is a library's time over that of the operation's first library, which is pillow where
it has the operation.  Main trap: "faster" holds for one operation at one size on one machine,
so no row is ever averaged over operations or sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from labkit import markdown as md
from labkit import units
from labkit.counted import say_rejected
from labkit.operations import MEANINGS
from labkit.operations_summary import (
    OperationRow,
    Twins,
    compare_twins,
    count_blocks,
    summarize_operations,
)
from labkit.results import Run
from labkit.row_words import say_noise_floor, say_visible
from labkit.settings import MIN_JUDGED_BLOCKS, MODES
from labkit.statistics import UNSTABLE
from labkit.summary_notes import say_set_aside, say_unwatched

if TYPE_CHECKING:
    import pandas as pd

# Whose versions count.
LIBRARIES = ("pillow", "opencv", "simplejpeg", "kornia_rs", "torchvision", "torch", "numpy")
RATIO = "ratio [95 % interval]"


def operations_table(run: Run, detail: bool = False) -> pd.DataFrame:
    """Make the table that a notebook shows.

    Args:
        run: from `run_operations`.
        detail: all fields of every row as numbers, one line per size, instead of text.
    """
    from labkit.frame import Frame

    if detail:
        names = [field.name for field in fields(OperationRow)]
        table = Frame(operations_rows(run), columns=names)
        table = table.set_index(["operation", "library", "size"])
    else:
        header, *body = operations_cells(run)
        table = Frame(body, columns=header).set_index(["operation", "library"])
        table.second_lines = dict(zip(table.index, operations_second_lines(run)))
    table.caption = (run.info["question"], " · ".join(operations_conditions(run)))
    table.notes = operations_notes(run, summarize_operations(run))
    return table


def operations_rows(run: Run) -> list[dict[str, object]]:
    """List every field of every row, as JSON can hold it: text, numbers, lists, null."""
    return [{**asdict(row), "blocks_s": list(row.blocks_s)} for row in summarize_operations(run)]


def operations_cells(run: Run) -> list[list[str]]:
    """Lay out the table: a header, then a line per operation and library, two cells per size."""
    rows = summarize_operations(run)
    header = ["operation", "library"]
    for size in _sizes(rows):
        header += [spell_size(size), f"{spell_size(size)} {RATIO}"]
    lines = {}
    for row in rows:
        line = lines.setdefault((row.operation, row.library), [row.operation, row.library])
        line += _cells(row)
    return [header, *lines.values()]


def operations_second_lines(run: Run, size: str | None = None) -> list[str]:
    """Write what the numbers of every line of the table rest on; empty where there are none.

    Args:
        run: from `run_operations`.
        size: of this size only; unset: all.
    """
    lines: dict[tuple[str, str], list[OperationRow]] = {}
    for row in summarize_operations(run):
        if size in (None, row.size):
            lines.setdefault((row.operation, row.library), []).append(row)
    twice = {(row["operation"], row["library"]) for row in run.rows if row.get("role")}
    twins = compare_twins(run)
    return [_second_line(rows, twins if key in twice else None) for key, rows in lines.items()]


def operations_text(run: Run) -> str:
    """Write the tables for a terminal, one per size, with conditions and notes."""
    rows = summarize_operations(run)
    lines = [run.info["question"], *operations_conditions(run)]
    for size in _sizes(rows):
        cells = [["operation", "library", "time per image", RATIO]]
        shown = [row for row in rows if row.size == size]
        cells += [[row.operation, row.library, *_cells(row)] for row in shown]
        widths = [max(map(len, column)) for column in zip(*cells)]
        header, *body = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
            for line in cells
        )
        rule = "  ".join("-" * width for width in widths)
        title = f"{spell_size(size)}, JPEGs of {units.count_bytes(shown[0].jpeg_bytes)}"
        lines += ["", title, "", header, rule]
        for line, second in zip(body, operations_second_lines(run, size)):
            lines += [line, *units.small_print(second)]
    notes = operations_notes(run, rows)
    return "\n".join([*lines, *([""] if notes else []), *(f"- {note}" for note in notes)])


def operations_markdown(run: Run) -> str:
    """Write the table as GitHub's Markdown, with its conditions and notes."""
    rows = summarize_operations(run)
    header, *cells = operations_cells(run)
    conditions = [f"{md.escape(line)}  " for line in operations_conditions(run)]
    table = md.table(header, cells, operations_second_lines(run))
    title = f"### {md.escape(run.info['question'])}"
    lines = [title, "", *conditions, "", table, "", md.bullets(operations_notes(run, rows))]
    return "\n".join(lines).rstrip() + "\n"


def operations_conditions(run: Run) -> list[str]:
    """Say how the numbers came about: mode and blocks; in full mode noise; versions, document."""
    info, twins, blocks = run.info, compare_twins(run), count_blocks(run)
    judged = MODES[info["mode"]].judged
    counted = units.count(len(blocks.counting), "block")
    if blocks.rejected:
        done = "rejected" if blocks.are_rejected_left_out else "disturbed"
        counted += f", {units.count(len(blocks.rejected))} {done}"
    first = [f"{info['mode']} mode", counted]
    if judged and twins is not None and not twins.stable:
        first.append(f"{UNSTABLE}, no verdicts")
    first += ["one thread", f"{info['photos']} photographs"]
    if twins is not None:
        said = f"A/A ratio {units.normalized(twins.ratio)}"
        if twins.low is not None:
            said += f" {units.interval(twins.low, twins.high)}"
        first.append(said)
    versions = info["provenance"]["versions"]
    second = [f"{name} {versions[name]}" for name in LIBRARIES if name in versions]
    lines = [first, _noise(run) if judged else [], [*second, f"document: {info['source']}"]]
    return [" · ".join(line) for line in lines if line]


def operations_notes(run: Run, rows: Sequence[OperationRow]) -> list[str]:
    """List what a reader must know beside the numbers.

    Args:
        run: from `run_operations`.
        rows: its summary.
    """
    notes = ["ratio: a library's time over the baseline's in the same block; lower is faster"]
    n = len(count_blocks(run).counting)
    if not MODES[run.info["mode"]].judged:
        notes.append(f"{run.info['mode']} mode: numbers, no verdicts")
    elif n < MIN_JUDGED_BLOCKS:
        notes.append(f"{n} complete blocks: verdicts need at least {MIN_JUDGED_BLOCKS}")
    used = dict.fromkeys(row.operation for row in rows)
    notes += [f"{name}: {MEANINGS[name]}" for name in used if name in MEANINGS]
    return [*problems(run, rows), *notes, *run.info["notes"]]


def problems(run: Run, rows: Sequence[OperationRow]) -> list[str]:
    """List what is missing or not to be trusted; empty for a whole run on a steady machine.

    Args:
        run: from `run_operations`.
        rows: its summary.
    """
    info, twins, blocks, found = run.info, compare_twins(run), count_blocks(run), []
    done = len({row["block"] for row in run.rows})
    if done < info["blocks"]:
        found.append(f"{info['status']}: {done} of {info['blocks']} blocks are there")
    elif len(blocks.counting) < done:
        found.append(f"{len(blocks.counting)} of {info['blocks']} blocks count")
    if blocks.rejected:
        found.append(say_rejected(blocks.rejected, left_out=blocks.are_rejected_left_out))
    if blocks.are_rejected_left_out and blocks.unwatched:
        found.append(say_unwatched(blocks.unwatched))
    if run.set_aside:
        found.append(say_set_aside(run.set_aside, "row", "its block"))
    if twins is not None and not twins.stable:
        found.append(
            "machine unstable: decoding by pillow, timed twice in each block, differs "
            "systematically from itself; close other programs and run again"
        )
    why: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.status != "ok":
            said = f"{row.status}: {row.reason}"
            why.setdefault((row.operation, row.library, said), []).append(spell_size(row.size))
    return [*found, *(f"{o} by {lib}, {', '.join(at)}: {s}" for (o, lib, s), at in why.items())]


def spell_size(size: str) -> str:
    """Write "640x480" as people do."""
    return size.replace("x", "×")


def _noise(run: Run) -> list[str]:
    """Say what noise alone does, and what shows in spite of it; nothing below two blocks."""
    twins, said = compare_twins(run), []
    if twins is not None and twins.noise is not None:
        said.append(f"noise floor {units.percent(twins.noise)}")
    seen = [row.mde for row in summarize_operations(run) if row.mde is not None]
    if seen:
        said.append(f"every ratio shows effects from {units.percent(max(seen))} up")
    return said


def _second_line(rows: Sequence[OperationRow], twins: Twins | None) -> str:
    """Say what the numbers of one operation by one library rest on, whatever its sizes."""
    measured = [row for row in rows if row.status == "ok"]
    if not measured:
        return ""
    blocks = _by_size({row.size: units.count(len(row.blocks_s), "block") for row in measured})
    noise = (
        "" if twins is None else say_noise_floor(twins.noise, twins.ratio, twins.low, twins.high)
    )
    seen = {row.size: units.percent(row.mde) for row in measured if row.mde is not None}
    given = "pixels"
    if measured[0].operation == "decode":
        sizes = ", ".join(units.count_bytes(row.jpeg_bytes) for row in measured)
        given = f"JPEG bytes ({sizes})"
    memory = f"{given} in memory: no disk, no page cache"
    parts = [blocks, noise, say_visible(_by_size(seen)), memory]
    return " · ".join(part for part in parts if part)


def _by_size(texts: Mapping[str, str]) -> str:
    """Write one text where it holds for every size, else each with its size."""
    different = list(dict.fromkeys(texts.values()))
    if len(different) <= 1:
        return "".join(different)
    return ", ".join(f"{text} ({spell_size(size)})" for size, text in texts.items())


def _cells(row: OperationRow) -> list[str]:
    if row.status != "ok":
        return [row.status, units.UNKNOWN]
    if row.library == row.baseline:
        return [units.seconds(row.image_s), "baseline"]
    ratio = units.normalized(row.ratio)
    if row.ci_low is not None:
        ratio += f" {units.interval(row.ci_low, row.ci_high)}"
    return [units.seconds(row.image_s), f"{ratio}, {row.verdict}" if row.verdict else ratio]


def _sizes(rows: Sequence[OperationRow]) -> list[str]:
    return list(dict.fromkeys(row.size for row in rows))
