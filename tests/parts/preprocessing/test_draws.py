"""What the random draws depend on, and where the affine puts pixels."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.contracts import CLASSES, Annotation, Sample
from labkit.parts.preprocessing.draws import Draws, affine, config, draw

SAMPLE = Sample(
    image_rgb=np.zeros((480, 640, 3), np.uint8),
    annotation=Annotation(
        boxes_xyxy=np.zeros((0, 4), np.float32), category_ids=np.zeros(0, np.int64)
    ),
    sample_id=3,
    epoch=1,
    seed=7,
)


def as_text(sample: Sample) -> str:
    return repr(draw(sample))


def test_draws_depend_on_seed_epoch_and_sample_id_alone():
    before = as_text(SAMPLE)
    np.random.seed(99)  # a worker's global state must not matter
    for other in range(5):
        as_text(replace(SAMPLE, sample_id=other))
    boxed = Annotation(boxes_xyxy=np.ones((1, 4), np.float32), category_ids=np.ones(1, np.int64))
    assert as_text(SAMPLE) == before
    assert as_text(replace(SAMPLE, annotation=boxed, image_rgb=SAMPLE.image_rgb + 9)) == before
    for field in ("seed", "epoch", "sample_id"):
        assert as_text(replace(SAMPLE, **{field: 11})) != before


def test_draws_cover_the_ranges_of_the_original():
    drawn = [draw(replace(SAMPLE, sample_id=i)) for i in range(500)]
    sides = {round(d.side_px / 640, 6) for d in drawn}
    assert sides == {0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3}
    xs = [639 - d.center_xy[0] if d.flipped else d.center_xy[0] for d in drawn]
    assert 128 <= min(xs) < 140
    assert 500 < max(xs) < 640 - 128
    assert 0.4 < np.mean([d.flipped for d in drawn]) < 0.6
    factors = [factor for d in drawn for _, factor in d.colours]
    assert 0.6 <= min(factors) < 0.61
    assert 1.39 < max(factors) <= 1.4
    assert len({tuple(name for name, _ in d.colours) for d in drawn}) == 6
    assert np.std([d.lighting for d in drawn]) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("size_px", [1, 2, 3, 200, 256, 257])
def test_small_images_still_have_room_for_a_centre(size_px):
    image = np.zeros((size_px, size_px, 3), np.uint8)
    for sample_id in range(20):
        x, y = draw(replace(SAMPLE, image_rgb=image, sample_id=sample_id)).center_xy
        assert 0 <= x < size_px
        assert 0 <= y < size_px


@given(
    x=st.integers(0, 2000),
    y=st.integers(0, 2000),
    side=st.floats(8, 3000, width=32),
    size=st.sampled_from([8, 64, 128, 256, 512]),
)
def test_the_affine_equals_opencvs_of_the_three_points_of_the_original(x, y, side, size):
    # Centre, a point half a side above it, and the corner beside that one.
    source = np.float32([(x, y), (x, y - side / 2), (x - side / 2, y - side / 2)])
    target = np.float32([(size / 2, size / 2), (size / 2, 0), (0, 0)])
    draws = Draws(center_xy=(x, y), side_px=side, flipped=False, colours=(), lighting=np.zeros(3))
    # OpenCV gets the points in float32, 2000 px to 1e-4, which a zoom of 64 makes 1e-2.
    difference = affine(draws, size) - cv2.getAffineTransform(source, target)
    assert np.abs(difference @ [x, y, 1]).max() < 1e-3
    assert np.abs(difference[:, :2]).max() * side < 2e-2


def test_the_configuration_names_80_classes_and_keeps_colours_in_rgb():
    constants = config()
    assert len(constants.category_ids) == len(constants.class_of) == CLASSES
    assert constants.class_of[90] == 79
    # Red is the brightest channel of COCO's average pixel, and varies least.
    assert constants.mean_rgb.argmax() == 0
    vectors = constants.eigenvectors_rgb
    assert np.allclose(vectors.T @ vectors, np.eye(3), atol=1e-5)
