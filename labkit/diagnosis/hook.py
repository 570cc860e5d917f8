"""Where labkit steps into a training: `next` of its loaders, and its optimizer's steps.

    DataLoader.__iter__, next ──┐
    Queue.put ─▶ Queue.get ─────┼─▶ Event(kind, thread, began_s, ended_s, …) ─▶ `loops`
    optimizer.step, backward ───┘

A batch that a thread took from a loader and put into a queue, or returned from a thread pool, is
followed to the thread that gets it: prefetch_generator and its like hand batches over this way.
Nothing here changes a batch, draws a random number or waits.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.thread import _threads_queues
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from importlib.machinery import ModuleSpec, PathFinder
from threading import get_ident
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from labkit.diagnosis.batches import count_samples
from labkit.diagnosis.loader_arguments import LoaderArguments, speed_arguments_of
from labkit.diagnosis.loops import Event, Kind, Loader
from labkit.diagnosis.thresholds import LAST_BATCH_S, LOOKED_AT_STACKS


class Handed(NamedTuple):
    """What a thread hands over: the last batch that it took from a loader, or the loader's end."""

    loader: int
    samples: int
    is_end: bool
    batch: object = None
    """The batch itself, where the training is diagnosed."""
    thread: int = 0
    """That took it; known where the batch is."""


