"""A slower or a faster GPU?  See notebook 11_roofline.

`device_speeds` makes a roofline of this experiment, and of every other one.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.sweep import full_only
from labkit.machine import hardware
from labkit.runs.experiment import Experiment
from labkit.settings import Settings


def textbook(base: Settings) -> Experiment:
    """Compare PyTorch's ImageNet example with faster parts, and with images stored for its crops.

    Files are in memory, so that the processor alone limits loading.  The simulated GPU trains
    what the tutorials train: the calibrated one would be too slow to show what these parts gain.

    Source: pytorch/examples, imagenet/main.py.
    """
    base = replace(
        base,
        cache="warm",
        num_workers=hardware.cores() if base.num_workers is None else base.num_workers,
        input_px=base.input_px or 224,  # as in most tutorials
        gpu_images_per_s=base.gpu_images_per_s or "resnet50_a100",
    )
    pillow = replace(base, decoder="pillow", preprocessor="classification_crop_pillow")
    opencv = replace(base, decoder="opencv", preprocessor="classification_crop")
    uint8 = replace(base, decoder="simplejpeg", preprocessor="classification_crop_on_device")
    scaled = replace(uint8, decoder="simplejpeg_scaled")
    threads = replace(uint8, loader="threads")
    return Experiment(
        "textbook",
        question="How much faster than the tutorials' pipeline can this processor load?",
        variants={
            "textbook": pillow,
            "with OpenCV": opencv,
            "with simplejpeg, uint8": uint8,
            "with scaled decoding": scaled,
            "with threads": replace(scaled, loader="threads"),
            "stored small": replace(threads, packing="raw", storage_format="small"),
            "stored YUV420": replace(threads, packing="mapped", storage_format="yuv420"),
            **full_only(
                {"textbook, torchvision v2": replace(pillow, preprocessor="classification_crop_v2")}
            ),
        },
        source="PyTorch's ImageNet example: Pillow, RandomResizedCrop, flip, normalize in each "
        "worker",
        notes=(
            "each variant keeps the changes of the variants above it; with uint8, workers send "
            "pixels and the device normalizes them",
            "crop and flip are drawn from seed, epoch and image, so all variants deliver the same",
            "scaled decoding makes an image smaller only where its crop keeps the input's size",
            "stored small, stored YUV420: made once, with sides of at most 8/7 of the input; YUV "
            "planes need no decoding, and only the crop is converted to RGB; the same crops, of "
            "other pixels",
            "Pillow averages the pixels of a crop that it shrinks, OpenCV only below half of its "
            "size: above, its linear filter reads all pixels",
            "“textbook, torchvision v2” changes the first variant alone: Pillow decodes, and "
            "torchvision.transforms.v2 crops, resizes and normalizes tensors",
        ),
    )
