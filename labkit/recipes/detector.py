"""Train a detector on COCO boxes: uint8 batches and boxes are sent, the GPU draws the heat maps.

Samples are those of CenterNet: a random crop, flip and colors, a heat map for each class, and size
and offset of each box.  They are finished on a stream of their own while the GPU works on the batch
before.  Run: python detector.py
"""

import functools
import json
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

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
PERSISTENT_WORKERS = False
START_METHOD = None  # of the workers; None: the platform's
PIN_MEMORY = torch.cuda.is_available()
OPENCV_THREADS = 0  # in each process
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ANNOTATIONS = Path("data/photos/annotations.json")
MAX_BOXES = 128  # of an image
STRIDE = 4  # pixels of the input for each cell of the heat map


# --- categories ---
# COCO numbers its 80 categories from 1 to 90, with gaps.
CATEGORIES = sorted({*range(1, 91)} - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83})


# --- images: boxes ---
def list_images():
    """List the images' names and boxes: rows of left, top, right, bottom and class, float32."""
    coco = json.loads(ANNOTATIONS.read_bytes())
    images = sorted((image["id"], image["file_name"]) for image in coco["images"])
    images = [(image, name) for image, name in images if (FOLDER / name).exists()]
    boxes = {image: [] for image, _ in images}
    for row in coco["annotations"]:
        x, y, width, height = row["bbox"]
        is_used = row["image_id"] in boxes and not row.get("iscrowd")
        if is_used and width > 0 and height > 0:
            label = CATEGORIES.index(row["category_id"])
            boxes[row["image_id"]].append([x, y, x + width, y + height, label])
    rows = [np.array(boxes[image], np.float32).reshape(-1, 5) for image, _ in images]
    return [name for _, name in images], rows


# --- read: files ---
def read(name):
    """Read a JPEG file."""
    return (FOLDER / name).read_bytes()


# --- decode: opencv ---
def decode(jpeg):
    """Decode a JPEG to (H, W, 3) uint8 RGB."""
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags)


# --- pixels: CenterNet ---
cv2.setNumThreads(OPENCV_THREADS)
MEAN_RGB = np.float32([0.47026115, 0.44719302, 0.40789654])
STD_RGB = np.float32([0.27809835, 0.27408164, 0.28863828])
EIGENVALUES = np.float32([0.2141788, 0.01817699, 0.00341571])
EIGENVECTORS = np.float32(
    [
        [-0.56089297, 0.71832671, 0.41158938],
        [-0.5832747, 0.00994535, -0.81221408],
        [-0.58752847, -0.69563484, 0.41340352],
    ]
)
GRAY = np.array([0.299, 0.587, 0.114]) / 255
OPERATIONS = np.array(["brightness", "contrast", "saturation"])


def make_sample(image, boxes, key):
    """Draw a square crop, a flip and colors, and apply them to an image and its boxes.

    Returns (INPUT_PX, INPUT_PX, 3) uint8; a (3, 4) matrix from (r, g, b, 1) to normalized colors;
    the boxes that show, (n, 7): slot, class, radius, center x and y, width and height, in cells.
    """
    rng, (height, width) = np.random.default_rng(key), image.shape[:2]
    side_px = float(max(height, width) * (0.6 + 0.1 * rng.integers(8)))
    x, y = (float(rng.integers(border(px), px - border(px))) for px in (width, height))
    boxes = boxes[:MAX_BOXES].copy()
    if rng.random() < 0.5:
        image, x = cv2.flip(image, 1), width - x - 1
        boxes[:, [0, 2]] = width - boxes[:, [2, 0]] - 1
    operations = OPERATIONS[rng.permutation(3)]
    factors = rng.uniform(1 - 0.4, 1 + 0.4, 3)
    lighting = EIGENVECTORS @ (EIGENVALUES * rng.normal(scale=0.1, size=3))

    size_px = (INPUT_PX, INPUT_PX)
    pixels = cv2.warpAffine(image, affine(side_px, x, y, INPUT_PX), size_px, flags=cv2.INTER_LINEAR)
    gray_mean = GRAY @ cv2.mean(pixels)[:3]
    colors = np.eye(3, 4) / 255
    for operation, factor in zip(operations, factors.tolist()):
        colors *= factor
        if operation == "contrast":
            colors[:, 3] += gray_mean * (1 - factor)
        elif operation == "saturation":
            colors[:, :3] += GRAY * (1 - factor)
    colors[:, 3] += lighting
    colors[:, 3] -= MEAN_RGB
    colors = (colors / STD_RGB[:, None]).astype(np.float32)

    cells = INPUT_PX // STRIDE
    matrix = affine(side_px, x, y, cells)
    corners = boxes[:, :4].reshape(-1, 2) * matrix.diagonal() + matrix[:, 2]
    corners = np.clip(corners.astype(np.float32), 0, cells - 1).reshape(-1, 4)
    size_wh, center_xy = corners[:, 2:] - corners[:, :2], (corners[:, :2] + corners[:, 2:]) / 2
    slots = np.flatnonzero((size_wh > 0).all(axis=1))
    whole = np.stack([slots, boxes[slots, 4], radii(size_wh[slots])], axis=1).astype(np.float32)
    return pixels, colors, np.hstack([whole, center_xy[slots], size_wh[slots]])


def border(size_px):
    """Return how far a crop's center stays from the edge: 128, halved until two fit."""
    px = 128
    while size_px - px <= px:
        px //= 2
    return px


def affine(side_px, x, y, size):
    """Return the matrix that maps a square crop around (x, y) to a square of `size`."""
    zoom = size / side_px
    return np.array([[zoom, 0, size / 2 - zoom * x], [0, zoom, size / 2 - zoom * y]])


