"""Train on images with COCO boxes: threads decode with simplejpeg, and share their memory.

The label of an image is the class of its largest box.  thread_loader.py lies beside this program;
its docstring says what threads may share.  Run: python threads.py
"""

import functools
import json
import time
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from thread_loader import ThreadLoader
from torch.utils.data import Dataset

# --- settings ---
FOLDER = Path("data/photos/images")
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
PIN_MEMORY = torch.cuda.is_available()
OPENCV_THREADS = 0  # in each process
MEAN = np.float32([0.485, 0.456, 0.406])  # of ImageNet's pixels, scaled to 0..1
STD = np.float32([0.229, 0.224, 0.225])
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ANNOTATIONS = Path("data/photos/annotations.json")


# --- categories ---
# COCO numbers its 80 categories from 1 to 90, with gaps.
CATEGORIES = sorted({*range(1, 91)} - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83})


# --- images: largest box ---
def list_images():
    """List the images' names and labels: the class of the largest box, 0 where there is none."""
    coco, areas, labels = json.loads(ANNOTATIONS.read_bytes()), {}, {}
    for row in coco["annotations"]:
        image, (_, _, width, height) = row["image_id"], row["bbox"]
        if not row.get("iscrowd") and width * height > areas.get(image, 0):
            areas[image] = width * height
            labels[image] = CATEGORIES.index(row["category_id"])
    images = sorted((image["id"], image["file_name"]) for image in coco["images"])
    images = [(image, name) for image, name in images if (FOLDER / name).exists()]
    return [name for _, name in images], [labels.get(image, 0) for image, _ in images]


# --- read: files ---
def read(name):
    """Read a JPEG file."""
    return (FOLDER / name).read_bytes()


# --- decode: simplejpeg ---
def decode(jpeg):
    """Decode a JPEG to (H, W, 3) uint8 RGB."""
    try:
        return simplejpeg.decode_jpeg(jpeg, "RGB")
    except ValueError as error:
        if not str(error).startswith("Corrupt JPEG data"):  # a warning: most of it is there
            raise
        return simplejpeg.decode_jpeg(jpeg, "RGB", strict=False)


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


# --- pixels: random crop ---
cv2.setNumThreads(OPENCV_THREADS)


def make_pixels(content, key):
    """Decode an image and resize a random crop, maybe flipped: (INPUT_PX, INPUT_PX, 3) uint8."""
    image = decode(content)
    height, width = image.shape[:2]
    left, top, wide, high, flipped = draw_crop(key, width, height)
    crop = image[top : top + high, left : left + wide]
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


# --- loader: threads ---
def make_loader(images, order):
    """Return a loader whose threads make the samples."""
    return ThreadLoader(
        images,
        BATCH_SIZE,
        sampler=order,
        drop_last=True,
        num_threads=NUM_WORKERS,
        prefetch_batches=PREFETCH_FACTOR * max(1, NUM_WORKERS),
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
