"""Packing at 1,000, 10,000 and 100,000 images: time, rate, and memory that must stay flat.

Every case runs in a fresh process, on the same small images (a few hundred, linked as often as
needed).  Beside its rate stand, of the same run, those of its parts: the images only read and
converted (the encoder's), nothing written; and the pack's bytes only written in sequence, with
fsync (the disk's).  Exits with 1 where the peak memory grows by more than the named allowance, or
a case fails.

    python -m benchmarks.packing [--formats raw lmdb] [--stored jpeg] [--images 1000 10000]

All of it takes about five minutes on two cores and 2 GB in the system's folder for temporary
files, which may be memory: `--folder` names one on the disk that is meant.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import cv2
import psutil

from labkit import units
from labkit.converter import Converter
from labkit.files import locked
from labkit.packs import ensure_pack
from labkit.parts.packing import JPEG, PACKINGS, PIXELS, RESIZED
from labkit.parts.packing.lmdb_env import BATCH_BYTES
from labkit.parts.packing.pth import PTH
from labkit.settings import Settings
from labkit.trial import Skip

REPOSITORY = Path(__file__).resolve().parents[1]
PREFIX = "labkit-packing-benchmark-"
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
# What 100,000 names, sizes, offsets, checksums and boxes take in a shard's index, which is in
# memory more than once while it is written, and in the list of the data's own names.
ALLOWANCE_BYTES_PER_IMAGE = 600
# What a format gathers before it writes: twice, as it came and as it is written.
HELD_BYTES = {"lmdb": 2 * BATCH_BYTES, "pth": 2 * PTH.shard_bytes}
CONVERTED = 2_000  # images from which the converter's own rate is taken
LOOK_S = 0.02
PIECE_BYTES = 16 << 20
HEAD = (
    f"{'packing':9}{'stored':9}{'images':>8}{'time':>13}{'rate':>17}{'':>12}{'peak memory':>13}"
    f"{'encoder alone':>19}{'disk alone':>13}{'x the slower':>14}"
)


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


def measure(case: dict) -> dict:
    """Pack once in this process, and take its parts' own rates."""
    settings, out = Settings(**case["settings"]), Path(case["out"])
    with PeakMemory() as memory:
        cost = ensure_pack(settings, to=out, jobs=case["jobs"])
    converter = Converter(settings=settings)
    images = min(CONVERTED, cost["images"])
    start_s = time.perf_counter()
    for i in range(images):
        converter(i)
    convert_s = (time.perf_counter() - start_s) / images * cost["images"] / case["jobs"]
    piece = os.urandom(min(PIECE_BYTES, cost["bytes"]))
    start_s = time.perf_counter()
    with (out.parent / "plain").open("wb") as plain:
        for start in range(0, cost["bytes"], len(piece)):
            plain.write(piece[: cost["bytes"] - start])
        plain.flush()
        os.fsync(plain.fileno())
    write_s = time.perf_counter() - start_s
    more = {"peak_bytes": memory.peak_bytes, "convert_s": convert_s, "write_s": write_s}
    return {**cost, **more}


def in_fresh_process(case: dict) -> dict:
    """Run one case in a process of its own, which ends with this one."""
    command = [sys.executable, "-m", "benchmarks.packing", "--case", json.dumps(case)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    # In a session of its own, or Ctrl-C would reach it beside what ends it here.
    with subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True, **pipes) as process:
        found = process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:3])
    return json.loads(found)


def case_main(case: dict) -> None:
    """Be that process."""

    def end_with_parent() -> None:
        os.read(sys.stdin.fileno(), 1)  # nothing comes but its end
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        found = measure(case)
    except Skip as skip:
        found = {"skipped": str(skip)}
    print(json.dumps(found))


