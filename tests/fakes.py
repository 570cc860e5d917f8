"""Realistic stand-ins for what a run leaves behind, made without running anything."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from labkit.analysis.summary import Summary, summarize
from labkit.records import RUN_SCHEMA, Epoch, Hardware, RunInfo, Trial
from labkit.runs.store import from_json

REAL_DISK, THROTTLED_DISK = Hardware("storage"), Hardware("storage", "throttled", "81 reads/s")
MODELLED_DISK = Hardware("storage", "modelled", "HDD 7200")
H200 = Hardware("device", details="cuda:H200")
SIMULATED_GPU = Hardware("device", "simulated", "460 images/s")
# What a trial is labelled with: hardware by its kind, and text.
LABELS = {"storage": REAL_DISK, "device": SIMULATED_GPU}


def fake_epoch(epoch_s: float, *, images: int = 160, steps: int = 20) -> Epoch:
    """An epoch on the simulated GPU: 10 ms to start up, 70 % compute."""
    return Epoch(
        epoch_s=epoch_s,
        startup_s=0.01,
        first_batch_s=0.05 * epoch_s,
        wait_s=0.25 * epoch_s,
        transfer_s=0.04 * epoch_s,
        forward_s=None,
        backward_s=None,
        launch_s=0.0,
        sync_s=0.6 * epoch_s,
        steps=steps,
        images=images,
        batch_bytes=images * 3 * 256 * 256 * 4,
        compute_s=0.7 * epoch_s,
        arrivals_s=tuple((0.05 + 0.95 * step / steps) * epoch_s for step in range(steps)),
    )


def fake_trial(
    variant: str,
    block: int,
    role: str = "",
    time_s: float = 2.0,
    *,
    status: str = "ok",
    reason: str = "",
    labels: Mapping[str, str | Hardware] = LABELS,
) -> Trial:
    """One trial whose two epochs take 60 % and 40 % of `time_s`; none unless it is ok."""
    ok = status == "ok"
    return Trial(
        experiment="prefetching",
        variant=variant,
        block=block,
        position=0,
        role=role,
        settings={},
        status=status,
        reason=reason,
        epochs=(fake_epoch(0.6 * time_s), fake_epoch(0.4 * time_s)) if ok else (),
        cpu_s=1.5 * time_s if ok else None,
        cpu_percent=150.0 if ok else None,
        simulated_busy_share=0.7 if ok else None,
        peak_rss_bytes=400_000_000 if ok else None,
        cache_proof=fake_proof(labels.get("cache")) if ok else {},
        **split_labels(labels),
    )


def split_labels(labels: Mapping[str, str | Hardware]) -> dict[str, object]:
    """A trial's fields `hardware` and `labels`."""
    hardware = tuple(label for label in labels.values() if isinstance(label, Hardware))
    texts = {name: label for name, label in labels.items() if isinstance(label, str)}
    return {"hardware": hardware, "labels": texts}


def fake_proof(cache: str | None) -> dict[str, object]:
    """What was measured of files that were as their label says."""
    return {"resident_share_before": {"cold": 0.0, "warm": 1.0}.get(cache)}


def fake_proved(
    cache: str,
    *,
    resident: float | None = None,
    file_bytes: int | None = None,
    device_read_bytes: int | None = None,
) -> Trial:
    """One trial with a cache state and what was measured of it; None is unknown."""
    proof = {
        "wanted": cache,
        "resident_share_before": resident,
        "file_bytes": file_bytes,
        "device_read_bytes": device_read_bytes,
    }
    trial = fake_trial("v", 0, labels={**LABELS, "cache": cache})
    return replace(trial, cache_proof=proof)


def fake_logged(trial: Trial, **log: float | None) -> Trial:
    """The same trial, with something in its machine's log."""
    return replace(trial, disturbance={**trial.disturbance, **log})


# What decides whether two variants train the same model on the same images.
TRAINING = {
    "step": "classifier", "batch_size": 8, "images": 160, "input_px": 256, "epochs": 2, "seed": 0,
    "decoder": "opencv", "preprocessor": "classification", "prefetcher": "none", "loader": "torch",
}  # fmt: skip


MEANS = {"image": [-0.5, 0.25, 0.0], "label": 12.5}