def radii(size_wh):
    """Return the radius of each box's Gaussian: by how much its corners may be off."""
    width, height = np.ceil(size_wh).astype(np.float64).T
    a, b, c = 4 * 0.7, -2 * 0.7 * (height + width), (0.7 - 1) * width * height
    return ((b + np.sqrt(b**2 - 4 * a * c)) / 2).astype(np.int64)


# --- dataset: heat maps drawn by the device ---
class Images(Dataset):
    """Samples by (epoch, number of the image)."""

    def __init__(self):
        self.names, self.boxes = list_images()

    def __len__(self):
        return len(self.names)

    def __getitem__(self, key):
        epoch, i = key
        image = decode(read(self.names[i]))
        pixels, colors, boxes = make_sample(image, self.boxes[i], (SEED, epoch, i))
        return {"pixels": pixels, "colors": colors, "boxes_ragged": boxes}

    def collate(self, samples):
        """Stack what is equally large; join the boxes of all images end to end."""
        boxes = [sample.pop("boxes_ragged") for sample in samples]
        counts = torch.tensor([len(rows) for rows in boxes])
        joined = torch.from_numpy(np.concatenate(boxes))
        return {**default_collate(samples), "boxes_ragged": joined, "boxes_ragged_counts": counts}


def finish(batch):
    """Apply the colors and draw the heat maps of all images at once, on the device."""
    boxes, counts = batch["boxes_ragged"], batch["boxes_ragged_counts"]
    red, green, blue = batch["pixels"][:, None].unbind(-1)  # (B, 1, S, S) uint8 each
    of_red, of_green, of_blue, bias = batch["colors"][:, :, None, None].unbind(-1)
    image = red * of_red + bias
    image.addcmul_(green.float(), of_green).addcmul_(blue.float(), of_blue)

    # Without output_size the host waits for the number of boxes.
    image_of_box = torch.repeat_interleave(counts, output_size=len(boxes))
    slot, label, radius = boxes[:, :3].long().unbind(1)
    center_xy, size_wh = boxes[:, 3:5], boxes[:, 5:7]
    center_cell, cells, slots = center_xy.long(), INPUT_PX // STRIDE, len(counts) * MAX_BOXES
    row = image_of_box * MAX_BOXES + slot
    numbers = torch.zeros(slots, 4, device=DEVICE)
    numbers.index_copy_(0, row, torch.cat([size_wh, center_xy - center_cell], dim=1))
    cell = torch.zeros(slots, dtype=torch.int64, device=DEVICE)
    cell.index_copy_(0, row, center_cell[:, 1] * cells + center_cell[:, 0])
    mask = torch.zeros(slots, dtype=torch.uint8, device=DEVICE).index_fill_(0, row, 1)
    plane = image_of_box * len(CATEGORIES) + label
    heatmap = draw_heatmaps(plane, center_cell, radius, len(counts) * len(CATEGORIES), cells)
    numbers = numbers.view(-1, MAX_BOXES, 4)
    return {
        "image": image,
        "heatmap": heatmap.view(-1, len(CATEGORIES), cells, cells),
        "size_wh": numbers[..., :2],
        "offset_xy": numbers[..., 2:],
        "cell": cell.view(-1, MAX_BOXES),
        "mask": mask.view(-1, MAX_BOXES),
    }


def draw_heatmaps(plane, center_cell, radius, planes, cells):
    """Draw a Gaussian for each box into its plane; where some overlap, the largest value counts."""
    reach = largest_radius(cells)
    step = torch.arange(-reach, reach + 1, device=DEVICE)
    at = center_cell[:, :, None] + step  # (n, 2, R), may leave the map
    sigma = ((2 * radius + 1) / 6)[:, None]
    line = torch.exp(-(step**2) / (2 * sigma**2)) * (step.abs() <= radius[:, None])
    line_xy = line[:, None] * ((at >= 0) & (at < cells))
    values = line_xy[:, 1, :, None] * line_xy[:, 0, None, :]  # (n, R, R), 0 outside the map
    at = at.clamp(0, cells - 1)
    index = (plane[:, None, None] * cells + at[:, 1, :, None]) * cells + at[:, 0, None, :]
    heatmap = torch.zeros(planes * cells * cells, device=DEVICE)
    return heatmap.scatter_reduce_(0, index.flatten(), values.flatten(), "amax")


@functools.cache
def largest_radius(cells):
    """Return the radius of a box as large as the heat map."""
    return int(radii(np.array([[cells - 1, cells - 1]]))[0])


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


# --- batches: copied and finished on a side stream ---
def put(batch):
    """Start copying a batch to the device; from pinned memory the host does not wait."""
    return {name: tensor.to(DEVICE, non_blocking=True) for name, tensor in batch.items()}


def batches(loader):
    """Deliver an epoch's batches; the next one is made while the device works on this one."""
    side = torch.cuda.Stream() if DEVICE.type == "cuda" else None
    remaining = iter(loader)

    def preload():
        batch = next(remaining, None)
        with torch.cuda.stream(side):
            return batch and finish(put(batch))

    following = preload()
    while following is not None:
        batch = following
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            for tensor in batch.values():
                tensor.record_stream(torch.cuda.current_stream())
        following = preload()
        yield batch


# --- model: detector ---
def make_model(images):
    """Return the model."""
    return torch.nn.Conv2d(
        3, len(CATEGORIES), kernel_size=7, stride=STRIDE, padding=3
    )  # your model


def loss_of(output, batch):
    """Return the loss of a batch."""
    # Your loss, which also takes size_wh, offset_xy, cell and mask.
    return torch.nn.functional.binary_cross_entropy_with_logits(output, batch["heatmap"])


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
