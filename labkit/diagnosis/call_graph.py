"""Who calls whom, and how long: the main process and its loader's workers as two trees.

    main process ── pyinstrument ──▶ stacks ┐
                                            ├─ readable ─▶ Node: name, file, seconds, children
    worker 0, 1 … ── at their end ─▶ a file ┘

Main trap: a profiler that looks at calls and returns gives all the time since its last look to
whatever returns then, so a function much shorter than the interval, before a long C call, is not
seen, and a tight loop of small functions looks several times as long as it is.  This shows where
time goes, not what a function takes; for that see `stages`.
Source: pyinstrument, https://github.com/joerick/pyinstrument.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.diagnosis.frames import MAIN, WORKERS, Place, readable
from labkit.diagnosis.taps import tapped

if TYPE_CHECKING:
    import pandas as pd
    from pyinstrument import Profiler

INTERVAL_S = 0.0002  # shorter or longer, the cost is nearly the same
SMALLEST_SHARE = 0.002  # of its process's time; branches below it are added up as "other"
OTHER = "other"
NO_DATALOADER = "not a torch DataLoader: of what prepares batches only this thread was seen"

Times = dict[tuple[Place, ...], float]
"""A stack, from the outermost function inwards -> seconds in its last function itself."""

# What a worker inherits when it is forked, and ends: it must not fill the main process's profile.
_running: list[Profiler] = []


@dataclass(frozen=True, kw_only=True)
class Node:
    """A function where it stands in the tree."""

    name: str
    file: str
    """Shortened; "built-in" for C, "" for what stands for more than a function."""
    line: int
    """Where it is defined; 0 where there is none."""
    total_s: float
    """With all that it called; added up over workers."""
    self_s: float
    """Without."""
    children: tuple[Node, ...]
    """Most time first."""

    def walk(self) -> Iterator[Node]:
        """Give this and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, kw_only=True)
class CallGraph:
    """What `profile` saw."""

    main: Node
    workers: Node | None
    """All workers added up; None where there are none, or none of them told."""
    worker_count: int
    """As the loader has them; 0 with none."""
    seconds: float
    """From the first batch that was asked for to the last step's end."""
    steps: int
    notes: tuple[str, ...]
    error: Exception | None
    """What ended it early, of the data set or the step; what was seen until then is kept."""

    def top(self, n: int = 10) -> list[dict[str, object]]:
        """List the functions with the most time of their own, as rows of a table.

        Returns:
            At most n rows: function, where, self_s, share (of its process's time), process.
        """
        rows = []
        for process, root in ((MAIN, self.main), (WORKERS, self.workers)):
            own: dict[tuple[str, str], float] = {}
            for node in root.walk() if root is not None else ():
                where = f"{node.file}:{node.line}" if node.line else node.file
                own[node.name, where] = own.get((node.name, where), 0.0) + node.self_s
            rows += [
                {
                    "function": name, "where": where, "self_s": self_s,
                    "share": self_s / root.total_s, "process": process,
                }
                for (name, where), self_s in own.items()
                if self_s > 0
            ]  # fmt: skip
        return sorted(rows, key=lambda row: -row["self_s"])[:n]

    def table(self, n: int = 10) -> pd.DataFrame:
        """Show `top` as a table."""
        import pandas as pd

        shown = [
            {
                "function": row["function"],
                "process": row["process"],
                "own time": units.seconds(row["self_s"]),
                "share": units.percent(row["share"]),
                "where": row["where"],
            }
            for row in self.top(n)
        ]
        return pd.DataFrame(shown).set_index("function") if shown else pd.DataFrame()


def profile(
    loader: Iterable, step: Callable[[object], object], *, seconds: float = 5.0
) -> CallGraph:
    """Profile steps in the main process, and a torch DataLoader's workers meanwhile.

    Args:
        loader: is not changed; a copy of it is iterated over, epoch after epoch.  Of any other
            iterable only this thread is seen, and it is used up if it can be iterated over once.
        step: called with every batch; what it does to a model is not taken back.
        seconds: how long; what is under way then is finished.
    """
    from torch.utils.data import DataLoader

    if not isinstance(loader, DataLoader):
        return replace(_profile(loader, step, seconds), notes=(NO_DATALOADER,))
    if not loader.num_workers:
        return _profile(loader, step, seconds)
    with tempfile.TemporaryDirectory(prefix="labkit-profile-") as folder:
        with tapped(loader, start=_ProfileWorker(folder)) as twin:
            graph = _profile(twin, step, seconds)
        # The workers have ended, and wrote what they saw as they did.
        times, lost = _read(Path(folder))
    notes = (f"no profile of {lost} of the workers: they ended before they wrote it",)
    return replace(
        graph,
        workers=tree(times, WORKERS) if times else None,
        worker_count=loader.num_workers,
        notes=notes if lost else (),
    )


