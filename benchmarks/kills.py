"""Kill -9 at random moments: is every finished row kept, can the run be completed?

    python -m benchmarks.kills [--kills 200] [--seed 0]

    run ─▶ kill the runner, a server, the trial or a loader worker ─▶ resume ─▶ kill … ─▶ end

Runs are real and small.  A moment may be in the preparation as well as in a trial.  A loss is: a
written row that is gone or changed, a process that stays, a run that cannot be completed, a trial
that counts twice, an error that is no sentence, a file left in memory or in the temporary folder.
There must be none.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

import labkit as lab
from benchmarks import frame
from labkit import units
from labkit.contracts import Skip
from labkit.files import bar
from labkit.parts.storage import locate
from labkit.photos.make import make_photos
from labkit.records import RunInfo
from labkit.runs.store import TRIALS_FILE, list_runs, load_run

TARGETS = ("runner", "server", "run's server", "trial", "loader worker")
SHARED_MEMORY = Path("/dev/shm")
MARK = "LABKIT_KILLS"  # in the environment of every process of ours
BLOCKS = 8
KILLS_PER_RUN = 20  # about what those blocks last for
# After how many further rows to strike; 0: at any moment, also while the run prepares itself.
MORE_ROWS = (0, 1, 1, 2, 3)
# The latest of any moments: a new run prepares itself for about 5 s, one that is resumed for 2 s.
NEW_S, RESUMED_S, GOING_ON_S = 6.0, 2.5, 1.0
INTO_TRIAL_S = 0.5  # a trial takes a few tenths of a second
INTO_LIFE_S = 0.2  # that of a loader worker
# How long to look for something that must happen; no speed limit.
PATIENCE_S = 180.0
LOOK_EVERY_S = 0.01

BEGIN = """
import sys
from dataclasses import replace
import labkit as lab

data, results, blocks, in_memory = sys.argv[1:]
base = lab.Settings(
    data=data, device="cpu", step="nothing", preprocessor="vectorized", cache="as found",
    input_px=64, batch_size=4, images=8, num_workers=1, epochs=1,
)
variants = {"opencv": {}, "pillow": {"decoder": "pillow"}}
if in_memory == "yes":
    variants["memory"] = {"storage": "tmpfs"}
experiment = lab.Experiment(
    "kills",
    question="What does kill -9 leave?",
    variants={label: replace(base, **changes) for label, changes in variants.items()},
    baseline="opencv",
)
try:
    lab.run(experiment, blocks=int(blocks), results=results, progress=False)
except (ValueError, OSError, RuntimeError) as error:
    sys.exit(f"labkit: {error}")
