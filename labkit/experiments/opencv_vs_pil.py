"""OpenCV or Pillow?  See notebook 05_opencv_vs_pil."""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.single_operations import timed_alone
from labkit.experiments.sweep import full_only
from labkit.runs.experiment import Experiment, Variants, as_experiment
from labkit.runs.operation_trials import INPUTS, all_operations
from labkit.settings import Settings

# Width and height of the pictures.  Only full mode measures the larger ones, where a single call
# takes up to 60 ms.
SIZES_PX = ((320, 240), (640, 480), (1280, 960), (1920, 1440))
QUICK_SIZES = 2


@as_experiment(
    "Does OpenCV instead of PIL shorten the epoch?",
    source="[000]: OpenCV in most cases (the post's chart is no longer online)",
    runs_by_default=True,
    at_several_speeds=True,
)
def opencv_vs_pil(base: Settings) -> Variants:
    """Compare libraries that decode and resize, by the time of an epoch.

    Source: [000], OpenCV or PIL.
    """

    def by(decoder: str) -> Settings:  # OpenCV resizes for those that only decode
        return replace(base, decoder=decoder, preprocessor="classification")

    return {
        "pillow": replace(base, decoder="pillow", preprocessor="classification_pillow"),
        "opencv": by("opencv"),
        "simplejpeg": by("simplejpeg"),
        **full_only(
            {
                "kornia-rs": by("kornia_rs"),
                "torchcodec": by("torchcodec"),
                "torchvision (deprecated)": by("torchvision"),
                "simplejpeg, scaled": by("simplejpeg_scaled"),
            }
        ),
    }


def operations(base: Settings) -> Experiment:
    """Compare libraries by single image operations, each at several sizes.

    Every operation at one size is a group with a baseline of its own.

    Source: [000], OpenCV vs PIL (kaggle yukia18).
    """
    sizes = {
        f"{operation}, {width}×{height}": (operation, {"width_px": width, "height_px": height})
        for operation in dict.fromkeys(name for name, _ in all_operations())
        if operation not in INPUTS  # takes pictures
        for width, height in SIZES_PX
    }
    return timed_alone(
        base,
        "operations",
        sizes,
        is_quick=lambda group, library: tuple(sizes[group][1].values()) in SIZES_PX[:QUICK_SIZES],
        question="Which library does which image operation faster?",
        source="[000] OpenCV vs PIL (kaggle yukia18): chart no longer online",
        notes=(
            "pictures larger than the data's photographs are enlarged ones: smoother than a "
            "camera's, with fewer bytes per pixel to decode",
        ),
        runs_by_default=True,
    )
