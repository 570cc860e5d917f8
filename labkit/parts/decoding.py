"""Decoding: from a JPEG file's bytes to pixels, with one of several libraries.

    bytes -> read_size_px: refuse what is not a whole JPEG -> a library -> (H, W, 3) uint8 RGB

To add a decoder, write a function like `decode_opencv` and add it to `DECODERS`; one that can do
more, or whose pixels differ by design, is added as a `Decoder`. The tests check every entry of the
table.  For `labkit recipe`, a decoder also needs a block: see CONTRIBUTING.md.

No decoder but torchcodec applies the EXIF orientation, as in most training code; boxes are in the
pixels as stored, so a run refuses images that a decoder turns (`labkit.runs.check_images`). A
scaled decoder does less work and returns other pixels, so its rows and charts are labelled.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from labkit.contracts import Chosen, Part, check_image, open_library
from labkit.jpeg import read_size_px


def checked(decode: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Make a decoder refuse what is not a whole JPEG, and raise a ValueError for damaged files.

    Args:
        decode: takes a JPEG file's bytes and returns (H, W, 3) uint8 RGB pixels, C-contiguous.
    """

    @functools.wraps(decode)
    def decode_checked(jpeg: bytes, **options: int) -> np.ndarray:
        read_size_px(jpeg)
        try:
            return decode(jpeg, **options)
        except (OSError, ValueError) as error:  # what the libraries raise for damaged files
            library = decode.__name__.removeprefix("decode_")
            raise ValueError(
                f"image must be a JPEG that {library} reads, got {error}; "
                "replace the file, or choose another decoder"
            ) from error

    return decode_checked


@checked
def decode_opencv(jpeg: bytes) -> np.ndarray:
    """Decode with OpenCV, straight to RGB (OpenCV 4.11 or later).

    Args:
        jpeg: a whole 8-bit JPEG file, gray, color or CMYK.

    Returns:
        (H, W, 3) uint8 RGB as stored, C-contiguous.

    Raises:
        ValueError: not a whole JPEG, or not one that the library reads.
        Skip: the library is missing or broken.
    """
    cv2 = open_library("cv2", "opencv-python-headless")
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    image_rgb = cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags)
    if image_rgb is None:
        raise ValueError("nothing that OpenCV decodes")
    return image_rgb


@checked
def decode_pillow(jpeg: bytes, as_image: bool = False) -> np.ndarray:
    """Decode with Pillow; otherwise as `decode_opencv`.

    Args:
        jpeg: as in `decode_opencv`.
        as_image: return Pillow's own RGB image, which saves two copies where Pillow goes on.
    """
    pillow = open_library("PIL.Image", "pillow")
    image = pillow.open(io.BytesIO(jpeg), formats=("JPEG",))
    if image.mode != "RGB":  # converting RGB to RGB would copy it
        image = image.convert("RGB")
    if as_image:
        image.load()  # `open` reads the header only
        return image
    return np.array(image)  # np.asarray would be read-only, unlike the others' arrays


@checked
def decode_simplejpeg(jpeg: bytes, at_least_px: int = 0) -> np.ndarray:
    """Decode with simplejpeg (libjpeg-turbo), in full or to a fraction of the size.

    A fraction is decoded from the low frequencies alone. This saves work per pixel, but every
    coefficient is still read from the file. Pixels differ from those of a full decode and a resize:
    they are averages, where OpenCV's linear filter reads four.

    Args:
        jpeg: as in `decode_opencv`.
        at_least_px: neither side becomes shorter than that; 0 decodes in full.

    Returns:
        As `decode_opencv`. Scaled, its sides have an eighth to a half of the length, in eighths, or
        all of it where a half would be too short.

    Source: simplejpeg's `min_height` and `min_width`; libjpeg-turbo's scaled DCT.
    """
    simplejpeg = open_library("simplejpeg", "simplejpeg")
    # At most to a half: decoding to 5/8 takes longer than decoding in full (measured).
    scale = {"min_height": at_least_px, "min_width": at_least_px}
    scale["min_factor"] = 2 if at_least_px else 1
    try:
        return simplejpeg.decode_jpeg(jpeg, "RGB", **scale)
    except ValueError as error:
        # The others decode in spite of libjpeg's warnings. strict=False only here: it also ignores
        # libjpeg's errors, and leaves the rest of the image uninitialized.
        if not str(error).startswith("Corrupt JPEG data"):
            raise
        return simplejpeg.decode_jpeg(jpeg, "RGB", strict=False, **scale)


@checked
def decode_kornia_rs(jpeg: bytes) -> np.ndarray:
    """Decode with kornia-rs (libjpeg-turbo); otherwise as `decode_opencv`.

    It refuses CMYK and damage that the others repair, and holds the interpreter lock (0.2.0,
    measured), so threads decode one after the other.
    """
    kornia_rs = open_library("kornia_rs", "kornia-rs")
    try:
        # A kept ImageDecoder would refuse the next good file after a truncated one.
        return kornia_rs.io.decode_image_jpegturbo(jpeg, "rgb")
    except Exception as error:  # it raises no other kind
        raise ValueError(error) from error


