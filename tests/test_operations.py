"""Every library does the same work, at every size, and none leaves a part of it undone.

Reference is the operation's first library; tolerances are those of the run's own gate.
"""

import gc
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from fake_clock import FakeClock
from jpegs import why_missing
from PIL import Image

import labkit as lab
from labkit.operation_trials import (
    AGREEMENTS,
    OPERATIONS,
    compare_operations,
    difference,
    time_calls,
)
from labkit.operations import SIZES_PX
from labkit.parts.decoding import DECODERS
from labkit.parts.operations import MEANINGS, Operation, make_picture

KEYS = [key for key in OPERATIONS if not why_missing(key[1])]


@pytest.fixture(scope="module")
def photos_rgb(photos):
    paths = sorted((photos / "images").glob("*.jpg"))[:3]
    return [DECODERS["opencv"](path.read_bytes()) for path in paths]


@pytest.fixture(scope="module")
def picture(photos_rgb):
    return make_picture(photos_rgb[0], 640, 480)


def tasks_of(table, width_px=320, height_px=240):
    size = {"width_px": width_px, "height_px": height_px}
    return {f"{o} {x}": {"operation": o, "library": x, **size} for o, x in table}


def run(key, picture):
    operation = OPERATIONS[key]
    return operation.run(operation.prepare(picture))


@pytest.mark.parametrize("size_px", SIZES_PX)
def test_all_libraries_do_the_same_work(photos, size_px):
    tasks = tasks_of(OPERATIONS, *size_px)
    verdicts = compare_operations(lab.Settings(data=str(photos)), tasks)
    for label, verdict in verdicts.items():
        missing = why_missing(tasks[label]["library"])
        assert verdict == (("skipped", missing) if missing else ("ok", "")), label


@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_results_are_copies_and_leave_what_they_were_made_of_alone(key, picture):
    given = OPERATIONS[key].prepare(picture)
    if key[0] == "decode":
        assert not np.shares_memory(run(key, picture), np.frombuffer(given, np.uint8))
        return
    before = np.asarray(given).copy()
    found = np.asarray(OPERATIONS[key].run(given))
    assert not np.shares_memory(found, np.asarray(given))
    assert np.array_equal(np.asarray(given), before)


def test_every_operation_has_a_meaning_and_an_agreement():
    assert {name for name, _ in OPERATIONS} == set(MEANINGS) == set(AGREEMENTS)


# --- what the operations are, told apart from the libraries -----------------------------


def test_decoding_ends_with_all_pixels(picture):
    for key in KEYS:
        if key[0] == "decode":
            assert np.asarray(run(key, picture)).shape == (480, 640, 3)


def test_crops_are_the_middle_and_flips_mirror_columns(picture):
    crop, flip = np.asarray(run(("crop", "pillow"), picture)), run(("flip", "opencv"), picture)
    assert np.array_equal(crop, picture.pixels[30:450, 40:600])
    assert np.array_equal(flip[:, 0], picture.pixels[:, -1])


def test_rotating_turns_about_the_middle_and_blackens_the_corners():
    dots = np.full((481, 641, 3), 90, np.uint8)
    dots[230:251, 310:331] = 255  # in the middle, row 240 and column 320
    dots[230:251, 500:521] = 255  # 190 px to the right of it
    for given, key in (
        (Image.fromarray(dots), ("rotate", "pillow")),
        (dots, ("rotate", "opencv")),
    ):
        turned = np.asarray(OPERATIONS[key].run(given))
        assert not turned[:20, :20].any()
        assert turned[240, 320].min() == 255
        # By 15° against the clock: up by 190 sin 15° = 49, and 190 cos 15° = 184 to the right.
        assert turned[240 - 49, 320 + 184].min() == 255
        assert turned[240, 510].max() == 90


def test_tensors_are_planes_in_zero_to_one_and_normalizing_gives_unit_values(picture):
    planes = np.asarray(run(("to-tensor", "torch"), picture))
    assert planes.dtype == np.float32
    assert np.allclose(planes, picture.pixels.transpose(2, 0, 1) / 255, atol=1e-6)
    normalized = np.asarray(run(("normalize", "torch"), picture))
    assert np.allclose(normalized[0], (planes[0] - 0.485) / 0.229, atol=1e-5)


