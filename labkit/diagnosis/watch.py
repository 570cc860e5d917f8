"""Watch a training: how much of its time it waits for data, while it runs as it is.

    next(loader) ───▶ batch ───▶ Tensor.to("cuda") ───▶ forward, backward … ───▶ next(loader)
             wait               transfer                rest

`run_script` sees every DataLoader of torch that a script iterates over; `watch` wraps one loader
of any kind.  Seconds are the host's.  The device's own are NVML's utilization, which a thread
reads: CUDA events in the training's streams would disturb it, above all the capture of graphs.
"""

from __future__ import annotations

import math
import os
import shlex
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial, wraps
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit import units
from labkit.contracts import Clock, Skip, SystemClock
from labkit.diagnosis.loaders import check_loader, count_samples
from labkit.files import progress_stream
from labkit.machine import hardware
from labkit.machine.gpu import Reading, is_mps_in_use, open_gpu
from labkit.machine.usage import NVML_PERIOD_S, Sampler, cores_s

FIRST_STEPS = 50  # before the first report
PERIOD_S = 30.0  # until another report; later ones come after twice as long each time
LOOK_S = 1.0  # between two looks at a loader that may hang
WORTH = 0.05  # share of the time that is worth saving
BUSY, IDLE = 0.8, 0.5  # a core or device is in use for more, or less, of the time
KNOWN_OF_WORKERS = {"worker", "cores"}  # of `Watch.busy`; not in the first milliseconds
DATALOADER = "torch.utils.data.dataloader"
NOTHING_SEEN = (
    "No DataLoader of torch was iterated over in this process, so nothing was measured. For other "
    "loaders: `for batch in lab.watch(loader)`. For processes that the script starts itself: let "
    "torchrun start them, `torchrun -m labkit.watch train.py`."
)
TOO_SHORT = (
    "No loop ran two steps, so there is no result. A loader yields no batch where drop_last drops "
    "the only one, or where a generator is used up."
)
AHEAD = "A background thread consumes the loader; the training's waits cannot be measured."


@dataclass(kw_only=True)
class Loop:
    """What was measured of the loops over a loader, from the end of the first step on."""

    workers: int | None = None
    """None for a loader that is no DataLoader."""
    steps: int = 0
    images: int = 0
    """0 where batches do not tell."""
    first_s: float | None = None
    """From creating the first iterator to the end of the first step, in which libraries compile."""
    wait_s: float = 0.0
    starts_s: float = 0.0
    """The part of `wait_s` from the start of a later epoch to its first batch."""
    transfer_s: float | None = None
    """In Tensor.to and Tensor.cuda, to a GPU; None without CUDA and MPS."""
    rest_s: float = 0.0

    @property
    def loop_s(self) -> float:
        """Everything that was measured."""
        return self.wait_s + (self.transfer_s or 0.0) + self.rest_s

    @property
    def images_per_s(self) -> float | None:
        """None where batches do not tell how many images they have."""
        return self.images / self.loop_s if self.images and self.loop_s else None

    @property
    def shares(self) -> dict[str, float]:
        """Name -> part of the time; no transfer where none can be seen."""
        # A copy that blocks the host first waits for what the GPU has to do.
        transfer = "transfer and waiting for the GPU"
        names = {"waiting for data": self.wait_s, transfer: self.transfer_s, "rest": self.rest_s}
        return {name: s / (self.loop_s or 1.0) for name, s in names.items() if s is not None}

    def line(self) -> str:
        """Return steps, rate and shares in a line."""
        shares = [f"{name} {units.percent(share)}" for name, share in self.shares.items()]
        return ", ".join([units.count(self.steps, "step"), units.rate(self.images_per_s), *shares])


class _Epoch:
    """One pass over a loader."""

    __slots__ = ("images", "iterator", "loop", "size", "waited_s", "workers")

    def __init__(self, iterator: object, loop: Loop, size: int | None) -> None:
        try:
            self.iterator: Callable = weakref.ref(
                iterator
            )  # one that a `break` left is gone at once
        except TypeError:
            self.iterator = bool
        self.loop, self.size, self.waited_s = loop, size, loop.wait_s
        self.images: int | None = None  # of the batch in the step that goes on
        self.workers = [worker.pid for worker in getattr(iterator, "_workers", ())]


