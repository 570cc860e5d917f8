"""Data sets whose samples a function makes: slow ones, waiting ones, and those that break."""

import time

import torch
from torch.utils.data import Dataset, IterableDataset


class Made(Dataset):
    """Samples that a function makes of their numbers, as a method: what it calls are stages."""

    def __init__(self, make, length=64):
        self.make, self.length = make, length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.make(self, i)


class Stream(IterableDataset):
    """Samples that a function begins to make in every epoch."""

    def __init__(self, begin):
        self.begin = begin

    def __iter__(self):
        yield from self.begin()


def compute(seconds, clock=time.perf_counter):
    ends_s = clock() + seconds
    while clock() < ends_s:
        pass


def pixels(i):
    return torch.full((3, 8, 8), float(i))


def slow(cpu_s, length=64):
    return Made(lambda _, i: compute(cpu_s) or pixels(i), length)


def waiting(wait_s, length=64):
    return Made(lambda _, i: time.sleep(wait_s) or pixels(i), length)