def test_a_picture_holds_the_same_pixels_in_every_form(photos_rgb):
    for width_px, height_px in ((320, 240), (99, 301)):
        picture = make_picture(photos_rgb[1], width_px, height_px)
        assert picture.pixels.shape == (height_px, width_px, 3)
        assert np.array_equal(np.asarray(picture.image), picture.pixels)
        assert np.array_equal(picture.tensor.numpy(), picture.planes)
        assert np.array_equal(DECODERS["opencv"](picture.jpeg), picture.pixels)


def test_pictures_are_not_squeezed():
    tall = np.zeros((400, 100, 3), np.uint8)
    tall[150:250] = 255  # a white square in the middle
    picture = make_picture(tall, 320, 240)
    # 4:3 of a width of 100 is a height of 75, all of it white.
    assert picture.pixels.min() > 250


# --- the gate can fail --------------------------------------------------------------------


def test_averaging_and_linear_resize_are_not_the_same_work(picture):
    for library in ("pillow", "torch"):
        averaged = np.asarray(run(("resize, antialiased", library), picture))
        linear = np.asarray(run(("resize", library), picture))
        assert "of the values must be at most 1 apart" in difference(
            averaged, linear, AGREEMENTS["resize"]
        )


def test_swapped_channels_are_found(picture):
    swapped = np.ascontiguousarray(picture.pixels[:, :, ::-1])
    assert difference(swapped, picture.pixels, AGREEMENTS["decode"])


def test_a_rotation_about_another_point_is_found(picture):
    # The middle as Pillow counts it, half a pixel off for OpenCV.
    matrix = cv2.getRotationMatrix2D((320, 240), 15, 1)
    shifted = cv2.warpAffine(picture.pixels, matrix, (640, 480), flags=cv2.INTER_LINEAR)
    reference = np.asarray(run(("rotate", "pillow"), picture))
    assert difference(shifted, reference, AGREEMENTS["rotate"])


def test_a_view_is_not_a_finished_crop(picture):
    view = picture.pixels[30:450, 40:600]
    assert difference(view, view.copy(), AGREEMENTS["crop"]) == (
        "output must be contiguous, got a strided view, whose copy is left to others"
    )


def test_another_shape_or_dtype_is_named(picture):
    planes = picture.planes
    assert difference(planes.astype(np.float64), planes, AGREEMENTS["to-tensor"]) == (
        "output must be (3, 480, 640) float32, got (3, 480, 640) float64"
    )


def test_other_work_fails_and_a_missing_library_is_skipped(photos):
    def missing(pixels):
        raise ImportError("pip install it")

    table = {
        ("crop", "first"): Operation(lambda p: p.pixels, np.copy),
        ("crop", "same"): Operation(lambda p: p.pixels, np.copy),
        ("crop", "lazy"): Operation(lambda p: p.pixels, lambda pixels: pixels[:1].copy()),
        ("crop", "missing"): Operation(lambda p: p.pixels, missing),
    }
    verdicts = compare_operations(lab.Settings(data=str(photos)), tasks_of(table), table)
    assert verdicts["crop same"] == ("ok", "")
    assert verdicts["crop missing"] == ("skipped", "pip install it")
    status, reason = verdicts["crop lazy"]
    assert status == "failed" and "not the same work as first: output must be" in reason


# --- timing -------------------------------------------------------------------------------


def timed(inputs, seconds):
    """Time calls that take as many seconds as their input says."""
    clock, calls = FakeClock(), []

    def call(given):
        calls.append((given, gc.isenabled()))
        clock.sleep(given)

    return SimpleNamespace(found=time_calls(call, inputs, seconds, clock), calls=calls)


def test_every_input_is_called_as_often_until_all_calls_take_long_enough():
    run = timed([0.01, 0.03], seconds=0.1)
    # Two calls on the first to choose the number: 0.05 s of 0.01 s each are five.
    assert run.found == (pytest.approx(0.02), 10)
    assert [given for given, _ in run.calls] == [0.01] * 7 + [0.03] * 5


def test_a_long_call_is_timed_once_per_input():
    assert timed([1.0, 1.0], seconds=0.1).found == (pytest.approx(1.0), 2)


def test_nothing_is_collected_while_timing_and_the_collector_is_left_as_it_was():
    assert not any(collecting for _, collecting in timed([0.01], seconds=0.05).calls)
    assert gc.isenabled()
