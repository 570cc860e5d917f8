"""Packs: make the packed, scaled or preprocessed copy of a dataset that settings read.

    data ─ reader ─ Converter (decode, scale, preprocess) mapped over all images ─ write

One function converts an image; joblib's processes run it on this machine, Spark on a cluster.
A pack's manifest keeps the hash of the data and how it was converted; if settings or data differ
from it, the pack is made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labkit import install, units
from labkit.contracts import Annotation, Cancelled, Content, Reader, Sample, Skip
from labkit.files import alone, bar, whole_folder, write_whole
from labkit.machine import hardware
from labkit.machine.media import check_room, skip_unwritable
from labkit.parts.decoding import DECODERS
from labkit.parts.packing import PACKINGS
from labkit.parts.packing.manifest import read_manifest
from labkit.parts.packing.packs import encode, shorter_side_px
from labkit.parts.packing.remote import data_folder, download
from labkit.parts.packing.yuv420 import to_yuv420
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.resolve import open_data, open_reader, own_parts, register, source_folder
from labkit.settings import Settings, pick

Stored = tuple[str, Content, Annotation]
"""Name, content and boxes of an image, as they are to be stored."""

COST = "cost.json"  # file of a pack with the cost of making it
# Storage format -> what is stored for an image that cannot be read; no bytes in other formats.
UNREADABLE: dict[str, Content] = {
    "pixels": np.zeros((0, 0, 3), np.uint8),
    "sample": {},
    "yuv420": to_yuv420(np.zeros((0, 0, 3), np.uint8)),
}


# --- what is done to an image ---------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Converter:
    """Conversion of images to their stored form; picklable, as it has only the data's path."""

    settings: Settings
    own: bytes = b""
    """The user's own parts, from `own_parts`, for other processes."""

    @property
    def reader(self) -> Reader:
        """The data, opened once per process."""
        return open_data(self.settings)

    def __setstate__(self, state: dict) -> None:
        import cv2

        cv2.setNumThreads(0)  # this is one of as many processes as there are cores
        register(state["own"])
        self.__dict__.update(state)

    def __call__(self, i: int) -> Stored:
        """Return image `i` as it is to be stored.

        Raises:
            ValueError: it cannot be read, and `on_bad_image` is stop; the message names it.
        """
        settings, reader = self.settings, self.reader
        try:
            content, annotation, image_rgb = self._read(i)
        except Exception:  # a decoder of the user's own may raise anything
            if settings.on_bad_image == "stop":
                raise
            # The other images keep their numbers; each run finds this one, too, and leaves it out.
            no_boxes = Annotation(
                boxes_xyxy=np.zeros((0, 4), np.float32), category_ids=np.zeros(0, np.int64)
            )
            return reader.name(i), UNREADABLE.get(settings.storage_format, b""), no_boxes
        if settings.storage_format == "jpeg":
            return reader.name(i), content, annotation
        if settings.storage_format == "sample":
            sample = Sample(
                image_rgb=image_rgb,
                annotation=annotation,
                sample_id=i,
                epoch=0,  # every epoch will have this one's random draws
                seed=settings.seed,
            )
            arrays = PREPROCESSORS[settings.preprocessor](sample, settings.input_px)
            return reader.name(i), arrays, annotation
        px = shorter_side_px(settings.storage_format, settings.input_px)
        smaller, annotation = scale(image_rgb, annotation, px)
        if settings.storage_format in ("small", "yuv420") and smaller is not image_rgb:
            # Random crops are drawn from it, and are then the same as of the original.
            annotation = replace(annotation, size_px=image_rgb.shape[1::-1])
        if settings.storage_format == "yuv420":
            return reader.name(i), to_yuv420(smaller), annotation
        if settings.storage_format == "small" and smaller is image_rgb:
            return reader.name(i), content, annotation  # it is small enough as it is
        content = smaller if settings.storage_format == "pixels" else encode_jpeg(smaller)
        return reader.name(i), content, annotation

    def _read(self, i: int) -> tuple[Content, Annotation, np.ndarray | None]:
        settings, reader = self.settings, self.reader
        content: Any
        try:
            content, annotation = reader.read(i)
        except OSError as error:  # `ensure_pack` takes an OSError for one of writing the pack
            raise ValueError(
                f"data must be images that can be read, got {error.strerror or error} for "
                f"{reader.where(i)}; make or download the data again"
            ) from error
        if settings.storage_format == "jpeg":
            return content, annotation, None
        try:
            return content, annotation, DECODERS[settings.decoder](content)
        except ValueError as error:
            raise ValueError(f"{reader.where(i)}: {error}") from error


