"""Recipe: a run's winner as plain PyTorch for a person's own train.py, without labkit.

    run ─▶ which variant (winner) ─▶ comment: its gain and conditions (header)
                                         ─▶ code that delivers its batches (program)

Main trap: what was measured is what must be handed out, so settings come from the run folder,
never from today's defaults.
"""

from __future__ import annotations

from labkit.operations_run import NAME as OPERATIONS
from labkit.parts.loading import OUTSIDE
from labkit.parts.packing import PACKINGS
from labkit.places import is_url
from labkit.recipes import loop
from labkit.recipes.header import comment
from labkit.recipes.program import BUILT_IN, program
from labkit.recipes.winner import named, winner
from labkit.results import Run
from labkit.settings import Settings
from labkit.summary import summarize_run


def recipe(run: Run, variant: str | None = None) -> str:
    """Write a variant as plain PyTorch code that does not need labkit.

    Args:
        run: of any experiment that measures epochs.
        variant: a label; unset: the winner, or the baseline where nothing beat it.

    Returns:
        Python source: the measured gain and its conditions as a comment, the code that delivers
        the variant's batches, and a main program that prints images per second.

    Raises:
        ValueError: no such variant, it has no numbers, it uses a part of a person's own, or the
            run measured no epochs.
    """
    if run.info.get("kind") == OPERATIONS:
        raise ValueError("run must measure epochs, got one of operations; take a run of combined")
    summary = summarize_run(run)
    row = winner(run, summary) if variant is None else named(summary, variant)
    both = (row.variant, summary.baseline)
    settings, baseline = (Settings(**run.info["variants"][name]) for name in both)
    _check_parts(row.variant, settings)
    layout = _layout(run)
    said = comment(run, summary, row, layout=layout, is_chosen=variant is None)
    excluded = tuple(run.info.get("excluded") or ())
    return said + program(settings, layout=layout, excluded=excluded, baseline=baseline)


def _check_parts(variant: str, settings: Settings) -> None:
    if settings.packing in PACKINGS and (settings.packing, settings.stored) != ("folder", "jpeg"):
        raise ValueError(
            f"recipe must be of a variant that reads the data as it is, got packing "
            f"{settings.packing!r} and stored {settings.stored!r} in {variant!r}; pack with "
            "data_scripts/pack_dataset.py and read with lab.PACKINGS"
            f"[{settings.packing!r}].open(folder)"
        )
    if settings.storage == "here" and is_url(settings.data):
        raise ValueError(
            f"recipe must be of a variant that reads a folder, got data at a URL in {variant!r}; "
            "take a variant that copies it first, as storage='ssd', or run again on a copy"
        )
    if settings.loader in OUTSIDE:
        module = "dali.py" if settings.loader.startswith("dali") else "tf_data.py"
        raise ValueError(
            f"recipe must be of a variant that labkit or torch loads, got loader "
            f"{settings.loader!r} in {variant!r}; take the pipeline from "
            f"labkit/parts/loading/{module}"
        )
    if settings.checkpoint_every and settings.saver == "process":
        raise ValueError(
            "recipe must be of a variant whose saver is one of sync, thread, got 'process' in "
            f"{variant!r}; take saver='thread', or the process from "
            "labkit/parts/training/checkpoint_process.py"
        )
    if settings.report_every and loop.sink_of(settings) not in loop.SINKS:
        raise ValueError(
            f"report_to must be one of labkit's own ({', '.join(loop.SINKS)}) to be written out, "
            f"got {settings.report_to!r} in the variant {variant!r}; take that part from where "
            "you wrote it"
        )
    for name, known in BUILT_IN.items():
        if (value := getattr(settings, name)) not in known:
            raise ValueError(
                f"{name} must be one of labkit's own ({', '.join(known)}) to be written out, "
                f"got {value!r} in the variant {variant!r}; take that part from where you wrote it"
            )


def _layout(run: Run) -> str:
    """Say what lies in the data's folder; a key of `pieces.LAYOUTS`."""
    data = run.info.get("data") or {}
    if data.get("boxes") != "coco":
        return "tree"
    return "coco" if data.get("manifest_hash", "unknown") == "unknown" else "labkit"
