"""The pieces that recipes are put together from: short programs with blanks ($name).

    decode → Images → collate → DataLoaderX → make_loader → put, put_ahead → batches

They are what labkit reaches through its tables, written out: one decoder, one layout of the
folder, one loader, one prefetcher.  Main trap: a piece and its part in `parts` could drift
apart, so the tests run a recipe for every combination of the catalog and compare all its
batches with the variant's.
"""

IMPORTS = """\
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from labkit.contracts import Annotation, Sample
from labkit.source import Order
"""

# The blank: what has it decode to fewer pixels.
SIMPLEJPEG = '''
import simplejpeg

def decode(jpeg: bytes) -> np.ndarray:
    """Turn a JPEG file into (H, W, 3) uint8 RGB."""
    try:
        return simplejpeg.decode_jpeg(jpeg, "RGB"$scale)
    except ValueError as error:
        if not str(error).startswith("Corrupt JPEG data"):  # which can be repaired
            raise
        return simplejpeg.decode_jpeg(jpeg, "RGB"$scale, strict=False)
'''
SCALE = """
# Half of each side or less, where that leaves the model's: other pixels, and fewer of them.
SCALE = {"min_height": INPUT_PX, "min_width": INPUT_PX, "min_factor": 2}
"""

# None rotates by EXIF.
DECODERS = {
    "opencv": '''
import cv2

def decode(jpeg: bytes) -> np.ndarray:
    """Turn a JPEG file into (H, W, 3) uint8 RGB."""
    if jpeg.rfind(b"\\xff\\xd9") < 0:  # OpenCV would return it half grey
        raise ValueError("image must be a whole JPEG file, got a truncated one")
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    image_rgb = cv2.imdecode(np.frombuffer(jpeg, np.uint8), flags)
    if image_rgb is None:
        raise ValueError("image must be a JPEG file, got something that OpenCV does not read")
    return image_rgb
''',
    "pillow": '''
import io
from PIL import Image

def decode(jpeg: bytes) -> np.ndarray:
    """Turn a JPEG file into (H, W, 3) uint8 RGB."""
    image = Image.open(io.BytesIO(jpeg))
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))
''',
    "simplejpeg": SIMPLEJPEG.replace("$scale", ""),
    "simplejpeg_scaled": SCALE + SIMPLEJPEG.replace("$scale", ", **SCALE"),
    "kornia_rs": '''
import kornia_rs

def decode(jpeg: bytes) -> np.ndarray:
    """Turn a JPEG file into (H, W, 3) uint8 RGB; it does not take CMYK."""
    return kornia_rs.io.decode_image_jpegturbo(jpeg, "rgb")
''',
    "torchvision": '''
import torch
from torchvision.io import decode_jpeg

def decode(jpeg: bytes) -> np.ndarray:
    """Turn a JPEG file into (H, W, 3) uint8 RGB."""
    data = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
    planes = decode_jpeg(data, mode="RGB")
    return np.ascontiguousarray(planes.permute(1, 2, 0).numpy())
''',
}

# What lies in the folder -> how its names and boxes are found, and an image is read with its boxes.
COCO_BOXES = """\
        first, end = self.rows["box_ranges"][i]
        annotation = Annotation(
            boxes_xyxy=self.rows["boxes_xyxy"][first:end],
            category_ids=self.rows["category_ids"][first:end],
        )
"""
LAYOUTS = {
    "labkit": (
        """
from labkit.parts.packing.coco import read_coco
""",
        """\
        names, self.rows = read_coco(folder / "annotations.json")
        self.folder, self.names = folder / "images", np.array(names)
""",
        COCO_BOXES,
    ),
    "coco": (
        """
from labkit.parts.packing.coco import read_coco
from labkit.parts.packing.folder import _find_annotations, _find_jpegs
""",
        """\
        annotations, self.folder = _find_annotations(folder)
        names, self.rows = read_coco(annotations, set(_find_jpegs(self.folder)))
        self.names = np.array(names)
""",
        COCO_BOXES,
    ),
    "tree": (
        """
from labkit.parts.packing.folder import _find_jpegs, synthesize_boxes
from labkit.jpeg import read_size_px
""",
        """\
        self.folder, self.names = folder, np.array(_find_jpegs(folder))
""",
        """\
        # This folder has no boxes, so they are invented; your own belong here.
        annotation = synthesize_boxes(self.names[i], *read_size_px(jpeg))
""",
    ),
}