def scale(image_rgb: np.ndarray, annotation: Annotation, px: int) -> tuple[np.ndarray, Annotation]:
    """Shrink an image until its shorter side has `px` pixels; a smaller one stays as it is.

    Returns:
        The image, (H, W, 3) uint8, and its boxes in the new pixels.
    """
    import cv2

    height, width = image_rgb.shape[:2]
    factor = px / min(height, width)
    if factor >= 1:
        return image_rgb, annotation
    size = (max(px, round(width * factor)), max(px, round(height * factor)))
    # INTER_AREA averages pixels, as is usual where a dataset is scaled down once.
    smaller = cv2.resize(image_rgb, size, interpolation=cv2.INTER_AREA)
    factors = np.array([size[0] / width, size[1] / height] * 2, np.float32)
    return smaller, replace(annotation, boxes_xyxy=annotation.boxes_xyxy * factors)


def encode_jpeg(image_rgb: np.ndarray) -> bytes:
    """Compress (H, W, 3) uint8 RGB as a JPEG of quality 95, about that of ImageNet's files."""
    import cv2

    bgr = cv2.cvtColor(image_rgb, cv2.COLOR_RGB2BGR)
    _, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 95])
    return jpeg.tobytes()


def about(settings: Settings, reader: Reader) -> dict[str, Any]:
    """Return what a pack is made from and how; a pack is used if its manifest says the same."""
    facts: dict[str, Any] = {
        "stored": settings.storage_format,
        "source_hash": reader.data_hash,
        "boxes": reader.boxes,
    }
    if settings.storage_format != "jpeg":
        facts |= {"px": settings.input_px, "decoder": settings.decoder}
    if settings.storage_format == "sample":
        facts |= {"preprocessor": settings.preprocessor, "seed": settings.seed}
    return facts


# --- engines: what maps it over the images --------------------------------------------------

Map = Callable[[Callable[[int], Stored], range], list[Stored]]
"""(function, indices) -> its results, in order."""


@contextlib.contextmanager
def local(jobs: int, master: str) -> Iterator[Map]:
    """Run in processes of this machine, or in this one if one is enough."""
    if jobs == 1:
        yield lambda function, indices: [function(i) for i in indices]
        return
    import joblib
    from joblib.externals import loky

    # The timeout also ends the processes after this one is killed.
    try:
        with joblib.Parallel(jobs, max_nbytes=None, idle_worker_timeout=10) as parallel:
            yield lambda function, indices: parallel(joblib.delayed(function)(i) for i in indices)
    finally:  # the processes would wait for more work, with all that they have imported
        loky.get_reusable_executor().shutdown(wait=True)


@contextlib.contextmanager
def spark(jobs: int, master: str) -> Iterator[Map]:
    """Run in a Spark session, which is stopped at the end.

    A cluster's machines must have labkit, the same Python and the data under the same path.

    Args:
        jobs: how many processes, where `master` is empty.
        master: Spark's URL of the cluster, such as spark://host:7077; empty: this machine.

    Raises:
        Skip: Spark or Java is not installed, or the session does not start.
    """
    try:
        from pyspark import SparkConf, SparkContext

        conf = SparkConf().setMaster(master or f"local[{jobs}]").setAppName("labkit")
        conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
        if not master:  # must not depend on this machine's name, networks and other Pythons
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
            conf.set("spark.authenticate", "true")  # by a secret that Spark draws
        context = SparkContext(conf=conf)
    except Exception as error:
        raise Skip(
            f"spark must have pyspark and Java 17 or newer, got {str(error).splitlines()[0]}; "
            f"pip install {install.extra('spark')}, "
            "and on Debian or Ubuntu apt-get install openjdk-17-jre-headless"
        ) from error

    def run(function: Callable[[int], Stored], indices: range) -> list[Stored]:
        # A task costs 0.03 s, so there are few.
        pieces = context.parallelize(indices, min(len(indices), 2 * context.defaultParallelism))
        results: list[Any] = pieces.map(partial(_caught, function)).collect()
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    try:
        yield run
    finally:
        context.stop()


def _caught(function: Callable[[int], Stored], i: int) -> Stored | Exception:
    try:
        return function(i)
    except Exception as error:  # raised, Spark would turn it into pages of Java
        return error


ENGINES: dict[str, Callable[[int, str], contextlib.AbstractContextManager[Map]]] = {
    "local": local,
    "spark": spark,
}


# --- making a pack --------------------------------------------------------------------------


