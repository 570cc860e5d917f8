"""Exchange: how ranks average their gradients, over which network.

    all_reduce   torch's DistributedDataParallel, over what connects the ranks here
    <n>mbit      the same, and each bucket arrives no earlier than a link of so many Mbit/s allows
    noop         the machinery without the exchange
    no_sync      without the machinery: in torch, for steps that only add up gradients

Without ranks, data_parallel_<n> is torch's DataParallel: one process divides each batch among n
GPUs.

A link is a model: one clock, and 2 (N - 1) / N of a bucket's bytes, what a ring all-reduce of N
ranks sends.  Messages have no latency.  A run checks first that its links deliver their rates.
Source: torch.distributed.algorithms.ddp_comm_hooks, whose `noop_hook` is meant for measuring what
communication costs.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from labkit import units
from labkit.contracts import Chosen, Skip
from labkit.records import Hardware
from labkit.settings import Settings, pick

if TYPE_CHECKING:
    import torch

LINK = re.compile(r"([1-9]\d{0,5})mbit")
DATA_PARALLEL = re.compile(r"data_parallel_([2-9])")


def check_exchange(name: str) -> None:
    """Refuse an unknown way to exchange gradients.

    Raises:
        ValueError: the message lists the choices.
    """
    if not LINK.fullmatch(name) and not DATA_PARALLEL.fullmatch(name):
        known = ("all_reduce", "noop", "no_sync", "<n>mbit, as 100mbit", "data_parallel_2")
        pick(dict.fromkeys(known), name, "exchange")


def mbit_per_s(exchange: str) -> int | None:
    """Return the rate of a simulated link; None where gradients take none."""
    link = LINK.fullmatch(exchange)
    return int(link[1]) if link else None


def why_not(chosen: Chosen) -> str:
    """Return why gradients cannot be exchanged so, or several ranks cannot train; "" if they can.

    Raises:
        ValueError: several ranks where one process works for all GPUs.
    """
    settings, device = chosen.settings, chosen.device
    if settings.exchange != "all_reduce" and device.is_simulated:
        return (
            f"exchange must be all_reduce on the simulated GPU, which has no gradients, got "
            f"{settings.exchange!r}; choose device cpu or cuda"
        )
    if LINK.fullmatch(settings.exchange) and device.is_cuda:
        return (
            f"exchange must be all_reduce, noop or no_sync on device cuda, where no link "
            f"is simulated, got {settings.exchange!r}"
        )
    is_data_parallel = DATA_PARALLEL.fullmatch(settings.exchange)
    if is_data_parallel and device.is_cpu:
        return (
            f"exchange must be another one on device cpu, got {settings.exchange}: without GPUs "
            "DataParallel calls the model as it is"
        )
    if settings.ranks == 1:
        return ""
    if is_data_parallel:
        raise ValueError(
            f"ranks must be 1 for the exchange {settings.exchange}, in which one process uses all "
            f"GPUs, got {settings.ranks}"
        )
    whole = f"ranks must be 1 {{}}, got {settings.ranks}"
    if chosen.loader.needs:
        return whole.format(f"for the loader {settings.loader}, which divides no epoch")
    if chosen.storage.needs_our_reader:
        return whole.format(f"for the storage {settings.storage}, which one process models")
    if not chosen.step.runs_in_ranks:
        return whole.format("for a step of your own, of which labkit knows no gradients")
    if settings.multiprocessing_context != "fork":
        return whole.format(f"for processes started by {settings.multiprocessing_context}")
    of_each, left = divmod(settings.num_workers, settings.ranks)
    if not chosen.loader.repeats_one_batch and (left or not of_each):
        return (
            f"num_workers must be a multiple of ranks ({settings.ranks}), so that each has equally "
            f"many, got {settings.num_workers}; choose {max(of_each, 1) * settings.ranks}"
        )
    return ""


def check_gpus(count: int) -> None:
    """Skip what takes more GPUs than there are here."""
    import torch

    if (gpus := torch.cuda.device_count()) < count:
        raise Skip(f"it takes {count} GPUs, got {units.count(gpus, 'GPU')}")


def count_gpus(settings: Settings) -> int:
    """Return how many GPUs a trial on device cuda uses."""
    several = DATA_PARALLEL.fullmatch(settings.exchange)
    return int(several[1]) if several else settings.ranks


def distribute(model: torch.nn.Module, settings: Settings) -> torch.nn.Module:
    """Wrap a model so that backward exchanges gradients with other ranks or GPUs, if it has any.

    Buffers, such as BatchNorm's means, stay each rank's own in all cases: their broadcast would be
    communication that no hook sees.

    Args:
        model: on its device, in a process that has joined its group.
        settings: uses exchange and ranks.
    """
    import torch

    if DATA_PARALLEL.fullmatch(settings.exchange):
        gpus = count_gpus(settings)
        if settings.device == "cuda":
            check_gpus(gpus)
        return torch.nn.DataParallel(model, list(range(gpus)))
    if settings.ranks == 1:
        return model
    wrapped = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    if settings.exchange == "no_sync":
        wrapped.require_backward_grad_sync = False  # as inside wrapped.no_sync()
    elif settings.exchange == "noop":
        from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

        wrapped.register_comm_hook(None, noop_hook)
    elif LINK.fullmatch(settings.exchange):
        link = Link(settings)
        wrapped.register_comm_hook(None, lambda _, bucket: link.average(bucket.buffer()))
    return wrapped


class Link:
    """A rank's simulated connection to the others, the same in each direction.

    Args:
        settings: uses exchange and ranks.
    """

    def __init__(self, settings: Settings) -> None:
        self.bits_per_s = int(LINK.fullmatch(settings.exchange)[1]) * 1e6
        self._ranks = settings.ranks
        self._sent_bits_per_byte = 8 * 2 * (settings.ranks - 1) / settings.ranks
        self._free_s = 0.0

    def average(self, gradients: torch.Tensor) -> torch.futures.Future:
        """Start to average gradients over all ranks.

        The exchange itself is real; what comes before the link allows it is held back.
        """
        import torch

        start_s = max(time.perf_counter(), self._free_s)
        due_s = start_s + gradients.nbytes * self._sent_bits_per_byte / self.bits_per_s
        self._free_s = due_s
        arrived: torch.futures.Future = torch.futures.Future()

        def arrive(done: torch.futures.Future) -> None:
            try:
                arrived.set_result(done.value()[0])
            except RuntimeError as error:  # the connection to another rank is lost
                arrived.set_exception(error)

        def hold(done: torch.futures.Future) -> None:
            late_s = max(due_s - time.perf_counter(), 0.0)
            # A thread of its own: gloo's would keep the next bucket waiting.
            threading.Timer(late_s, arrive, [done]).start()

        exchange = torch.distributed.all_reduce(gradients.div_(self._ranks), async_op=True)
        exchange.get_future().add_done_callback(hold)
        return arrived

    def measure(self) -> float:
        """Return the bits per second that it delivers; on all ranks at the same time."""
        import torch

        # They take 0.25 s, of which 5 % are longer than a thread is late.
        size_bytes = 0.25 * self.bits_per_s / self._sent_bits_per_byte
        gradients = torch.zeros(round(size_bytes / torch.float32.itemsize))
        start_s = time.perf_counter()
        self.average(gradients).wait()
        return gradients.nbytes * self._sent_bits_per_byte / (time.perf_counter() - start_s)


def simulated_network(settings: Settings) -> tuple[Hardware, ...]:
    """Return the network between ranks where it is simulated; nothing elsewhere."""
    link = LINK.fullmatch(settings.exchange)
    exchanges = not settings.is_on_simulated_gpu and settings.step != "nothing"
    if not link or settings.ranks == 1 or not exchanges:
        return ()
    return (Hardware("network", "simulated", f"{int(link[1]):,} Mbit/s"),)


def label(settings: Settings) -> dict[str, str]:
    """Label a row of several ranks or GPUs: how many, and what exchanges the gradients."""
    if several := DATA_PARALLEL.fullmatch(settings.exchange):
        return {"ranks": f"1 process, DataParallel on {several[1]} GPUs"}
    if settings.ranks == 1:
        return {}
    ranks = f"{settings.ranks} processes"
    if settings.is_on_simulated_gpu or settings.step == "nothing":
        simulated = ", each with a simulated GPU" * (settings.is_on_simulated_gpu)
        return {"ranks": f"{ranks}{simulated}, no gradients exchanged"}
    if settings.exchange in ("noop", "no_sync"):
        return {"ranks": f"{ranks}, no gradients exchanged ({settings.exchange})"}
    by = "NCCL" if settings.device == "cuda" else "gloo"
    return {"ranks": f"{ranks}, gradients exchanged by {by}, not buffers"}
