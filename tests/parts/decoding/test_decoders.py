"""Every decoder of the table gives the same upright RGB pixels, or the same refusal.

kornia-rs and torchvision are skipped where they are not installed, unless FAIL_WITHOUT_DECODERS=1.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from jpegs import encode, exif, photo, why_missing, with_segment
from PIL import Image, ImageOps

from labkit import contracts
from labkit.parts.decoding import DECODERS, SCALED, libraries, upright

STRICT = ("kornia_rs",)  # refuses what the others repair, and CMYK
NO_CMYK = "^image must be gray or RGB for this decoder, got CMYK; save it as RGB, or choose another"
DAMAGED = "^image must be an undamaged JPEG, got .+; replace the file$"


@pytest.fixture(params=DECODERS)
def name(request):
    """Each decoder of the table, so a new one needs no new test."""
    if reason := why_missing(request.param):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def decode(name):
    return DECODERS[name]


def refuse_or_compare(name, jpeg, reference, message):
    """What a strict decoder refuses in words, the others decode alike."""
    if name in STRICT:
        with pytest.raises(ValueError, match=message):
            DECODERS[name](jpeg)
    else:
        assert_alike(DECODERS[name](jpeg), reference)


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
def test_cmyk_inks_come_out_as_their_colors(name, cmyk, rgb):
    jpeg = encode(Image.new("CMYK", (16, 16), cmyk), quality=95)
    refuse_or_compare(name, jpeg, np.full((16, 16, 3), rgb, np.uint8), NO_CMYK)


@pytest.mark.parametrize("transform", [b"\0", b"\x02"], ids=["CMYK", "YCCK"])
def test_mixed_inks_agree_with_pillow(name, transform):
    red, green, blue = photo().split()
    jpeg = encode(Image.merge("CMYK", (red, green, blue, green)), quality=95)
    at = jpeg.index(b"Adobe") + 11  # the byte of its segment that tells CMYK from YCCK
    jpeg = jpeg[:at] + transform + jpeg[at + 1 :]
    refuse_or_compare(name, jpeg, pillow_pixels(jpeg), NO_CMYK)


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


@pytest.mark.parametrize("other", ["PNG", "GIF", "BMP", "TIFF", "WebP"])
def test_another_format_is_refused_by_name(decode, other):
    with pytest.raises(ValueError, match=f"^image must be an 8-bit JPEG, got {other}; "):
        decode(encode(photo(), format=other))


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
    with pytest.raises(ValueError, match=DAMAGED):
        decode(jpeg[:table] + b"\xff" * 16 + jpeg[table + 16 :])


def test_stray_bytes_before_the_end_are_forgiven_alike(name):
    jpeg = encode(photo())
    refuse_or_compare(name, jpeg[:-2] + bytes(9) + jpeg[-2:], DECODERS[name](jpeg), DAMAGED)


def test_a_damaged_file_leaves_nothing_behind(decode):
    jpeg = encode(photo())
    reference = decode(jpeg)
    for length in (200, len(jpeg) // 2, len(jpeg) - 100):
        with contextlib.suppress(ValueError):
            decode(jpeg[:length] + jpeg[-2:])  # the middle is missing, which some repair
        assert np.array_equal(decode(jpeg), reference)


def test_four_threads_decode_what_one_does(decode):
    jpegs = [encode(photo().rotate(7 * i), quality=50 + i % 50) for i in range(200)]
    serial = [decode(jpeg) for jpeg in jpegs]
    with ThreadPoolExecutor(4) as pool:
        rounds = [pool.submit(lambda: [decode(jpeg) for jpeg in jpegs]) for _ in range(4)]
    for one in rounds:
        assert all(np.array_equal(a, b) for a, b in zip(one.result(), serial, strict=True))


@pytest.mark.parametrize(
    ("of", "module", "package"),
    [
        ("opencv", "cv2", "opencv-python"),
        ("pillow", "PIL.Image", "pillow"),
        ("simplejpeg", "simplejpeg", "simplejpeg"),
        ("simplejpeg_scaled", "simplejpeg", "simplejpeg"),
        ("kornia_rs", "kornia_rs", "kornia-rs"),
        ("torchvision", "torchvision.io", r"torchvision torch==[\d.]+"),
    ],
)
def test_a_missing_library_names_the_install_line(of, module, package, monkeypatch):
    jpeg = encode(photo())
    libraries.open_library.cache_clear()
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}.*; pip install {package}$"):
        DECODERS[of](jpeg)


def test_a_library_for_another_torch_is_an_import_error_too(tmp_path, monkeypatch):
    (tmp_path / "made_for_cuda.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    message = (
        r"^decoder must be installed so that it imports, got RuntimeError: operator nms does not "
        r"exist; pip install made, both built for the same CUDA or for none$"
    )
    with pytest.raises(ImportError, match=message):
        libraries.open_library("made_for_cuda", "made")


def test_an_upright_image_is_not_copied():
    image_rgb = np.array(photo())
    assert upright(image_rgb, 1) is image_rgb


def test_an_orientation_outside_exif_is_refused():
    with pytest.raises(ValueError, match=r"^orientation must be 1 to 8, got 9$"):
        upright(np.array(photo()), 9)


def test_importing_the_decoders_imports_no_library():
    code = (
        "import sys, labkit.parts.decoding; "
        "sys.exit(bool({'cv2', 'PIL', 'simplejpeg', 'kornia_rs', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- scaled -----------------------------------------------------------------------------------


@pytest.fixture(params=sorted(SCALED))
def decode_scaled(request):
    return DECODERS[request.param]


def big(width_px=640, height_px=480, **options) -> bytes:
    return encode(photo().resize((width_px, height_px), Image.Resampling.BICUBIC), **options)


@pytest.mark.parametrize(
    ("at_least_px", "expected"),
    [
        (30, (60, 80)),  # an eighth
        (64, (120, 160)),
        (128, (180, 240)),  # three eighths
        (224, (240, 320)),
        (240, (240, 320)),
        (256, (480, 640)),  # five eighths would do, and take longer than the whole
        (512, (480, 640)),
        (None, (480, 640)),
    ],
)
def test_an_image_is_decoded_no_larger_than_it_must(decode_scaled, at_least_px, expected):
    image_rgb = decode_scaled(big(), at_least_px=at_least_px)
    contracts.check_image(image_rgb)
    assert image_rgb.shape == (*expected, 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_scaled_image_is_the_upright_whole_one_averaged(decode_scaled, orientation, mode):
    red_cyan = Image.linear_gradient("L").resize((640, 480)).convert("RGB")
    red_cyan.paste((255, 0, 0), (0, 0, 320, 240))
    jpeg = with_segment(encode(red_cyan.convert(mode), quality=95), 0xE1, exif(orientation))
    whole = Image.fromarray(decode_scaled(jpeg))
    small = decode_scaled(jpeg, at_least_px=200)
    wanted = np.array(whole.reduce(2)).astype(int)
    assert small.shape == wanted.shape
    apart = np.abs(small - wanted)
    assert apart.mean() < 1
    assert np.quantile(apart, 0.99) < 8  # the edge of the red


def test_a_scaled_decode_refuses_and_forgives_as_a_whole_one(decode_scaled):
    small, jpeg = partial(decode_scaled, at_least_px=100), big()
    assert np.array_equal(small(jpeg[:-2] + bytes(9) + jpeg[-2:]), small(jpeg))
    with pytest.raises(ValueError, match="without an end marker"):
        small(jpeg[:-2])
    table = jpeg.index(b"\xff\xc4") + 5
    with pytest.raises(ValueError, match=DAMAGED):
        small(jpeg[:table] + b"\xff" * 16 + jpeg[table + 16 :])