class Watch:
    """Measures all loops of this process.

    Args:
        say: takes what is printed meanwhile.
        clock: a fake one in tests.
        warn: takes what is printed of a loader that may hang; unset: `say`.
    """

    def __init__(
        self,
        say: Callable[[object], None],
        clock: Clock | None = None,
        warn: Callable[[object], None] | None = None,
    ) -> None:
        self._say, self._now, self._pid = say, (clock or SystemClock()).now, os.getpid()
        self._warn = warn or say
        self._loops: dict[str, Loop] = {}
        self._epochs: list[_Epoch] = []  # those that go on; time counts for the last one
        self._since_s = self._now()
        self._due_s, self._period_s = math.inf, PERIOD_S
        self._spent = self._counted = [0.0] * 6  # as `_count_cpu` says
        self._gpu: list[int] = []  # percents, as NVML tells them
        self._beside, self._thread, self._ahead = ExitStack(), 0, False
        self._look: Sampler | None = None  # whether the loader hangs
        self._is_drawing, self._told_s = False, -math.inf

    # --- what was measured

    @property
    def loops(self) -> dict[str, Loop]:
        """Data set, its length, batch size and workers -> the loops over it, if long enough."""
        return {name: loop for name, loop in self._loops.items() if loop.steps}

    @property
    def total(self) -> Loop:
        """The sum of all loops."""
        total = Loop()
        for name in vars(total):
            values = [value for x in self.loops.values() if (value := getattr(x, name)) is not None]
            setattr(total, name, sum(values) if values else getattr(total, name))
        return total

    @property
    def busy(self) -> dict[str, float]:
        """Cores that this process, all workers and a worker used; busy shares of cores and GPU."""
        wall_s, main_s, workers_s, busy_s, all_s, of_workers_s = self._spent
        found = {"process": main_s / wall_s, "workers": workers_s / wall_s} if wall_s else {}
        found |= {"cores": busy_s / all_s} if all_s else {}
        found |= {"worker": workers_s / of_workers_s} if of_workers_s else {}
        return found | ({"gpu": sum(self._gpu) / len(self._gpu) / 100} if self._gpu else {})

    @property
    def verdict(self) -> str:
        """What holds the training back."""
        total, gpu = self.total, self.busy.get("gpu")
        if not total.steps:
            return TOO_SHORT if self._loops else NOTHING_SEEN
        if self._ahead:
            return AHEAD
        wait = total.shares["waiting for data"]
        said = units.percent(wait)
        several = int(os.environ.get("WORLD_SIZE") or 1) > 1
        if wait >= WORTH:
            held = "; the rest may include waiting for other ranks" if several else ""
            if not several and not self._cores_are_busy:  # else loading makes the rest longer
                faster = f"at most {1 / max(1 - wait, 1e-3):.3g} times as fast"
                held = f": with a loader that takes no time it would be {faster}"
            return f"The training waits for data {said} of its time{held}{self._why(total)}."
        if gpu is not None and gpu < BUSY:
            held = f"but the GPU is busy {units.percent(gpu)} of it: the host holds it up"
            return f"Data come in time, waiting takes {said} of it, {held}."
        limit = "the step or another rank" if several else "the step"
        return f"Data come in time, waiting takes {said} of it: {limit} is the limit, not loading."

    @property
    def _cores_are_busy(self) -> bool:
        """Whether workers compete for cores, with each other, the training or other processes."""
        busy = self.busy
        if not KNOWN_OF_WORKERS <= busy.keys():
            return False
        if busy["process"] + busy["workers"] > BUSY * hardware.cores():
            return True
        # Other ranks keep cores busy, too; a container may use only some of the machine's.
        return busy["cores"] > BUSY and not self._workers_wait

    @property
    def _workers_wait(self) -> bool:
        # They work at least while the training waits; at other times their queue may be full.
        return self.busy["worker"] < IDLE * self.total.shares["waiting for data"]

    def _why(self, total: Loop) -> str:
        """Return why data come late, as far as it shows."""
        busy = self.busy
        if total.workers == 0:
            return "; the training process loads the data itself (num_workers=0)"
        if not KNOWN_OF_WORKERS <= busy.keys():
            return ""
        if total.starts_s > total.wait_s / 2:
            return "; most of the waiting is at the start of epochs"
        if self._cores_are_busy:
            return (
                f"; all {hardware.cores()} cores are busy: more workers would not help, and "
                "the present ones may slow down the rest"
            )
        each = f"; a worker uses {units.percent(busy['worker'])} of a core"
        if self._workers_wait:
            return f"{each}: workers wait, too, for a disk, the network, a lock or a core"
        if busy["worker"] > BUSY:
            return f"{each}, and cores are idle, so more workers may help"
        return ""

    def line(self) -> str:
        """Return steps, rate, shares and the GPU's utilization in a line."""
        gpu = [f"GPU busy {units.percent(self.busy['gpu'])} (NVML)"] if "gpu" in self.busy else []
        return ", ".join([self.total.line(), *gpu])

    def __str__(self) -> str:
        """Return everything in lines, the verdict last."""
        total, busy = self.total, self.busy
        lines = [f"{name}: {loop.line()}" for name, loop in self.loops.items()]
        if total.steps:
            lines += [f"all loops: {self.line()}"] if len(lines) > 1 or "gpu" in busy else []
            used = [f"{name} {busy[name]:.2f}" for name in ("process", "workers") if busy.get(name)]
            said = [f"cores in use, of {hardware.cores()}: {', '.join(used)}"]
            said += _known("waiting at epoch starts", total.starts_s)
            said += _known("first steps (excluded)", total.first_s)
            lines.append("; ".join(said))
        return "\n".join([*lines, self.verdict])

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        return {
            "loops": {name: asdict(loop) for name, loop in self.loops.items()},
            "total": asdict(self.total),
            "images_per_s": self.total.images_per_s,
            "busy": self.busy,
            "verdict": self.verdict,
        }

    # --- what happens

    def start(self, make: Callable[[Any], Any], loader: object) -> tuple[Any, _Epoch | None]:
        """Return `make(loader)`, an iterator, and its epoch; None in a worker, which was forked."""
        if os.getpid() != self._pid:
            return make(loader), None
        if self._epochs and self._epochs[-1].iterator() is None:
            self._since_s = self._now()  # since its `break`, nothing of this loop
        self._charge("rest_s")
        if self._look is None:
            self._look = self._beside.enter_context(Sampler(self._tell_of_hanging, LOOK_S))
        self._is_drawing = True
        try:
            iterator = make(loader)
        finally:
            self._is_drawing = False
        self._count_cpu()
        name, size, workers = _describe(iterator, loader)
        loop = self._loops.setdefault(name, Loop(workers=workers))
        epoch = _Epoch(iterator, loop, size)
        gone = (None, iterator)  # persistent workers have one iterator for all epochs
        self._epochs = [each for each in self._epochs if each.iterator() not in gone]
        self._epochs.append(epoch)
        self._ahead |= threading.current_thread() is not threading.main_thread()
        self._open_device()
        self._count_cpu(keep=False)
        self._charge("wait_s")
        return iterator, epoch

    def next(self, epoch: _Epoch, draw: Callable[[Any], Any], iterator: Any) -> Any:
        """Return `draw(iterator)`, a batch; it ends the step before."""
        self._charge("rest_s")
        if self._epochs[-1:] != [epoch]:  # another loop ran inside this one's step
            self._epochs = [*(each for each in self._epochs if each is not epoch), epoch]
        if epoch.images is not None:
            self._end_step(epoch)
        self._thread, self._is_drawing = 0, True
        try:
            batch = draw(iterator)
        except BaseException as error:
            self._is_drawing = False
            if isinstance(error, StopIteration):
                self._charge("wait_s")
            self._since_s = self._now()  # no step waited for what never came
            self.end(epoch)
            raise
        self._is_drawing = False
        self._charge("wait_s")
        if epoch.images is None:
            epoch.loop.starts_s += epoch.loop.wait_s - epoch.waited_s
        epoch.images = count_samples(batch, epoch.size)
        self._thread = threading.get_ident()
        return batch

    def end(self, epoch: _Epoch) -> None:
        """End an epoch, whose last step does not count if the loop was left in it."""
        self._count_cpu()
        self._epochs = [each for each in self._epochs if each is not epoch]
        self._count_cpu(keep=False)

    def close(self) -> None:
        """End what runs beside the training, and report."""
        self._count_cpu()
        self._beside.close()
        self._look = None
        self._say(self)

    def _tell_of_hanging(self) -> None:
        if not self._is_drawing:  # first, as `_since_s` is set before
            return
        since_s = self._since_s
        waited_s = self._now() - since_s
        if waited_s >= PERIOD_S and since_s != self._told_s:
            self._told_s = since_s  # once for each batch
            self._warn(
                f"The training has waited {units.seconds(waited_s)} for its next batch: the loader "
                "may hang. Interrupt it (Ctrl-C) to end it and see what was measured."
            )

    def _charge(self, phase: str) -> None:
        now_s = self._now()
        if self._epochs:
            loop = self._epochs[-1].loop
            setattr(loop, phase, getattr(loop, phase) + now_s - self._since_s)
        self._since_s = now_s

    def _end_step(self, epoch: _Epoch) -> None:
        loop = epoch.loop
        if loop.first_s is None:
            loop.first_s = loop.loop_s
            loop.wait_s = loop.starts_s = loop.rest_s = 0.0
            loop.transfer_s = loop.transfer_s and 0.0
            self._due_s = min(self._due_s, self._now() + PERIOD_S)
            self._open_device()  # the first step may have been the first to use CUDA
            self._count_cpu(keep=False)
        else:
            loop.steps += 1
            loop.images += epoch.images
            if loop.steps != FIRST_STEPS and self._since_s < self._due_s:
                return
            self._count_cpu()
            self._say(self)
            self._due_s = self._now() + self._period_s
            self._period_s *= 2
        self._since_s = self._now()  # counting and reporting are not the training's

    def _count_cpu(self, *, keep: bool = True) -> None:
        """Count wall seconds, CPU seconds of process, workers and cores, and workers' wall seconds.

        Args:
            keep: False drops those since the last call.
        """
        import psutil

        times, workers = os.times(), [pid for epoch in self._epochs for pid in epoch.workers]
        workers_s = times.children_user + times.children_system  # of those that ended
        for pid in workers:
            with suppress(psutil.Error):
                workers_s += sum(psutil.Process(pid).cpu_times()[:2])
        counted = [self._now(), time.process_time(), workers_s, *map(sum, zip(*cores_s().values()))]
        before, self._counted = self._counted, counted
        if keep and self._epochs:
            spent = [max(0.0, b - a) for a, b in zip(before, self._counted)]
            spent.append(spent[0] * len(workers))
            self._spent = [a + b for a, b in zip(self._spent, spent)]

    def _open_device(self) -> None:
        torch = sys.modules.get("torch")
        # Another watch may have opened it.
        if not torch or "to" in vars(torch.Tensor):
            return
        if not torch.cuda.is_initialized() and not is_mps_in_use():
            return
        for name in ("to", "cuda"):
            setattr(torch.Tensor, name, self._timed(getattr(torch.Tensor, name)))
            self._beside.callback(delattr, torch.Tensor, name)
        with suppress(Skip):
            self._beside.enter_context(Sampler(partial(self._read, open_gpu()), NVML_PERIOD_S))

    def _read(self, gpu: Callable[[], Reading]) -> None:
        busy = gpu()["busy_percent"] if self._epochs else None
        if busy is not None:
            self._gpu.append(busy)

    def _timed(self, move: Callable) -> Callable:
        @wraps(move)
        def moved(tensor: Any, *args: object, **options: object) -> object:
            began_s = self._now()
            result = move(tensor, *args, **options)
            # In a step, and not in a thread beside it.
            is_copy = result.device.type != "cpu" and tensor.device.type == "cpu"
            if self._thread == threading.get_ident() and is_copy:
                took_s, loop = self._now() - began_s, self._epochs[-1].loop
                loop.transfer_s = (loop.transfer_s or 0.0) + took_s
                self._since_s += took_s  # it is no part of the rest
            return result

        return moved


