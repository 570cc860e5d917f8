"""The comment at the top of a recipe: what was gained, on what conditions, what else to do.

    Run, Summary, Row ─▶ what it is · its number · the run · the machine · where the data goes

The words are those of the tables (`captions`, `row_words`).  Main trap: a gain travels with its
conditions or not at all, and of the machine's paths none travels with it but the data folder: the
program reads from it, and what copies the data elsewhere begins there.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import PurePath

from labkit import units
from labkit.captions import conditions, stand_ins
from labkit.parts.prefetching import STEPS_SHORT
from labkit.parts.storage import IN_MEMORY, distance
from labkit.places import is_url, last_name, place
from labkit.recipes.program import functions, libraries
from labkit.recipes.winner import passed_over
from labkit.results import Run
from labkit.row_words import document, join, quote, second_line
from labkit.settings import Settings
from labkit.summary import Row, Summary, is_floor

WIDTH = 100
MEMORY_FOLDER = "/mnt/ram"
# A file system in memory takes whole pages and folders beside the files' bytes.
ROOM = 1.1
# Medium -> what the data has to lie on, and a folder that stands for it in a command.
DISKS = {"ssd": ("an SSD", "/ssd"), "nvme": ("an NVMe SSD", "/nvme")}
OTHER_DISK = ("the disk that the run named", "/disk")
OWN_DISK = ("a disk of this machine", "/disk")


def comment(run: Run, summary: Summary, row: Row, *, layout: str, is_chosen: bool) -> str:
    """Write the comment of a variant's recipe.

    Args:
        run: for its folder's name, settings, data and machine.
        summary: of the same run.
        row: the variant, with a number.
        layout: of the data's folder, a key of `pieces.LAYOUTS`.
        is_chosen: the lab chose it; a person did not name it.

    Returns:
        Lines that start with "#", and an empty one.
    """
    settings = Settings(**run.info["variants"][row.variant])
    lines = [
        *_what(run, summary, row, is_chosen=is_chosen),
        "",
        *_numbers(summary, row, settings),
        f"Conditions: {conditions(summary)}",
        *(f"{sentence}." for sentence in stand_ins(summary)),
        _run_line(run),
        *([_machine_line(machine, settings)] if (machine := run.info.get("provenance")) else []),
    ]
    if to_do := _to_do(run, settings, layout):
        lines += ["", *to_do]
    return "\n".join(map(_wrap, lines)) + "\n\n"


def _what(run: Run, summary: Summary, row: Row, *, is_chosen: bool) -> list[str]:
    name, baseline = quote(row.variant), quote(summary.baseline)
    what = "as plain PyTorch for a train.py of your own: it needs no labkit."
    said = [f"{name} in a run of {summary.experiment}, {what}"]
    if is_chosen and row.variant == summary.baseline:
        said = [f"Nothing beat {baseline} in this run, so this is the baseline itself, {what}"]
    elif is_chosen:
        won = "the winner" if summary.judged else "the fastest"
        said = [f"{name}, {won} in this run of {summary.experiment}, {what}"]
    if is_chosen:
        others = passed_over(run, summary, row)
        said += [f"Passed over: {join(names)} ({why})." for why, names in others.items()]
    if row.variant == summary.baseline:
        return said
    changed = _changes(run, summary, row)
    if not changed:
        return [*said, f"Its settings are those of {baseline}: whatever it gained, they did not."]
    differs = ", ".join(f"{name} {then} (was {now})" for name, (now, then) in changed.items())
    found = functions(Settings(**run.info["variants"][row.variant]), changed)
    where = f"; see {', '.join(found)} below" if found else ""
    return [*said, f"Against {baseline}: {differs}{where}."]


def _changes(run: Run, summary: Summary, row: Row) -> dict[str, tuple[str, str]]:
    """Setting -> (the baseline's, the variant's), where they differ."""
    now, then = (Settings(**run.info["variants"][name]) for name in (summary.baseline, row.variant))
    return {
        field.name: (_shown(getattr(now, field.name)), _shown(getattr(then, field.name)))
        for field in fields(Settings)
        if getattr(now, field.name) != getattr(then, field.name)
    }


def _shown(value: object) -> str:
    """Write a setting, but no path of the machine."""
    is_path = isinstance(value, str) and len(PurePath(value).parts) > 1
    return "a folder" if is_path else str(value)


def _numbers(summary: Summary, row: Row, settings: Settings) -> list[str]:
    rate = units.rate(row.images_per_s)
    if row.variant == summary.baseline:
        measured = f"Measured: {rate}, the baseline of all the others."
    else:
        time = units.normalized(row.normalized_time)
        measured = f"Measured: {time} of the epoch time of {quote(summary.baseline)}"
        if row.ci_low is not None:
            measured += f", 95 % interval {units.interval(row.ci_low, row.ci_high)}"
        measured += f", {row.verdict}" if row.verdict else ""
        measured += f" ({rate})."
    said = [measured]
    if not summary.judged:
        said.append(f"{summary.mode.capitalize()} mode: numbers, no verdict.")
    if is_floor(asdict(settings), baseline={}):  # whatever it was measured against
        said.append("It does only part of the work: a floor, not a remedy.")
    if settings.prefetcher in STEPS_SHORT:
        said.append("In the run it left out the last step of each epoch; this delivers it.")
    if row.published is not None and row.variant != summary.baseline:
        said.append(f"The document reported {document(summary, row)}.")
    return [*said, f"It rests on: {second_line(summary, row)}"]


def _run_line(run: Run) -> str:
    said = f"Run: {run.info['experiment']}/{run.folder.name}"
    if created := run.info.get("created_utc"):
        said += f", {units.minute(created)}"
    measured = max((epoch.images for trial in run.trials for epoch in trial.epochs), default=0)
    available = (run.info.get("data") or {}).get("images") or 0
    if 0 < measured < available:
        said += f", {units.count(measured)} of {units.count(available, 'image')} an epoch"
    return said


def _machine_line(machine: Mapping[str, object], settings: Settings) -> str:
    gpu, versions = machine.get("gpu") or {}, machine.get("versions") or {}
    parts = [
        machine.get("cpu_model", "unknown CPU"),
        units.count(machine.get("cores"), "core"),
        f"{units.count_bytes(machine.get('memory_bytes'))} of memory",
        gpu.get("name") or "no GPU",
        f"Python {machine.get('python', 'unknown')}",
        *(f"{name} {versions.get(name, 'unknown')}" for name in libraries(settings)),
    ]
    return f"Machine: {' · '.join(parts)}"


def _to_do(run: Run, settings: Settings, layout: str) -> list[str]:
    """Say where the data has to lie; lines that begin with a blank are commands."""
    name = settings.storage
    medium = name.removeprefix("modelled_")
    stood_in = f"In the run a model stood in for {medium}. " if medium != name else ""
    if name == "here":
        return []
    if (far := distance.parse(name)) is not None:
        away = f"{far.rtt_ms} ms and {far.mbit_per_s:,} Mbit/s away"
        stood_in = f"In the run a server stood in for data {away}. "
        if not far.staged:
            return [f"{stood_in}This reads DATA as a folder, so one that is far has to be mounted."]
    if name in IN_MEMORY:
        size_bytes = (run.info.get("data") or {}).get("bytes")
        size = f"{math.ceil(size_bytes * ROOM / 2**20)}M" if size_bytes else "SIZE"
        options = f"size={size},mode=0755,nosuid,nodev,uid=$(id -u),gid=$(id -g)"
        return [
            f"{stood_in}The data has to lie in memory; a reboot empties it, so keep the originals:",
            f"    sudo mkdir -p {MEMORY_FOLDER}",
            f"    sudo mount -t tmpfs -o {options} tmpfs {MEMORY_FOLDER}",
            *_copy(settings.data, MEMORY_FOLDER, layout),
        ]
    if name == "throttled":
        return ["In the run a slowed-down disk stood in for hdd; this reads DATA where it lies."]
    if medium == "hdd":
        return [f"{stood_in}The run read from a hard disk; this reads DATA where it lies."]
    disk, folder = DISKS.get(medium, OWN_DISK if far else OTHER_DISK)
    return [
        f"{stood_in}The data has to lie on {disk}; if it does not:",
        *_copy(settings.data, folder, layout),
    ]


def _copy(data: str, folder: str, layout: str) -> list[str]:
    annotations = " (with COCO's annotations/ beside it, too)" if layout == "coco" else ""
    if is_url(data):
        copy, name = f"Copy all that is at the data's URL to {folder}.", last_name(place(data))
    else:
        copy, name = f"    cp -r {shlex.quote(data)} {folder}/", PurePath(data).name
    return [copy, f"Then DATA below is {folder}/{name}{annotations}."]


def _wrap(line: str) -> str:
    line = " ".join(line.splitlines())  # what comes after the end of a comment is run
    if not line or line.startswith(" "):  # a command stays on its line
        return f"#{line}"
    first, *others = units.small_print(line, indent="# ", width=WIDTH - 2)
    return "\n".join([first, *(f"#   {other.removeprefix('# ')}" for other in others)])
