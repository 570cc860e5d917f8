"""Bottlenecks that were looked at once: `python -m benchmarks.diagnosis --fresh`.

    name(site, fixed) -> the arguments of `lab.diagnose`, with the bottleneck or without

Someone who had not seen the rules wrote these cases, and their answers.  They were diagnosed once,
on 2026-11-28, with the rules of revision 0b01ab9b: that result is published.  They have been seen
since, so what later rules make of them is no evidence.

Most data are no photographs: sound, text, tables, depth maps, graphs, points.  As in the other
planted modules, the device is the limit once the bottleneck is removed, or nothing but the planted
work differs.  In the last ones loading is not the problem: batches that are there already do not
help.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import logging
import os
import pickle
import random
import sqlite3
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from filelock import FileLock
from torch import nn
from torch.utils.data import (
    Dataset,
    IterableDataset,
    Sampler,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from benchmarks.photo_training import (
    PX,
    Photos,
    Resize,
    Site,
    Train,
    decode_half,
    decode_quarter,
    simulated,
    training,
)
from labkit.parts.devices import SimulatedGpu

# Files are made once: workers of an earlier loader may still read them.
SAMPLES = 320
IMAGES = 160
FEW = 16  # different arrays in memory, which are repeated as needed
NO_WORKERS = {"num_workers": 0, "persistent_workers": False}


class Fit(Train):
    """Trains on dictionaries with a "label", or on pairs of inputs and labels."""

    def __call__(self, batch: dict[str, object] | Sequence[torch.Tensor]) -> None:
        named = batch if isinstance(batch, dict) else dict(zip(("inputs", "label"), batch))
        tensors = {name: value for name, value in named.items() if torch.is_tensor(value)}
        on_device = self.device.put(tensors, **self.how)
        self.device.wait(on_device)
        self.device.compute(len(named["label"]))
        self.steps += 1
        if self.steps % self.sync_every == 0:
            self.device.synchronize()
        self.after(batch)


def fit(dataset: Dataset, compute_ms: float, **options: object) -> dict[str, object]:
    """Return the arguments of `lab.diagnose` for a simulated GPU, which takes so long a sample."""
    return training(dataset, Fit(simulated(compute_ms)), **options)


class Made(Dataset):
    """Pairs of what a function makes of a number, and that number.

    Args:
        make: of a number.
        count: samples.
    """

    def __init__(self, make: Callable[[int], torch.Tensor], count: int) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.make(i), i


def filled(i: int) -> torch.Tensor:
    return torch.full((256,), float(i))


def repeated(arrays: torch.Tensor, i: int) -> torch.Tensor:
    return arrays[i % len(arrays)]


# --- sound and text ---------------------------------------------------------------------------


def waves(length: int) -> np.ndarray:
    """Make recordings: (FEW, length) int16."""
    return np.random.default_rng(0).integers(-(2**15), 2**15, (FEW, length), np.int16)


RESAMPLED = 16_000


def resample_by_value(wave: np.ndarray) -> np.ndarray:
    """Interpolate to RESAMPLED values."""
    values, step, resampled = wave.tolist(), len(wave) / RESAMPLED, []
    for k in range(RESAMPLED):
        left = int(k * step)
        part = k * step - left
        resampled.append(values[left] * (1 - part) + values[left + 1] * part)
    return np.array(resampled, np.float32)


def resample(wave: np.ndarray) -> np.ndarray:
    """Do the same with arrays."""
    places = np.arange(RESAMPLED) * (len(wave) / RESAMPLED)
    left = places.astype(np.int64)
    part = places - left
    return (wave[left] * (1 - part) + wave[left + 1] * part).astype(np.float32)


class Recordings(Dataset):
    """Recordings in memory, each with its number.

    Args:
        length: of a recording.
        change: of int16 (length,) to what is trained with.
        count: samples.
    """

    def __init__(self, length: int, change: Callable[[np.ndarray], np.ndarray], count: int) -> None:
        self.waves, self.change, self.count = waves(length), change, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.change(self.waves[i % FEW])), i


def resampled_in_python(site: Site, fixed: bool) -> dict[str, object]:
    """Sound is resampled value by value; better: as arrays."""
    sounds = Recordings(22_050, resample if fixed else resample_by_value, SAMPLES // 2)
    return fit(sounds, 1.6)


FRAME, HOP = 512, 160


def spectrogram(wave: np.ndarray) -> np.ndarray:
    """Return log power: (frames, FRAME / 2 + 1) float32."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, FRAME)[::HOP] * np.hanning(FRAME)
    return np.log1p(np.abs(np.fft.rfft(frames)) ** 2).astype(np.float32)


