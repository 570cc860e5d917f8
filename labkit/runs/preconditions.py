"""What must hold before a run starts or is resumed, checked before a folder is made.

`labkit.resolve` refuses the settings of one variant that do not fit together; here variants are
compared with each other and with the data.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
from collections.abc import Mapping
from dataclasses import asdict

from labkit import pipeline
from labkit.contracts import Skip, utc_now
from labkit.machine import gpu, hardware
from labkit.parts.packing.remote import local_folder
from labkit.resolve import (
    Resolved,
    complete_here,
    open_original,
    open_reader,
    original,
    own_parts,
    resolve,
)
from labkit.runs.experiment import EPOCHS, Experiment
from labkit.runs.kinds import KINDS
from labkit.runs.schedule import check_blocks
from labkit.runs.staging import why_not_throttled
from labkit.runs.store import SCHEMA, SHARED, StoredRun
from labkit.settings import (
    CORRECTED,
    MODES,
    Settings,
    pick,
    read_settings,
)

# Variants that differed in these would do different work.
SAME_FOR_ALL = ("data", "images", "subset", "seed", "epochs", "on_bad_image")


def check(
    experiment: Experiment,
    mode: str,
    blocks: int | None,
    cancel: threading.Event | None = None,
) -> dict[str, object]:
    """Refuse what cannot work, before anything is made or started.

    Returns:
        What `run.json` holds at the start of a run.

    Raises:
        ValueError: settings, data or parts that cannot work.
        Cancelled: `cancel` was set while data at a URL was copied to this machine.
    """
    chosen = pick(MODES, mode, "mode")
    request = {**(experiment.request or {}), "mode": mode, "blocks": blocks}
    blocks = check_blocks(chosen, blocks)
    if experiment.otherwise is not None:
        baseline = experiment.variants[experiment.baseline]
        if reason := why_not_throttled(complete_here(baseline, chosen)):
            experiment = experiment.otherwise(experiment, reason)
    wanted = {**experiment.variants, **(experiment.in_full if chosen.judged else {})}
    variants = {label: complete_here(settings, chosen) for label, settings in wanted.items()}
    parts, skipped = {}, {}
    for label, settings in variants.items():
        try:
            parts[label] = resolve(settings, cuda=gpu.cuda)
        except Skip as reason:
            skipped[label] = str(reason)
    local_folder(variants[experiment.baseline].data, cancel=cancel)
    data = _describe_data(variants[experiment.baseline])
    own_parts()  # refuses those that no other process can be sent
    _check_equal_work(variants)
    _check_together(parts, data["images"])
    names = pick(KINDS, experiment.kind, "kind").settings
    return {
        "schema": SCHEMA,
        "kind": experiment.kind,
        "experiment": experiment.name,
        "question": experiment.question,
        "mode": mode,
        "request": request,
        "protocol": experiment.protocol,
        "shuffled": chosen.shuffled and experiment.protocol == CORRECTED,
        "blocks": blocks,
        "baseline": experiment.baseline,
        "variants": {
            label: {name: value for name, value in asdict(settings).items() if name in names}
            for label, settings in variants.items()
        },
        **experiment.grouped(variants),
        "published": dict(experiment.published),
        "source": experiment.source,
        "dial": experiment.dial and asdict(experiment.dial),
        "skipped": skipped,
        "failed": {},
        "status": "running",
        "notes": [*experiment.notes, *_notes(variants)],
        "order_seed": secrets.randbits(32),
        "created_utc": utc_now(),
        "data": data,
        "provenance": hardware.provenance(),
    }


def check_resumable(run: StoredRun) -> None:
    """Refuse to resume a run whose new rows would not be comparable with its old ones.

    Raises:
        ValueError: it came from another machine or version, a part of it is not known here, or
            its data changed.
    """
    info = run.info
    if shared := info.get(SHARED):
        raise ValueError(
            f"run must be one of this machine's to be resumed, got one from {shared['from']}; "
            f"start one here: labkit run {info['experiment']}"
        )
    if (info.get("calibration") or {}).get("compute_s_per_image") is not None:
        raise ValueError(
            "run must have a device that this version knows, got one that an earlier version "
            "fitted to the run; start a new run"
        )
    variants = {label: read_settings(values) for label, values in info["variants"].items()}
    mode = pick(MODES, info["mode"], "mode")
    pick(KINDS, info.get("kind", EPOCHS), "kind")
    for settings in variants.values():
        with contextlib.suppress(Skip):  # its row says why
            resolve(complete_here(settings, mode))
    data = _describe_data(variants[info["baseline"]])
    if {name: data[name] for name in info["data"]} != info["data"]:
        raise ValueError(
            f"data must be what the run began with ({info['data']}), got {data}; start a new run"
        )
    began_on, here = info["provenance"]["machine_id"], hardware.provenance()["machine_id"]
    if began_on != here:
        raise ValueError(
            f"run must be resumed on the machine it began on ({began_on}), got {here}; "
            "start a new run"
        )


def _describe_data(settings: Settings) -> dict[str, object]:
    open_reader.cache_clear()  # a notebook lives long, and its data may change
    reader = open_original(settings)
    # Missing files are all named at once when the images are checked.
    size_bytes = sum(path.stat().st_size for path in reader.paths if path.exists())
    return {
        "folder": settings.data,
        "images": len(reader),
        "bytes": size_bytes,
        "mean_bytes": size_bytes / max(1, len(reader)),
        "boxes": reader.boxes,
        "manifest_hash": reader.manifest_hash,
    }


def _check_equal_work(variants: Mapping[str, Settings]) -> None:
    """Refuse variants whose settings ask for different work, whether or not they run here."""
    for name in SAME_FOR_ALL:
        values = sorted({str(getattr(settings, name)) for settings in variants.values()})
        if len(values) > 1:
            raise ValueError(
                f"{name} must be the same for all variants, got {', '.join(values)}; "
                "make them experiments of their own"
            )


def _check_together(running: Mapping[str, Resolved], available: int) -> None:
    """Refuse variants that cannot be compared on this machine or that need too many images.

    Args:
        running: label -> parts; a variant that cannot run here must not limit the others.
        available: images there are.
    """
    real = [
        label for label, parts in running.items() if not parts.storage.label.startswith("modelled")
    ]
    if 0 < len(real) < len(running):
        raise ValueError(
            f"storage must be modelled for all variants or for none, got {', '.join(real)} on "
            "real storage; a model's figures must not stand beside measured ones"
        )
    settings = [parts.settings for parts in running.values()]
    for chosen in settings:
        pipeline.choose_images(original(chosen))  # not packed or copied yet
    sizes = sorted({chosen.batch_size * chosen.ranks for chosen in settings})
    wanted = min((chosen.images or available for chosen in settings), default=available)
    if math.lcm(*sizes) > wanted:
        several = " × ranks" * any(chosen.ranks > 1 for chosen in settings)
        raise ValueError(
            f"batch_size{several} must have a common multiple of at most {wanted} images in all "
            f"variants, got {', '.join(map(str, sizes))}; choose sizes that divide each other"
        )


def _notes(variants: Mapping[str, Settings]) -> list[str]:
    most = max(settings.num_workers for settings in variants.values())
    if most > hardware.cores():
        return [f"num_workers {most} is more than this machine's {hardware.cores()} cores"]
    return []
