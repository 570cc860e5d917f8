"""In depth, diagnosis: loops whose bottleneck is known, and what their phases say of it.

    loading             samples come late, one worker        the host waits for batches
    computing           one batch stays in memory            the device works all the time
    loss in loops       the same, and a loss over boxes      the host itself is busy

Main trap: phases are the host's time.  Where nothing waits for the device at the end of a step, its
work is paid for wherever the host waits next: in [002]'s loop that is the copy of the next batch,
which counts as loading there.  So each bottleneck also stands without that wait.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.callbacks import loop_alone
from labkit.runs.experiment import Experiment
from labkit.settings import Settings

LOADING, COMPUTING, LOSS = "loading", "computing", "loss in loops"
NAIVE = "not synchronized"
# With one worker this alone is twice a step of the emulated device, on however many cores.
JITTER_MS = 6


def bottlenecks(base: Settings) -> Experiment:
    """[000], [002]: a bottleneck put in on purpose; do phases find it, and do naive ones?"""
    base = replace(
        loop_alone(base),  # a step as short as a fast GPU's
        cache="warm",  # nothing is late but what is meant to be
        preprocessor="on_device",  # has boxes, which the loss loops over
        jitter_ms=base.jitter_ms or JITTER_MS,
        num_workers=1 if base.num_workers is None else base.num_workers,
        pin_memory=bool(base.pin_memory),  # a copy from ordinary memory waits for the device
        sync_every=1,
        epochs=1,
    )
    known = {
        LOADING: replace(base, loader="torch"),
        COMPUTING: base,
        LOSS: replace(base, loss="loops"),  # a tenth of a second a step: quick mode leaves it out
    }
    naive = {f"{name}, {NAIVE}": replace(s, sync_every=0) for name, s in known.items()}
    every = known | naive
    quick = {name: every.pop(name) for name in (LOADING, COMPUTING, f"{COMPUTING}, {NAIVE}")}
    return Experiment(
        "bottlenecks",
        question="Do a loop's phases show what holds it back?",
        variants=quick,
        baseline=LOADING,
        source="[000]: a profile shows whether reading is the bottleneck; [002] 2: time loading, "
        "forward and backward pass; no figures",
        in_full=every,
    )
