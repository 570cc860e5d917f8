"""What a report says of a run before its results: what was done, on what, how much of it."""

from __future__ import annotations

from collections.abc import Mapping

from labkit import units
from labkit.machine import hardware as machine
from labkit.settings import AS_PUBLISHED

# Settings that a reader asks for first -> how people call them; the others are in the provenance.
NAMES = {
    "storage": "read from",
    "cache": "page cache before epoch 1",
    "packing": "packing",
    "decoder": "decoder",
    "preprocessor": "preprocessing",
    "input_px": "model input",
    "batch_size": "batch size",
    "loader": "loader",
    "num_workers": "loader workers",
    "prefetcher": "prefetcher",
    "device": "device",
    "step": "step",
    "epochs": "epochs per trial",
}
Facts = list[tuple[str, str]]


def setup(info: Mapping[str, object]) -> Facts:
    """Say what was done that all variants have in common.

    Args:
        info: what `run.json` holds.

    Returns:
        (what, how), only what is stored.
    """
    facts = [("measured", _when_and_how_often(info))]
    if order := _order(info):
        facts.append(("order", order))
    if data := _data(info.get("data") or {}):
        facts.append(("data", data))
    if (images := (info.get("calibration") or {}).get("images")) is not None:
        facts.append(("images per epoch", units.count(images)))
    common = common_settings(info)
    facts += [(name, _spell(key, common)) for key, name in NAMES.items() if key in common]
    return facts


def differences(info: Mapping[str, object]) -> Facts:
    """Say in which settings each variant differs from another; empty where none does."""
    variants: Mapping[str, Mapping] = info.get("variants") or {}
    common = common_settings(info)
    said = [
        (
            f"{label} (baseline)" if label == info.get("baseline") else label,
            "; ".join(f"{key} = {value}" for key, value in values.items() if key not in common),
        )
        for label, values in variants.items()
    ]
    return said if any(text for _, text in said) else []


def common_settings(info: Mapping[str, object]) -> dict[str, object]:
    """Find the settings that are the same in all variants."""
    first, *others = (info.get("variants") or {}).values() or [{}]
    return {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}


def hardware(info: Mapping[str, object]) -> Facts:
    """Say what machine and what software a run was made with, from its provenance."""
    found: Mapping[str, object] = info.get("provenance") or {}
    if not found:
        return []
    facts = [("machine", machine.describe(found))]
    if (memory := found.get("memory_bytes")) is not None:
        facts.append(("memory", units.count_bytes(memory)))
    kernel = found.get("kernel") or "unknown"
    system = f"{found.get('platform', 'unknown')}, kernel {kernel}"
    facts.append(("system", f"{system}, virtual" if found.get("virtual") is True else system))
    versions = {"python": found.get("python"), **(found.get("versions") or {})}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    facts.append(("software", ", ".join(known)))
    for name, medium in (info.get("storages") or {}).items():
        on = f" on {medium['device']}" if medium.get("device") else ""
        parts = [f"{medium.get('filesystem')}{on}", medium.get("label")]
        facts.append((f"medium {name}", ", ".join(str(part) for part in parts if part)))
    return facts


def whole(info: Mapping[str, object]) -> str:
    """Say first of all that a run did not come to its end; empty for one that did."""
    status = str(info.get("status"))
    if status == "finished":
        return ""
    words = {"cancelled": "was cancelled", "failed": "failed", "running": "is not finished"}
    because = f": {info['reason']}" if info.get("reason") else ""
    return (
        f"This run {words.get(status, f'is {status}')}{because}. Only what it had measured counts."
    )


# --- how settings are said ----------------------------------------------------------------


def _when_and_how_often(info: Mapping[str, object]) -> str:
    parts = [f"{info.get('mode')} mode"]
    if (blocks := info.get("blocks")) is not None:
        parts.append(f"{units.count(blocks, 'block')} planned")
    if when := info.get("created_utc"):
        parts.append(f"begun on {units.minute(str(when))}")
    return ", ".join(parts)


def _order(info: Mapping[str, object]) -> str:
    if info.get("protocol") == AS_PUBLISHED:
        return f"{AS_PUBLISHED}: in the given order, only the first variant of a block starts cold"
    if (shuffled := info.get("shuffled")) is None:
        return ""
    if shuffled:
        return "at random in each block, the baseline twice"
    return "in the given order, each variant once a block"


def _data(data: Mapping[str, object]) -> str:
    parts = []
    if (images := data.get("images")) is not None:
        parts.append(units.count(images, "image"))
    if (size := data.get("bytes")) is not None:
        parts.append(units.count_bytes(size))
    if boxes := data.get("boxes"):
        parts.append(f"boxes: {boxes}")
    if folder := data.get("folder"):
        parts.append(f"in {folder}")
    return ", ".join(parts)


def _spell(key: str, settings: Mapping[str, object]) -> str:
    value = settings[key]
    if key == "input_px" and value is not None:
        return f"{value}×{value} px"
    if key == "num_workers" and value and settings.get("start_method"):
        return f"{value}, started by {settings['start_method']}"
    if key == "device" and value == "emulated" and settings.get("profile"):
        return f"{value} ({settings['profile']})"
    return "unset" if value is None else str(value)
