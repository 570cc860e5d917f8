"""Preparation: everything that comes before a run's first timed trial.

    stage: the data packed where it is to be, and on every medium
    prepare: images looked at ─ stand-ins checked ─ equal work compared ─ baseline's rate
             taken ─ emulator checked ─ epoch's size chosen

A variant with a fault is dropped with its reason; a fault of the data counts for all variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, replace

from labkit import units
from labkit.contracts import Skip
from labkit.resolve import original, stored_folder
from labkit.runs.active import ActiveRun
from labkit.runs.packs import ensure_pack
from labkit.runs.process import TrialFailed, TrialKilled
from labkit.runs.staging import staged
from labkit.runs.stand_ins import check_emulator, check_stand_ins
from labkit.settings import Settings

# Enough for preflight and calibration on any machine; the rest is looked at once the run
# knows how many images it takes, so that a big data set on a slow disk is not read in vain.
FIRST_LOOK_IMAGES = 512
MANY_REQUESTS = 4  # per image: of one file of a photograph's size it takes one or two
SHORT_SHARE = 0.9  # epochs shorter than this share of what the mode wants are worth a note


def stage(run: ActiveRun, places: ExitStack) -> None:
    """Have the data packed and on every medium; drop the variants where it cannot be."""
    how = {"say": run.progress.say, "cancel": run.cancel, "progress": run.progress.shown}
    media, costs = {}, dict(run.info.get("costs", {}))
    for waiting in _by_place(run, lambda settings: (stored_folder(settings),)):
        settings = next(iter(waiting.values()))
        try:
            cost = ensure_pack(settings, **how)
        except Skip as reason:
            _drop_all(run, waiting, reason)
            continue
        if cost is not None:  # as the person gave the data: run.json may be passed on
            cost = {**cost, "folder": str(stored_folder(settings))}
            costs |= dict.fromkeys(waiting, cost)
    on_medium = _by_place(run, lambda settings: (settings.storage, stored_folder(settings)))
    for waiting in on_medium:
        settings = next(iter(waiting.values()))
        others = [next(iter(other.values())) for other in on_medium if other is not waiting]
        others = [other for other in others if other.storage == settings.storage]
        try:
            facts = places.enter_context(staged(settings, **how, others=others))
        except Skip as reason:
            _drop_all(run, waiting, reason)
            continue
        if facts["remark"]:
            run.note(facts["remark"])
        media.setdefault(settings.storage, facts)
        if facts["label"].startswith("emulated distance") and facts["copied_bytes"] is not None:
            copy = {"bytes": facts["copied_bytes"], "copy_s": facts["copied_s"]}
            # Of a pack the bytes are known already: without its boxes and its manifest.
            costs |= {label: {**copy, **costs.get(label, {})} for label in waiting}
    run.save(storages=media, costs=costs)


def _by_place(run: ActiveRun, place: Callable[[Settings], Hashable]) -> list[dict[str, Settings]]:
    """Group the variants that are still in the run by the place of their data."""
    found: dict[Hashable, dict[str, Settings]] = {}
    for label, settings in run.variants.items():
        if label not in run.dropped:
            found.setdefault(place(settings), {})[label] = settings
    return list(found.values())


def _drop_all(run: ActiveRun, labels: Iterable[str], reason: Skip) -> None:
    for label in labels:
        run.drop(label, "skipped", str(reason))


def prepare(run: ActiveRun) -> None:
    """Preflight and calibration: everything that comes before the first timed trial."""
    baseline = run.baseline
    looked_at = FIRST_LOOK_IMAGES
    excluded = _look_at_images(run, 0, looked_at, [])
    run.info["provenance"]["jpeg_back_ends"] = run.ask("jpeg_back_ends")
    check_stand_ins(run, excluded)
    try:
        _compare_work(run, excluded)
        run.progress.say("calibrating: how fast is the baseline here?")
        # Only what has been looked at: it may not read, or evict, a whole big data set.
        usable = min(looked_at, run.info["data"]["images"]) - len(excluded)
        tried = replace(baseline, images=min(baseline.images or usable, usable))
        calibration = run.ask("calibrate", settings=asdict(tried), excluded=excluded)
        if baseline.device == "emulated" and baseline.step != "nothing":
            calibration |= check_emulator(run, tried, calibration["compute_s_per_image"])
    except (TrialFailed, Skip) as reason:
        raise run.no_baseline(reason) from reason
    images = _epoch_images(run, calibration["images_per_s"])
    while looked_at < images + len(excluded):  # what is left out is made up for by later images
        looked_at, start = images + len(excluded), looked_at
        excluded = _look_at_images(run, start, looked_at, excluded)
    calibration["images"] = _whole_batches(
        run, min(images, run.info["data"]["images"] - len(excluded))
    )
    steps = calibration["images"] // baseline.batch_size
    if steps < run.mode.min_steps:
        why = "as images is set" if baseline.images else "as there are no more images"
        run.note(f"epochs of {steps} steps, {why}: {run.mode.name} mode wants {run.mode.min_steps}")
    run.save(calibration=calibration, excluded=excluded)
    _count_reads(run)
    epoch_s = calibration["images"] / calibration["images_per_s"]
    if run.mode.judged and epoch_s < SHORT_SHARE * run.mode.epoch_s:
        run.note(
            f"epochs of about {units.seconds(epoch_s)} where {run.mode.name} mode wants "
            f"{units.seconds(run.mode.epoch_s)}: shorter ones are noisier"
        )
        run.save()
    run.progress.say(
        f"{calibration['images']} images per epoch, about {units.seconds(epoch_s)} each"
    )


def _compare_work(run: ActiveRun, excluded: list[int]) -> None:
    """Drop what cannot run here and what is not the same work as the baseline's."""
    run.progress.say("preflight: one batch of every variant, compared with the baseline's")
    compared = {
        label: asdict(settings)
        for label, settings in run.variants.items()
        if label not in run.dropped
    }
    try:
        verdicts = _ask_verdicts(run, compared, excluded)
    except TrialKilled:  # by one of them, and the others can run
        verdicts = _ask_one_by_one(run, compared, excluded)
    for label, (status, reason) in verdicts.items():
        if status != "ok":
            run.drop(label, status, reason)