class Hook:
    """Sends the events of this process to all that listen.

    Args:
        now: seconds of a clock.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.listeners: list[deque[Event]] = []
        self.at_first: Callable[[], object] | None = None
        """Called once, at the next backward pass or optimizer step."""
        self.loaders: list[Loader] = []
        self.is_reported = False
        """Something prints what is seen of all loaders."""
        self._supply: Any = None
        """A `LiveDiagnosis` that chooses the batches."""
        self.loader_arguments: LoaderArguments | None = None
        """Those that loaders get which the script makes from now on."""
        self._changes: ExitStack | None = None
        self.fetching: dict[int, float] = {}
        """Thread -> since when it waits for a batch."""
        self.trainer: int | None = None
        """The thread of the last optimizer step or backward pass."""
        self._numbers: dict[int, tuple[Callable, int]] = {}  # id(loader) -> itself, weakly; number
        self._iterators: dict[int, weakref.ref] = {}  # loader -> its iterator
        self._drawers: dict[int, int] = {}  # loader -> thread
        self._drew: set[threading.Thread] = set()  # have asked a loader while there is a supply
        self._handed: dict[int, Handed] = {}
        # Thread -> queue that had nothing for it, since when it asks, and when it asked last.
        self._empty: dict[int, tuple[int, float, float]] = {}
        self._takers: set[tuple[int, type]] = set()  # thread, how it gets batches of another one
        self._calls: dict[tuple[int, bool], set[CodeType]] = {}  # thread, at a batch -> functions
        self._stacks: Counter[tuple[int, bool]] = Counter()

    @contextmanager
    def listen(self) -> Iterator[deque[Event]]:
        """Have all events from now on put into a deque, and this process changed for it."""
        if self._changes is None:
            self._changes = _install(self)
        events: deque[Event] = deque()
        self.listeners.append(events)
        try:
            yield events
        finally:
            self.listeners = [each for each in self.listeners if each is not events]
            if not self.listeners and self._changes is not None:
                self._changes.close()
                self._changes = None

    @contextmanager
    def supplied_by(self, supply: Any) -> Iterator[None]:
        """Have a `LiveDiagnosis` choose the batches that loops get, and the length of loaders."""
        outer = self._supply, self._drew
        self._supply, self._drew = supply, set()
        try:
            with self.listen() as supply.events:
                yield
        finally:
            self._supply, self._drew = outer

    def wait_for_training(self, start: Callable[[], object]) -> None:
        """Have a function called at the first backward pass or optimizer step of this process."""
        if self._changes is None:
            self._changes = _install(self)
        self.at_first = start

    def reset(self) -> None:
        """Forget what the process did that forked this one, and who listens there."""
        if self._supply is not None:  # the fork may have come in a profile of the step
            sys.setprofile(None)
        self.listeners = []
        self._supply = None
        states = self.fetching, self._handed, self._takers, self._drawers, self._calls, self._stacks
        for state in (*states, self._drew):
            state.clear()
        self.trainer = None

    def _emit(self, *values: Any) -> None:
        event = Event(*values)
        for listener in self.listeners:
            listener.append(event)

    def _emit_now(self, kind: Kind, thread: int, number: int = 0) -> None:
        at_s = self.now()
        self._emit(kind, thread, at_s, at_s, number)

    # --- loaders

    def open(
        self, make: Callable[[Any], Any], loader: object, *, is_training: bool = False
    ) -> tuple[Any, int]:
        """Return `make(loader)`, an iterator, and the loader's number.

        Args:
            make: makes the iterator.
            loader: the loader.
            is_training: it is known to be the training's.
        """
        thread = get_ident()
        if self._supply is not None:
            self._drew.add(threading.current_thread())
        began_s = self.now()
        with self._in_loader(thread, began_s) as is_inner:
            iterator = make(loader)
            # Its own length is asked here, not the one that a training is told.
            number = -1 if is_inner else self._number(loader, iterator, is_training)
        if is_inner:
            return iterator, number
        if self._supply is not None:
            self._supply.opens(loader, number, iterator)

        def drop(_: object) -> None:
            drawer = self._drawers.pop(number, None)
            if drawer is not None:
                self._emit_now("leave", drawer, number)

        with suppress(TypeError):  # a generator in C has no weak references
            self._iterators[number] = weakref.ref(iterator, drop)
        self._emit("open", thread, began_s, self.now(), number)
        return iterator, number

    def fetch(self, draw: Callable[[Any], Any], iterator: object, number: int) -> object:
        """Return `draw(iterator)`, a batch."""
        thread = get_ident()
        if number < 0 or thread in self.fetching:  # another loader of the same thread calls
            return draw(iterator)
        if self._supply is not None:
            self._drew.add(threading.current_thread())
            batch = self._supply.batch(number, iterator)
            if batch is not None:
                self._handed[thread] = Handed(number, 0, False, batch, thread)
                return batch
        if self._stacks[thread, True] < LOOKED_AT_STACKS:
            self._note_stack(thread, at_batch=True)
        began_s = self.fetching[thread] = self.now()
        try:
            batch = draw(iterator)
        except BaseException as error:
            is_end = isinstance(error, StopIteration)
            follows = is_end and self._supply is not None
            batch = self._supply.following(number) if follows else None
            if batch is None:
                self._iterators.pop(number, None)
                self._drawers.pop(number, None)
                self._handed[thread] = Handed(number, 0, True)
                kind: Kind = "end" if is_end else "leave"
                self._emit(kind, thread, began_s, self.now(), number)
                raise
        finally:
            del self.fetching[thread]
        ended_s = self.now()
        samples = count_samples(batch, self.loaders[number].batch_size)
        self._drawers[number] = thread
        # A batch that is kept here lives longer than the loop wants it to.
        kept = None if self._supply is None else batch
        self._handed[thread] = Handed(number, samples, False, kept, thread)
        self._emit("draw", thread, began_s, ended_s, number, samples)
        return batch

    def leave(self, number: int) -> None:
        """Record that a loop was left."""
        self._emit_now("leave", get_ident(), number)

    @contextmanager
    def _in_loader(self, thread: int, began_s: float) -> Iterator[bool]:
        is_inner = thread in self.fetching
        self.fetching.setdefault(thread, began_s)
        try:
            yield is_inner
        finally:
            if not is_inner:
                del self.fetching[thread]

    def worker_pids(self) -> list[int]:
        """Return the processes of all loaders that are iterated over."""
        iterators = [iterator() for iterator in list(self._iterators.values())]
        return [worker.pid for each in iterators for worker in getattr(each, "_workers", ())]

    def length(self, measure: Callable[[Any], int], loader: object) -> int:
        """Return the length that a loader tells a training.

        Args:
            measure: returns its own one.
            loader: the loader.
        """
        own = measure(loader)
        if self._supply is None or get_ident() in self.fetching:
            return own
        return max(own, self._supply.least_length(loader))

    def drawer(self, loader: object) -> int | None:
        """Return the thread that takes batches from a loader; None where none does."""
        known, number = self._numbers.get(id(loader), (bool, 0))
        return self._drawers.get(number) if known() is loader else None

    def wait_for_drawers(self) -> None:
        """Wait until other threads that took batches have ended: `fetch` and `put` raise there.

        A process that ends while such a thread computes aborts: torch cannot be unwound.
        """
        ends_s = time.monotonic() + LAST_BATCH_S
        for thread in self._drew - {threading.current_thread()}:
            # One of a pool waits for other work; one that Python did not start cannot be joined.
            if thread not in _threads_queues and not isinstance(thread, threading._DummyThread):
                thread.join(max(ends_s - time.monotonic(), 0.0))

    def _number(self, loader: object, iterator: object, is_training: bool) -> int:
        known, number = self._numbers.get(id(loader), (bool, 0))
        if known() is not loader:
            number = len(self.loaders)
            self.loaders.append(describe(loader, iterator, is_training))
            with suppress(TypeError):
                self._numbers[id(loader)] = weakref.ref(loader), number
        return number

    # --- from thread to thread

    def tag(self, holder: object, item: object) -> None:
        """Record that this thread hands over an item by a queue or a future."""
        handed = self._handed.get(get_ident())
        if handed is not None:
            tags = vars(holder).setdefault("_labkit", {})
            if len(tags) >= 1000:  # nobody takes the objects through `Queue.get`
                tags.clear()
            tags.setdefault(id(item), deque()).append(handed)  # it may be in a queue twice

    def put(
        self,
        own: Callable[..., None],
        channel: queue.Queue,
        item: object,
        block: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Put an item into a queue by its own method.

        Raises:
            SystemExit: a thread that loads ahead waits for a training that is diagnosed.
        """
        supply, is_drawer = self._supply, threading.current_thread() in self._drew
        while supply is not None and is_drawer and block and timeout is None:
            with suppress(queue.Full):
                return own(channel, item, timeout=0.1)
            supply.check_drawer()
        return own(channel, item, block, timeout)

    def take(self, get: Callable[[], Any], holder: object) -> object:
        """Return `get()`, an item that another thread may have handed over."""
        thread = get_ident()
        if thread in self.fetching:
            return get()
        began_s = self.now()
        empty, since_s, until_s = self._empty.pop(thread, (0, 0.0, 0.0))
        # A queue that is asked again within a millisecond was waited for meanwhile, as MONAI does.
        if empty == id(holder) and began_s - until_s < 1e-3:
            began_s = since_s
        # A thread that got batches so far waits for the next one.
        if (thread, type(holder)) in self._takers:
            self.fetching[thread] = began_s
        try:
            item = get()
        except BaseException:
            self._empty[thread] = id(holder), began_s, self.now()
            raise
        finally:
            self.fetching.pop(thread, None)
        tags = vars(holder).get("_labkit", {})
        tagged = tags.get(id(item))
        if tagged:
            handed = tagged.popleft()
            if not tagged:
                tags.pop(id(item), None)
            kind: Kind = "end" if handed.is_end else "draw"
            self._emit(kind, thread, began_s, self.now(), handed.loader, handed.samples)
            self._handed[thread] = handed
            self._takers.add((thread, type(holder)))
            if self._stacks[thread, True] < LOOKED_AT_STACKS:
                self._note_stack(thread, at_batch=True)
            if self._supply is not None and _holds(item, handed.batch):
                is_ahead = handed.thread != thread
                # A queue without a limit holds 16 batches, as far as it matters.
                ahead = (getattr(holder, "maxsize", 1) or 16) if is_ahead else 0
                supplied = self._supply.batch(handed.loader, ahead=ahead)
                item = item if supplied is None else _exchanged(item, handed.batch, supplied)
        return item

    # --- training

    def mark(self, kind: Kind) -> None:
        """Note that a backward pass or a step of an optimizer has ended in this thread."""
        if self.at_first is not None:
            start, self.at_first = self.at_first, None
            start()
        self.trainer = thread = get_ident()
        if self._stacks[thread, False] < LOOKED_AT_STACKS:
            self._note_stack(thread, at_batch=False)
        self._emit_now(kind, thread)

    def _note_stack(self, thread: int, *, at_batch: bool) -> None:
        self._stacks[thread, at_batch] += 1
        calls = self._calls.setdefault((thread, at_batch), set())
        calls |= {code for code in _stack(sys._getframe(1)) if code.co_filename != __file__}

    def look(self) -> None:
        """Note whether the thread that trains is in code that makes batches, outside of loaders.

        Such code was on the stack when batches came, and not when optimizer steps ended.
        """
        thread = self.trainer
        if thread is None or thread in self.fetching:
            return
        frame = sys._current_frames().get(thread)
        making = self._calls.get((thread, True), set()) - self._calls.get((thread, False), set())
        is_making = any(code in making for code in _stack(frame))
        del frame  # holds what its variables hold
        self._emit_now("preparing" if is_making else "computing", thread)


