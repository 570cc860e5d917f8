"""The experiment of single image operations: which library does each of them faster?"""

from __future__ import annotations

from labkit.parts.operations import MEANINGS
from labkit.runs.experiment import Experiment
from labkit.runs.operation_trials import OPERATIONS
from labkit.settings import Settings

# Width and height of the pictures; the larger ones are for full mode, as a process per trial takes
# time: two sizes are 186 trials in quick mode.
SIZES_PX = ((320, 240), (640, 480), (1280, 960), (1920, 1440))
QUICK_SIZES = 2


def operations(base: Settings) -> Experiment:
    """[000]: OpenCV and PIL, and their rivals, one operation at a time."""
    # The pictures are in memory, and nothing is trained.
    settings = Settings(data=base.data, seed=base.seed, cache="warm", device="cpu", num_workers=0)
    tasks, groups = {}, {}
    for operation in dict.fromkeys(name for name, _ in OPERATIONS):
        for width_px, height_px in SIZES_PX:
            group = f"{operation}, {width_px}×{height_px}"
            size = {"width_px": width_px, "height_px": height_px}
            for library in (library for name, library in OPERATIONS if name == operation):
                label = f"{group}: {library}"
                groups[label] = group
                tasks[label] = {"operation": operation, "library": library, **size}
    large = SIZES_PX[QUICK_SIZES:]
    in_full = [
        label for label, task in tasks.items() if (task["width_px"], task["height_px"]) in large
    ]
    return Experiment(
        "operations",
        question="Which library does which image operation faster?",
        kind="operation",
        variants={label: settings for label in tasks if label not in in_full},
        in_full=dict.fromkeys(in_full, settings),
        groups=groups,
        tasks=tasks,
        baseline=next(iter(tasks)),
        source="[000] OpenCV vs PIL (kaggle yukia18): chart lost",
        notes=(
            *(f"{name}: {meaning}" for name, meaning in MEANINGS.items()),
            "pictures larger than the data's photographs are enlarged ones: smoother than a "
            "camera's, with fewer bytes per pixel to decode",
        ),
    )