@checked
def decode_torchvision(jpeg: bytes) -> np.ndarray:
    """Decode with torchvision (libjpeg-turbo), deprecated there; otherwise as `decode_opencv`.

    From 0.29 on torchvision refers to torchcodec for images, and a later version removes this. Its
    wheels for Linux on x86-64 import only beside a torch built for CUDA. The install line names
    the installed torch too, so that pip keeps it.
    """
    torch = open_library("torch", "torch")
    images = open_library("torchvision.io", f"torchvision torch=={torch.__version__.split('+')[0]}")
    # A copy, as torch warns of bytes, which are not writable.
    data = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
    try:
        planes = images.decode_jpeg(data, mode="RGB")
    except RuntimeError as error:
        raise ValueError(str(error).rpartition(", ")[2]) from error  # a line of its source is first
    return planes.permute(1, 2, 0).numpy()  # decoded as (H, W, 3), so a view


@checked
def decode_torchcodec(jpeg: bytes) -> np.ndarray:
    """Decode with torchcodec (libjpeg-turbo), torchvision's successor; else as `decode_opencv`.

    It applies the EXIF orientation, and nothing turns that off (torchcodec #1560).
    """
    decoders = open_library("torchcodec.decoders", "torchcodec")
    try:
        planes = decoders.decode_jpeg(jpeg)
    except RuntimeError as error:
        raise ValueError(error) from error
    return np.ascontiguousarray(planes.permute(1, 2, 0).numpy())


@dataclass(frozen=True)
class Decoder(Part):
    """A decoder: a JPEG file's bytes -> (H, W, 3) uint8 RGB."""

    scaled: bool = False
    """It also takes `at_least_px`, and then decodes to a fraction of the size."""
    makes_pillow_image: bool = False
    """It also takes `as_image`, and then returns Pillow's own image."""
    other_pixels: str = ""
    """How its pixels differ by design from those of other decoders, as "in gray"; empty: they do
    not.  Rows say so, and pixels are compared with those of decoders that say the same."""

    def why_not(self, chosen: Chosen) -> str:
        """Refuse a decoder of other pixels where these are of no use; see `Part.why_not`."""
        settings = chosen.settings
        if not (self.scaled or self.other_pixels):
            return ""
        # Detection's preprocessors place boxes, which count in the image's own pixels.
        fitting = chosen.names("preprocessor", lambda each: each.batch == "classifier")
        if self.scaled and settings.preprocessor not in fitting:
            raise ValueError(
                f"preprocessor must be one of {', '.join(fitting)} for the decoder "
                f"{settings.decoder}, whose images no longer fit their boxes, got "
                f"{settings.preprocessor!r}"
            )
        if settings.storage_format != "jpeg":
            raise ValueError(
                f"storage_format must be 'jpeg' for the decoder {settings.decoder}, got "
                f"{settings.storage_format!r}: those were decoded before"
            )
        if chosen.loader.makes_samples:
            raise ValueError(
                f"decoder must be another one for the loader {settings.loader}, which decodes by "
                f"itself and in full, got {settings.decoder!r}"
            )
        return ""


DECODERS: dict[str, Callable[..., np.ndarray]] = {
    "opencv": Decoder(decode_opencv, library="opencv"),
    "pillow": Decoder(decode_pillow, library="pillow", makes_pillow_image=True),
    "simplejpeg": Decoder(decode_simplejpeg, library="simplejpeg"),
    "simplejpeg_scaled": Decoder(decode_simplejpeg, library="simplejpeg", scaled=True),
    "kornia_rs": Decoder(decode_kornia_rs, library="kornia_rs"),
    "torchcodec": Decoder(decode_torchcodec, library="torchcodec"),
    "torchvision": Decoder(decode_torchvision, library="torchvision"),
}


def unusable_decoders(names: Iterable[str] | None = None) -> dict[str, str]:
    """Return which decoders cannot be used here, each with the reason, by trying them once.

    Args:
        names: of decoders; unset: all.
    """
    cv2, reasons = open_library("cv2", "opencv-python-headless"), {}
    jpeg = cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    for name in DECODERS if names is None else names:
        try:
            check_image(DECODERS[name](jpeg))
        except Exception as error:  # one of the user's own may raise anything
            reasons[name] = str(error)
    return reasons


def read_orientation(jpeg: bytes) -> int:
    """Return the EXIF orientation of a JPEG: 1 is as stored, 2 to 8 are turned or mirrored.

    What has none, or tags that cannot be read, counts as stored.
    """
    pillow = open_library("PIL.Image", "pillow")
    try:
        with pillow.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
            orientation = image.getexif().get(0x0112, 1)  # EXIF 2.3, table 4
    except Exception:  # of damaged tags, whatever Pillow raises
        return 1
    return orientation if orientation in range(2, 9) else 1
