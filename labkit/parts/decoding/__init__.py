"""Decoding: which library turns JPEG bytes into pixels, and how fast?

    bytes -> refuse or accept (header) -> a library's pixels (libraries) -> upright -> RGB

Everything the libraries disagree about is done once for all of them, so that decoders differ in
speed only: EXIF rotation (OpenCV applies it, the others do not) and truncated files.  Main trap:
a scaled decoder does less work and makes other pixels; that is labelled, and never silent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from labkit.parts.decoding.back_ends import back_end
from labkit.parts.decoding.header import Header, read_header, upright
from labkit.parts.decoding.libraries import (
    decode_kornia_rs,
    decode_opencv,
    decode_pillow,
    decode_simplejpeg,
    decode_simplejpeg_scaled,
    decode_torchvision,
    open_library,
)

__all__ = ["DECODERS", "SCALED", "Header", "jpeg_back_ends", "read_header", "upright", "why_not"]

DECODERS: dict[str, Callable[[bytes], np.ndarray]] = {
    "opencv": decode_opencv,
    "pillow": decode_pillow,
    "simplejpeg": decode_simplejpeg,
    "simplejpeg_scaled": decode_simplejpeg_scaled,
    "kornia_rs": decode_kornia_rs,
    "torchvision": decode_torchvision,
}
# These also take `at_least_px`, and then decode no more pixels than they must.
SCALED = frozenset({"simplejpeg_scaled"})


def why_not() -> dict[str, str]:
    """Try every decoder once.

    Returns:
        decoder -> why it cannot be used here; nothing of those that can.

    Raises:
        ImportError: OpenCV is missing, which makes the image for that.
    """
    cv2 = open_library("cv2", "opencv-python")
    jpeg = cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    reasons = {}
    for name, decode in DECODERS.items():
        try:
            decode(jpeg)
        except ImportError as error:
            reasons[name] = str(error)
    return reasons


def jpeg_back_ends() -> dict[str, str]:
    """Say with which JPEG library each decoder was built; see `back_end`."""
    return {name: back_end(name) for name in DECODERS}
