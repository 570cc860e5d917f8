"""What the parts promise each other, what a row and a run hold, and the clock.

    reader -> Sample -> preprocessor -> batch of named arrays -> step -> Epoch -> Trial, one row

The checks of images and batches run before anything is timed: a variant that delivers something
else than the others never gets a time.  Two libraries can agree on the shape and still differ in
channel order, so `difference` compares pixels.
"""

from __future__ import annotations

import calendar
import functools
import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np

from labkit.settings import CORRECTED, Settings

if TYPE_CHECKING:
    import torch


CLASSES = 80  # COCO object classes
MAX_BOXES = 128  # slots for boxes per image, as in CenterNet's detector sample
STRIDE = 4  # input pixels per heat map cell, CenterNet's down_ratio
JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
START_OF_SCAN = 0xDA
# JPEG markers C0 to CF start a frame, except Huffman tables, an extension and arithmetic coding.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Where Pillow starts to warn of decompression bombs: 256 MiB decoded.
MAX_PIXELS = 89_478_485


# How much of the files memory holds where they count as cold, as warm, and around a percentage:
# neighbours in a pack share pages, and a few images make no exact share.
COLD_MAX_SHARE, WARM_MIN_SHARE, CACHED_WITHIN = 0.02, 0.98, 0.05


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


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What of a variant's parts counts where variants are compared; `run.json` keeps it."""

    repeats_one_batch: bool = False
    """Nothing is loaded in the epochs."""
    trains_nothing: bool = False
    """The step does nothing."""
    steps_short: int = 0
    """Steps that it left out of every epoch, in runs of earlier versions."""
    has_own_order: bool = False
    """The images of an epoch come in another order than the other loaders'."""
    loads_outside: bool = False
    """The loader reads, decodes and preprocesses by itself, and rounds in its own way."""
    decodes_scaled: bool = False
    """The decoder returns fewer pixels than the image has."""
    stays_in_memory: bool = False
    """The files are never anywhere but in memory."""
    is_on_cpu: bool = False
    is_simulated: bool = False
    """The device is a simulated one."""
    finishes_on_device: bool = False
    """The device finishes the preprocessing."""

    @property
    def leaves_out(self) -> frozenset[str]:
        """What of the work it does not do: "loading", "computing"."""
        left_out = {"loading": self.repeats_one_batch, "computing": self.trains_nothing}
        return frozenset(name for name, is_left_out in left_out.items() if is_left_out)


class Clock(Protocol):
    """What tells the time; tests give a fake one."""

    def now(self) -> float:
        """Seconds since some fixed moment."""

    def sleep_until(self, deadline_s: float) -> None:
        """Return at the deadline, or at once if it has passed, leaving the core free."""

    def spin_until(self, deadline_s: float) -> None:
        """Return at the deadline, keeping the core busy, without the GIL."""

    def launch(self, seconds: float) -> None:
        """Do work of the host that takes so long on a free core, in small operations of torch."""


class DeviceBatch(dict):
    """A batch on its device: entry name -> tensor, and when its copy is done."""

    ready: Any = None
    """A CUDA event, the emulated clock's second, or None where nothing is pending."""


class Device(Protocol):
    """What prefetchers and steps may ask of a device."""

    label: str
    """What the rows call it: cuda:<name>, cpu or emulated(<profile>)."""
    torch_device: torch.device
    emulated: bool
    """It computes nothing, and only takes the time: see `parts.devices.EmulatedDevice`."""

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


# What is stored of an image: a JPEG file, pixels, or a preprocessor's arrays by name.
Content = bytes | np.ndarray | dict[str, np.ndarray]


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
        """What is stored of an image: jpeg, resized, pixels or sample."""

    @property
    def boxes(self) -> str:
        """Where the boxes come from: "coco" (stored) or "synthesized" (invented)."""

    @property
    def has_manifest(self) -> bool:
        """Whether labkit made it, with a manifest.json of every file."""

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
            JPEG bytes, (H, W, 3) uint8 pixels or a finished sample's arrays by name.

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
    still a Pillow image."""
    annotation: Annotation
    sample_id: int
    epoch: int
    seed: int
    size_px: tuple[int, int] | None = None
    """Width and height as stored, where a scaled decoder made fewer pixels; None: image_rgb's."""


