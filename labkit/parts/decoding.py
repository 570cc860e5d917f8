"""Decoding: which library turns JPEG bytes into pixels, and how fast?

    bytes -> header: refuse or accept -> the library's pixels -> upright -> (H, W, 3) RGB

Everything the libraries disagree about is done here once, so that decoders
differ in speed only: EXIF rotation (OpenCV applies it, the others do not) and
truncated files (OpenCV returns them half grey, Pillow raises).  CMYK needs no
care: all three take the inks as inverted, as Adobe writes them, and agree to 2
grey levels.  Main trap: OpenCV decodes to BGR unless told otherwise, and a model
trains on swapped colors without complaint.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

# Baseline, extended and progressive Huffman.  The libraries' builds differ in the others
# (lossless, hierarchical, arithmetic), which photos do not use.
READABLE_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # those three are no frame headers
# Where Pillow starts to warn of decompression bombs: 256 MiB decoded.
MAX_PIXELS = 89_478_485
APP1, START_OF_SCAN = 0xE1, 0xDA
END_OF_IMAGE = b"\xff\xd9"
ORIENTATION_TAG = 0x0112
LIBJPEG_WARNING = "Corrupt JPEG data"  # how its messages of repairable damage start
# EXIF orientation -> (swap rows and columns, then reverse rows, reverse columns)
TURNS = {
    1: (False, False, False), 2: (False, False, True),
    3: (False, True, True), 4: (False, True, False),
    5: (True, False, False), 6: (True, False, True),
    7: (True, True, True), 8: (True, True, False),
}  # fmt: skip
# First bytes -> name, for files that are called .jpg and are something else.
OTHER_FORMATS = {
    b"\x89PNG": "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}


def decode_opencv(jpeg: bytes) -> np.ndarray:
    """Decode with OpenCV, straight to RGB (from OpenCV 4.11 on; saves a pass over the pixels).

    Args:
        jpeg: a whole 8-bit JPEG file, grey, color or CMYK.

    Returns:
        (H, W, 3) uint8 RGB, upright, C-contiguous.

    Raises:
        ValueError: empty, truncated, damaged, or not an 8-bit JPEG.
        ImportError: OpenCV is missing.
    """
    return _decode(jpeg, _opencv_pixels)


def decode_pillow(jpeg: bytes) -> np.ndarray:
    """Decode with Pillow; arguments, result and errors as `decode_opencv`."""
    return _decode(jpeg, _pillow_pixels)


def decode_simplejpeg(jpeg: bytes) -> np.ndarray:
    """Decode with simplejpeg (libjpeg-turbo); arguments, result and errors as `decode_opencv`."""
    return _decode(jpeg, _simplejpeg_pixels)


DECODERS: dict[str, Callable[[bytes], np.ndarray]] = {
    "opencv": decode_opencv,
    "pillow": decode_pillow,
    "simplejpeg": decode_simplejpeg,
}


def jpeg_back_ends() -> dict[str, str]:
    """Say with which JPEG library each decoder was built: it decides the speed.

    Returns:
        decoder -> as "libjpeg-turbo 3.1.2"; "unknown" for what is missing or does not say.
    """
    return {name: _back_end(name) for name in DECODERS}


def _back_end(decoder: str) -> str:
    if decoder not in BACK_ENDS:  # a person's own
        return "unknown"
    try:
        return BACK_ENDS[decoder]()
    except (ImportError, OSError):
        return "unknown"


def _opencv_back_end() -> str:
    return parse_build_information(_open_library("cv2", "opencv-python").getBuildInformation())


def parse_build_information(build: str) -> str:
    """Find the JPEG library in what OpenCV says of its build, its folder left out."""
    found = re.search(r"^\s*JPEG:[ \t]+(\S+)(?:[ \t]+\(ver ([^)\s]+)\))?", build, re.MULTILINE)
    if found is None or found[1] == "NO":
        return "unknown"
    library = re.split(r"[/\\]", found[1])[-1].removeprefix("build-")
    return f"{library} {found[2] or 'unknown'}"


def _pillow_back_end() -> str:
    features = _open_library("PIL.features", "pillow")
    if features.check_feature("libjpeg_turbo"):
        return f"libjpeg-turbo {features.version_feature('libjpeg_turbo') or 'unknown'}"
    version = features.version_codec("jpg") if features.check_codec("jpg") else None
    return f"libjpeg {version}" if version else "unknown"


def _simplejpeg_back_end() -> str:
    # It has no call for that, but the library inside carries a line that says so.
    binary = Path(_open_library("simplejpeg._jpeg", "simplejpeg").__file__).read_bytes()
    found = re.search(rb"libjpeg-turbo version (\d[\w.]*)", binary)
    return f"libjpeg-turbo {found[1].decode()}" if found else "unknown"


BACK_ENDS: dict[str, Callable[[], str]] = {
    "opencv": _opencv_back_end,
    "pillow": _pillow_back_end,
    "simplejpeg": _simplejpeg_back_end,
}


def read_header(jpeg: bytes) -> int:
    """Walk the segments up to the first scan, and see that the file has an end.

    Takes some microseconds; a 640x480 image takes about a millisecond to decode.

    Returns:
        EXIF orientation, 1 to 8; 1 is upright and stands for none and unreadable too.

    Raises:
        ValueError: empty, truncated, damaged, or not a JPEG that every decoder reads.

    Source: ITU-T T.81, annex B.
    """
    if jpeg[:3] != b"\xff\xd8\xff":
        raise ValueError(
            f"image must be an 8-bit JPEG, got {_name_format(jpeg)}; "
            "replace the file, or convert it to JPEG"
        )
    has_frame, orientation, at = False, 1, 2
    try:
        while (marker := jpeg[at + 1]) != START_OF_SCAN:
            if jpeg[at] != 0xFF or marker == END_OF_IMAGE[1]:
                raise _damaged(f"no marker of a segment at byte {at}")
            if marker == 0xFF:  # fill byte before a marker
                at += 1
                continue
            if marker in FRAMES:
                has_frame = True
                _check_frame(marker, *struct.unpack_from(">BHHB", jpeg, at + 4))
            length = int.from_bytes(jpeg[at + 2 : at + 4], "big")  # counts its own two bytes
            if marker == APP1 and orientation == 1:
                orientation = _read_orientation(jpeg[at + 4 : at + 2 + length])
            at += 2 + length
    except (IndexError, struct.error):
        raise _truncated(jpeg) from None
    if not has_frame:
        raise _damaged("no frame header")
    # In compressed data FF is followed by 00 or a restart marker, so an end marker behind the
    # start of scan is a real one.  Phones append videos to it, so it need not be the last bytes.
    if jpeg.rfind(END_OF_IMAGE, at) < 0:
        raise _truncated(jpeg)
    return orientation


def upright(image_rgb: np.ndarray, orientation: int) -> np.ndarray:
    """Turn and mirror an image so that it is seen as it was taken.

    Args:
        image_rgb: (H, W, 3) uint8.
        orientation: EXIF orientation, 1 to 8.

    Returns:
        (H, W, 3), or (W, H, 3) from orientation 5 on, C-contiguous; the argument itself for 1.

    Raises:
        ValueError: not an EXIF orientation.

    Source: EXIF 2.32, tag 274.
    """
    if orientation not in TURNS:
        raise ValueError(f"orientation must be 1 to 8, got {orientation}")
    swap, reverse_rows, reverse_columns = TURNS[orientation]
    if swap:
        image_rgb = image_rgb.transpose(1, 0, 2)
    if reverse_rows:
        image_rgb = image_rgb[::-1]
    if reverse_columns:
        image_rgb = image_rgb[:, ::-1]
    return np.ascontiguousarray(image_rgb)


def _check_frame(marker: int, bits: int, height_px: int, width_px: int, components: int) -> None:
    if marker not in READABLE_FRAMES:
        raise ValueError(
            "image must be a baseline or progressive Huffman-coded JPEG, "
            f"got frame type {marker - 0xC0}; save it anew"
        )
    if bits != 8 or components not in (1, 3, 4):
        raise ValueError(
            "image must be an 8-bit JPEG of 1, 3 or 4 components, "
            f"got {bits} bits and {components} components; save it anew"
        )
    if not 0 < height_px * width_px <= MAX_PIXELS:
        raise ValueError(
            f"image must have 1 to {MAX_PIXELS} pixels, got {width_px} x {height_px}; "
            "scale it down, or replace the file"
        )


def _decode(jpeg: bytes, read_pixels: Callable[[bytes], np.ndarray]) -> np.ndarray:
    orientation = read_header(jpeg)
    try:
        image_rgb = read_pixels(jpeg)
    except (OSError, ValueError) as error:  # what the libraries raise for damaged files
        raise _damaged(error) from error
    return upright(image_rgb, orientation)


def _opencv_pixels(jpeg: bytes) -> np.ndarray:
    cv2 = _open_library("cv2", "opencv-python")
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    image_rgb = cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags)
    if image_rgb is None:
        raise ValueError("nothing that OpenCV reads")
    return image_rgb


def _pillow_pixels(jpeg: bytes) -> np.ndarray:
    image_module = _open_library("PIL.Image", "pillow")
    image = image_module.open(io.BytesIO(jpeg), formats=("JPEG",))
    if image.mode != "RGB":  # converting RGB to RGB would copy it
        image = image.convert("RGB")
    return np.array(image)  # np.asarray would be read-only, unlike the others' arrays


def _simplejpeg_pixels(jpeg: bytes) -> np.ndarray:
    simplejpeg = _open_library("simplejpeg", "simplejpeg")
    try:
        return simplejpeg.decode_jpeg(jpeg, "RGB")
    except ValueError as error:
        # The others decode in spite of libjpeg's warnings.  Not strict from the start: that
        # swallows libjpeg's errors too, and leaves the rest of the image uninitialized.
        if not str(error).startswith(LIBJPEG_WARNING):
            raise
        return simplejpeg.decode_jpeg(jpeg, "RGB", strict=False)


@cache
def _open_library(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"decoder must be installed, got {error}; pip install {package}"
        ) from error


def _read_orientation(app1: bytes) -> int:
    # Cameras and editors write broken EXIF; its pixels are fine, so it counts as upright.
    order = {b"II": "<", b"MM": ">"}.get(app1[6:8])
    if app1[:6] != b"Exif\0\0" or order is None:
        return 1
    tiff = app1[6:]
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(entries):
            # tag, type, count, and the value of a tag that fits into 16 bits
            tag, _, _, value = struct.unpack_from(order + "HHIH", tiff, directory + 2 + 12 * entry)
            if tag == ORIENTATION_TAG:
                return value if value in TURNS else 1
    except struct.error:
        return 1
    return 1


def _name_format(data: bytes) -> str:
    if not data:
        return "0 bytes"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        return f"HEIF or AVIF ({data[8:12]!r})"
    for start, name in OTHER_FORMATS.items():
        if data.startswith(start):
            return name
    return f"{len(data)} bytes starting with {data[:4]!r}"


def _truncated(jpeg: bytes) -> ValueError:
    return ValueError(
        f"image must be a complete JPEG, got {len(jpeg)} bytes without an end marker; "
        "copy or download it anew"
    )


def _damaged(found: object) -> ValueError:
    return ValueError(f"image must be an undamaged JPEG, got {found}; replace the file")
