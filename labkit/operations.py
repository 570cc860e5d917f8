"""Operations: which library does one step of preparing an image faster?

    photograph -> cropped, scaled, a JPEG again -> the form in which each library takes it
    OPERATIONS: (operation, library) -> what it is given, and the function that is timed

`operations_timing` compares their outputs and times them.  Main trap: naive tables time
`Image.open`, which reads a header and decodes nothing, and Pillow's averaging resize against
OpenCV's linear one.  Here decoding is finished and filters are matched: Pillow's affine
transform is OpenCV's linear filter, and its own resize has a row of its own.
Source: document [000], OpenCV vs PIL (its chart is lost); DOCUMENTS, dispute 8.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from labkit.parts.decoding import DECODERS

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

# From the usual 640 to the usual 256.  Not one half: there OpenCV takes another, faster way.
RESIZE_SCALE = 0.4
CROP_SCALE = 7 / 8  # as the customary 224 of 256
ANGLE_DEGREES = 15
# ImageNet's, RGB; shaped for planes.
MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
SIZES_PX = ((320, 240), (640, 480), (1280, 960), (1920, 1440))  # width, height of the pictures
JPEG_QUALITY = 93  # COCO's photographs have about that


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One photograph of one size, in every form that an operation may start from."""

    jpeg: bytes
    pixels: np.ndarray
    """(H, W, 3) uint8 RGB, contiguous: how OpenCV's and numpy's users hold an image."""
    image: Image
    """The same pixels as Pillow holds them, loaded."""
    planes: np.ndarray
    """(3, H, W) float32 in 0..1."""
    tensor: Tensor
    """The same planes."""


@dataclass(frozen=True)
class Operation:
    """What one library is given, and what is timed."""

    prepare: Callable[[Picture], object]
    """Takes the library's own form out of a picture; not timed."""
    run: Callable[[object], object]
    """Timed; its result is an array, a tensor or a Pillow image."""


def resize_pillow(image: Image) -> Image:
    """Shrink with the linear filter that looks at four pixels, as OpenCV's does."""
    width, height = _resized_px(*image.size)
    step_x, step_y = image.width / width, image.height / height
    pillow = _library("PIL.Image")
    return image.transform(
        (width, height),
        pillow.Transform.AFFINE,
        (step_x, 0, 0, 0, step_y, 0),
        resample=pillow.Resampling.BILINEAR,
    )


def resize_opencv(pixels: np.ndarray) -> np.ndarray:
    """Shrink with OpenCV's default filter."""
    cv2 = _library("cv2")
    return cv2.resize(pixels, _resized_px(*_size(pixels)), interpolation=cv2.INTER_LINEAR)


def resize_torch(pixels: np.ndarray, *, antialias: bool) -> np.ndarray:
    """Shrink with the function behind torchvision's resize, whose planes go back to pixels."""
    torch = _library("torch")
    width, height = _resized_px(*_size(pixels))
    planes = torch.nn.functional.interpolate(
        torch.from_numpy(pixels).permute(2, 0, 1)[None],  # (1, 3, H, W), a view
        size=(height, width),
        mode="bilinear",
        align_corners=False,
        antialias=antialias,
    )
    return planes[0].permute(1, 2, 0).contiguous()


def resize_pillow_antialiased(image: Image) -> Image:
    """Shrink with Pillow's default way, which averages everything under the output pixel."""
    resampling = _library("PIL.Image").Resampling
    return image.resize(_resized_px(*image.size), resampling.BILINEAR)


def crop_pillow(image: Image) -> Image:
    """Cut out the middle; Pillow copies at once."""
    return image.crop(_crop_box(*image.size))


def crop_numpy(pixels: np.ndarray) -> np.ndarray:
    """Cut out the middle and copy: a slice alone is a view, and no work."""
    left, top, right, bottom = _crop_box(*_size(pixels))
    return pixels[top:bottom, left:right].copy()


def flip_pillow(image: Image) -> Image:
    """Mirror left and right."""
    return image.transpose(_library("PIL.Image").Transpose.FLIP_LEFT_RIGHT)


def flip_opencv(pixels: np.ndarray) -> np.ndarray:
    """Mirror left and right."""
    return _library("cv2").flip(pixels, 1)


def flip_numpy(pixels: np.ndarray) -> np.ndarray:
    """Mirror left and right, and copy."""
    return pixels[:, ::-1].copy()


def rotate_pillow(image: Image) -> Image:
    """Rotate about the middle, linear filter, same size, black corners."""
    return image.rotate(ANGLE_DEGREES, _library("PIL.Image").Resampling.BILINEAR)


def rotate_opencv(pixels: np.ndarray) -> np.ndarray:
    """Rotate about the middle, linear filter, same size, black corners."""
    cv2 = _library("cv2")
    width, height = _size(pixels)
    # OpenCV counts from the middle of the first pixel, Pillow from its corner.
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), ANGLE_DEGREES, 1)
    return cv2.warpAffine(pixels, matrix, (width, height), flags=cv2.INTER_LINEAR)


def to_tensor_pillow(image: Image) -> Tensor:
    """Turn a Pillow image into planes in 0..1, the steps of torchvision's ToTensor."""
    # np.asarray would be read-only, which torch warns of.
    return to_tensor_torch(np.array(image))


def to_tensor_torch(pixels: np.ndarray) -> Tensor:
    """Turn pixels into planes in 0..1, the steps of torchvision's ToTensor."""
    return _library("torch").from_numpy(pixels).permute(2, 0, 1).contiguous().float().div(255)


