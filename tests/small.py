"""Settings that are ready at once, for tests in which nothing is measured."""

from __future__ import annotations

from dataclasses import replace

import labkit as lab
from labkit.settings import complete

# A real device that computes nothing: what is looked at is not how fast it is.
SMALL = {
    "storage": "here", "device": "cpu", "step": "nothing", "preprocessor": "vectorized",
    "cache": "as found", "input_px": 64, "batch_size": 4, "images": 8, "num_workers": 1,
    "epochs": 1,
}  # fmt: skip


def completed(**changes: object) -> lab.Settings:
    """Settings as quick mode completes them on two cores without CUDA; 64 px, batches of 4."""
    chosen = lab.Settings(**{"input_px": 64, "batch_size": 4, **changes})
    step = lab.PREPROCESSORS[chosen.preprocessor].batch
    return complete(chosen, cores=2, has_cuda=False, can_fork=True, real_step=step)


def compare(data, results, variants, base=None, progress=False, blocks=1, **changes) -> lab.Run:
    """Run variants that each change some settings of the same base; the first is the baseline."""
    settings = lab.Settings(**{**SMALL, "num_workers": 0, "data": str(data), **(base or {})})
    experiment = lab.Experiment(
        "test",
        question="?",
        variants={label: replace(settings, **one) for label, one in variants.items()},
        baseline=next(iter(variants)),
        **changes,
    )
    return lab.run(experiment, blocks=blocks, results=results, progress=progress)
