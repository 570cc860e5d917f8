"""Make a dataset of synthetic photographs with boxes, for machines without COCO.

The same seed gives the same bytes, however many processes share the work, because every random
draw depends only on (seed, image id). A stopped run continues where it stopped, and more images
extend a finished one. One process at a time works on a folder.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path

from labkit import units
from labkit.contracts import Cancelled
from labkit.files import alone, bar, progress_stream, write_whole
from labkit.jpeg import JPEG_END, JPEG_START
from labkit.machine import hardware
from labkit.machine.media import check_room
from labkit.parts.packing.folder import (
    UNFINISHED,
    WrittenImage,
    describe_image,
    finish_folder,
)
from labkit.parts.packing.manifest import ANNOTATIONS, difference, read_manifest, sha256

KIND = "synthetic photographs"
LOCK = ".lock"  # file of a folder that is being made


def make_photos(
    out: Path | str,
    images: int = 1000,
    *,
    seed: int = 0,
    jobs: int | None = None,
    progress: bool = True,
    cancel: threading.Event | None = None,
) -> dict:
    """Make synthetic photographs, their boxes in COCO's format, and a manifest.

    Whole files that lie there already are kept; fewer images than there are remove none.

    Args:
        out: a new or empty folder, or one that this function made with the same seed.
        images: how many there shall be.
        seed: from which everything is drawn, 0 or more.
        jobs: processes; None: one for each core this process may use.
        progress: show a bar.
        cancel: set by another thread to stop; another call goes on from there.

    Returns:
        The manifest, with `images`, `bytes`, `files` (path -> bytes, sha256) and more.

    Raises:
        ValueError: a number out of range, or `out` holds other data.
        OSError: `out` cannot be written to.
        Skip: there is too little free space.
        Cancelled: `cancel` was set.

    Examples:
        >>> lab.make_photos("four", images=4, progress=False)["images"]
        4
    """
    for name, value, least in (("images", images, 1), ("seed", seed, 0), ("jobs", jobs, 1)):
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    root = Path(out).expanduser().absolute()
    if manifest := _read_complete(root, images, seed):
        return manifest
    there = sum(1 for _ in (root / "images").glob("*.jpg"))
    existing = next(folder for folder in (root, *root.parents) if folder.is_dir())
    needed_bytes = 140_000 * max(0, images - there)  # about what they take
    check_room(existing, needed_bytes, units.count(images, "image"))

    def say(line: str) -> None:
        if progress:
            from tqdm import tqdm

            tqdm.write(line, file=progress_stream())

    def check() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled

    with ExitStack() as held:
        try:
            root.mkdir(parents=True, exist_ok=True)
            held.enter_context(alone(root, root / LOCK, say, check))
            if manifest := _read_complete(root, images, seed):  # by another process meanwhile
                return manifest
            manifest = read_manifest(root)
            images = max(images, manifest.get("images", 0))
            _start_folder(root, manifest, seed)
        except OSError as error:
            raise OSError(
                f"out must be a folder that can be written to, got {str(out)!r} "
                f"({error.strerror}); choose another folder"
            ) from error
        jobs = min(jobs or hardware.cores(), images)
        known = manifest.get("files", {})
        numbers = range(1, images + 1)
        entries = (known.get(f"images/{_name(number)}") for number in numbers)
        with _workers(jobs) as parallel_map:
            made = parallel_map(_make_image, repeat(root), repeat(seed), numbers, entries)
            written = []
            for image in bar(
                made, total=images, unit="image", desc=root.name, disable=not progress
            ):
                written.append(image)
                check()
        finish_folder(root, written, about={"kind": KIND, "seed": seed})
        (root / UNFINISHED).unlink()
        return read_manifest(root)


def _make_image(root: Path, seed: int, image_id: int, entry: dict | None) -> WrittenImage:
    """Make one image unless it is there; its boxes are drawn again, which takes 1 ms."""
    import cv2

    from labkit.photos.scenes import annotate, paint, plan_scene  # imports OpenCV, too

    scene = plan_scene(seed, image_id)
    path = root / "images" / _name(image_id)
    jpeg = path.read_bytes() if path.is_file() else b""
    if entry is not None:
        whole = sha256(jpeg) == entry["sha256"]
    else:
        # A power cut can leave a renamed file without its content.
        whole = jpeg.startswith(JPEG_START) and jpeg.endswith(JPEG_END)
    if not whole:
        quality = [cv2.IMWRITE_JPEG_QUALITY, 93]
        jpeg = cv2.imencode(".jpg", paint(scene), quality)[1].tobytes()
        write_whole(path, jpeg)
    return describe_image(path.name, jpeg, annotate(scene))


def _name(image_id: int) -> str:
    return f"{image_id:012d}.jpg"


def _read_complete(root: Path, images: int, seed: int) -> dict:
    """Return the manifest where all photographs are there, and perhaps more; else empty.

    They are compared with it by size only, which takes microseconds a file.
    """
    manifest = read_manifest(root)
    made = (
        manifest
        and (manifest["kind"], manifest["seed"]) == (KIND, seed)
        and manifest["images"] >= images
        and not difference(root / ANNOTATIONS, {"sha256": manifest["annotations_sha256"]})
        and not any(
            difference(root / name, {"bytes": entry["bytes"]})
            for name, entry in manifest["files"].items()
        )
    )
    return manifest if made else {}


def _start_folder(root: Path, manifest: dict, seed: int) -> None:
    """Make images/ in a folder that is there, and mark it as unfinished.

    Raises:
        ValueError: the folder holds something else, or photographs of another seed.
    """
    before = manifest or read_manifest(root, UNFINISHED)
    is_used = any(path.name != LOCK for path in root.iterdir())
    if is_used and before.get("kind") != KIND:
        raise ValueError(
            f"folder must be new or empty, got {str(root)!r} with other files in it; "
            "choose another folder"
        )
    if before and before["seed"] != seed:
        raise ValueError(
            f"seed must be {before['seed']}, with which {str(root)!r} was made, got {seed}; "
            "choose another folder for another seed"
        )
    write_whole(root / UNFINISHED, json.dumps({"kind": KIND, "seed": seed}))
    (root / "images").mkdir(exist_ok=True)


@contextmanager
def _workers(jobs: int) -> Iterator[Callable]:
    """Yield a `map` over processes; an exception cancels what has not begun."""
    if jobs == 1:
        yield map
        return
    # spawn is the one way that works on every platform and from a notebook with threads.
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)
    try:
        # Eight images at once: Ctrl-C waits for those that are begun.
        yield partial(executor.map, chunksize=8)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which shuts us down
    import cv2

    cv2.setNumThreads(0)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A killed parent closes no queue, and its workers would wait for work for ever.
    multiprocessing.parent_process().join()
    os._exit(1)
