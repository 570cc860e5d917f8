"""Images that a decoder turns, as EXIF asks, are found before anything is timed.

Run: python -m pytest tests/runs/test_turned_images.py
"""

import io

import numpy as np
import pytest
from jpegs import encode, exif, photo, with_segment
from PIL import Image, ImageOps
from small import compare, completed

import labkit as lab
from labkit.parts.decoding import Decoder
from labkit.runs.check_images import find_bad_images


def turning(jpeg):
    """As torchcodec does."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


def gray(jpeg):
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.array(image.convert("L").convert("RGB"))


def make_data(folder, *orientations):
    folder.mkdir()
    for i, orientation in enumerate(orientations):
        jpeg = with_segment(encode(photo().rotate(7 * i)), 0xE1, exif(orientation))
        (folder / f"{i}.jpg").write_bytes(jpeg)
    return folder


def bad_images(folder, *decoders):
    bad, changed = find_bad_images(completed(data=str(folder)), 0, 99, list(decoders))
    assert changed == []
    return bad


def test_each_orientation_that_a_decoder_applies_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(lab.DECODERS, "turning", turning)
    folder = make_data(tmp_path / "photos", *range(10))  # 0 and 9 are no orientations
    bad = bad_images(folder, "opencv", "turning")
    assert [index for index, _ in bad] == list(range(2, 9))
    line = "6.jpg: image must be decoded as it is stored, got it turned by turning, as its EXIF ori"
    assert f"{line}entation 6 asks; choose another decoder" in bad[4][1]


def test_decoders_that_turn_nothing_read_all_images(tmp_path, monkeypatch):
    monkeypatch.setitem(lab.DECODERS, "gray", Decoder(gray, other_pixels="in gray"))
    folder = make_data(tmp_path / "photos", *range(10))
    assert bad_images(folder, "opencv", "pillow", "simplejpeg", "simplejpeg_scaled", "gray") == []


def test_a_run_stops_at_turned_images_or_leaves_them_out_for_all(tmp_path, monkeypatch):
    monkeypatch.setitem(lab.DECODERS, "turning", turning)
    data = make_data(tmp_path / "photos", 1, 1, 6, 1, 1, 3, 1, 1, 1, 1)
    variants = {"opencv": {}, "turning": {"decoder": "turning"}}
    with pytest.raises(ValueError, match=r"got 2 that are not .*turned by turning"):
        compare(data, tmp_path / "results", variants)
    run = compare(data, tmp_path / "results", variants, base={"on_bad_image": "skip"})
    assert len(run.info.excluded) == 2
    assert [row.status for row in run.summary.rows] == ["ok", "ok"]
