"""Planes give back the pixels, whichever part of an image is taken, of any size and in gray."""

import math
import pickle

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jpegs import photo

from labkit.parts.packing.yuv420 import Yuv420Image, to_yuv420

PIXELS = np.array(photo().resize((212, 148)))
ODD = np.array(photo())  # 53 × 37


def psnr_db(pixels, wanted):
    return 10 * math.log10(255**2 / np.mean((pixels.astype(float) - wanted) ** 2))


def test_a_photograph_stays_as_it_was_but_for_its_finest_colors():
    image = to_yuv420(PIXELS)
    assert image.planes.size == 212 * 148 * 3 // 2
    assert (image.shape, len(image)) == ((148, 212, 3), 148)
    whole = np.asarray(image)
    assert (whole.shape, whole.dtype, whole.flags.c_contiguous) == (PIXELS.shape, np.uint8, True)
    assert psnr_db(whole, PIXELS) > 35
    assert psnr_db(whole, PIXELS[..., ::-1]) < 20


@pytest.mark.parametrize("color", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)])
def test_colors_are_kept_at_every_border_of_an_image_with_odd_sides(color):
    whole = np.asarray(to_yuv420(np.full((7, 5, 3), color, np.uint8)))
    assert whole.shape == (7, 5, 3)
    assert np.abs(whole.astype(int) - color).max() <= 3


def test_gray_stays_gray():
    gray = np.array(photo().convert("L").convert("RGB"))
    whole = np.asarray(to_yuv420(gray)).astype(int)
    assert np.ptp(whole, axis=2).max() == 0
    assert np.abs(whole - gray).max() <= 2  # brightness has 219 steps


def test_four_pixels_share_the_average_of_their_colors():
    checked = np.zeros((8, 8, 3), np.uint8)
    checked[::2, ::2] = checked[1::2, 1::2] = (255, 0, 0)
    checked[::2, 1::2] = checked[1::2, ::2] = (0, 0, 255)
    planes = to_yuv420(checked).planes
    purple = to_yuv420(np.full((8, 8, 3), (128, 0, 128), np.uint8)).planes
    assert np.abs(planes[64:].astype(int) - purple[64:]).max() <= 1


@given(data=st.data())
def test_a_part_has_the_pixels_that_the_whole_has_there(data):
    image = to_yuv420(ODD)
    rows, columns = (
        sorted(data.draw(st.lists(st.integers(0, side), min_size=2, max_size=2, unique=True)))
        for side in (37, 53)
    )
    part = image[rows[0] : rows[1], columns[0] : columns[1]]
    assert np.array_equal(part, np.asarray(image)[rows[0] : rows[1], columns[0] : columns[1]])
    cv2.resize(part, (8, 8))  # OpenCV takes the view as it is


def test_an_image_is_sent_to_another_process_with_its_planes():
    image = to_yuv420(ODD)
    again = pickle.loads(pickle.dumps(image))
    assert np.array_equal(np.asarray(again), np.asarray(image))


def test_an_empty_image_is_stored_as_no_bytes():
    empty = to_yuv420(np.zeros((0, 0, 3), np.uint8))
    assert (empty.planes.size, len(empty), np.asarray(empty).shape) == (0, 0, (0, 0, 3))


def test_planes_of_another_size_are_refused():
    planes = to_yuv420(ODD).planes
    with pytest.raises(ValueError, match=r"planes must have 3078 bytes for 53 x 37 pixels, got 9"):
        Yuv420Image(planes[:9], 37, 53)
