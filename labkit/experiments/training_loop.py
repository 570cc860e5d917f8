"""Checkpoints, logs, metrics: what the loop does beside loading.  See notebook 09_training_loop.

Most of these experiments keep one batch in memory, so that the loop alone makes an epoch longer
than the baseline's.  Printing a loss writes a line and waits for the device; variants without the
loss separate the two.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.machine import gpu
from labkit.records import XAxis
from labkit.runs.experiment import Variants, as_experiment, full_only
from labkit.settings import IN_THREAD, Settings, change_all

STEP_INTERVALS = (1, 10, 100)
NEAR = "http_5ms"  # a server in the local network answers in a few milliseconds


@as_experiment(
    "Does a loss without loops over boxes shorten the epoch?",
    source="[001] 4.1: for loops in a loss block the GPU; simplify, or use processes or "
    "threads; no number given",
)
def loss(base: Settings) -> Variants:
    """Compare a loss that loops over boxes with the same loss in threads and vectorized.

    Source: [001] 4.1.
    """
    # Loops over the boxes take some hundredths of a second for each image.
    base = replace(base, batch_size=base.batch_size or 2, epochs=1)
    variants = {
        "loops": replace(base, loss="loops"),
        "loops, looking each time": replace(base, loss="loops_sync"),
        "loops in threads": replace(base, loss="threads"),
        "all at once": replace(base, loss="vectorized"),
    }
    return variants | full_only(
        change_all(variants, "{}, no waiting", sync_every=0) | _computing_alone(variants)
    )


@as_experiment(
    "Do mixed precision, channels_last and torch.compile shorten the epoch?",
    source="[004] 2.6: apex, whose mixed precision is torch's own today; no number given",
)
def precision(base: Settings) -> Variants:
    """Compare float32 with mixed precision, with channels_last and with a compiled model.

    Compiling takes tens of seconds before the epochs, so only full mode does it. Without a GPU, a
    CPU trains the classifier on small images, in bfloat16 if it has AVX-512.

    Source: [004] 2.6.
    """
    if base.device is None and not gpu.cuda().works:
        base = replace(
            base,
            device="cpu",
            preprocessor="classification",
            # A CPU is slow: a few small images make epochs of about a second.
            input_px=base.input_px or 64,
            batch_size=base.batch_size or 4,
        )
    base = replace(base, precision="fp32", memory_format="contiguous", compile_model=False)
    variants = {
        "fp32": base,
        "amp": replace(base, precision="amp"),
        "channels_last": replace(base, memory_format="channels_last"),
        "amp, channels_last": replace(base, precision="amp", memory_format="channels_last"),
    }
    compiled = change_all(
        {name: variants[name] for name in ("fp32", "amp, channels_last")},
        "{}, compiled",
        compile_model=True,
    )
    return variants | full_only(compiled | _computing_alone(variants | compiled))


def _computing_alone(variants: dict[str, Settings]) -> dict[str, Settings]:
    """Return the variants on one batch that stays in memory, so that only the step counts."""
    return change_all(variants, "computing alone: {}", loader="resident")


@as_experiment(
    "What does the training loop itself make the device wait for?",
    source="[001] section 2: eight CPU jobs, six of them in the training loop, of which the "
    "loss has an experiment of its own; no number given",
)
def stalls(base: Settings) -> Variants:
    """Compare checkpoints, metrics, logs, reports and a progress bar with a bare training loop.

    Source: [001] section 2.
    """
    base = replace(_loop_alone(base), epochs=1)
    return {
        "nothing beside the step": base,
        "checkpoint every 10 steps": replace(base, checkpoint_every=10),
        "metrics in loops": replace(base, metrics="loops"),
        "loss printed every step": replace(base, report_every=1, report_to="terminal"),
        "loss sent every step": replace(base, report_every=1, report_to=NEAR),
        "progress bar": replace(base, progress_bar="tqdm_loss"),
        **full_only(
            {
                "waiting for every step": replace(base, sync_every=1),
                "checkpoint every 100 steps": replace(base, checkpoint_every=100),
                "metrics vectorized": replace(base, metrics="vectorized"),
                "progress bar without the loss": replace(base, progress_bar="tqdm"),
            }
        ),
    }


@as_experiment(
    "What do checkpoints cost, and how often may one be saved?",
    source="[001] 3.3: save fewer checkpoints; no number given",
    x_axis=XAxis(setting="checkpoint_every"),
)
def checkpoints(base: Settings) -> Variants:
    """Compare how often checkpoints are saved, in the loop and in a thread.

    Source: [001] 3.3.
    """
    base = _loop_alone(base)
    by = {"": "sync", ", in a thread": "thread"}
    every = {
        f"every {_steps(n)}{how}": replace(base, checkpoint_every=n, checkpoint_writer=writer)
        for how, writer in by.items()
        for n in STEP_INTERVALS
    }
    names = ("every 100 steps", "every 10 steps", "every 10 steps, in a thread")
    quick = {"never": base} | {name: every.pop(name) for name in names}
    in_memory = {
        f"every {_steps(n)}, to tmpfs": replace(base, checkpoint_every=n, checkpoint_to="tmpfs")
        for n in STEP_INTERVALS
    }
    return quick | full_only({**every, **in_memory})


@as_experiment(
    "What does printing the loss cost, and how often may it be printed?",
    source="[001] 5.1: print logs every 100 steps",
    x_axis=XAxis(setting="report_every", advice=100, source="[001] 5.1"),
)
def logs(base: Settings) -> Variants:
    """Compare how often the loss is printed; the line and the wait for the loss are separated.

    Source: [001] 5.1.
    """
    base = _loop_alone(base)
    printed = {
        f"every {_steps(n)}": replace(base, report_every=n, report_to="file")
        for n in STEP_INTERVALS
    }
    unread = change_all(printed, "{}, without the loss", report_loss=False)
    shown = change_all(printed | unread, "{}, terminal", report_to="terminal")
    names = ("every step, without the loss",)
    return (
        {"never": base}
        | printed
        | {name: unread.pop(name) for name in names}
        | full_only({**unread, **shown})
    )


@as_experiment(
    "What do metrics sent to a server cost, and how often may they be sent?",
    source="[001] 4.2: report metrics every 100 steps",
    x_axis=XAxis(setting="report_every", advice=100, source="[001] 4.2"),
)
def metric_reports(base: Settings) -> Variants:
    """Compare how often metrics are sent to a server that answers after a delay.

    Source: [001] 4.2.
    """
    base = _loop_alone(base)
    near = {
        f"every {_steps(n)}": replace(base, report_every=n, report_to=NEAR) for n in STEP_INTERVALS
    }
    others = change_all(near, "{}, without the loss", report_loss=False)
    others |= change_all(near, "{}, in the background", report_to=f"{NEAR}{IN_THREAD}")
    # A distant server answers in some tens of milliseconds.
    others |= change_all(near, "{}, to a slower server", report_to="http_50ms")
    names = ("every step, in the background",)
    return {"never": base} | near | {name: others.pop(name) for name in names} | full_only(others)


@as_experiment(
    "What do evaluation metrics cost during training?",
    source="[001] section 2: evaluation metrics among eight CPU jobs; no number given",
    x_axis=XAxis(setting="metrics_every"),
)
def evaluation(base: Settings) -> Variants:
    """Compare how often evaluation metrics are computed, in a loop over samples and in one call.

    Source: [001] section 2.
    """
    base = _loop_alone(base)
    every = {
        f"{how}, every {_steps(n)}": replace(base, metrics=how, metrics_every=n)
        for how in ("loops", "vectorized")
        for n in STEP_INTERVALS
    }
    names = ("loops, every step", "loops, every 10 steps", "vectorized, every step")
    return {"none": base} | {name: every.pop(name) for name in names} | full_only(every)


def _loop_alone(base: Settings) -> Settings:
    """Return settings that keep one batch in memory and never wait for the device."""
    return replace(
        base,
        cache="as found",  # nothing is read
        preprocessor="classification",
        loader="resident",
        # Short steps, as on a fast GPU: the shorter the step, the more a stall costs.
        batch_size=base.batch_size or 8,
        gpu_images_per_s=base.gpu_images_per_s or "resnet50_a100",
        sync_every=0,
    )


def _steps(n: int) -> str:
    return "step" if n == 1 else f"{n} steps"
