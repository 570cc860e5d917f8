"""The header of a JPEG file: its size in pixels, and whether the file is complete."""

from __future__ import annotations

JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
# Where Pillow starts to warn of decompression bombs: 256 MiB decoded.
MAX_PIXELS = 89_478_485


def read_size_px(jpeg: bytes) -> tuple[int, int]:
    """Return an image's width and height as stored, without decoding it.

    Libraries disagree about incomplete files (OpenCV returns half a gray image, Pillow raises), so
    these are refused here, before any library sees them. This takes a few microseconds.

    Raises:
        ValueError: not a JPEG file, truncated or damaged.

    Source: ITU-T T.81, annex B.
    """
    if not jpeg.startswith(JPEG_START):
        raise ValueError(
            f"image must be a JPEG file, got {len(jpeg)} bytes starting with {jpeg[:8]!r}; "
            "replace it, or convert it to JPEG"
        )
    width_px = height_px = 0
    at = 2
    start_of_scan = 0xDA
    while at + 1 < len(jpeg) and (marker := jpeg[at + 1]) != start_of_scan:
        if jpeg[at] != 0xFF or marker == JPEG_END[1]:
            raise ValueError(
                f"image must be an undamaged JPEG, got no marker at byte {at}; replace the file"
            )
        if marker == 0xFF:  # fill byte before a marker
            at += 1
            continue
        # C0 to CF start a frame, except Huffman tables, an extension and arithmetic coding.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height_px = int.from_bytes(jpeg[at + 5 : at + 7])
            width_px = int.from_bytes(jpeg[at + 7 : at + 9])
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    # In compressed data FF is followed by 00 or a restart marker, so an end marker behind the
    # start of scan is a real one. Phones append videos to it, so it need not be the last bytes.
    if jpeg.rfind(JPEG_END, at) < 0:
        raise ValueError(
            f"image must be a complete JPEG, got {len(jpeg)} bytes without an end marker; "
            "copy or download it again"
        )
    if not 0 < width_px * height_px <= MAX_PIXELS:
        raise ValueError(
            f"image must have 1 to {MAX_PIXELS} pixels, got {width_px} x {height_px}; "
            "scale it down, or replace the file"
        )
    return width_px, height_px
