"""Settings: everything that a user can set, and what a machine fills in.

A field left at ``None`` is *unset*: `complete` fills it in for the machine, so a user's own choice
always wins.  The form and the command line are generated from this class: the string
under a field is its help text.  Each value is checked here; whether values fit together, and what
the names in them stand for, is decided in `labkit.resolve`.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, TypeVar

T = TypeVar("T")

# The smallest value of each whole number, for the checks and the form.
LEAST = {
    "images": 1, "num_workers": 0, "prefetch_factor": 1, "batch_size": 1,
    "sync_every": 0, "epochs": 1, "cv2_threads": 0, "torch_threads": 1, "seed": 0,
    "jitter_ms": 0, "checkpoint_every": 0, "report_every": 0, "metrics_every": 1,
    "ranks": 1,
}  # fmt: skip
# End the name of a sink: its reports do not contain the loss; a thread writes them.
WITHOUT_LOSS, IN_THREAD = "_without_loss", "_thread"
# Settings that all variants of a run share: its images, how often and in what order.
SAME_FOR_ALL = ("data", "images", "subset", "seed", "epochs", "on_bad_image")
SLEEPING = "simulated_sleeping"  # a simulated GPU that the host waits for without using a core
SIMULATED_GPUS = ("simulated", SLEEPING)
# Settings whose value is a number, also written as text, or a name.
NUMBERS_OR_NAMES: dict[str, type] = {"gpu_images_per_s": float, "cache": int}
# Of an experiment that names no others.  The documents' 512 px and batches of 32 take two cores
# half a second for a batch: a quick run would take five minutes.
INPUT_PX, BATCH_SIZE = 256, 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One variant's settings; every field is set by the user or left unset.

    Examples:
        >>> Settings(num_workers=4).num_workers
        4
        >>> Settings(batch_size=0)
        Traceback (most recent call last):
        ValueError: batch_size must be at least 1, got 0
    """

    data: str = "data/photos"
    """Images: a folder (COCO layout, or any tree of .jpg/.jpeg files), or a URL."""
    images: int | None = None
    """Images per epoch, the same for all variants; unset: as many as the mode has time for."""
    storage: str = "here"
    """Where images are read from: here (where data lies), another medium, a folder's path, or a
    server such as far_20ms_1000mbit."""
    cache: int | Literal["cold", "warm", "as found"] = "cold"
    """What of the data is in memory (the page cache): nothing (cold), all (warm) or what happens to
    be there before epoch 1; or a percentage at the start of each epoch."""
    packing: str = "folder"
    """How the images are stored: one file each, or packed together."""
    storage_format: Literal["jpeg", "resized", "pixels", "sample", "small", "yuv420"] = "jpeg"
    """What is stored: JPEGs as they are, scaled to input_px (resized), or a little larger for
    random crops (small); decoded images (pixels; for crops, yuv420); or finished samples."""
    shuffle: bool = True
    """Draw a new order of the images for every epoch; no: the order in which they are stored."""
    subset: Literal["random", "first"] = "random"
    """Which images an epoch takes where not all: drawn at random, or the first ones."""
    decoder: str = "opencv"
    """Library that turns JPEG bytes into pixels."""
    preprocessor: str = "loops"
    """What happens to an image and its boxes before the model sees them."""
    input_px: int | None = None
    """Side of the square model input in pixels, a multiple of 32; unset: the experiment's."""
    jitter_ms: int = 0
    """Longest random delay of each image's reading in milliseconds, to simulate uneven storage."""
    loader: str = "torch"
    """What reads the images and makes batches of them."""
    num_workers: int | None = None
    """Loader worker processes of all ranks, or threads of the loader threads; 0 loads in the main
    process; unset: half the cores, at least 2."""
    prefetch_factor: int = 2
    """Batches each worker prepares ahead; without workers it has no effect."""
    pin_memory: bool | None = None
    """Copy batches to page-locked host memory, from which the device can copy on its own;
    unset: yes, unless the device is cpu."""
    persistent_workers: bool = False
    """Keep the workers between epochs instead of starting new ones."""
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    """How worker processes start, as in DataLoader; unset: fork on Linux, else spawn."""
    batch_size: int | None = None
    """Images per step of each rank; unset: the experiment's."""
    ranks: int = 1
    """Processes that train together, as under torchrun; they share the loader workers."""
    exchange: str = "all_reduce"
    """How ranks exchange gradients: all_reduce, over a link (100mbit), or not at all (noop,
    no_sync); or one process divides each batch among GPUs (data_parallel_2)."""
    prefetcher: str = "none"
    """What fetches the next batch while the device works on this one."""
    device: str | None = None
    """Where the training step runs; unset: cuda where it works, else simulated; simulated_sleeping
    leaves the host's core to others while it waits for the GPU."""
    gpu_images_per_s: float | str | None = None
    """Simulated GPU only: images/s it trains with the model alone, in batches of the baseline's
    size, or the name of a GPU; unset: as `labkit calibrate` measured."""
    step: str | None = None
    """What trains on a batch; unset: the preprocessor's model, or timed on a simulated GPU."""
    loss: str = "vectorized"
    """How the detector's loss is written: for the whole batch at once, or as loops over boxes."""
    precision: Literal["fp32", "amp"] = "fp32"
    """Number format of the model: float32, or mixed precision (amp); real devices only."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """Memory layout of the model's images: plane by plane, or channels_last; real devices only."""
    compile_model: bool = False
    """Compile the model with torch.compile, before the epochs; real devices only."""
    sync_every: int = 1
    """Steps after which the training loop waits for the device, as `.item()` makes it; 0: only at
    the end of an epoch."""
    checkpoint_every: int = 0
    """Steps between checkpoints of the model and its optimizer; 0: none."""
    checkpoint_to: str = "here"
    """Where checkpoints go: here (the working directory), ssd, tmpfs, … or a folder's path."""
    checkpoint_writer: str = "sync"
    """What writes checkpoints: the training loop itself (sync), or a thread."""
    report_every: int = 0
    """Steps between reports (a log line, a metric sent to a server); 0: none."""
    report_to: str = "file"
    """Where reports go: file, terminal, or a server that answers late, such as http_50ms; with
    _without_loss added, without the loss, for which the host waits; with _thread, by a thread."""
    metrics: str = "none"
    """How accuracy and confusion matrix are kept: none, in Python loops, or vectorized."""
    metrics_every: int = 1
    """Steps between computations of the metrics."""
    progress_bar: str = "none"
    """Progress bar of the training loop; tqdm_loss also shows the loss: `.item()` in every step."""
    epochs: int = 2
    """Epochs that each variant trains in each block; the documents timed two."""
    cv2_threads: int = 0
    """Threads of OpenCV in every process (cv2.setNumThreads); 0: none of its own."""
    torch_threads: int = 1
    """PyTorch's CPU threads in the training process; loader workers always use one."""
    on_bad_image: Literal["stop", "skip"] = "stop"
    """What to do with images that cannot be decoded: stop before measuring, or leave them out."""
    seed: int = 0
    """Seed of the shuffling and of every random draw."""

    def __post_init__(self) -> None:
        for name, kind in NUMBERS_OR_NAMES.items():
            if isinstance(value := getattr(self, name), str | int):
                with contextlib.suppress(ValueError, OverflowError):  # it is a name
                    number = value if isinstance(value, bool) else kind(value)
                    object.__setattr__(self, name, number)
        for field in fields(self):
            _check_kind(field.name, getattr(self, field.name))
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        speed = self.gpu_images_per_s
        if isinstance(speed, float) and not 0 < speed < math.inf:
            raise ValueError(
                f"gpu_images_per_s must be a number above 0, got {speed}; "
                "leave it out for the calibrated one"
            )
        if self.input_px is not None and (self.input_px < 1 or self.input_px % 32):
            raise ValueError(  # ResNet-18 halves the image five times
                f"input_px must be a positive multiple of 32, got {self.input_px}; try 256 or 512"
            )
        if isinstance(self.cache, int) and not 0 <= self.cache <= 100:
            raise ValueError(f"cache must be a percentage from 0 to 100, got {self.cache}")

    @property
    def is_on_simulated_gpu(self) -> bool:
        """Whether the device, if it is set, is a simulated GPU."""
        return self.device in SIMULATED_GPUS

    @property
    def cache_label(self) -> str:
        """What the rows call `cache`: cold, warm, as found or "50 % cached"."""
        return f"{self.cache} % cached" if isinstance(self.cache, int) else self.cache


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How much is measured: repetitions and length; the work is the same in every mode."""

    name: str
    blocks: int
    """Repetitions of the whole set of variants."""
    epoch_s: float
    """Seconds an epoch of the baseline should last; 0: all images, whatever it takes."""
    min_steps: int
    """Steps an epoch must have at least."""
    shuffled: bool
    """Variants in random order with the baseline twice (A1, A2), or once in the given order."""
    judged: bool
    """Whether the tables speak verdicts."""


# DESIGN: quick looks, document measures each variant once with all images, full judges.  Starting
# the workers is a larger share of a quick epoch: with a GPU twice as fast as the loader, storage's
# normalized times are 3 to 5 % closer to 1 than in full mode (measured by benchmarks.repeat).
MODES: dict[str, Mode] = {
    mode.name: mode
    for mode in (
        Mode(name="quick", blocks=3, epoch_s=1.6, min_steps=12, shuffled=True, judged=False),
        Mode(name="document", blocks=1, epoch_s=0.0, min_steps=1, shuffled=False, judged=False),
        Mode(name="full", blocks=10, epoch_s=5.0, min_steps=50, shuffled=True, judged=True),
    )
}
# In what order, from which cache state and with which loop variants run.
CORRECTED, AS_PUBLISHED = "corrected", "as in the document"
PROTOCOLS = (CORRECTED, AS_PUBLISHED)


def pick(table: dict[str, T], name: str, what: str) -> T:
    """Look a name up in a table of choices.

    Raises:
        ValueError: the name is unknown; the message lists the choices.
    """
    if name not in table:
        raise ValueError(f"{what} must be one of {', '.join(sorted(table))}, got {name!r}")
    return table[name]


def with_settings(base: Settings, changes: dict[str, Any]) -> Settings:
    """Change settings by name, refusing names that do not exist.

    Raises:
        ValueError: a name is not a setting; the message lists them all.
    """
    known = [field.name for field in fields(Settings)]
    for name in changes:
        if name not in known:
            raise ValueError(f"setting must be one of {', '.join(known)}, got {name!r}")
    return replace(base, **changes)


def read_changes(text: str) -> dict[str, Any]:
    """Read what a variant of the user's own changes: "num_workers=8,decoder=pillow".

    Raises:
        ValueError: an unknown setting or value, a setting that all variants share, or a value that
            names a place on this machine, as labels are shared.

    Examples:
        >>> read_changes("num_workers=8, decoder=pillow")
        {'num_workers': 8, 'decoder': 'pillow'}
    """
    changes: dict[str, Any] = {}
    for part in text.split(","):
        name, _, word = (x.strip() for x in part.partition("="))
        known_names = [name for name in field_kinds() if name not in SAME_FOR_ALL]
        if name not in known_names or "/" in word or "\\" in word:
            known = ", ".join(known_names)
            raise ValueError(
                f"variant must be setting=value with one of {known}, got {part!r}; "
                "several changes are separated by commas"
            )
        changes[name] = read_value(name, word)
    return changes


def read_value(name: str, word: str) -> Any:
    """Read the value of a setting as the form and the command line have it.

    Raises:
        ValueError: the setting does not take it.
    """
    kind = field_kinds()[name][0]
    yes_or_no: dict[str, Any] = {"yes": True, "no": False}
    try:
        value = yes_or_no[word] if kind is bool else kind(word)
    except (KeyError, ValueError):
        words = {int: "a whole number", float: "a number", bool: "yes or no"}[kind]
        raise ValueError(f"{name} must be {words}, got {word!r}") from None
    return getattr(with_settings(Settings(), {name: value}), name)


def with_new_names(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that earlier versions wrote as today's."""
    new_names = {
        "start_method": "multiprocessing_context",
        "stored": "storage_format",
        "saver": "checkpoint_writer",
    }
    removed = (
        "if_not_written", "profile", "device_speed", "order", "cached", "progress_loss",
        "report_in_background", "report_loss", "gpu_slowdown", "step_repeats",
    )  # fmt: skip
    kept = {new_names.get(name, name): x for name, x in stored.items() if name not in removed}
    if stored.get("cached") is not None:
        kept["cache"] = stored["cached"]
    if "order" in stored:
        kept["shuffle"] = stored["order"] != "sequential"
    if stored.get("progress_loss"):
        kept["progress_bar"] = {"tqdm": "tqdm_loss"}.get(stored.get("progress_bar"), "none")
    report_to = str(stored.get("report_to", Settings.report_to))
    sink = report_to.removesuffix(IN_THREAD)
    is_in_thread = sink != report_to or stored.get("report_in_background")
    if stored.get("report_loss") is False:
        sink += WITHOUT_LOSS
    if sink != Settings.report_to or is_in_thread:
        kept["report_to"] = sink + IN_THREAD * bool(is_in_thread)
    profile, speed = str(stored.get("profile", "calibrated")), stored.get("device_speed")
    simulated = SLEEPING if profile == "calibrated_sleeping" else "simulated"
    if "device" in stored:
        kept["device"] = {"emulated": simulated}.get(stored["device"], stored["device"])
    calibrated = ("calibrated", "calibrated_sleeping", "calibrated_spinning", "matched")
    if speed is None and profile not in calibrated:
        speed = profile
    return kept if speed is None else {"gpu_images_per_s": speed, **kept}