def _known(what: str, s: float | None) -> list[str]:
    return [f"{what}: {units.seconds(s)}"] if s else []


def _describe(iterator: Any, loader: object) -> tuple[str, int | None, int | None]:
    """Return a loader's name, its batch size and its workers; None for what is not known."""
    workers = getattr(iterator, "_num_workers", None)
    if workers is None:
        return type(loader).__name__, None, None
    size = getattr(iterator._index_sampler, "batch_size", None)
    said = [type(iterator._dataset).__name__]
    with suppress(Exception):  # the user's own __len__ may raise anything
        said.append(units.count(len(iterator._dataset), "sample"))
    said += [f"batches of {size}"] if size else []
    return ", ".join([*said, units.count(workers, "worker")]), size, workers


# --- one loader -------------------------------------------------------------------------------


def watch(loader: Iterable, *, show: bool = True) -> WatchedLoader:
    """Watch a training from its loader: `for batch in lab.watch(loader): …`.

    Prints after 50 steps or 30 seconds, then at growing intervals, and at the end of every epoch.
    The batches are the loader's own, in its order, and no random number is drawn.

    Args:
        loader: any iterable of batches, such as a DataLoader.
        show: False prints nothing.

    Returns:
        An iterable of the same batches; its length and other attributes are the loader's, and
        `watch` holds what was measured.

    Raises:
        ValueError: the loader is not an iterable.
    """
    check_loader(loader)
    return WatchedLoader(loader, Watch(_say if show else lambda _: None))


