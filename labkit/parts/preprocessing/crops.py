"""The classification sample as most training code makes it: a random crop, maybe flipped.

    (seed, epoch, image) + size -> crop, flip ─┐
    image ─────────────────────────────────────┴> crop -> resize -> flip -> 0..1 -> mean/std

The draws depend on nothing else, so all four preprocessors, and every decoder, deliver the same
crops.  Pillow averages the pixels of a crop that is larger than the output, with weights that fall
off to both sides, as torchvision does.  OpenCV's linear filter reads four pixels: of a crop up to
twice the output it leaves none out, in a fifth of the time of an average; larger ones it averages.
Source: pytorch/examples, imagenet/main.py; torchvision.transforms, RandomResizedCrop.
"""

from __future__ import annotations

import numpy as np

from labkit.contracts import Sample, open_library
from labkit.parts.preprocessing.classification import (
    MEAN_RGB,
    STD_RGB,
    as_pillow,
    finish,
    numbers,
)


def draw_crop(
    key: tuple[int, int, int], width: int, height: int
) -> tuple[int, int, int, int, bool]:
    """Draw the part of an image that a sample shows, and whether it is flipped.

    Its area is 8 to 100 % of the image's and its sides' ratio 3/4 to 4/3; where ten draws do not
    fit, it is the largest part in the middle with such a ratio.

    Args:
        key: (seed, epoch, image).
        width: of the image in pixels.
        height: likewise.

    Returns:
        Left, top, width and height of the part in pixels, and whether it is flipped from left to
        right.

    Source: RandomResizedCrop and RandomHorizontalFlip of torchvision, with their defaults.
    """
    rng = np.random.default_rng(key)
    flipped = bool(rng.random() < 0.5)
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, high = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = rng.integers(width - wide + 1), rng.integers(height - high + 1)
            return int(left), int(top), wide, high, flipped
    wide, high = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - wide) // 2, (height - high) // 2, wide, high, flipped


def classification_crop(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make one sample of a random crop, resized by OpenCV.

    Args:
        sample: a decoded image with its boxes.
        input_px: side of the square output.

    Returns:
        The entries of `batches.classifier_batch` without the batch axis; `label` is the
        class of the image's largest box, also where the crop does not show it.

    Raises:
        ValueError: the largest box's category id is not one of COCO's.
    """
    return finish(sample, _crop_and_resize(sample, input_px))


def classification_crop_on_device(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make the same sample for `normalize_on_device`: a quarter of the bytes.

    Arguments and errors as `classification_crop`.

    Returns:
        pixels: (input_px, input_px, 3) uint8 RGB; label and sample_id as in `classification_crop`.
    """
    return {"pixels": _crop_and_resize(sample, input_px), **numbers(sample)}


def classification_crop_pillow(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make the same sample in Pillow, pixel for pixel as torchvision does.

    Arguments, result and errors as `classification_crop`.

    Source: torchvision.transforms.functional, resized_crop and hflip of a Pillow image.
    """
    from PIL import Image

    image = as_pillow(sample.image_rgb)
    box, flipped = _crop_of(sample, *image.size)
    image = image.crop(box).resize((input_px, input_px), Image.Resampling.BILINEAR)
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return finish(sample, np.asarray(image))


def classification_crop_v2(sample: Sample, input_px: int) -> dict[str, np.ndarray]:
    """Make the same sample by torchvision.transforms.v2 on uint8 tensors, which averages as Pillow.

    Arguments and result as `classification_crop`.

    Raises:
        ValueError: the largest box's category id is not one of COCO's.
        Skip: torchvision is missing or broken.

    Source: torchvision, "Transforms v2", "Performance considerations".
    """
    torch = open_library("torch", "torch")
    of_torch = f"torchvision torch=={torch.__version__.split('+')[0]}"  # so that pip keeps torch
    v2 = open_library("torchvision.transforms.v2.functional", of_torch)
    height, width = sample.image_rgb.shape[:2]
    (left, top, right, bottom), flipped = _crop_of(sample, width, height)
    image = torch.from_numpy(sample.image_rgb).permute(2, 0, 1)
    where, size = (top, left, bottom - top, right - left), [input_px, input_px]
    image = v2.resized_crop(image, *where, size, antialias=True)
    if flipped:
        image = v2.horizontal_flip(image)
    image = v2.to_dtype(image, torch.float32, scale=True)
    image = v2.normalize(image, MEAN_RGB.tolist(), STD_RGB.tolist())
    return {"image": image.contiguous().numpy(), **numbers(sample)}


def _crop_and_resize(sample: Sample, input_px: int) -> np.ndarray:
    """Return (input_px, input_px, 3) uint8, C-contiguous."""
    import cv2

    height, width = sample.image_rgb.shape[:2]
    (left, top, right, bottom), flipped = _crop_of(sample, width, height)
    part = sample.image_rgb[top:bottom, left:right]
    how = cv2.INTER_AREA if max(part.shape[:2]) > 2 * input_px else cv2.INTER_LINEAR
    resized = cv2.resize(part, (input_px, input_px), interpolation=how)
    return cv2.flip(resized, 1) if flipped else resized


def _crop_of(sample: Sample, width: int, height: int) -> tuple[tuple[int, int, int, int], bool]:
    """Return a sample's crop in pixels of its image: left, top, right, bottom, and the flip.

    Args:
        sample: a scaled decoder may have made its image smaller than it is stored.
        width: of its image in pixels.
        height: likewise.
    """
    stored_width, stored_height = sample.size_px or (width, height)
    key = sample.seed, sample.epoch, sample.sample_id
    left, top, wide, high, flipped = draw_crop(key, stored_width, stored_height)
    zoom_x, zoom_y = width / stored_width, height / stored_height
    edges = left * zoom_x, top * zoom_y, (left + wide) * zoom_x, (top + high) * zoom_y
    left, top, right, bottom = (int(edge + 0.5) for edge in edges)
    return (left, top, right, bottom), flipped
