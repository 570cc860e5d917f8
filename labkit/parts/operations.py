"""Operations: single steps of preprocessing an image, in several libraries or several ways.

    photograph -> cropped, scaled, compressed again -> each library's own form
    OPERATIONS: (operation, library or way) -> its input, and the function that is timed

All libraries do the same work: Pillow's affine transform uses the linear filter that OpenCV uses,
Pillow's own resize is a separate operation, and views are copied.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

# From the usual 640 to the usual 256.  Not one half: there OpenCV takes another, faster way.
RESIZE_SCALE = 0.4
ANGLE_DEGREES = 15
# ImageNet's, RGB; shaped for planes.
MEAN = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
STD = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]

_library = cache(importlib.import_module)  # an import statement in a timed function would be timed


class Picture:
    """One photograph of one size, in every form that an operation takes.

    Args:
        jpeg: the file's bytes.
    """

    def __init__(self, jpeg: bytes) -> None:
        self.jpeg = jpeg

    @cached_property
    def pixels(self) -> np.ndarray:
        """(H, W, 3) uint8 RGB, contiguous: an image in OpenCV and NumPy."""
        cv2 = _library("cv2")
        bgr = cv2.imdecode(np.frombuffer(self.jpeg, np.uint8), cv2.IMREAD_COLOR)
        return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)

    @cached_property
    def image(self) -> Image:
        """The same pixels as a Pillow image."""
        return _library("PIL.Image").fromarray(self.pixels)

    @cached_property
    def planes(self) -> np.ndarray:
        """(3, H, W) float32 in 0..1."""
        return to_tensor_numpy(self.pixels)

    @cached_property
    def tensor(self) -> Tensor:
        """The same planes as a tensor."""
        return _library("torch").from_numpy(self.planes)


@dataclass(frozen=True)
class Operation:
    """The input of one library or way, and the function that is timed."""

    prepare: Callable[..., object]
    """Takes a picture, labels or a text, returns the library's own form; not timed."""
    run: Callable[..., object]
    """Timed; returns an array, or what NumPy makes one of."""


def resize_pillow(image: Image) -> Image:
    """Shrink with the linear filter over four pixels, as OpenCV does."""
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
    """Shrink with the function behind torchvision's resize; returns (H, W, 3) again."""
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
    """Shrink with Pillow's default filter, which averages all pixels under the output pixel."""
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


@dataclass(frozen=True)
class Labels:
    """The labels of one image's boxes, and what they are looked up in."""

    names: Sequence[str]
    numbers: Mapping[str, int]
    """Name -> its place in `names`."""
    wanted: Sequence[str]
    """A name per box."""


def look_up(given: tuple[Callable[[str], int], Sequence[str]]) -> list[int]:
    """Return the number of each label."""
    find, wanted = given
    return [find(label) for label in wanted]


@cache
def make_configuration(kilobytes: int) -> str:
    """Return a JSON object of so many thousand bytes, a number for each name."""
    entries = kilobytes * 1000 // 20  # of 20 bytes each
    return json.dumps({f"value {i:05}": 100 + i % 900 for i in range(entries)})


values = itemgetter("value 00000", "value 00099", "value 00499")  # what a sample needs


def parse_values(text: str) -> tuple[int, ...]:
    """Parse a configuration for the values that a sample needs."""
    return values(json.loads(text))


_pixels, _image = attrgetter("pixels"), attrgetter("image")
_planes, _tensor = attrgetter("planes"), attrgetter("tensor")

# (operation, library or way); the first of an operation is its baseline.
OPERATIONS: dict[tuple[str, str], Operation] = {
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
    ("label", "list"): Operation(lambda given: (given.names.index, given.wanted), look_up),
    ("label", "dict"): Operation(lambda given: (given.numbers.__getitem__, given.wanted), look_up),
    ("configuration", "parsed for each sample"): Operation(str, parse_values),
    ("configuration", "parsed once"): Operation(json.loads, values),
}

# What each operation does, for tables and charts.
MEANINGS: dict[str, str] = {
    "decode": "JPEG bytes in memory to pixels; opening alone decodes nothing",
    "resize": f"to {RESIZE_SCALE:g} of each side, linear filter over four pixels",
    "resize, antialiased": f"to {RESIZE_SCALE:g} of each side, averaging: Pillow's default",
    "crop": "the middle 7/8 of each side, copied",
    "flip": "left and right, copied",
    "rotate": f"by {ANGLE_DEGREES}°, linear filter, same size",
    "to-tensor": "uint8 pixels to float32 planes in 0..1",
    "normalize": "planes minus mean over standard deviation",
    "label": "those of all boxes of an image, found among so many names, each equally likely",
    "configuration": "JSON in memory; an image needs three of its values",
    "one sample": "decoded by OpenCV and preprocessed in loops, 512 px, one process",
}


def make_picture(photo_rgb: np.ndarray, width_px: int, height_px: int) -> Picture:
    """Crop the middle of a photograph to a shape, scale it and save it as a JPEG.

    Args:
        photo_rgb: (H, W, 3) uint8; a smaller one is enlarged, and is then smoother than a
            photograph of that size.
        width_px: of the picture.
        height_px: of the picture.
    """
    cv2 = _library("cv2")
    height, width = photo_rgb.shape[:2]
    scale = min(width / width_px, height / height_px)  # source pixels per output pixel
    crop_width, crop_height = round(width_px * scale), round(height_px * scale)
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    middle = photo_rgb[top : top + crop_height, left : left + crop_width]
    filter_ = cv2.INTER_AREA if scale > 1 else cv2.INTER_CUBIC
    scaled = cv2.resize(middle, (width_px, height_px), interpolation=filter_)
    bgr = cv2.cvtColor(scaled, cv2.COLOR_RGB2BGR)
    quality = [cv2.IMWRITE_JPEG_QUALITY, 93]  # COCO's photographs have about that
    return Picture(cv2.imencode(".jpg", bgr, quality)[1].tobytes())


def _size(pixels: np.ndarray) -> tuple[int, int]:
    return pixels.shape[1], pixels.shape[0]


def _resized_px(width: int, height: int) -> tuple[int, int]:
    return round(width * RESIZE_SCALE), round(height * RESIZE_SCALE)


def _crop_box(width: int, height: int) -> tuple[int, int, int, int]:
    # The middle 7/8 of each side, as the customary 224 of 256.
    left, top = round(width / 16), round(height / 16)
    return left, top, width - left, height - top


@cache
def _mean_std_torch() -> tuple[Tensor, Tensor]:
    torch = _library("torch")
    return torch.from_numpy(MEAN), torch.from_numpy(STD)
