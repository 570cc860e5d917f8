"""Watch a training: how much of its time it waits for data, while it runs as it is.

    Hook ─▶ events ─▶ Loops ─▶ Phases ─┐
    NVML ─▶ Gpu ───────────────────────┼─▶ Facts ─▶ lines
    /proc ─▶ Cpu ──────────────────────┘

A thread beside the training takes the events, samples the stack of the thread that trains, reads
NVML and prints.  Times are the host's: CUDA events in the training's streams would disturb it,
above all the capture of graphs.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from types import ModuleType
from typing import Any

from labkit import units
from labkit.contracts import Skip
from labkit.diagnosis.answer import Answer, Cpu, Device, Facts, Gpu, answer, lines
from labkit.diagnosis.hook import HOOK, Hook
from labkit.diagnosis.loaders import check_loader
from labkit.diagnosis.loops import Loops
from labkit.diagnosis.thresholds import FIRST_REPORT_STEPS, REPORT_PERIOD_S
from labkit.files import progress_stream
from labkit.language import Text, shown
from labkit.machine.cores import core_limits
from labkit.machine.gpu import Reading, open_gpu, other_gpu_in_use
from labkit.machine.usage import NVML_PERIOD_S, Sampler, cores_s

LOOK_S = 1.0  # between two looks at processes, and at a loader that may hang


class Watch:
    """Measures the training of this process.

    Args:
        hook: where events come from.
        report: called with this watch after 50 steps, then now and then, and at the end.
        warn: takes what is printed of a loader that may hang.
        on_look: called every second.
    """

    def __init__(
        self,
        hook: Hook = HOOK,
        report: Callable[[Watch], object] = lambda _: None,
        warn: Callable[[str], object] = str,
        on_look: Callable[[], object] = str,
    ) -> None:
        self._hook, self._report, self._warn, self._on_look = hook, report, warn, on_look
        self._loops = Loops(hook.loaders)
        self.events: deque = deque()
        """Those to take next."""
        self.rank = rank_of_launcher()
        """Number of this process among those that train together; None where it trains alone."""
        self.ranks = int(os.environ.get("WORLD_SIZE") or 1)
        self._due_s, self._period_s = math.inf, REPORT_PERIOD_S
        self._gpu: Reading = {}  # the latest one
        self._gpu_sums: Counter[str] = Counter()
        self._gpu_counts: Counter[str] = Counter()
        self._read_gpu: Callable[[], Reading] | None = None
        self._has_opened_gpu = False
        self._cpu_s = self._counted_s = [0.0] * 6  # as `_count_cpu` says
        self._was_in_loop = False
        self._next_gpu_s = self._next_look_s = self._next_count_s = -math.inf
        self._warned_s = -math.inf
        self._lock = threading.RLock()  # a signal's handler may report in the middle of a report
        self._beside: ExitStack | None = None

    def start(self) -> None:
        """Listen, and look at the training from a thread; does nothing where it has started."""
        if self._beside is None:
            # Not in the first look: the thread rests a hundred times as long as a look takes.
            import psutil  # noqa: F401

            self._beside = ExitStack()
            self.events = self._beside.enter_context(self._hook.listen())
            # Every look at the training's stack takes the interpreter's lock from the training:
            # with 50 a second, steps of 2 ms took 2.7 % longer.
            self._beside.enter_context(Sampler(self.look, 0.1))  # seconds
            self._find_rank()

    def stop(self) -> None:
        """Listen no longer, and report."""
        if self._beside is not None:
            beside, self._beside = self._beside, None
            beside.close()
        with self._lock:
            self._take()
            self._count_cpu_in_loops(False)
            self._report(self)

    # --- what is known

    def facts(self) -> Facts:
        """Return what was measured until now."""
        with self._lock:
            self._take()
            phases = self._loops.phases(self._hook.now())
        self._find_rank()
        return Facts(
            phases=phases,
            computes_on=_device(),
            gpu=self._gpu_facts(),
            cpu=self._cpu_facts(),
            ranks=self.ranks,
        )

    @property
    def answer(self) -> Answer:
        """Whether data loading is the problem."""
        return answer(self.facts())

    def __str__(self) -> str:
        """Return what was measured and the answer in at most six lines."""
        return "\n".join(lines(self.facts()))

    def _gpu_facts(self) -> Gpu | None:
        if not self._gpu:
            return None

        def mean(name: str) -> float | None:
            count = self._gpu_counts[name]
            return self._gpu_sums[name] / count / 100 if count else None

        return Gpu(
            utilization=mean("busy_percent"),
            others=mean("others_percent"),
            used_bytes=self._gpu["used_bytes"],
            total_bytes=self._gpu["total_bytes"],
        )

    def _cpu_facts(self) -> Cpu | None:
        wall_s, process_s, workers_s, busy_s, all_s, of_workers_s = self._cpu_s
        if not wall_s:
            return None
        limits = core_limits()
        return Cpu(
            cores=limits.cores,
            limits=limits,
            process=process_s / wall_s,
            workers=workers_s / wall_s,
            per_worker=workers_s / of_workers_s if of_workers_s else None,
            busy_share=busy_s / all_s if all_s else None,
        )

    # --- beside the training

    def look(self) -> None:
        """Take what happened, look at the machine, and report where it is time to."""
        with self._lock:
            self._hook.look()
            self._take()
            self._find_rank()
            now_s = self._hook.now()
            steps, since_s, is_in_loop = self._loops.progress()
            if now_s >= self._next_gpu_s:
                self._next_gpu_s = now_s + NVML_PERIOD_S
                if self._read_gpu is not None and is_in_loop:
                    self._gpu = self._read_gpu()
                    for name in ("busy_percent", "others_percent"):
                        if self._gpu[name] is not None:
                            self._gpu_sums[name] += self._gpu[name]
                            self._gpu_counts[name] += 1
            self._count_cpu_in_loops(is_in_loop)
            if now_s >= self._next_look_s:
                self._next_look_s = now_s + LOOK_S
                self._open_gpu()
                self._warn_of_hanging(now_s)
                self._on_look()
            if since_s is None:
                return
            if self._due_s == math.inf:
                self._due_s = since_s + REPORT_PERIOD_S
            is_first = self._period_s == REPORT_PERIOD_S
            if now_s >= self._due_s or (is_first and steps >= FIRST_REPORT_STEPS):
                self._period_s *= 1 if is_first and steps < FIRST_REPORT_STEPS else 2
                self._due_s = now_s + self._period_s / 2
                self._report(self)

    def _find_rank(self) -> None:
        """Note rank and ranks while torch knows them: before the process group is destroyed."""
        torch = _imported_torch()
        if torch is None or not torch.distributed.is_available():
            return
        distributed = torch.distributed
        with suppress(ValueError, RuntimeError):  # it is destroyed just now
            if distributed.is_initialized():
                self.ranks = distributed.get_world_size()
                self.rank = distributed.get_rank() if self.ranks > 1 else None

    def _take(self) -> None:
        with suppress(IndexError):
            while True:
                self._loops.add(self.events.popleft())

    def _count_cpu_in_loops(self, is_in_loop: bool) -> None:
        now_s = self._hook.now()
        if is_in_loop != self._was_in_loop or (is_in_loop and now_s >= self._next_count_s):
            self._count_cpu(keep=self._was_in_loop)
            self._next_count_s, self._was_in_loop = now_s + LOOK_S, is_in_loop

    def _count_cpu(self, *, keep: bool) -> None:
        """Count wall seconds, CPU seconds of process, workers and cores, and workers' wall seconds.

        Args:
            keep: False drops those since the last call.
        """
        import psutil

        times, workers = os.times(), self._hook.worker_pids()
        workers_s = times.children_user + times.children_system  # of those that ended
        for pid in workers:
            with suppress(psutil.Error):
                workers_s += sum(psutil.Process(pid).cpu_times()[:2])
        now = [time.perf_counter(), time.process_time(), workers_s]
        counted_s = [*now, *map(sum, zip(*cores_s().values()))]
        before_s, self._counted_s = self._counted_s, counted_s
        if keep:
            spent_s = [max(0.0, b - a) for a, b in zip(before_s, counted_s)]
            spent_s.append(spent_s[0] * len(workers))
            self._cpu_s = [a + b for a, b in zip(self._cpu_s, spent_s)]

    def _open_gpu(self) -> None:
        if self._has_opened_gpu or _device() != "cuda":
            return
        self._has_opened_gpu = True
        with suppress(Skip):
            self._read_gpu = open_gpu()

    def _warn_of_hanging(self, now_s: float) -> None:
        thread = self._hook.trainer
        waiting = dict(self._hook.fetching)
        since_s = waiting.get(thread) or min(waiting.values(), default=now_s)
        if now_s - since_s >= REPORT_PERIOD_S and since_s != self._warned_s:
            self._warned_s = since_s  # once for each batch
            hangs = Text(
                "The training has waited {seconds} for its next batch: the loader may hang. "
                "Interrupt it (Ctrl-C) to end it and see what was measured."
            )
            self._warn(hangs.format(seconds=units.seconds(now_s - since_s)))


def _imported_torch() -> ModuleType | None:
    """Return torch; None where this process has not imported it, or not yet to the end."""
    torch = sys.modules.get("torch")
    is_whole = torch is not None and not getattr(torch.__spec__, "_initializing", False)
    return torch if is_whole else None


def _device() -> Device:
    """Return what this process computes on, as far as it has begun to."""
    torch = _imported_torch()
    if torch is None:
        return "cpu"
    if torch.cuda.is_initialized():
        return "cuda"
    return other_gpu_in_use() or "cpu"


def rank_of_launcher() -> int | None:
    """Return the rank that torchrun or the like gave this process; None: it trains alone."""
    rank, ranks = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    return int(rank) if rank is not None and int(ranks or 1) > 1 else None


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
    if not show or HOOK.is_reported:  # by `labkit watch`, which says more
        return WatchedLoader(loader, Watch())
    return WatchedLoader(loader, Watch(report=say, warn=say))


class WatchedLoader:
    """A loader whose loop is watched, in every epoch.

    Args:
        loader: any iterable of batches.
        watch: of this loader alone.
        hook: where its events are noted.
    """

    # Setting any other attribute fails, instead of never reaching the loader.
    __slots__ = ("__weakref__", "_hook", "_loader", "_pid", "watch")

    def __init__(self, loader: Any, watch: Watch, hook: Hook = HOOK) -> None:
        self._loader, self.watch, self._hook, self._pid = loader, watch, hook, os.getpid()

    def __iter__(self) -> Iterator:
        if os.getpid() != self._pid:  # in a child of the process that watches
            yield from self._loader
            return
        self.watch.start()
        hook = self._hook
        try:
            iterator, number = hook.open(lambda own: iter(own._loader), self, is_training=True)
            while True:
                # No name is kept for the batch here: the loop decides how long it lives.
                yield hook.fetch(next, iterator, number)
        except StopIteration:
            return
        except GeneratorExit:
            hook.leave(number)
            raise
        finally:
            self.watch.stop()

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return bool(self._loader)  # an iterator has no length, and is true

    def __getattr__(self, name: str) -> object:
        return getattr(object.__getattribute__(self, "_loader"), name)


def say(what: object, who: str = "labkit") -> None:
    """Print lines in the language of the locale to stderr, each after a name."""
    # Written at once, so that lines of several ranks do not mix.
    what = shown(what if isinstance(what, str) else str(what))
    text = "".join(f"[{shown(who)}] {line}\n" for line in what.splitlines())
    with suppress(OSError, ValueError, AttributeError):  # a script may close or replace its stderr
        if "tqdm" in sys.modules:  # a bar that the training shows is drawn again below
            sys.modules["tqdm"].tqdm.write(text, file=progress_stream(), end="")
        else:
            print(text, file=progress_stream(), end="", flush=True)