@dataclass(frozen=True, kw_only=True)
class ResizeAndNormalize:
    """Preprocessing that is nothing else, in numbers, for pipelines that do it themselves.

    The whole image to a square with the linear filter (four pixels, no averaging), then
    `pixel * scale + shift` for each color, then planes.
    """

    scale_rgb: tuple[float, float, float]
    shift_rgb: tuple[float, float, float]
    label: Callable[[Annotation], int]
    """From boxes in any unit to the class index."""


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """Shape and dtype of one entry of a finished batch."""

    shape: tuple[int, ...]
    dtype: str
    tolerance: float
    """Largest absolute difference from the baseline's entry that still is the same work."""


# Normalized pixels span about -2.2 to 2.7.  float32 sums taken in another order differ by
# about 1e-5; a wrong filter, channel order or a second normalization differs by 0.01 and more.
IMAGE_TOLERANCE = 1e-3
# Libraries turn a resized grey level into a whole number by rounding (OpenCV) or by dropping
# its fraction (Pillow): at most one level apart, where a wrong filter is tens apart at edges.
# One level is largest where the standard deviation is smallest, 0.224.
RESIZED_TOLERANCE = 1 / 255 / 0.224 + IMAGE_TOLERANCE
# Heat maps lie in 0 to 1; a product of two float32 exponentials against one is off by 1e-7.
HEATMAP_TOLERANCE = 1e-5
# Decoders may differ by a few grey levels where chroma is upsampled; one level is 1/57 there.
DECODED_TOLERANCE_LEVELS = 3.0
# Images that were scaled before they were stored are filtered twice: 3 levels apart on average, 4
# compressed again (measured at 256 px); another image, or red in place of blue, tens.
SCALED_TOLERANCE_LEVELS = 8.0
# A scaled decode averages what the linear filter of four pixels leaves out: up to 8.8 levels apart
# in a batch of 8 from 64 px on; red in place of blue 14.9 and more (1,000 photographs, measured).
SCALED_DECODING_TOLERANCE_LEVELS = 12.0
# Pillow and OpenCV weigh the pixels of a shrunk crop differently: up to 2.3 levels apart in a batch
# of 8 from 64 px on, 4.0 in a single image; red in place of blue 14.0 and more, the other half of
# the flips 31 (240 photographs, measured).
AVERAGED_TOLERANCE_LEVELS = 6.0


def detector_batch(batch_size: int, input_px: int) -> dict[str, ArraySpec]:
    """Describe the finished batch of the detector sample (CenterNet's, DOCUMENTS B).

    Returns:
        entry name -> spec; `sample_id` says which images are in it.
    """
    cells = input_px // STRIDE
    return {
        "image": ArraySpec(
            shape=(batch_size, 3, input_px, input_px), dtype="float32", tolerance=IMAGE_TOLERANCE
        ),
        "heatmap": ArraySpec(
            shape=(batch_size, CLASSES, cells, cells), dtype="float32", tolerance=HEATMAP_TOLERANCE
        ),
        "size_wh": ArraySpec(shape=(batch_size, MAX_BOXES, 2), dtype="float32", tolerance=1e-4),
        "offset_xy": ArraySpec(shape=(batch_size, MAX_BOXES, 2), dtype="float32", tolerance=1e-4),
        "cell": ArraySpec(shape=(batch_size, MAX_BOXES), dtype="int64", tolerance=0),
        "mask": ArraySpec(shape=(batch_size, MAX_BOXES), dtype="uint8", tolerance=0),
        "sample_id": ArraySpec(shape=(batch_size,), dtype="int64", tolerance=0),
    }


