"""Experiment: what is compared, and the run that compares it.

    run:    check ─▶ run folder ─┐
    resume: check_resumable ─────┴▶ prepare: stage ─ check the work ─ calibrate ─▶ blocks

Settings may be unset in an experiment; `check` fills them in for this machine, and the run folder
holds what was really run.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path

from labkit.analysis.forecast import Forecast
from labkit.analysis.forecast import forecast as expect
from labkit.contracts import Cancelled
from labkit.machine import hardware
from labkit.resolve import own_parts
from labkit.runs.active import ActiveRun, Progress, single_run_lock
from labkit.runs.kinds import EPOCHS, KINDS
from labkit.runs.preconditions import check, check_resumable
from labkit.runs.runner import run_blocks
from labkit.runs.schedule import check_blocks
from labkit.runs.store import RESERVED, StoredRun, create_run, earlier_runs, hold, load_run
from labkit.settings import CORRECTED, MODES, PROTOCOLS, Settings, pick


@dataclass(frozen=True, kw_only=True)
class Dial:
    """How often the training loop does something, as one setting."""

    setting: str
    """Name of a setting that counts steps; 0 is never."""
    advice: int | None = None
    """Steps that a document recommends."""
    source: str = ""
    """Document and section of the advice."""


@dataclass(frozen=True)
class Experiment:
    """A question, the variants that answer it, and what the documents reported."""

    name: str
    _: KW_ONLY
    question: str
    """Becomes the chart's title."""
    variants: Mapping[str, Settings]
    """Label -> settings, in the order of the tables."""
    baseline: str
    """The label that all others of its group are divided by."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Label -> what it is compared within, as "decode, 640×480"; unset: one group has all.

    The baseline of a group is `baseline` if that is in it, else the group's first variant."""
    kind: str = EPOCHS
    """What a trial times, a key of `kinds.KINDS`."""
    tasks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Label -> what its trials need beside the settings, for kinds that need more."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Label -> the document's normalized time, where it gives one."""
    source: str = ""
    """Document and section."""
    in_full: Mapping[str, Settings] = field(default_factory=dict)
    """Label -> settings of variants that only full mode measures."""
    protocol: str = CORRECTED
    """"corrected", or "as in the document": each variant in its order, nothing repeated."""
    notes: tuple[str, ...] = ()
    """Sentences about the machine that belong to every run, such as what stands in for what."""
    as_published: Mapping[str, Settings] = field(default_factory=dict)
    """Label -> settings in the document's own order; empty: it is not run that way."""
    main_road: bool = False
    """Whether `labkit run` runs it by default."""
    knobs: tuple[str, ...] = ("num_workers", "batch_size", "input_px", "device")
    """Names of the settings that the form shows first, after the data."""
    dial: Dial | None = None
    """The setting whose steps are the axis of a second chart."""
    epoch_chart: bool = False
    """Whether a second chart shows the epochs one by one."""
    otherwise: Callable[[Experiment, str], Experiment] | None = None
    """Returns what to run instead of an experiment whose throttled disk cannot be put up.

    Takes the experiment, from which variants may have been left out, and the reason."""
    # Not in __init__, so that `dataclasses.replace` drops it: a changed experiment is the user's.
    request: Mapping[str, object] | None = field(init=False, default=None, compare=False)
    """What `labkit.experiments.request.Request` built it from; None: the user's own."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            raise ValueError(
                f"name must be lower-case letters, digits and _, got {self.name!r}; "
                "it becomes a folder of results"
            )
        if self.name in RESERVED:
            raise ValueError(
                f"name must be none of {', '.join(RESERVED)}, got {self.name!r}; "
                "those folders of results hold something else"
            )
        if not self.variants:
            raise ValueError("variants must be at least one, got none")
        pick(dict(self.variants), self.baseline, "baseline")
        for label in self.published:
            pick(dict(self.variants), label, "published label")
        pick(dict.fromkeys(PROTOCOLS), self.protocol, "protocol")
        pick(KINDS, self.kind, "kind")

    def grouped(self, labels: Iterable[str]) -> dict[str, dict]:
        """Return what `run.json` holds of groups and tasks; nothing where there are none.

        Args:
            labels: the variants that are measured.
        """
        told = {}
        if self.tasks:
            told["tasks"] = {label: self.tasks[label] for label in labels}
        if self.groups:
            groups = {label: self.groups.get(label, "") for label in labels}
            firsts = {group: label for label, group in reversed(groups.items())}
            firsts[groups[self.baseline]] = self.baseline
            told |= {"groups": groups, "baselines": {g: firsts[g] for g in groups.values()}}
        return told


def forecast(
    experiment: Experiment,
    mode: str = "full",
    *,
    blocks: int | None = None,
    results: Path | str = "results",
) -> Forecast:
    """Say before a run how long it will take and the smallest effect it can see.

    Args:
        experiment: what would be compared.
        mode: quick, document or full.
        blocks: repetitions; unset: the mode's.
        results: folder with earlier runs, whose noise is taken.

    Returns:
        Shows itself as a sentence.
    """
    chosen = pick(MODES, mode, "mode")
    wanted = {**experiment.variants, **(experiment.in_full if chosen.judged else {})}
    machine_id = hardware.provenance()["machine_id"]
    earlier = earlier_runs(results, experiment.name, machine_id=machine_id, mode=mode)
    return expect(
        (run.summary for run in earlier),
        mode=mode,
        blocks=check_blocks(chosen, blocks),
        variants={label: asdict(settings) for label, settings in wanted.items()},
        baselines=experiment.grouped(wanted).get("baselines", {"": experiment.baseline}).values(),
        trial_s=KINDS[experiment.kind].trial_s(mode),
    )


@single_run_lock()
def run(
    experiment: Experiment,
    mode: str = "quick",
    *,
    results: Path | str = "results",
    blocks: int | None = None,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> StoredRun:
    """Run an experiment.

    Args:
        experiment: what to compare.
        mode: quick, document or full.
        results: folder that takes the run folder.
        blocks: repetitions; unset: the mode's.
        cancel: set by another thread to stop; finished trials stay.
        progress: whether to print a bar with ETA, or an object to report to instead.

    Returns:
        The run as it is on disk; `run.info["status"]` is finished or cancelled.

    Raises:
        ValueError: settings, data or parts that cannot work, before anything is timed.
        RuntimeError: the baseline cannot be measured here (finished rows stay), or another run
            is in progress in this process.
        Cancelled: `cancel` was set while data at a URL was copied to this machine.
    """
    info = check(experiment, mode, blocks, cancel)
    own = own_parts()
    folder = create_run(Path(results), info)
    with hold(folder):
        return _complete(ActiveRun(folder, info, own=own, cancel=cancel, progress=progress))


@single_run_lock()
def resume(
    folder: Path | str,
    *,
    cancel: threading.Event | None = None,
    progress: Progress | bool = True,
) -> StoredRun:
    """Run what is missing of a run that was cancelled or killed.

    Args:
        folder: a run folder.
        cancel: as in `run`.
        progress: as in `run`.

    Raises:
        FileNotFoundError: there is no run in this folder.
        ValueError: a part of it is not known here, its data changed, or it began on another
            machine.
        RuntimeError: another run is in progress in this process, or another process has this one.
    """
    found = load_run(folder)
    check_resumable(found)
    own = own_parts()
    with hold(found.folder):
        info = load_run(folder).info  # as the process that had it last left it
        return _complete(ActiveRun(found.folder, info, own=own, cancel=cancel, progress=progress))


def _complete(run: ActiveRun) -> StoredRun:
    """Do everything that is missing; finished rows stay whatever happens."""
    for note in [*run.info["notes"], *run.info.get("local_notes", ())]:
        run.progress.say(note)
    kind = KINDS[run.info.get("kind", EPOCHS)]
    # The processes end before the cleanup: they may still read what it removes.
    with _status_saved(run), ExitStack() as cleanup, run.launcher:
        run.check_baselines()
        kind.prepare(run, cleanup)
        run_blocks(run, kind.measure)
    return load_run(run.folder)


@contextmanager
def _status_saved(run: ActiveRun) -> Iterator[None]:
    run.save(status="running", reason="")
    try:
        yield
    except Cancelled:
        run.save(status="cancelled")
    except KeyboardInterrupt:
        run.save(status="cancelled")
        run.progress.say(f"cancelled; complete it with: labkit run --resume {run.folder}")
        raise
    except Exception as error:
        run.save(status="failed", reason=str(error))
        raise
    else:
        run.save(status="finished")
    finally:
        run.progress.close()
