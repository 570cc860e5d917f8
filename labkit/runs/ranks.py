"""Ranks: the processes that train together in one trial, as under torchrun.

    rank 0, the trial's process ─fork─▶ rank 1 … N-1
    every rank: meet ─ its share of the epoch's images, meeting at every step ─ gather

Gloo on the host, and NCCL between GPUs.  Real models exchange gradients, see
`parts.training.exchange`; simulated GPUs have none, so their ranks only meet.  The first rank
alone measures the machine and prepares the files.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from statistics import fmean
from typing import Any

from labkit.parts.devices import DevicePart
from labkit.parts.training.exchange import check_gpus
from labkit.records import Epoch
from labkit.resolve import find_part
from labkit.settings import Settings

# The first rank makes files cold or warm while the others wait.
TIMEOUT = timedelta(minutes=30)
# A rank that ends closes its connections, which the others notice, but not in every call.
NOTICED_WITHIN_S = 10


class RankEnded(RuntimeError):  # noqa: N818 - says what happened
    """A rank was killed."""


class Ranks:
    """The ranks of a trial: a context of rank 0; does nothing where there is one.

    Args:
        settings: a trial's.
        train: what every other rank does; takes its `Ranks`.
    """

    def __init__(self, settings: Settings, train: Callable[[Ranks], None]) -> None:
        self.rank = 0
        self._settings, self._train = settings, train
        self._ended = False
        self._others: dict[int, BaseProcess] = {}

    def __enter__(self) -> Ranks:
        if self._settings.ranks > 1:
            # Here the server removes what a killed trial leaves.
            self._meeting = Path(get_temp_dir()) / f"ranks-{os.getpid()}"
            context = multiprocessing.get_context("fork")
            self._errors = context.SimpleQueue()
            # Before any rank uses CUDA, which does not survive a fork.
            for rank in range(1, self._settings.ranks):
                self._others[rank] = context.Process(target=self._run, args=(rank,))
                self._others[rank].start()
            threading.Thread(target=self._watch, daemon=True).start()
            try:
                self._join()
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        self._ended = True
        if not self._others:
            return
        if error is None:
            import torch

            torch.distributed.destroy_process_group()
            for process in self._others.values():
                process.join()
            self._meeting.unlink(missing_ok=True)
            return
        if isinstance(error, RuntimeError):  # perhaps as the connection to another rank is lost
            ranks: dict[Any, BaseProcess] = {
                process.sentinel: process for process in self._others.values()
            }
            # Of several that end, the one that was killed may be the last whose end is seen.
            ends_s, was_killed = time.monotonic() + NOTICED_WITHIN_S / 2, False
            while ranks and not was_killed and (left_s := ends_s - time.monotonic()) > 0:
                for sentinel in wait(list(ranks), left_s):
                    ended = ranks.pop(sentinel)
                    ended.join()  # its status comes a moment after its sentinel
                    was_killed |= (ended.exitcode or 0) < 0
        statuses = {rank: process.exitcode for rank, process in self._others.items()}
        for process in self._others.values():
            process.kill()
            process.join()
        self._meeting.unlink(missing_ok=True)
        for rank, status in statuses.items():
            if status is not None and status < 0:
                raise RankEnded(f"rank {rank} ended with status {status}") from error
        if isinstance(error, RuntimeError) and not self._errors.empty():
            raise self._errors.get() from error

    def meet(self) -> None:
        """Wait until every rank is here."""
        if self._settings.ranks > 1:
            import torch

            torch.distributed.barrier()

    def gather(self, epoch: Epoch) -> Epoch:
        """Return an epoch of all ranks, as one; on another rank than 0 its own.

        It lasts as long as the slowest rank's.  The host's phases are those of rank 0.
        """
        if self._settings.ranks == 1:
            return epoch
        import torch

        every: list[Any] | None = [None] * self._settings.ranks if self.rank == 0 else None
        torch.distributed.gather_object(epoch, every)
        if every is None:
            return epoch
        is_simulated = epoch.compute_s is not None
        return replace(
            epoch,
            epoch_s=max(each.epoch_s for each in every),
            images=sum(each.images for each in every),
            batch_bytes=sum(each.batch_bytes for each in every),
            compute_s=fmean(each.compute_s for each in every) if is_simulated else None,
        )

    def _run(self, rank: int) -> None:
        self.rank, self._others = rank, {}
        try:
            self._join()
            self._train(self)
        except Exception as error:
            self._errors.put(error)
            raise

    def _join(self) -> None:
        import torch

        ranks, backend = self._settings.ranks, "gloo"
        device = find_part(DevicePart, self._settings.device)
        if not (device.is_cpu or device.is_simulated):
            check_gpus(ranks)
            torch.cuda.set_device(self.rank)
            backend = "cpu:gloo,cuda:nccl"
        # All are on this machine, so nobody else needs to reach them.
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        # As torchrun sets them, for parts of the user's own; ranks meet in a file, at no port.
        os.environ |= {"RANK": str(self.rank), "LOCAL_RANK": str(self.rank)}
        os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        torch.distributed.init_process_group(
            backend,
            init_method=f"file://{self._meeting}",
            rank=self.rank,
            world_size=ranks,
            timeout=TIMEOUT,
        )

    def _watch(self) -> None:
        """End the trial's process where it goes on waiting for a rank that has ended."""
        ranks: dict[Any, int] = {process.sentinel: rank for rank, process in self._others.items()}
        while ranks:
            for sentinel in wait(list(ranks)):
                process = self._others[rank := ranks.pop(sentinel)]
                time.sleep(NOTICED_WITHIN_S)
                if process.exitcode and not self._ended:
                    sys.stderr.write(f"rank {rank} ended with status {process.exitcode}\n")
                    os.abort()