def fake_work(
    variant: str,
    *,
    loss: float | None = 2.0,
    first_loss: float | None = None,
    ids_crc: int | None = 7,
    means: Mapping[str, object] | None = MEANS,
    **settings: object,
) -> Trial:
    """One trial with what the last batch of its second epoch held; the first one's was right."""
    trial = fake_trial(variant, 0)
    right = replace(trial.epochs[0], last_ids_crc=7, last_means=MEANS)
    last = replace(trial.epochs[1], last_ids_crc=ids_crc, last_means=means)
    return replace(
        trial,
        settings={**TRAINING, **settings},
        loss=loss,
        first_loss=first_loss,
        epochs=(right, last),
    )


def fake_trials(
    times: Mapping[str, float],
    *,
    blocks: int = 3,
    noise: float = 0.02,
    drift: float = 0.05,
    seed: int = 0,
    labels: Mapping[str, str | Hardware] = LABELS,
) -> list[Trial]:
    """A whole run: the first variant is the baseline and runs twice a block, in random order.

    Args:
        times: variant -> true normalized time; the baseline's is 1.
        noise: standard deviation of a trial's log time.
        drift: how much slower the machine is in the last block than in the first.
    """
    rng = random.Random(seed)
    baseline, *others = times
    trials = []
    for block in range(blocks):
        names = [baseline, baseline, *others]
        rng.shuffle(names)
        roles = iter(("A1", "A2"))  # the earlier is A1
        arms = [(name, next(roles) if name == baseline else "") for name in names]
        speed_s = 2.0 * (1 + drift * block / max(1, blocks - 1))
        for name, role in arms:
            time_s = speed_s * times[name] * rng.lognormvariate(0, noise)
            trials.append(fake_trial(name, block, role, time_s, labels=labels))
    return trials


def fake_info(names: Sequence[str], /, *, mode: str = "quick", **more: object) -> RunInfo:
    """A run of variants; the first is the baseline.

    Args:
        names: of the variants.
        mode: of the run.
        more: what else run.json would say, as it says it.
    """
    return from_json(fake_json(names, mode=mode, **more))


def fake_json(names: Sequence[str], /, *, mode: str = "quick", **more: object) -> dict[str, object]:
    """What run.json would say."""
    return {
        "schema": RUN_SCHEMA,
        "experiment": "prefetching",
        "question": "Does fetching the next batch early keep the device busy?",
        "mode": mode,
        "baseline": names[0],
        "variants": {
            name: {"prefetcher": name if i else "none", "num_workers": 2, "data": "data/photos"}
            for i, name in enumerate(names)
        },
        "source": "[004] 3.1",
        "status": "finished",
        "blocks": 0,
        "order_seed": 0,
        "data": {},
        "provenance": {},
        "skipped": {},
        "failed": {},
        "notes": [],
        "created_utc": "2025-01-02T03:04:05Z",
        **more,
    }


TIMES = {"original": 1.0, "prefetch_generator": 0.894, "data_prefetcher": 0.891}


def make_summary(
    times: Mapping[str, float] = TIMES, *, labels: Mapping[str, str | Hardware] = LABELS,
    blocks: int = 3, noise: float = 0.02, **info: object,
) -> Summary:  # fmt: skip
    """The summary of a whole run; what run.json says is skipped has rows, too."""
    names = [*times, *info.get("skipped", {})]
    trials = fake_trials(times, labels=labels, blocks=blocks, noise=noise) if times else []
    return summarize(fake_info(names, blocks=blocks, **info), trials)


def fake_throttled_hdd():
    """Trials of which only the variant hdd stands on a stand-in."""
    real = {"storage": REAL_DISK, "device": H200}
    return [
        replace(trial, hardware=(THROTTLED_DISK, H200)) if trial.variant == "hdd" else trial
        for trial in fake_trials({"hdd": 1.0, "ssd": 0.86}, labels=real)
    ]


@dataclass(frozen=True, kw_only=True)
class FakeMedium:
    """What a variant of the storage experiment measures."""

    storage: str
    """The setting."""
    epochs_s: tuple[float, ...]
    cache: str = "warm"
    hardware: Hardware = REAL_DISK
    resident_share: float | None = 1.0
    """Before epoch 1."""
    read_share: float | None = 0.0
    """From a disk, of all epochs' bytes."""
    swapped_pages: int | None = 0
    """In each trial."""


THROTTLED = Hardware("storage", "throttled", "7200 rpm: 81 reads/s, 106 MB/s")
# A hard disk stands in, the other media are real; memory holds all files after epoch 1.
MEDIA = {
    "hdd": FakeMedium(
        storage="throttled", epochs_s=(2.05, 1.42), cache="cold", hardware=THROTTLED,
        resident_share=0.0, read_share=0.501,
    ),
    "ssd": FakeMedium(
        storage="ssd", epochs_s=(1.58, 1.41), cache="cold", resident_share=0.0, read_share=0.502
    ),
    "tmpfs": FakeMedium(storage="tmpfs", epochs_s=(1.43, 1.41)),
    "hdd, warm": FakeMedium(storage="throttled", epochs_s=(1.44, 1.42), hardware=THROTTLED),
    "ssd, warm": FakeMedium(storage="ssd", epochs_s=(1.43, 1.42)),
}  # fmt: skip


