"""Checks of a run before anything is timed.

    check_images:     images that cannot be read or decoded are left out for all variants
    check_stand_ins,  what stands in for hardware must do what its label says
      check_emulator:
    check_work:       one batch of each variant, built on the CPU, must have the baseline's images,
                      shapes, dtypes and channel order, and its pixels within a named tolerance

Functions that take a run are called by the runner; the others do their work in a fresh process.  A
variant that fails becomes a row with its reason.

A stand-in that passed is remembered for a day in the results folder (`self_checks.json`; remove it
to check everything again).  A faster disk, more readers, other steps or a changed labkit is another
check.  Which images of a data set with a manifest are unreadable is remembered there, too: they are
compared with the manifest instead of decoded again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from labkit import units
from labkit.analysis.equal_work import (
    AVERAGED_TOLERANCE_LEVELS,
    DECODED_TOLERANCE_LEVELS,
    SCALED_DECODING_TOLERANCE_LEVELS,
    SCALED_TOLERANCE_LEVELS,
    difference,
)
from labkit.analysis.notes import LISTED_IMAGES
from labkit.analysis.stand_ins import describe_rate
from labkit.contracts import (
    BATCHES,
    LONGEST_REASON,
    ArraySpec,
    Skip,
    bytes_of,
    check_batch,
    check_image,
)
from labkit.files import write_whole
from labkit.jpeg import read_size_px
from labkit.machine import hardware
from labkit.machine.clock import seconds_of, utc_now
from labkit.parts.decoding import DECODERS, why_not
from labkit.parts.devices import FREE_LOADER_MIN_AU
from labkit.parts.packing import PIXELS, RESIZED
from labkit.parts.preprocessing import Preprocessor
from labkit.parts.storage.disks import MAX_ERROR_SHARE
from labkit.parts.training.exchange import LINK
from labkit.pipeline import first_batch, shuffled_images
from labkit.records import ProvedRates
from labkit.resolve import (
    Resolved,
    find_part,
    find_profile,
    open_data,
    original,
    own_parts,
    resolve,
)
from labkit.runs.active import ActiveRun
from labkit.runs.process import TrialFailed, TrialKilled
from labkit.runs.store import fits
from labkit.settings import Settings

T = TypeVar("T")
# Enough for calibration on any machine; more images are checked once the run knows how many it
# takes, so that a large data set on a slow disk is not read in vain.
FIRST_LOOK_IMAGES = 512
PACKAGE = Path(__file__).parents[1]
SELF_CHECKS = "self_checks.json"
REMEMBERED_S = 24 * 3600
RATE_TRIES = 3  # another program must not fail a stand-in with one moment's work
# The median counts, so that no single try decides.  On two cores it was 0.9997, also beside four
# processes that computed all the time.
EMULATOR_TRIES = 5

# NumPy's, Python's and C++'s own; torch's on the CPU and on CUDA; OpenCV's; TensorFlow's.
OUT_OF_MEMORY = re.compile(
    r"MemoryError|bad_alloc|ALLOC_FAILED|can(no|')t allocate|out ?of ?memory|OOM when allocating",
    re.IGNORECASE,
)


# --- images ---------------------------------------------------------------------------------


def check_images(run: ActiveRun, stop: int | None = None) -> None:
    """Find unreadable images among those that the run takes, and leave them out or stop.

    Args:
        run: the active run, whose info takes them.
        stop: look at images up to this one, in the run's order, that were not looked at before;
            None: the first ones.

    Raises:
        ValueError: an image cannot be read and `on_bad_image` is stop, or the data changed.
    """
    start, run.images_looked_at = run.images_looked_at, stop or FIRST_LOOK_IMAGES
    excluded, unreadable = (run.info.excluded, run.info.unreadable) if start else ((), ())
    settings = original(run.baseline)  # opened once for all such jobs
    decoders = sorted({chosen.decoder for chosen in run.remaining.values()})
    which = {"start": start, "stop": run.images_looked_at, "decoders": decoders}
    what = {
        "label": "images",
        "data": run.info.data.manifest_hash,
        "order": [settings.subset, settings.seed],
        "versions": run.info.provenance.versions,
        **which,
    }
    # Without a manifest an image may be another one now; so may a decoder of the user's own.
    can_remember = what["data"] != "unknown" and not own_parts()
    suspects, _ = (can_remember and _recall(run, what)) or (None, "")
    run.progress.say(
        f"reading images, and decoding each with {', '.join(decoders)}"
        if suspects is None
        else "comparing images, which were decoded before, with the manifest"
    )
    try:
        bad, changed = run.ask("find_bad_images", settings=settings, suspects=suspects, **which)
    except TrialFailed as failure:
        raise ValueError(str(failure)) from failure
    if changed:
        raise ValueError(
            f"data must be what its manifest says, got {len(changed)} changed files "
            f"({'; '.join(changed[:3])}); make the data again, or remove "
            "manifest.json to take it as it is"
        )
    if can_remember:
        _keep(run, what, [index for index, _ in bad])
    run.save(
        excluded=(*excluded, *(index for index, _ in bad)),
        unreadable=(*unreadable, *(line for _, line in bad)),
    )
    if not bad:
        return
    lines = "; ".join(line for _, line in bad[:LISTED_IMAGES])
    if settings.on_bad_image == "stop":
        raise ValueError(
            f"images must all be readable, got {len(bad)} that are not ({lines}); "
            "replace them, or leave them out for all variants with on_bad_image=skip"
        )
    count = units.count(len(bad), "unreadable image")
    run.progress.say(f"{count} left out for all variants: {lines}")


def find_bad_images(
    settings: Settings,
    start: int,
    stop: int,
    decoders: list[str],
    suspects: list[int] | None = None,
) -> tuple[list[tuple[int, str]], list[str]]:
    """Find images that cannot be read, or that a decoder refuses, and files that changed.

    Each image is read once and decoded once with each decoder, on all cores.

    Args:
        settings: complete; the data as it lies is looked at, in the order of subset and seed.
        start: first image to look at, counted in the order of the seed.
        stop: the image after the last.
        decoders: names of the decoders that the variants use.
        suspects: the images to decode; the others were once, so that they need only be what the
            manifest says.  Unset: all.

    Returns:
        (index, one line naming the file and what is wrong with it) of each bad image; and a line
        for each other file that is no longer what the data's manifest says.
    """
    reader = open_data(settings)
    shuffled = shuffled_images(settings, len(reader))
    indices = [int(index) for index in shuffled[start:stop]]
    usable = sorted(set(decoders) - why_not(decoders).keys())  # the others say so in their rows

    def fault(index: int) -> str:
        try:
            content, _ = reader.read(index)
        except OSError as error:
            link = ", a broken link" if Path(reader.where(index)).is_symlink() else ""
            return f"{reader.where(index)}{link}: {error.strerror or error}"
        except ValueError as error:  # names the file itself
            return str(error)
        if not isinstance(content, bytes):  # stored as pixels, or finished
            return "" if len(content) else f"{reader.where(index)}: unreadable when it was packed"
        try:
            read_size_px(content)
            for name in usable:
                check_image(DECODERS[name](content))
        except Exception as error:  # of a library, or of a decoder of the user's own
            line = str(error) if isinstance(error, ValueError) else one_line(error)
            return f"{reader.where(index)}: {line}"
        return ""

    decoded = indices if suspects is None else sorted({*indices} & {*suspects})
    with ThreadPoolExecutor(hardware.cores()) as pool:
        faults = dict(zip(decoded, pool.map(fault, decoded)))
    bad = sorted((index, line) for index, line in faults.items() if line)
    return bad, reader.verify([index for index in indices if not faults.get(index)])


# --- equal work -----------------------------------------------------------------------------


def check_work(run: ActiveRun) -> None:
    """Drop what cannot run here and what is not the same work as the baseline's."""
    run.progress.say("checks: one batch of every variant, compared with the baseline's")
    baseline, labels = run.info.baseline, list(run.remaining)
    try:
        verdicts = _ask_verdicts(run, labels)
    except TrialKilled:  # one of them killed the process: a process each shows which
        verdicts = {}
        for label in sorted(labels, key=lambda label: label != baseline):
            try:
                verdicts |= _ask_verdicts(run, [baseline, label])
            except TrialKilled as killed:
                verdicts[label] = ("failed", str(killed))
            if verdicts[baseline][0] != "ok":
                break
    drop_failed(run, verdicts)


