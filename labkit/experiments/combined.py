"""What do all changes save together?  See notebook 06_combined."""

from __future__ import annotations

import itertools
from dataclasses import replace

from labkit.experiments import prefetching, preprocessing, storage
from labkit.experiments.sweep import full_only, with_published
from labkit.machine.page_cache import can_evict
from labkit.runs.experiment import Variants, as_experiment
from labkit.settings import Settings, with_settings

# Normalized times that [004] reported: the bar labels of its charts (DOCUMENTS 0.1).
PUBLISHED = {
    "original": 1.00,
    "ssd + data_prefetcher + on_device": 0.61,
    "ssd + prefetch_generator + on_device": 0.61,
}


# Published combination -> the published time of each of its changes alone.
SINGLE_EFFECTS = {
    f"ssd + {prefetcher} + on_device": {
        "ssd": storage.PUBLISHED["ssd"],
        prefetcher: prefetching.PUBLISHED[prefetcher],
        "on_device": preprocessing.PUBLISHED["simplified"],
    }
    for prefetcher in ("data_prefetcher", "prefetch_generator")
}


@as_experiment(
    "How much do the documents' remedies save together?",
    source="[004] section 3.4: 39 % together",
    runs_by_default=True,
)
def combined(base: Settings) -> Variants:
    """Compare the documents' remedies together with what they started from.

    Full mode measures all combinations, and loading and computing alone.

    Source: [004] section 3.4.
    """
    if not can_evict():  # every medium is modelled then, and a model can be cold
        base = replace(base, cache="cold")
    levels = {
        "storage": ("hdd", "ssd"),
        "prefetcher": ("none", "prefetch_generator", "data_prefetcher"),
        "preprocessor": ("loops", "on_device"),
    }
    combinations = {
        " + ".join(values): with_settings(base, dict(zip(levels, values)))
        for values in itertools.product(*levels.values())
    }
    original = combinations.pop("hdd + none + loops")
    floors = {
        f"loading alone: {disk} + {code}": replace(
            base, storage=disk, preprocessor=code, step="nothing"
        )
        for disk, code in itertools.product(levels["storage"], levels["preprocessor"])
    }
    floors |= {
        f"computing alone: {code}": replace(
            base, storage="hdd", preprocessor=code, loader="resident"
        )
        for code in levels["preprocessor"]
    }
    variants = {
        "original": original,
        **{label: combinations.pop(label) for label in SINGLE_EFFECTS},
        **full_only({**combinations, **floors}),
    }
    return with_published(PUBLISHED, variants)
