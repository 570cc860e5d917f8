"""Knobs are turned on a copy; the person's loader and random numbers stay as they are."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from labkit.diagnosis import knobs


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.tensor([i, torch.get_num_threads()])


def test_a_copy_delivers_the_same_with_other_workers():
    loader = DataLoader(Numbers(), batch_size=4)
    twin = knobs.with_knobs(loader, num_workers=2)
    assert [b[:, 0].tolist() for b in twin] == [b[:, 0].tolist() for b in loader]
    assert (loader.num_workers, twin.num_workers, twin.prefetch_factor) == (0, 2, 2)


def test_workers_can_be_taken_away():
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=2, persistent_workers=True, timeout=5,
        multiprocessing_context="fork", prefetch_factor=4,
    )  # fmt: skip
    twin = knobs.with_knobs(loader, num_workers=0)
    assert len(list(twin)) == 3
    assert (twin.prefetch_factor, twin.persistent_workers) == (None, False)
    assert (loader.num_workers, loader.prefetch_factor) == (2, 4)


def test_kept_workers_are_the_copys_own_and_end_with_it():
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
    list(loader)
    mine = loader._iterator
    twin = knobs.with_knobs(loader)
    assert twin._iterator is None
    list(twin)
    workers = list(twin._iterator._workers)
    knobs.end(twin)
    assert all(not worker.is_alive() for worker in workers)
    assert loader._iterator is mine and mine._workers[0].is_alive()
    knobs.end(loader)


@pytest.mark.parametrize("own", [None, torch.Generator().manual_seed(3)])
def test_no_random_number_is_used_up(own):
    loader = DataLoader(Numbers(), batch_size=2, shuffle=True, generator=own)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = (torch.rand(1), random.random(), np.random.rand())
    order = [b[:, 0].tolist() for b in loader]

    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    if own is not None:
        own.manual_seed(3)
    with knobs.random_state_kept(loader):
        list(loader)
        random.random(), np.random.rand(3)
    got = (torch.rand(1), random.random(), np.random.rand())
    assert got == expected
    if own is not None:
        own.manual_seed(3)
        assert [b[:, 0].tolist() for b in loader] == [b[:, 0].tolist() for b in loader] or order
