"""What the parts promise each other, and how a part says that it cannot be used here.

    reader -> Sample -> preprocessor -> batch of named arrays -> device -> step

What a finished batch holds stands in `labkit.batches`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from labkit.records import Hardware
from labkit.settings import Settings

if TYPE_CHECKING:
    import torch


class Chosen(Protocol):
    """The parts that a variant's settings name, as each of them sees the others.

    Parts do not import each other, so their kinds are not named here.
    """

    @property
    def settings(self) -> Settings:
        """The variant's, complete."""

    @property
    def storage(self) -> Any:
        """A `parts.storage.Storage`."""

    @property
    def preprocessor(self) -> Any:
        """A `parts.preprocessing.Preprocessor`."""

    @property
    def loader(self) -> Any:
        """A `parts.loading.Loader`."""

    @property
    def device(self) -> Any:
        """A `parts.devices.DevicePart`."""

    @property
    def step(self) -> Any:
        """A `parts.training.StepPart`."""

    def names(self, setting: str, fits: Callable[[Any], bool]) -> list[str]:
        """List the names in a setting's table whose parts fit."""


@dataclass(frozen=True)
class Part:
    """A function in a table of parts, with what others need to know of it.

    Each table has a kind of its own with more facts.  A bare function in a table counts as a part
    with the defaults.
    """

    function: Callable[..., Any]
    library: str = field(default="", kw_only=True)
    """The library that does the work, by its name in `records.Provenance.versions`; "" where none
    but torch and labkit's own code does."""

    def __call__(self, *args: Any, **how: Any) -> Any:
        """Call the function."""
        return self.function(*args, **how)

    def why_not(self, chosen: Chosen) -> str:
        """Return why the part cannot be used here beside the other ones; "" where it can.

        Raises:
            ValueError: the settings do not fit together on any machine.
        """
        return ""


AnyPart = TypeVar("AnyPart", bound=Part)


def as_part(kind: type[AnyPart], entry: Any) -> AnyPart:
    """Return a table's entry as a part; a bare function becomes one with the defaults."""
    return entry if isinstance(entry, kind) else kind(entry)


class DeviceBatch(dict):
    """A batch on its device: entry name -> tensor, and when its copy is done."""

    ready: Any = None
    """A CUDA event, the simulated clock's second, or None where nothing is pending."""


class Device(Protocol):
    """What prefetchers and steps may ask of a device."""

    hardware: Hardware
    """As rows have it."""
    torch_device: torch.device
    is_simulated: bool
    """It computes nothing, and only takes the time: see `parts.devices.SimulatedGpu`."""

    def put(
        self, batch: Mapping[str, torch.Tensor], *, pinned: bool, side_stream: bool
    ) -> DeviceBatch:
        """Start copying a batch to the device."""

    def wait(self, batch: DeviceBatch) -> None:
        """Make the compute stream wait until a batch has arrived; the host goes on."""

    def synchronize(self) -> None:
        """Make the host wait until the steps are done, as `.item()` does; later copies go on."""


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """The boxes of one image."""

    boxes_xyxy: np.ndarray
    """(N, 4) float32, left, top, right, bottom in pixels of the image as stored."""
    category_ids: np.ndarray
    """(N,) int64 COCO category ids, 1 to 90 with gaps."""
    size_px: tuple[int, int] | None = None
    """Width and height of the original, where fewer pixels of it are stored; None: as stored."""


class ImageInParts(Protocol):
    """An image whose parts become pixels when they are taken."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height and width in pixels, and 3 colors."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: tuple[slice, slice]) -> np.ndarray:
        """Return rows and columns of the image as uint8 RGB."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all of it: (H, W, 3) uint8 RGB, C-contiguous."""


# What is stored of an image: a JPEG file, pixels, planes, or a preprocessor's arrays by name.
Content = bytes | np.ndarray | ImageInParts | dict[str, np.ndarray]


