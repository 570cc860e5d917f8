"""Trainings with one known bottleneck each, to see whether a diagnosis finds it.

    pipelines(site) -> name -> Planted: what is wrong, what helps, and how to make both forms

    case = pipelines(site)["huge_collate"].make(fixed=False)
    lab.diagnose(**case)

`fixed` is the same training with exactly that remedy, so what the remedy is worth can be measured:
its epoch time over the other's.  Where nothing helps, it is the training with batches that are
there already.  Main trap: magnitudes are chosen for a machine of two to four cores; where many
more are idle, a stage that is slow on one core may be hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import planted_samples as samples
from benchmarks import planted_steps as steps
from benchmarks import planted_workers as workers
from benchmarks.photo_training import Site

# A mount namespace of its own, where /dev/shm is small; all that runs in it goes with it.
IN_SMALL_MEMORY = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    f"mount -t tmpfs -o size={steps.SMALL_MEMORY_BYTES} tmpfs {steps.SHARED_MEMORY}"
    ' && exec "$@"', "sh",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A training with a planted bottleneck."""

    name: str
    bottleneck: str
    remedy: str | None
    """None: nothing helps."""
    make: Callable[[bool], dict[str, object]]
    """Called with `fixed`, gives loader, step, files and device: what `lab.diagnose` takes."""
    question: str
    """What is wrong, and what is better."""
    inside: tuple[str, ...] = ()
    """A command that must run the process in which it is made."""
    timed: bool = True
    """Whether it runs at all, so that the remedy's worth can be measured."""


TABLE = (
    (samples.slow_disk, "storage", "faster medium"),
    (samples.slow_transform, "transform", "faster transform"),
    (samples.config_per_sample, "transform", "faster transform"),
    (samples.conversion_chain, "transform", "faster transform"),
    (samples.list_scan, "transform", "faster transform"),
    (samples.python_decode, "decode", "faster decode"),
    (samples.large_files, "decode", "faster decode"),
    (workers.huge_collate, "collate", "faster collate"),
    (workers.objects_sent, "serialization", "cheaper serialization"),
    (workers.no_workers, "workers", "more workers"),
    (workers.one_worker, "workers", "more workers"),
    (workers.waiting_samples, "workers", "more workers"),
    (workers.late_samples, "jitter", "more prefetching"),
    (workers.restarted_workers, "start-up", "persistent workers"),
    (workers.too_many_threads, "threads", "limit threads"),
    (steps.small_shared_memory, "shared memory", "smaller batches to send"),
    (steps.large_batches, "transfer", "smaller batches to send"),
    (steps.pageable_copies, "transfer", "pin memory"),
    (steps.wait_every_step, "synchronization", "synchronize less often"),
    (steps.checkpoint_storm, "checkpoint", "save less often"),
    (steps.slow_reports, "reports", "report less often"),
    (steps.metric_loops, "host work", "vectorize host work"),
    (steps.slow_device, "compute", None),
    (steps.small_steps, "compute", None),
    (steps.training_here, "compute", None),
)
NAMES = tuple(function.__name__ for function, *_ in TABLE)


def pipelines(site: Site) -> dict[str, Planted]:
    """Give all of them by name, made of a site's photographs; none is made yet."""
    found = {}
    for function, bottleneck, remedy in TABLE:
        small_memory = function is steps.small_shared_memory
        found[function.__name__] = Planted(
            name=function.__name__,
            bottleneck=bottleneck,
            remedy=remedy,
            make=partial(function, site),
            question=function.__doc__.splitlines()[0],
            inside=IN_SMALL_MEMORY if small_memory else (),
            timed=not small_memory,
        )
    return found
