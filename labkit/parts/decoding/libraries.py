"""Libraries: the same upright RGB pixels of a JPEG from each of them.

    bytes -> read_header -> the library's pixels, its own complaints in our words -> upright

CMYK needs no care: those that take it read the inks as inverted, as Adobe writes them, and agree
to 2 gray levels.  Whether a library lets go of the interpreter lock while it decodes (its
docstring says so) decides whether threads can decode side by side.  Main trap: OpenCV decodes to
BGR unless told otherwise, and a model trains on swapped colors without complaint.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType

import numpy as np

from labkit.parts.decoding.header import damaged, read_header, upright

LIBJPEG_WARNING = "Corrupt JPEG data"  # how its messages of repairable damage start
CMYK = 4  # components
MIN_FACTOR = 2  # decoding to 5/8 takes longer than decoding in full (measured)


def decode_opencv(jpeg: bytes) -> np.ndarray:
    """Decode with OpenCV, straight to RGB (from OpenCV 4.11 on; saves a pass over the pixels).

    It lets go of the interpreter lock.

    Args:
        jpeg: a whole 8-bit JPEG file, gray, color or CMYK.

    Returns:
        (H, W, 3) uint8 RGB, upright, C-contiguous.

    Raises:
        ValueError: empty, truncated, damaged, or not an 8-bit JPEG.
        ImportError: OpenCV is missing.
    """
    return _decode(jpeg, _opencv_pixels)


def decode_pillow(jpeg: bytes) -> np.ndarray:
    """Decode with Pillow; arguments, result, errors and lock as `decode_opencv`."""
    return _decode(jpeg, _pillow_pixels)


def decode_simplejpeg(jpeg: bytes) -> np.ndarray:
    """Decode with simplejpeg (libjpeg-turbo); all else as `decode_opencv`."""
    return _decode(jpeg, _simplejpeg_pixels)


def decode_simplejpeg_scaled(jpeg: bytes, at_least_px: int | None = None) -> np.ndarray:
    """Decode with simplejpeg to a fraction of the size, from the low frequencies alone.

    That leaves out work on pixels, not on bits: every coefficient is still read from the file.
    The pixels are others than those of an image that is decoded in full and then resized: they
    are averages, where OpenCV's linear filter looks at four.

    Args:
        jpeg: as in `decode_opencv`.
        at_least_px: neither side may become shorter than that; unset: decode in full.

    Returns:
        As `decode_opencv`, but each side an eighth to a half as long, in eighths; in full where
        a half would be too short.

    Source: simplejpeg's `min_height` and `min_width`; libjpeg-turbo's scaled DCT.
    """
    return _decode(jpeg, partial(_simplejpeg_pixels, at_least_px=at_least_px))


def decode_kornia_rs(jpeg: bytes) -> np.ndarray:
    """Decode with kornia-rs (libjpeg-turbo); as `decode_opencv`, but stricter.

    It refuses CMYK, and damage that the others repair.  It holds the interpreter lock (0.2.0,
    measured), so threads decode one after the other.
    """
    return _decode(jpeg, _kornia_rs_pixels, takes_cmyk=False)


def decode_torchvision(jpeg: bytes) -> np.ndarray:
    """Decode with torchvision (libjpeg-turbo); all else as `decode_opencv`.

    Its wheels for Linux on x86-64 import beside a torch for CUDA alone.
    """
    return _decode(jpeg, _torchvision_pixels)


@cache
def open_library(module: str, package: str) -> ModuleType:
    """Import a decoder's library, once.

    Raises:
        ImportError: it is missing or broken; the message names the install line.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"decoder must be installed, got {error}; pip install {package}"
        ) from error
    except Exception as error:  # torchvision beside a torch that it was not built for
        raise ImportError(
            f"decoder must be installed so that it imports, got {type(error).__name__}: {error}; "
            f"pip install {package}, both built for the same CUDA or for none"
        ) from error


def _decode(
    jpeg: bytes, read_pixels: Callable[[bytes], np.ndarray], *, takes_cmyk: bool = True
) -> np.ndarray:
    header = read_header(jpeg)
    if header.components == CMYK and not takes_cmyk:
        raise ValueError(
            "image must be gray or RGB for this decoder, got CMYK; save it as RGB, or choose "
            "another decoder"
        )
    try:
        image_rgb = read_pixels(jpeg)
    except (OSError, ValueError) as error:  # what the libraries raise for damaged files
        raise damaged(error) from error
    return upright(image_rgb, header.orientation)


def _opencv_pixels(jpeg: bytes) -> np.ndarray:
    cv2 = open_library("cv2", "opencv-python")
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    image_rgb = cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags)
    if image_rgb is None:
        raise ValueError("nothing that OpenCV reads")
    return image_rgb


def _pillow_pixels(jpeg: bytes) -> np.ndarray:
    image_module = open_library("PIL.Image", "pillow")
    image = image_module.open(io.BytesIO(jpeg), formats=("JPEG",))
    if image.mode != "RGB":  # converting RGB to RGB would copy it
        image = image.convert("RGB")
    return np.array(image)  # np.asarray would be read-only, unlike the others' arrays


def _simplejpeg_pixels(jpeg: bytes, *, at_least_px: int | None = None) -> np.ndarray:
    simplejpeg = open_library("simplejpeg", "simplejpeg")
    scale = {}
    if at_least_px is not None:
        scale = {"min_height": at_least_px, "min_width": at_least_px, "min_factor": MIN_FACTOR}
    try:
        return simplejpeg.decode_jpeg(jpeg, "RGB", **scale)
    except ValueError as error:
        # The others decode in spite of libjpeg's warnings.  Not strict from the start: that
        # swallows libjpeg's errors too, and leaves the rest of the image uninitialized.
        if not str(error).startswith(LIBJPEG_WARNING):
            raise
        return simplejpeg.decode_jpeg(jpeg, "RGB", strict=False, **scale)


def _kornia_rs_pixels(jpeg: bytes) -> np.ndarray:
    kornia_rs = open_library("kornia_rs", "kornia-rs")
    try:
        # Not an ImageDecoder that is kept: after a truncated file it refuses the next good one.
        return kornia_rs.io.decode_image_jpegturbo(jpeg, "rgb")
    except Exception as error:  # it raises no other kind
        raise ValueError(error) from error


def _torchvision_pixels(jpeg: bytes) -> np.ndarray:
    torch = open_library("torch", "torch")
    # Named beside it, pip keeps the torch that is here.
    release = torch.__version__.partition("+")[0]
    images = open_library("torchvision.io", f"torchvision torch=={release}")
    # A copy, as torch warns of bytes: it would let them be written to.
    data = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
    try:
        planes = images.decode_jpeg(data, mode="RGB")
    except RuntimeError as error:
        raise ValueError(str(error).rpartition(", ")[2]) from error  # a line of its source is first
    return planes.permute(1, 2, 0).numpy()  # a view: it decodes to pixels that lie together
