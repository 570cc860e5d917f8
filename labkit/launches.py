"""Launches: how often a piece of training code calls PyTorch's operators, and launches kernels.

    loss, forward and backward ─▶ ATen operators that were dispatched ─▶ kernels on a GPU

Each call costs the host microseconds, however little there is to compute: that is what loops over
boxes are slow by.  Main trap: counting slows every call down, so nothing is timed meanwhile.
Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable


def count_operators(run: Callable[[], object]) -> int:
    """Count the ATen operators that are dispatched while a function runs.

    Args:
        run: called once; only what its own thread and its backward pass dispatch is counted.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = 0

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            nonlocal calls
            calls += 1
            return operator(*args, **(kwargs or {}))

    with Counting():
        run()
    return calls


def count_launches(run: Callable[[], object]) -> int | None:
    """Count the kernels that a GPU ran for a function, whichever thread launched them.

    Args:
        run: called once, on tensors of the GPU.

    Returns:
        None without a GPU.
    """
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    return sum(
        event.device_type == DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset"))
        for event in profiler.events()
    )
