"""Names and boxes of a dataset's images: in a few arrays, as COCO's JSON, or synthesized."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from labkit.contracts import Annotation

# COCO's object classes; the other ids up to 90 are unused.
CATEGORIES: dict[int, str] = {
    1: "person", 2: "bicycle", 3: "car", 4: "motorcycle", 5: "airplane", 6: "bus", 7: "train",
    8: "truck", 9: "boat", 10: "traffic light", 11: "fire hydrant", 13: "stop sign",
    14: "parking meter", 15: "bench", 16: "bird", 17: "cat", 18: "dog", 19: "horse", 20: "sheep",
    21: "cow", 22: "elephant", 23: "bear", 24: "zebra", 25: "giraffe", 27: "backpack",
    28: "umbrella", 31: "handbag", 32: "tie", 33: "suitcase", 34: "frisbee", 35: "skis",
    36: "snowboard", 37: "sports ball", 38: "kite", 39: "baseball bat", 40: "baseball glove",
    41: "skateboard", 42: "surfboard", 43: "tennis racket", 44: "bottle", 46: "wine glass",
    47: "cup", 48: "fork", 49: "knife", 50: "spoon", 51: "bowl", 52: "banana", 53: "apple",
    54: "sandwich", 55: "orange", 56: "broccoli", 57: "carrot", 58: "hot dog", 59: "pizza",
    60: "donut", 61: "cake", 62: "chair", 63: "couch", 64: "potted plant", 65: "bed",
    67: "dining table", 70: "toilet", 72: "tv", 73: "laptop", 74: "mouse", 75: "remote",
    76: "keyboard", 77: "cell phone", 78: "microwave", 79: "oven", 80: "toaster", 81: "sink",
    82: "refrigerator", 84: "book", 85: "clock", 86: "vase", 87: "scissors", 88: "teddy bear",
    89: "hair drier", 90: "toothbrush",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Listing:
    """Names and boxes of N images.

    Arrays, because a forked worker copies the memory page of every Python object that it reads.
    """

    name_bytes: np.ndarray
    """uint8, the images' paths in their dataset, encoded for the file system, joined."""
    name_ends: np.ndarray
    """(N + 1,) int64, where each name ends; the first entry is 0."""
    box_ranges: np.ndarray
    """(N, 2) int64, which rows of the next two belong to an image."""
    boxes_xyxy: np.ndarray
    """(M, 4) float32 boxes of all images."""
    category_ids: np.ndarray
    """(M,) int64."""

    def __len__(self) -> int:
        return len(self.name_ends) - 1

    def name(self, i: int) -> str:
        """Return an image's path in its dataset, with forward slashes."""
        return os.fsdecode(self.name_bytes[self.name_ends[i] : self.name_ends[i + 1]].tobytes())

    def annotation(self, i: int) -> Annotation:
        """Return copies of an image's boxes, which a part may change in place."""
        first, end = self.box_ranges[i]
        return Annotation(
            boxes_xyxy=self.boxes_xyxy[first:end].copy(),
            category_ids=self.category_ids[first:end].copy(),
            size_px=self.original_size_px(i),
        )

    def original_size_px(self, i: int) -> tuple[int, int] | None:
        """Return width and height of an image's original; None where it is stored as it was."""
        return None

    @classmethod
    def of_names(cls, names: Iterable[str], **boxes: np.ndarray) -> Self:
        """Make a listing from the names; without `boxes` no image has any."""
        encoded = [os.fsencode(name) for name in names]
        none = {
            "box_ranges": np.zeros((len(encoded), 2), np.int64),
            "boxes_xyxy": np.empty((0, 4), np.float32),
            "category_ids": np.empty(0, np.int64),
        }
        return cls(
            name_bytes=np.frombuffer(b"".join(encoded), np.uint8),
            name_ends=np.cumsum([0, *map(len, encoded)]),
            **(boxes or none),
        )


