"""Batches of any form are taken apart and put together again."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import torch

from labkit.diagnosis import batches

Pair = namedtuple("Pair", "image label")


@dataclass
class Boxes:
    xyxy: torch.Tensor
    name: str


def nested():
    return {
        "images": torch.zeros(4, 3, 8, 8, dtype=torch.uint8),
        "pair": Pair(torch.ones(4, 2), [1, 2]),
        "boxes": [Boxes(torch.arange(8.0).reshape(2, 4), "a"), ("b", np.zeros(5, np.float64))],
    }


def test_arrays_are_found_in_order_whatever_they_stand_in():
    assert [tuple(each.shape) for each in batches.arrays(nested())] == [
        (4, 3, 8, 8),
        (4, 2),
        (2, 4),
        (5,),
    ]


def test_bytes_are_those_of_all_arrays():
    assert batches.count_bytes(nested()) == 4 * 3 * 64 + 4 * 2 * 4 + 8 * 4 + 5 * 8


def test_images_are_counted_by_the_first_array_that_has_a_length():
    assert batches.count_images((torch.tensor(1.0), torch.zeros(7, 2))) == 7
    assert batches.count_images("no array") == 1


def test_a_copy_has_the_same_form_and_memory_of_its_own():
    batch = nested()
    twin = batches.copied(batch)
    batch["images"].fill_(9)
    batch["boxes"][0].xyxy.fill_(9)
    batch["boxes"][1][1].fill(9)
    assert twin["images"].max() == 0
    assert twin["boxes"][0].xyxy[0, 1] == 1
    assert twin["boxes"][1][1].max() == 0
    assert isinstance(twin["pair"], Pair) and twin["pair"].label == [1, 2]
    assert twin["boxes"][0].name == "a"


def test_shapes_do_not_tell_a_short_last_batch_from_the_others():
    assert batches.shapes(torch.zeros(8, 3, 4)) == batches.shapes(torch.zeros(5, 3, 4))
    assert batches.shapes(torch.zeros(8, 3, 4)) == ("3x4 float32",)
    assert batches.shapes(torch.zeros(8)) == ("scalar float32",)
