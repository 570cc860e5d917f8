"""Loaders beside each other: ThreadLoader, the best tuned DataLoader, and decoding alone.

The same JPEG files, decoder, resize and uint8 output, warm, turn about in one run; every loader's
batches are compared bit for bit before anything is timed; those of libraries that decode by
themselves within one grey level.  The DataLoader is tuned first, on runs that do not count;
ThreadLoader runs as it comes, and the others with as many threads as there are cores.  What is not
installed is left out and named: pip install 'labkit[rivals]' spdl webdataset.  Ratios are geometric
means over the rounds with 95 % intervals.  Exits with 1 where a target is missed; the same work
without a loader, and less and less of it, says why (`loader_report`).

    python -m benchmarks.loaders [DATA] [--rounds 20] [--input-px 224] [--save FOLDER]
"""

import argparse
import itertools
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch

from benchmarks import loader_report
from benchmarks.loader_report import BOUNDS, DECODING, Rounds
from benchmarks.rivals import DALI, RIVALS, TF_DATA, check_same_images
from data_scripts.make_photos import make_photos
from labkit import ThreadLoader, units
from labkit.contracts import Skip, utc_now
from labkit.machine import hardware
from labkit.machine.usage import own_cpu_s
from labkit.parts.decoding import DECODERS, SCALED, why_not

IMAGES = 500
BATCH_SIZE = 64
EPOCHS = 2  # of all images in one timed run, so that its ends weigh little
TUNING_ROUNDS = 3
PREFETCH_FACTORS = (2, 4)
READY = 10_000  # samples, so that the threads' start weighs little
OURS, TORCH = "ThreadLoader", "DataLoader"
# Faster one, slower one -> how many times as fast it has to be.
TARGETS = {(OURS, TORCH): 1.15, (OURS, DALI): 2.0, (OURS, TF_DATA): 2.0, (OURS, DECODING): 0.90}


def read(path: str) -> bytes:
    """Read a file in few system calls: each one lets go of the interpreter lock."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, os.fstat(file).st_size)
    finally:
        os.close(file)


class Images:
    """Files as (S, S, 3) uint8 RGB and their number, by the fastest way to these pixels known here.

    Decoded to four bytes a pixel, as OpenCV resizes four faster than three (measured: 4 % of an
    image); the fourth is then dropped from the small image.
    """

    def __init__(self, paths: list[Path], input_px: int) -> None:
        self.paths, self.size = [str(path) for path in paths], (input_px, input_px)

    def __len__(self) -> int:
        return len(self.paths) * EPOCHS

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"image": self.make(i), "label": i}

    def make(self, i: int, out: np.ndarray | None = None) -> np.ndarray:
        return self.from_jpeg(read(self.paths[i % len(self.paths)]), out)

    def from_jpeg(self, jpeg: bytes, out: np.ndarray | None = None) -> np.ndarray:
        small = cv2.resize(simplejpeg.decode_jpeg(jpeg, "RGBX"), self.size)
        return cv2.cvtColor(small, cv2.COLOR_RGBA2RGB, dst=out)


class Ready:
    """Samples that are there already: what remains is the loader's own work."""

    def __init__(self, input_px: int) -> None:
        self.image = np.zeros((input_px, input_px, 3), np.uint8)

    def __len__(self) -> int:
        return READY

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"image": self.image, "label": i}


def no_opencv_threads(worker_id: int = 0) -> None:
    """The loaders' workers are all the threads there shall be."""
    cv2.setNumThreads(0)


def data_loader(images: Images, workers: int, prefetch_factor: int) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(
        images,
        BATCH_SIZE,
        num_workers=workers,
        prefetch_factor=prefetch_factor if workers else None,
        persistent_workers=workers > 0,
        worker_init_fn=no_opencv_threads,
    )


