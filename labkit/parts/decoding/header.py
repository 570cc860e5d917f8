"""What every decoder owes alike: refuse what is broken in words, and say which way is up.

    bytes -> read_header: refuse, or (orientation, components) -> the library -> upright

Main trap: the libraries disagree about broken files: OpenCV returns a truncated one half gray,
Pillow raises.  So files are judged here, before any library sees them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

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


class Header(NamedTuple):
    """What a library needs to be told, or asked for, before it decodes."""

    orientation: int
    """EXIF's, 1 to 8; 1 is upright and stands for none and unreadable too."""
    components: int
    """1: gray, 3: color, 4: CMYK inks."""


def read_header(jpeg: bytes) -> Header:
    """Walk the segments up to the first scan, and see that the file has an end.

    Takes some microseconds; a 640x480 image takes about a millisecond to decode.

    Raises:
        ValueError: empty, truncated, damaged, or not a JPEG that every decoder reads.

    Source: ITU-T T.81, annex B.
    """
    if jpeg[:3] != b"\xff\xd8\xff":
        raise ValueError(
            f"image must be an 8-bit JPEG, got {_name_format(jpeg)}; "
            "replace the file, or convert it to JPEG"
        )
    components, orientation, at = 0, 1, 2
    try:
        while (marker := jpeg[at + 1]) != START_OF_SCAN:
            if jpeg[at] != 0xFF or marker == END_OF_IMAGE[1]:
                raise damaged(f"no marker of a segment at byte {at}")
            if marker == 0xFF:  # fill byte before a marker
                at += 1
                continue
            if marker in FRAMES:
                components = _check_frame(marker, *struct.unpack_from(">BHHB", jpeg, at + 4))
            length = int.from_bytes(jpeg[at + 2 : at + 4], "big")  # counts its own two bytes
            if marker == APP1 and orientation == 1:
                orientation = _read_orientation(jpeg[at + 4 : at + 2 + length])
            at += 2 + length
    except (IndexError, struct.error):
        raise _truncated(jpeg) from None
    if not components:
        raise damaged("no frame header")
    # In compressed data FF is followed by 00 or a restart marker, so an end marker behind the
    # start of scan is a real one.  Phones append videos to it, so it need not be the last bytes.
    if jpeg.rfind(END_OF_IMAGE, at) < 0:
        raise _truncated(jpeg)
    return Header(orientation, components)


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


def _check_frame(marker: int, bits: int, height_px: int, width_px: int, components: int) -> int:
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
    return components


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


def damaged(found: object) -> ValueError:
    """Make the error that says what is wrong with a file."""
    return ValueError(f"image must be an undamaged JPEG, got {found}; replace the file")
