"""How many samples a batch has, whatever it is made of."""

from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest
import torch

from labkit.diagnosis.batches import count_samples

FOUR = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("batch", "size", "samples"),
    [
        (FOUR, None, 4),
        (FOUR, 8, 4),  # the last batch of an epoch
        (np.zeros((4, 3)), None, 4),
        ([FOUR, torch.zeros(4)], None, 4),
        ((torch.tensor(0.5), FOUR), None, 4),  # a number for all beside what each sample has
        ({"image": FOUR, "label": torch.zeros(4)}, None, 4),
        (OrderedDict(label=[1, 2, 3, 4]), 8, 4),
        (MappingProxyType({"image": FOUR}), None, 4),
        ({"epoch": 1, "pixels": FOUR}, None, 4),
        ([{"image": FOUR}, {"image": FOUR}], 2, 2),  # as of detectron2
        ({"image": FOUR}, 1, 1),  # a single one: its channels are no images
        ([(FOUR, 1)] * 3, 3, 3),  # a list of samples
        (((torch.ones(3, 9), torch.ones(3, 7)), ({}, {})), 2, 2),  # zip(*samples)
        ([torch.zeros(16, 3)], 4, 4),  # no batch has more than the loader gives it
        (torch.tensor(0.5), None, 0),
        (torch.tensor(0.5), 8, 8),
        ("text", None, 0),
        (object(), 8, 8),
        ([], None, 0),
    ],
)
def test_samples_of_a_batch_are_counted(batch, size, samples):
    assert count_samples(batch, size) == samples
