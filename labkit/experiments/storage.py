"""Does a faster disk help?  See notebook 03_storage.

The documents' own media are named; where this machine has no hard disk, `catalog.build` replaces
them.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.sweep import (
    change_all,
    full_only,
    in_document_order,
    in_groups,
    with_published,
)
from labkit.machine import media
from labkit.runs.experiment import Experiment
from labkit.settings import Settings

# Normalized times that [004] reported: the bar labels of its charts (DOCUMENTS 0.1).
PUBLISHED = {"hdd": 1.000, "ssd": 0.860, "tmpfs": 0.864}


def storage(base: Settings) -> Experiment:
    """Compare a hard disk with faster media, each cold and warm.

    Source: [004] section 3.2, experiment 2.
    """
    cold = replace(base, cache="cold", preprocessor="loops")
    disks = {"hdd": replace(cold, storage="hdd"), "ssd": replace(cold, storage="ssd")}
    nvme = {"nvme": replace(cold, storage="nvme")} if "nvme" in media.media() else {}
    # Files in memory cannot be cold.
    every = {**disks, "tmpfs": replace(cold, storage="tmpfs", cache="warm"), **nvme}
    warm = change_all({**disks, **nvme}, "{}, warm", cache="warm")
    in_memory = {"hdd, warm": warm.pop("hdd, warm")}
    return Experiment(
        "storage",
        question="Does a faster disk shorten the epoch?",
        variants=with_published(PUBLISHED, {**every, **in_memory, **full_only(warm)}),
        source="[004] section 3.2, experiment 2",
        document_order=in_document_order(every),
        at_several_speeds=True,
        runs_by_default=True,
    )


def memory(base: Settings) -> Experiment:
    """Compare media and packing where memory holds a part of the data, as with most data sets.

    The part is the same before every epoch, and a group of its own.

    Source: EVIDENCE 2, "How much of the data memory holds".
    """
    # Every epoch begins with the same share: a second one would only repeat the first.
    base = replace(base, preprocessor="classification", subset="first", epochs=1)
    # Read at random, a pack takes an access for each image, as files do.
    arms = {
        "hard disk": replace(base, storage="hdd", packing="folder"),
        "packed, in order": replace(base, storage="hdd", packing="raw", shuffle=False),
        "SSD": replace(base, storage="ssd", packing="folder"),
    }
    groups = {f"{n} % in memory": change_all(arms, cache=n) for n in (0, 25, 50, 75, 100)}
    quick = [f"{n} % in memory" for n in (0, 50, 100)]  # quick mode has time for three shares
    return Experiment(
        "memory",
        question="What do an SSD and packing save if memory holds part of the data?",
        variants=in_groups(groups, lambda group, label: group in quick),
        source="[001] 3.1.2, [004] section 3.2: no numbers for data larger than memory",
        notes=(
            "data that is copied first to an SSD takes the SSD's time, and once that of the copy: "
            "see labkit advise",
        ),
    )