IMAGES = '''\
class Images(Dataset):
    """Samples by (epoch, image): nothing else decides what is drawn at random."""

    def __init__(self, folder: Path) -> None:
        # Names in one array: a Python object per image would be copied into every worker.
$open
    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, np.ndarray]:
        epoch, i = key
        jpeg = (self.folder / self.names[i]).read_bytes()
$boxes
        sample = Sample(
            image_rgb=decode(jpeg), annotation=annotation, sample_id=i, epoch=epoch, seed=SEED
        )
        return $per_sample(sample, INPUT_PX)
'''

COLLATE = '''\
def collate(samples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Stack equal shapes; join the boxes of all images and say how many each has."""
    boxes = [sample.pop("boxes_ragged") for sample in samples]
    batch = default_collate(samples)
    batch["boxes_ragged"] = torch.from_numpy(np.concatenate(boxes))
    batch["boxes_ragged_counts"] = torch.tensor([len(rows) for rows in boxes])
    return batch
'''

BANNER = "# --- From images to batches on the device: what a train.py of your own needs. ---\n"

DATA_LOADER_X = '''\
class DataLoaderX($maker):
    """A $maker whose finished batches a background thread takes, one ahead.

    Go on to an epoch's end: where a loop breaks off, that thread and the workers stay behind.
    """

    def __iter__(self):
        return BackgroundGenerator(super().__iter__(), max_prefetch=1)
'''

MAKE_LOADER = '''\
def make_loader(folder: str = DATA) -> $loader:
    """Make the loader as it was measured; start an epoch with `batches`."""
    images = Images(Path(folder))
    chosen = $chosen
$choose    chosen = chosen[: $wanted // BATCH_SIZE * BATCH_SIZE]
    return $loader(
        images,
        batch_size=BATCH_SIZE,
        sampler=Order(chosen, SEED$order),
        drop_last=True,
$arguments
    )
'''

PUT = '''\
def put(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Start copying a batch to the device; from pinned memory the host does not wait."""
    return {name: tensor.to(DEVICE, non_blocking=True) for name, tensor in batch.items()}
'''

PUT_AHEAD = '''\
def put_ahead(loader: DataLoader) -> Iterator[dict[str, torch.Tensor]]:
    """Copy the next batch on a stream of its own while the device works on this one."""
    stream = torch.cuda.Stream() if DEVICE.type == "cuda" else None
    remaining = iter(loader)

    def preload() -> dict[str, torch.Tensor] | None:
        batch = next(remaining, None)
        with torch.cuda.stream(stream):
            return None if batch is None else put(batch)

    following = preload()
    while following is not None:
        current = following
        if stream is not None:
            compute = torch.cuda.current_stream()
            compute.wait_stream(stream)
            for tensor in current.values():
                # Else its memory could go to the next copy while the step still reads it.
                tensor.record_stream(compute)
        following = preload()
        yield current
'''

BATCHES = '''\
def batches(loader: DataLoader, epoch: int) -> Iterator[dict[str, torch.Tensor]]:
    """Deliver an epoch's batches on the device."""
    loader.sampler.epoch = epoch
$deliver
'''

ONE_BATCH = '''\
def batches(loader: DataLoader, epoch: int) -> Iterator[dict[str, torch.Tensor]]:
    """Deliver the first batch again and again: what an epoch takes with nothing left to load."""
    first = loader.collate_fn([loader.dataset[key] for key in list(loader.sampler)[:BATCH_SIZE]])
    for batch in itertools.repeat(put(first), len(loader)):
        yield $batch
'''

MAIN = """

if __name__ == "__main__":
    loader, started_s, images = make_loader(), time.perf_counter(), 0
    for batch in batches(loader, epoch=0):
        images += len(batch["sample_id"])  # your training step goes here
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    print(f"{images / (time.perf_counter() - started_s):.1f} images/s")
"""

READ_CONFIG = '''\
DETECTOR = """{text}"""


def read_config() -> Config:
    """Read the detector's constants."""
    return parse_config(DETECTOR)'''

CORES = '''\
def cores() -> int:
    """Count this machine's CPU cores."""
    return os.cpu_count() or 1'''
