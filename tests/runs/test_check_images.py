"""Images that cannot be used are found before anything is timed, and the list of them is kept.

A kept list counts only where all that it depends on is the same.
"""

import io

import numpy as np
import pytest
from jpegs import encode, exif, photo, with_segment
from PIL import Image, ImageOps
from small import completed

import labkit as lab
from labkit.parts.decoding import Decoder
from labkit.parts.packing.folder import open_folder, write_folder
from labkit.records import UNKNOWN
from labkit.runs.check_images import check_images, find_bad_images
from labkit.runs.kept_checks import FILE
from tests.runs.test_check_simulated import Asked

BAD = ([(3, "3.jpg: image must be a JPEG file")], [])  # no file has changed


def bad_images(folder, *decoders, suspects=None):
    """The numbers of bad images, and the lines about them."""
    bad, changed = find_bad_images(completed(data=str(folder)), 0, 99, list(decoders), suspects)
    assert changed == []
    return [index for index, _ in bad], [line for _, line in bad]


# --- images that a decoder turns, as EXIF asks ----------------------------------------------


def turning(jpeg):
    """As torchcodec does."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.array(ImageOps.exif_transpose(image).convert("RGB"))


def gray(jpeg):
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.array(image.convert("L").convert("RGB"))


def test_each_orientation_that_a_decoder_applies_is_found_and_other_pixels_are_not(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(lab.DECODERS, "turning", turning)
    monkeypatch.setitem(lab.DECODERS, "gray", Decoder(gray, other_pixels="in gray"))
    for i in range(10):  # 0 and 9 are no orientations
        jpeg = with_segment(encode(photo().rotate(7 * i)), 0xE1, exif(i))
        (tmp_path / f"{i}.jpg").write_bytes(jpeg)
    found, lines = bad_images(tmp_path, "opencv", "turning")
    assert found == list(range(2, 9))
    line = "6.jpg: image must be decoded as it is stored, got it turned by turning, as its EXIF ori"
    assert f"{line}entation 6 asks; choose another decoder" in lines[4]
    turn_nothing = ("opencv", "pillow", "simplejpeg", "simplejpeg_scaled", "gray")
    assert bad_images(tmp_path, *turn_nothing) == ([], [])


# --- what is kept ---------------------------------------------------------------------------


def test_only_suspects_are_decoded_again_and_the_others_compared_with_the_manifest(
    photos, tmp_path
):
    reader, data = open_folder(photos), tmp_path / "data"
    samples = [(reader.name(i), *reader.read(i)) for i in range(len(reader))]
    name, jpeg, boxes = samples[5]
    frame = jpeg.index(b"\xff\xc0") + 4
    samples[5] = name, jpeg[:frame] + b"\x0c" + jpeg[frame + 1 :], boxes  # twelve bits a color
    write_folder(samples, data, images=len(samples), about={})
    assert bad_images(data, "opencv")[0] == bad_images(data, "opencv", suspects=[5])[0] == [5]
    assert bad_images(data, "opencv", suspects=[4])[0] == []
    (data / samples[7][0]).write_bytes(samples[8][1])
    how = (completed(data=str(data)), 0, 99, ["opencv"], [5])
    ((index, _),), (line,) = find_bad_images(*how)
    assert (index, samples[7][0] in line) == (5, True)


def decoded(results, answer=BAD, *, base=(), **changes):
    """Check the images of a run; return which of them it decodes, None: all."""
    run = Asked(results, [answer], base={"on_bad_image": "skip", **dict(base)}, **changes)
    check_images(run)
    assert run.info.excluded == (3,)
    return run.arguments["suspects"]


@pytest.mark.parametrize(
    ("answer", "base", "message"),
    [
        (BAD, {"on_bad_image": "stop"}, r"must all be readable, got 1 that are not \(3\.jpg: ima"),
        (([], ["7.jpg"]), {}, r"data must be what its manifest says, got 1 changed files \(7\.jpg"),
    ],
)
def test_a_run_stops_at_images_that_it_may_not_leave_out(tmp_path, answer, base, message):
    with pytest.raises(ValueError, match=message):
        decoded(tmp_path, answer, base=base)


@pytest.mark.parametrize(
    "changes",
    [
        {"provenance": {"machine_id": "another"}},
        {"provenance": {"python": "3.14"}},
        {"provenance": {"versions": {"cv2": "5.0"}}},
        {"data_hash": "other"},
        {"base": {"seed": 1}},
        {"base": {"subset": "first"}},
        {"decoder": "pillow"},
    ],
    ids=str,
)
def test_images_are_decoded_again_where_others_may_be_unreadable(tmp_path, changes):
    assert decoded(tmp_path) is None
    assert decoded(tmp_path) == [3]
    assert decoded(tmp_path, **changes) is None


def test_nothing_is_kept_of_data_without_a_manifest(tmp_path):
    for _ in range(2):  # an image may be another one now
        assert decoded(tmp_path, data_hash=UNKNOWN) is None
    assert not (tmp_path / FILE).exists()
