"""The user's own loader: checked, copied with other arguments, its state kept.

The user's loader is never changed.  A copy shares its data set, its sampler and their random
generators; `random_state_kept` restores their states after iterating over one.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import random
import reprlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.context import BaseContext
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from labkit.diagnosis.batches import move_batch
from labkit.diagnosis.facts import DEFAULT_PREFETCH_FACTOR
from labkit.diagnosis.loader_arguments import NEED_WORKERS
from labkit.diagnosis.thresholds import DRAWING_S, FIRST_TO_STALL_RATIO, STALL_S

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

NO_DATALOADER = "not a torch DataLoader: only what it does in this thread was seen"


def check_loader(loader: Iterable) -> None:
    """Check that a loader can be iterated over, without starting it.

    Raises:
        ValueError: it is not an iterable.
    """
    # Of the type: a module's __getattr__ answers to any name.
    if not any(hasattr(type(loader), name) for name in ("__iter__", "__getitem__")):
        raise ValueError(
            f"loader must be an iterable of batches, got {brief(loader)}; "
            "give what your training loop iterates over"
        )


def brief(value: object) -> str:
    """Return any value as text for a message: short, in one line."""
    return " ".join(reprlib.repr(value).split())


def is_data_loader(loader: object) -> TypeGuard[DataLoader]:
    """Return whether a loader is torch's DataLoader or a subclass of it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(loader, torch.utils.data.DataLoader)


def count_batches(loader: Iterable) -> int | None:
    """Return the batches of an epoch; None where the loader does not know."""
    # A DataLoader that was asked warns later if its data set told it too few: a copy is asked.
    try:
        asked: Any = copy.copy(loader) if is_data_loader(loader) else loader
        return len(asked)
    except Exception:  # the user's own __len__ may raise anything
        return None


def epochs(begin: Callable[[], Iterator]) -> Generator:
    """Yield batches epoch after epoch, until an epoch is empty.

    Args:
        begin: begins an epoch.
    """
    delivered = True
    while delivered:
        delivered = False
        for batch in begin():
            delivered = True
            yield batch


def loaded_ahead(batches: Iterable, most: int) -> Iterator:
    """Yield batches that a thread takes from a loader ahead, as prefetch_generator does.

    Args:
        batches: iterated over in the thread, which ends with this iterator.
        most: batches that are held ready, beside the one that the thread has in its hands.
    """
    # No `queue.Queue`, whose batches the hook follows.
    ready: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    room, is_left = threading.Semaphore(most), threading.Event()

    def load() -> None:
        try:
            for batch in batches:
                room.acquire()
                if is_left.is_set():
                    return
                ready.put((batch, None))
            ready.put((None, StopIteration()))
        except BaseException as error:  # the user's own code may raise anything
            ready.put((None, error))

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            room.release()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield batch
    finally:
        is_left.set()
        room.release()
        # What it still loads would be measured beside the next arm.
        thread.join(5.0)  # seconds, at most


def spread_over_epoch(loader: DataLoader) -> dict[str, Any]:
    """Return the argument with which a copy's first batches stand for the whole epoch.

    A diagnosis reads a part of an epoch.  Where the data are in an order, as by length, its
    beginning is unlike the rest, so batches are taken from all of it at even steps.

    Returns:
        batch_sampler of the copy; nothing where the order is random, unknown, or takes too long to
        draw.
    """
    from torch.utils.data import IterableDataset, SequentialSampler
    from torch.utils.data.sampler import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

    own = loader.batch_sampler
    if own is None or isinstance(loader.dataset, IterableDataset):
        return {}
    sampler = getattr(own, "sampler", None)
    random_ones = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    if isinstance(sampler, random_ones) or getattr(sampler, "shuffle", False) is True:
        return {}
    try:
        length = len(own)  # type: ignore[arg-type]
        is_long = length > 100_000 and not isinstance(sampler, SequentialSampler)
        lists = [] if is_long else _drawn(own, length + 1)
    except Exception:  # the user's own code may raise anything
        return {}
    # One that goes on after its length is repeated without end, as ultralytics' is.
    return {"batch_sampler": SpreadBatches(own, lists)} if len(lists) == length else {}


def _drawn(own: Iterable, most: int) -> list[Any]:
    """Return the first lists of a batch sampler; none where that takes too long."""
    lists: list[Any] = []
    ends_s = time.monotonic() + DRAWING_S
    for each in islice(own, most):
        lists.append(each)
        if time.monotonic() > ends_s:
            return []
    return lists


