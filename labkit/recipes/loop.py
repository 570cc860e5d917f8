"""The training loop of a recipe: what a variant does beside its steps, around a place for the step.

    batches ─▶ the step: yours ─▶ every N steps: metrics ─ report ─ checkpoint ─ bar ─▶ next

What does the work (snapshots, writing, queue, counting, losses) is labkit's own, inlined; here is
what joins it.  Main trap: on a machine of one's own nobody stands in for a terminal or a server,
so lines are printed, and a server's address is a constant to be filled in.
"""

from __future__ import annotations

from collections.abc import Collection
from string import Template
from textwrap import indent

from labkit.parts.preprocessing import PREPROCESSORS
from labkit.parts.training import LOSSES, sinks, train
from labkit.parts.training.metrics import METRICS
from labkit.recipes import loop_pieces as pieces
from labkit.settings import Settings

TRAINING = "labkit.parts.training"
# Each has the loop do something beside its step, unless it is at its default.
BESIDE = ("checkpoint_every", "report_every", "metrics", "progress_bar")
CHANGES_STEP = ("loss", "precision", "memory_format")
# Setting -> what it is about: a change of one means a change of the loop.
ABOUT = ("checkpoint", "saver", "report", "metrics", "progress", "precision", "memory_format")

LOG_FILE = "from labkit.parts.training.sinks import LogFile\n"
NOTHING = "from labkit.parts.training.sinks import Nothing\n"
CLIENT = "from labkit.parts.training.metric_server import MetricClient\n"
# Where reports go -> what defines it, and what opens it.
SINKS = {
    "file": (LOG_FILE, 'LogFile(Path("."))'),
    "terminal": (pieces.PRINTED, "Printed()"),
    "notebook": (pieces.PRINTED, "Printed()"),
    "nothing": (NOTHING, "Nothing()"),
    "http": (CLIENT, "MetricClient(REPORT_URL)"),
}
TQDM = {"tqdm": "", "tqdm_every_step": ", mininterval=0, miniters=1"}


def is_needed(settings: Settings, baseline: Settings | None = None) -> bool:
    """Say whether a recipe needs a training loop: something is done beside it, or to its step.

    Args:
        settings: of the variant.
        baseline: of the run; what differs from it is shown, a default too.
    """
    others = (Settings(), *([baseline] if baseline else []))
    return any(
        getattr(settings, name) != getattr(other, name) for other in others for name in CHANGES_STEP
    ) or any(getattr(settings, name) != getattr(Settings(), name) for name in BESIDE)


def does_more(settings: Settings, baseline: Settings) -> bool:
    """Say whether a variant does beside its steps what its baseline does not do at all."""
    default = Settings()
    return any(
        getattr(settings, name) != getattr(default, name) == getattr(baseline, name)
        for name in BESIDE
    )


def sink_of(settings: Settings) -> str:
    """Name where reports go, as `SINKS` does; http for any metric server."""
    return settings.report_to if sinks.parse(settings.report_to) is None else "http"


def constants(settings: Settings) -> list[str]:
    """Write the constants of the loop, one to a line."""
    lines = []
    if settings.metrics != "none":
        lines.append(f"METRICS_EVERY = {settings.metrics_every}  # steps")
    if settings.report_every:
        lines.append(f"REPORT_EVERY = {settings.report_every}  # steps")
        if sink_of(settings) == "http":
            lines.append('REPORT_URL = "http://localhost:8000/"  # your metric server')
    if settings.checkpoint_every:
        lines.append(f"CHECKPOINT_EVERY = {settings.checkpoint_every}  # steps")
        place = "a folder" if "/" in settings.checkpoint_to else settings.checkpoint_to
        where = "" if place == "here" else f"  # in the run: in {place}"
        lines.append(f'CHECKPOINT = Path("checkpoint.pth").absolute(){where}')
    return lines


def texts(settings: Settings) -> list[str]:
    """Write the loop, what it needs, and what stands for a person's own model and optimizer.

    Args:
        settings: of a variant for which `is_needed`.

    Returns:
        Python source that imports from labkit; of its blanks only $loader is left.
    """
    loss, layout = LOSSES[settings.loss], ""
    if settings.memory_format == "channels_last":
        layout = ", memory_format=torch.channels_last"
    body, opened = _epochs(settings), _opened(settings)
    if opened:
        body = f"with (\n{indent(opened, '    ')}):\n{indent(body, '    ')}"
    if settings.precision == "amp":
        body = pieces.AMP + body
    model = pieces.MODELS[PREPROCESSORS[settings.preprocessor].batch]
    return [
        *_parts(settings),
        Template(pieces.TRAIN).safe_substitute(layout=layout, body=indent(body, "    ")),
        Template(model).substitute(loss=loss.__name__, loss_module=loss.__module__),
        pieces.MAIN,
    ]