def _ask_verdicts(run: ActiveRun, compared: dict[str, dict], excluded: list[int]) -> dict:
    return run.ask(
        "compare_work", variants=compared, baseline=run.info["baseline"], excluded=excluded
    )


def _ask_one_by_one(run: ActiveRun, compared: dict[str, dict], excluded: list[int]) -> dict:
    """Compare each variant in a process of its own, so that what kills one is no other's end."""
    baseline, verdicts = run.info["baseline"], {}
    for label in sorted(compared, key=lambda label: label != baseline):
        pair = {name: compared[name] for name in (baseline, label)}
        try:
            verdicts |= _ask_verdicts(run, pair, excluded)
        except TrialKilled as killed:
            verdicts[label] = ("failed", str(killed))
        if verdicts[baseline][0] != "ok":
            break
    return verdicts


def _count_reads(run: ActiveRun) -> None:
    """Where variants store the images in different ways, count what reading each way takes."""
    if not run.info["costs"]:
        return
    run.progress.say("counting what reading takes: openings, read calls, disk requests")
    images, reads = run.info["calibration"]["images"], {}
    for label, settings in run.variants.items():
        if label not in run.dropped:
            try:
                reads[label] = run.ask(
                    "count_reads",
                    settings=asdict(replace(settings, images=images)),
                    excluded=run.info["excluded"],
                )
            except (TrialFailed, Skip) as reason:  # its trials will say so
                run.progress.say(f"{label}: reading could not be counted: {reason}")
    pieces = [label for label, read in reads.items() if (read["requests"] or 0) > MANY_REQUESTS]
    pieces = [label for label in pieces if run.variants[label].storage == "throttled"]
    if pieces:
        run.note(
            f"{', '.join(pieces)}: an image takes many requests, and the throttled disk charges "
            "each as a random one, where a real disk has the next piece in its own memory; so "
            "this looks slower here than there"
        )
    run.save(reads=reads)


def _epoch_images(run: ActiveRun, images_per_s: float) -> int:
    """Choose how many images an epoch takes, from the baseline's rate."""
    baseline, available = run.baseline, run.info["data"]["images"]
    if baseline.images or not run.mode.epoch_s:
        return baseline.images or available
    least = run.mode.min_steps * baseline.batch_size
    return min(max(least, round(images_per_s * run.mode.epoch_s)), available)


def _look_at_images(run: ActiveRun, start: int, stop: int, excluded: list[int]) -> list[int]:
    """Find unreadable images among those the run will take; stop, or leave them out."""
    settings = original(run.baseline)  # as the user gave it
    used = [chosen.decoder for label, chosen in run.variants.items() if label not in run.dropped]
    decoders = sorted(set(used))
    run.progress.say(f"reading images, and decoding each with {', '.join(decoders)}")
    try:
        bad, changed = run.ask(
            "find_bad_images",
            settings=asdict(settings),
            start=start,
            stop=stop,
            decoders=decoders,
        )
    except TrialFailed as failure:
        raise ValueError(str(failure)) from failure
    if changed:
        raise ValueError(
            f"data must be what its manifest says, got {len(changed)} changed files "
            f"({'; '.join(changed[:3])}); make the data again, or remove "
            "manifest.json to take it as it is"
        )
    if not bad:
        return excluded
    lines = "; ".join(line for _, line in bad[:5])
    if settings.on_bad_image == "stop":
        raise ValueError(
            f"images must all be readable, got {len(bad)} that are not ({lines}); "
            "replace them, or leave them out for all variants with on_bad_image=skip"
        )
    run.note(f"{len(bad)} unreadable images are left out for all variants")
    run.note(lines, is_local=True)
    return [*excluded, *(index for index, _ in bad)]


def _whole_batches(run: ActiveRun, images: int) -> int:
    """Round to what every variant's batch size divides, so that all do equal work."""
    together = math.lcm(*(settings.batch_size for settings in run.variants.values()))
    return max(images // together, 1) * together