def classifier_batch(batch_size: int, input_px: int) -> dict[str, ArraySpec]:
    """Describe the finished batch of the classification sample.

    Returns:
        entry name -> spec; `label` is the class index of the image's largest box.
    """
    return {
        "image": ArraySpec(
            shape=(batch_size, 3, input_px, input_px), dtype="float32", tolerance=RESIZED_TOLERANCE
        ),
        "label": ArraySpec(shape=(batch_size,), dtype="int64", tolerance=0),
        "sample_id": ArraySpec(shape=(batch_size,), dtype="int64", tolerance=0),
    }


# What a step needs -> the batch that satisfies it.
BATCHES = {"detector": detector_batch, "classifier": classifier_batch}


def bytes_of(specs: Mapping[str, ArraySpec]) -> int:
    """Return the size of a finished batch."""
    return sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs.values())


def read_size_px(jpeg: bytes) -> tuple[int, int]:
    """Return an image's width and height as stored, without decoding it.

    Libraries disagree about incomplete files (OpenCV returns half a gray image, Pillow raises), so
    these are refused here, before any library sees them. This takes a few microseconds.

    Raises:
        ValueError: not a JPEG file, truncated or damaged.

    Source: ITU-T T.81, annex B.
    """
    if not jpeg.startswith(JPEG_START):
        raise ValueError(
            f"image must be a JPEG file, got {len(jpeg)} bytes starting with {jpeg[:8]!r}; "
            "replace it, or convert it to JPEG"
        )
    width_px = height_px = 0
    at = 2
    while at + 1 < len(jpeg) and (marker := jpeg[at + 1]) != START_OF_SCAN:
        if jpeg[at] != 0xFF or marker == JPEG_END[1]:
            raise ValueError(
                f"image must be an undamaged JPEG, got no marker at byte {at}; replace the file"
            )
        if marker == 0xFF:  # fill byte before a marker
            at += 1
            continue
        if marker in FRAMES:
            height_px = int.from_bytes(jpeg[at + 5 : at + 7])
            width_px = int.from_bytes(jpeg[at + 7 : at + 9])
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    # In compressed data FF is followed by 00 or a restart marker, so an end marker behind the
    # start of scan is a real one. Phones append videos to it, so it need not be the last bytes.
    if jpeg.rfind(JPEG_END, at) < 0:
        raise ValueError(
            f"image must be a complete JPEG, got {len(jpeg)} bytes without an end marker; "
            "copy or download it again"
        )
    if not 0 < width_px * height_px <= MAX_PIXELS:
        raise ValueError(
            f"image must have 1 to {MAX_PIXELS} pixels, got {width_px} x {height_px}; "
            "scale it down, or replace the file"
        )
    return width_px, height_px


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


def check_batch(batch: Mapping[str, np.ndarray], specs: Mapping[str, ArraySpec]) -> None:
    """Check names, shapes and dtypes of a finished batch.

    Raises:
        ValueError: an entry is missing, left over, or of another shape or dtype.
    """
    if set(batch) != set(specs):
        raise ValueError(
            f"batch must have exactly the entries {', '.join(sorted(specs))}, "
            f"got {', '.join(sorted(batch))}"
        )
    for name, spec in specs.items():
        array = batch[name]
        if tuple(array.shape) != spec.shape:
            raise ValueError(f"batch[{name!r}] must have shape {spec.shape}, got {array.shape}")
        if str(array.dtype) != spec.dtype:
            raise ValueError(f"batch[{name!r}] must be {spec.dtype}, got {array.dtype}")


def difference(
    batch: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    specs: Mapping[str, ArraySpec],
    *,
    levels: float | None = None,
) -> str:
    """Return in one line how a batch differs from the baseline's; '' where the work is the same.

    Args:
        batch: entry name -> array, already checked by `check_batch`.
        reference: the baseline's batch, likewise.
        specs: the tolerances.
        levels: compare pixels by their mean difference, within so many grey levels; None: every
            pixel must be the same, within the tolerance.

    Returns:
        "" or a sentence naming the entry, the rule and the value.
    """
    for name, spec in specs.items():
        # Image by image: a batch that fits into memory must not fail for want of its comparison.
        largest, mean = _apart(zip(batch[name], reference[name]))
        allowed, found, rule = spec.tolerance, largest, "at most"
        if name == "image" and levels is not None:
            # 0.224 is the smallest standard deviation that images are normalized by.
            allowed, found, rule = levels / 255 / 0.224, mean, "on average at most"
        if not found <= allowed:  # nor where it is no number
            return f"{name} must differ from the baseline's by {rule} {allowed:g}, got {found:g}"
    return ""