def functions(settings: Settings, changed: Collection[str]) -> list[str]:
    """Name what of the loop does the work of settings that were changed."""
    found = []
    if "loss" in changed:
        found.append(LOSSES[settings.loss].__name__)
    if any(name.startswith(ABOUT) for name in changed):
        found.append("train")
    return found


def _parts(settings: Settings) -> list[str]:
    """What the loop calls: imported, or written out."""
    found = ["from collections.abc import Callable\n"]
    if settings.metrics != "none":
        count = METRICS[settings.metrics].__name__
        found.append(f"from {TRAINING}.metrics import Totals, {count}\n")
    if settings.report_every:
        found.append(SINKS[sink_of(settings)][0])
        if settings.report_in_background:
            found.append(f"from {TRAINING}.background import in_background\n")
    if settings.checkpoint_every:
        in_thread = settings.saver == "thread"
        found.append(
            pieces.SAVER if in_thread else f"from {TRAINING}.checkpoint_file import write\n"
        )
    if settings.progress_bar != "none":
        found.append("from tqdm import tqdm\n")
    if settings.precision == "amp":
        found.append(f"from {train.__module__} import _amp_dtype\n")
    if "closing" in _opened(settings):
        found.append("from contextlib import closing\n")
    return found


def _opened(settings: Settings) -> str:
    """What is closed when training ends, whatever happens: items of a with statement."""
    lines = []
    if settings.report_every:
        _, sink = SINKS[sink_of(settings)]
        sink = f"in_background({sink})" if settings.report_in_background else sink
        lines.append(f"closing({sink}) as sink,\n")
    if settings.checkpoint_every and settings.saver == "thread":
        lines.append("closing(Checkpoints(CHECKPOINT)) as checkpoints,\n")
    if settings.progress_bar != "none":
        often = TQDM[settings.progress_bar]
        lines.append(f"tqdm(total=epochs * len(loader){often}) as bar,\n")
    return "".join(lines)


def _epochs(settings: Settings) -> str:
    counts = settings.metrics != "none"
    words = {
        "totals": "    totals = Totals()\n" if counts else "",
        "step": indent(_step(settings), " " * 8),
        "beside": indent(_beside(settings), " " * 8),
        "result": '    print(f"epoch {epoch}: {totals.result()}")\n' if counts else "",
    }
    return Template(pieces.EPOCHS).substitute(words)


def _step(settings: Settings) -> str:
    image = 'batch["image"]'
    if settings.memory_format == "channels_last":
        image += ".contiguous(memory_format=torch.channels_last)"
    forward = f"outputs = model({image})\n"
    backward = "loss.backward()\noptimizer.step()\n"
    if settings.precision == "amp":
        forward = f"with torch.autocast(DEVICE.type, dtype=dtype):\n    {forward}"
        backward = "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()\n"
    return (
        f"{forward}loss = loss_of(outputs, batch)\n{backward}"
        "optimizer.zero_grad(set_to_none=True)\n"
    )


def _beside(settings: Settings) -> str:
    """What is done after a step, in the order in which it was measured."""
    text = ""
    if settings.metrics != "none":
        count = METRICS[settings.metrics].__name__
        call = f'{count}(outputs.detach().float(), batch["label"], totals)\n'
        text += _every("METRICS", call)
    if settings.report_every:
        loss = " loss {loss.item():.4f}" if settings.report_loss else ""
        text += _every("REPORT", f'sink.write(f"step {{step}}{loss}")\n')
    if settings.checkpoint_every:
        save = "checkpoints.save(" if settings.saver == "thread" else "write(CHECKPOINT, "
        state = '{"model": model.state_dict(), "optimizer": optimizer.state_dict()}'
        text += _every("CHECKPOINT", f'state = {state}\n{save}{{"step": step, **state}})\n')
    if settings.progress_bar != "none":
        text += "bar.set_postfix(loss=loss.item())\n" if settings.progress_loss else ""
        text += "bar.update()\n"
    return text


def _every(name: str, calls: str) -> str:
    return f"if step % {name}_EVERY == 0:\n{indent(calls, '    ')}"