def spectrograms_without_workers(site: Site, fixed: bool) -> dict[str, object]:
    """The training process computes spectrograms; better: two workers."""
    sounds = Recordings(80_000, spectrogram, SAMPLES // 2)
    return fit(sounds, 2.0, **({} if fixed else NO_WORKERS))


class SpectrogramsFirst(Fit):
    """Computes the spectrograms of every batch on the host before they are copied."""

    def __call__(self, batch: Sequence[torch.Tensor]) -> None:
        sounds, labels = batch
        made = [torch.from_numpy(spectrogram(sound.numpy())) for sound in sounds]
        super().__call__((torch.stack(made), labels))


def spectrograms_in_the_loop(site: Site, fixed: bool) -> dict[str, object]:
    """The loop computes spectrograms of what workers send; better: the workers do."""
    sounds = Recordings(80_000, spectrogram if fixed else np.copy, SAMPLES // 2)
    return training(sounds, (Fit if fixed else SpectrogramsFirst)(simulated(1.2)))


CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
SYLLABLES = ["".join(pair) for pair in itertools.product(CONSONANTS, VOWELS)]


class Documents(Dataset):
    """Texts as tokens, (TOKENS,) int64: pairs of symbols are merged in the order of a list.

    Args:
        count: texts.
        tokenized: before the training, not for each sample.
    """

    WORDS, TOKENS = 400, 256

    def __init__(self, count: int, *, tokenized: bool) -> None:
        draw = random.Random(0)
        words = ["".join(draw.choices(SYLLABLES, k=draw.randint(2, 5))) for _ in range(2_000)]
        merges = [*itertools.product(CONSONANTS, VOWELS), *itertools.product(SYLLABLES, SYLLABLES)]
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}
        symbols = [*CONSONANTS, *VOWELS, *map("".join, merges)]
        self.ids = {symbol: number for number, symbol in enumerate(symbols)}
        self.count, self.tokens = count, None
        self.texts = [" ".join(draw.choices(words, k=self.WORDS)) for _ in range(FEW)]
        if tokenized:
            self.tokens = list(map(self.tokenize, self.texts))

    def merged(self, word: str) -> list[str]:
        symbols = list(word)
        while len(symbols) > 1:
            pairs = list(itertools.pairwise(symbols))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            place = pairs.index(best)
            symbols[place : place + 2] = ["".join(best)]
        return symbols

    def tokenize(self, text: str) -> torch.Tensor:
        symbols = itertools.chain.from_iterable(map(self.merged, text.split()))
        return torch.tensor([self.ids[symbol] for symbol in symbols][: self.TOKENS])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, object]:
        if self.tokens is None:
            return {"tokens": self.tokenize(self.texts[i % FEW]), "label": i}
        return {"tokens": self.tokens[i % FEW], "label": i}


def tokenized_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """Each text is split into tokens in Python every time; better: once."""
    return fit(Documents(SAMPLES, tokenized=fixed), 0.8)


class Spelled(Dataset):
    """Numbers of words, (WORDS,) int64, by a vocabulary that each worker reads when it starts."""

    WORDS, VOCABULARY = 64, 300_000

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count, self.numbers = path, count, None
        if not path.exists():
            lines = (f"word{number}\t{number * 7 % 1000}\n" for number in range(self.VOCABULARY))
            path.write_text("".join(lines))

    def load(self) -> None:
        self.numbers = {}
        for number, line in enumerate(self.path.read_text().splitlines()):
            word, frequency = line.split("\t")
            self.numbers[word] = (number, int(frequency))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, object]:
        if self.numbers is None:  # without workers
            self.load()
        words = [f"word{(i * self.WORDS + k) % self.VOCABULARY}" for k in range(self.WORDS)]
        return {"words": torch.tensor([self.numbers[word][0] for word in words]), "label": i}


def load_vocabulary(worker_id: int) -> None:
    get_worker_info().dataset.load()


