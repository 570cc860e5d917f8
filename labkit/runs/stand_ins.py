"""Self-checks: what stands in for hardware proves that it does what its label says.

    emulated device or distance, slow disk ─ passed here lately? ─┬─ yes: its result and when
                                                                       └─ no: check it now

A stand-in that fails gives no figure.  What passed is remembered for a day, per machine, in the
results folder (`self_checks.json`; removing it has everything checked anew).  Main trap: only
what passed may be remembered, and only for what it was: a faster disk, more readers or shorter
steps are another check.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from labkit import units
from labkit.contracts import Skip, seconds_of, utc_now
from labkit.parts.devices import FREE_LOADER_MIN_AU, PROFILES, with_compute
from labkit.parts.storage.disks import MAX_ERROR_SHARE
from labkit.runs.active import ActiveRun
from labkit.runs.process import TrialFailed, TrialKilled
from labkit.settings import Settings

T = TypeVar("T")
FILE = "self_checks.json"
# How labels of storage begin that are not the real thing.
STAND_INS = ("throttled", "modelled", "emulated distance")
SAME = ("machine_id", "kernel", "revision")  # of the provenance: machine and program
REMEMBERED_S = 24 * 3600
RATE_TRIES = 3  # another program's moment must not condemn a stand-in
# The best counts: what other programs take meanwhile is not the emulator's doing, and one hiccup
# of 3 ms fails a try of 0.3 s.  Trials have a log of such disturbance of their own.
EMULATOR_TRIES = 40


def check_stand_ins(run: ActiveRun, excluded: list[int]) -> None:
    """Let what stands in for a disk prove its rates; drop the variants of one that does not."""
    for storage, facts in run.info["storages"].items():
        waiting = run.waiting(storage)
        if not waiting:
            continue
        settings = next(iter(waiting.values()))
        what = {
            "label": facts["label"],
            "data": run.info["data"]["manifest_hash"],
            "readers": settings.num_workers,
            "start_method": settings.start_method,
        }
        check = partial(_check_rates, run, storage, settings, excluded)
        if not facts["label"].startswith(STAND_INS):
            facts["rates"] = []
            continue
        try:
            facts["rates"], facts["rates_checked_utc"] = _remembered(run, what, check)
        except TrialKilled:
            raise  # it says nothing of the medium, and what is dropped here stays out for good
        except (Skip, TrialFailed) as reason:
            for label in waiting:
                run.drop(label, "skipped", str(reason))
    run.save()


def _check_rates(
    run: ActiveRun, storage: str, settings: Settings, excluded: list[int]
) -> list[dict[str, object]]:
    for _ in range(RATE_TRIES):
        rates = run.ask("check_rates", settings=asdict(settings), excluded=excluded)
        off = [rate for rate in rates if rate["refused"]]
        if not off:
            return rates
    found = "; ".join(
        f"{rate['delivered_per_s']:,.0f} instead of {rate['requested_per_s']:,.0f} "
        f"{rate['unit']}/s {rate['pattern']} with {rate['readers']} readers"
        for rate in off
    )
    raise Skip(
        f"{storage} must deliver the rates it stands for within "
        f"{units.percent(MAX_ERROR_SHARE)}, got {found}; close other programs and run again"
    )


def check_emulator(
    run: ActiveRun, settings: Settings, compute_s_per_image: float | None
) -> dict[str, object]:
    """Let the emulated device prove that it is not in the way.

    Args:
        run: the run under way.
        settings: the baseline's, complete.
        compute_s_per_image: for the matched profile, from `calibrate`.

    Returns:
        free_loader_au, the share of the time in which it computed with a loader that costs
        nothing, in the best of free_loader_tries, and free_loader_checked_utc.

    Raises:
        RuntimeError: it does not reach `FREE_LOADER_MIN_AU`.
    """
    profile = with_compute(PROFILES[settings.profile], compute_s_per_image)
    step_s = profile.compute_s_per_image * settings.batch_size

    def check() -> dict[str, float]:
        best = 0.0
        for tries in range(1, EMULATOR_TRIES + 1):
            found = run.ask(
                "free_loader_utilization",
                settings=asdict(settings),
                compute_s_per_image=compute_s_per_image,
            )
            best = max(best, found)
            if best >= FREE_LOADER_MIN_AU:
                return {"au": best, "step_s": step_s, "tries": tries}
        raise RuntimeError(
            f"the emulated device must reach {units.percent(FREE_LOADER_MIN_AU)} utilization with "
            f"a free loader, got {units.percent(best)} at best in steps of "
            f"{units.seconds(step_s)}; stop other programs, or make the steps longer by a larger "
            "batch_size, and run again"
        )

    what = {"label": "emulated accelerator", "sync_every": settings.sync_every}
    # What is lost per step weighs less in longer ones.
    found, checked_utc = _remembered(run, what, check, lambda old: old["step_s"] <= step_s)
    return {
        "free_loader_au": found["au"],
        "free_loader_tries": found["tries"],
        "free_loader_checked_utc": checked_utc,
    }


def _remembered(
    run: ActiveRun,
    what: dict[str, object],
    check: Callable[[], T],
    holds: Callable[[T], bool] = lambda found: True,
) -> tuple[T, str]:
    """Give a check's result and when it was made: lately on this machine, or now.

    Args:
        run: the run under way.
        what: what is checked, beside the machine and the program.
        check: makes the check; raises where it is not passed.
        holds: whether an earlier result holds for what is asked now.
    """
    path = run.folder.parents[1] / FILE
    key = json.dumps({**what, **{name: run.info["provenance"][name] for name in SAME}})
    passed = _read(path)
    if key in passed:
        found, checked_utc = passed[key]
        if 0 <= time.time() - seconds_of(checked_utc) < REMEMBERED_S and holds(found):
            return found, checked_utc
    found, checked_utc = check(), utc_now()
    if run.info["provenance"]["dirty"] is not True:  # changed code may change again
        _write(path, {**_read(path), key: [found, checked_utc]})
    return found, checked_utc


def _read(path: Path) -> dict[str, list]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # not there, or not whole: everything is checked


def _write(path: Path, passed: dict[str, list]) -> None:
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")  # another run may write too
    try:
        unfinished.write_text(json.dumps(passed, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError:  # it only saves time
        unfinished.unlink(missing_ok=True)