"""


@dataclass
class Record:
    """What was done, and what it did."""

    kills: Counter = field(default_factory=Counter)
    runs: int = 0
    rows: int = 0
    """Rows of all runs, each compared with what had been there before every kill."""
    slowest_orphan_s: float = 0.0
    """From a kill to the end of the last process below the one that was killed."""
    losses: list[str] = field(default_factory=list)


class Siege:
    """Runs that are killed and resumed until they are complete.

    Args:
        place: an empty folder that takes data, results and temporary files.
        rng: chooses the moments.
        blocks: of each run.
    """

    def __init__(self, place: Path, rng: random.Random, blocks: int = BLOCKS) -> None:
        self.record = Record()
        self._place, self._rng, self._blocks = place, rng, blocks
        self._photos, self._temporary = place / "photos", place / "tmp"
        make_photos(self._photos, 8, seed=1, progress=False)
        self._temporary.mkdir()
        self._mark = secrets.token_hex(8)
        self._pids: set[int] = set()
        self._runner: psutil.Popen | None = None
        self._seen = b""  # what had been written when last looked at
        try:
            self._copy = locate("tmpfs", self._photos).copy
        except Skip:
            self._copy = None  # no memory to keep files in

    def __enter__(self) -> Siege:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process, however it went."""
        for process in self.ours():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self._runner is not None:
            self._runner.wait()

    def strike(self, targets: Sequence[str], on_kill: Callable[[], None] = lambda: None) -> None:
        """Kill each of the targets in turn, resuming as needed; then let the run be completed.

        Args:
            targets: of `TARGETS`; a run that is complete before all are struck has a successor.
            on_kill: called after each.
        """
        self._begin()
        for target in targets:
            while (victim := self._wait_for(target)) is None or not self._kill(target, victim):
                if victim is None:
                    self._go_on()
            on_kill()
            if target == "runner":
                self._start()
        while not self._ended_complete() and self._harmed:
            self._start()

    def leftovers(self) -> list[str]:
        """List processes and files that are still there though all runs have ended."""
        left = [f"process {process.pid}" for process in self.ours()]
        # Once a loader worker is gone torch opens ten temporary files, to see whether it still can;
        # killed in the middle of that, it leaves an empty one.
        left += [
            f"temporary file {path.name}"
            for path in self._temporary.rglob("*")
            if not (path.name.startswith("tmp") and path.is_file() and not path.stat().st_size)
        ]
        if SHARED_MEMORY.is_dir():
            for path in SHARED_MEMORY.iterdir():
                copied = self._copy is not None and path.name.startswith(self._copy.name)
                maker = re.match(r"torch_(\d+)_", path.name)  # its process number
                if copied or (maker and int(maker[1]) in self._pids):
                    left.append(f"file in memory {path.name}")
        return left

    def ours(self) -> list[psutil.Process]:
        """List all processes that began here, wherever in the tree they are now."""
        return frame.marked(MARK, self._mark)

    def _begin(self) -> None:
        """Go on with a new run."""
        self.record.runs += 1
        self._results = self._place / f"results {self.record.runs}"
        self._results.mkdir()
        self._seen = b""
        self._start()

    def _go_on(self) -> None:
        """Resume the run that has ended; if it is complete or cannot be, take a new one."""
        if self._ended_complete() or not self._harmed:
            self._begin()
        else:
            self._start()

    def _folder(self) -> Path | None:
        """Find the run's folder; one killed at once has none."""
        return next(iter(list_runs(self._results)), None)

    def _start(self) -> None:
        """Start the run, or resume it as a user would."""
        folder, self._harmed = self._folder(), 0
        self._choose_moment(RESUMED_S if folder else NEW_S)
        command = ["-m", "labkit", "run", "--resume", str(folder)]
        if folder is None:
            given = (self._photos, self._results, self._blocks, "yes" if self._copy else "no")
            command = ["-c", BEGIN, *map(str, given)]
        elif not self._rows().startswith(self._seen):
            self._lose("rows that were written are gone or changed")
        with (self._place / "stderr").open("wb") as errors:
            self._runner = psutil.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                cwd=self._place,  # away from any labkit.toml
                env={
                    **os.environ,
                    MARK: self._mark,
                    "TMPDIR": str(self._temporary),
                    "PYTHONPATH": str(Path(lab.__file__).parents[1]),
                },
            )

    def _choose_moment(self, within_s: float) -> None:
        more = self._rng.choice(MORE_ROWS)
        self._until_rows = self._rows().count(b"\n") + more
        self._pause_s = self._rng.uniform(0.0, INTO_TRIAL_S if more else within_s)

    def _wait_for(self, target: str) -> psutil.Process | None:
        """Wait for the moment, and then for the target; None if the run ends before."""
        for _ in _looks():
            if self._rows().count(b"\n") >= self._until_rows or self._runner.poll() is not None:
                break
        with contextlib.suppress(psutil.TimeoutExpired):
            self._runner.wait(self._pause_s)
        for _ in _looks():
            if self._runner.poll() is not None:
                return None
            processes = self._family().get(target, [])
            if processes and target in ("trial", "loader worker"):
                time.sleep(self._rng.uniform(0.0, INTO_LIFE_S))
            if processes and _is_alive(processes[0]):
                return processes[0]
        return self._lose(f"there was no {target} for {PATIENCE_S:.0f} s")

    def _family(self) -> dict[str, list[psutil.Process]]:
        """Return the runner's processes by their role."""
        family = {"runner": [self._runner]}
        below = {self._runner.pid: "server"}
        roles = dict(itertools.pairwise(TARGETS))
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in self._runner.children(recursive=True):  # parents come first
                with contextlib.suppress(psutil.NoSuchProcess):
                    role = below.get(process.ppid())
                    if role == "server" and "labkit.runs.server" not in process.cmdline():
                        continue  # git, or a server that is just being started
                    family.setdefault(role, []).append(process)
                    below[process.pid] = roles.get(role)
        self._pids |= {process.pid for processes in family.values() for process in processes}
        return family

    def _kill(self, target: str, victim: psutil.Process) -> bool:
        """Kill a process and see what becomes of those below it and of the rows.

        Returns:
            False: it has ended by itself just before.
        """
        self._look_at_rows()
        try:
            below = victim.children(recursive=True)
            victim.kill()
        except psutil.NoSuchProcess:
            return False
        killed_s = time.monotonic()
        self.record.kills[target] += 1
        self._harmed += 1
        if target == "runner":
            self._runner.wait()
        for _ in _looks():
            left = self.ours() if target == "runner" else [p for p in below if _is_alive(p)]
            if not left:
                break
        else:
            self._lose(f"{len(left)} processes stay after the {target} was killed")
        took_s = time.monotonic() - killed_s
        self.record.slowest_orphan_s = max(self.record.slowest_orphan_s, took_s)
        self._look_at_rows()
        if (folder := self._folder()) is not None:
            load_run(folder)  # whatever lies there now can be read
        self._choose_moment(GOING_ON_S)
        return True

    def _ended_complete(self) -> bool:
        """Wait for the run to end by itself; see how it did, and say whether it is complete."""
        try:
            status = self._runner.wait(PATIENCE_S)
        except psutil.TimeoutExpired:
            self._lose(f"it has not ended within {PATIENCE_S:.0f} s")
            self._runner.kill()
            self._runner.wait()
            return False
        errors = (self._place / "stderr").read_text(encoding="utf-8")
        if status not in (0, 1) or "Traceback" in errors:
            self._lose(f"it ended with status {status}, saying: {errors[-2000:]}")
        self._look_at_rows()
        if (folder := self._folder()) is None:
            self._lose(f"it ended without a run folder, saying: {errors}")
            return False
        run = load_run(folder)
        if run.info.status != ("failed" if status else "finished"):
            self._lose(f"it ended with status {status}, its folder says {run.info.status}")
        counts = Counter((t.variant, t.block, t.role) for t in run.trials if t.status == "ok")
        for (variant, block, role), times in counts.items():
            if times > 1:
                self._lose(f"{variant} {role} of block {block} counts {times} times")
        if status or set(counts) != self._planned(run.info):
            # What is killed once is done once more, by the run itself.
            if self._harmed <= 1:
                missing = sorted(self._planned(run.info) - set(counts))
                others = [(t.variant, t.block, t.reason) for t in run.trials if t.status != "ok"]
                self._lose(
                    f"after {self._harmed} kills it ended incomplete with status {status}, "
                    f"without {missing}, with {others}, saying: {errors}"
                )
            return False
        summary = run.summary
        if {summary.n_blocks, *(row.blocks for row in summary.rows)} != {self._blocks}:
            self._lose(f"{self._blocks} blocks are complete, the summary has {summary.n_blocks}")
        self.record.rows += len(self._seen.splitlines())
        return True

    def _planned(self, info: RunInfo) -> set[tuple[str, int, str]]:
        """Return which trials must be there: each variant once a block, the baseline twice."""
        return {
            (label, block, role)
            for block in range(self._blocks)
            for label in info.variants
            for role in (("A1", "A2") if label == info.baseline else ("",))
        }

    def _rows(self) -> bytes:
        folder = self._folder()
        path = folder / TRIALS_FILE if folder else None
        return path.read_bytes() if path and path.exists() else b""

    def _look_at_rows(self) -> None:
        """See that nothing that was written is gone or changed."""
        rows = self._rows()
        if not rows.startswith(self._seen):
            self._lose("rows that were written are gone or changed")
        self._seen = rows

    def _lose(self, what: str) -> None:
        self.record.losses.append(f"{self._folder() or self._results}: {what}")


