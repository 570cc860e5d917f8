"""Where does the time go?  See notebook 01_bottleneck."""

from __future__ import annotations

from dataclasses import replace

from labkit.experiments.sweep import change_all, full_only
from labkit.runs.experiment import Variants, as_experiment
from labkit.settings import Settings


@as_experiment(
    "Can timing the phases of the loop find the bottleneck?",
    source="[000]: a profile shows whether reading is the bottleneck; [002] 2: time loading, "
    "forward and backward pass; no number given",
)
def bottlenecks(base: Settings) -> Variants:
    """Compare training loops whose bottleneck is known: does timing their phases find it?

    Phases are the host's time.  Where no step waits for the device, its work is counted wherever
    the host waits next, as in [002]'s loop: so each bottleneck runs with and without that wait.

    Source: [000], [002] 2.
    """
    base = replace(
        base,
        cache="warm",  # nothing is late but what is meant to be
        loader="resident",
        # A step as short as a fast GPU's.
        batch_size=base.batch_size or 8,
        gpu_images_per_s=base.gpu_images_per_s or "resnet50_a100",
        preprocessor="on_device",  # has boxes, which the loss loops over
        # With one worker 6 ms alone are twice a step of the simulated GPU, on any number of cores.
        jitter_ms=base.jitter_ms or 6,
        num_workers=1 if base.num_workers is None else base.num_workers,
        pin_memory=bool(base.pin_memory),  # a copy from ordinary memory waits for the device
        sync_every=1,
        epochs=1,
    )
    known = {
        "loading": replace(base, loader="torch"),
        "computing": base,
        # A step takes a tenth of a second: quick mode leaves it out.
        "loss in loops": replace(base, loss="loops"),
    }
    every = known | change_all(known, "{}, not synchronized", sync_every=0)
    names = ("loading", "computing", "computing, not synchronized")
    quick = {name: every.pop(name) for name in names}
    return quick | full_only(every)
