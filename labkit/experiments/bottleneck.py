"""Where does the time go?  See notebook 01_bottleneck."""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.training_loop import loop_alone
from labkit.runs.experiment import Variants, as_experiment, full_only
from labkit.settings import Settings, change_all

# Bottlenecks that are known beforehand.
LOADING, COMPUTING, LOSS = "loading", "computing", "loss in loops"
# With one worker this alone is twice a step of the simulated GPU, on however many cores.
JITTER_MS = 6


@as_experiment(
    "Do a loop's phases show what holds it back?",
    source="[000]: a profile shows whether reading is the bottleneck; [002] 2: time loading, "
    "forward and backward pass; no figures",
)
def bottlenecks(base: Settings) -> Variants:
    """Compare training loops whose bottleneck is known: does timing their phases find it?

    Phases are the host's time.  Where no step waits for the device, its work is counted wherever
    the host waits next, as in [002]'s loop: so each bottleneck runs with and without that wait.

    Source: [000], [002] 2.
    """
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
    every = known | change_all(known, "{}, not synchronized", sync_every=0)
    quick = {
        name: every.pop(name) for name in (LOADING, COMPUTING, f"{COMPUTING}, not synchronized")
    }
    return quick | full_only(every)


EXPERIMENTS = (bottlenecks,)