class SpreadBatches:
    """A batch sampler's lists, from the whole epoch at even steps.

    Each takes as long as its sampler takes to draw one.

    Args:
        own: the batch sampler, whose other attributes this one has.
        lists: of an epoch.
    """

    def __init__(self, own: Any, lists: list[Any]) -> None:
        self._own, self._lists = own, lists

    def __iter__(self) -> Iterator[Any]:
        # Multiples of the golden ratio are spread evenly, however many there are.
        count = len(self._lists)
        step = max(round(count * (math.sqrt(5) - 1) / 2), 1)
        while math.gcd(step, count) > 1:
            step += 1
        drawing = iter(self._own)
        for number in range(count):
            next(drawing, None)  # for the time that it takes: the lists are known
            # From there on the mean of few is near that of all.
            yield self._lists[(step // 2 + number * step) % count]

    def __len__(self) -> int:
        return len(self._lists)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["_own"], name)


OPEN_ITERATORS: weakref.WeakSet = weakref.WeakSet()
"""Iterators of copies, whose workers may load ahead."""


@contextmanager
def copied(
    loader: DataLoader, *, start: Callable[[int], None] | None = None, **changes: object
) -> Iterator[DataLoader]:
    """Open a copy of a DataLoader with other arguments; its workers end with the context.

    Args:
        loader: stays as it is, with the workers that it may have.
        start: called in every worker with its number, before the user's `worker_init_fn`;
            picklable where workers are spawned.
        **changes: attributes of the copy, also those that DataLoader guards: num_workers, dataset.
    """
    import torch

    twin = copy.copy(loader)
    # What accelerate makes of a DataLoader only passes for one.
    kind = type(loader) if hasattr(type(loader), "_get_iterator") else torch.utils.data.DataLoader
    # Weak, so that an iterator that is dropped ends its workers at once.  One that a traceback
    # still holds is ended here.
    iterators: weakref.WeakSet = weakref.WeakSet()

    def get_iterator() -> Iterator:
        iterator = kind._get_iterator(twin)
        iterators.add(iterator)
        OPEN_ITERATORS.add(iterator)
        if hasattr(iterator, "_try_get_data"):
            iterator._try_get_data = partial(_try_often, weakref.ref(iterator))
        return iterator

    values = {"_iterator": None, "_get_iterator": get_iterator, "_iterators": iterators, **changes}
    values["_copy_of"] = getattr(loader, "_copy_of", loader)
    values["_changes"] = getattr(loader, "_changes", {}) | changes
    functions = (start, values.get("worker_init_fn", loader.worker_init_fn))
    values["worker_init_fn"] = partial(_start, functions)
    if not values.get("num_workers", loader.num_workers):  # torch refuses them then
        values |= {"timeout": 0, "prefetch_factor": None, "persistent_workers": False}
    else:
        values["timeout"] = loader.timeout or FIRST_TO_STALL_RATIO * STALL_S
        values.setdefault("prefetch_factor", loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR)
    if "num_workers" in changes:  # a warning of torch's would be about a number the lab chose
        values["check_worker_number_rationality"] = lambda: None
    own = vars(loader)
    with ExitStack() as inner:
        if "base_dataloader" in own:  # accelerate's, which is iterated over
            base = copied(own["base_dataloader"], start=start, **changes)
            values["base_dataloader"] = inner.enter_context(base)
        for name, value in values.items():
            object.__setattr__(twin, name, value)  # torch forbids changes after construction
        try:
            if hasattr(own.get("iterator"), "_index_sampler"):  # timm's, one for all epochs
                object.__setattr__(twin, "iterator", get_iterator())
            yield twin
        finally:
            end_workers(twin)
            vars(twin).update(_iterator=None, iterator=None)


def pinning_threads(loader: object) -> list[threading.Thread]:
    """Return the threads that copy batches of a copy made by `copied` into pinned memory."""
    threads = (
        getattr(iterator, "_pin_memory_thread", None)
        for iterator in list(getattr(loader, "_iterators", ()))
    )
    return [thread for thread in threads if thread is not None and thread.is_alive()]


def have_filled_queues() -> bool:
    """Return whether the workers of all copies have nothing left to load ahead."""
    return all(map(_has_filled_queue, list(OPEN_ITERATORS)))


def _has_filled_queue(iterator: Any) -> bool:
    queues = [getattr(iterator, name, None) for name in ("_worker_result_queue", "_data_queue")]
    if not any(worker.is_alive() for worker in getattr(iterator, "_workers", ())):
        return True
    try:
        # Without a thread that pins, both are the same queue.
        loaded = sum(queue.qsize() for queue in {id(q): q for q in queues if q}.values())
    except NotImplementedError:  # macOS does not count
        return True
    # Batches that came out of order have their data beside the worker's number.
    loaded += sum(len(known) > 1 for known in iterator._task_info.values())
    return loaded >= iterator._tasks_outstanding


def _try_often(iterator: weakref.ref, seconds: float) -> tuple[bool, object]:
    """Wait for a batch as torch does, which looks for dead workers only when a wait ends."""
    tried_s, result = 0.0, (False, None)
    while tried_s < seconds and not result[0]:
        wait_s = min(seconds - tried_s, 4.0)  # then torch looks for dead workers
        result = type(iterator())._try_get_data(iterator(), wait_s)
        tried_s += wait_s
    return result


def end_workers(loader: object) -> None:
    """End the workers of all iterators of a copy made by `copied`."""
    for iterator in list(getattr(loader, "_iterators", ())):
        if hasattr(iterator, "_shutdown_workers"):
            # Torch raises in whatever runs when it learns that a worker died: here at the latest.
            with suppress(RuntimeError):
                iterator._shutdown_workers()


def _start(functions: tuple[Any, ...], number: int) -> None:
    # A copy is often broken off.  A spawned worker that then ends while a thread of it computes, or
    # sends a batch, aborts (torch cannot be unwound).  With this it ends as a forked worker does,
    # after all other finalizers; those of multiprocessing's queues have -5.
    Finalize(None, end_process, exitpriority=-1000)
    for function in functions:
        if function is not None:
            function(number)


def end_process(status: int = 0) -> NoReturn:
    """End this process at once, whatever its threads and finalizers would do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass
class OneThread:
    """A `worker_init_fn` that limits a worker to one thread, after the user's own one."""

    own: Callable[[int], None] | None
    has_opencv: bool
    """Whether the user's code imports it."""

    def __call__(self, number: int) -> None:
        """Limit the threads of torch and OpenCV."""
        import torch

        if self.own is not None:
            self.own(number)
        torch.set_num_threads(1)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(0)

    def __str__(self) -> str:
        """Return the same as code."""
        calls = [] if self.own is None else [f"{_written('worker_init_fn', self.own)}(i)"]
        calls += ["torch.set_num_threads(1)"]
        calls += ["cv2.setNumThreads(0)"] if self.has_opencv else []
        return f"lambda i: ({', '.join(calls)})"


def arguments_of(loader: DataLoader) -> dict[str, Any]:
    """Return the arguments with which a DataLoader was made, without torch's defaults."""
    import torch
    from torch.utils.data import DataLoader, default_collate

    loader = getattr(loader, "_copy_of", loader)
    own = getattr(loader.batch_sampler, "sampler", loader.sampler)
    arguments: dict[str, Any] = {"batch_size": loader.batch_size}
    if loader.batch_size is None and loader.batch_sampler is not None:
        arguments = {"batch_sampler": loader.batch_sampler}
    elif isinstance(own, torch.utils.data.RandomSampler):
        arguments["shuffle"] = True
    elif not isinstance(own, torch.utils.data.SequentialSampler) and "Infinite" not in repr(own):
        arguments["sampler"] = own
    for_samples = {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler"}
    for name, parameter in inspect.signature(DataLoader).parameters.items():
        value = getattr(loader, name, parameter.default)
        if name not in for_samples and value not in (parameter.default, default_collate):
            arguments[name] = value
    if arguments.get("prefetch_factor") == DEFAULT_PREFETCH_FACTOR:
        del arguments["prefetch_factor"]
    return arguments


def line_of(arguments: Mapping[str, Any]) -> str:
    """Return the line that makes a DataLoader; values that have no literal stand by their names."""
    if not arguments.get("num_workers"):  # torch refuses what is for workers then
        for_workers = {"num_workers", "worker_init_fn", *NEED_WORKERS}
        arguments = {name: value for name, value in arguments.items() if name not in for_workers}
    return f"DataLoader(dataset, {written(arguments)})"


def written(arguments: Mapping[str, Any]) -> str:
    """Return arguments as code: "num_workers=8, pin_memory=True"."""
    return ", ".join(f"{name}={_written(name, value)}" for name, value in arguments.items())


def _written(argument: str, value: object) -> str:
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    if isinstance(value, OneThread):
        return str(value)
    if isinstance(value, BaseContext):
        return repr(value.get_start_method())
    name = getattr(value, "__name__", argument)
    return name if name.isidentifier() else argument


@contextmanager
def training_state_kept(model: torch.nn.Module | None, optimizer: Any) -> Iterator[None]:
    """Restore the state of a model and of an optimizer at the end, from copies on the host."""
    stateful: list[Any] = [each for each in (model, optimizer) if each is not None]
    kept = [copy.deepcopy(move_batch(each.state_dict(), "cpu")) for each in stateful]
    modules = list(model.modules()) if model is not None else []
    modes = [module.training for module in modules]
    # Also those that are in no state_dict; a step may put others in their place.
    buffers = [
        (module._buffers, name, buffer, buffer.clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    parameters = list(model.parameters()) if model is not None else []
    gradients = [p.grad if p.grad is None else p.grad.to("cpu", copy=True) for p in parameters]
    try:
        yield
    finally:
        for each, state in zip(stateful, kept):
            each.load_state_dict(state)
        for module_buffers, name, buffer, before in buffers:
            module_buffers[name] = buffer.copy_(before)
        for module, training in zip(modules, modes):
            module.training = training
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)


@contextmanager
def random_state_kept(loader: object) -> Iterator[None]:
    """Restore the random states of Python, NumPy, torch, the loader and its sampler at the end."""
    import numpy
    import torch

    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
    own = [getattr(each, "generator", None) for each in (loader, sampler)]
    kept = [(each, each.get_state()) for each in own if isinstance(each, torch.Generator)]
    python, arrays = random.getstate(), numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
        for generator, state in kept:
            generator.set_state(state)
