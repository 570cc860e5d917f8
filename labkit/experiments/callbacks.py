"""In depth, callbacks: what the training loop does beside its steps.

    stalls                              all of them in one experiment
    checkpoints, logs, metric_reports   how often, where to, and in the background
    evaluation, progress                in Python loops or vectorized; with and without a bar

Each function takes the settings that its variants share and returns an Experiment, baseline first.
Nothing is loaded: one batch stays in memory, so the training loop alone makes an epoch longer than
the baseline's.  Printing a loss writes a line and waits for the device; variants without the loss
separate the two.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.runs.experiment import Dial, Experiment
from labkit.settings import Settings

# Short steps, as on a fast GPU: the shorter the step, the more a stall costs.
BATCH_SIZE = 8
EVERY = (1, 10, 100)
# A server in the local network answers in a few milliseconds, a distant one in some tens.
NEAR, FAR = "http_5ms", "http_50ms"


def stalls(base: Settings) -> Experiment:
    """[001]: checkpoints, metrics, logs, reports and a progress bar."""
    base = replace(loop_alone(base), epochs=1)
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
        baseline="nothing beside the step",
        source="[001] section 2: eight CPU jobs, six of them in the training loop, of which the "
        "loss has an experiment of its own; no figures",
        in_full={
            "waiting for every step": replace(base, sync_every=1),
            "checkpoint every 100 steps": replace(base, checkpoint_every=100),
            "metrics vectorized": replace(base, metrics="vectorized"),
        },
    )


def checkpoints(base: Settings) -> Experiment:
    """[001] 3.3: save fewer checkpoints, or save them in a thread."""
    base = loop_alone(base)
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
        baseline="never",
        source="[001] 3.3: save fewer checkpoints; no figure",
        dial=Dial(setting="checkpoint_every"),
        in_full={**every, **in_memory},
    )


def logs(base: Settings) -> Experiment:
    """[001] 5.1: print every 100 steps; the cost of the line and of waiting for the loss."""
    base = loop_alone(base)
    quick = {"never": base} | {
        f"every {_steps(n)}": replace(base, report_every=n, report_to="file") for n in EVERY
    }
    unread = {
        f"{label}, without the loss": replace(settings, report_loss=False)
        for label, settings in quick.items()
        if settings.report_every
    }
    shown = {
        f"{label}, terminal": replace(settings, report_to="terminal")
        for label, settings in {**quick, **unread}.items()
        if settings.report_every
    }
    names = ("every step, without the loss",)
    return Experiment(
        "logs",
        question="What does printing the loss cost, and how often may it be printed?",
        variants=quick | {name: unread.pop(name) for name in names},
        baseline="never",
        source="[001] 5.1: print logs every 100 steps",
        dial=Dial(setting="report_every", advice=100, source="[001] 5.1"),
        in_full={**unread, **shown},
    )


def metric_reports(base: Settings) -> Experiment:
    """[001] 4.2: report metrics every 100 steps, to a server that answers after a delay."""
    base = loop_alone(base)
    near = {f"every {_steps(n)}": replace(base, report_every=n, report_to=NEAR) for n in EVERY}
    others = {
        f"{label}, {words}": replace(settings, **changes)
        for words, changes in {
            "without the loss": {"report_loss": False},
            "in the background": {"report_in_background": True},
            "to a slower server": {"report_to": FAR},
        }.items()
        for label, settings in near.items()
    }
    names = ("every step, in the background",)
    return Experiment(
        "metric_reports",
        question="What do metrics sent to a server cost, and how often may they be sent?",
        variants={"never": base} | near | {name: others.pop(name) for name in names},
        baseline="never",
        source="[001] 4.2: report metrics every 100 steps",
        dial=Dial(setting="report_every", advice=100, source="[001] 4.2"),
        in_full=others,
    )


def evaluation(base: Settings) -> Experiment:
    """[001] section 2: evaluation metrics in a loop over samples, or in one call."""
    base = loop_alone(base)
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
        baseline="none",
        source="[001] section 2: evaluation metrics among eight CPU jobs; no figure",
        dial=Dial(setting="metrics_every"),
        in_full=every,
    )


def progress(base: Settings) -> Experiment:
    """[001] section 2: a progress bar, and one with the loss."""
    base = loop_alone(base)
    return Experiment(
        "progress",
        question="What does a progress bar cost?",
        variants={
            "none": base,
            "tqdm": replace(base, progress_bar="tqdm"),
            "tqdm, drawn every step": replace(base, progress_bar="tqdm_every_step"),
            "tqdm with the loss": replace(base, progress_bar="tqdm", progress_loss=True),
        },
        baseline="none",
        source="[001] section 2: progress reports among eight CPU jobs; no figure",
    )


def loop_alone(base: Settings) -> Settings:
    """Keep one batch in memory and never wait for the device, so that only the loop counts."""
    return replace(
        base,
        cache="as found",  # nothing is read
        preprocessor="classification",
        loader="resident",
        batch_size=base.batch_size or BATCH_SIZE,
        profile="resnet50_a100" if base.profile == "matched" else base.profile,
        sync_every=0,
    )


def _steps(n: int) -> str:
    return "step" if n == 1 else f"{n} steps"
