"""Record: what may stand in a run's `run.json` and rows when it comes from somebody else.

    a stranger's JSON ─ tame: short, plain texts ─ check: types, labels ─ show ─▶ can be kept

Whatever a list, a table or a report later reads of an opened run has its type here, so that one
file cannot spoil what stands beside it.  Main trap: types alone do not tell whether a run can be
shown, so before it is kept everything is shown once, to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from labkit import machine, notebook
from labkit.markdown_report import markdown_report
from labkit.operations_run import NAME as OPERATIONS
from labkit.page import page
from labkit.results import RESERVED, RUN_FILE, TRIALS_FILE, Run
from labkit.sharing.share_file import EXPERIMENT, refused

# Letters of one text; to lay out a title of 20,000 takes a minute.
MAX_TEXT, MAX_LABEL = 300, 100
LONGER = dict.fromkeys(("notes", "reason", "skipped", "failed"), 2_000)  # whole sentences
MAX_NOTES, MAX_LABELS = 100, 60  # a chart of so many takes some seconds
# A terminal obeys these, or writes from right to left; no label needs them.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "yes or no"}
KINDS |= {dict: "an object", list: "a list"}
# What is read of every run, and what may be missing.
NEEDED = {"question": str, "mode": str, "status": str, "created_utc": str, "provenance": dict}
NEEDED_OF_EPOCHS = {"baseline": str, "variants": dict}
OPTIONAL = {
    **dict.fromkeys(("source", "reason", "protocol", "accelerator", "kind"), str),
    **dict.fromkeys(("data", "storages", "calibration", "timing", "forecast"), dict),
    **dict.fromkeys(("published", "skipped", "failed"), dict),
    **dict.fromkeys(("notes", "excluded", "sizes_px"), list),
    **dict.fromkeys(("blocks", "order_seed", "photos"), int),
    **{"shuffled": bool, "cell_s": float},
}
OF_PROVENANCE = {"cores": int, "memory_bytes": int, "gpu": dict, "versions": dict}
OF_PROVENANCE |= dict.fromkeys(("cpu_model", "machine_id", "kernel", "platform", "python"), str)
OF_ROWS = {
    **dict.fromkeys(("variant", "operation", "library", "size", "role", "status", "reason"), str),
    **dict.fromkeys(("settings", "labels", "cache_proof", "disturbance", "medium"), dict),
    **{"block": int, "epochs": list},
}
ALL_OF = {"variants": dict, "storages": dict, "published": float, "skipped": str, "failed": str}
ENDED = ("finished", "cancelled", "failed")
LABELS = ("variant", "operation", "library", "size")  # of rows


def tame(value: object, limit: int = MAX_TEXT) -> object:
    """Cut every text, keys too, and take out of it what a terminal would obey."""
    if isinstance(value, str):
        text = CONTROL.sub("", value)
        return text if len(text) <= limit else f"{text[: limit - 1]}…"
    if isinstance(value, Mapping):
        return {tame(key): tame(below, LONGER.get(key, limit)) for key, below in value.items()}
    if isinstance(value, list):
        return [tame(below, limit) for below in value]
    return value


def check_name(name: object) -> None:
    """Refuse what cannot be an experiment's folder of results.

    Raises:
        ValueError: it is another name.
    """
    if not EXPERIMENT.fullmatch(str(name)) or name in RESERVED:
        raise refused("one with a plain name as its experiment", repr(name))


def check_labels(info: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> None:
    """Refuse labels that no table has room for.

    Raises:
        ValueError: one is too long, or there are too many.
    """
    labels = {str(info.get("baseline") or "")}
    for key in ("variants", "published", "skipped", "failed"):
        labels |= set(info.get(key) or ())
    labels |= {str(row[key]) for row in rows for key in LABELS if key in row}
    if len(longest := max(labels, key=len)) > MAX_LABEL:
        raise ValueError(
            f"variant must have a label of at most {MAX_LABEL} letters in a share file, "
            f"got {len(longest)} in {longest[:20]!r}…; give it a shorter one"
        )
    if len(labels) > MAX_LABELS:
        raise ValueError(
            f"share file must have at most {MAX_LABELS} labels, got {len(labels)}; "
            "make it experiments of fewer variants"
        )


def check_types(info: Mapping[str, object], rows: Iterable[Mapping[str, object]]) -> None:
    """Refuse what no run of this lab's says.

    Raises:
        ValueError: something is missing or of another type; the message says what.
    """
    needed = NEEDED if info.get("kind") == OPERATIONS else NEEDED | NEEDED_OF_EPOCHS
    _check(RUN_FILE, info, needed, may_miss=False)
    _check(RUN_FILE, info, OPTIONAL)
    _check(f"provenance in {RUN_FILE}", info["provenance"], OF_PROVENANCE)
    for key, kind in ALL_OF.items():
        below = info.get(key) or {}
        _check(f"{key} in {RUN_FILE}", below, dict.fromkeys(below, kind), may_miss=False)
    notes = dict(enumerate(info.get("notes") or ()))
    _check(f"notes in {RUN_FILE}", notes, dict.fromkeys(notes, str), may_miss=False)
    if len(notes) > MAX_NOTES:
        raise refused(f"one of at most {MAX_NOTES} notes", str(len(notes)))
    if info["status"] not in ENDED:
        raise refused(f"one of a run that is {', '.join(ENDED)}", repr(info["status"]))
    for row in rows:
        _check(TRIALS_FILE, row, OF_ROWS)


def _check(
    place: str, values: Mapping, kinds: Mapping[object, type], *, may_miss: bool = True
) -> None:
    for key, kind in kinds.items():
        value = values.get(key)
        if value is None and may_miss:
            continue
        accepted = (int, float) if kind is float else kind
        # To Python, true is a whole number.
        if not isinstance(value, accepted) or isinstance(value, bool) != (kind is bool):
            raise refused(f"one whose {key} is {KINDS[kind]} in {place}", f"{value!r:.80}")


def show(run: Run) -> None:
    """Show everything of a run that lists, tables and reports show, to nobody.

    Raises:
        Exception: of any kind, where something cannot be shown.
    """
    machine.describe(run.info["provenance"])
    notebook.text(run)
    notebook.table(run)._repr_html_()
    sections: Sequence = [replace(notebook.section(run), figures={})]  # `save` has drawn them
    page(sections)
    markdown_report(sections, [[]])
    if run.info.get("kind") != OPERATIONS:
        notebook.compare_table([run])._repr_html_()
