"""Where numbers come from, in one small line: machine, versions, labkit, run and minute.

    run.json -> origin() -> at the foot of every chart

    2 cores, AMD EPYC, no GPU (machine 7a93da) · torch 2.13.0 · labkit d3b547a · run … · … UTC

Main trap: a figure is pasted into slides and outlives its folder, so what is needed to find
its run stands on it; but nothing personal does: no path, no host, no user.
"""

from __future__ import annotations

from collections.abc import Mapping

from labkit import units
from labkit.machine import hardware

REVISION_SHOWN = 7  # letters of a commit's name, as git shows it


def origin(info: Mapping[str, object]) -> str:
    """Say in one line where a run's numbers come from.

    Args:
        info: what `run.json` holds, and `run`: its folder's own name; what is not there is
            left out.

    Returns:
        Parts joined by " · "; empty where nothing is known.
    """
    provenance, parts = info.get("provenance") or {}, []
    if provenance.get("machine_id"):
        parts.append(hardware.describe(provenance))
    parts.append(", ".join(_versions(info)))
    if (revision := provenance.get("revision") or "unknown") != "unknown":
        changed = " with changes" if provenance.get("dirty") is True else ""
        parts.append(f"labkit {revision[:REVISION_SHOWN]}{changed}")
    if run := info.get("run"):
        parts.append(f"run {run}")
    if created := info.get("created_utc"):
        parts.append(units.minute(created))
    return " · ".join(part for part in parts if part)


def _versions(info: Mapping[str, object]) -> list[str]:
    """List torch, and the libraries that a variant's settings name."""
    versions = (info.get("provenance") or {}).get("versions") or {}
    settings = [x for key in ("variants", "tasks") for x in (info.get(key) or {}).values()]
    named = {value for chosen in settings for value in chosen.values() if isinstance(value, str)}
    # A library's scaled decoder, DALI on the CPU, and tf.data in all its ways.
    named |= {value.removesuffix("_scaled").removesuffix("_cpu") for value in named}
    named |= {"tensorflow" for value in named if value.startswith("tf_data")}
    return [
        f"{name} {version}"
        for name, version in versions.items()
        if name in {"torch", *named} and version != "unknown"
    ]