def _ask_verdicts(run: ActiveRun, labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    return run.ask(
        "compare_work",
        variants={label: run.variants[label] for label in labels},
        baseline=run.info.baseline,
        excluded=run.info.excluded,
    )


def drop_failed(run: ActiveRun, verdicts: Mapping[str, tuple[str, str]]) -> None:
    """Drop the variants whose verdict, (status, reason), is not "ok"."""
    for label, (status, reason) in verdicts.items():
        if status != "ok" and label not in run.dropped:  # a group goes with its baseline
            run.drop(label, status, reason)


def skip(run: ActiveRun, labels: Iterable[str], reason: object) -> None:
    """Drop variants that cannot run here."""
    drop_failed(run, dict.fromkeys(labels, ("skipped", str(reason))))


def compare_work(
    variants: dict[str, Settings], baseline: str, *, excluded: frozenset[int] = frozenset()
) -> dict[str, tuple[str, str]]:
    """Build one batch of every variant and compare it with the baseline's.

    Args:
        variants: label -> complete settings.
        baseline: the label to compare with.
        excluded: indices of unreadable images.

    Returns:
        label -> (status, reason): "ok", "skipped" or "failed".
    """
    verdicts: dict[str, tuple[str, str]] = {}
    first: dict[Settings, str] = {}  # label; other groups may have the same settings
    reference = None
    # Batches of different sizes begin with the same images in epochs of the same images.
    images = math.lcm(*(its.batch_size for its in variants.values()))
    for label in sorted(variants, key=lambda label: label != baseline):  # the baseline first
        settings = variants[label]
        if (same := first.setdefault(settings, label)) != label:
            verdicts[label] = verdicts[same]
            continue
        try:
            parts = resolve(settings)
            check_batch_fits(settings)
            batch = first_batch(parts, excluded, images)
            describe = BATCHES[parts.preprocessor.batch]
            loaded = images if parts.loader.has_own_order else settings.batch_size
            specs = describe(loaded, settings.input_px)
            check_batch(batch, specs)
            if reference is None:
                reference, base = batch, parts
            elif apart := _difference(batch, reference, parts, base, specs):
                raise ValueError(f"not the same work as {baseline}: {apart}")
        except (Skip, ImportError) as reason:
            verdicts[label] = ("skipped", str(reason))
        except Exception as error:  # any failure of a part is shown as its row
            said = out_of_memory(error, settings) or f"{type(error).__name__}: {error}"
            verdicts[label] = ("failed", said)
        else:
            verdicts[label] = ("ok", "")
    return verdicts


def _difference(
    batch: dict[str, np.ndarray],
    reference: dict[str, np.ndarray],
    parts: Resolved,
    base: Resolved,
    specs: dict[str, ArraySpec],
) -> str:
    """Return in one line how a batch differs from the baseline's; '' where the work is the same."""
    if set(reference) != set(batch):
        return (
            f"batch must have the baseline's entries {', '.join(sorted(reference))}, "
            f"got {', '.join(sorted(batch))}"
        )
    if parts.loader.has_own_order or base.loader.has_own_order:  # one of them is the whole epoch
        batch, reference = _by_id(batch, reference), _by_id(reference, batch)
    common = min(len(batch["sample_id"]), len(reference["sample_id"]))
    batch, reference = (
        {name: array[:common] for name, array in one.items()} for one in (batch, reference)
    )
    levels = None
    if parts.decoder.scaled != base.decoder.scaled:
        levels = SCALED_DECODING_TOLERANCE_LEVELS
    elif _scaled(parts.settings) != _scaled(base.settings):
        levels = SCALED_TOLERANCE_LEVELS
    elif _averages(parts.preprocessor) != _averages(base.preprocessor):
        levels = AVERAGED_TOLERANCE_LEVELS
    elif parts.settings.decoder != base.settings.decoder:
        levels = DECODED_TOLERANCE_LEVELS
    return difference(batch, reference, specs, levels=levels)


def _by_id(batch: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sort a batch by its ids; of a larger one than the other, take the other's images first."""
    is_extra = np.zeros(len(batch["sample_id"]), bool)
    if len(is_extra) > len(other["sample_id"]):
        is_extra = ~np.isin(batch["sample_id"], other["sample_id"])
    order = np.lexsort((batch["sample_id"], is_extra))
    return {name: array[order] for name, array in batch.items()}


def _averages(preprocessor: Preprocessor) -> bool:
    """Return whether crops are shrunk by Pillow's average, and not by OpenCV's."""
    return preprocessor.in_pillow and preprocessor.crop is not None


def _scaled(settings: Settings) -> str:
    """Name how the stored pixels differ from the originals; a finished sample's do not."""
    return settings.stored if settings.stored in (RESIZED, PIXELS) else ""


# --- stand-ins ------------------------------------------------------------------------------


def check_stand_ins(run: ActiveRun) -> None:
    """Let what stands in for a disk or a network prove its rates, or drop its variants."""
    storages = dict(run.info.storages)
    for storage, facts in run.info.storages.items():
        labels = [label for label, its in run.remaining.items() if its.storage == storage]
        if not labels or not run.parts(labels[0]).storage.stand_in:
            continue
        settings = run.variants[labels[0]]
        what = {
            "label": facts.label,
            "data": run.info.data.manifest_hash,
            "readers": settings.num_workers,
            "start_method": settings.start_method,
        }
        proved = _prove_rates(run, "check_rates", storage, labels, what)
        storages[storage] = replace(facts, **vars(proved))
    sharing: dict[str, list[str]] = {}  # link -> the variants that use it
    for label, its in run.remaining.items():
        if its.ranks > 1 and LINK.fullmatch(its.exchange):
            sharing.setdefault(f"{its.exchange} between {its.ranks} ranks", []).append(label)
    links = {
        name: _prove_rates(run, "check_link", name, labels, {"label": name})
        for name, labels in sharing.items()
    }
    run.save(storages=storages, links=links)


def _prove_rates(
    run: ActiveRun, job: str, name: str, labels: Sequence[str], what: Mapping[str, Any]
) -> ProvedRates:
    """Return what a stand-in delivers; without rates where its variants had to be dropped."""

    def prove() -> list[dict[str, Any]]:
        for _ in range(RATE_TRIES):
            rates = run.ask(job, settings=run.variants[labels[0]], excluded=run.info.excluded)
            off = [rate for rate in rates if rate["error_share"] > MAX_ERROR_SHARE]
            if not off:
                return rates
        raise Skip(
            f"{name} must deliver the rates it stands for within "
            f"{units.percent(MAX_ERROR_SHARE)}, got {'; '.join(map(describe_rate, off))}; "
            "close other programs and run again"
        )

    try:
        rates, checked_utc = _remembered(run, what, prove)
        return ProvedRates(rates=tuple(rates), rates_checked_utc=checked_utc)
    except TrialKilled:
        raise  # it says nothing of the stand-in, and what is dropped here stays out for good
    except (Skip, TrialFailed) as reason:
        skip(run, labels, reason)
    return ProvedRates()


def check_emulator(run: ActiveRun, settings: Settings) -> dict[str, Any]:
    """Let the emulated device prove that it does not slow a training loop down itself.

    It must be busy for `FREE_LOADER_MIN_AU` of the time with a loader that costs nothing, in the
    median of `EMULATOR_TRIES` tries.

    Args:
        run: the active run.
        settings: the baseline's, complete, with `device_speed` for a calibrated device.

    Returns:
        free_loader_au, the median share of the time in which it computed, and
        free_loader_checked_utc.

    Raises:
        Skip: it does not reach `FREE_LOADER_MIN_AU`.

    Source: EVIDENCE 2, Accelerator.
    """
    step_s = find_profile(settings).compute_s_per_image * settings.batch_size

    def prove() -> float:
        tries = [
            run.ask("free_loader_utilization", settings=settings) for _ in range(EMULATOR_TRIES)
        ]
        if (au := median(tries)) >= FREE_LOADER_MIN_AU:
            return au
        raise Skip(
            f"the simulated GPU must reach {units.percent(FREE_LOADER_MIN_AU)} utilization with "
            f"a free loader, got {units.percent(au)} in the median of {EMULATOR_TRIES} tries with "
            f"steps of {units.seconds(step_s)}; close other programs, or make the steps longer by "
            "a larger batch_size, and run again"
        )

    what = {"label": "emulated accelerator", "step_s": step_s}
    au, checked_utc = _remembered(run, what, prove)
    return {"free_loader_au": au, "free_loader_checked_utc": checked_utc}


def _remembered(run: ActiveRun, what: Mapping[str, Any], prove: Callable[[], T]) -> tuple[T, str]:
    """Return a passed check's result and time: an earlier one of this machine, or one made now.

    Args:
        run: the active run.
        what: what is checked, beside the machine and the program.
        prove: makes the check; raises where it is not passed.
    """
    found, checked_utc = _recall(run, what) or (None, "")
    if checked_utc and 0 <= time.time() - seconds_of(checked_utc) < REMEMBERED_S:
        return found, checked_utc
    return _keep(run, what, prove())


def _recall(run: ActiveRun, what: Mapping[str, Any]) -> Any:
    """Return what `_keep` kept of a check, however long ago; None where it did not."""
    return _read_passed(run.folder.parents[1] / SELF_CHECKS).get(_key(run, what))


def _keep(run: ActiveRun, what: Mapping[str, Any], found: T) -> tuple[T, str]:
    path, checked_utc = run.folder.parents[1] / SELF_CHECKS, utc_now()
    passed = {**_read_passed(path), _key(run, what): [found, checked_utc]}
    with contextlib.suppress(OSError):  # it only saves time
        write_whole(path, json.dumps(passed, indent=1))
    return found, checked_utc


def _key(run: ActiveRun, what: Mapping[str, Any]) -> str:
    here = run.info.provenance
    machine = {"machine_id": here.machine_id, "kernel": here.kernel}
    return json.dumps({**what, **machine, "program": _sources_hash()})


def _read_passed(path: Path) -> dict[str, list]:
    try:
        passed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        passed = {}
    return passed if fits(passed, dict[str, list]) else {}  # then everything is checked


def _sources_hash() -> str:
    """Hash labkit's sources: an installed copy has no revision, and a changed one an old one."""
    hashed = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        hashed.update(path.read_bytes())
    return hashed.hexdigest()


# --- memory ---------------------------------------------------------------------------------


def batch_bytes(settings: Settings) -> int:
    """Return the size of a finished batch."""
    describe = BATCHES[find_part(Preprocessor, settings.preprocessor).batch]
    return bytes_of(describe(settings.batch_size, settings.input_px))


def check_batch_fits(settings: Settings) -> None:
    """Refuse a batch that is larger than all of this machine's memory.

    The kernel may grant it all the same, and kill a process when it is filled.

    Raises:
        ValueError: the message says how many images would fit.
    """
    needed_bytes, memory_bytes = batch_bytes(settings), hardware.memory_bytes()
    if needed_bytes > memory_bytes:
        fitting = memory_bytes * settings.batch_size // needed_bytes
        raise ValueError(
            f"batch_size must be at most {fitting} at input_px {settings.input_px}, so that one "
            f"batch fits into memory ({units.count_bytes(memory_bytes)}), got "
            f"{settings.batch_size} ({units.count_bytes(needed_bytes)}); "
            "use a smaller one or a smaller input_px"
        )


def out_of_memory(error: BaseException, settings: Settings) -> str:
    """Return in one line that a batch took all memory; '' where something else went wrong."""
    message = one_line(error)
    if settings.batch_size is None or not OUT_OF_MEMORY.search(message):  # operations have none
        return ""
    where, advice = "memory", "smaller batch_size, a smaller input_px or fewer workers"
    if "CUDA" in message or "CUBLAS" in message:
        where, advice = "the GPU's memory", "smaller batch_size or a smaller input_px"
    return (
        f"batch_size must leave room in {where}, got {settings.batch_size} "
        f"({units.count_bytes(batch_bytes(settings))} a batch); use a {advice} "
        f"({message[:LONGEST_REASON]})"
    )


def one_line(error: BaseException) -> str:
    """Return an error's type and first line; of a loader worker's traceback, the last line."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught "):
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}"