@contextlib.contextmanager
def own_folder(base: Path | None) -> Iterator[Path]:
    """Give a folder that goes in the end; what a killed benchmark left there goes first.

    Raises:
        ValueError: it would lie in the repository.
    """
    base = Path(base or tempfile.gettempdir()).resolve()
    if base.is_relative_to(REPOSITORY):
        raise ValueError(
            f"folder must lie outside the repository, got {str(base)!r}; name another one"
        )
    for left in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), locked(left):  # another user's, or still in use
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=base, prefix=PREFIX, ignore_cleanup_errors=True) as place:
        with locked(Path(place)):
            yield Path(place)


def row(packing: str, stored: str, found: dict) -> str:
    images, took_s = found["images"], found["pack_s"]
    return (
        f"{packing:9}{stored:9}{images:>8,}{units.seconds(took_s):>13}"
        f"{units.rate(images / took_s):>17}{found['bytes'] / took_s / 1e6:>7.1f} MB/s"
        f"{units.count_bytes(found['peak_bytes']):>13}"
        f"{units.rate(images / found['convert_s']):>19}"
        f"{found['bytes'] / found['write_s'] / 1e6:>8.0f} MB/s"
        f"{took_s / max(found['convert_s'], found['write_s']):>14.2f}"
    )


def growth(found: list[dict], held_bytes: int = 0) -> str:
    """Say how the peak memory of the largest case exceeds what it may be; empty where it is flat.

    Args:
        found: images and peak_bytes of each case, the smallest first.
        held_bytes: what a format gathers at most, whatever the number of images.
    """
    first, last = found[0], found[-1]
    allowed = first["peak_bytes"] * (1 + GROWTH) + held_bytes
    allowed += ALLOWANCE_BYTES_PER_IMAGE * (last["images"] - first["images"])
    if last["peak_bytes"] <= allowed:
        return ""
    return (
        f"peak memory grows from {units.count_bytes(first['peak_bytes'])} at "
        f"{first['images']:,} images to {units.count_bytes(last['peak_bytes'])} at "
        f"{last['images']:,}, allowed is {units.count_bytes(allowed)}"
    )


def run(given: argparse.Namespace, place: Path) -> list[str]:
    """Print a row for each case; give what is wrong."""
    wrong = []
    print(HEAD, flush=True)
    for stored in given.stored:
        for packing in given.formats:
            if stored not in PACKINGS[packing].stores:
                print(f"{packing:9}{stored:9}cannot be stored so")
                continue
            found = []
            for images in sorted(given.images or IMAGES[stored]):
                data = place / f"{images}"
                if not data.is_dir():
                    make_data(data, images)
                settings = Settings(data=str(data), packing=packing, stored=stored, input_px=PX)
                with tempfile.TemporaryDirectory(dir=place) as out:
                    case = {"settings": asdict(settings), "out": f"{out}/pack", "jobs": given.jobs}
                    try:
                        measured = in_fresh_process(case)
                    except subprocess.CalledProcessError as error:
                        wrong.append(f"{packing}, {stored}, {images:,} images: {error}")
                        break
                if "skipped" in measured:
                    print(f"{packing:9}{stored:9}skipped: {measured['skipped']}", flush=True)
                    break
                found.append(measured)
                print(row(packing, stored, measured), flush=True)
            if found and (grows := growth(found, HELD_BYTES.get(packing, 0))):
                wrong.append(f"{packing}, {stored}: {grows}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", help="unset: up to 100,000 JPEG files")
    formats = [name for name in PACKINGS if "_" not in name]  # variants read the same packs
    parser.add_argument("--formats", nargs="+", choices=formats, default=formats)
    parser.add_argument("--stored", nargs="+", choices=IMAGES, default=[JPEG, RESIZED])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to write; unset: for temporary files")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        case_main(json.loads(given.case))
        return 0
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.default_int_handler)  # then what was written goes too
    start_s = time.perf_counter()
    try:
        with own_folder(given.folder) as place:
            wrong = run(given, place)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"took {units.seconds(time.perf_counter() - start_s)}")
    print("\n".join(wrong) or "peak memory is flat")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
