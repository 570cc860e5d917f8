"""The `local` block of run.json: what may not leave this machine.

    facts of a run ─ split() ─▶ {what may be shared, "local": {…}} ─▶ run.json
    run.json ─ join() ─▶ facts of a run

Paths, addresses, devices, error messages and lists of files go into the block; a share file is
run.json without it.  Variant labels, questions and notes of an experiment are the user's own words
and are shared.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping

LOCAL = "local"
# Settings that hold a folder or an address instead of a name.
PLACES = ("data", "storage", "checkpoint_to", "report_to")
NOT_SHARED = "not shared"
# Until schema 2 notes and reasons named files and folders.
FIRST_WITH_BLOCK = 2


def split(info: Mapping[str, object]) -> dict[str, object]:
    """Move what may not leave this machine into the block `local`.

    Args:
        info: a run's facts, of any version; not changed.

    Returns:
        What `run.json` holds: `join` is the way back.
    """
    shared = copy.deepcopy({name: value for name, value in info.items() if name != LOCAL})
    local: dict[str, object] = {}

    def move(*path: str, instead: object = None) -> None:
        *above, last = path
        source, target = shared, local
        for key in above:
            source = source.get(key) or {}
        if last in source:
            for key in above:
                target = target.setdefault(key, {})
            target[last] = source.pop(last)
            if instead is not None:
                source[last] = instead

    manifest = str((info.get("data") or {}).get("manifest_hash") or "unknown")
    for label, settings in (info.get("variants") or {}).items():
        for name in places_in(settings):
            move("variants", label, name, instead=shared_place(name, manifest))
    request = info.get("request") or {}
    for name in places_in(request.get("settings") or {}):
        move("request", "settings", name)
    for label in info.get("costs") or {}:
        move("costs", label, "folder")
    for name, facts in (info.get("storages") or {}).items():
        if is_place("storage", name):
            move("storages", name)
        else:
            for fact in ("device", "remark"):
                if fact in facts:
                    move("storages", name, fact)
    for status in ("skipped", "failed"):
        for label in info.get(status) or {}:
            move(status, label, instead=NOT_SHARED)
    move("data", "folder")
    move("provenance", "gpu", "reason")
    move("reason")
    move("local_notes")
    if info.get("schema", 0) < FIRST_WITH_BLOCK:
        move("notes", instead=[])
    return {**shared, LOCAL: local}


def join(stored: Mapping[str, object]) -> dict[str, object]:
    """Put the block `local` back in its place, as the facts were before `split`."""
    shared = {name: value for name, value in stored.items() if name != LOCAL}
    return _merge(shared, stored.get(LOCAL) or {})


def shared_row(row: Mapping[str, object], manifest: str) -> dict[str, object]:
    """Return what may be shared of a row: no reasons, folders, addresses, devices or programs.

    Args:
        row: of trials.jsonl; not changed.
        manifest: hash of the data's manifest, which stands for its folder.
    """
    shared = copy.deepcopy(dict(row))
    if shared.get("reason"):
        shared["reason"] = NOT_SHARED
    settings = shared.get("settings") or {}
    for name in places_in(settings):
        settings[name] = shared_place(name, manifest)
    (shared.get("medium") or {}).pop("device", None)
    (shared.get("disturbance") or {}).pop("busiest_program", None)
    return shared


def places_in(settings: Mapping[str, object]) -> list[str]:
    """List the settings that hold a folder or an address."""
    return [name for name in PLACES if is_place(name, settings.get(name))]


def is_place(name: str, value: object) -> bool:
    """Return whether a setting's value is a folder or an address: of `data` it always is."""
    return value is not None and (name == "data" or not re.fullmatch(r"\w+", str(value)))


def shared_place(name: str, manifest: str) -> str:
    """Return what stands for a folder or an address in a share file."""
    return f"manifest {manifest[:12]}" if name == "data" else "a folder"


def _merge(shared: dict[str, object], local: Mapping[str, object]) -> dict[str, object]:
    merged = dict(shared)
    for name, value in local.items():
        below = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[name] = _merge(dict(below), value) if both else value
    return merged
