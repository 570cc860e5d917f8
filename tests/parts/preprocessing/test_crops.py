"""Random crops: drawn as torchvision draws them, and the same for all preprocessors and decoders.

`torchvisions_crop` is torchvision's algorithm with torch's random numbers, so the distributions are
compared, not the draws.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import encode, installed, why_missing
from PIL import Image
from scipy import stats

from labkit.analysis.equal_work import difference
from labkit.analysis.thresholds import (
    AVERAGED_TOLERANCE_LEVELS,
    SCALED_DECODING_TOLERANCE_LEVELS,
)
from labkit.batches import classifier_batch
from labkit.contracts import Annotation, Sample
from labkit.parts.decoding import DECODERS
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.parts.preprocessing.crops import draw_crop
from labkit.photos.make import make_photos

CROPS = [name for name, part in PREPROCESSORS.items() if part.crop is not None]
NO_V2 = why_missing("classification_crop_v2")
DRAWS = 4000
SAME_DISTRIBUTION = 1e-3  # of a Kolmogorov-Smirnov test; the draws are fixed, so it never varies


def torchvisions_crop(width, height):
    """RandomResizedCrop.get_params with the defaults, and RandomHorizontalFlip."""
    log_ratio = torch.log(torch.tensor((3.0 / 4.0, 4.0 / 3.0)))
    flipped = torch.rand(1).item() < 0.5
    for _ in range(10):
        area = width * height * torch.empty(1).uniform_(0.08, 1.0).item()
        ratio = torch.exp(torch.empty(1).uniform_(log_ratio[0], log_ratio[1])).item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = torch.randint(0, height - h + 1, size=(1,)).item()
            left = torch.randint(0, width - w + 1, size=(1,)).item()
            return left, top, w, h, flipped
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h, flipped


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """Photographs: how far resizing filters are apart depends on what they filter."""
    folder = tmp_path_factory.mktemp("crops")
    make_photos(folder, 8, seed=1, progress=False)
    return [path.read_bytes() for path in sorted((folder / "images").iterdir())]


def make_sample(jpeg, decoder="opencv", **options):
    return Sample(
        image_rgb=DECODERS[decoder](jpeg, **options),
        annotation=Annotation(
            boxes_xyxy=np.zeros((0, 4), np.float32), category_ids=np.zeros(0, np.int64)
        ),
        sample_id=0,
        epoch=0,
        seed=0,
    )


def finish(name, samples, input_px):
    """What a step would get, as numpy arrays."""
    part = PREPROCESSORS[name]
    made = [part(sample, input_px) for sample in samples]
    batch = {key: torch.from_numpy(np.stack([one[key] for one in made])) for key in made[0]}
    if part.on_device is not None:
        batch = part.on_device(batch, input_px)
    return {key: tensor.numpy() for key, tensor in batch.items()}


# --- the draws --------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(640, 480), (300, 500), (900, 400)])
def test_crops_are_distributed_as_torchvisions(width, height):
    torch.manual_seed(0)
    ours = np.array([draw_crop((0, 0, i), width, height) for i in range(DRAWS)], float)
    theirs = np.array([torchvisions_crop(width, height) for _ in range(DRAWS)], float)
    for actual, wanted in zip(quantities(ours), quantities(theirs)):
        assert stats.ks_2samp(actual, wanted).pvalue > SAME_DISTRIBUTION
    left, top, wide, high, _ = ours.T
    assert min(left.min(), top.min(), wide.min() - 1, high.min() - 1) >= 0
    assert (left + wide).max() <= width and (top + high).max() <= height


def quantities(crops):
    left, top, wide, high, flipped = crops.T
    return wide * high, wide / high, left + wide / 2, top + high / 2, flipped


@pytest.mark.parametrize(
    ("width", "height", "middle"),
    [
        (1000, 10, (493, 0, 13, 10)),
        (10, 1000, (0, 493, 10, 13)),
        (1, 1, (0, 0, 1, 1)),
        (3000, 1, (1499, 0, 1, 1)),
    ],
)
def test_an_image_too_narrow_for_any_draw_gives_its_middle(width, height, middle):
    assert draw_crop((0, 0, 1), width, height)[:4] == middle
    assert torchvisions_crop(width, height)[:4] == middle


def test_a_crop_depends_on_seed_epoch_image_and_size_alone():
    before = draw_crop((1, 2, 3), 640, 480)
    np.random.seed(99)  # a worker's global state must not matter
    assert draw_crop((1, 2, 3), 640, 480) == before
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert draw_crop(other, 640, 480) != before


# --- the pixels -------------------------------------------------------------------------------


def test_pillow_makes_what_torchvision_makes_of_an_image(jpegs):
    # torchvision's resized_crop, hflip, to_tensor and normalize in the calls that they consist of.
    sample = make_sample(jpegs[0], "pillow", as_image=True)
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
    for sample_id in range(6):
        left, top, wide, high, flipped = draw_crop((0, 0, sample_id), *sample.image_rgb.size)
        part = sample.image_rgb.crop((left, top, left + wide, top + high))
        part = part.resize((224, 224), Image.Resampling.BILINEAR)
        if flipped:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        wanted = torch.from_numpy(np.array(part)).permute(2, 0, 1).float().div(255)
        wanted = wanted.sub(mean[:, None, None]).div(std[:, None, None]).numpy()
        drawn = replace(sample, sample_id=sample_id)
        (actual,) = finish("classification_crop_pillow", [drawn], 224)["image"]
        assert np.allclose(actual, wanted, atol=1e-5)


@pytest.mark.parametrize("input_px", [64, 224, 512])
def test_all_crop_preprocessors_do_the_same_work(jpegs, input_px):
    samples = [replace(make_sample(jpeg), sample_id=i) for i, jpeg in enumerate(jpegs)]
    specs = classifier_batch(len(samples), input_px)
    opencv, on_device, pillow = (
        finish(f"classification_crop{how}", samples, input_px)
        for how in ("", "_on_device", "_pillow")
    )
    assert difference(on_device, opencv, specs) == ""
    assert difference(pillow, opencv, specs, levels=AVERAGED_TOLERANCE_LEVELS) == ""
    # Other crops, or crops that are not flipped, are not the same work.
    for other in (
        finish("classification_crop", [replace(each, epoch=1) for each in samples], input_px),
        {**opencv, "image": opencv["image"][..., ::-1]},
    ):
        apart = difference(pillow, other, specs, levels=AVERAGED_TOLERANCE_LEVELS)
        assert apart.startswith("image must differ")


@pytest.mark.skipif(bool(NO_V2), reason=NO_V2)
@pytest.mark.parametrize("input_px", [64, 224, 512])
def test_torchvision_v2_makes_what_pillow_makes_but_for_a_level(jpegs, input_px):
    samples = [replace(make_sample(jpeg), sample_id=i) for i, jpeg in enumerate(jpegs)]
    specs = classifier_batch(len(samples), input_px)
    v2, pillow = (
        finish(f"classification_crop_{how}", samples, input_px) for how in ("v2", "pillow")
    )
    assert difference(v2, pillow, specs) == ""


@pytest.mark.parametrize("name", [name for name, part in PREPROCESSORS.items() if part.in_pillow])
def test_what_pillow_decoded_is_the_same_as_an_image_and_as_an_array(jpegs, name):
    as_array, as_image = (make_sample(jpegs[0], "pillow", as_image=how) for how in (False, True))
    actual, wanted = (finish(name, [each], 64)["image"] for each in (as_image, as_array))
    assert np.array_equal(actual, wanted)


# --- scaled decoding --------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    width=st.integers(1, 700),
    height=st.integers(1, 700),
    input_px=st.sampled_from([32, 64, 224]),
    image=st.integers(0, 1000),
)
def test_a_scaled_image_is_as_small_as_leaves_the_crop_its_pixels(width, height, input_px, image):
    part, key = PREPROCESSORS["classification_crop"], (0, 0, image)
    _, _, wide, high, _ = draw_crop(key, width, height)
    at_least_px = part.at_least_px(key, (width, height), input_px)
    shorter, taken = min(width, height), min(wide, high)
    assert taken * at_least_px / shorter >= input_px
    assert taken * (at_least_px - 1) / shorter < input_px
    jpeg = encode(Image.new("RGB", (width, height)))
    scaled = DECODERS["simplejpeg_scaled"](jpeg, at_least_px=at_least_px)
    assert min(scaled.shape[:2]) >= min(at_least_px, shorter)


@pytest.mark.parametrize("name", installed(CROPS))
def test_a_scaled_decoder_delivers_the_same_crops(jpegs, name):
    input_px, part, samples, whole = 64, PREPROCESSORS[name], [], []
    for i, jpeg in enumerate(jpegs):
        full = replace(make_sample(jpeg, "simplejpeg"), sample_id=i)
        size_px = full.image_rgb.shape[1::-1]
        at_least_px = part.at_least_px((0, 0, i), size_px, input_px)
        image_rgb = DECODERS["simplejpeg_scaled"](jpeg, at_least_px=at_least_px)
        samples.append(replace(full, image_rgb=image_rgb, size_px=size_px))
        whole.append(full)
    assert any(s.image_rgb.size < w.image_rgb.size for s, w in zip(samples, whole))
    specs = classifier_batch(len(samples), input_px)
    actual, wanted = (finish(name, each, input_px) for each in (samples, whole))
    assert difference(actual, wanted, specs, levels=SCALED_DECODING_TOLERANCE_LEVELS) == ""
