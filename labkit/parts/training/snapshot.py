"""Snapshot: a state as it is now, copied to host memory that is allocated once and used again.

    state ─┬─ tensors ─ copy ─▶ memory (of this process, or shared with another)
           └─ all else ─ pickle ─▶ skeleton: where in the memory each tensor lies

Main trap: a copy from a CUDA device that is not waited for holds some old and some new values;
one to memory that is not page-locked is waited for at every tensor.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle

import numpy as np
import torch

ALIGNMENT_BYTES = 64  # a cache line, and a multiple of every dtype's size
PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every CUDA device


class Memory:
    """Host memory for one snapshot; grows when a larger one comes.

    Args:
        descriptor: a file in memory that another process has, too; without one the memory is this
            process's own.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._is_locked = False
        self.used_bytes = 0
        """Of the last snapshot."""

    def take(self, state: dict) -> bytes:
        """Copy a state; it may be changed when this returns.

        Returns:
            The skeleton, for `restore` on this memory, in this process or in the other one.
        """
        pickler = _Pickler()
        pickler.dump(state)
        self.used_bytes = pickler.size_bytes
        self.reserve(pickler.size_bytes)
        devices = {tensor.device for tensor in pickler.tensors if tensor.is_cuda}
        if devices:
            self._lock_pages()
        for tensor, place in zip(pickler.tensors, pickler.places.values()):
            if tensor.is_cuda:
                self._tensor(place).copy_(tensor, non_blocking=True)
            elif tensor.numel():
                # torch would copy with all its threads, and hundreds of times wait for the last
                # of them: where loader workers keep the cores busy, for longer than writing takes.
                np.copyto(_bytes_of(self._tensor(place)), _bytes_of(tensor))
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return pickler.file.getvalue()

    def restore(self, skeleton: bytes) -> dict:
        """Give the state of a snapshot; its tensors are this memory, until the next is taken."""
        unpickler = pickle.Unpickler(io.BytesIO(skeleton))
        known: dict[tuple, torch.Tensor] = {}  # what shares memory goes on sharing it

        def load(place: tuple) -> torch.Tensor:
            if place not in known:
                known[place] = self._tensor(place)
            return known[place]

        unpickler.persistent_load = load
        return unpickler.load()

    def reserve(self, size_bytes: int) -> None:
        """Have room for at least so many bytes."""
        if size_bytes <= (len(self._map) if self._map else 0):
            return
        self.close()
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, size_bytes)
        self._map = mmap.mmap(self._descriptor, size_bytes)

    def close(self) -> None:
        """Give the memory back, as soon as no tensor lies in it."""
        if self._is_locked:
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self._address()))
        self._map, self._is_locked = None, False

    def _lock_pages(self) -> None:
        if not self._is_locked and self._map:
            register = torch.cuda.cudart().cudaHostRegister
            torch.cuda.check_error(register(self._address(), len(self._map), PORTABLE))
            self._is_locked = True

    def _address(self) -> int:
        return torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()

    def _tensor(self, place: tuple) -> torch.Tensor:
        offset, dtype, shape = place
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        # Each has a storage of its own: torch.save writes the whole storage that a tensor lies in.
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)


def size_of(state: dict) -> int:
    """Say how many bytes the tensors of a state take."""
    pickler = _Pickler()
    pickler.dump(state)
    return pickler.size_bytes


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy()


class _Pickler(pickle.Pickler):
    """Pickles all but the tensors, and gives each of those a place."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []
        self.places: dict[tuple, tuple] = {}
        self.size_bytes = 0

    def persistent_id(self, value: object) -> tuple | None:
        if not isinstance(value, torch.Tensor):
            return None
        # state_dict() makes a new tensor for a shared weight each time, on the same memory.
        same = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
        if same not in self.places:
            self.places[same] = (self.size_bytes, value.dtype, tuple(value.shape))
            self.tensors.append(value.detach())
            self.size_bytes += -(-value.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return self.places[same]
