"""Rivals: every kind of JPEG becomes the same pixels, whoever decodes it."""

import numpy as np
import pytest
from jpegs import encode, exif, photo, with_segment
from PIL import Image

from labkit.runs import checks
from labkit.settings import MODES, Settings, complete

INPUT_PX = 64
RIVALS = ("threads", "tf_data", "tf_data_as_published", "dali_cpu")


def seen(**kinds):
    """Files of a data set whose photographs are all different, by what is special about them."""
    return {name: make(photo().rotate(7 * i)) for i, (name, make) in enumerate(kinds.items())}


def cmyk(image):
    # As Adobe writes it: the inks inverted, and said so.
    inks = Image.fromarray(255 - np.asarray(image.convert("CMYK")), "CMYK")
    return with_segment(encode(inks), 0xEE, b"Adobe\0\x64\0\0\0\0\0")


KINDS = {
    "as it is": seen(a=encode, b=encode),
    "turned by EXIF": seen(
        a=lambda image: with_segment(encode(image), 0xE1, exif(3)),
        b=lambda image: with_segment(encode(image), 0xE1, exif(6)),
    ),
    "grey": seen(a=lambda image: encode(image.convert("L"))),
    "CMYK": seen(a=cmyk),
    "progressive": seen(a=lambda image: encode(image, progressive=True)),
    "chroma": seen(
        full=lambda image: encode(image, subsampling=0),
        half=lambda image: encode(image, subsampling=1),
    ),
}


@pytest.mark.needs_rivals
@pytest.mark.parametrize("kind", KINDS)
def test_all_loaders_give_the_same_pixels(kind, tmp_path):
    for name, jpeg in KINDS[kind].items():
        (tmp_path / f"{name}.jpg").write_bytes(jpeg)
    variants = {}
    for loader in ("torch", *RIVALS):
        own = Settings(
            data=str(tmp_path), loader=loader, input_px=INPUT_PX, batch_size=len(KINDS[kind]),
            num_workers=2, device="cpu", step="classifier", preprocessor="classification",
        )  # fmt: skip
        variants[loader] = complete(own, MODES["quick"], cores=2, has_cuda=False, can_fork=True)
    verdicts = checks.compare_work(variants, "torch")
    assert verdicts == dict.fromkeys(variants, ("ok", ""))
