"""Every decoder of the table returns the same RGB pixels, refuses in words, or says what differs.

kornia-rs, torchcodec and torchvision are skipped where they are not installed.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jpegs import encode, exif, photo, why_missing, with_segment
from PIL import Image, ImageOps

from labkit import contracts
from labkit.analysis.thresholds import DECODED_TOLERANCE_LEVELS
from labkit.contracts import Skip
from labkit.jpeg import read_size_px
from labkit.parts.decoding import DECODERS, Decoder
from labkit.resolve import find_part

# These repair damage and read CMYK; others may refuse both.
TOLERANT = ("opencv", "pillow", "simplejpeg", "simplejpeg_scaled", "torchcodec", "torchvision")
# These apply the EXIF orientation.
TURNING = ("torchcodec",)
REFUSED = "^image must be a JPEG that .+ reads, got .+; replace the file, or choose another decoder"


@pytest.fixture(params=DECODERS)
def name(request):
    """Each decoder of the table, so a new one needs no new test."""
    if reason := why_missing(request.param):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def decode(name):
    return DECODERS[name]


def stored_pixels(jpeg: bytes, *, turned: bool = False) -> np.ndarray:
    with Image.open(io.BytesIO(jpeg)) as image:
        image = ImageOps.exif_transpose(image) if turned else image
        return np.array(image.convert("RGB"))


def assert_alike(name: str, image_rgb: np.ndarray, reference: np.ndarray) -> None:
    """Compare pixels, or the shape alone where a decoder's pixels differ by design."""
    assert image_rgb.shape == reference.shape
    if find_part(Decoder, name).other_pixels:
        return
    apart = np.abs(image_rgb.astype(int) - reference.astype(int))
    assert apart.max() <= DECODED_TOLERANCE_LEVELS


def refuse_or_compare(name, jpeg, reference):
    try:
        image_rgb = DECODERS[name](jpeg)
    except ValueError as error:
        assert name not in TOLERANT and re.search(REFUSED, str(error))
    else:
        assert_alike(name, image_rgb, reference)


KINDS = {
    **{f"subsampling {i}": encode(photo(), subsampling=i) for i in range(3)},
    "progressive": encode(photo(), progressive=True),
    "gray": encode(photo().convert("L")),
    "pure red": encode(Image.new("RGB", (16, 16), (255, 0, 0)), quality=95),
    **{f"EXIF orientation {i}": with_segment(encode(photo()), 0xE1, exif(i)) for i in (1, 3, 6)},
    "a video behind the end": encode(photo()) + b"\xff a video of the moment",
}


@pytest.mark.parametrize("kind", KINDS)
def test_decoders_keep_the_contract_and_return_the_pixels_as_stored(name, decode, kind):
    image_rgb = decode(KINDS[kind])
    contracts.check_image(image_rgb)
    assert image_rgb.flags.writeable
    assert_alike(name, image_rgb, stored_pixels(KINDS[kind], turned=name in TURNING))


@pytest.mark.parametrize("transform", [b"\0", b"\x02"], ids=["CMYK", "YCCK"])
def test_inks_come_out_as_colors(name, transform):
    red, green, blue = photo().split()
    jpeg = encode(Image.merge("CMYK", (red, green, blue, green)), quality=95)
    at = jpeg.index(b"Adobe") + 11  # the byte of its segment that tells CMYK from YCCK
    jpeg = jpeg[:at] + transform + jpeg[at + 1 :]
    refuse_or_compare(name, jpeg, stored_pixels(jpeg))


def test_stray_bytes_before_the_end_are_forgiven_alike(name):
    jpeg = encode(photo())
    refuse_or_compare(name, jpeg[:-2] + bytes(9) + jpeg[-2:], DECODERS[name](jpeg))


@pytest.mark.parametrize("progressive", [False, True])
def test_a_truncated_jpeg_is_refused_wherever_it_is_cut(decode, progressive):
    thumbnail = exif(1) + encode(photo().resize((16, 16)))  # whose end is not the image's
    jpeg = with_segment(encode(photo(), progressive=progressive), 0xE1, thumbnail)
    for length in [*range(3, len(jpeg) - 1, 29), len(jpeg) - 2, len(jpeg) - 1]:
        with pytest.raises(ValueError, match=f"complete JPEG, got {length} bytes without an end"):
            decode(jpeg[:length])


