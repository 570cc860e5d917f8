"""Profiles by pyinstrument: a loop with its loader's workers, and the kinds of work in a step.

A profiler in the training process does not see the workers.  Each worker therefore gets one of its
own, which writes what it saw into a file when the worker ends.  The profiler samples every 0.2 ms:
much shorter functions are missed.
"""

from __future__ import annotations

import builtins
import contextlib
import html
import math
import os
import re
import sys
import sysconfig
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from labkit import units
from labkit.diagnosis.loaders import copied, end_workers, epochs, is_data_loader

if TYPE_CHECKING:
    import pandas as pd
    from pyinstrument import Profiler
    from pyinstrument.session import Session

INTERVAL_S, STEP_INTERVAL_S = 0.0002, 0.001
NO_DATALOADER = "not a torch DataLoader: only what it does in this thread was seen"

# A forked worker inherits the main process's profiler and has to stop it.
_running: list[Profiler] = []


@dataclass(frozen=True, kw_only=True)
class CallGraph:
    """What `call_graph` saw; shows itself as pyinstrument's trees."""

    main: Session
    """Of the main process; see pyinstrument for other renderers."""
    workers: Session | None = None
    """All workers added up; None where there are none, or none of them wrote its profile."""
    worker_count: int = 0
    seconds: float
    """From asking for the first batch to the end of the last step."""
    steps: int
    notes: tuple[str, ...] = ()
    error: Exception | None = None
    """What the data set or the step raised, which ended it early."""

    def table(self, n: int = 10) -> pd.DataFrame:
        """Return the functions with the most time of their own, in main process and workers.

        Returns:
            At most n rows by function: process, self_s, share (of its process's time), where.
        """
        import pandas as pd

        rows = []
        for process, session in (("main process", self.main), ("workers", self.workers)):
            own: Counter[tuple[str, str]] = Counter()
            for frame in _frames(session):
                name = ".".join(filter(None, (frame.class_name, frame.function)))
                own[name, frame.code_position_short()] += frame.total_self_time
            rows += [
                (name, process, self_s, self_s / own.total(), where)
                for (name, where), self_s in own.items()
                if self_s > 0
            ]
        table = pd.DataFrame(rows, columns=["function", "process", "self_s", "share", "where"])
        return table.nlargest(n, "self_s").set_index("function")

    def __str__(self) -> str:
        """Return pyinstrument's tree of the main process, and of the workers."""
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


def _frames(session: Session | None) -> Iterator:
    """Yield a session's frames; synthetic ones stand for a frame's own time."""
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
    seconds = time.perf_counter() - begun_s
    return CallGraph(main=session, seconds=seconds, steps=steps, error=error)


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


# --- kinds of work in a step ------------------------------------------------------------------

# Kind -> what a frame "file:function" of it looks like.  The outermost frame that fits decides.
KINDS = {
    "checkpoint": re.compile(
        r"torch/serialization\.py:(save|_save)|safetensors|:f?sync$|:fdatasync$|pickle\.py:dump"
        r"|checkpoint\w*\.py:|:\w*checkpoint\w*$|:save_file$|:save$",
        re.IGNORECASE,
    ),
    "reports": re.compile(
        r"logging/__init__|socket|http/client|urllib|requests/|wandb|tensorboard|mlflow|tqdm"
        r"|:print$|iostream\.py|sqlite",
        re.IGNORECASE,
    ),
    "synchronization": re.compile(
        r":(TensorBase|Tensor)?\.?(item|tolist|cpu|numpy|nonzero)$|:synchronize$"
        r"|labkit/(parts|diagnosis)/devices\.py:",
    ),
}
# Calls of torch, numpy and the like are computing, whatever called them.
LIBRARY = re.compile(
    r"site-packages/(torch|numpy|scipy|cv2|PIL)/|^<built-in>:(_?(Tensor|Variable)|ndarray|Imaging)"
)


_FOLDERS = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))
NOT_OWN = re.compile("|".join(["-packages/", "^<", ":<", *map(re.escape, _FOLDERS)]))


class Kind(NamedTuple):
    """A kind of work in a step."""

    share: float
    """Of the time."""
    function: str
    """Of the user's own, in which most of it is; "" where in none."""


def kinds_of(run: Callable[[], object]) -> dict[str, Kind]:
    """Profile a function and divide its time among kinds of work.

    Args:
        run: calls the step some hundred times.

    Returns:
        Those of `KINDS`, "compute" for what libraries did, "host work" for all other Python.
    """
    from pyinstrument import Profiler

    profiler = Profiler(interval=STEP_INTERVAL_S, async_mode="disabled")
    profiler.start()
    try:
        run()
    finally:
        session = profiler.stop()
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    for stack, spent_s in session.frame_records:
        # pyinstrument's frames are "function\0file\0line".
        frames = ["{1}:{0}".format(*frame.split("\x00")) for frame in stack]
        own = [frame.rpartition(":")[2] for frame in frames if not NOT_OWN.search(frame)]
        spent[_kind_of(frames)][own[-1] if own else ""] += spent_s
    total_s = sum(functions.total() for functions in spent.values()) or 1.0
    return {
        kind: Kind(functions.total() / total_s, functions.most_common(1)[0][0])
        for kind, functions in spent.items()
    }


def _kind_of(stack: list[str]) -> str:
    for frame in stack:
        for kind, pattern in KINDS.items():
            if pattern.search(frame):
                return kind
    # A built-in function has no file: it is torch's where torch called it.
    computes = LIBRARY.search(stack[-1]) or any(map(LIBRARY.search, stack[-2:-1]))
    name = stack[-1].removeprefix("<built-in>:")
    # OpenCV's functions know no module.
    is_opencv = hasattr(sys.modules.get("cv2"), name) and not hasattr(builtins, name)
    computes = computes or (is_opencv and not hasattr(math, name))
    return "compute" if computes else "host work"
