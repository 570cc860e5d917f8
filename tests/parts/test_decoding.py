"""Every decoder of the table gives the same upright RGB pixels, or the same refusal."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from jpegs import encode, exif, photo, with_segment
from PIL import Image, ImageOps

from labkit import contracts
from labkit.parts import decoding
from labkit.parts.decoding import DECODERS, upright


@pytest.fixture(params=DECODERS.values(), ids=DECODERS.keys())
def decode(request):
    """Each decoder of the table, so a new one needs no new test."""
    return request.param


def pillow_pixels(jpeg: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


def assert_alike(image_rgb: np.ndarray, reference: np.ndarray) -> None:
    assert image_rgb.shape == reference.shape
    apart = np.abs(image_rgb.astype(int) - reference.astype(int))
    assert apart.max() <= contracts.DECODED_TOLERANCE_LEVELS


@pytest.mark.parametrize(
    "options",
    [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"progressive": True}],
    ids=str,
)
def test_decoders_keep_the_contract_and_agree_with_pillow(decode, options):
    jpeg = encode(photo(), quality=85, **options)
    image_rgb = decode(jpeg)
    contracts.check_image(image_rgb)
    assert image_rgb.flags.writeable
    assert_alike(image_rgb, pillow_pixels(jpeg))


def test_pure_red_comes_out_red_and_not_blue(decode):
    image_rgb = decode(encode(Image.new("RGB", (16, 16), (255, 0, 0)), quality=95))
    assert_alike(image_rgb, np.full((16, 16, 3), (255, 0, 0), np.uint8))


def test_a_gray_image_has_three_equal_channels(decode):
    jpeg = encode(photo().convert("L"))
    image_rgb = decode(jpeg)
    contracts.check_image(image_rgb)
    assert_alike(image_rgb, pillow_pixels(jpeg))
    assert (image_rgb == image_rgb[:, :, :1]).all()


@pytest.mark.parametrize(
    ("cmyk", "rgb"),
    [((0, 255, 255, 0), (255, 0, 0)), ((255, 0, 0, 0), (0, 255, 255)), ((0, 0, 0, 255), (0, 0, 0))],
)
def test_cmyk_inks_come_out_as_their_colors(decode, cmyk, rgb):
    image_rgb = decode(encode(Image.new("CMYK", (16, 16), cmyk), quality=95))
    contracts.check_image(image_rgb)
    assert_alike(image_rgb, np.full((16, 16, 3), rgb, np.uint8))


@pytest.mark.parametrize("transform", [b"\0", b"\x02"], ids=["CMYK", "YCCK"])
def test_mixed_inks_agree_with_pillow(decode, transform):
    red, green, blue = photo().split()
    jpeg = encode(Image.merge("CMYK", (red, green, blue, green)), quality=95)
    at = jpeg.index(b"Adobe") + 11  # the byte of its segment that tells CMYK from YCCK
    jpeg = jpeg[:at] + transform + jpeg[at + 1 :]
    assert_alike(decode(jpeg), pillow_pixels(jpeg))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_comes_out_upright(decode, orientation, order):
    jpeg = with_segment(encode(photo()), 0xE1, exif(orientation, order))
    image_rgb = decode(jpeg)
    contracts.check_image(image_rgb)
    assert_alike(image_rgb, pillow_pixels(jpeg))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow reads it for the resolution
@pytest.mark.parametrize(
    "payload",
    [exif(0), exif(9), exif(6)[:25], b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"http://xmp"],
    ids=["0", "9", "cut", "empty", "beyond the end", "XMP"],
)
def test_unreadable_exif_counts_as_upright(decode, payload):
    jpeg = encode(photo())
    assert_alike(decode(with_segment(jpeg, 0xE1, payload)), decode(jpeg))


@pytest.mark.parametrize("trailer", [bytes(700), b"\xff", b"a video of the moment"])
def test_bytes_behind_the_end_are_ignored(decode, trailer):
    jpeg = encode(photo())
    assert_alike(decode(jpeg + trailer), decode(jpeg))


@pytest.mark.parametrize("progressive", [False, True])
def test_a_truncated_jpeg_is_refused_wherever_it_is_cut(decode, progressive):
    jpeg = with_segment(encode(photo(), progressive=progressive), 0xE1, exif(1))
    for length in [*range(3, len(jpeg) - 1, 29), len(jpeg) - 2, len(jpeg) - 1]:
        with pytest.raises(ValueError, match=f"complete JPEG, got {length} bytes without an end"):
            decode(jpeg[:length])


def test_the_end_of_an_embedded_thumbnail_is_not_the_end_of_the_image(decode):
    jpeg = with_segment(encode(photo()), 0xE1, exif(1) + encode(photo().resize((16, 16))))
    with pytest.raises(ValueError, match="without an end marker"):
        decode(jpeg[:-2])


def test_no_bytes_are_refused(decode):
    with pytest.raises(ValueError, match=r"^image must be an 8-bit JPEG, got 0 bytes; "):
        decode(b"")


@pytest.mark.parametrize("name", ["PNG", "GIF", "BMP", "TIFF", "WebP"])
def test_another_format_is_refused_by_name(decode, name):
    with pytest.raises(ValueError, match=f"^image must be an 8-bit JPEG, got {name}; "):
        decode(encode(photo(), format=name))


def test_bytes_of_no_known_format_are_shown(decode):
    with pytest.raises(ValueError, match=r"got 9 bytes starting with b'<htm'; "):
        decode(b"<html>404")


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (1, b"\xc9", "must be a baseline or progressive Huffman-coded JPEG, got frame type 9"),
        (4, b"\x0c", "must be an 8-bit JPEG of 1, 3 or 4 components, got 12 bits and 3"),
        (9, b"\x02", "must be an 8-bit JPEG of 1, 3 or 4 components, got 8 bits and 2"),
        (5, b"\xff\xff\xff\xff", "must have 1 to 89478485 pixels, got 65535 x 65535"),
        (5, b"\0\0", "must have 1 to 89478485 pixels, got 53 x 0"),
        (2, b"\0\x03", "must be an undamaged JPEG, got no marker of a segment at byte"),
    ],
)
def test_a_frame_that_not_every_library_reads_is_refused(decode, at, value, message):
    jpeg = encode(photo())
    frame = jpeg.index(b"\xff\xc0") + at
    with pytest.raises(ValueError, match=message):
        decode(jpeg[:frame] + value + jpeg[frame + len(value) :])


def test_damage_that_the_libraries_notice_is_a_value_error(decode):
    jpeg = encode(photo())
    table = jpeg.index(b"\xff\xc4") + 5  # counts of Huffman codes per length
    with pytest.raises(ValueError, match=r"^image must be an undamaged JPEG, got .*replace the"):
        decode(jpeg[:table] + b"\xff" * 16 + jpeg[table + 16 :])


def test_stray_bytes_before_the_end_are_forgiven_alike(decode):
    jpeg = encode(photo())
    assert_alike(decode(jpeg[:-2] + bytes(9) + jpeg[-2:]), decode(jpeg))


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("opencv", "cv2", "opencv-python"),
        ("pillow", "PIL.Image", "pillow"),
        ("simplejpeg", "simplejpeg", "simplejpeg"),
    ],
)
def test_a_missing_library_names_the_install_line(name, module, package, monkeypatch):
    jpeg = encode(photo())
    decoding._open_library.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}.*; pip install {package}$"):
        DECODERS[name](jpeg)


def test_an_upright_image_is_not_copied():
    image_rgb = np.array(photo())
    assert upright(image_rgb, 1) is image_rgb


def test_an_orientation_outside_exif_is_refused():
    with pytest.raises(ValueError, match=r"^orientation must be 1 to 8, got 9$"):
        upright(np.array(photo()), 9)


def test_importing_the_decoders_imports_no_library():
    code = (
        "import sys, labkit.parts.decoding; "
        "sys.exit(bool({'cv2', 'PIL', 'simplejpeg'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_decoder_names_its_jpeg_library(monkeypatch):
    monkeypatch.setitem(DECODERS, "ones_own", DECODERS["pillow"])
    found = decoding.jpeg_back_ends()
    assert set(found) == set(DECODERS)
    assert found["ones_own"] == "unknown"
    for name in ("opencv", "pillow", "simplejpeg"):
        # A distribution's own build may be linked to a library that says nothing.
        assert found[name] == "unknown" or len(found[name].split()) == 2
        assert "/" not in found[name]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    JPEG:                        build-libjpeg-turbo (ver 3.1.2-70)",
         "libjpeg-turbo 3.1.2-70"),
        ("    JPEG:  libjpeg-turbo (ver 2.1.3-62)", "libjpeg-turbo 2.1.3-62"),
        ("    JPEG:  /home/someone/env/lib/libjpeg.so (ver 80)", "libjpeg.so 80"),
        ("    JPEG:  C:\\env\\jpeg.lib (ver 62)", "jpeg.lib 62"),
        ("    JPEG:  build", "build unknown"),
        ("    JPEG:  NO", "unknown"),
        ("    JPEG 2000:                   build (ver 2.5.3)", "unknown"),
    ],
)  # fmt: skip
def test_opencvs_jpeg_library_is_found_without_its_folder(line, expected):
    build = f"  Media I/O:\n    ZLib:  build (ver 1.3.1)\n{line}\n    PNG:  build (ver 1.6.43)\n"
    assert decoding.parse_build_information(build) == expected


def test_a_library_that_is_not_there_is_unknown(monkeypatch):
    def missing(module, package):
        raise ImportError(package)

    monkeypatch.setattr(decoding, "_open_library", missing)
    assert set(decoding.jpeg_back_ends().values()) == {"unknown"}
