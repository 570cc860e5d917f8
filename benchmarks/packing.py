"""Packing at 1,000, 10,000 and 100,000 images: time, rate, and memory that must stay flat.

Every case runs in a fresh process, on the same small images (a few hundred, linked as often as
needed).  Exits with 1 where the peak memory grows by more than the named allowance.

    python -m benchmarks.packing [--formats raw lmdb] [--stored jpeg] [--images 1000 10000]

All of it takes about five minutes on two cores and 2 GB in the system's folder for temporary
files, which may be memory: `--folder` names one on the disk that is meant.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import psutil

from labkit import units
from labkit.contracts import Skip
from labkit.parts.packing import JPEG, PACKINGS, PIXELS, RESIZED
from labkit.runs.packs import ensure_pack
from labkit.settings import Settings

# Converting 100,000 images for each format would take most of an hour.
IMAGES = {
    JPEG: [1_000, 10_000, 100_000],
    RESIZED: [1_000, 10_000],
    PIXELS: [1_000, 10_000],
}
DIFFERENT = 250  # images, from which all others are linked
SIDE_PX = 96  # shorter side: 100,000 of these take half a gigabyte
PX = 64
GROWTH = 0.10
# What names, sizes, checksums and boxes take, which are in memory more than once while they are
# written; of a folder also an object for each image.
ALLOWANCE_BYTES_PER_IMAGE = 2_500
LOOK_S = 0.02


class PeakMemory:
    """The largest resident memory of this process, files that it maps not counted."""

    def __enter__(self):
        self.peak_bytes, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _look(self):
        process, goes_on = psutil.Process(), True
        while goes_on:
            goes_on = not self._ended.wait(LOOK_S)  # and once more when it has ended
            memory = process.memory_info()
            self.peak_bytes = max(self.peak_bytes, memory.rss - memory.shared)


def make_data(folder: Path, images: int) -> None:
    """Link so many small images into a new folder."""
    from data_scripts.make_photos import make_photos

    originals = folder.parent / "originals"
    if not originals.is_dir():
        photos = folder.parent / "photos"
        make_photos(photos, min(DIFFERENT, images), progress=False)
        originals.mkdir()
        for path in sorted((photos / "images").iterdir()):
            image = cv2.imread(str(path))
            factor = SIDE_PX / min(image.shape[:2])
            small = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
            cv2.imwrite(str(originals / path.name), small)
    sources = sorted(originals.iterdir())
    folder.mkdir()
    for number in range(images):
        os.link(sources[number % len(sources)], folder / f"{number:09}.jpg")


def measure(settings: Settings, out: Path, jobs: int) -> dict | str:
    """Pack once in this process; say why where that cannot be."""
    try:
        with PeakMemory() as memory:
            cost = ensure_pack(settings, to=out, jobs=jobs)
    except Skip as skip:
        return str(skip)
    return {**cost, "peak_bytes": memory.peak_bytes}


def growth(found: list[dict]) -> str:
    """Say how the peak memory of the largest case exceeds what it may be; empty where it is flat.

    Args:
        found: images and peak_bytes of each case, the smallest first.
    """
    first, last = found[0], found[-1]
    allowed = first["peak_bytes"] * (1 + GROWTH)
    allowed += ALLOWANCE_BYTES_PER_IMAGE * (last["images"] - first["images"])
    if last["peak_bytes"] <= allowed:
        return ""
    return (
        f"peak memory grows from {units.count_bytes(first['peak_bytes'])} at "
        f"{first['images']:,} images to {units.count_bytes(last['peak_bytes'])} at "
        f"{last['images']:,}, allowed is {units.count_bytes(allowed)}"
    )


def run_format(given: argparse.Namespace, place: Path, stored: str, packing: str) -> str:
    """Print a row for each number of images; return what is wrong."""
    found = []
    for images in sorted(given.images or IMAGES[stored]):
        data = place / f"{images}"
        if not data.is_dir():
            make_data(data, images)
        settings = Settings(data=str(data), packing=packing, stored=stored, input_px=PX)
        context = multiprocessing.get_context("spawn")
        with (
            tempfile.TemporaryDirectory(dir=place) as out,
            ProcessPoolExecutor(1, mp_context=context) as fresh,
        ):
            measured = fresh.submit(measure, settings, Path(out, "pack"), given.jobs).result()
        if isinstance(measured, str):
            print(f"{packing:9}{stored:9}skipped: {measured}", flush=True)
            return ""
        found.append(measured)
        took_s = measured["pack_s"]
        print(
            f"{packing:9}{stored:9}{images:>8,}{units.seconds(took_s):>13}"
            f"{units.rate(images / took_s):>17}{measured['bytes'] / took_s / 1e6:>7.1f} MB/s"
            f"{units.count_bytes(measured['peak_bytes']):>13}",
            flush=True,
        )
    return growth(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", help="unset: up to 100,000 JPEG files")
    parser.add_argument("--formats", nargs="+", choices=PACKINGS, default=list(PACKINGS))
    parser.add_argument("--stored", nargs="+", choices=IMAGES, default=[JPEG, RESIZED])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to write; unset: for temporary files")
    given = parser.parse_args()
    wrong = []
    print(f"{'packing':9}{'stored':9}{'images':>8}{'time':>13}{'rate':>17}{'':>12}{'memory':>13}")
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="labkit-packing-") as place:
        for stored in given.stored:
            for packing in given.formats:
                if stored in PACKINGS[packing].stores and (
                    grows := run_format(given, Path(place), stored, packing)
                ):
                    wrong.append(f"{packing}, {stored}: {grows}")
    print("\n".join(wrong) or "peak memory is flat")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
