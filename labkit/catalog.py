"""Catalog: the documents' experiments as data, with the figures they reported.

Each entry takes the settings that all its variants share and returns an
Experiment, baseline first.  The figures are the bar labels of the original
blog's charts (DOCUMENTS 0.1); a document's figure that was never published is
left out, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from labkit.experiment import Experiment
from labkit.pagecache import can_evict
from labkit.settings import Settings, pick, with_settings


def document_base() -> Settings:
    """Give what [004] ran: images from disk, decoded by OpenCV, the original code.

    Its first epoch was cold; where a platform cannot make files cold again, warm is all that
    can be compared.
    """
    return Settings(
        cache="cold" if can_evict() else "warm",
        decoder="opencv",
        preprocessor="loops",
        loader="torch",
    )


def prefetching(base: Settings) -> Experiment:
    """Experiment 1 of [004]: does fetching ahead shorten the epoch?"""
    return Experiment(
        "prefetching",
        question="Does fetching the next batch ahead shorten the epoch?",
        variants={
            "original": replace(base, prefetcher="none"),
            "prefetch_generator": replace(base, prefetcher="prefetch_generator"),
            "data_prefetcher": replace(base, prefetcher="data_prefetcher"),
            "both": replace(base, prefetcher="both"),
        },
        baseline="original",
        published={
            "original": 1.000,
            "prefetch_generator": 0.894,
            "data_prefetcher": 0.891,
            "both": 0.897,
        },
        source="[004] section 3.1, experiment 1",
    )


def preprocessing(base: Settings) -> Experiment:
    """Experiment 3 of [004]: how much does simpler preprocessing code save?"""
    return Experiment(
        "preprocessing",
        question="How much time does simpler preprocessing code save?",
        variants={
            "original": replace(base, preprocessor="loops"),
            "vectorized": replace(base, preprocessor="vectorized"),
            "simplified": replace(base, preprocessor="on_device"),
        },
        baseline="original",
        published={"original": 1.000, "simplified": 0.661},
        source="[004] section 3.3, experiment 3",
    )


# The main road, in the documents' order.
CATALOG: dict[str, Callable[[Settings], Experiment]] = {
    "prefetching": prefetching,
    "preprocessing": preprocessing,
}


def experiment(name: str, **changes: object) -> Experiment:
    """Take an experiment from the catalog, with settings of one's own.

    Args:
        name: a key of `CATALOG`.
        **changes: settings that all variants share, as ``data="data/coco", num_workers=4``.

    Raises:
        ValueError: unknown name or setting; the choices are listed.
    """
    build = pick(CATALOG, name, "experiment")
    return build(with_settings(document_base(), changes))