class WatchedLoader:
    """A loader whose loop is watched, in every epoch.

    Args:
        loader: any iterable of batches.
        watch: of this loader alone.
    """

    # Setting any other attribute fails, instead of never reaching the loader.
    __slots__ = ("_loader", "watch")

    def __init__(self, loader: Any, watch: Watch) -> None:
        self._loader, self.watch = loader, watch

    def __iter__(self) -> Iterator:
        watch = self.watch
        iterator, epoch = watch.start(iter, self._loader)
        if epoch is None:  # in a child of the process that watches
            yield from iterator
            return
        try:
            while True:
                # No name is kept for the batch here: the loop decides how long it lives.
                yield watch.next(epoch, next, iterator)
        except StopIteration:
            return
        finally:
            watch.end(epoch)
            watch.close()

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return bool(self._loader)  # an iterator has no length, and is true

    def __getattr__(self, name: str) -> object:
        return getattr(object.__getattribute__(self, "_loader"), name)


def _say(what: object, who: str = "labkit") -> None:
    text = "\n".join(f"[{who}] {line}" for line in str(what).splitlines())
    with suppress(OSError, ValueError, AttributeError):  # a script may close or replace its stderr
        if "tqdm" in sys.modules:  # a bar that the training shows is drawn again below
            sys.modules["tqdm"].tqdm.write(text, file=progress_stream())
        else:
            print(text, file=progress_stream(), flush=True)


