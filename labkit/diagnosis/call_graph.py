"""A profile by pyinstrument of a loop with its loader's workers.

A profiler in the training process does not see the workers.  Each worker therefore gets one of its
own, which writes what it saw into a file when the worker ends.  The profiler samples every 0.2 ms:
much shorter functions are missed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial, reduce
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.diagnosis.loaders import (
    NO_DATALOADER,
    copied,
    end_workers,
    epochs,
    is_data_loader,
)

if TYPE_CHECKING:
    import pandas as pd
    from pyinstrument import Profiler
    from pyinstrument.session import Session

INTERVAL_S = 0.0002

# A forked worker inherits the main process's profiler and has to stop it.
_running: list[Profiler] = []


@dataclass(frozen=True, kw_only=True)
class CallGraph:
    """What `call_graph` saw; shows itself as pyinstrument's trees."""

    main: Session
    """Session of the main process; see pyinstrument for other renderers."""
    workers: Session | None = None
    """All workers added up; None where there are none, or none of them wrote its profile."""
    worker_count: int = 0
    steps: int
    notes: tuple[str, ...] = ()
    error: Exception | None = None
    """Error of the data set or the step that ended the profile early."""

    def table(self, n: int = 10) -> pd.DataFrame:
        """Return the functions with the most time of their own, in main process and workers.

        Returns:
            At most n rows by function: process, self_s, share (of its process's time), where.
        """
        import pandas as pd
        from pyinstrument.frame import Frame

        rows = []
        for process, session in (("main process", self.main), ("workers", self.workers)):
            own: Any = Counter()
            # A sample is the own time of its innermost frame.
            for stack, spent_s in session.frame_records if session else ():
                frame = Frame(stack[-1], context=session)
                name = ".".join(filter(None, (frame.class_name, frame.function)))
                own[name, frame.code_position_short()] += spent_s
            rows += [
                (name, process, self_s, self_s / own.total(), where)
                for (name, where), self_s in own.items()
            ]
        table = pd.DataFrame(rows, columns=["function", "process", "self_s", "share", "where"])
        return table.nlargest(n, "self_s").set_index("function")

    def __repr__(self) -> str:
        """Return pyinstrument's tree of the main process, and of the workers."""
        took = units.seconds(self.main.duration)
        facts = [f"{units.count(self.steps, 'step')} in {took}", *self.notes]
        if self.error is not None:
            facts.append(f"ended early: {type(self.error).__name__}: {self.error}")
        parts = [" · ".join(facts), "Main process", _tree(self.main)]
        if self.workers is not None:
            workers = units.count(self.worker_count, "worker")
            parts += [f"{workers}, times added up", _tree(self.workers)]
        return "\n\n".join(parts)


def call_graph(
    loader: Iterable, step: Callable[[object], object], *, seconds: float = 5.0
) -> CallGraph:
    """Profile a training loop in the main process, and its DataLoader's workers.

    Args:
        loader: is not changed; a copy of it is iterated over, epoch after epoch.  Of an iterable
            other than torch's DataLoader only this thread is seen.
        step: called with every batch; may train a model, which should be one to throw away.
        seconds: how long; the step that is running then is finished.
    """
    if not is_data_loader(loader):
        return replace(_profile(loader, step, seconds), notes=(NO_DATALOADER,))
    if not loader.num_workers:
        return _profile(loader, step, seconds)
    with tempfile.TemporaryDirectory(prefix="labkit-profile-") as folder:
        with copied(loader, start=partial(_profile_worker, folder)) as twin:
            graph = _profile(twin, step, seconds)
        # The workers have ended, and wrote what they saw as they did.
        workers, lost = _read(Path(folder))
    notes = (f"no profile of {lost} of the workers: they ended before they wrote it",)
    return replace(
        graph, workers=workers, worker_count=loader.num_workers, notes=notes if lost else ()
    )


def _tree(session: Session) -> str:
    from pyinstrument.renderers import ConsoleRenderer

    renderer = ConsoleRenderer(unicode=True)
    # Without the logo and the path of this file.
    return renderer.render(session).removeprefix(renderer.render_preamble(session)).strip()


def _profile(loader: Iterable, step: Callable[[object], object], seconds: float) -> CallGraph:
    from pyinstrument import Profiler

    profiler = Profiler(interval=INTERVAL_S, async_mode="disabled")
    steps, error = 0, None
    _running.append(profiler)
    profiler.start()
    begun_s = time.perf_counter()
    try:
        try:
            for batch in epochs(lambda: iter(loader)):
                step(batch)
                steps += 1
                if time.perf_counter() >= begun_s + seconds:
                    break
        except Exception as caught:
            error = caught
            end_workers(loader)
    except RuntimeError as late:  # of torch, once more, where its signal of a dead worker came late
        error = error or late
    finally:
        session = profiler.stop()
        _running.remove(profiler)
    return CallGraph(main=session, steps=steps, error=error)


def _profile_worker(folder: str, _: int) -> None:
    """Start a profiler in a worker, which writes what it saw into a folder at the worker's end."""
    from pyinstrument import Profiler

    while _running:
        _running.pop().stop()
    path = Path(folder, f"{os.getpid()}.started")
    path.touch()
    profiler = Profiler(interval=INTERVAL_S, async_mode="disabled")
    Finalize(None, _write, args=(profiler, path), exitpriority=10)
    profiler.start()


def _write(profiler: Profiler, path: Path) -> None:
    session = profiler.stop()
    with contextlib.suppress(OSError):  # the folder is gone: nothing waited for it
        session.save(path)
        path.rename(path.with_suffix(".json"))  # now it is whole


def _read(folder: Path) -> tuple[Session | None, int]:
    """Add up what workers wrote, and count those that did not."""
    from pyinstrument.session import Session

    sessions = [Session.load(path) for path in folder.glob("*.json")]
    lost = len(list(folder.glob("*.started")))
    return (reduce(Session.combine, sessions) if sessions else None), lost
