"""The beginning of small training scripts: what follows iterates over `loader()`."""

TRAINING = """
import os, random, signal, sys, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.ones(8), i % 3

model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)

def step(batch):
    loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def loader(batch_size=4, **options):
    return DataLoader(Slow(), batch_size, **options)

def few(**options):
    return DataLoader(torch.utils.data.Subset(Slow(), range(8)), batch_size=4, **options)
"""
