"""Runs of operations by earlier versions, read as runs of today's experiment.

    run.json of kind "operations", rows of kind "operation" ─ convert() ─▶ run.json, trials

Their kind stays "operations": they can be shown, but not resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.contracts import Epoch, Trial

KIND = "operations"
SCHEMA = 2  # of their run.json


def convert(
    info: Mapping[str, object], rows: Sequence[Mapping[str, object]]
) -> tuple[dict[str, object], list[Trial]]:
    """Turn rows of operation, library and size into trials of variants in groups.

    Args:
        info: what `run.json` holds.
        rows: in the order they were written; of a block that was run again the later ones count.

    Returns:
        What `run.json` would hold today, and the trials.
    """
    cells = ("block", "operation", "library", "role", "size")
    rows = list({tuple(row[name] for name in cells): row for row in rows}.values())
    groups, baselines, twice = {}, {}, set()
    for row in rows:
        group, label = _names(row)
        groups[label] = group
        baselines.setdefault(group, label)
        if row["role"]:
            twice.add(group)
    data = (info.get("data") or {}).get("folder", "unknown")  # not in a colleague's run
    settings = {"data": data, "seed": info["order_seed"]}
    trials = [_trial(info, row, settings, baselines) for row in rows]
    told = {
        "baseline": next(iter(groups), ""),
        "variants": dict.fromkeys(groups, settings),
        "groups": groups,
        "tasks": {trial.variant: {"library": trial.settings["library"]} for trial in trials},
        "baselines": baselines,
        "twice": sorted(twice),
    }
    return {**info, **told}, trials


def _names(row: Mapping[str, object]) -> tuple[str, str]:
    group = f"{row['operation']}, {row['size'].replace('x', '×')}"
    return group, f"{group}: {row['library']}"


def _trial(
    info: Mapping[str, object],
    row: Mapping[str, object],
    settings: Mapping[str, object],
    baselines: Mapping[str, str],
) -> Trial:
    group, label = _names(row)
    epoch = Epoch(
        epoch_s=row["image_s"] or 0.0, startup_s=0.0, first_batch_s=0.0, wait_s=0.0,
        transfer_s=0.0, forward_s=None, backward_s=None, launch_s=None, sync_s=0.0,
        steps=row["repeats"], images=1, batch_bytes=0, compute_s=None,
    )  # fmt: skip
    return Trial(
        experiment=str(info["experiment"]),
        variant=label,
        group=group,
        block=row["block"],
        position=0,
        role=row["role"] or ("A1" if label == baselines[group] else ""),
        settings={**settings, "operation": row["operation"], "library": row["library"]},
        status=row["status"],
        reason=row["reason"],
        epochs=(epoch,) if row["status"] == "ok" else (),
        disturbance=row.get("disturbance") or {},
        machine_id=row.get("machine_id", "unknown"),
        started_utc=row.get("started_utc", "unknown"),
    )
