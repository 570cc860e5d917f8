"""Checkpoints, logs, metrics: what the loop does beside loading.  See notebook 09_training_loop.

Most of these experiments keep one batch in memory, so that the loop alone makes an epoch longer
than the baseline's.  Printing a loss writes a line and waits for the device; variants without the
loss separate the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from labkit.experiments.sweep import SettingsOrVariant, change_all, full_only, sweep
from labkit.machine import gpu
from labkit.records import StepsAxis
from labkit.runs.experiment import Variant, Variants, as_experiment
from labkit.settings import IN_THREAD, WITHOUT_LOSS, Settings

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
    variants = sweep(
        base,
        "loss",
        {
            "loops": "loops",
            "loops, looking each time": "loops_sync",
            "loops in threads": "threads",
            "all at once": "vectorized",
        },
    )
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


def _computing_alone(
    variants: Mapping[str, SettingsOrVariant],
) -> dict[str, SettingsOrVariant]:
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
    x_axis=StepsAxis(setting="checkpoint_every"),
)
def checkpoints(base: Settings) -> Variants:
    """Compare how often checkpoints are saved, in the loop and in a thread.

    Source: [001] 3.3.
    """
    base = _loop_alone(base)

    def saved(every: list[int], full: list[int]) -> dict[str, Variant]:
        return sweep(base, "checkpoint_every", every, full=full, label=_every)

    in_thread = saved([10], full=[1, 100])
    in_thread = change_all(in_thread, "{}, in a thread", checkpoint_writer="thread")
    in_memory = change_all(saved([], full=[1, 10, 100]), "{}, to tmpfs", checkpoint_to="tmpfs")
    return saved([0, 100, 10], full=[1]) | in_thread | in_memory


@as_experiment(
    "What does printing the loss cost, and how often may it be printed?",
    source="[001] 5.1: print logs every 100 steps",
    x_axis=StepsAxis(setting="report_every", advice=100, source="[001] 5.1"),
)
def logs(base: Settings) -> Variants:
    """Compare how often the loss is printed; the line and the wait for the loss are separated.

    Source: [001] 5.1.
    """
    base = _loop_alone(base)

    def printed(every: list[int], full: list[int], sink: str) -> dict[str, Variant]:
        to_sink = replace(base, report_to=sink)
        return sweep(to_sink, "report_every", every, full=full, label=_every)

    def with_and_without_loss(sink: str) -> dict[str, Variant]:
        unread = printed([1], full=[10, 100], sink=f"{sink}{WITHOUT_LOSS}")
        unread = change_all(unread, "{}, without the loss")
        return printed([1, 10, 100], full=[], sink=sink) | unread

    to_terminal = change_all(with_and_without_loss("terminal"), "{}, terminal")
    never = printed([0], full=[], sink="file")
    return never | with_and_without_loss("file") | full_only(to_terminal)


@as_experiment(
    "What do metrics sent to a server cost, and how often may they be sent?",
    source="[001] 4.2: report metrics every 100 steps",
    x_axis=StepsAxis(setting="report_every", advice=100, source="[001] 4.2"),
)
def metric_reports(base: Settings) -> Variants:
    """Compare how often metrics are sent to a server that answers after a delay.

    Source: [001] 4.2.
    """
    base = _loop_alone(base)
    near = sweep(replace(base, report_to=NEAR), "report_every", [1, 10, 100], label=_every)
    in_thread = change_all(near, "{}, in the background", report_to=f"{NEAR}{IN_THREAD}")
    often_in_thread = {label: in_thread[label] for label in ("every step, in the background",)}
    others = change_all(near, "{}, without the loss", report_to=f"{NEAR}{WITHOUT_LOSS}")
    # A distant server answers in some tens of milliseconds.
    others |= change_all(near, "{}, to a slower server", report_to="http_50ms")
    return {"never": base} | near | full_only(in_thread | others) | often_in_thread


@as_experiment(
    "What do evaluation metrics cost during training?",
    source="[001] section 2: evaluation metrics among eight CPU jobs; no number given",
    x_axis=StepsAxis(setting="metrics_every"),
)
def evaluation(base: Settings) -> Variants:
    """Compare how often evaluation metrics are computed, in a loop over samples and in one call.

    Source: [001] section 2.
    """
    base = _loop_alone(base)

    def computed(how: str, every: list[int], full: list[int]) -> dict[str, Variant]:
        base_of_how = replace(base, metrics=how)
        swept = sweep(base_of_how, "metrics_every", every, full=full, label=_every)
        return change_all(swept, f"{how}, {{}}")

    loops = computed("loops", [1, 10], full=[100])
    return {"none": base} | loops | computed("vectorized", [1], full=[10, 100])


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


def _every(n: int) -> str:
    return f"every {n} steps" if n > 1 else "every step" if n else "never"