def choose_targets(kills: int, rng: random.Random) -> list[str]:
    """Choose each target equally often, in random order."""
    chosen = [TARGETS[number % len(TARGETS)] for number in range(kills)]
    rng.shuffle(chosen)
    return chosen


def _looks() -> Iterator[None]:
    """Look again and again, until it has been too long."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        yield
        time.sleep(LOOK_EVERY_S)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def main() -> int:
    parser = frame.parser(__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of targets and moments")
    options = parser.parse_args()
    report = frame.Report("What kill -9 loses", options)
    rng = random.Random(options.seed)
    targets = choose_targets(options.kills, rng)
    with (
        bar(total=len(targets), desc="kills") as shown,
        tempfile.TemporaryDirectory(prefix="labkit-kills-") as place,
        Siege(Path(place), rng) as siege,
    ):
        for start in range(0, len(targets), KILLS_PER_RUN):
            siege.strike(targets[start : start + KILLS_PER_RUN], shown.update)
        record = siege.record
        record.losses += [f"left behind: {what}" for what in siege.leftovers()]
    by_target = ", ".join(f"{target} {record.kills[target]}" for target in TARGETS)
    report.line(
        f"{record.kills.total()} kills ({by_target}) in {units.count(record.runs, 'run')}, "
        f"seed {options.seed}"
    )
    report.line(f"the slowest orphan lived {units.seconds(record.slowest_orphan_s)}")
    for loss in record.losses:
        report.line(loss)
    rows = units.count(record.rows, "row")
    report.limit(not record.losses, f"{len(record.losses)} lost or left behind, {rows} checked")
    return report.finish(asdict(record))


if __name__ == "__main__":
    sys.exit(main())