def read_settings(stored: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """Read a variant's settings from a run folder.

    Args:
        stored: name -> value, written by any version of labkit.

    Returns:
        The settings, and what of `stored` this version does not know: settings, or their values.
    """
    stored = with_new_names(stored)
    try:
        return Settings(**stored), {}
    except (TypeError, ValueError):
        known, unknown = {}, {}
        for name, value in stored.items():
            try:
                Settings(**{name: value})
                known[name] = value
            except (TypeError, ValueError):
                unknown[name] = value
        return Settings(**known), unknown


def complete(
    settings: Settings,
    *,
    cores: int,
    has_cuda: bool,
    can_fork: bool,
    real_step: str = "detector",
) -> Settings:
    """Fill every unset field but `images` and `gpu_images_per_s`, for the machine.

    Args:
        settings: the user's choice; what is set stays.
        cores: CPU cores this process may use.
        has_cuda: a CUDA device runs kernels of this torch build.
        can_fork: the platform starts worker processes by fork.
        real_step: what a device that is not simulated does with the preprocessor's batches.

    Returns:
        Settings in which only `images` and `gpu_images_per_s` may still be None: calibration
        finds them.
    """
    device = settings.device or ("cuda" if has_cuda else "simulated")
    defaults = {
        "input_px": INPUT_PX,
        "batch_size": BATCH_SIZE,
        "num_workers": max(2, cores // 2),
        "device": device,
        "step": "timed" if device in SIMULATED_GPUS else real_step,
        # The simulated GPU stands for a CUDA one, so its batches count as pinned too.
        "pin_memory": device != "cpu",
        "multiprocessing_context": "fork" if can_fork else "spawn",
    }
    unset: dict[str, Any] = {
        name: value for name, value in defaults.items() if getattr(settings, name) is None
    }
    return replace(settings, **unset)


@cache
def help_texts() -> dict[str, str]:
    """Read the one-line string under each field.

    Returns:
        field name -> help text.
    """
    (node,) = ast.parse(inspect.getsource(Settings)).body
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {
        ast.unparse(field.target): ast.literal_eval(text.value)
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


@cache
def field_kinds() -> dict[str, tuple[type, tuple[str, ...], bool]]:
    """Return what each field accepts, for the form, the command line and the checks.

    Returns:
        field name -> (int, float, bool or str; the closed choices, if any; may be unset).
    """
    kinds = {}
    for name, hint in typing.get_type_hints(Settings).items():
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        options = typing.get_args(hint) if is_union else (hint,)
        # The last one: of a number or a name, both are written as text.
        *_, kind = (option for option in options if option is not type(None))
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        kinds[name] = (str if choices else kind, choices, type(None) in options)
    return kinds


def _check_kind(name: str, value: object) -> None:
    kind, choices, may_be_unset = field_kinds()[name]
    if value is None and may_be_unset:
        return
    # bool is a kind of int in Python; a worker count of True would be a typo.
    accepted = (int, float) if kind is float else kind
    if isinstance(value, int | float) and isinstance(value, NUMBERS_OR_NAMES.get(name, ())):
        accepted, choices = NUMBERS_OR_NAMES[name], ()
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        words = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}[kind]
        words = "a number or a name" if name in NUMBERS_OR_NAMES else words
        raise ValueError(f"{name} must be {words}, got {value!r}")
    if choices and value not in choices:
        more = " or a number" if name in NUMBERS_OR_NAMES else ""
        raise ValueError(f"{name} must be one of {', '.join(choices)}{more}, got {value!r}")
