"""Readable stacks: what a profiler saw, without the machinery that carries batches.

    _run · __next__ · _next_data · _try_get_data · get · poll   ─▶  next batch · waiting
    _worker_loop · fetch · <listcomp> · __getitem__ · imdecode  ─▶  Photos.__getitem__ · imdecode

A stack starts below the loop that this package runs, or below torch's loop in a worker.  Main
trap: a person may use queues and processes too; those words stand only for what torch itself
calls.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MAIN, WORKERS = "main process", "workers"
BUILT_IN = "built-in"

_HERE = str(Path(__file__).parent)
_STDLIB = sysconfig.get_path("stdlib")
_DATALOADER = "torch/utils/data/dataloader.py"
# Where a process's stacks start: below this function of this file.
_LOOPS = {
    MAIN: ("_run", str(Path(__file__).with_name("call_graph.py"))),
    WORKERS: ("_worker_loop", "torch/utils/data/_utils/worker.py"),
}
_MACHINERY = ("torch/utils/data/", "torch/multiprocessing/")
_SHOWN = "torch/utils/data/_utils/collate.py"
# Machinery only where machinery calls it.
_MACHINERY_BELOW = (
    "multiprocessing/", "threading.py", "queue.py", "selectors.py", "weakref.py", "random.py",
    BUILT_IN,
)  # fmt: skip
# Passed through, whoever calls it.
_WRAPPERS = ("torch/nn/modules/module.py", "torch/utils/_contextlib.py", "contextlib.py")
# (file, function; "" for all) -> the word for it and all it calls: in the main process, in workers.
_WORDS = {
    ("multiprocessing/connection.py", "poll"): ("waiting for workers", "waiting for the loop"),
    ("multiprocessing/connection.py", "wait"): ("waiting for workers", "waiting for the loop"),
    ("threading.py", "wait"): ("waiting for workers", "waiting for the loop"),
    ("multiprocessing/connection.py", "recv_bytes"): ("receiving", "waiting for the loop"),
    ("multiprocessing/queues.py", "put"): ("asking workers", "sending"),
    (BUILT_IN, "loads"): ("unpickling", "unpickling"),
    ("torch/multiprocessing/reductions.py", ""): ("unpickling", "pickling"),
    (_DATALOADER, "__iter__"): ("starting workers", "starting workers"),
    (_DATALOADER, "_shutdown_workers"): ("ending workers", "ending workers"),
}
_RENAMED = {(_DATALOADER, "__next__"): "next batch"}


class Place(NamedTuple):
    """A function in a stack."""

    name: str
    file: str
    line: int


def readable(stack: Sequence[str], process: str) -> tuple[Place, ...] | None:
    """Turn a stack into what a person wants to see of it.

    Args:
        stack: from the outermost function inwards, as pyinstrument writes functions: name, file
            and line between zero bytes, then attributes, of which the class counts.
        process: MAIN or WORKERS.

    Returns:
        From the outermost function inwards; None for a stack outside of the loop.
    """
    frames = [_parse(frame) for frame in stack]
    starts = [i for i, (place, _) in enumerate(frames) if _begins(place, process)]
    if not starts:
        return None
    shown: list[Place] = []
    in_machinery = True
    for (name, full, line), kind in frames[starts[-1] + 1 :]:
        file = short(full)
        in_machinery = full.startswith(_HERE) or (
            file.startswith(_MACHINERY) or (in_machinery and file.startswith(_MACHINERY_BELOW))
        )
        if in_machinery and file != _SHOWN:
            words = _WORDS.get((file, name)) or _WORDS.get((file, ""))
            if words:
                return (*shown, Place(words[process == WORKERS], "", 0))
            if renamed := _RENAMED.get((file, name)):
                shown.append(Place(renamed, "", 0))
            continue
        if full.startswith("<frozen importlib"):
            return (*shown, Place("importing modules", "", 0))
        if file in _WRAPPERS or full.startswith("<frozen"):
            continue
        if name.startswith("<") and name != "<lambda>":  # a comprehension
            continue
        if file == BUILT_IN and name.startswith("_"):  # a class that only its library knows
            name = name.rpartition(".")[2]
        place = Place(f"{kind}.{name}" if kind else name, file, line)
        if not shown or shown[-1].name != place.name:  # itself, or the same of its base class
            shown.append(place)
    return tuple(shown)


def short(file: str) -> str:
    """Shorten a file's path: from its library's folder, or from the folder one works in."""
    if file == "<built-in>":
        return BUILT_IN
    if "ipykernel_" in file or file.startswith("<ipython"):
        return "a notebook cell"
    path = Path(file)
    for folder in ("site-packages", "dist-packages"):
        if folder in path.parts:
            return "/".join(path.parts[path.parts.index(folder) + 1 :])
    for folder in (_STDLIB, Path.cwd()):
        if path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return "/".join(path.parts[-2:])


def _parse(frame: str) -> tuple[Place, str]:
    """Split pyinstrument's text for a function, also giving its class, if it is a method."""
    identifier, *attributes = frame.split("\x01")
    name, file, line = identifier.split("\x00")
    kind = next((text[1:] for text in attributes if text.startswith("c")), "")
    return Place(name, file, int(line)), kind.rpartition("<locals>.")[2]


def _begins(place: Place, process: str) -> bool:
    name, file = _LOOPS[process]
    return place.name == name and place.file.endswith(file)
