"""What a step does: how long the host waits and launches, and how long the device works.

    Host       the step computes on the CPU; there is nothing to wait for
    Simulated  put, compute and synchronize of a simulated GPU, timed while it is observed
    Cuda       torch's profiler
    OtherGpu   Apple's (mps) or Intel's (xpu); only waiting until it is done
    kinds_of   what the host does in a step, from samples of its stack

A step that returns early has only queued its work.
"""

from __future__ import annotations

import builtins
import math
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from labkit.diagnosis.advice import advice_in_step
from labkit.diagnosis.batches import leaves, map_batch, move_batch
from labkit.diagnosis.facts import Kind, Readings
from labkit.diagnosis.tracer import is_own
from labkit.language import Name
from labkit.machine.gpu import index_in_use, other_gpu_in_use
from labkit.parts.devices import SimulatedGpu


class Host:
    """No device: the step computes on the CPU.  A context in which `readings` are counted."""

    label = "cpu"
    has_queue = False

    def __enter__(self) -> Host:
        self.readings = Readings()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        """Wait for the device."""

    def copying(self, batch: object, *, pinned: bool) -> Callable[[], object] | None:
        """Return a function that copies a batch to the device; None where there is nothing to copy.

        Args:
            batch: on the host.
            pinned: whether from pinned memory.
        """

    def how_copied(self, batch: object) -> tuple[bool, bool] | None:
        """Return whether the step copies from pinned memory, and whether beside computing.

        Args:
            batch: one that the step gets.

        Returns:
            None where it copies nothing.
        """


class Simulated(Host):
    """A simulated GPU, whose methods are timed while this context is open."""

    has_queue = True

    def __init__(self, device: SimulatedGpu) -> None:
        self.label, self.simulated_gpu = str(device.hardware), device
        self._copied = None  # what the step copied last
        self._how: Mapping[str, bool] = {}  # pinned, side_stream

    def __enter__(self) -> Simulated:
        super().__enter__()
        # On the instance, so that the class and other devices stay as they are.
        for name in ("put", "compute", "synchronize"):
            setattr(self.simulated_gpu, name, partial(self._timed, name))
        return self

    def _timed(self, name: str, *args: object, **how: bool) -> object:
        device, readings = self.simulated_gpu, self.readings
        waited_s, given_s = device.waited_s, device.compute_s
        result = getattr(type(device), name)(device, *args, **how)
        waited_s = device.waited_s - waited_s
        if name == "put":
            self._how, self._copied = how, result
        self.readings = replace(
            readings,
            waited_s=readings.waited_s + waited_s,
            copy_wait_s=readings.copy_wait_s + waited_s * (name == "put"),
            device_s=readings.device_s + device.compute_s - given_s,
            syncs=readings.syncs + (name == "synchronize"),
        )
        return result

    def __exit__(self, *_: object) -> None:
        for name in ("put", "compute", "synchronize"):
            vars(self.simulated_gpu).pop(name, None)

    def synchronize(self) -> None:
        """Wait for the device; not counted."""
        type(self.simulated_gpu).synchronize(self.simulated_gpu)

    def copying(self, batch: object, *, pinned: bool) -> Callable[[], object] | None:
        """Return a function that copies what the step copied last."""
        put = partial(self.simulated_gpu.put, pinned=pinned, side_stream=False)
        return None if self._copied is None else partial(put, self._copied)

    def how_copied(self, batch: object) -> tuple[bool, bool] | None:
        """Return how the step copied last."""
        how = self._how
        return (how["pinned"], how["side_stream"]) if how else None


