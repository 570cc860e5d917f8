"""Small data sets to pack, of every kind of content, and what a pack must give back."""

from __future__ import annotations

import cv2
import numpy as np

from labkit.contracts import Annotation
from labkit.parts.packing import JPEG, PACKINGS, PIXELS, RESIZED, SAMPLE

NAMES = [
    "images/b.jpg",
    "a.b/c d.tar.jpg",
    "straße/写真.jpeg",
    "not utf-8 \udcff.jpg",
    "a",
    "ż.JPG",
]
VARIANTS = {name: packing.packed_as for name, packing in PACKINGS.items() if packing.packed_as}
FORMATS = [name for name in PACKINGS if name != "folder" and name not in VARIANTS]
KINDS = (JPEG, RESIZED, PIXELS, SAMPLE)


def boxes(count, rng):
    corners = rng.uniform(0, 500, (count, 2))
    xyxy = np.hstack([corners, corners + rng.uniform(1, 100, (count, 2))])
    return Annotation(
        boxes_xyxy=np.float32(xyxy), category_ids=rng.integers(1, 91, count, dtype=np.int64)
    )


def content(stored, rng, height=48, width=64):
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if stored == PIXELS:
        return pixels
    if stored == SAMPLE:
        return {
            "image": np.float32(pixels).transpose(2, 0, 1),  # not in C order
            "boxes_ragged": rng.uniform(size=(3, 4)),
            "none_ragged": np.empty((0, 5), np.float32),
            "sample_id": np.array(7),
        }
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def some_samples(stored=JPEG, count=6, seed=0):
    """Images of different sizes, with 0 to 3 boxes and awkward names."""
    rng = np.random.default_rng(seed)
    return [
        (
            NAMES[i] if i < len(NAMES) else f"{i}.jpg",
            content(stored, rng, 16 + 8 * (i % 5), 20 + 4 * (i % 7)),
            boxes(i % 4, rng),
        )
        for i in range(count)
    ]


def about(stored=JPEG):
    return {"stored": stored, "source_hash": "abc", "boxes": "coco"}


def write(packing, folder, samples, stored=JPEG, **how):
    """Write a pack of a list of samples, and open it."""
    PACKINGS[packing].write(lambda done: samples[done:], folder, about=about(stored), **how)
    return PACKINGS[packing].open(folder)


def assert_same_content(found, wanted):
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for name, array in wanted.items():
            assert_same_content(found[name], array)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found, wanted)
    else:
        assert bytes(found) == wanted


def assert_gives(reader, samples, order=None):
    """Check names, contents and boxes, bit by bit, in an order."""
    assert len(reader) == len(samples)
    for i in range(len(samples)) if order is None else order:
        name, wanted, annotation = samples[i]
        found, found_annotation = reader.read(i)
        assert reader.name(i) == name
        assert_same_content(found, wanted)
        assert_same_content(found_annotation.boxes_xyxy, annotation.boxes_xyxy)
        assert_same_content(found_annotation.category_ids, annotation.category_ids)