def _holds(item: object, batch: object) -> bool:
    """Return whether an item of a queue is a batch, or a tuple with it, as prefetch_generator's."""
    is_inside = isinstance(item, tuple) and any(each is batch for each in item)
    return batch is not None and (item is batch or is_inside)


def _exchanged(item: Any, batch: object, other: object) -> object:
    """Return an item of a queue with another batch."""
    if item is batch:
        return other
    return tuple(other if each is batch else each for each in item)


def _stack(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def describe(loader: object, iterator: object, is_training: bool) -> Loader:
    """Return what is known of a loader without iterating over it."""
    made: Any = iterator
    workers = getattr(made, "_num_workers", None)
    if workers is None:
        return Loader(name=type(loader).__name__, is_training=is_training)
    # An own batch sampler may not tell.
    size = getattr(made._index_sampler, "batch_size", None) or getattr(loader, "batch_size", None)
    words, batches, samples = [type(made._dataset).__name__], None, None
    with suppress(Exception):  # the user's own __len__ may raise anything
        samples = len(made._dataset)
        words.append(f"{samples:,} samples")
    words += [f"batches of {size}"] if size else []
    words += [f"{workers} worker{'s' * (workers != 1)}"]
    # The length of an iterable data set would have torch warn of more batches than it says.
    if getattr(made, "_dataset_kind", None) == 0:
        with suppress(Exception):
            batches = len(loader)  # type: ignore[arg-type]
    return Loader(
        name=", ".join(words),
        workers=workers,
        batch_size=size,
        ahead=workers * (getattr(made, "_prefetch_factor", None) or 0),
        epoch_batches=batches,
        is_training=is_training,
        dataset=type(made._dataset).__name__,
        samples=samples,
        arguments=speed_arguments_of(loader),
    )


# --- the process ------------------------------------------------------------------------------


def _install(hook: Hook) -> ExitStack:
    """Have a hook see all that this process does, whenever it imports torch, until it is closed."""
    undo = ExitStack()

    def replace(place: Any, name: str, make: Callable[[Callable], Callable]) -> None:
        own = getattr(place, name)
        setattr(place, name, wraps(own)(make(own)))
        undo.callback(setattr, place, name, own)

    def loaders(module: ModuleType) -> None:
        def iterate(own: Callable) -> Callable:
            def start(loader: object) -> object:
                iterator, number = hook.open(own, loader)
                with suppress(AttributeError):  # of a class of its own, with slots
                    # One of persistent workers that begins its next epoch keeps its number.
                    iterator._labkit = max(number, getattr(iterator, "_labkit", number))
                return iterator

            return start

        def advance(own: Callable) -> Callable:
            def step(iterator: Any) -> object:
                if "_labkit" not in vars(iterator):  # made without iter(loader)
                    loader = vars(iterator).get("_labkit_loader", bool)() or iterator
                    iterator._labkit = hook.open(lambda _: iterator, loader)[1]
                return hook.fetch(own, iterator, iterator._labkit)

            return step

        def note_loader(own: Callable) -> Callable:
            def get_iterator(loader: object) -> Any:
                iterator = own(loader)
                with suppress(AttributeError, TypeError):  # of a class of its own, with slots
                    iterator._labkit_loader = weakref.ref(loader)
                return iterator

            return get_iterator

        def tell_length(own: Callable) -> Callable:
            return lambda loader: hook.length(own, loader)

        def construct(own: Callable) -> Callable:
            def init(loader: Any, *args: object, **options: object) -> None:
                own(loader, *args, **options)
                kind = type(loader)
                if "__len__" in vars(kind) and kind not in lengthened:  # such as timm's
                    lengthened.add(kind)
                    replace(kind, "__len__", tell_length)

            return init

        lengthened = {module.DataLoader}
        if hook._supply is not None:  # a training that is only watched keeps its own lengths
            replace(module.DataLoader, "__len__", tell_length)
            replace(module.DataLoader, "__init__", construct)
        if hook.loader_arguments is not None:
            replace(module.DataLoader, "__init__", hook.loader_arguments.replace_in)
        replace(module.DataLoader, "__iter__", iterate)
        # Ultralytics keeps one iterator that it makes so.
        replace(module.DataLoader, "_get_iterator", note_loader)
        replace(module._BaseDataLoaderIter, "__next__", advance)

    def optimizers(module: ModuleType) -> None:
        def stepped(*_: object) -> None:
            if not sys.modules["torch"].compiler.is_compiling():
                hook.mark("train")

        undo.callback(module.register_optimizer_step_post_hook(stepped).remove)

    def autograd(module: ModuleType) -> None:
        def make(own: Callable) -> Callable:
            def backward(*args: object, **options: object) -> object:
                result = own(*args, **options)
                hook.mark("backward")
                return result

            return backward

        replace(module, "backward", make)

    def put(own: Callable) -> Callable:
        def put(channel: Any, item: object, *args: object, **options: object) -> None:
            hook.tag(channel, item)
            own(channel, item, *args, **options)

        return put

    def get(own: Callable) -> Callable:
        def get(channel: Any, *args: object, **options: object) -> object:
            return hook.take(lambda: own(channel, *args, **options), channel)

        return get

    replace(queue.Queue, "put", lambda own: put(partial(hook.put, own)))
    replace(queue.Queue, "get", get)
    replace(Future, "set_result", put)
    replace(Future, "result", get)
    patches: dict[str, Callable[[ModuleType], None]] = {
        "torch.utils.data.dataloader": loaders,
        "torch.optim.optimizer": optimizers,
        "torch.autograd": autograd,
    }
    for name in [name for name in patches if name in sys.modules]:
        patches.pop(name)(sys.modules[name])
    finder = _Finder(patches)
    sys.meta_path.insert(0, finder)
    undo.callback(sys.meta_path.remove, finder)
    return undo


HOOK = Hook()
"""The hook of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HOOK.reset)


class _Finder:
    """Changes modules of torch when a script imports them.

    Importing torch before the script would be too early: variables that torch reads then, such
    as OMP_NUM_THREADS, are set by scripts.
    """

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, whose loader then changes the module."""
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec = PathFinder.find_spec(name, path)
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        loader.exec_module = exec_module
        return spec