# --- a script ---------------------------------------------------------------------------------


def run_script(script: Path, arguments: Sequence[str], save: Callable[[Watch], None]) -> None:
    """Run a script as Python does, and report on all DataLoaders of torch that it iterates over.

    Of several processes that torchrun started, the first reports; the others print a line at
    the end.  Whatever the script raises is raised, and its traceback printed without this module.

    Args:
        script: its file.
        arguments: the script's own.
        save: takes what was measured at the end, however the script ended.
    """
    rank = os.environ.get("RANK")
    say = partial(_say, who="labkit" if rank is None else f"labkit, rank {rank}")
    is_first, started_in = rank in (None, "0"), os.getpid()
    # Where the script lies, as it may import its neighbours.
    place = f"cd {shlex.quote(str(script.parent))} && " if script.parent.name else ""
    make = f"{shlex.quote(f'{script.stem}:make')}, where make() returns (loader, step)"
    following = f"Next: {place}labkit diagnose {make}."
    report = (lambda what: say(f"{what}\n{following}")) if is_first else lambda _: None
    watch = Watch(report, warn=say)
    main, code = ModuleType("__main__"), script.read_bytes()
    main.__file__ = str(script.absolute())
    sys.modules["__main__"] = main  # to the end: workers and pickles look for its names
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.resolve().parent)
    # Python ≥ 3.12 warns where a process with threads forks.  This module's threads hold no lock
    # that a child needs, so a script that forks prints what it prints without them.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", module="__main__")
    try:
        with _loaders_seen(watch):
            # Without this module's own `from __future__ import annotations`.
            exec(compile(code, main.__file__, "exec", dont_inherit=True), vars(main))
    except SystemExit:
        raise
    except BaseException as error:
        say(f"The script ended with {type(error).__name__}; this was measured until then.")
        _show_as_without(error)
        raise
    finally:
        if os.getpid() == started_in:  # not a child that the script forked
            watch.close()
            if not is_first:
                say(watch.line())
            save(watch)


