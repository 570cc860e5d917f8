"""Blocks for recipes: each replaces the block of the same kind in one of the programs.

`Run.recipe()` puts them there; this file is no program.
"""

import functools
import io
import itertools
import logging.handlers
import os
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import h5py
import kornia_rs
import lmdb
import numpy as np
import safetensors.numpy
import torch
import torchcodec.decoders
import torchvision
import torchvision.transforms.v2.functional as v2
from PIL import Image
from torch.utils.data import Dataset
from tqdm import tqdm

# --- settings ---
MEMORY_FORMAT = torch.contiguous_format
MIXED_PRECISION = False
PROGRESS_BAR = False
PROGRESS_LOSS = False  # in the progress bar
LOG_EVERY = 0  # steps; 0: never, as below
LOG_LOSS = True
LOG_HANDLER = logging.StreamHandler()
LOG_IN_THREAD = False  # a thread writes the log
METRICS_EVERY = 0
CHECKPOINT_EVERY = 0
CHECKPOINT = Path("checkpoint.pth")
CHECKPOINT_IN_THREAD = False  # a thread writes checkpoints


# --- images: a pack, class folders ---
def list_images():
    """List the records' numbers and labels: the class is the folder that an image was in."""
    index = np.load(FOLDER / "index.npz")
    joined, ends = index["name_bytes"].tobytes(), index["name_ends"].tolist()
    names = [os.fsdecode(joined[first:end]) for first, end in itertools.pairwise(ends)]
    folders = [name.rpartition("/")[0] for name in names]
    labels = {folder: label for label, folder in enumerate(sorted(set(folders)))}
    return range(len(names)), [labels[folder] for folder in folders]


# --- read: raw, pixels ---
INDEX = np.load(FOLDER / "index.npz")
SPANS, HEIGHTS_WIDTHS = INDEX["spans"], INDEX["heights_widths"]
RECORDS = (FOLDER / "images.raw").open("rb", buffering=0)


def read(i):
    """Read a record's pixels; processes and threads may share the file, as none of them seeks."""
    first, end = SPANS[i].tolist()
    record = os.pread(RECORDS.fileno(), end - first, first)
    return np.frombuffer(record, np.uint8).reshape(*HEIGHTS_WIDTHS[i], 3)


# --- read: raw, planes ---
INDEX = np.load(FOLDER / "index.npz")
SPANS, HEIGHTS_WIDTHS = INDEX["spans"], INDEX["heights_widths"]
RECORDS = np.memmap(FOLDER / "images.raw", np.uint8, "r")  # only what is used of it is read


