"""In depth: what the training loop does beside loading.

Most of these experiments keep one batch in memory, so that the loop alone makes an epoch longer
than the baseline's.  Printing a loss writes a line and waits for the device; variants without the
loss separate the two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from labkit.contracts import Dial
from labkit.machine import gpu
from labkit.parts.training.exchange import ALL_REDUCE, NO_SYNC, NOOP
from labkit.runs.experiment import Experiment, in_groups
from labkit.settings import Settings, change_all

# Settings that the form shows first, where nothing is loaded.
LOOP_KNOBS = ("batch_size", "input_px", "device")
# A CPU trains so slowly that only a few small images make epochs of about a second.
CPU_PX, CPU_BATCH_SIZE = 64, 4
# Loops over the boxes take some hundredths of a second for each image.
LOOPS_BATCH_SIZE = 2
# Short steps, as on a fast GPU: the shorter the step, the more a stall costs.
BATCH_SIZE = 8
EVERY = (1, 10, 100)
# A server in the local network answers in a few milliseconds, a distant one in some tens.
NEAR, FAR = "http_5ms", "http_50ms"
# Two ranks' all-gather was 58 % slower than more ranks' (gloo#471), so full mode has four, too.
MACHINES = (2, 4)
EXCHANGE_PX, EXCHANGE_BATCH_SIZE = 128, 8
# GPUs of one machine; epochs in seconds that The-AI-Summer/pytorch-ddp reports.
GPUS = (2, 4)
GPU_BATCH_SIZE = 32  # of each: enough work for a step to hide a part of the exchange
ONE_GPU_S = 13.08
SEVERAL_GPUS_S = {
    "DataParallel, 2 GPUs": 42.97,
    "DistributedDataParallel, 2 GPUs": 9.79,
    "DataParallel, 4 GPUs": 31.32,
    "DistributedDataParallel, 4 GPUs": 6.11,
}
# Bottlenecks that are known beforehand.
LOADING, COMPUTING, LOSS = "loading", "computing", "loss in loops"
# With one worker this alone is twice a step of the emulated device, on however many cores.
JITTER_MS = 6


def loss(base: Settings) -> Experiment:
    """Compare a loss that loops over boxes with the same loss in threads and vectorized.

    Source: [001] 4.1.
    """
    base = replace(base, batch_size=base.batch_size or LOOPS_BATCH_SIZE, epochs=1)
    variants = {
        "loops": replace(base, loss="loops"),
        "loops, looking each time": replace(base, loss="loops_sync"),
        "loops in threads": replace(base, loss="threads"),
        "all at once": replace(base, loss="vectorized"),
    }
    return Experiment(
        "loss",
        question="Does a loss without loops over boxes shorten the epoch?",
        variants=variants,
        source="[001] 4.1: for loops in a loss block the GPU; simplify, or use processes or "
        "threads; no figure",
        in_full=change_all(variants, "{}, no waiting", sync_every=0) | _computing_alone(variants),
        knobs=("num_workers", "preprocessor", "batch_size", "sync_every", "profile", "device"),
    )


def precision(base: Settings) -> Experiment:
    """Compare float32 with mixed precision and with channels_last.

    Without a GPU, a CPU trains the classifier on small images, in bfloat16 if it has AVX-512.

    Source: [004] 2.6.
    """
    if base.device is None and not gpu.cuda().works:
        base = replace(
            base,
            device="cpu",
            preprocessor="classification",
            input_px=base.input_px or CPU_PX,
            batch_size=base.batch_size or CPU_BATCH_SIZE,
        )
    base = replace(base, precision="fp32", memory_format="contiguous")
    variants = {
        "fp32": base,
        "amp": replace(base, precision="amp"),
        "channels_last": replace(base, memory_format="channels_last"),
        "amp, channels_last": replace(base, precision="amp", memory_format="channels_last"),
    }
    return Experiment(
        "precision",
        question="Do mixed precision and channels_last shorten the epoch?",
        variants=variants,
        source="[004] 2.6: apex, whose mixed precision is torch's own today; no figure",
        in_full=_computing_alone(variants),
        knobs=("num_workers", "batch_size", "input_px", "cache", "device"),
    )


def _computing_alone(variants: dict[str, Settings]) -> dict[str, Settings]:
    """Return the variants on one batch that stays in memory, so that only the step counts."""
    return change_all(variants, "computing alone: {}", loader="resident")


def stalls(base: Settings) -> Experiment:
    """Compare checkpoints, metrics, logs, reports and a progress bar with a bare training loop.

    Source: [001] section 2.
    """
    base = replace(_loop_alone(base), epochs=1)
    return Experiment(
        "stalls",
        question="What does the training loop itself make the device wait for?",
        variants={
            "nothing beside the step": base,
            "checkpoint every 10 steps": replace(base, checkpoint_every=10),
            "metrics in loops": replace(base, metrics="loops"),
            "loss printed every step": replace(base, report_every=1, report_to="terminal"),
            "loss sent every step": replace(base, report_every=1, report_to=NEAR),
            "progress bar": replace(base, progress_bar="tqdm", progress_loss=True),
        },
        source="[001] section 2: eight CPU jobs, six of them in the training loop, of which the "
        "loss has an experiment of its own; no figures",
        in_full={
            "waiting for every step": replace(base, sync_every=1),
            "checkpoint every 100 steps": replace(base, checkpoint_every=100),
            "metrics vectorized": replace(base, metrics="vectorized"),
            "progress bar without the loss": replace(base, progress_bar="tqdm"),
        },
        knobs=LOOP_KNOBS,
    )


def checkpoints(base: Settings) -> Experiment:
    """Compare how often checkpoints are saved, in the loop and in a thread.

    Source: [001] 3.3.
    """
    base = _loop_alone(base)
    by = {"": "sync", ", in a thread": "thread"}
    every = {
        f"every {_steps(n)}{how}": replace(base, checkpoint_every=n, saver=saver)
        for how, saver in by.items()
        for n in EVERY
    }
    names = ("every 100 steps", "every 10 steps", "every 10 steps, in a thread")
    quick = {"never": base} | {name: every.pop(name) for name in names}
    in_memory = {
        f"every {_steps(n)}, to tmpfs": replace(base, checkpoint_every=n, checkpoint_to="tmpfs")
        for n in EVERY
    }
    return Experiment(
        "checkpoints",
        question="What do checkpoints cost, and how often may one be saved?",
        variants=quick,
        source="[001] 3.3: save fewer checkpoints; no figure",
        dial=Dial(setting="checkpoint_every"),
        in_full={**every, **in_memory},
        knobs=("checkpoint_to", "batch_size", "input_px", "device"),
    )


def logs(base: Settings) -> Experiment:
    """Compare how often the loss is printed; the line and the wait for the loss are separated.

    Source: [001] 5.1.
    """
    base = _loop_alone(base)
    printed = {f"every {_steps(n)}": replace(base, report_every=n, report_to="file") for n in EVERY}
    unread = change_all(printed, "{}, without the loss", report_loss=False)
    shown = change_all(printed | unread, "{}, terminal", report_to="terminal")
    names = ("every step, without the loss",)
    return Experiment(
        "logs",
        question="What does printing the loss cost, and how often may it be printed?",
        variants={"never": base} | printed | {name: unread.pop(name) for name in names},
        source="[001] 5.1: print logs every 100 steps",
        dial=Dial(setting="report_every", advice=100, source="[001] 5.1"),
        in_full={**unread, **shown},
        knobs=LOOP_KNOBS,
    )


def metric_reports(base: Settings) -> Experiment:
    """Compare how often metrics are sent to a server that answers after a delay.

    Source: [001] 4.2.
    """
    base = _loop_alone(base)
    near = {f"every {_steps(n)}": replace(base, report_every=n, report_to=NEAR) for n in EVERY}
    others = change_all(near, "{}, without the loss", report_loss=False)
    others |= change_all(near, "{}, in the background", report_in_background=True)
    others |= change_all(near, "{}, to a slower server", report_to=FAR)
    names = ("every step, in the background",)
    return Experiment(
        "metric_reports",
        question="What do metrics sent to a server cost, and how often may they be sent?",
        variants={"never": base} | near | {name: others.pop(name) for name in names},
        source="[001] 4.2: report metrics every 100 steps",
        dial=Dial(setting="report_every", advice=100, source="[001] 4.2"),
        in_full=others,
        knobs=LOOP_KNOBS,
    )


def evaluation(base: Settings) -> Experiment:
    """Compare how often evaluation metrics are computed, in a loop over samples and in one call.

    Source: [001] section 2.
    """
    base = _loop_alone(base)
    every = {
        f"{how}, every {_steps(n)}": replace(base, metrics=how, metrics_every=n)
        for how in ("loops", "vectorized")
        for n in EVERY
    }
    names = ("loops, every step", "loops, every 10 steps", "vectorized, every step")
    return Experiment(
        "evaluation",
        question="What do evaluation metrics cost during training?",
        variants={"none": base} | {name: every.pop(name) for name in names},
        source="[001] section 2: evaluation metrics among eight CPU jobs; no figure",
        dial=Dial(setting="metrics_every"),
        in_full=every,
        knobs=LOOP_KNOBS,
    )


def _loop_alone(base: Settings) -> Settings:
    """Return settings that keep one batch in memory and never wait for the device."""
    return replace(
        base,
        cache="as found",  # nothing is read
        preprocessor="classification",
        loader="resident",
        batch_size=base.batch_size or BATCH_SIZE,
        profile=base.profile if base.has_device_speed else "resnet50_a100",
        sync_every=0,
    )


def _steps(n: int) -> str:
    return "step" if n == 1 else f"{n} steps"


def bottlenecks(base: Settings) -> Experiment:
    """Compare training loops whose bottleneck is known: does timing their phases find it?

    Phases are the host's time.  Where no step waits for the device, its work is counted wherever
    the host waits next, as in [002]'s loop: so each bottleneck runs with and without that wait.

    Source: [000], [002] 2.
    """
    base = replace(
        _loop_alone(base),  # a step as short as a fast GPU's
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
    return Experiment(
        "bottlenecks",
        question="Do a loop's phases show what holds it back?",
        variants=quick,
        source="[000]: a profile shows whether reading is the bottleneck; [002] 2: time loading, "
        "forward and backward pass; no figures",
        in_full=every,
        knobs=("jitter_ms", "num_workers", "batch_size", "input_px", "device"),
    )


def communication(base: Settings) -> Experiment:
    """Compare the exchange of gradients over links of several speeds with no exchange at all.

    A small model trains in processes that stand for machines; only its gradients are exchanged.

    Source: [001] 5.1; DISTRIBUTED, "Limited links".
    """
    device = base.device or "cpu"
    base = replace(
        base,
        device=device,
        step=base.step or ("small_classifier" if device != "emulated" else None),
        preprocessor="classification",
        loader="resident",
        cache="as found",
        num_workers=0,
        batch_size=base.batch_size or EXCHANGE_BATCH_SIZE,
        input_px=base.input_px or EXCHANGE_PX,
        epochs=1,
    )
    exchanges = {"no exchange": NOOP, "this machine's loopback": ALL_REDUCE}
    exchanges |= {f"{n:,} Mbit/s": f"{n}mbit" for n in (1_000, 400, 100, 50)}
    exchanges["no exchange, no_sync"] = NO_SYNC
    only_in_full = ("1,000 Mbit/s", "no exchange, no_sync")
    groups = {
        f"{ranks} machines": {
            label: replace(base, ranks=ranks, exchange=exchange)
            for label, exchange in exchanges.items()
        }
        for ranks in MACHINES
    }
    fewest = next(iter(groups))
    return Experiment(
        "communication",
        question="How much of a step do machines need to exchange gradients?",
        **in_groups(groups, lambda group, label: group == fewest and label not in only_in_full),
        source="[001] 5.1: machines in different modules take much longer; no figure",
        knobs=("batch_size", "input_px", "images", "device"),
    )


def data_parallel(base: Settings) -> Experiment:
    """Compare DataParallel with DistributedDataParallel; each GPU has a batch of the same size.

    One batch stays in memory.  Without several GPUs there is nothing to compare.

    Source: [001] 5.3; DISTRIBUTED, "Today's state".
    """
    base = replace(
        base,
        device=base.device or "cuda",
        preprocessor="classification",
        loader="resident",
        cache="as found",
        num_workers=0,
        batch_size=GPU_BATCH_SIZE,
        epochs=1,
    )
    variants = {"1 GPU": base}
    for gpus in GPUS:
        at_once: dict[str, Any] = {
            "exchange": f"data_parallel_{gpus}",
            "batch_size": gpus * GPU_BATCH_SIZE,
        }
        variants[f"DataParallel, {gpus} GPUs"] = replace(base, **at_once)
        variants[f"DistributedDataParallel, {gpus} GPUs"] = replace(base, ranks=gpus)
    return Experiment(
        "data_parallel",
        question="Do several GPUs train faster by DistributedDataParallel than by DataParallel?",
        variants=variants,
        published={label: epoch_s / ONE_GPU_S for label, epoch_s in SEVERAL_GPUS_S.items()},
        source="[001] 5.3: DistributedDataParallel; the published figures are those of "
        "The-AI-Summer/pytorch-ddp",
        knobs=("input_px", "images", "device"),
    )


EXPERIMENTS = (
    loss, precision, stalls, checkpoints, logs, metric_reports, evaluation,
    bottlenecks, communication, data_parallel,
)  # fmt: skip