@contextmanager
def _loaders_seen(watch: Watch) -> Iterator[None]:
    """Have all DataLoaders of torch watched, whenever torch is imported."""
    with ExitStack() as undo:

        def patch(module: ModuleType) -> None:
            def start(loader: object) -> object:
                iterator, epoch = watch.start(make, loader)
                with suppress(AttributeError):  # of a class of its own, with slots
                    iterator._labkit = epoch
                return iterator

            def step(iterator: Any) -> object:
                if "_labkit" not in vars(iterator):  # made without iter(loader), as fastai does
                    iterator._labkit = watch.start(lambda made: made, iterator)[1]
                epoch = iterator._labkit
                return draw(iterator) if epoch is None else watch.next(epoch, draw, iterator)

            loader, iterator = module.DataLoader, module._BaseDataLoaderIter
            make, draw = loader.__iter__, iterator.__next__
            for kind, name, own in ((loader, "__iter__", start), (iterator, "__next__", step)):
                undo.callback(setattr, kind, name, getattr(kind, name))
                setattr(kind, name, wraps(getattr(kind, name))(own))

        if DATALOADER in sys.modules:
            patch(sys.modules[DATALOADER])
        else:
            finder = _Finder(patch)
            sys.meta_path.insert(0, finder)
            undo.callback(finder.remove)
        yield


class _Finder:
    """Changes torch's module of loaders when a script imports it.

    Importing torch before the script would be too early: variables that torch reads then, such
    as OMP_NUM_THREADS, are set by scripts.
    """

    def __init__(self, patch: Callable[[ModuleType], None]) -> None:
        self._patch = patch

    def remove(self) -> None:
        """Stop looking, if it still does."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, whose loader then changes the module."""
        if name != DATALOADER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._patch(module)

        loader.exec_module = exec_module
        return spec


def _show_as_without(error: BaseException) -> None:
    """Have a traceback printed without the frames of this module and of what called it."""
    frames, each = [], error.__traceback__
    while each is not None:
        if each.tb_frame.f_code.co_filename != __file__:
            frames.append(each)
        each = each.tb_next
    for each, following in zip(frames, [*frames[1:], None]):
        each.tb_next = following
    first, show = (frames or [None])[0], sys.excepthook
    sys.excepthook = lambda kind, value, _: show(kind, value.with_traceback(first), first)