def tree(times: Times, name: str) -> Node:
    """Build a tree of stacks; branches of hardly any time are added up.

    Args:
        times: of one process, or of several alike.
        name: of the root.
    """
    whole_s = sum(times.values())
    return _node(Place(name, "", 0), times, 0, SMALLEST_SHARE * whole_s)


def _node(place: Place, times: Times, depth: int, least_s: float) -> Node:
    self_s, below = 0.0, {}
    for stack, s in times.items():
        if len(stack) == depth:
            self_s += s
        else:
            branch = below.setdefault(stack[depth], {})
            branch[stack] = branch.get(stack, 0.0) + s
    large = {place: branch for place, branch in below.items() if sum(branch.values()) >= least_s}
    children = [_node(place, branch, depth + 1, least_s) for place, branch in large.items()]
    other_s = sum(sum(branch.values()) for place, branch in below.items() if place not in large)
    if other_s:
        children.append(
            Node(name=OTHER, file="", line=0, total_s=other_s, self_s=other_s, children=())
        )
    return Node(
        **place._asdict(),
        total_s=sum(times.values()),
        self_s=self_s,
        children=tuple(sorted(children, key=lambda node: -node.total_s)),
    )


def _profile(loader: Iterable, step: Callable[[object], object], seconds: float) -> CallGraph:
    from pyinstrument import Profiler

    profiler = Profiler(interval=INTERVAL_S, async_mode="disabled")
    steps, error = [], None
    _running.append(profiler)
    profiler.start()
    begun_s = time.perf_counter()
    try:
        _run(loader, step, begun_s + seconds, steps)
    except Exception as caught:
        error = caught
    finally:
        session = profiler.stop()
        _running.remove(profiler)
    return CallGraph(
        main=tree(_add_up(session.frame_records, MAIN), MAIN),
        workers=None,
        worker_count=0,
        seconds=time.perf_counter() - begun_s,
        steps=len(steps),
        notes=(),
        error=error,
    )


def _run(
    loader: Iterable, step: Callable[[object], object], deadline_s: float, steps: list[None]
) -> None:
    """Train until it is time; `frames` starts every stack of the main process below here."""
    while True:  # epochs
        steps_before = len(steps)
        for batch in loader:
            step(batch)
            steps.append(None)
            if time.perf_counter() >= deadline_s:
                return
        if len(steps) == steps_before:
            return  # an empty epoch


def _add_up(records: Iterable[tuple[list[str], float]], process: str) -> Times:
    times: Times = {}
    known: dict[tuple[str, ...], tuple[Place, ...] | None] = {}
    for stack, s in records:
        key = tuple(stack)
        if key not in known:
            known[key] = readable(stack, process)
        if (places := known[key]) is not None:
            times[places] = times.get(places, 0.0) + s
    return times


class _ProfileWorker:
    """Starts a profiler in a worker; at its end it writes what it saw into a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, worker_id: int) -> None:
        from pyinstrument import Profiler

        for inherited in _running:
            inherited.stop()
        _running.clear()
        path = Path(self._folder, f"{os.getpid()}.started")
        path.touch()
        profiler = Profiler(interval=INTERVAL_S, async_mode="disabled")
        Finalize(None, _write, args=(profiler, path), exitpriority=10)
        profiler.start()


def _write(profiler: Profiler, path: Path) -> None:
    times = _add_up(profiler.stop().frame_records, WORKERS)
    with contextlib.suppress(OSError):  # nobody waited for it
        path.write_text(json.dumps(list(times.items())))
        path.rename(path.with_suffix(".json"))  # now it is whole


def _read(folder: Path) -> tuple[Times, int]:
    """Add up what workers wrote, and count those that did not."""
    times: Times = {}
    for path in folder.glob("*.json"):
        for stack, s in json.loads(path.read_text()):
            places = tuple(Place(*place) for place in stack)
            times[places] = times.get(places, 0.0) + s
    return times, len(list(folder.glob("*.started")))
