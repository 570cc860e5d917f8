"""Offline: who runs a function over all images ahead of training.

    engine(jobs, master) as pool ─ pool.run(function, indices) → results in order

    local   processes of this machine, which joblib starts
    spark   a Spark session: cores of this machine, or a cluster's (its own API, not joblib's Spark
            back end, which uses private parts of joblib and broke with joblib 1.3 and 1.4)

The function is the same for all of them.  Main trap: whoever works ahead fills the memory with
results that nobody has taken yet; so callers ask for a round of images, take all of it, and ask
for the next.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from labkit.trial import Skip

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")
PIECE_IMAGES = 8  # what a process is handed at once
ROUND_IMAGES = 256
# A Spark job costs 0.1 s, and each of its tasks 0.03 s; so: few tasks, and many images in each.
SPARK_ROUND_IMAGES, SPARK_TASKS_PER_JOB = 2048, 2
LOOK_S = 0.1  # between looks at whether the work is still wanted
SPARK_EXTRA = "pip install 'labkit[spark]'"
JAVA = "install Java 17 or newer (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Those who work."""

    jobs: int
    """How many calls run at the same time."""
    round_images: int
    """How many images keep them all busy for a while."""
    run: Callable[[Callable[[int], T], Sequence[int]], Generator[T]]
    """(function, indices) → its results, in order; raises the first error that the function did."""


@contextlib.contextmanager
def local(jobs: int, master: str = "", check: Callable[[], None] = lambda: None) -> Iterator[Pool]:
    """Run in processes of this machine, or in this one if one is enough.

    Args:
        jobs: how many.
        master: must be empty.
        check: not called: results come one by one, so whoever takes them can stop in between.
    """
    if master:
        raise ValueError(
            f"master must be left out for the engine local, got {master!r}; choose spark for it"
        )
    if jobs == 1:
        yield Pool(jobs=1, round_images=ROUND_IMAGES, run=lambda call, of: (call(i) for i in of))
        return
    import joblib
    from joblib.externals import loky

    parallel = joblib.Parallel(
        jobs, backend="loky", batch_size=1, pre_dispatch="2*n_jobs", return_as="generator",
        max_nbytes=None, initializer=_end_with, initargs=(os.getpid(),),
    )  # fmt: skip

    def run(function: Callable[[int], T], indices: Sequence[int]) -> Generator[T]:
        pieces = _pieces(indices, min(PIECE_IMAGES, math.ceil(len(indices) / jobs)))
        wanted = [True]
        calls = itertools.takewhile(lambda call: bool(wanted), pieces)
        parts = parallel(joblib.delayed(_each)(function, piece) for piece in calls)
        try:
            yield from _results(parts)
        finally:
            # Closing `parts` would kill the processes, in which loky trips over itself.
            wanted.clear()
            with contextlib.suppress(Exception):  # of a process that Ctrl-C met while it started
                for _ in parts:
                    pass

    try:
        with parallel:
            yield Pool(jobs=jobs, round_images=max(ROUND_IMAGES, jobs * PIECE_IMAGES), run=run)
    finally:
        # They would wait for more work for minutes, with all that they have imported.
        loky.get_reusable_executor().shutdown(wait=True)


@contextlib.contextmanager
def spark(jobs: int, master: str = "", check: Callable[[], None] = lambda: None) -> Iterator[Pool]:
    """Run in a Spark session: the one that this process has, else one that ends with this.

    A cluster's machines must have labkit, the same Python and the data under the same path.

    Args:
        jobs: how many processes, where `master` is empty.
        master: Spark's URL of the cluster, such as spark://host:7077; empty: this machine.
        check: called every `LOOK_S` while Spark works; what it raises stops the work.

    Raises:
        Skip: Spark or Java is not installed, or the session cannot be had.
        ValueError: a session runs already, with another master.
    """
    with _spark_context(master or f"local[{jobs}]", wanted=bool(master)) as context:
        jobs = context.defaultParallelism

        def run(function: Callable[[int], T], indices: Sequence[int]) -> Generator[T]:
            size = max(1, math.ceil(len(indices) / (jobs * SPARK_TASKS_PER_JOB)))
            return _results(_collect(context, function, list(_pieces(indices, size)), check))

        most = max(SPARK_ROUND_IMAGES, jobs * SPARK_TASKS_PER_JOB * PIECE_IMAGES)
        yield Pool(jobs=jobs, round_images=most, run=run)


ENGINES: dict[str, Callable[..., contextlib.AbstractContextManager[Pool]]] = {
    "local": local,
    "spark": spark,
}


@dataclass(frozen=True)
class _Failed:
    error: Exception


