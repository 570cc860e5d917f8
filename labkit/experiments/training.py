"""In depth, the training loop's own stalls: what the host does beside loading.

    loss         how it is written      precision   in what the model computes

Each takes the settings that all its variants share and returns an Experiment, baseline first; the
document's rule stands in its `source`.  Main trap: where loading is what the device waits for, a
faster step shows little; full mode therefore adds rows that only compute.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.machine import gpu
from labkit.runs.experiment import Experiment
from labkit.settings import Settings

# A CPU trains so slowly that only small images make epochs of about a second.
CPU_PX = 64


def loss(base: Settings) -> Experiment:
    """[001]: a loss in loops, the same with a look at every box, in threads, and all at once.

    How many operators and kernels each calls stands in its rows.
    """
    labels = {
        "loops": "loops",
        "loops, looking each time": "loops_sync",
        "loops in threads": "threads",
        "all at once": "vectorized",
    }
    variants = {label: replace(base, loss=name) for label, name in labels.items()}
    return Experiment(
        "loss",
        question="Does a loss without loops over boxes shorten the epoch?",
        variants=variants,
        baseline="loops",
        source="[001] 4.1: for loops in a loss block the GPU; simplify, or use processes or "
        "threads; no figure",
        in_full=_without_waiting(variants) | _computing_alone(variants),
    )


def precision(base: Settings) -> Experiment:
    """[004] names apex: half of the bits, and colors beside each other, as tensor cores want it.

    Without a GPU a CPU trains the classifier on small images: in bfloat16, which few CPUs know.
    """
    if base.device is None and not gpu.cuda().works:
        base = replace(base, device="cpu", preprocessor="classification")
        base = replace(base, input_px=base.input_px or CPU_PX)
    base = replace(base, precision="fp32", memory_format="contiguous")
    variants = {
        "fp32": base,
        "amp": replace(base, precision="amp"),
        "channels_last": replace(base, memory_format="channels_last"),
        "amp, channels_last": replace(base, precision="amp", memory_format="channels_last"),
    }
    return Experiment(
        "precision",
        question="Do mixed precision and channels_last shorten the epoch?",
        variants=variants,
        baseline="fp32",
        source="[004] 2.6: apex, whose mixed precision is torch's own today; no figure",
        in_full=_computing_alone(variants),
    )


def _without_waiting(variants: dict[str, Settings]) -> dict[str, Settings]:
    """The same with no wait at the end of a step: what looks by itself waits still."""
    return {f"{label}, no waiting": replace(s, sync_every=0) for label, s in variants.items()}


def _computing_alone(variants: dict[str, Settings]) -> dict[str, Settings]:
    """The same on one batch that is there already: what is left is the step."""
    return {
        f"computing alone: {label}": replace(s, loader="resident") for label, s in variants.items()
    }
