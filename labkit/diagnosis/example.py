"""An example to diagnose: a training loop as users write it, with the DataLoader's defaults.

    folder of .jpg ─▶ Photos: read, decode, resize, normalize ─▶ DataLoader ─▶ step

Without a GPU the step occupies a simulated GPU and trains nothing; what is measured of loading
is real.  Labels are made up in either case.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.machine.clock import SystemClock
from labkit.machine.gpu import cuda
from labkit.parts.devices import GPUS, GpuSpeeds, SimulatedGpu

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

SIDE_PX = 256
GPU = "resnet50_a100"


class Example(NamedTuple):
    """Arguments of `diagnose`."""

    loader: DataLoader
    step: Callable[[object], None]
    files: list[Path]
    """What the loader reads."""
    device: SimulatedGpu | None
    """Simulated GPU; None on CUDA."""


class Photos:
    """A folder of photographs as a data set: the i-th image and a label.

    Args:
        files: .jpg files.
    """

    def __init__(self, files: list[Path]) -> None:
        import cv2

        # OpenCV's own threads do not survive the fork that starts the workers.
        cv2.setNumThreads(0)
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        """Return (3, SIDE_PX, SIDE_PX) float32 planes and a class."""
        return normalize(resize(decode(self._files[i].read_bytes()))), i % 80  # classes


def decode(jpeg: bytes) -> np.ndarray:
    """Decode JPEG bytes to (H, W, 3) uint8 RGB."""
    import cv2

    image_bgr = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(image_bgr, cv2.COLOR_BGR2RGB)


def resize(image_rgb: np.ndarray) -> np.ndarray:
    """Resize an image to a square of SIDE_PX."""
    import cv2

    return cv2.resize(image_rgb, (SIDE_PX, SIDE_PX))


def normalize(image_rgb: np.ndarray) -> np.ndarray:
    """Return (3, H, W) float32, normalized with ImageNet's mean and standard deviation."""
    mean = np.array([0.485, 0.456, 0.406], np.float32)
    std = np.array([0.229, 0.224, 0.225], np.float32)
    scaled = (image_rgb / np.float32(255) - mean) / std
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def example_loop(data: str = "data/photos", *, images: int = 192, **options: Any) -> Example:
    """Return a loop to diagnose: photographs through torch's DataLoader with its defaults.

    Args:
        data: any folder of .jpg files.
        images: images of an epoch, at most.
        **options: arguments of the DataLoader, such as num_workers=2.

    Returns:
        Loader, step, files and device.  The step trains a ResNet-18 on CUDA where that works,
        and occupies a simulated GPU elsewhere.

    Raises:
        ValueError: the folder has no .jpg files.

    Examples:
        >>> loop = lab.example_loop(images=8)
        >>> len(loop.loader.dataset)
        8
    """
    from torch.utils.data import DataLoader

    files = sorted(p for p in Path(data).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise ValueError(f"data must be a folder with .jpg files, got none in {data}")
    files = files[:images]
    photos: Any = Photos(files)  # torch asks for no base class
    loader: DataLoader = DataLoader(photos, batch_size=8, shuffle=True, **options)
    if cuda().works:
        return Example(loader, _train_on_cuda(), files, None)
    device = SimulatedGpu(GpuSpeeds(name=GPU, gpu_images_per_s=GPUS[GPU]), SystemClock())

    def step(batch: Any) -> None:
        pictures, labels = batch
        entries = {"image": pictures, "label": labels}
        device.wait(device.put(entries, pinned=False, side_stream=False))
        device.compute(len(labels))

    return Example(loader, step, files, device)


def _train_on_cuda() -> Callable[[object], None]:
    import torch

    from labkit.parts.training.model import build_classifier

    model = build_classifier().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        pictures, labels = (tensor.cuda() for tensor in batch)
        loss = torch.nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
