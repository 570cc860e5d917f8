"""Train a classifier on a folder of JPEGs: OpenCV in the worker processes of torch's DataLoader.

The class of an image is the folder that it lies in.  Run: python image_folder.py
"""

import os
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

# --- settings ---
FOLDER = Path("data/photos")
INPUT_PX = 224  # side of the square input
BATCH_SIZE = 8
EPOCHS = 2
SEED = 0  # of the order and of all that is drawn at random
IMAGES = None  # in an epoch; None: all
RANDOM_SUBSET = True  # the images of an epoch are drawn at random, and not the first ones
SHUFFLE = True  # in another order in each epoch
UNREADABLE = ()  # numbers of images to leave out
NUM_WORKERS = 2
PREFETCH_FACTOR = 2  # batches that each worker loads ahead
PERSISTENT_WORKERS = False
START_METHOD = None  # of the workers; None: the platform's
PIN_MEMORY = torch.cuda.is_available()
OPENCV_THREADS = 0  # in each process
MEAN = np.float32([0.485, 0.456, 0.406])  # of ImageNet's pixels, scaled to 0..1
STD = np.float32([0.229, 0.224, 0.225])
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --- images: class folders ---
def list_images():
    """List the images' names and labels: the class is the folder that an image lies in."""
    walked = os.walk(FOLDER, followlinks=True)
    paths = (Path(place, file) for place, _, files in walked for file in files)
    names = (path.relative_to(FOLDER).as_posix() for path in paths)
    names = sorted(name for name in names if name.lower().endswith((".jpg", ".jpeg")))
    names = [name for name in names if "/." not in f"/{name}"]  # hidden files
    folders = [name.rpartition("/")[0] for name in names]
    labels = {folder: label for label, folder in enumerate(sorted(set(folders)))}
    return names, [labels[folder] for folder in folders]


# --- read: files ---
def read(name):
    """Read a JPEG file."""
    return (FOLDER / name).read_bytes()


# --- decode: opencv ---
def decode(jpeg):
    """Decode a JPEG to (H, W, 3) uint8 RGB."""
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags)


# --- pixels: whole image ---
cv2.setNumThreads(OPENCV_THREADS)


def make_pixels(content, key):
    """Decode an image and resize all of it: (INPUT_PX, INPUT_PX, 3) uint8."""
    return cv2.resize(decode(content), (INPUT_PX, INPUT_PX))


# --- dataset: normalized by the workers ---
SCALE, SHIFT = 1 / (255 * STD), -MEAN / STD


class Images(Dataset):
    """Samples by (epoch, number of the image)."""

    collate = None  # torch's own

    def __init__(self):
        self.names, self.labels = list_images()

    def __len__(self):
        return len(self.names)

    def __getitem__(self, key):
        epoch, i = key
        pixels = make_pixels(read(self.names[i]), (SEED, epoch, i))
        return {"image": normalize(pixels), "label": self.labels[i]}


def normalize(pixels):
    """Turn (S, S, 3) uint8 into (3, S, S) float32, plane by plane."""
    image = np.empty((3, INPUT_PX, INPUT_PX), np.float32)
    for channel in range(3):
        np.multiply(pixels[:, :, channel], SCALE[channel], out=image[channel])
        image[channel] += SHIFT[channel]
    return image


def finish(batch):
    """Leave a batch as it is: the workers have finished it."""
    return batch


# --- order: by seed and epoch ---
class Order:
    """The keys (epoch, number of the image) of an epoch, drawn from SEED and the epoch alone."""

    def __init__(self, count):
        drawn = np.random.default_rng(SEED).permutation(count) if RANDOM_SUBSET else range(count)
        images = [int(i) for i in drawn if i not in UNREADABLE][:IMAGES]
        self.images = images[: len(images) // BATCH_SIZE * BATCH_SIZE]
        if not self.images:
            raise ValueError(f"BATCH_SIZE must be at most {len(images)} images, got {BATCH_SIZE}")
        self.epoch = 0

    def __len__(self):
        return len(self.images)

    def __iter__(self):
        images = np.random.default_rng((SEED, self.epoch)).permutation(self.images).tolist()
        return ((self.epoch, i) for i in (images if SHUFFLE else sorted(self.images)))


# --- loader: worker processes ---
def make_loader(images, order):
    """Return a loader whose worker processes make the samples."""
    return DataLoader(
        images,
        BATCH_SIZE,
        sampler=order,
        drop_last=True,
        collate_fn=images.collate,
        num_workers=NUM_WORKERS,
        # Without workers, torch refuses what is for workers.
        prefetch_factor=PREFETCH_FACTOR if NUM_WORKERS else None,
        persistent_workers=PERSISTENT_WORKERS and NUM_WORKERS > 0,
        multiprocessing_context=START_METHOD if NUM_WORKERS else None,
        pin_memory=PIN_MEMORY,
    )


# --- batches: copied when they are asked for ---
def put(batch):
    """Start copying a batch to the device; from pinned memory the host does not wait."""
    return {name: tensor.to(DEVICE, non_blocking=True) for name, tensor in batch.items()}


def batches(loader):
    """Deliver an epoch's batches on the device."""
    for batch in loader:
        yield finish(put(batch))


# --- model: classifier ---
def make_model(images):
    """Return the model."""
    return torch.nn.Sequential(  # your model
        torch.nn.Conv2d(3, 16, kernel_size=7, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, max(images.labels) + 1),
    )


def loss_of(output, batch):
    """Return the loss of a batch."""
    return torch.nn.functional.cross_entropy(output, batch["label"])  # your loss


# --- training: plain ---
def train():
    """Train the model."""
    images = Images()
    order = Order(len(images))
    loader = make_loader(images, order)
    model = make_model(images).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # your optimizer
    for epoch in range(EPOCHS):
        order.epoch, started_s = epoch, time.perf_counter()
        for batch in batches(loader):
            loss = loss_of(model(batch["image"]), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        last = loss.item()  # waits for the device
        speed = len(order) / (time.perf_counter() - started_s)
        print(f"epoch {epoch}: loss {last:.3f}, {speed:.1f} images/s")


if __name__ == "__main__":
    train()
