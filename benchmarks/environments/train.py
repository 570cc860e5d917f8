"""A small training, as a user would write it, which `labkit watch` and `labkit diagnose` run.

Run in a folder that holds `photos`.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

SIDE_PX = 96


class Photos(Dataset):
    """Photographs as tensors; the label is the number of the file."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            small = image.convert("RGB").resize((SIDE_PX, SIDE_PX))
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255, index % 10


def main():
    """Train for two epochs."""
    # At most 160 of them: the environment with little memory has many copies.
    photos = torch.utils.data.Subset(Photos("photos"), range(160))
    loader = DataLoader(photos, batch_size=8, num_workers=2, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIDE_PX**2, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _epoch in range(2):
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