class Reader(Protocol):
    """An opened dataset; picklable, and forked without copies."""

    @property
    def root(self) -> Path:
        """The folder that was opened, absolute."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that hold the images, and whose page cache matters; absolute."""

    @property
    def companions(self) -> tuple[Path, ...]:
        """The other files that belong to the data: boxes, manifest; absolute."""

    @property
    def stored(self) -> str:
        """What is stored of an image: jpeg, resized, pixels, sample, small or yuv420."""

    @property
    def boxes(self) -> str:
        """Where the boxes come from: "coco" (stored) or "synthesized" (invented)."""

    @property
    def has_manifest(self) -> bool:
        """Whether labkit made it, with a manifest.json of every file."""

    @property
    def kind(self) -> str:
        """The data in words, as manifest.json has them; "" where it has none."""

    @property
    def data_hash(self) -> str:
        """SHA-256 of manifest.json in hex; without one, "sizes:" and that of names and sizes."""

    @property
    def image_bytes(self) -> np.ndarray:
        """(N,) int64, what each image takes on the medium."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """Return the image's path in its folder, or in the folder it was packed from."""

    def where(self, i: int) -> str:
        """Return the file of image `i`, and the record in a pack, for messages."""

    def files_of(self, indices: Iterable[int]) -> tuple[Path, ...]:
        """List the files that hold these images."""

    def extents_of(self, indices: Iterable[int]) -> list[tuple[Path, int, int]]:
        """List where each of these images lies: file, first byte and the one after the last.

        Raises:
            Skip: the format does not tell.
        """

    def close(self) -> None:
        """Close the files; the next read opens them again."""

    def read(self, i: int) -> tuple[Content, Annotation]:
        """Read image `i` as it is stored, and its boxes.

        Returns:
            JPEG bytes, (H, W, 3) uint8 pixels, an image in planes, or a finished sample's arrays by
            name.

        Raises:
            OSError: the file cannot be read; the message names it.
            ValueError: it is damaged; the message names the file, and the record in a pack.
        """

    def annotation(self, i: int) -> Annotation:
        """Return image `i`'s boxes without reading it; synthesized ones may be in another unit."""

    def verify(self, indices: Iterable[int]) -> list[str]:
        """Compare images with the manifest, byte for byte; this warms the page cache.

        Returns:
            One line per image that is missing or differs; empty where all is well.
        """


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One decoded image with its boxes and everything its random draws depend on."""

    image_rgb: np.ndarray
    """(H, W, 3) uint8, C-contiguous; for a preprocessor with `in_pillow`, what Pillow decoded is
    still a Pillow image, and for one with `in_parts`, what is stored in planes is still planes."""
    annotation: Annotation
    sample_id: int
    epoch: int
    seed: int
    size_px: tuple[int, int] | None = None
    """Width and height of the original, where a scaled decoder made fewer pixels, or fewer are
    stored; None: image_rgb's."""


@dataclass(frozen=True, kw_only=True)
class ResizeAndNormalize:
    """Preprocessing that is nothing else, in numbers, for pipelines that do it themselves.

    The whole image, or what `Preprocessor.crop` takes of it, to a square with the linear filter;
    a crop that the filter shrinks may be averaged.  Then `pixel * scale + shift` for each color,
    then planes; or, without scale and shift, uint8 pixels, a flipped crop mirrored.
    """

    label: Callable[[Annotation], int]
    """From boxes in any unit to the class index."""
    scale_rgb: tuple[float, float, float] | None = None
    shift_rgb: tuple[float, float, float] | None = None


def check_image(image_rgb: np.ndarray) -> None:
    """Check what every decoder promises.

    Raises:
        ValueError: not (H, W, 3), not uint8 or not C-contiguous.
    """
    if image_rgb.ndim != 3 or image_rgb.shape[2] != 3:
        raise ValueError(f"decoded image must be (H, W, 3), got {image_rgb.shape}")
    if image_rgb.dtype != np.uint8:
        raise ValueError(f"decoded image must be uint8, got {image_rgb.dtype}")
    if not image_rgb.flags.c_contiguous:
        raise ValueError("decoded image must be C-contiguous, got a strided view")


class Skip(Exception):  # noqa: N818 - not an error: the variant cannot run here, and that is shown
    """Raised where a variant cannot run on this machine; the text is the reason shown."""


class Cancelled(Exception):  # noqa: N818 - a request, not an error
    """The user cancelled; everything that was started has been ended."""


LONGEST_REASON = 200  # characters of a library's own message; it has to stay one line


def why_not_installed(module: str, install: str) -> str:
    """Return why a library that not every user has cannot be used, without importing it.

    Args:
        module: what would be imported.
        install: what pip installs it by.

    Returns:
        One line; "" where it is installed, if broken or not.
    """
    try:
        is_installed = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of what the module lies in
        is_installed = False
    return "" if is_installed else f"{module} is not installed; pip install {install}"


def open_library(module: str, install: str) -> ModuleType:
    """Import a library that not every user has.

    Args:
        module: what to import.
        install: what pip installs it by.

    Raises:
        Skip: it is missing, or it is installed and broken; one line says which.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken library may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise Skip(f"{module} is not installed; pip install {install}") from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
        raise Skip(
            f"{module} is installed and broken ({reason}); install it again: pip install {install}"
        ) from error
