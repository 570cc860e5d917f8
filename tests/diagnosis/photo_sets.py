"""Data sets as users write them: map-style, in batches, iterable; with faults on demand."""

import json
import os
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info


class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class Blur:
    def __call__(self, image):
        return cv2.GaussianBlur(image, (31, 31), 0)


def to_tensor(image):
    return torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1)


class Photos(Dataset):
    """Read, decoded and transformed; the same file again and again is as good as others."""

    def __init__(self, folder, length=64):
        self.files = sorted(Path(folder, "images").glob("*.jpg"))
        self.length = length
        self.transform = Compose(Blur(), to_tensor)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        file = self.files[i % len(self.files)]
        # Each step takes a tenth of the time or more: samples of some tenths of a second find it.
        image = self.decoded(file.read_bytes())
        image = cv2.resize(image, (320, 240), interpolation=cv2.INTER_LANCZOS4)
        return self.transform(image), i

    def decoded(self, jpeg):
        return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)


class PhotosInBatches(Photos):
    def __getitems__(self, keys):
        return [self[key] for key in keys]


class PhotoStream(IterableDataset):
    def __init__(self, folder, length=64):
        self.photos = Photos(folder, length)

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for i in range(first, len(self.photos), step):
            yield self.photos[i]


def double(numbers):
    return [2 * number for number in numbers]


class Parsed(Dataset):
    """Waits, parses a text, and calls a function of its own."""

    text = json.dumps(list(range(20_000)))

    def __len__(self):
        return 64

    def __getitem__(self, i):
        time.sleep(0.005)
        return sum(double(self.parsed()))

    def parsed(self):
        return json.loads(self.text)


class BrokenPhotos(Photos):
    """Fails at one sample: "raise", "stall", or "die" as a worker does that the kernel kills."""

    def __init__(self, folder, fault, at=12):
        super().__init__(folder)
        self.fault, self.at = fault, at

    def __getitem__(self, i):
        if i == self.at and self.fault == "raise":
            raise ValueError(f"no photo {i}")
        if i == self.at and self.fault == "stall":
            threading.Event().wait()
        if i == self.at:
            os._exit(9)
        return super().__getitem__(i)


class BusyPhotos(Photos):
    """Computes in a thread that nobody ends."""

    thread = None

    def __getitem__(self, i):
        if self.thread is None:
            self.thread = threading.Thread(target=self.compute, daemon=True)
            self.thread.start()
        return super().__getitem__(i)

    def compute(self):
        while True:
            torch.ones(300, 300) @ torch.ones(300, 300)


KINDS = {
    "map": Photos,
    "subset": lambda folder: Subset(Photos(folder), range(48)),
    "in batches": PhotosInBatches,
    "iterable": PhotoStream,
}