def to_tensor_opencv(pixels: np.ndarray) -> np.ndarray:
    """Turn pixels into planes in 0..1 with OpenCV's function for its own networks."""
    return _library("cv2").dnn.blobFromImage(pixels, 1 / 255)[0]


def to_tensor_numpy(pixels: np.ndarray) -> np.ndarray:
    """Turn pixels into planes in 0..1."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32) / 255


def normalize_numpy(planes: np.ndarray) -> np.ndarray:
    """Subtract the mean and divide by the standard deviation."""
    return (planes - MEAN) / STD


def normalize_torch(planes: Tensor) -> Tensor:
    """Subtract the mean and divide by the standard deviation, the steps of torchvision."""
    mean, std = _mean_std_torch()
    return planes.clone().sub_(mean).div_(std)


_jpeg, _pixels, _image = attrgetter("jpeg"), attrgetter("pixels"), attrgetter("image")
_planes, _tensor = attrgetter("planes"), attrgetter("tensor")

# (operation, library); an operation's first library is what the others are divided by.
OPERATIONS: dict[tuple[str, str], Operation] = {
    ("decode", "pillow"): Operation(_jpeg, DECODERS["pillow"]),
    ("decode", "opencv"): Operation(_jpeg, DECODERS["opencv"]),
    ("decode", "simplejpeg"): Operation(_jpeg, DECODERS["simplejpeg"]),
    ("decode", "kornia_rs"): Operation(_jpeg, DECODERS["kornia_rs"]),
    ("decode", "torchvision"): Operation(_jpeg, DECODERS["torchvision"]),
    ("resize", "pillow"): Operation(_image, resize_pillow),
    ("resize", "opencv"): Operation(_pixels, resize_opencv),
    ("resize", "torch"): Operation(_pixels, partial(resize_torch, antialias=False)),
    ("resize, antialiased", "pillow"): Operation(_image, resize_pillow_antialiased),
    ("resize, antialiased", "torch"): Operation(_pixels, partial(resize_torch, antialias=True)),
    ("crop", "pillow"): Operation(_image, crop_pillow),
    ("crop", "numpy"): Operation(_pixels, crop_numpy),
    ("flip", "pillow"): Operation(_image, flip_pillow),
    ("flip", "opencv"): Operation(_pixels, flip_opencv),
    ("flip", "numpy"): Operation(_pixels, flip_numpy),
    ("rotate", "pillow"): Operation(_image, rotate_pillow),
    ("rotate", "opencv"): Operation(_pixels, rotate_opencv),
    ("to-tensor", "pillow"): Operation(_image, to_tensor_pillow),
    ("to-tensor", "opencv"): Operation(_pixels, to_tensor_opencv),
    ("to-tensor", "torch"): Operation(_pixels, to_tensor_torch),
    ("to-tensor", "numpy"): Operation(_pixels, to_tensor_numpy),
    ("normalize", "numpy"): Operation(_planes, normalize_numpy),
    ("normalize", "torch"): Operation(_tensor, normalize_torch),
}

# What is said about an operation wherever its name stands with room beside it.
MEANINGS: dict[str, str] = {
    "decode": "JPEG bytes in memory to pixels; opening alone decodes nothing",
    "resize": f"to {RESIZE_SCALE:g} of each side, linear filter over four pixels",
    "resize, antialiased": f"to {RESIZE_SCALE:g} of each side, averaging: Pillow's default",
    "crop": "the middle 7/8 of each side, copied",
    "flip": "left and right, copied",
    "rotate": f"by {ANGLE_DEGREES}°, linear filter, same size",
    "to-tensor": "uint8 pixels to float32 planes in 0..1",
    "normalize": "planes minus mean over standard deviation",
}


def make_picture(photo_rgb: np.ndarray, width_px: int, height_px: int) -> Picture:
    """Crop a photograph's middle to a shape, scale it, and save it as a JPEG once more.

    Args:
        photo_rgb: (H, W, 3) uint8; where it is smaller it is enlarged, and then smoother than a
            photograph of that size.
        width_px: of the picture.
        height_px: of the picture.
    """
    import cv2
    import torch
    from PIL import Image

    height, width = photo_rgb.shape[:2]
    scale = min(width / width_px, height / height_px)  # source pixels per output pixel
    crop_width, crop_height = round(width_px * scale), round(height_px * scale)
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    middle = photo_rgb[top : top + crop_height, left : left + crop_width]
    filter_ = cv2.INTER_AREA if scale > 1 else cv2.INTER_CUBIC
    scaled = cv2.resize(middle, (width_px, height_px), interpolation=filter_)
    bgr = cv2.cvtColor(scaled, cv2.COLOR_RGB2BGR)
    jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
    pixels = DECODERS["opencv"](jpeg)
    planes = to_tensor_numpy(pixels)
    return Picture(
        jpeg=jpeg,
        pixels=pixels,
        image=Image.fromarray(pixels),
        planes=planes,
        tensor=torch.from_numpy(planes),
    )


def _size(pixels: np.ndarray) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[0]


def _resized_px(width: int, height: int) -> tuple[int, int]:
    return round(width * RESIZE_SCALE), round(height * RESIZE_SCALE)


def _crop_box(width: int, height: int) -> tuple[int, int, int, int]:
    left, top = round(width * (1 - CROP_SCALE) / 2), round(height * (1 - CROP_SCALE) / 2)
    return left, top, width - left, height - top


@cache  # an import statement in a timed function would be timed with it
def _library(module: str) -> ModuleType:
    return importlib.import_module(module)


@cache
def _mean_std_torch() -> tuple[Tensor, Tensor]:
    torch = _library("torch")
    return torch.from_numpy(MEAN), torch.from_numpy(STD)
