"""Whether all preprocessors do the same work, against `loops`, the original's way.

Samples are generated, so that flips, crops beside the image, boxes outside of them,
one-pixel boxes, no boxes and more than 128 boxes all come up.  Tolerances are the
contracts'.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import installed
from PIL import Image

from labkit.analysis.equal_work import difference
from labkit.batches import (
    BATCHES,
    CLASSES,
    MAX_BOXES,
    check_batch,
    classifier_batch,
    detector_batch,
)
from labkit.contracts import Annotation, Sample
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.parts.preprocessing.draws import CLASS_OF, draw
from labkit.pipeline import Source

DETECTORS = [name for name, entry in PREPROCESSORS.items() if entry.batch == "detector"]
CLASSIFIERS = [name for name, entry in PREPROCESSORS.items() if entry.batch == "classifier"]
CATEGORIES = list(CLASS_OF)


@functools.cache
def photo(height: int, width: int) -> np.ndarray:
    """Smooth colours with noise: flat noise would hide a wrong filter, flat colour a shift."""
    rng = np.random.default_rng((height, width))
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 37), np.cos(y / 23), np.sin((x + y) / 51)], axis=2)
    return np.clip(127 + 90 * waves + rng.normal(0, 12, waves.shape), 0, 255).astype(np.uint8)


def make_sample(boxes=(), categories=(), *, height=96, width=128, sample_id=0, image=None):
    return Sample(
        image_rgb=photo(height, width) if image is None else image,
        annotation=Annotation(
            boxes_xyxy=np.array(boxes, np.float32).reshape(-1, 4),
            category_ids=np.array(categories, np.int64),
        ),
        sample_id=sample_id,
        epoch=0,
        seed=0,
    )


def random_sample(boxes: int, *, height=480, width=640, sample_id=0) -> Sample:
    rng = np.random.default_rng((boxes, sample_id))
    corners = np.sort(rng.uniform(0, [[width], [height]], (boxes, 2, 2)), axis=2)
    return make_sample(
        corners.transpose(0, 2, 1).reshape(-1, 4),
        rng.choice(CATEGORIES, boxes),
        height=height,
        width=width,
        sample_id=sample_id,
    )


def arrive(name: str, samples: list[Sample], input_px: int, device="cpu") -> dict:
    """What a device gets: tensors."""
    preprocess = PREPROCESSORS[name]
    batch = Source.collate(None, [preprocess(sample, input_px) for sample in samples])
    return {key: tensor.to(device) for key, tensor in batch.items()}


def finish(name: str, samples: list[Sample], input_px: int) -> dict[str, np.ndarray]:
    """What a step would get, as numpy arrays."""
    batch, on_device = arrive(name, samples, input_px), PREPROCESSORS[name].on_device
    if on_device is not None:
        batch = on_device(batch, input_px)
    return {key: tensor.numpy() for key, tensor in batch.items()}


def assert_same_work(samples: list[Sample], input_px: int) -> None:
    specs = detector_batch(len(samples), input_px)
    reference = finish("loops", samples, input_px)
    check_batch(reference, specs)
    for name in DETECTORS[1:]:
        batch = finish(name, samples, input_px)
        check_batch(batch, specs)
        assert difference(batch, reference, specs) == "", name
        assert np.array_equal(batch["cell"], reference["cell"]), name
        assert np.array_equal(batch["mask"], reference["mask"]), name


@st.composite
def generated_samples(drawn) -> Sample:
    height, width = drawn(st.sampled_from([(1, 1), (3, 40), (48, 64), (97, 61), (300, 222)]))
    # Half pixels included: COCO's boxes are not whole numbers; and some boxes leave the image.
    x = st.integers(-8, 2 * width + 8).map(lambda halves: halves / 2)
    y = st.integers(-8, 2 * height + 8).map(lambda halves: halves / 2)
    corners = drawn(st.lists(st.tuples(x, y, x, y), max_size=8))
    boxes = [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]
    categories = [drawn(st.sampled_from(CATEGORIES)) for _ in boxes]
    sample = make_sample(boxes, categories, height=height, width=width)
    return replace(
        sample,
        sample_id=drawn(st.integers(0, 2**40)),
        epoch=drawn(st.integers(0, 300)),
        seed=drawn(st.integers(0, 2**31)),
    )


def test_draws_depend_on_seed_epoch_and_sample_id_alone():
    sample = make_sample()
    before = repr(draw(sample))
    np.random.seed(99)  # a worker's global state must not matter
    for other in range(5):
        draw(replace(sample, sample_id=other))
    assert repr(draw(make_sample([(0, 0, 9, 9)], [1], image=sample.image_rgb + 9))) == before
    for field in ("seed", "epoch", "sample_id"):
        assert repr(draw(replace(sample, **{field: 11}))) != before


@settings(max_examples=100)
@given(samples=st.lists(generated_samples(), min_size=1, max_size=3))
def test_all_detector_preprocessors_do_the_same_work(samples):
    assert_same_work(samples, input_px=64)


def test_they_agree_at_512_px_with_flips_and_every_kind_of_box():
    samples = [random_sample(boxes, sample_id=boxes) for boxes in (0, 1, 7, 30)]
    assert {draw(sample).flipped for sample in samples} == {True, False}
    assert_same_work(samples, input_px=512)
    assert_same_work(samples[:1], input_px=64)  # no box in the whole batch


def test_only_the_first_128_boxes_are_kept():
    sample = random_sample(200, height=96, width=128)
    first = replace(
        sample,
        annotation=Annotation(
            boxes_xyxy=sample.annotation.boxes_xyxy[:MAX_BOXES],
            category_ids=sample.annotation.category_ids[:MAX_BOXES],
        ),
    )
    assert_same_work([sample], input_px=128)
    for name in DETECTORS:
        batch, kept = finish(name, [sample], 128), finish(name, [first], 128)
        assert all(np.array_equal(batch[key], kept[key]) for key in batch), name


@pytest.mark.parametrize("name", DETECTORS)
def test_the_middle_of_every_box_is_exactly_one_in_the_heat_map(name):
    # The focal loss counts positives by comparing with 1.
    sample = random_sample(20)
    batch = finish(name, [sample], 256)
    kept = np.flatnonzero(batch["mask"][0])
    classes = [CATEGORIES.index(i) for i in sample.annotation.category_ids[kept]]
    planes = batch["heatmap"][0].reshape(CLASSES, -1)
    assert len(kept) > 10
    assert (planes[classes, batch["cell"][0, kept]] == 1).all()


def test_a_box_outside_the_crop_leaves_its_slot_empty():
    sample = make_sample([(-50, -50, -40, -40), (20, 20, 90, 70)], [1, 2])
    assert_same_work([sample], input_px=64)
    batch = finish("loops", [sample], 64)
    assert batch["mask"][0, :2].tolist() == [0, 1]
    assert not batch["heatmap"][0, 0].any()


@pytest.mark.parametrize("name", installed(PREPROCESSORS))
def test_a_red_image_stays_red(name):
    red = np.zeros((64, 64, 3), np.uint8)
    red[..., 0] = 255
    middle = finish(name, [make_sample(image=red)], 64)["image"][0][:, 32, 32]
    assert middle[0] > max(middle[1], middle[2]) + 1


@pytest.mark.parametrize("name", installed(PREPROCESSORS))
def test_batches_meet_their_contract_and_the_decoded_image_is_left_as_it_was(name):
    samples = [random_sample(boxes, sample_id=40 + boxes) for boxes in (0, 3, 5, 6)]
    assert {draw(sample).flipped for sample in samples} == {True, False}
    before = [(s.image_rgb.copy(), s.annotation.boxes_xyxy.copy()) for s in samples]
    batch = finish(name, samples, 96)
    check_batch(batch, BATCHES[PREPROCESSORS[name].batch](4, 96))
    assert batch["sample_id"].tolist() == [40, 43, 45, 46]
    for sample, (image, boxes) in zip(samples, before):
        assert np.array_equal(sample.image_rgb, image)
        assert np.array_equal(sample.annotation.boxes_xyxy, boxes)


@pytest.mark.parametrize("name", installed(PREPROCESSORS))
def test_an_unknown_category_is_refused_by_number(name):
    sample = make_sample([(10, 10, 80, 80)], [12])  # 12 is one of COCO's gaps
    with pytest.raises(ValueError, match=r"category_ids must be COCO's .* got 12; renumber"):
        PREPROCESSORS[name](sample, 64)


@pytest.mark.parametrize("name", installed(CLASSIFIERS))
def test_the_label_is_the_class_of_the_largest_box(name):
    boxes = [(0, 0, 10, 10), (0, 0, 50, 60), (0, 0, 20, 20)]
    assert finish(name, [make_sample(boxes, [1, 90, 3])], 64)["label"] == [79]
    assert finish(name, [make_sample()], 64)["label"] == [0]


@settings(max_examples=100)
@given(
    height=st.integers(1, 300), width=st.integers(1, 300), input_px=st.sampled_from([32, 64, 224])
)
def test_all_classification_preprocessors_do_the_same_work(height, width, input_px):
    # Shrinking, enlarging, odd sizes and single pixels: the borders are where conventions differ.
    sample = make_sample([(0, 0, 20, 20)], [7], height=height, width=width)
    whole = finish("classification", [sample], input_px)
    for name in ("classification_on_device", "classification_pillow"):
        batch = finish(name, [sample], input_px)
        assert difference(batch, whole, classifier_batch(1, input_px)) == "", name


def test_an_averaging_resize_is_not_the_same_work_as_a_linear_one():
    # What Pillow's users write looks at every pixel when it shrinks; at 224 px it is not resized
    # again, only normalized.
    sample = random_sample(1)
    averaged = Image.fromarray(sample.image_rgb).resize((224, 224), Image.Resampling.BILINEAR)
    batch = finish("classification", [replace(sample, image_rgb=np.asarray(averaged))], 224)
    reference = finish("classification", [sample], 224)
    assert difference(batch, reference, classifier_batch(1, 224)).startswith("image must differ")


@pytest.mark.needs_cuda
def test_finishing_on_cuda_equals_the_cpu_and_never_waits_for_the_device():
    samples = [random_sample(boxes, sample_id=boxes) for boxes in (0, 7, 130)]
    on_cuda = arrive("on_device", samples, 256, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        finished = PREPROCESSORS["on_device"].on_device(on_cuda, 256)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = {key: tensor.cpu().numpy() for key, tensor in finished.items()}
    specs = detector_batch(3, 256)
    check_batch(found, specs)
    assert difference(found, finish("on_device", samples, 256), specs) == ""
