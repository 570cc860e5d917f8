"""How fast ThreadLoader is: beside the best tuned DataLoader, no loader, and decoding alone.

    python -m benchmarks.loaders [--data FOLDER] [--rounds 20] [--input-px 224]

All arms read the same warm JPEG files with the same decoder, resize and uint8 output; both loaders'
batches are compared bit for bit before anything is timed.  The DataLoader is tuned first, on runs
that do not count; ThreadLoader has as many threads as there are cores.  *No loader* is the same
work in bare threads: where it misses a limit as well, no loader can meet it.  The experiments
`rivals` and `outside_loaders` compare with the loaders of other libraries.
"""

import os
import random
import statistics
import sys
import threading
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch

from benchmarks import frame
from labkit import ThreadLoader, units
from labkit.machine import hardware
from labkit.parts.decoding import DECODERS

IMAGES = 500
BATCH_SIZE = 64
EPOCHS = 2  # of all images in one timed run, so that its ends weigh little
TUNING_ROUNDS = 3
PREFETCH_FACTORS = (2, 4)
OURS, TORCH, NO_LOADER, DECODING = "ThreadLoader", "DataLoader", "no loader", "decoding alone"
# Arm -> at least how many times as fast ThreadLoader has to be.
LIMITS = {TORCH: 1.15, DECODING: 0.90}


def read(path: str) -> bytes:
    """Read a file in few system calls: each one releases the interpreter lock."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, os.fstat(file).st_size)
    finally:
        os.close(file)


class Images:
    """Files as (S, S, 3) uint8 RGB and their number, by the fastest known way to these pixels.

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
        jpeg = read(self.paths[i % len(self.paths)])
        small = cv2.resize(simplejpeg.decode_jpeg(jpeg, "RGBX"), self.size)
        return cv2.cvtColor(small, cv2.COLOR_RGBA2RGB, dst=out)


def no_opencv_threads(worker_id: int = 0) -> None:
    """Leave all threads to the loaders' workers."""
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


def drain(loader) -> None:
    for _ in loader:
        pass


def run_threads(work, count: int, threads: int) -> None:
    """Call work(0) to work(count - 1) in threads, with as little around it as possible."""
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


def tune(images: Images, cores: int) -> torch.utils.data.DataLoader:
    """Return a DataLoader with its best settings, found on runs of their own."""
    settings = [
        (workers, factor)
        for workers in range(2 * cores + 1)
        for factor in (PREFETCH_FACTORS if workers else (0,))
    ]
    took_s = {}
    for workers, factor in random.sample(settings, len(settings)):
        loader = data_loader(images, workers, factor)
        drain(loader)  # starts the workers, warms the files
        times_s = [frame.timed(partial(drain, loader)) for _ in range(TUNING_ROUNDS)]
        took_s[workers, factor] = statistics.median(times_s)
        del loader
    return data_loader(images, *min(took_s, key=took_s.get))


def check_equal(ours: ThreadLoader, theirs: torch.utils.data.DataLoader, images: Images) -> None:
    """Refuse to time loaders that do not deliver the same, or not what the usual calls make."""
    for a, b in zip(ours, theirs, strict=True):
        if list(a) != list(b) or not all(torch.equal(a[name], b[name]) for name in a):
            raise SystemExit("the loaders must deliver the same batches, got others; not timed")
    plain = cv2.resize(DECODERS["simplejpeg"](Path(images.paths[0]).read_bytes()), images.size)
    if not np.array_equal(images[0]["image"], plain):
        raise SystemExit("images must be as decoded to RGB and resized, got others; not timed")


def main() -> int:
    parser = frame.parser(__doc__, data=True, rounds=20)
    parser.add_argument("--input-px", type=int, default=224)
    options = parser.parse_args()
    report = frame.Report("ThreadLoader beside other ways to make the same batches", options)
    no_opencv_threads()
    torch.set_num_threads(1)
    with frame.photographs(options.data, IMAGES) as (data, _):
        paths = sorted(data.rglob("*.jpg"))[:IMAGES]
        images, cores = Images(paths, options.input_px), hardware.cores()
        jpegs = [path.read_bytes() for path in paths]
        theirs = tune(images, cores)
        ours = ThreadLoader(images, BATCH_SIZE, num_threads=cores)
        check_equal(ours, theirs, images)  # this also starts workers, before there are threads
        rows = np.empty((BATCH_SIZE, *images.size, 3), np.uint8)
        decode = DECODERS["simplejpeg"]
        works = {
            NO_LOADER: lambda i: images.make(i, rows[i % BATCH_SIZE]),
            DECODING: lambda i: decode(jpegs[i % len(jpegs)]),
        }
        runs = {
            OURS: partial(drain, ours),
            TORCH: partial(drain, theirs),
            **{
                name: partial(run_threads, work, len(images), cores) for name, work in works.items()
            },
        }
        arms = {name: partial(frame.timed, run) for name, run in runs.items()}
        taken_s = frame.in_turn(arms, options.rounds)
    report.line(
        f"{units.count(len(paths), 'file')}, {options.input_px} px, batches of {BATCH_SIZE}, "
        f"{options.rounds} rounds; {TORCH}: {theirs.num_workers} workers, "
        f"prefetch_factor {theirs.prefetch_factor}"
    )
    ratios = {name: frame.ratio(times_s, taken_s[OURS]) for name, times_s in taken_s.items()}
    report.table(
        ("", "images/s", f"{OURS} is so many times as fast"),
        [
            (name, f"{len(images) / statistics.median(times_s):.0f}", str(ratios[name]))
            for name, times_s in taken_s.items()
        ],
    )
    for name, least in LIMITS.items():
        report.limit(
            ratios[name].mean >= least, f"{OURS} / {name}: {ratios[name]}, at least {least:g}"
        )
    return report.finish(taken_s)


if __name__ == "__main__":
    sys.exit(main())
