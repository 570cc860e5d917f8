"""Profile a training loop and its loader's workers with pyinstrument.

A profiler in the training process does not see the workers, so each worker gets one of its own and
writes what it saw into a file when it ends.  The profiler looks every 0.2 ms: functions much
shorter than that are missed, and tight loops of small functions look longer than they are.
"""

from __future__ import annotations

import contextlib
import html
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.diagnosis.taps import tapped

if TYPE_CHECKING:
    import pandas as pd
    from pyinstrument import Profiler
    from pyinstrument.session import Session

INTERVAL_S = 0.0002  # shorter or longer, the cost is nearly the same
NO_DATALOADER = "not a torch DataLoader: of what prepares batches only this thread was seen"

# A forked worker inherits the main process's profiler and has to stop it.
_running: list[Profiler] = []


@dataclass(frozen=True, kw_only=True)
class CallGraph:
    """What `profile` saw; in a notebook it shows itself."""

    main: Session
    workers: Session | None
    """All workers added up; None where there are none, or none of them wrote its profile."""
    worker_count: int
    seconds: float
    """From the first batch that was asked for to the last step's end."""
    steps: int
    notes: tuple[str, ...] = ()
    error: Exception | None = None
    """What ended it early, of the data set or the step; what was seen until then is kept."""

    def top(self, n: int = 10) -> list[dict[str, object]]:
        """List the functions with the most time of their own, in the main process and the workers.

        Returns:
            At most n rows: function, where, self_s, share (of its process's time), process.
        """
        rows = []
        for process, session in (("main process", self.main), ("workers", self.workers)):
            own: Counter[tuple[str, str]] = Counter()
            for frame in _frames(session):
                name = ".".join(filter(None, (frame.class_name, frame.function)))
                line = f":{frame.line_no}" if frame.line_no else ""  # C has none
                own[name, f"{frame.file_path_short}{line}"] += frame.total_self_time
            whole_s = sum(own.values())
            rows += [
                {"function": name, "where": where, "self_s": self_s}
                | {"share": self_s / whole_s, "process": process}
                for (name, where), self_s in own.items()
                if self_s > 0
            ]
        return sorted(rows, key=lambda row: -row["self_s"])[:n]

    def table(self, n: int = 10) -> pd.DataFrame:
        """Return `top` as a table."""
        import pandas as pd

        rows = [
            {
                "function": row["function"],
                "process": row["process"],
                "own time": units.seconds(row["self_s"]),
                "share": units.percent(row["share"]),
                "where": row["where"],
            }
            for row in self.top(n)
        ]
        return pd.DataFrame(rows).set_index("function") if rows else pd.DataFrame()

    def __str__(self) -> str:
        """Write pyinstrument's tree of the main process, and of the workers."""
        said = [f"{units.count(self.steps, 'step')} in {units.seconds(self.seconds)}", *self.notes]
        if self.error is not None:
            said.append(f"ended early: {type(self.error).__name__}: {self.error}")
        parts = [" · ".join(said), "Main process", _tree(self.main)]
        if self.workers is not None:
            workers = units.count(self.worker_count, "worker")
            parts += [f"{workers}, times added up", _tree(self.workers)]
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        # Text, as pyinstrument's own HTML loads a font from the network.
        return f"<pre>{html.escape(str(self))}</pre>"


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
        workers, lost = _read(Path(folder))
    notes = (f"no profile of {lost} of the workers: they ended before they wrote it",)
    return replace(
        graph,
        workers=workers,
        worker_count=loader.num_workers,
        notes=notes if lost else (),
    )


def _frames(session: Session | None) -> Iterator:
    """Go through a session's frames; those that stand for a frame's own time are no functions."""
    waiting = [root] if session and (root := session.root_frame()) else []
    while waiting:
        frame = waiting.pop()
        yield frame
        waiting += [child for child in frame.children if not child.is_synthetic]


def _tree(session: Session) -> str:
    from pyinstrument.renderers import ConsoleRenderer

    renderer = ConsoleRenderer(unicode=True)
    # Without the logo and the path of this file.
    return renderer.render(session).removeprefix(renderer.render_preamble(session)).strip()


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
        main=session,
        workers=None,
        worker_count=0,
        seconds=time.perf_counter() - begun_s,
        steps=len(steps),
        error=error,
    )


def _run(
    loader: Iterable, step: Callable[[object], object], deadline_s: float, steps: list[None]
) -> None:
    """Train until it is time."""
    while True:  # epochs
        steps_before = len(steps)
        for batch in loader:
            step(batch)
            steps.append(None)
            if time.perf_counter() >= deadline_s:
                return
        if len(steps) == steps_before:
            return  # an empty epoch


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
    session = profiler.stop()
    with contextlib.suppress(OSError):  # nobody waited for it
        session.save(path)
        path.rename(path.with_suffix(".json"))  # now it is whole


def _read(folder: Path) -> tuple[Session | None, int]:
    """Add up what workers wrote, and count those that did not."""
    from pyinstrument.session import Session

    sessions = [Session.load(path) for path in folder.glob("*.json")]
    lost = len(list(folder.glob("*.started")))
    return (reduce(Session.combine, sessions) if sessions else None), lost
