"""What the random draws depend on, and where the affine puts pixels."""

from dataclasses import replace

import numpy as np

from labkit.contracts import Annotation, Sample
from labkit.parts.preprocessing.draws import draw

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