def run_threads(work, count: int, threads: int) -> None:
    """Call work(0) to work(count - 1) in threads: as little around it as can be."""
    numbers, lock = iter(range(count)), threading.Lock()

    def run() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            work(number)

    started = [threading.Thread(target=run) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def drain(loader) -> None:
    for _ in loader:
        pass


def timed(run) -> tuple[float, float]:
    """Give seconds and CPU-seconds, workers' among them."""
    cpu_s, start_s = own_cpu_s(), time.perf_counter()
    run()
    return time.perf_counter() - start_s, own_cpu_s() - cpu_s


def fastest_decoder(jpegs: list[bytes], cores: int) -> str:
    """Time every decoder on all cores, turn about; the least of their times counts."""
    missing = why_not()
    names = [name for name in DECODERS if name not in SCALED and name not in missing]
    took_s = dict.fromkeys(names, math.inf)
    for _, name in itertools.product(range(3), names):
        decode = DECODERS[name]  # one that holds the interpreter lock is no faster on more cores
        seconds, _ = timed(
            lambda decode=decode: run_threads(lambda i: decode(jpegs[i]), len(jpegs), cores)
        )
        took_s[name] = min(took_s[name], seconds)
    for name, seconds in sorted(took_s.items(), key=lambda item: item[1]):
        print(f"  {name:12} {len(jpegs) / seconds:7.0f} images/s in {cores} threads")
    for name, reason in missing.items():
        print(f"  {name:12} left out: {reason}")
    return min(took_s, key=took_s.get)


def tune(images: Images, cores: int) -> torch.utils.data.DataLoader:
    """Find the DataLoader's best settings, on runs of their own."""
    settings = [
        (workers, factor)
        for workers in range(2 * cores + 1)
        for factor in (PREFETCH_FACTORS if workers else (0,))
    ]
    rates = {}
    for workers, factor in random.sample(settings, len(settings)):
        loader = data_loader(images, workers, factor)
        drain(loader)  # starts the workers, warms the files
        took_s = [timed(lambda loader=loader: drain(loader))[0] for _ in range(TUNING_ROUNDS)]
        rates[workers, factor] = len(images) / statistics.median(took_s)
        del loader
    for (workers, factor), rate in sorted(rates.items()):
        how = f"prefetch_factor {factor}" if workers else ""
        print(f"  {workers} workers {how:18} {rate:7.0f} images/s")
    return data_loader(images, *max(rates, key=rates.get))


def check_equal(ours: ThreadLoader, theirs: torch.utils.data.DataLoader, images: Images) -> None:
    """Refuse to time loaders that do not deliver the same, or not what the usual calls make."""
    for a, b in zip(ours, theirs, strict=True):
        if list(a) != list(b) or not all(torch.equal(a[name], b[name]) for name in a):
            raise SystemExit("the loaders must deliver the same batches, got others; not timed")
    plain = cv2.resize(DECODERS["simplejpeg"](Path(images.paths[0]).read_bytes()), images.size)
    if not np.array_equal(images[0]["image"], plain):
        raise SystemExit("images must be as decoded to RGB and resized, got others; not timed")


def open_rivals(images: Images, ours: ThreadLoader, cores: int, folder: Path) -> dict[str, object]:
    """Open what is installed and delivers the same; say why the others are left out."""
    reference = {
        label: image
        for batch in ours
        for image, label in zip(batch["image"], batch["label"].tolist())
    }
    found = {}
    for name, start in RIVALS.items():
        try:
            rival = start(images, BATCH_SIZE, cores, folder)
            check_same_images(rival, reference)
        except (Skip, ValueError) as reason:
            print(f"  {name}: left out: {reason}")
        else:
            found[name] = rival
    return found


def loader_us(input_px: int, cores: int) -> float:
    """Take the CPU time of a loader that has nothing to make, per sample."""
    loader = ThreadLoader(Ready(input_px), BATCH_SIZE, num_threads=cores)
    drain(loader)  # from here on its batches have memory
    took_s = []
    for _ in range(5):
        start_s = time.process_time()
        drain(loader)
        took_s.append(time.process_time() - start_s)
    return statistics.median(took_s) / READY * 1e6


def bounds(images: Images, jpegs: list[bytes], decode, cores: int) -> dict:
    """The same work in bare threads, and less and less of it."""
    rows = np.empty((BATCH_SIZE, *images.size, 3), np.uint8)
    works = (
        lambda i: images.make(i, rows[i % BATCH_SIZE]),
        lambda i: images.from_jpeg(jpegs[i % len(jpegs)], rows[i % BATCH_SIZE]),
        lambda i: decode(jpegs[i % len(jpegs)]),
    )
    return {
        name: lambda work=work: run_threads(work, len(images), cores)
        for name, work in zip(BOUNDS, works)
    }


def compare(arms: dict, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Run all arms in every round, in random order."""
    for run in arms.values():
        run()
    taken = {name: [] for name in arms}
    for _ in range(rounds):
        for name in random.sample(list(arms), len(arms)):
            taken[name].append(timed(arms[name]))
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", help=f"folder of .jpg files; else {IMAGES} are made")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--input-px", type=int, default=224)
    parser.add_argument("--save", type=Path, help="folder for a table, a chart and all rounds")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}")
    with tempfile.TemporaryDirectory() as folder:
        if options.data is None:
            make_photos(folder, IMAGES)
        source = Path(options.data or folder)
        rounds = measure(source, options.rounds, options.input_px, scratch=Path(folder))
    print(*loader_report.lines_of(rounds), sep="\n")
    if options.save:
        loader_report.save(rounds, options.save, hardware.provenance(), utc_now())
    _, met = loader_report.judge(rounds)
    return 0 if met else 1


def measure(folder: Path, rounds: int, input_px: int, *, scratch: Path) -> Rounds:
    paths = sorted(folder.rglob("*.jpg"))[:IMAGES]
    jpegs = [path.read_bytes() for path in paths]
    images, cores = Images(paths, input_px), hardware.cores()
    no_opencv_threads()
    torch.set_num_threads(1)
    print("Decoders:")
    fastest = fastest_decoder(jpegs[:100], cores)
    print("DataLoader, tuning:")
    theirs = tune(images, cores)
    ours = ThreadLoader(images, BATCH_SIZE, num_threads=cores)
    check_equal(ours, theirs, images)  # this also starts its workers, before others have threads
    print("Rivals:")
    rivals = open_rivals(images, ours, cores, scratch)
    print(f"  {', '.join(rivals) or 'none'}: the same images")

    arms = {
        OURS: lambda: drain(ours),
        TORCH: lambda: drain(theirs),
        **{name: lambda rival=rival: drain(rival) for name, rival in rivals.items()},
        **bounds(images, jpegs, DECODERS[fastest], cores),
    }
    return Rounds(
        taken=compare(arms, rounds),
        images=len(images),
        loader_us=loader_us(input_px, cores),
        targets=TARGETS,
        conditions=(
            f"{len(paths)} files of {units.count_bytes(sum(map(len, jpegs)) / len(jpegs))}, warm, "
            f"to {input_px} × {input_px} uint8, batches of {BATCH_SIZE}, {cores} cores",
            f"{TORCH}: {theirs.num_workers} workers, prefetch_factor {theirs.prefetch_factor}; "
            f"{DECODING}: {fastest}; {rounds} rounds of {units.count(len(images), 'image')}",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