def _apart(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
    """Find how far rows of equal size are apart: at most, and on average."""
    found = [(0.0, 0.0)]
    for a, b in pairs:
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
        found.append((apart.max(initial=0.0), apart.mean() if apart.size else 0.0))
    largest, means = np.array(found).T
    return float(largest.max()), float(means.sum() / max(1, len(found) - 1))


# Format history
#   1  first version
#   2  run; medium; file_bytes in cache_proof, major_faults and gpu clocks in disturbance;
#      last_ids_crc and last_means in epochs
#   3  peak_pss_bytes, peak_shm_bytes, gpu_allocated_bytes, gpu_reserved_bytes, first_loss;
#      waits_s and callbacks_s in epochs
#   4  group
#   5  resident_shares_before in cache_proof: one per epoch, where `cached` is set;
#      unreadable_images
#   6  arrivals_s in epochs
SCHEMA = 6
PER_STEP = ("waits_s", "arrivals_s")  # fields of an epoch with a number per step
UTC = "%Y-%m-%dT%H:%M:%SZ"

Status = Literal["ok", "skipped", "failed", "cancelled"]


class Skip(Exception):  # noqa: N818 - not an error: the variant cannot run here, and that is shown
    """Raised where a variant cannot run on this machine; the text is the reason shown."""


class Cancelled(Exception):  # noqa: N818 - a request, not an error
    """The user cancelled; everything that was started has been ended."""


LONGEST_REASON = 200  # characters of a library's own message; it has to stay one line


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


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One timed epoch, from creating the iterator to the final synchronize."""

    epoch_s: float
    startup_s: float
    """Creating the iterator: starting worker processes and prefetch threads."""
    first_batch_s: float
    """From the start of the epoch until the first batch was on the device."""
    wait_s: float
    """Host waiting for data, whatever the device does meanwhile; start-up not included."""
    transfer_s: float
    """Host busy or blocked handing batches to the device."""
    forward_s: float | None
    """Host time of the forward pass; None where the device has none (emulated)."""
    backward_s: float | None
    launch_s: float | None
    """Host time launching work on the emulated device; None where forward and backward are."""
    sync_s: float
    """Host waiting for the device (`sync_every` and the end of the epoch)."""
    steps: int
    images: int
    batch_bytes: int
    """Bytes handed to the device, all batches together."""
    compute_s: float | None
    """Device time spent on steps: the emulated device's timeline; None elsewhere."""
    last_ids_crc: int | None = None
    """CRC-32 of the last batch's sample ids, in order, as int64."""
    last_means: dict[str, float | list[float]] | None = None
    """Entry of the last batch -> its mean; of planes of red, green and blue, one mean each."""
    callbacks_s: float | None = None
    """Host busy or waiting with what is done beside the steps: checkpoints, reports, metrics."""
    waits_s: tuple[float, ...] | None = None
    """What `wait_s` adds up: one wait per step, to the microsecond."""
    arrivals_s: tuple[float, ...] | None = None
    """When each batch was on the device, from the start of the epoch, to the microsecond; of
    several ranks, rank 0's."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of one variant in a fresh process."""

    experiment: str
    variant: str
    group: str = ""
    """What its time is compared within, as "decode, 640×480"; empty where all variants compare."""
    block: int
    position: int
    """Place in the block's order, from 0."""
    role: Literal["A1", "A2", ""] = ""
    """Which of the baseline's two runs in a block this is; empty for other variants."""
    settings: dict[str, Any]
    status: Status
    reason: str = ""
    epochs: tuple[Epoch, ...] = ()
    cpu_s: float | None = None
    """CPU-seconds of the trial and its workers during the epochs."""
    cpu_percent: float | None = None
    """cpu_s over wall time; 200 means two busy cores."""
    gpu_util_mean: float | None = None
    gpu_memory_bytes: int | None = None
    """Most that NVML saw in use on the whole GPU, by whatever program."""
    gpu_allocated_bytes: int | None = None
    """Most that torch's tensors held on the CUDA device during the epochs."""
    gpu_reserved_bytes: int | None = None
    """Most that torch's allocator had taken of it, in use or kept for later."""
    emulated_busy_share: float | None = None
    """Share of the epochs in which the emulated device computed."""
    peak_rss_bytes: int | None = None
    """Largest resident memory of the training process."""
    peak_pss_bytes: int | None = None
    """Largest proportional memory seen of the training process and its workers together."""
    peak_shm_bytes: int | None = None
    """Most that was seen in /dev/shm beyond what was there before the epochs."""
    cache_proof: dict[str, Any] = field(default_factory=dict)
    disturbance: dict[str, Any] = field(default_factory=dict)
    medium: dict[str, Any] = field(default_factory=dict)
    """What the files lay on: filesystem, device, rotational, cold_reads_per_s (None: unknown)."""
    labels: dict[str, str] = field(default_factory=dict)
    """storage=real|throttled|modelled|emulated distance|unknown, cache=cold|warm|50 % cached
    as verified, accelerator=cuda:...|cpu|emulated(...)."""
    first_loss: float | None = None
    """Of untrained weights, in the warm-up; the same for all variants but for rounding."""
    loss: float | None = None
    """Of the last step; None where nothing is trained."""
    unreadable_images: int | None = None
    """How many images were left out for all variants, as one of them cannot read or decode them."""
    run: str = "unknown"
    """The run folder's name."""
    machine_id: str = "unknown"
    started_utc: str = "unknown"
    schema: int = SCHEMA

    @property
    def time_s(self) -> float:
        """What the documents timed: the epochs' seconds added up, start-up included."""
        return sum(epoch.epoch_s for epoch in self.epochs)

    @property
    def images(self) -> int:
        """Images of all epochs together."""
        return sum(epoch.images for epoch in self.epochs)

    def to_row(self) -> dict[str, Any]:
        """Flatten to what JSON can hold; `from_row` is the way back."""
        return asdict(self)

    @staticmethod
    def from_row(row: dict[str, Any]) -> Trial:
        """Rebuild a trial from its row.

        Raises:
            ValueError: the row was written by a newer labkit.
        """
        if row.get("schema", 0) > SCHEMA:
            raise ValueError(
                f"schema must be at most {SCHEMA}, got {row['schema']}; "
                "update labkit to read this run"
            )
        known = {f.name for f in fields(Trial)}
        row = {name: value for name, value in row.items() if name in known}
        return Trial(**{**row, "epochs": tuple(_epoch_of(epoch) for epoch in row["epochs"])})


def _epoch_of(row: dict[str, Any]) -> Epoch:
    """Rebuild an epoch; JSON has lists for its tuples."""
    lists = {name: tuple(value) for name in PER_STEP if (value := row.get(name)) is not None}
    return Epoch(**{**row, **lists})


# --- a run ------------------------------------------------------------------------------------

# Format history of run.json
#   1  first version
#   2  `local`: what may not leave this machine; request
#   3  the host of a simulated GPU spins and needs a core to launch and to copy; it slept before
RUN_SCHEMA = 3
EPOCHS, ROOFLINE, OPERATION = "epochs", "roofline", "operation"  # what a run's trials time
OPERATION_SETTINGS = frozenset({"data", "seed"})  # the others have no effect on one operation
UNKNOWN = "unknown"
Plain = str | int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class CudaState:
    """Whether this torch build runs kernels on this machine's first GPU."""

    works: bool
    reason: str = ""
    """Why not, as a sentence; empty where it works."""
    name: str = ""
    memory_bytes: int | None = None
    driver: str = ""
    """Version of the NVIDIA driver."""
    capability: str = ""
    """Compute capability, as "8.9"."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The machine and the software that a run is measured with; None is unknown."""

    machine_id: str = UNKNOWN
    """A hash that is the same for all runs on this machine."""
    platform: str = UNKNOWN
    kernel: str = UNKNOWN
    python: str = UNKNOWN
    virtual: bool | None = None
    """Whether a hypervisor can steal time."""
    cpu_model: str = UNKNOWN
    cpu_count: int | None = None
    """Logical cores of the machine."""
    cores: int | None = None
    """Those that the run may use."""
    memory_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> its version; "unknown" where a required one is missing."""
    revision: str = UNKNOWN
    """Commit of labkit."""
    dirty: bool | None = None
    """Whether the package differs from that commit."""
    gpu: CudaState | None = None


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data set of a run; 0 is unknown."""

    folder: str = ""
    """As the settings name it."""
    images: int = 0
    bytes: int = 0
    """Of all images."""
    boxes: str = ""
    """Where they come from: "coco" (stored) or "synthesized" (invented)."""
    kind: str = ""
    """In words, as "the user's own images"."""
    manifest_hash: str = UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What is measured before the trials; None is unknown, or was not measured."""

    images: int | None = None
    """Of an epoch, the same for all variants."""
    images_per_s: float | None = None
    """The baseline's training rate, all its ranks together."""
    load_images_per_s: float | None = None
    """The baseline's loading rate alone."""
    device_images_per_s: float | None = None
    """The baseline's device with the model alone."""
    gpu_images_per_s: float | None = None
    """A real GPU with the model alone, beside a simulated one."""
    calibrated_images_per_s: float | None = None
    """The calibrated device's rate, where a variant uses it."""
    calibrated: str = ""
    """The calibrated device in a sentence."""
    free_loader_au: float | None = None
    """Share of the time in which the simulated GPU computes with a loader that costs nothing."""
    free_loader_checked_utc: str = ""

    def __post_init__(self) -> None:
        for name in ("load_images_per_s", "device_images_per_s", "gpu_images_per_s"):
            check_positive(name, getattr(self, name))


def check_positive(name: str, value: object) -> None:
    """Refuse a rate or a ratio that is known and is no number above 0.

    Raises:
        ValueError: it is something else, as in a run from a colleague.
    """
    if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
        raise ValueError(f"{name} must be a number above 0, got {value!r:.80}; measure it again")


@dataclass(frozen=True, kw_only=True)
class ProvedRates:
    """What a simulated disk or network was measured to deliver."""

    rates: tuple[Mapping[str, Any], ...] = ()
    """One for each pattern, see `labkit.analysis.stand_ins.describe_rate`; empty: not measured."""
    rates_checked_utc: str = ""


@dataclass(frozen=True, kw_only=True)
class StagedStorage(ProvedRates):
    """What a storage of a run is on its machine; None is unknown."""

    label: str = ""
    """As rows have it: real, throttled(...), ..."""
    filesystem: str = ""
    device: str = ""
    rotational: bool | None = None
    cold_reads_per_s: float | None = None
    remark: str = ""
    """Why it is not believed to be what it is called."""
    copied_bytes: int | None = None
    """None: the data is not copied there."""
    copied_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What storing a variant's images takes once."""

    bytes: int
    pack_s: float | None = 0.0
    """None: unknown, as it was packed elsewhere."""
    copy_s: float = 0.0
    source_bytes: int | None = None
    """Of the images before packing."""


@dataclass(frozen=True, kw_only=True)
class ReadCounts:
    """What reading an image takes as a variant stores it; None is unknown."""

    opens: float | None = None
    """Files that Python code opens."""
    calls: float | None = None
    """Read calls."""
    requests: float | None = None
    """Requests that the disk completes."""
    bytes_per_s: float | None = None
    """Of cold images, one after another as they are stored."""


@dataclass(frozen=True, kw_only=True)
class Dial:
    """How often the training loop does something, as one setting."""

    setting: str
    """Name of a setting that counts steps; 0 is never."""
    advice: int | None = None
    """Steps that a document recommends."""
    source: str = ""
    """Document and section of the advice."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """A run without its rows: what was asked, built and found before the trials, and how it ended.

    `labkit.runs.store` writes and reads it, and knows what of it is local.
    """

    schema: int = RUN_SCHEMA
    """Of the version that began the run."""
    experiment: str
    question: str
    kind: str = EPOCHS
    """What the trials time, a key of `labkit.runs.kinds.KINDS`."""
    mode: str
    protocol: str = CORRECTED
    request: Mapping[str, Any] | None = None
    """As `labkit.experiments.request.Request` writes it; None: not recorded."""
    variants: Mapping[str, Settings]
    """Label -> settings, complete for the run's machine."""
    unknown_settings: Mapping[str, Mapping[str, Plain]] = field(default_factory=dict)
    """Label -> settings, or values of them, that only another version of labkit knows."""
    facts: Mapping[str, Facts] = field(default_factory=dict)
    """Label -> what of the variant's parts counts where it is compared."""
    baseline: str
    groups: Mapping[str, str] = field(default_factory=dict)
    """Label -> what it is compared within; empty: all variants compare."""
    baselines: Mapping[str, str] = field(default_factory=dict)
    """Group -> its baseline; empty without groups."""
    tasks: Mapping[str, Mapping[str, Plain]] = field(default_factory=dict)
    """Label -> what its trials need beside the settings, for kinds that need more."""
    blocks: int
    shuffled: bool = True
    """Whether a block has the variants in random order and the baseline twice (A1, A2)."""
    order_seed: int
    published: Mapping[str, float] = field(default_factory=dict)
    """Label -> the document's normalized time."""
    singles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Label of a published combination -> the published time of each of its changes alone."""
    source: str = ""
    """Document and section."""
    dial: Dial | None = None
    compared_images: int | None = None
    """How many images of the last batches are compared; None: whole batches."""
    created_utc: str
    data: Data
    provenance: Provenance
    storages: Mapping[str, StagedStorage] = field(default_factory=dict)
    links: Mapping[str, ProvedRates] = field(default_factory=dict)
    """Simulated network between ranks -> what it delivers."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """Label -> what its files cost; without those that are read as they are."""
    reads: Mapping[str, ReadCounts] = field(default_factory=dict)
    """Label -> what reading takes, where variants store the images in different ways."""
    calibration: Calibration | None = None
    """None: the run has not come so far."""
    excluded: tuple[int, ...] = ()
    """Indices of unreadable images, left out for all variants."""
    unreadable: tuple[str, ...] = ()
    """A line for each of them."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Label -> why it cannot run here."""
    failed: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    local_notes: tuple[str, ...] = ()
    """Notes of earlier versions, which name files."""
    status: str
    """running, finished, cancelled or failed; a run whose process was killed stays "running"."""
    reason: str = ""
    """Why it failed."""
    run: str | None = None
    """The run folder's name where it was made, of a run that was shared."""
    shared_from: str = ""
    """The machine of the colleague who shared it, in one line; empty: it is this machine's own."""

    def facts_of(self, label: str) -> Facts:
        """Return what of a variant's parts counts where it is compared."""
        return self.facts.get(label, Facts())

    @property
    def baseline_by_group(self) -> Mapping[str, str]:
        """Group -> its baseline; a run without groups has one, ""."""
        return self.baselines or {"": self.baseline}

    @property
    def base_settings(self) -> Settings:
        """The baseline's settings."""
        return self.variants[self.baseline]

    def group_of(self, variant: str) -> str:
        """Return what a variant is compared within; empty where a run has no groups."""
        return self.groups.get(variant, "")

    def x_of(self, variant: str) -> float | None:
        """Return a variant's speed of the device as a multiple of the loading rate, if it has one.

        Raises:
            ValueError: it is no number above 0.
        """
        x: Any = self.tasks.get(variant, {}).get("x")
        check_positive("x", x)
        return x

    def settings_of(self, variant: str) -> dict[str, Plain]:
        """Return the settings of a variant that have an effect, by name, unknown ones too."""
        settings = vars(self.variants[variant])
        if self.kind == OPERATION:
            settings = {name: x for name, x in settings.items() if name in OPERATION_SETTINGS}
        return {**settings, **self.unknown_settings.get(variant, {})}

    def check_settings(self, variant: str) -> Settings:
        """Return a variant's settings, to run them or to write them as a program.

        Raises:
            ValueError: this version does not know one of them.
        """
        if unknown := self.unknown_settings.get(variant):
            raise ValueError(
                "settings must be known to this version of labkit, got "
                f"{', '.join(f'{name}={value!r}' for name, value in sorted(unknown.items()))}; "
                "the run was made with another version: start a new run"
            )
        return self.variants[variant]


# --- time ---------------------------------------------------------------------------------------


def utc_now() -> str:
    """Return the time as rows record it: 2026-11-21T03:46:00Z."""
    return time.strftime(UTC, time.gmtime())


def seconds_of(utc: str) -> float:
    """Turn a time as rows record it into seconds since 1970."""
    return float(calendar.timegm(time.strptime(utc, UTC)))


# time.sleep wakes 0.13 ms late here in the median (EVIDENCE 2, measured): spin the rest.
SPIN_S = 0.0003
# Another thread that holds the GIL delays every piece of spinning, by 5 ms where it runs Python
# alone (sys.getswitchinterval); on a core that others use, a piece ends late.
PIECE_S = 0.001
# NumPy releases the GIL in loops over more than 500 elements, which take some 10 us.
LEAST_ELEMENTS = 501
# Elements of a tensor whose asinh takes about as long as torch needs to launch a kernel: some 5 us.
# MKL computes other functions, tanh among them, and may start threads for them.
LAUNCHED_ELEMENTS = 2048


class SystemClock:
    """The real clock, with deadlines met to some 10 microseconds."""

    now = staticmethod(time.perf_counter)

    def sleep_until(self, deadline_s: float) -> None:
        """Sleep until shortly before the deadline, then spin."""
        remaining_s = deadline_s - time.perf_counter()
        if remaining_s > SPIN_S:
            time.sleep(remaining_s - SPIN_S)
        self.spin_until(deadline_s)

    def spin_until(self, deadline_s: float) -> None:
        """Keep the core busy until the deadline, without the GIL but for the last microseconds."""
        spin, elements_per_s = _spinning()
        while (remaining_s := deadline_s - time.perf_counter()) > 0:
            elements = int(min(remaining_s, PIECE_S) * elements_per_s)
            if elements >= LEAST_ELEMENTS:
                spin(elements)

    def launch(self, seconds: float) -> None:
        """Call torch as often as takes so long on a free core: longer where others use it, too."""
        operation, operation_s = _launching()
        for _ in range(round(seconds / operation_s)):
            operation()


@functools.cache
def _spinning() -> tuple[Callable[[int], object], float]:
    """Return what computes on so many elements without the GIL, and its elements/s."""
    # A single number that is read again and again: spinning leaves the caches alone.
    numbers = np.broadcast_to(0.0, 1_000_000)

    def spin(elements: int) -> object:
        return np.logaddexp.reduce(numbers[:elements])

    elements = 4 * LEAST_ELEMENTS
    return spin, elements / _median_s(partial(spin, elements))


@functools.cache
def _launching() -> tuple[Callable[[], object], float]:
    """Return a small operation of torch, and its seconds on a free core."""
    import torch

    given = torch.zeros(LAUNCHED_ELEMENTS)
    operation = partial(torch.asinh, given, out=torch.empty_like(given))
    return operation, _median_s(operation)


def _median_s(run: Callable[[], object]) -> float:
    """Return the median seconds of calls too short for most of them to be interrupted."""
    took_s = []
    for _ in range(200):
        start_s = time.perf_counter()
        run()
        took_s.append(time.perf_counter() - start_s)
    return statistics.median(took_s)


class SleepingClock(SystemClock):
    """The real clock, which leaves the core alone and wakes a little late."""

    def sleep_until(self, deadline_s: float) -> None:
        """Sleep until the deadline, and some tenths of a millisecond more."""
        remaining_s = deadline_s - time.perf_counter()
        if remaining_s > 0:
            time.sleep(remaining_s)
