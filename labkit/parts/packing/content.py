"""Content: what is stored of an image, as the bytes of one record and back.

    jpeg, resized   the JPEG's bytes                  → bytes
    pixels          (H, W, 3) uint8 RGB               → array
    sample          a preprocessor's arrays by name   → dict of arrays (safetensors)

Nothing is unpickled: a pack may come from anybody.
"""

from __future__ import annotations

import numpy as np

from labkit.contracts import Skip
from labkit.jpeg import START

# What is stored of an image -> what a reader returns for it.
JPEG, RESIZED, PIXELS, SAMPLE = "jpeg", "resized", "pixels", "sample"
Content = bytes | np.ndarray | dict[str, np.ndarray]
FORMATS_EXTRA = "pip install 'labkit[formats]'"


def encode(content: Content) -> tuple[bytes, tuple[int, int]]:
    """Turn content into a record.

    Returns:
        The record, and (height, width) of pixels, else (0, 0).
    """
    if isinstance(content, dict):
        save = _safetensors().save
        # Not ascontiguousarray, which gives a single number an axis.
        return save({name: np.asarray(a, order="C") for name, a in content.items()}), (0, 0)
    if isinstance(content, np.ndarray):
        return content.tobytes(), content.shape[:2]
    return bytes(content), (0, 0)


def decode(record: bytes, stored: str, height_width: np.ndarray) -> Content:
    """Turn a record back into content.

    Args:
        record: as `encode` made it.
        stored: jpeg, resized, pixels or sample.
        height_width: (2,) of pixels.

    Raises:
        ValueError: it is not such a record.
    """
    if stored == PIXELS:
        height, width = map(int, height_width)
        return np.frombuffer(record, np.uint8).reshape(height, width, 3)
    if stored == SAMPLE:
        try:
            return _safetensors().load(record)
        except Skip:
            raise
        except Exception as error:  # the library has errors of its own
            raise ValueError(f"sample must be in safetensors' format, got {error}") from error
    if not record.startswith(START):
        found = f"{record[:8]!r}..." if record else "0 bytes"
        raise ValueError(f"image must be a JPEG, got {found}")
    return record


def _safetensors():
    try:
        import safetensors.numpy
    except ImportError:
        raise Skip(
            f"stored samples need safetensors, which is not installed; {FORMATS_EXTRA}"
        ) from None
    return safetensors.numpy