class Cuda(Host):
    """A CUDA device.

    Args:
        index: torch's number of it.
    """

    has_queue = True

    def __init__(self, index: int) -> None:
        import torch

        self._cuda, self.torch_device = torch.cuda, torch.device("cuda", index)
        self.label = f"cuda:{torch.cuda.get_device_name(index)}"

    def synchronize(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize(self.torch_device)

    def copying(self, batch: object, *, pinned: bool) -> Callable[[], object]:
        """Return a function that copies a batch to the device."""
        source = map_batch(batch, _pin) if pinned else batch
        return partial(move_batch, source, self.torch_device)

    def how_copied(self, batch: object) -> tuple[bool, bool] | None:
        """Return whether all tensors of a batch that are on the host are pinned."""
        pinned = [t.is_pinned() for t in leaves(batch) if _is_on_host(t)]
        return (all(pinned), False) if pinned else None

    def profile(self, run: Callable[[], int]) -> Readings:
        """Return for how long the device ran kernels and copies, and the host waited for them.

        Args:
            run: what is profiled; returns the steps that it made.
        """
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            steps = run()
            self.synchronize()
        events = [event for event in seen.events() if not event.is_user_annotation]
        # Kernels that wait are no work of the device.
        spans_us = sorted(
            (event.time_range.start, event.time_range.end)
            for event in events
            if event.device_type == DeviceType.CUDA
            and not event.name.endswith((" Sync", " Wait Event"))
        )
        # Functions that return when the device is done; copies to pinned memory return at once.
        waits = [event for event in events if re.match(r"cuda\w*(Synchronize|Memcpy)", event.name)]
        syncs = Counter(event.name for event in waits if event.name.endswith("Synchronize"))
        ran_us, until_us = 0.0, -math.inf
        for start_us, end_us in spans_us:  # those of several streams may overlap
            ran_us += max(end_us - max(start_us, until_us), 0.0)
            until_us = max(end_us, until_us)
        readings = Readings(
            waited_s=sum(event.time_range.elapsed_us() for event in waits) / 1e6,
            device_s=ran_us / 1e6,
            # One function's alone: the loop itself calls another, at its start and end.
            syncs=max(syncs.values(), default=0),
        )
        return readings.per_step(steps)


class OtherGpu(Host):
    """Apple's or Intel's GPU: a copy is a part of the step.

    Args:
        label: "mps" or "xpu", as torch names it.
    """

    has_queue = True

    def __init__(self, label: str) -> None:
        self.label = label

    def synchronize(self) -> None:
        """Wait for the device."""
        import torch

        getattr(torch, self.label).synchronize()


def _pin(leaf: Any) -> object:
    return leaf.pin_memory() if _is_on_host(leaf) else leaf


def _is_on_host(leaf: Any) -> bool:
    return hasattr(leaf, "is_pinned") and leaf.device.type == "cpu"


def find_device(device: SimulatedGpu | None) -> Host:
    """Return what the step computes on; called after the step was called once.

    Args:
        device: a simulated GPU that the step uses, or None.
    """
    if device is not None:
        return Simulated(device)
    index = index_in_use()
    if index is not None:
        return Cuda(index)
    other = other_gpu_in_use()
    return OtherGpu(other) if other else Host()


# --- kinds of work of the host ------------------------------------------------------------------

# Kind -> what a frame of it looks like, such as "torch/serialization.py:save"; a file of the user's
# own has no folder.  The outermost frame that fits decides.
KINDS = {
    "checkpoint": re.compile(
        r"^torch/serialization\.py:_?save|^safetensors/|:f(data)?sync$|^pickle\.py:dump"
        r"|:_?save(_\w*(checkpoint|file|model|state)\w*)?$"
    ),
    "reports": re.compile(
        r"^(logging|http/client|urllib3?|requests|socket|wandb|tensorboardX?|torch/utils/tensorboard"
        r"|mlflow|tqdm|sqlite3|ipykernel/iostream)(/|\.py:)|^<built-in>:(socket\.|print$)"
    ),
    "synchronization": re.compile(
        r":(TensorBase|Tensor)?\.?(item|tolist|cpu|numpy|nonzero)$|:synchronize$"
        r"|^(labkit/)?(parts/devices|diagnosis/gpu)\.py:"
    ),
}
# Folders of modules that are not the user's own.
_LABKIT = f"{Path(__file__).parents[1]}/"
_FOLDERS = (f"{sysconfig.get_path('stdlib')}/", _LABKIT)


def _module(file: str) -> str:
    """Return a file's place in its package or the standard library; of the user's own, its name."""
    package = file.rpartition("-packages/")[2]
    for folder in _FOLDERS:
        package = package.removeprefix(folder)
    return Path(file).name if package == file else package


def kinds_of(run: Callable[[], object], *, on_gpu: bool) -> dict[str, Kind]:
    """Profile a function and divide its time among kinds of work.

    Args:
        run: calls the step some hundred times.
        on_gpu: whether torch's functions launch work of a GPU instead of computing.

    Returns:
        Those of `KINDS`, "compute" and "launch" for what libraries did, "host work" for all other
        Python.
    """
    from pyinstrument import Profiler

    with Profiler(interval=0.001, async_mode="disabled") as profiler:
        run()
    spent: dict[str, Any] = defaultdict(Counter)
    for stack, spent_s in profiler.last_session.frame_records:
        # pyinstrument's frames are "function\0file\0line\1cClass\1…".
        places = [frame.split("\x00")[:2] for frame in stack]
        # What called this function, such as a user's own `save`, is no part of the step.
        begun = places.index(["kinds_of", __file__]) + 1 if ["kinds_of", __file__] in places else 0
        stack, places = stack[begun:] or stack, places[begun:] or places
        frames = [f"{_module(file)}:{function}" for function, file in places]
        own = [
            i
            for i, (function, file) in enumerate(places)
            if is_own(file) and not file.startswith(("<", _LABKIT)) and not function.startswith("<")
        ]
        function = ""
        if own:
            known = filter(None, map(_known_function, stack[own[-1] :]))
            function = next(known, places[own[-1]][0])
        spent[_kind_of(frames, on_gpu)][function] += spent_s
    total_s = sum(functions.total() for functions in spent.values()) or 1.0
    return {
        kind: Kind(functions.total() / total_s, Name(functions.most_common(1)[0][0]))
        for kind, functions in spent.items()
    }


@cache
def _known_function(frame: str) -> str:
    """Return the name of a function of which advice is known; "" where none is.

    Args:
        frame: pyinstrument's.
    """
    function, file, rest = frame.split("\x00", 2)
    owner = next((part[1:] for part in rest.split("\x01") if part.startswith("c")), "")
    package = "" if is_own(file) else _module(file).partition("/")[0].removesuffix(".py")
    name = ".".join(filter(None, (package, owner, function)))
    return name if advice_in_step(name) else ""


def _kind_of(stack: list[str], on_gpu: bool) -> str:
    for frame in stack:
        for kind, pattern in KINDS.items():
            if pattern.search(frame):
                return kind
    # A built-in function has no file: it is torch's where torch called it.
    of_torch = r"^torch/|^<built-in>:_?(Tensor|Variable)"
    if any(re.search(of_torch, frame) for frame in stack[-2:]):
        return "launch" if on_gpu else "compute"
    # Calls of these libraries are computing, whatever called them.
    of_library = r"^(numpy|scipy|cv2|PIL)/|^<built-in>:(ndarray|Imaging)"
    computes = any(re.search(of_library, frame) for frame in stack[-2:])
    name = stack[-1].removeprefix("<built-in>:")
    # OpenCV's functions know no module.
    is_opencv = hasattr(sys.modules.get("cv2"), name) and not hasattr(builtins, name)
    computes = computes or (is_opencv and not hasattr(math, name))
    return "compute" if computes else "host work"