def fake_media_trials(
    media: Mapping[str, FakeMedium] = MEDIA, *, blocks: int = 3, noise: float = 0.005
) -> list[Trial]:
    """A whole run of the storage experiment; the first variant runs twice a block."""
    rng = random.Random(0)
    baseline = next(iter(media))
    return [
        _fake_media_trial(name, block, role, medium, rng.lognormvariate(0, noise))
        for block in range(blocks)
        for name, medium in media.items()
        for role in (("A1", "A2") if name == baseline else ("",))
    ]


def _fake_media_trial(name: str, block: int, role: str, medium: FakeMedium, speed: float) -> Trial:
    file_bytes = 5_000_000
    logical_bytes = file_bytes * len(medium.epochs_s)
    return replace(
        fake_trial(name, block, role),
        epochs=tuple(fake_epoch(epoch_s * speed) for epoch_s in medium.epochs_s),
        cache_proof={
            "wanted": medium.cache,
            "resident_share_before": medium.resident_share,
            "file_bytes": file_bytes,
            "logical_read_bytes": logical_bytes,
            "device_read_bytes": None
            if medium.read_share is None
            else round(medium.read_share * logical_bytes),
        },
        disturbance={
            "swapped_in_pages": medium.swapped_pages,
            "swapped_out_pages": None if medium.swapped_pages is None else 0,
        },
        medium={"rotational": None},
        hardware=(medium.hardware, SIMULATED_GPU),
        labels={"cache": medium.cache},
    )


def fake_media_info(
    media: Mapping[str, FakeMedium] = MEDIA, *, mode: str = "quick", **more: object
) -> RunInfo:
    """A run of the storage experiment; those that are skipped are called like their storage."""
    made = {name: (medium.storage, medium.cache) for name, medium in media.items()}
    skipped = {name: (name, "cold") for name in more.get("skipped", {})}
    known = {
        "experiment": "storage",
        "question": "Does a faster disk shorten the epoch?",
        "variants": {
            name: {"storage": storage, "cache": cache, "num_workers": 2}
            for name, (storage, cache) in (made | skipped).items()
        },
        "published": {"hdd": 1.0, "ssd": 0.86, "tmpfs": 0.864},
        "source": "[004] section 3.2, experiment 2",
    }
    return fake_info(list(media), mode=mode, **{**known, **more})


RATES = [
    {
        "pattern": "random", "unit": "files", "readers": 2, "requested_per_s": 81.0,
        "delivered_per_s": 80.0, "error_share": 0.0123,
    },
    {
        "pattern": "sequential", "unit": "bytes", "readers": 2, "requested_per_s": 106_168_320.0,
        "delivered_per_s": 104_857_600.0, "error_share": 0.0123,
    },
]  # fmt: skip
CHECKED = {
    "calibration": {"free_loader_au": 0.9974},
    "storages": {"throttled": {"rates": RATES}, "ssd": {"rates": []}},
}


def fake_judged_trials(media: Mapping[str, FakeMedium] = MEDIA, *, blocks: int = 10) -> list[Trial]:
    """A whole run with all that a table has to mark.

    In block 3 the second variant took far longer, in block 5 it was not cold, and in the last
    block other programs took much of the machine.
    """
    variant, trials = list(media)[1], []
    for trial in fake_media_trials(media, blocks=blocks):
        if trial.variant == variant and trial.block == 3:
            slow = tuple(fake_epoch(1.6 * epoch.epoch_s) for epoch in trial.epochs)
            trial = replace(trial, epochs=slow)
        if trial.variant == variant and trial.block == 5:
            trial = replace(trial, cache_proof={**trial.cache_proof, "resident_share_before": 0.8})
        if trial.block == blocks - 1:
            trial = replace(trial, disturbance={**trial.disturbance, "other_cores": 1.0})
        trials.append(trial)
    return trials


def judged_summary(**info: object) -> Summary:
    """Ten blocks, of which one is disturbed; ssd has an outlier and a trial that was not cold."""
    return summarize(fake_media_info(mode="full", blocks=10, **info), fake_judged_trials())