def read(i):
    """Return a record's YUV 4:2:0 planes, brightness and color, and the image's height and width.

    Of an image with odd sides, the planes have a row or a column more.
    """
    (first, end), (height, width) = SPANS[i].tolist(), HEIGHTS_WIDTHS[i].tolist()
    rows, columns = height + height % 2, width + width % 2
    luma, chroma = np.split(RECORDS[first:end], [rows * columns])
    return luma.reshape(rows, columns), chroma.reshape(rows // 2, columns // 2, 2), height, width


# --- read: pth ---
RECORDS = torch.load(FOLDER / "images.pth", mmap=True, weights_only=True)


def read(i):
    """Read a record of the mapped file."""
    return RECORDS[i].numpy().tobytes()


# --- read: hdf5 ---
RECORDS = h5py.File(FOLDER / "images.h5", locking=False)["images"]


def read(i):
    """Read a record."""
    return RECORDS[i].tobytes()


# --- read: lmdb ---
OPENING = threading.Lock()


@functools.cache
def environment(process_id):
    """Open the file; no process may use it that was forked later."""
    how = {"subdir": False, "readonly": True, "lock": False}
    return lmdb.open(str(FOLDER / "images.lmdb"), meminit=False, **how)


def read(i):
    """Read a record."""
    with OPENING:  # a process may open a file once
        opened = environment(os.getpid())
    with opened.begin() as transaction:
        return transaction.get(b"%08d" % i)


# --- read: tar ---
SPANS = np.load(FOLDER / "index.npz")["spans"]
SHARD_IMAGES = max(64, -(-len(SPANS) // 256))


@functools.cache
def shard(number):
    """Open one of the files."""
    return (FOLDER / f"images-{number:05}.tar").open("rb", buffering=0)


def read(i):
    """Read a record of a shard."""
    first, end = SPANS[i].tolist()
    return os.pread(shard(i // SHARD_IMAGES).fileno(), end - first, first)


# --- read: tfrecord ---
SPANS = np.load(FOLDER / "index.npz")["spans"]
SHARD_IMAGES = max(16, -(-len(SPANS) // 256))


@functools.cache
def shard(number):
    """Open one of the files."""
    return (FOLDER / f"images-{number:05}.tfrecord").open("rb", buffering=0)


def read(i):
    """Read a record's image; its checksums are not compared."""
    _, first, end = SPANS[i].tolist()
    return os.pread(shard(i // SHARD_IMAGES).fileno(), end - 4 - first, first)


# --- decode: pillow ---
def decode(jpeg):
    """Decode a JPEG to (H, W, 3) uint8 RGB."""
    image = Image.open(io.BytesIO(jpeg), formats=("JPEG",))
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


# --- decode: pillow image ---
def decode(jpeg):
    """Decode a JPEG to Pillow's RGB image."""
    image = Image.open(io.BytesIO(jpeg), formats=("JPEG",))
    return image if image.mode == "RGB" else image.convert("RGB")


# --- decode: kornia-rs ---
def decode(jpeg):
    """Decode a JPEG to (H, W, 3) uint8 RGB."""
    return kornia_rs.io.decode_image_jpegturbo(jpeg, "rgb")


# --- decode: torchcodec ---
def decode(jpeg):
    """Decode a JPEG to (H, W, 3) uint8 RGB, turned as its EXIF orientation asks."""
    planes = torchcodec.decoders.decode_jpeg(jpeg)
    return np.ascontiguousarray(planes.permute(1, 2, 0).numpy())


# --- decode: torchvision ---
def decode(jpeg):
    """Decode a JPEG to (H, W, 3) uint8 RGB."""
    content = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
    return torchvision.io.decode_jpeg(content, mode="RGB").permute(1, 2, 0).numpy()


# --- decode: nothing ---
def decode(pixels):
    """Return pixels that are stored as such."""
    return pixels


# --- pixels: whole image, scaled ---
cv2.setNumThreads(OPENCV_THREADS)


def make_pixels(jpeg, key):
    """Decode an image and resize all of it: (INPUT_PX, INPUT_PX, 3) uint8."""
    return cv2.resize(decode(jpeg, INPUT_PX), (INPUT_PX, INPUT_PX))


# --- pixels: whole image, in Pillow ---
def make_pixels(jpeg, key):
    """Decode an image and resize all of it, by the same filter as OpenCV's: (S, S, 3) uint8."""
    image = decode(jpeg)
    zoom = (image.width / INPUT_PX, 0, 0, 0, image.height / INPUT_PX, 0)
    how = {"method": Image.Transform.AFFINE, "data": zoom, "resample": Image.Resampling.BILINEAR}
    return np.asarray(image.transform((INPUT_PX, INPUT_PX), **how))


# --- pixels: random crop, in Pillow ---
def make_pixels(jpeg, key):
    """Decode an image and resize a random crop, maybe flipped: (INPUT_PX, INPUT_PX, 3) uint8."""
    image = decode(jpeg)
    left, top, wide, high, flipped = draw_crop(key, *image.size)
    image = image.crop((left, top, left + wide, top + high))
    image = image.resize((INPUT_PX, INPUT_PX), Image.Resampling.BILINEAR)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flipped else image)


# --- pixels: random crop, torchvision v2 ---
def make_pixels(jpeg, key):
    """Decode an image and resize a random crop, maybe flipped: (INPUT_PX, INPUT_PX, 3) uint8."""
    image = torch.from_numpy(decode(jpeg)).permute(2, 0, 1)
    left, top, wide, high, flipped = draw_crop(key, *image.shape[:0:-1])
    size = [INPUT_PX, INPUT_PX]
    image = v2.resized_crop(image, top, left, high, wide, size, antialias=True)
    image = v2.horizontal_flip(image) if flipped else image
    return image.permute(1, 2, 0).numpy()


# --- crop of the original ---
ORIGINAL_SIZES = np.load(FOLDER / "index.npz")["original_sizes"]


def draw_scaled_crop(key, width, height):
    """Draw a crop of the original; return its edges in a smaller image of it, and the flip."""
    original_width, original_height = ORIGINAL_SIZES[key[2]].tolist()
    if not original_width:  # stored as it was
        original_width, original_height = width, height
    left, top, wide, high, flipped = draw_crop(key, original_width, original_height)
    zoom_x, zoom_y = width / original_width, height / original_height
    left, right = (int(x * zoom_x + 0.5) for x in (left, left + wide))
    top, bottom = (int(y * zoom_y + 0.5) for y in (top, top + high))
    return left, top, right, bottom, flipped


# --- pixels: random crop, stored small ---
cv2.setNumThreads(OPENCV_THREADS)


def make_pixels(jpeg, key):
    """Decode an image and resize a random crop, maybe flipped: (INPUT_PX, INPUT_PX, 3) uint8."""
    image = decode(jpeg)
    left, top, right, bottom, flipped = draw_scaled_crop(key, image.shape[1], image.shape[0])
    crop = image[top:bottom, left:right]
    how = cv2.INTER_AREA if max(crop.shape[:2]) > 2 * INPUT_PX else cv2.INTER_LINEAR
    pixels = cv2.resize(crop, (INPUT_PX, INPUT_PX), interpolation=how)
    return cv2.flip(pixels, 1) if flipped else pixels


# --- pixels: random crop, stored YUV 4:2:0 ---
cv2.setNumThreads(OPENCV_THREADS)


def make_pixels(planes, key):
    """Convert and resize a random crop, maybe flipped: (INPUT_PX, INPUT_PX, 3) uint8."""
    luma, chroma, height, width = planes
    left, top, right, bottom, flipped = draw_scaled_crop(key, width, height)
    # Outwards to whole 2 × 2 pixels, which share a color.
    rows, columns = slice(top // 2, (bottom + 1) // 2), slice(left // 2, (right + 1) // 2)
    part = luma[2 * rows.start : 2 * rows.stop, 2 * columns.start : 2 * columns.stop]
    rgb = cv2.cvtColorTwoPlane(part, chroma[rows, columns], cv2.COLOR_YUV2RGB_NV12)
    top, left = top % 2, left % 2
    crop = rgb[top : bottom - 2 * rows.start, left : right - 2 * columns.start]
    how = cv2.INTER_AREA if max(crop.shape[:2]) > 2 * INPUT_PX else cv2.INTER_LINEAR
    pixels = cv2.resize(crop, (INPUT_PX, INPUT_PX), interpolation=how)
    return cv2.flip(pixels, 1) if flipped else pixels


# --- dataset: finished when it was packed ---
class Images(Dataset):
    """Samples by (epoch, number of the image)."""

    collate = None  # torch's own

    def __init__(self):
        self.names, self.labels = list_images()

    def __len__(self):
        return len(self.names)

    def __getitem__(self, key):
        _, i = key  # every epoch has the same random draws
        return safetensors.numpy.load(read(self.names[i]))


def finish(batch):
    """Leave a batch as it is."""
    return batch


# --- dataset: heat maps drawn by the workers ---
class Images(Dataset):
    """Samples by (epoch, number of the image)."""

    collate = None  # torch's own

    def __init__(self):
        self.names, self.boxes = list_images()

    def __len__(self):
        return len(self.names)

    def __getitem__(self, key):
        epoch, i = key
        image = decode(read(self.names[i]))
        return draw_sample(*make_sample(image, self.boxes[i], (SEED, epoch, i)))


def draw_sample(pixels, colors, boxes):
    """Apply the colors plane by plane, and draw a Gaussian for each box."""
    image, levels = np.empty((3, INPUT_PX, INPUT_PX), np.float32), pixels.astype(np.float32)
    for channel in range(3):
        cv2.transform(levels, colors[channel : channel + 1], dst=image[channel])

    cells = INPUT_PX // STRIDE
    heatmap = np.zeros((len(CATEGORIES), cells, cells), np.float32)
    for _, label, radius, x, y in boxes[:, :5].astype(int).tolist():
        left, top = max(x - radius, 0), max(y - radius, 0)
        part = heatmap[label, top : y + radius + 1, left : x + radius + 1]
        rows, columns = part.shape
        bump = gaussian(radius)[top - y + radius :, left - x + radius :][:rows, :columns]
        np.maximum(part, bump, out=part)

    slots, center_xy = boxes[:, 0].astype(int), boxes[:, 3:5]
    center_cell = center_xy.astype(np.int64)
    size_wh, offset_xy = np.zeros((2, MAX_BOXES, 2), np.float32)
    size_wh[slots], offset_xy[slots] = boxes[:, 5:7], center_xy - center_cell
    cell, mask = np.zeros(MAX_BOXES, np.int64), np.zeros(MAX_BOXES, np.uint8)
    cell[slots], mask[slots] = center_cell[:, 1] * cells + center_cell[:, 0], 1
    numbers = {"size_wh": size_wh, "offset_xy": offset_xy, "cell": cell, "mask": mask}
    return {"image": image, "heatmap": heatmap, **numbers}


@functools.cache
def gaussian(radius):
    """Return the Gaussian of a radius."""
    sigma = (2 * radius + 1) / 6
    line = np.exp(-(np.arange(-radius, radius + 1, dtype=np.float32) ** 2) / (2 * sigma**2))
    return np.outer(line, line)


def finish(batch):
    """Leave a batch as it is: the workers have finished it."""
    return batch


# --- batches: copied on a side stream after the step ---
def put(batch):
    """Start copying a batch to the device; from pinned memory the host does not wait."""
    return {name: tensor.to(DEVICE, non_blocking=True) for name, tensor in batch.items()}


def batches(loader):
    """Deliver an epoch's batches; the next one is asked for after this one's step is launched."""
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
        yield finish(batch)
        following = preload()


# --- training: with log, metrics and checkpoints ---
class Saver:
    """Writes checkpoints, one at a time; in a thread, it writes a copy while training goes on."""

    def __init__(self):
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.pending, self.buffers = None, {}

    def save(self, state):
        """Write a checkpoint, or begin to; the one before must be on the disk."""
        self.finish()
        if not CHECKPOINT_IN_THREAD:
            return self.write(state)
        state = self.copied(state)
        if DEVICE.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self.pending = self.thread.submit(self.write, state)

    def finish(self):
        """Wait until the last checkpoint is on the disk."""
        if self.pending is not None:
            self.pending.result()
        self.pending = None

    def copied(self, value, *path):
        """Copy a state to host memory, which is used again: new memory takes ten times as long."""
        if isinstance(value, torch.Tensor):
            if path not in self.buffers:
                how = {"device": "cpu", "pin_memory": value.is_cuda}
                self.buffers[path] = torch.empty_like(value, **how).detach()
            return self.buffers[path].copy_(value.detach(), non_blocking=True)
        if isinstance(value, dict):
            return {key: self.copied(each, *path, key) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.copied(each, *path, i) for i, each in enumerate(value))
        return value

    def write(self, state):
        """Write a whole file, then give it its name."""
        part = CHECKPOINT.with_suffix(".part")
        torch.save(state, part)  # by name, torch writes without the interpreter lock
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(CHECKPOINT)


def open_log():
    """Return what takes log lines, and the thread that writes them."""
    log, lines = logging.getLogger("train"), queue.SimpleQueue()
    log.setLevel("INFO")
    log.addHandler(logging.handlers.QueueHandler(lines) if LOG_IN_THREAD else LOG_HANDLER)
    listener = logging.handlers.QueueListener(lines, LOG_HANDLER)
    listener.start()
    return log, listener


def train():
    """Train the model."""
    log, listener = open_log()
    images = Images()
    order = Order(len(images))
    loader = make_loader(images, order)
    model = make_model(images).to(DEVICE, memory_format=MEMORY_FORMAT)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # your optimizer
    saver, confusion, step = Saver(), None, 0
    for epoch in range(EPOCHS):
        order.epoch, started_s = epoch, time.perf_counter()
        steps = tqdm(batches(loader), total=len(order) // BATCH_SIZE, disable=not PROGRESS_BAR)
        for batch in steps:
            image = batch["image"].contiguous(memory_format=MEMORY_FORMAT)
            # On a GPU without bfloat16: float16, and a GradScaler around the backward pass.
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=MIXED_PRECISION):
                output = model(image)
            loss = loss_of(output.float(), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if METRICS_EVERY and step % METRICS_EVERY == 0:
                classes = output.shape[1]
                if confusion is None:
                    confusion = torch.zeros(classes**2, dtype=torch.long, device=DEVICE)
                pairs = batch["label"] * classes + output.argmax(1)
                confusion.index_add_(0, pairs, torch.ones_like(pairs))
            if LOG_EVERY and step % LOG_EVERY == 0:
                words = f"loss {loss.item():.4f}" if LOG_LOSS else ""  # waits for the device
                log.info("step %d %s", step, words)
            if CHECKPOINT_EVERY and step % CHECKPOINT_EVERY == 0:
                saver.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
            if PROGRESS_LOSS:
                steps.set_postfix(loss=loss.item())
        saver.finish()
        last = loss.item()  # waits for the device
        speed = len(order) / (time.perf_counter() - started_s)
        print(f"epoch {epoch}: loss {last:.3f}, {speed:.1f} images/s")
    listener.stop()
    if confusion is not None:
        correct = confusion.view(classes, classes).trace() / confusion.sum()
        print(f"correct: {100 * correct.item():.1f} %")


if __name__ == "__main__":
    train()
