"""Does simpler preprocessing help?  See notebook 04_preprocessing."""

from __future__ import annotations

from labkit.experiments.single_operations import timed_alone
from labkit.experiments.sweep import sweep, with_published
from labkit.runs.experiment import Experiment, Variants, as_experiment
from labkit.runs.operation_trials import SAMPLE
from labkit.settings import Settings

# Normalized times that [004] reported: the bar labels of its charts (DOCUMENTS 0.1).
PUBLISHED = {"original": 1.000, "simplified": 0.661}


@as_experiment(
    "How much time does simpler preprocessing code save?",
    source="[004] section 3.3, experiment 3",
    runs_by_default=True,
)
def preprocessing(base: Settings) -> Variants:
    """Compare the documents' preprocessing in loops with simpler code for the same work.

    Source: [004] section 3.3, experiment 3.
    """
    ways = {"original": "loops", "vectorized": "vectorized", "simplified": "on_device"}
    return with_published(PUBLISHED, sweep(base, "preprocessor", ways))


def lookups(base: Settings) -> Experiment:
    """Compare ways to look labels up and to keep a configuration, beside the time of a sample.

    Source: [001] 2.1.
    """
    names = (10, 100, 1_000, 10_000)  # COCO has 80 classes, ImageNet 1,000
    sizes = {f"label among {n:,} names": ("label", {"names": n}) for n in names}
    sizes |= {
        f"configuration of {n:,} KB": ("configuration", {"kilobytes": n}) for n in (10, 1_000)
    }
    return timed_alone(
        base,
        "lookups",
        {**sizes, SAMPLE: (SAMPLE, {})},
        question="How much time do list look-ups and repeated parsing cost?",
        source="[001] 2.1: load the configuration once, look up in a dict; no number given",
    )
