"""Small JPEG files of every kind that the decoders disagree about."""

from __future__ import annotations

import importlib.util
import io
import struct
from collections.abc import Iterable

import numpy as np
import pytest
from PIL import Image

# Decoders and preprocessors -> the modules that they need.
OPTIONAL = {
    "kornia_rs": "kornia_rs",
    "torchcodec": "torchcodec",
    "torchvision": "torchvision",
    "classification_crop_v2": "torchvision",
}
WIDTH_PX, HEIGHT_PX = 53, 37  # odd: halved chroma has a rest in both directions


def why_missing(part: str) -> str:
    """Why an optional decoder or preprocessor cannot be tested here; empty where it can."""
    module = OPTIONAL.get(part)
    return f"not installed: {module}" if module and not importlib.util.find_spec(module) else ""


def installed(parts: Iterable[str]) -> list:
    """Parameters of a test: those whose module is missing are skipped."""
    return [
        pytest.param(part, marks=pytest.mark.skipif(bool(why), reason=why))
        for part in parts
        for why in [why_missing(part)]
    ]


def photo() -> Image.Image:
    """Smooth colors, different in all corners and channels, with a little noise."""
    rows, columns = np.mgrid[0:HEIGHT_PX, 0:WIDTH_PX]
    planes = [rows * 6, columns * 4, 255 - rows * 3 - columns * 2]
    noise = np.random.default_rng(0).normal(0, 8, (HEIGHT_PX, WIDTH_PX, 3))
    return Image.fromarray(np.clip(np.stack(planes, axis=2) + noise, 0, 255).astype(np.uint8))


def encode(image: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, options.pop("format", "JPEG"), **options)
    return file.getvalue()


def with_segment(jpeg: bytes, marker: int, payload: bytes) -> bytes:
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + jpeg[2:]


def exif(orientation: int) -> bytes:
    entries = [(0x010F, 2, 4, b"Lab\0"), (0x0112, 3, 1, struct.pack("<HH", orientation, 0))]
    packed = b"".join(struct.pack("<HHI", *entry[:3]) + entry[3] for entry in entries)
    directory = struct.pack("<IH", 8, len(entries)) + packed + bytes(4)
    return b"Exif\0\0II*\0" + directory