def ensure_pack(
    settings: Settings,
    *,
    to: Path | None = None,
    engine: str = "local",
    jobs: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    cancel: threading.Event | None = None,
    progress: bool = False,
) -> dict[str, Any] | None:
    """Make the pack that settings read, unless it is there already; whole or not at all.

    Args:
        settings: complete; data, packing, storage_format, input_px, decoder, preprocessor and seed
            count.
        to: the pack's folder; unset: beside the data, where runs look for it.
        engine: a key of `ENGINES`, with its master after a colon: who does the work.
        jobs: processes; unset: as many as there are cores.
        say: takes one line for the user.
        cancel: set by another thread to stop.
        progress: show a bar.

    Returns:
        What it costs: folder, images, bytes, source_bytes, pack_s (what making it took), jobs and
        engine; None where settings read the data as it is.

    Raises:
        Skip: it cannot be made here; the text says why.
        ValueError: settings that cannot work, or an image that cannot be read.
        Cancelled: `cancel` was set.
    """
    if to is None and source_folder(settings) == data_folder(settings.data):
        return None
    # Absolute: other processes may run in another directory.
    data = download(settings.data, cancel=cancel, progress=progress).absolute()
    settings = replace(settings, data=str(data))
    open_reader.cache_clear()  # the data may have changed since this process opened it
    converter = Converter(settings=settings, own=own_parts())
    reader, folder = converter.reader, to or source_folder(settings)
    wanted = about(settings, reader)
    engine, _, master = engine.partition(":")
    jobs = jobs or (
        1 if (engine, settings.storage_format) == ("local", "jpeg") else hardware.cores()
    )

    def check() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled

    with skip_unwritable(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder, folder.with_name(f".{folder.name}.lock"), say, check):
            if _is_there(folder, settings, wanted, to is None, say):
                return read_cost(folder)
            image_bytes = max(1, _image_bytes(converter))
            check_room(folder.parent, image_bytes * len(reader), folder.name)
            # Results of at most 128 MiB wait to be written, which bounds the memory.
            at_once = max(jobs, min(jobs * 64, int((128 << 20) / image_bytes)))
            label = f"packing {folder.name}"
            shown = bar(desc=label, total=len(reader), unit="image", disable=not progress)
            with pick(ENGINES, engine, "engine")(jobs, master) as run, whole_folder(folder) as part:
                start_s = time.perf_counter()
                PACKINGS[settings.packing].write(
                    _convert_all(converter, run, at_once, check, shown),
                    part,
                    images=len(reader),
                    about=wanted,
                )
                cost: dict[str, Any] = {
                    "source_bytes": int(reader.image_bytes.sum()),
                    "pack_s": time.perf_counter() - start_s,
                    "jobs": jobs,
                    "engine": engine,
                }
                write_whole(part / COST, json.dumps(cost))
                if hasattr(os, "sync"):
                    os.sync()  # or it would still be written while the first trials run
    cost = read_cost(folder)
    took = units.seconds(cost["pack_s"])
    say(f"packed {units.count_bytes(cost['bytes'])} as {folder.name} in {took}")
    return cost


def read_cost(folder: Path) -> dict[str, Any]:
    """Read what making a pack took; None where it was made elsewhere."""
    manifest = read_manifest(folder)
    cost: dict[str, Any] = {
        "folder": str(folder),
        "images": manifest["images"],
        "bytes": manifest["bytes"],
    }
    cost |= dict.fromkeys(("source_bytes", "pack_s", "jobs", "engine"))
    with contextlib.suppress(OSError, ValueError):
        cost |= json.loads((folder / COST).read_bytes())
    return cost


def _convert_all(
    converter: Converter, run: Map, at_once: int, check: Callable[[], None], shown: Any
) -> Iterator[Stored]:
    """Convert all images, `at_once` of them in memory."""
    images = len(converter.reader)
    with shown:
        for first in range(0, images, at_once):
            check()
            for sample in run(converter, range(first, min(first + at_once, images))):
                check()
                yield sample
                shown.update()


def _is_there(
    folder: Path, settings: Settings, wanted: dict, ours: bool, say: Callable[[str], None]
) -> bool:
    """Return whether the pack is there, whole and of this data; remove one of ours that is not."""
    if not folder.exists():
        return False
    wrong = "of other data, or made otherwise"
    try:
        manifest = read_manifest(folder)
        if wanted.items() <= manifest.items():
            PACKINGS[settings.packing].open(folder)
            return True
    except ValueError as error:
        wrong = f"damaged: {error}"
    if not ours:
        raise ValueError(
            f"to must be a new folder, got {str(folder)!r}, which is {wrong}; "
            "remove it or choose another folder"
        )
    say(f"{folder} is {wrong}: it is made again")
    shutil.rmtree(folder)
    return False


def _image_bytes(converter: Converter) -> float:
    """Estimate the bytes of a stored image."""
    images = len(converter.reader)
    if converter.settings.storage_format == "jpeg":
        return float(converter.reader.image_bytes.mean())
    tried = np.linspace(0, images - 1, min(8, images)).astype(int)
    return float(np.mean([len(encode(converter(int(i))[1])[0]) for i in tried]))
