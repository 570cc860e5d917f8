"""Small JPEG files of every kind that the decoders disagree about."""

from __future__ import annotations

import importlib.util
import io
import struct

import numpy as np
from PIL import Image

OPTIONAL = ("kornia_rs", "torchvision")  # names of decoders, and of the modules that they need
WIDTH_PX, HEIGHT_PX = 53, 37  # odd: halved chroma has a rest in both directions


def why_missing(decoder: str) -> str:
    """Why an optional decoder cannot be tested here; empty where it can."""
    is_missing = decoder in OPTIONAL and importlib.util.find_spec(decoder) is None
    return f"not installed: {decoder}" if is_missing else ""


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