def read_coco(
    file: Path, on_disk: Collection[str] | None = None
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Read image names and boxes from COCO's JSON, in the order of the image ids.

    Crowd boxes and boxes without area are left out; an image may be left without boxes.

    Args:
        file: a JSON in COCO's instances format.
        on_disk: the file names to keep; None keeps all.

    Returns:
        The N file names; and `boxes_xyxy` (M, 4) float32, `category_ids` (M,) int64 and
        `box_ranges` (N, 2) int64, the first and the end row that belong to each image.

    Raises:
        ValueError: broken JSON, or not in this format.
    """
    try:
        # train2017 has 860,000 boxes in 450 MB, most of it polygons, which are cut out first.
        polygons = rb'"segmentation":\s*\[[\[\]0-9eE+\-.,\s]*\]'
        coco = json.loads(re.sub(polygons, b'"segmentation":0', file.read_bytes()))
        images = sorted((image["id"], image["file_name"]) for image in coco["images"])
        images = [image for image in images if on_disk is None or image[1] in on_disk]
        rows = [
            (row["image_id"], row["bbox"], row["category_id"])
            for row in coco["annotations"]
            if not row.get("iscrowd") and row["bbox"][2] > 0 and row["bbox"][3] > 0
        ]
        # Reshaped, since a list in place of a number makes an array of more dimensions.
        ids = np.array([number for number, _ in images], np.int64).reshape(len(images))
        owners = np.array([owner for owner, _, _ in rows], np.int64).reshape(len(rows))
        boxes_xywh = np.array([box for _, box, _ in rows], np.float64).reshape(len(rows), 4)
        category_ids = np.array([category for *_, category in rows], np.int64).reshape(len(rows))
        # No JPEG is as wide; nor is what is no number below it.
        if not (np.abs(boxes_xywh) < 1_000_000).all():
            raise ValueError("bbox must hold numbers of pixels below 1,000,000")
    except Exception as error:  # other programs' JSON can be wrong in any way
        raise ValueError(
            f"annotations must be COCO JSON with images and annotations, got {file} "
            f"({type(error).__name__}: {error}); write or download it again"
        ) from error
    order = np.argsort(owners, kind="stable")
    owners, boxes_xywh = owners[order], boxes_xywh[order]
    boxes_xywh[:, 2:] += boxes_xywh[:, :2]
    return [name for _, name in images], {
        "box_ranges": np.searchsorted(owners, np.stack([ids, ids + 1], axis=1)),
        "boxes_xyxy": boxes_xywh.astype(np.float32),
        "category_ids": category_ids[order],
    }


def coco_json(images: Iterable[tuple]) -> str:
    """Return boxes as COCO's instances JSON; image and annotation ids count from 1.

    Args:
        images: (file name, width, height, boxes, ...) of each image.
    """
    listed: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for image_id, (name, width_px, height_px, annotation, *_) in enumerate(images, start=1):
        listed.append({"id": image_id, "file_name": name, "width": width_px, "height": height_px})
        for (left, top, right, bottom), category_id in zip(
            annotation.boxes_xyxy.tolist(), annotation.category_ids.tolist()
        ):
            width, height = right - left, bottom - top
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": image_id,
                    "category_id": category_id,
                    "bbox": [left, top, width, height],
                    "area": width * height,
                    "iscrowd": 0,
                }
            )
    categories = [{"id": number, "name": name} for number, name in CATEGORIES.items()]
    return json.dumps({"images": listed, "annotations": rows, "categories": categories})


def synthesize_boxes(name: str, width_px: int, height_px: int) -> Annotation:
    """Return one to seven boxes that depend only on the image's name and size.

    They lie within the square of the shorter side.
    """
    digest = hashlib.blake2b(os.fsencode(name)).digest()  # 64 bytes: a count and seven boxes
    drawn = np.frombuffer(digest[1:], dtype=[("xywh", "<u2", 4), ("category", "u1")])
    drawn = drawn[: 1 + digest[0] % len(drawn)]
    share = drawn["xywh"] / 65535  # (N, 4) in 0 to 1
    wh = 0.05 + 0.75 * share[:, 2:] ** 2  # small boxes are more frequent, as in COCO
    xy = share[:, :2] * (1 - wh)
    ids = np.array(list(CATEGORIES))
    return Annotation(
        boxes_xyxy=(np.hstack([xy, xy + wh]) * min(width_px, height_px)).astype(np.float32),
        category_ids=ids[drawn["category"] % len(ids)],
    )