def _pieces(indices: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (indices[first : first + size] for first in range(0, len(indices), size))


def _each(function: Callable[[int], T], piece: Iterable[int]) -> list[T | _Failed]:
    """Call a function for each; its first error is the last result.

    As a result an error stays what it is; raised, Spark would turn it into pages of Java.
    """
    results = []
    for i in piece:
        try:
            results.append(function(i))
        except Exception as error:
            error.add_note(traceback.format_exc())
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:
                error = RuntimeError(f"{type(error).__name__}: {error}")
            results.append(_Failed(error))
            break
    return results


def _end_with(parent: int) -> None:
    """Have this process end when the one that started it does, and not before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for that one, which ends this one

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _results(parts: Iterable[list[T | _Failed]]) -> Generator[T]:
    for result in itertools.chain.from_iterable(parts):
        if isinstance(result, _Failed):
            raise result.error
        yield result


def _collect(
    context: SparkContext,
    function: Callable[[int], T],
    pieces: list[Sequence[int]],
    check: Callable[[], None],
) -> list[list[T | _Failed]]:
    """Have Spark do all pieces, and give up when `check` raises."""
    from py4j.protocol import Py4JError

    group = f"labkit-{os.getpid()}"

    def collect() -> list:
        context.setJobGroup(group, "labkit: images", interruptOnCancel=True)
        return context.parallelize(pieces, len(pieces)).map(partial(_each, function)).collect()

    # In a thread, so that this one can look around meanwhile.
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(collect)
        try:
            while not wait([future], LOOK_S).done:
                check()
        except BaseException:
            context.cancelJobGroup(group)
            raise
        try:
            return future.result()
        except Py4JError as error:
            raise Skip(f"spark must be able to do the work, got: {_cause(error)}") from error


@contextlib.contextmanager
def _spark_context(master: str, *, wanted: bool) -> Iterator[SparkContext]:
    """Give the session of this process, or start one and end it again."""
    try:
        from pyspark import SparkContext
    except ImportError:
        raise Skip(f"spark needs pyspark, which is not installed; {SPARK_EXTRA}") from None
    running = SparkContext._active_spark_context
    if running is None:
        with _started(master) as context:
            yield context
        return
    if wanted and running.master != master:
        raise ValueError(
            f"master must be {running.master!r}, which this process has a session with, "
            f"got {master!r}; stop that session first, or leave master out"
        )
    yield running


@contextlib.contextmanager
def _started(master: str) -> Iterator[SparkContext]:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    if shutil.which(java) is None:
        raise Skip(f"spark needs Java, and {java} is not there; {JAVA}")
    if master.startswith("sc://"):
        raise ValueError(
            f"master must be local[N], spark://host:port, yarn or k8s://…, got {master!r}; "
            "Spark Connect has no such jobs"
        )
    here = master.startswith("local")
    conf = SparkConf().setMaster(master).setAppName("labkit")
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    if here:  # nothing may depend on this machine's name and networks
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    # As in joblib's processes: what can be imported here can be imported there.
    paths = {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
    with contextlib.ExitStack() as ending:
        log = ending.enter_context(tempfile.TemporaryFile("a+b"))  # what Java says to the terminal
        ending.enter_context(_as_it_was())
        try:
            gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
            ending.callback(_end_java, gateway)
            with warnings.catch_warnings():  # of which pandas it supports, which nobody here uses
                warnings.simplefilter("ignore", FutureWarning)
                context = SparkContext(
                    conf=conf, gateway=gateway, environment=paths if here else None
                )
        except Exception as error:
            raise Skip(
                f"spark must start with the master {master!r}, got: {_cause(error, log)}; "
                f"if that is of Java: {JAVA}"
            ) from error
        ending.callback(context.stop)
        if here:
            context.pythonExec = sys.executable
        yield context


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Put back what a session leaves changed in this process."""
    paths, in_main = list(sys.path), threading.current_thread() is threading.main_thread()
    on_interrupt = signal.getsignal(signal.SIGINT) if in_main else None
    try:
        yield
    finally:
        sys.path[:] = paths
        if in_main:
            signal.signal(signal.SIGINT, on_interrupt)


def _end_java(gateway: object) -> None:
    """End the Java process, which would else stay as long as this one, with half a gigabyte."""
    from pyspark import SparkContext

    gateway.shutdown()
    gateway.proc.stdin.close()  # it ends when nobody can write to it
    try:
        gateway.proc.wait(timeout=30)
    except Exception:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # or the next session would use this one


def _cause(error: Exception, log: BinaryIO | None = None) -> str:
    """Find the line that says what was wrong: of Python, of Java, or the last that Java said."""
    java = getattr(error, "java_exception", None)
    said = str(java.getMessage() if java is not None else "").partition("Driver stacktrace")[0]
    if not said and log is not None:
        log.seek(0)
        said = log.read().decode(errors="replace")
    lines = [line.strip() for line in said.splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]
    return lines[-1] if lines else f"{type(error).__name__}: {error}"