@pytest.mark.parametrize("other", [b"", b"<html>404", encode(photo(), format="PNG")])
def test_what_is_not_a_jpeg_is_refused_with_its_first_bytes(decode, other):
    with pytest.raises(ValueError, match=r"^image must be a JPEG file, got \d+ bytes starting"):
        decode(other)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (4, b"\x0c", REFUSED),  # 12 bits
        (9, b"\x02", REFUSED),  # two components
        (5, b"\xff\xff\xff\xff", "must have 1 to 89478485 pixels, got 65535 x 65535"),
        (5, b"\0\0", "must have 1 to 89478485 pixels, got 53 x 0"),
        (2, b"\0\x03", "must be an undamaged JPEG, got no marker at byte"),
    ],
)
def test_a_frame_that_no_library_reads_is_refused(decode, at, value, message):
    jpeg = encode(photo())
    frame = jpeg.index(b"\xff\xc0") + at
    with pytest.raises(ValueError, match=message):
        decode(jpeg[:frame] + value + jpeg[frame + len(value) :])


def test_damage_that_the_libraries_notice_is_a_value_error_and_leaves_nothing_behind(decode):
    jpeg = encode(photo())
    reference = decode(jpeg)
    table = jpeg.index(b"\xff\xc4") + 5  # counts of Huffman codes per length
    with pytest.raises(ValueError, match=REFUSED):
        decode(jpeg[:table] + b"\xff" * 16 + jpeg[table + 16 :])
    for length in (200, len(jpeg) // 2, len(jpeg) - 100):
        with contextlib.suppress(ValueError):
            decode(jpeg[:length] + jpeg[-2:])  # the middle is missing, which some repair
        assert np.array_equal(decode(jpeg), reference)


def test_four_threads_decode_what_one_does(decode):
    jpegs = [encode(photo().rotate(7 * i), quality=50 + i % 50) for i in range(100)]
    serial = [decode(jpeg) for jpeg in jpegs]
    with ThreadPoolExecutor(4) as pool:
        rounds = [pool.submit(lambda: [decode(jpeg) for jpeg in jpegs]) for _ in range(4)]
    for one in rounds:
        assert all(np.array_equal(a, b) for a, b in zip(one.result(), serial, strict=True))


@pytest.mark.parametrize(
    ("decoder", "module", "package"),
    [
        ("opencv", "cv2", "opencv-python-headless"),
        ("pillow", "PIL.Image", "pillow"),
        ("simplejpeg_scaled", "simplejpeg", "simplejpeg"),
        ("kornia_rs", "kornia_rs", "kornia-rs"),
        ("torchcodec", "torchcodec.decoders", "torchcodec"),
        ("torchvision", "torchvision.io", r"torchvision torch==[\d.]+"),
    ],
)
def test_a_missing_library_names_the_install_line(decoder, module, package, monkeypatch):
    jpeg = encode(photo())
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Skip, match=rf"{module}.*pip install {package}$"):
        DECODERS[decoder](jpeg)


# --- the header -------------------------------------------------------------------------------


@given(st.binary(max_size=80), st.integers(0, 700))
def test_damaged_headers_are_refused_or_read_but_never_hang(noise, length):
    for content in (b"\xff\xd8" + noise, b"\xff\xd8\xff" + noise, encode(photo())[:length]):
        try:
            assert min(read_size_px(content)) > 0
        except ValueError as error:
            assert str(error).startswith("image must ")


# --- scaled -----------------------------------------------------------------------------------


@pytest.fixture(params=[name for name in DECODERS if find_part(Decoder, name).scaled])
def decode_scaled(request):
    return DECODERS[request.param]


@pytest.mark.parametrize(
    ("at_least_px", "expected"),
    [
        (30, (60, 80)),  # an eighth
        (128, (180, 240)),  # three eighths
        (240, (240, 320)),
        (256, (480, 640)),  # five eighths would do, and take longer than the whole
        (0, (480, 640)),
    ],
)
def test_an_image_is_decoded_no_larger_than_it_must(decode_scaled, at_least_px, expected):
    image_rgb = decode_scaled(encode(photo().resize((640, 480))), at_least_px=at_least_px)
    contracts.check_image(image_rgb)
    assert image_rgb.shape == (*expected, 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_scaled_image_is_the_whole_one_averaged(decode_scaled, mode):
    red_cyan = Image.linear_gradient("L").resize((640, 480)).convert("RGB")
    red_cyan.paste((255, 0, 0), (0, 0, 320, 240))
    jpeg = encode(red_cyan.convert(mode), quality=95)
    wanted = np.array(Image.fromarray(decode_scaled(jpeg)).reduce(2)).astype(int)
    apart = np.abs(decode_scaled(jpeg, at_least_px=200) - wanted)
    assert apart.mean() < 1
    assert np.quantile(apart, 0.99) < 8  # the edge of the red
