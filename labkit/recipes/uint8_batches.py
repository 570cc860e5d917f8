"""Train on random crops, decoded by simplejpeg at a fraction of the size and normalized on the GPU.

A batch of uint8 has a quarter of the bytes of float32, and is copied on a stream of its own while
the GPU works on the batch before.  Run: python uint8_batches.py
"""

import functools
import os
import time
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
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


# --- decode: simplejpeg, scaled ---
def decode(jpeg, at_least_px):
    """Decode a JPEG to (H, W, 3) uint8 RGB, to half a side or less where AT_LEAST_PX remain."""
    scale = {"min_height": at_least_px, "min_width": at_least_px, "min_factor": 2}
    try:
        return simplejpeg.decode_jpeg(jpeg, "RGB", **scale)
    except ValueError as error:
        if not str(error).startswith("Corrupt JPEG data"):  # a warning: most of it is there
            raise
        return simplejpeg.decode_jpeg(jpeg, "RGB", strict=False, **scale)


# --- crop ---
def draw_crop(key, width, height):
    """Draw left, top, width, height and flip, as torchvision's RandomResizedCrop does."""
    rng = np.random.default_rng(key)
    flipped = bool(rng.random() < 0.5)
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, high = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = rng.integers(width - wide + 1), rng.integers(height - high + 1)
            return int(left), int(top), wide, high, flipped
    wide, high = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - wide) // 2, (height - high) // 2, wide, high, flipped


# --- pixels: random crop, scaled ---
cv2.setNumThreads(OPENCV_THREADS)


def make_pixels(jpeg, key):
    """Decode an image and resize a random crop, maybe flipped: (INPUT_PX, INPUT_PX, 3) uint8."""
    height, width = simplejpeg.decode_jpeg_header(jpeg)[:2]
    left, top, wide, high, flipped = draw_crop(key, width, height)
    # As small as leaves the crop INPUT_PX a side.
    image = decode(jpeg, -(-min(width, height) * INPUT_PX // min(wide, high)))
    zoom_x, zoom_y = image.shape[1] / width, image.shape[0] / height
    left, right = (int(x * zoom_x + 0.5) for x in (left, left + wide))
    top, bottom = (int(y * zoom_y + 0.5) for y in (top, top + high))
    crop = image[top:bottom, left:right]
    how = cv2.INTER_AREA if max(crop.shape[:2]) > 2 * INPUT_PX else cv2.INTER_LINEAR
    pixels = cv2.resize(crop, (INPUT_PX, INPUT_PX), interpolation=how)
    return cv2.flip(pixels, 1) if flipped else pixels


# --- dataset: normalized by the device ---
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
        return {"pixels": pixels, "label": self.labels[i]}


@functools.cache
def mean_and_std():
    """Return both on the device; once, as the host waits for such a copy."""
    return torch.from_numpy(255 * np.stack([MEAN, STD])).view(2, 1, 3, 1, 1).to(DEVICE)


def finish(batch):
    """Turn (B, S, S, 3) uint8 into (B, 3, S, S) float32 on the device."""
    mean, std = mean_and_std()
    image = batch["pixels"].permute(0, 3, 1, 2).contiguous().float()
    return {"image": image.sub_(mean).div_(std), "label": batch["label"]}


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


# --- batches: copied on a side stream ---
def put(batch):
    """Start copying a batch to the device; from pinned memory the host does not wait."""
    return {name: tensor.to(DEVICE, non_blocking=True) for name, tensor in batch.items()}


def batches(loader):
    """Deliver an epoch's batches; the next one is copied while the device works on this one."""
    side = torch.cuda.Stream() if DEVICE.type == "cuda" else None
    remaining = iter(loader)

    def preload():
        batch = next(remaining, None)
        with torch.cuda.stream(side):
            return batch and put(batch)

    following = preload()
    while following is not None:
        batch = following
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            for tensor in batch.values():
                tensor.record_stream(torch.cuda.current_stream())
        following = preload()
        yield finish(batch)


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