def vocabulary_read_every_epoch(site: Site, fixed: bool) -> dict[str, object]:
    """New workers read a vocabulary for every short epoch; better: they persist."""
    words = Spelled(site.scratch / "vocabulary.tsv", SAMPLES // 4)
    return fit(words, 4.0, persistent_workers=fixed, worker_init_fn=load_vocabulary)


class TokenWindows(Dataset):
    """Windows of a text that is a memory-mapped array of tokens: (LENGTH,) int64, and the next."""

    LENGTH = 128

    def __init__(self, path: Path, count: int) -> None:
        if not path.exists():
            drawn = np.random.default_rng(0).integers(0, 50_000, count + self.LENGTH + 1)
            drawn.astype(np.uint16).tofile(path)
        self.tokens, self.count = np.memmap(path, np.uint16, "r"), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = torch.from_numpy(self.tokens[i : i + self.LENGTH + 1].astype(np.int64))
        return window[:-1], window[1:]


def windows_in_pairs(site: Site, fixed: bool) -> dict[str, object]:
    """Every batch has two short windows of tokens; better: 64."""
    windows = TokenWindows(site.scratch / "tokens.bin", 10 * SAMPLES)
    return fit(windows, 0.05, batch_size=64 if fixed else 2)


# --- files ------------------------------------------------------------------------------------


def frame(frames: np.ndarray, converts_all: bool, i: int) -> torch.Tensor:
    if converts_all:
        return torch.from_numpy(frames.astype(np.float32)[i].copy())
    return torch.from_numpy(frames[i].astype(np.float32))


def mapped_array_converted(site: Site, fixed: bool) -> dict[str, object]:
    """A whole memory-mapped array becomes floats for one frame of it; better: that frame does."""
    path = site.scratch / "frames.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).integers(0, 256, (1_500, 64, 64), np.uint8))
    frames = np.load(path, mmap_mode="r")
    return fit(Made(partial(frame, frames, not fixed), SAMPLES), 0.8)


DEPTH = (480, 640)


def meters(folder: Path, compressed: bool, i: int) -> torch.Tensor:
    if compressed:
        depth = cv2.imread(str(folder / f"{i % FEW}.png"), cv2.IMREAD_UNCHANGED)
    else:
        depth = np.fromfile(folder / f"{i % FEW}.bin", np.uint16).reshape(DEPTH)
    return torch.from_numpy(depth[::4, ::4] / np.float32(1000))


def depth_maps_compressed(site: Site, fixed: bool) -> dict[str, object]:
    """Depth maps are 16-bit PNG files; better: plain arrays."""
    folder = site.scratch / "depth"
    folder.mkdir(exist_ok=True)
    rng, rows = np.random.default_rng(0), np.arange(DEPTH[0])[:, None]
    for number in range(0 if any(folder.iterdir()) else FEW):
        depth = (4 * rows + rng.integers(0, 300, DEPTH)).astype(np.uint16)
        cv2.imwrite(str(folder / f"{number}.png"), depth)
        depth.tofile(folder / f"{number}.bin")
    return fit(Made(partial(meters, folder, not fixed), SAMPLES), 1.2)


class Views(Photos):
    """Six random squares of each photograph, (6, PX, PX, 3) uint8, to be told from others' squares.

    Args:
        paths: the files.
        decodes_each: the file is decoded for each square, not once.
    """

    VIEWS = 6

    def __init__(self, paths: Sequence[Path], *, decodes_each: bool) -> None:
        super().__init__(paths, decode=decode_half)
        self.decodes_each = decodes_each

    def __getitem__(self, i: int) -> dict[str, object]:
        rng, views, image = np.random.default_rng(i), [], None
        for _ in range(self.VIEWS):
            if image is None or self.decodes_each:
                image = self.decode(self.read(i))
            top, left = rng.integers(0, np.maximum(np.array(image.shape[:2]) - PX, 1))
            views.append(Resize()(image[top : top + PX, left : left + PX]))
        return {"image": torch.from_numpy(np.stack(views)), "label": i}


def decoded_for_each_view(site: Site, fixed: bool) -> dict[str, object]:
    """A photograph is decoded for each of six squares of it; better: once."""
    return training(Views(site.paths(IMAGES), decodes_each=not fixed), 3.5)


LENGTH, STRIDE = 16, 4  # frames of a sequence, and of those that are used the distance


def clip(paths: Sequence[Path], decodes_all: bool, i: int) -> torch.Tensor:
    frames = paths[4 * i : 4 * i + LENGTH]
    if decodes_all:
        images = [decode_quarter(path.read_bytes()) for path in frames][::STRIDE]
    else:
        images = [decode_quarter(path.read_bytes()) for path in frames[::STRIDE]]
    return torch.from_numpy(np.stack(list(map(Resize(112), images))))


def frames_decoded_and_dropped(site: Site, fixed: bool) -> dict[str, object]:
    """Of a sequence of JPEG frames every fourth is used, and all are decoded; better: it alone."""
    paths = site.paths(SAMPLES)
    return fit(Made(partial(clip, paths, not fixed), SAMPLES // 8), 8.0, batch_size=4)


class Archived(Dataset):
    """Small images in a tar archive, (64, 64) uint8.

    Args:
        path: of the archive, which is made.
        count: images in it.
        by_offset: where each image begins is noted once.
    """

    def __init__(self, path: Path, count: int, *, by_offset: bool) -> None:
        self.path, self.count, self.offsets = path, count, None
        if not path.exists():
            self.write()
        if by_offset:
            with tarfile.open(path) as tar:
                self.offsets = [member.offset_data for member in tar]

    def write(self) -> None:
        file = self.path.with_suffix(".raw")
        with tarfile.open(self.path, "w") as tar:
            for number in range(self.count):
                file.write_bytes(np.full((64, 64), number % 251, np.uint8).tobytes())
                tar.add(file, f"{number:06d}.raw")

    def read(self, i: int) -> bytes:
        if self.offsets is None:
            with tarfile.open(self.path) as tar:
                return tar.extractfile(f"{i:06d}.raw").read()
        with self.path.open("rb") as file:
            file.seek(self.offsets[i])
            return file.read(64 * 64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, object]:
        image = np.frombuffer(self.read(i), np.uint8).reshape(64, 64)
        return {"image": torch.from_numpy(image.copy()), "label": i}


def archive_opened_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """A tar archive is opened and searched for each image; better: offsets are noted once."""
    return fit(Archived(site.scratch / "images.tar", SAMPLES // 2, by_offset=fixed), 2.0)


FILES = 1_200


def listed(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.bin"))


def row_of_file(folder: Path, paths: Sequence[Path] | None, i: int) -> torch.Tensor:
    path = (listed(folder) if paths is None else paths)[i]
    return torch.from_numpy(np.fromfile(path, np.float32))


def folder_listed_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """The folder is listed and sorted to find each file; better: once."""
    folder = site.scratch / "rows"
    folder.mkdir(exist_ok=True)
    for number in range(0 if any(folder.iterdir()) else FILES):
        np.full(256, number, np.float32).tofile(folder / f"{number:06d}.bin")
    paths = listed(folder) if fixed else None
    return fit(Made(partial(row_of_file, folder, paths), SAMPLES), 1.2)


class Queried(Dataset):
    """Series of a database, (STEPS,) float32.

    Args:
        path: of the database, which is made.
        indexed: the column that is searched has an index.
    """

    SERIES, STEPS = 2_000, 40

    def __init__(self, path: Path, *, indexed: bool) -> None:
        self.path, self.opened = path, {}
        if not path.exists():
            self.write(indexed=indexed)

    def write(self, *, indexed: bool) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as database, database:
            database.execute("CREATE TABLE readings (series INTEGER, step INTEGER, value REAL)")
            rows = itertools.product(range(self.STEPS), range(self.SERIES))
            values = ((series, step, series / (step + 1)) for step, series in rows)
            database.executemany("INSERT INTO readings VALUES (?, ?, ?)", values)
            if indexed:
                database.execute("CREATE INDEX by_series ON readings (series)")

    def __len__(self) -> int:
        return min(SAMPLES, self.SERIES)

    def __getitem__(self, i: int) -> dict[str, object]:
        if os.getpid() not in self.opened:
            self.opened[os.getpid()] = sqlite3.connect(self.path)
        rows = self.opened[os.getpid()].execute(
            "SELECT value FROM readings WHERE series = ? ORDER BY step", (i,)
        )
        return {"series": torch.tensor([value for (value,) in rows]), "label": i}


def query_without_index(site: Site, fixed: bool) -> dict[str, object]:
    """Each sample searches a whole table of a database; better: by an index."""
    return fit(Queried(site.scratch / f"indexed_{fixed}.db", indexed=fixed), 0.8)


SHARDS, EACH = 4, 64


def image_of_shard(folder: Path, compressed: bool, i: int) -> torch.Tensor:
    path = folder / f"shard_{i // EACH % SHARDS}"
    if compressed:
        images = np.load(path.with_suffix(".npz"))["images"]
    else:
        images = np.load(path.with_suffix(".npy"), mmap_mode="r")
    return torch.from_numpy(images[i % EACH].copy())


def shard_unpacked_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """A compressed file of 64 images is unpacked for each of them; better: plain, and mapped."""
    rows = 3 * np.arange(64, dtype=np.uint8)[:, None, None]
    for number in range(0 if any(site.scratch.glob("shard_*")) else SHARDS):
        noise = np.random.default_rng(number).integers(0, 8, (EACH, 64, 64, 3), np.uint8)
        np.savez_compressed(site.scratch / f"shard_{number}.npz", images=noise + rows)
        np.save(site.scratch / f"shard_{number}.npy", noise + rows)
    return fit(Made(partial(image_of_shard, site.scratch, not fixed), SAMPLES), 1.2)


class Sharded(IterableDataset):
    """Photographs of lists of files, which workers divide between them.

    Args:
        shards: the lists.
        by_file: workers take single files; otherwise whole lists.
    """

    def __init__(self, shards: list[Photos], *, by_file: bool) -> None:
        self.shards, self.by_file = shards, by_file

    def __iter__(self) -> Iterator[dict[str, object]]:
        worker = get_worker_info()
        own = slice(worker.id, None, worker.num_workers) if worker else slice(None)
        if self.by_file:
            return (photos[i] for photos in self.shards for i in range(len(photos))[own])
        return (photos[i] for photos in self.shards[own] for i in range(len(photos)))


def one_shard(site: Site, fixed: bool) -> dict[str, object]:
    """One list of files in a slow folder: one worker has nothing to do; better: they divide it."""
    stream = Sharded([LockedFile(site.paths(IMAGES), None)], by_file=fixed)
    return training(stream, 2.5, shuffle=False)


# --- samples ----------------------------------------------------------------------------------


class Bend:
    """Shift the pixels of an image by a smooth random field; (PX, PX, 3) uint8.

    Args:
        keeps: fields are made once.
    """

    FIELDS, BLUR, MOST_PX = 8, 41, 60

    def __init__(self, *, keeps: bool) -> None:
        self.fields = list(map(self.field, range(self.FIELDS))) if keeps else None

    def field(self, number: int) -> np.ndarray:
        """Return where the pixels come from: (2, PX, PX) float32."""
        drawn = np.random.default_rng(number).uniform(-self.MOST_PX, self.MOST_PX, (2, PX, PX))
        window = np.ones(self.BLUR) / self.BLUR
        for axis in (1, 2):
            drawn = np.apply_along_axis(np.convolve, axis, drawn, window, "same")
        return (drawn + np.indices((PX, PX))[::-1]).astype(np.float32)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        number = int(image[0, 0, 0]) % self.FIELDS
        x, y = self.fields[number] if self.fields else self.field(number)
        return cv2.remap(image, x, y, cv2.INTER_LINEAR)


def fields_made_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """NumPy makes a smooth field row by row to bend each image; better: a few are kept."""
    photos = Photos(site.paths(IMAGES), [Resize(), Bend(keeps=fixed)], decode_quarter)
    return training(photos, 3.0)


class Logged(Photos):
    """Photographs; each is logged, at a level that nobody has switched on.

    Args:
        paths: the files.
        formats: the text is put together even if it is not logged.
    """

    ROWS = 10

    def __init__(self, paths: Sequence[Path], *, formats: bool) -> None:
        super().__init__(paths, decode=decode_quarter)
        self.formats, self.log = formats, logging.getLogger(__name__)

    def __getitem__(self, i: int) -> dict[str, object]:
        sample = super().__getitem__(i)
        if self.formats:
            self.log.debug(f"sample {i}: {sample['image'][: self.ROWS].tolist()}")
        else:
            self.log.debug("sample %d: %s", i, sample["image"][: self.ROWS])
        return sample


def log_formatted_per_sample(site: Site, fixed: bool) -> dict[str, object]:
    """Pixels of each sample are written into a text that is not logged; better: not."""
    return training(Logged(site.paths(IMAGES), formats=not fixed), 2.5)


class LockedFile(Photos):
    """Photographs from a slow folder, one reader at a time, by a lock on a file.

    Args:
        paths: the files.
        lock: the file; None: nobody waits for others.
    """

    ANSWER_S = 0.006

    def __init__(self, paths: Sequence[Path], lock: Path | None) -> None:
        super().__init__(paths, decode=decode_quarter)
        self.lock = lock

    def read(self, i: int) -> bytes:
        free = self.lock is None
        with contextlib.nullcontext() if free else FileLock(self.lock, poll_interval=0.001):
            time.sleep(self.ANSWER_S)
            return super().read(i)


def lock_on_a_file(site: Site, fixed: bool) -> dict[str, object]:
    """Four workers lock a file to read from a slow folder; better: without the lock."""
    photos = LockedFile(site.paths(IMAGES), None if fixed else site.scratch / "cache.lock")
    return training(photos, 2.5, num_workers=4)


class Cold(Dataset):
    """Rows of a remote store, (256,) float32; one in 56 is not at hand there and comes late.

    It is one in every seventh batch of eight, so neither of two, three or four workers has all.
    """

    EVERY, LATE_S = 56, 0.6

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i % self.EVERY == self.EVERY - 1:
            time.sleep(self.LATE_S)
        return filled(i), i


def cold_rows(site: Site, fixed: bool) -> dict[str, object]:
    """Some rows come late, and a batch per worker is ready; better: sixteen."""
    rows = Cold(5 * Cold.EVERY)
    prefetch = 16 if fixed else 1
    return fit(rows, 5.0, shuffle=False, num_workers=4, prefetch_factor=prefetch)


# --- batches ----------------------------------------------------------------------------------


class ByLength(Sampler):
    """Batches of texts of about the same length.

    Args:
        lengths: of all texts.
        batches: of an epoch.
        sorts_each: all texts are sorted for each batch, not once.
    """

    BATCH_SIZE = 16

    def __init__(self, lengths: list[int], batches: int, *, sorts_each: bool) -> None:
        self.lengths, self.batches, self.sorts_each = lengths, batches, sorts_each

    def __len__(self) -> int:
        return self.batches

    def by_length(self) -> list[int]:
        return sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], i))

    def __iter__(self) -> Iterator[list[int]]:
        order = None
        for start in random.Random(0).choices(range(len(self.lengths) - 16), k=self.batches):
            if order is None or self.sorts_each:
                order = self.by_length()
            yield order[start : start + self.BATCH_SIZE]


TEXTS = 60_000


def pad_pairs(samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = zip(*samples)
    return nn.utils.rnn.pad_sequence(list(inputs), batch_first=True), torch.tensor(labels)


def counted(lengths: Sequence[int], i: int) -> torch.Tensor:
    return torch.arange(lengths[i])


def sorted_for_every_batch(site: Site, fixed: bool) -> dict[str, object]:
    """The sampler sorts all texts by length for each batch; better: once for an epoch."""
    lengths = [20 + i * 7919 % 400 for i in range(TEXTS)]
    texts = Made(partial(counted, lengths), TEXTS)
    batches = ByLength(lengths, 40, sorts_each=not fixed)
    options = {"batch_sampler": batches, "batch_size": 1, "shuffle": False}
    return fit(texts, 0.5, collate_fn=pad_pairs, **options)


class Graphs(Dataset):
    """Graphs in memory: values of their nodes, and edges between them."""

    NODES, EDGES, VALUES = 60, 1_000, 16

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.count = count
        self.nodes = rng.random((FEW, self.NODES, self.VALUES), np.float32)
        self.edges = rng.integers(0, self.NODES, (FEW, self.EDGES, 2))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray, int]:
        return self.nodes[i % FEW], self.edges[i % FEW], i


def join_by_edge(graphs: list[tuple[np.ndarray, np.ndarray, int]]) -> dict[str, torch.Tensor]:
    """Join graphs to one whose parts are not connected."""
    nodes, edges = [], []
    for values, pairs, _ in graphs:
        begin = len(nodes)
        nodes.extend(values)
        for source, target in pairs.tolist():
            edges.append([begin + source, begin + target])
    return {
        "nodes": torch.from_numpy(np.stack(nodes)),
        "edges": torch.tensor(edges),
        "label": torch.tensor([i for *_, i in graphs]),
    }


def join(graphs: list[tuple[np.ndarray, np.ndarray, int]]) -> dict[str, torch.Tensor]:
    """Do the same with arrays."""
    begins = np.cumsum([0, *(len(values) for values, _, _ in graphs)])
    edges = [begin + pairs for begin, (_, pairs, _) in zip(begins, graphs)]
    return {
        "nodes": torch.from_numpy(np.concatenate([values for values, _, _ in graphs])),
        "edges": torch.from_numpy(np.concatenate(edges)),
        "label": torch.tensor([i for *_, i in graphs]),
    }


def graphs_joined_in_python(site: Site, fixed: bool) -> dict[str, object]:
    """The collate function joins graphs edge by edge; better: arrays of edges."""
    graphs = Graphs(2 * SAMPLES)
    return fit(graphs, 0.4, batch_size=32, collate_fn=join if fixed else join_by_edge)


class Pad:
    """Stack sequences of different lengths, (length, BANDS) float32.

    Args:
        longest: to which all are padded; None: the longest of the batch.
    """

    BANDS = 80

    def __init__(self, longest: int | None) -> None:
        self.longest = longest

    def __call__(self, samples: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, ...]:
        inputs, labels = zip(*samples)
        padded = torch.zeros(len(inputs), self.longest or max(map(len, inputs)), self.BANDS)
        for row, sequence in zip(padded, inputs):
            row[: len(sequence)] = sequence
        return padded, torch.tensor(labels)


def begun(drawn: torch.Tensor, i: int) -> torch.Tensor:
    return drawn[: 60 + i * 37 % 180]


def padded_to_the_longest_of_all(site: Site, fixed: bool) -> dict[str, object]:
    """Short sequences are padded to the longest that is allowed; better: that of the batch."""
    drawn = torch.rand(240, Pad.BANDS, generator=torch.Generator().manual_seed(0))
    sequences = Made(partial(begun, drawn), 5 * SAMPLES)
    return fit(sequences, 0.12, batch_size=32, collate_fn=Pad(None if fixed else 2_000))


class Labelled(Dataset):
    """Features, (128,) float32, and the NUMBERS classes out of CLASSES that hold for each sample.

    Args:
        count: samples.
        dense: a vector of all classes, (CLASSES,) float32 of 0 and 1; otherwise their numbers.
    """

    CLASSES, NUMBERS = 100_000, 5

    def __init__(self, count: int, *, dense: bool) -> None:
        self.count, self.dense = count, dense
        self.features = torch.rand(128, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = (i + 1) * torch.arange(1, self.NUMBERS + 1) * 7919 % self.CLASSES
        if self.dense:
            return self.features + i, torch.zeros(self.CLASSES).index_fill_(0, numbers, 1.0)
        return self.features + i, numbers


def dense_labels(site: Site, fixed: bool) -> dict[str, object]:
    """Of 100,000 classes each sample has five, and gets a vector of all; better: five numbers."""
    return fit(Labelled(10 * SAMPLES, dense=not fixed), 0.06, batch_size=64)


def normalized(clips: torch.Tensor) -> torch.Tensor:
    """Convert uint8 to float64 of mean 0 and deviation 1, more or less."""
    return (clips.double() / 255 - 0.45) / 0.22


def normalized_clip(clips: torch.Tensor, i: int) -> torch.Tensor:
    return normalized(repeated(clips, i))


def clips_as_float64(site: Site, fixed: bool) -> dict[str, object]:
    """Workers make float64 of a video's bytes, eight times as many; better: the device does."""
    drawn = np.random.default_rng(0).integers(0, 256, (FEW, 8, 112, 112, 3), np.uint8)
    make = partial(repeated if fixed else normalized_clip, torch.from_numpy(drawn))
    return fit(Made(make, SAMPLES), 1.0)


class Objects(Dataset):
    """Small images with a box for each of OBJECTS objects.

    Args:
        count: images.
        apart: each box is a tensor of its own.
    """

    OBJECTS = 16

    def __init__(self, count: int, *, apart: bool) -> None:
        self.count, self.apart = count, apart
        self.image = torch.zeros(64, 64, 3, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, object]:
        boxes = torch.arange(4.0 * self.OBJECTS).view(-1, 4) + i
        made = [box.clone() for box in boxes] if self.apart else boxes
        return {"image": self.image + i % 251, "label": i, "boxes": made}


def listed_boxes(samples: list[dict]) -> dict[str, object]:
    return {
        "image": torch.stack([sample["image"] for sample in samples]),
        "label": torch.tensor([sample["label"] for sample in samples]),
        "boxes": [sample["boxes"] for sample in samples],
    }


def stacked_boxes(samples: list[dict]) -> dict[str, object]:
    together = listed_boxes(samples)
    return {**together, "boxes": torch.stack(together["boxes"])}


def tensor_per_object(site: Site, fixed: bool) -> dict[str, object]:
    """Workers send a small tensor for each object; better: one for all of them."""
    objects = Objects(SAMPLES, apart=not fixed)
    return fit(objects, 1.0, collate_fn=stacked_boxes if fixed else listed_boxes)


class Ask:
    """Ask a service for the features of a batch, (N, 128) float32; its answer is a sleep."""

    ANSWER_S = 0.08

    def __call__(self, samples: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
        inputs, labels = default_collate(samples)
        time.sleep(self.ANSWER_S)
        features = labels[:, None].float() + torch.arange(128)
        return {"inputs": inputs, "label": labels, "features": features}


def service_asked_per_batch(site: Site, fixed: bool) -> dict[str, object]:
    """Two workers wait for a service with every batch; better: eight."""
    rows = Made(filled, SAMPLES)
    return fit(rows, 1.8, num_workers=8 if fixed else 2, collate_fn=Ask())


# --- steps ------------------------------------------------------------------------------------


def light_photos(site: Site, count: int = IMAGES) -> Photos:
    return Photos(site.paths(count), decode=decode_quarter)


class Layers(Train):
    """Looks at the norm of each layer's gradients, and notes the median of those it had.

    Args:
        device: where it trains.
        read_each: as a number, as soon as it is computed.
    """

    LAYERS, LAYER_S, NORMS = 4, 0.004, 60_000

    def __init__(self, device: SimulatedGpu, *, read_each: bool) -> None:
        super().__init__(device)
        self.read_each = read_each
        self.norms = np.random.default_rng(0).random(self.NORMS)

    def after(self, batch: dict[str, object]) -> None:
        for _ in range(self.LAYERS):
            self.device.run(self.LAYER_S)
            if self.read_each:
                self.device.synchronize()
            np.sort(self.norms)


def norms_read_per_layer(site: Site, fixed: bool) -> dict[str, object]:
    """The host waits for the norm of each layer; better: in every fiftieth step for all."""
    return training(light_photos(site), Layers(simulated(0.25), read_each=not fixed))


CLASSES = 8


def confusion_by_pixel(true: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Count pixels of each true and each predicted class: (CLASSES, CLASSES) int64."""
    counts = [[0] * CLASSES for _ in range(CLASSES)]
    for row, guess in zip(true.ravel().tolist(), predicted.ravel().tolist()):
        counts[row][guess] += 1
    return np.array(counts)


def confusion(true: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Do the same with arrays."""
    pairs = true.astype(np.int64).ravel() * CLASSES + predicted.ravel()
    return np.bincount(pairs, minlength=CLASSES**2).reshape(CLASSES, CLASSES)


class Segment(Train):
    """Counts the classes of all pixels in every step; channels stand for what is true and found.

    Args:
        device: where it trains.
        count: `confusion`, or as slow.
    """

    def __init__(self, device: SimulatedGpu, count: Callable) -> None:
        super().__init__(device)
        self.count, self.counts = count, np.zeros((CLASSES, CLASSES), np.int64)

    def after(self, batch: dict[str, object]) -> None:
        classes = batch["image"].numpy() // (256 // CLASSES)
        self.counts += self.count(classes[..., 0], classes[..., 1])


def pixels_counted_in_python(site: Site, fixed: bool) -> dict[str, object]:
    """A metric goes through all pixels of a batch in Python; better: arrays."""
    count = confusion if fixed else confusion_by_pixel
    return training(light_photos(site), Segment(simulated(1.5), count))


class Previewed(Train):
    """Writes a picture of the batch every so many steps.

    Args:
        device: where it trains.
        every: steps.
        folder: for the pictures.
    """

    def __init__(self, device: SimulatedGpu, every: int, folder: Path) -> None:
        super().__init__(device)
        self.every, self.folder = every, folder

    def after(self, batch: dict[str, object]) -> None:
        if self.steps % self.every == 0:
            picture = np.concatenate(list(batch["image"].numpy()), axis=1)
            enlarged = cv2.resize(picture, None, fx=2, fy=2)
            cv2.imwrite(str(self.folder / f"preview_{self.steps % 10}.png"), enlarged)


def pictures_every_step(site: Site, fixed: bool) -> dict[str, object]:
    """Every step writes a picture of its batch; better: every fiftieth."""
    step = Previewed(simulated(1.8), 50 if fixed else 1, site.scratch)
    return training(light_photos(site), step)


class Packing(Train):
    """Saves compressed weights every so many steps.

    Args:
        device: where it trains.
        every: steps.
        path: of the file.
    """

    WEIGHTS = 1_000_000

    def __init__(self, device: SimulatedGpu, every: int, path: Path) -> None:
        super().__init__(device)
        self.every, self.path = every, path
        self.weights = np.random.default_rng(0).random(self.WEIGHTS, np.float32)

    def after(self, batch: dict[str, object]) -> None:
        if self.steps % self.every == 0:
            self.save_checkpoint()

    def save_checkpoint(self) -> None:
        self.device.synchronize()  # the weights have to be fetched from there
        with gzip.open(self.path, "wb", compresslevel=1) as file:
            pickle.dump({"step": self.steps, "weights": self.weights}, file)


def compressed_checkpoints(site: Site, fixed: bool) -> dict[str, object]:
    """Compressed weights are saved in every fifth step; better: in every hundredth."""
    path = site.scratch / ("seldom.gz" if fixed else "often.gz")
    return training(light_photos(site), Packing(simulated(2.5), 100 if fixed else 5, path))


def clouds_from_ordinary_memory(site: Site, fixed: bool) -> dict[str, object]:
    """Clouds of points are copied from memory for which the host waits; better: pinned."""
    points = torch.rand(FEW, 16_384, 4, generator=torch.Generator().manual_seed(0))
    clouds = Made(partial(repeated, points), 2 * SAMPLES)
    device = simulated(0.6, pinned_bytes_per_s=0.5e9, pageable_bytes_per_s=0.25e9)
    return training(clouds, Fit(device, pinned=fixed), batch_size=16)


# --- loading is not the problem -----------------------------------------------------------------


class FitHere:
    """A small network trained on this machine's CPU, on pairs of inputs and labels."""

    device = None

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def __call__(self, batch: Sequence[torch.Tensor]) -> None:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.model(inputs), labels % 10)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(32, 96, batch_first=True)
        self.head = nn.Linear(96, 10)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(sequences)[0][:, -1])


def window_of(series: torch.Tensor, i: int) -> torch.Tensor:
    return series[i : i + 100]


def recurrent_network_here(site: Site, fixed: bool) -> dict[str, object]:
    """The CPU trains a recurrent network on windows of a series; there is nothing to gain."""
    torch.manual_seed(0)
    series = torch.randn(2 * SAMPLES + 100, 32)
    windows = Made(partial(window_of, series), 2 * SAMPLES)
    return training(windows, FitHere(Recurrent()), batch_size=16, num_workers=1, kept=fixed)


def rows_of_a_table_here(site: Site, fixed: bool) -> dict[str, object]:
    """The CPU trains on rows of a table without workers; there is nothing to gain."""
    torch.manual_seed(0)
    table = TensorDataset(torch.randn(10 * SAMPLES, 256), torch.arange(10 * SAMPLES))
    layers = [nn.Linear(256, 2_048), nn.ReLU(), nn.Linear(2_048, 1_024), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(1_024, 10))
    return training(table, FitHere(model), batch_size=128, kept=fixed, **NO_WORKERS)


class Accumulating(Train):
    """Updates the weights, which takes long, in every fourth step."""

    EVERY, UPDATE_S = 4, 0.06

    def after(self, batch: dict[str, object]) -> None:
        if self.steps % self.EVERY == 0:
            self.device.run(self.UPDATE_S)


def gradients_accumulated(site: Site, fixed: bool) -> dict[str, object]:
    """Every fourth step is long on the device; loading keeps up, and there is nothing to gain."""
    return training(light_photos(site), Accumulating(simulated(5.0)), kept=fixed)


def slow_tokens_hidden(site: Site, fixed: bool) -> dict[str, object]:
    """Tokens are made slowly, but the device is slower; there is nothing to gain."""
    return fit(Documents(SAMPLES // 4, tokenized=False), 20.0, kept=fixed)


def tensors_in_memory(site: Site, fixed: bool) -> dict[str, object]:
    """Rows in memory need no workers beside a busy device; there is nothing to gain."""
    rows = TensorDataset(torch.arange(64.0 * SAMPLES).view(-1, 64), torch.arange(SAMPLES))
    return fit(rows, 4.0, batch_size=16, kept=fixed, **NO_WORKERS)


ANSWER_S = 0.01


def answered(i: int) -> torch.Tensor:
    time.sleep(ANSWER_S)
    return filled(i)


def as_fast_as_the_device(site: Site, fixed: bool) -> dict[str, object]:
    """Two workers that wait for answers are just as fast as the device; there is little to gain."""
    return fit(Made(answered, SAMPLES), 5.5, kept=fixed)


def cold_rows_hidden(site: Site, fixed: bool) -> dict[str, object]:
    """Some rows come late, but enough batches are ready meanwhile; there is nothing to gain."""
    rows = Cold(5 * Cold.EVERY)
    return fit(rows, 7.0, shuffle=False, num_workers=4, prefetch_factor=8, kept=fixed)
