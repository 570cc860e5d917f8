"""Runs of experiments that turn a dial, made without running anything."""

from __future__ import annotations

from dataclasses import asdict

from fakes import LABELS, fake_info, fake_trials

from labkit.analysis.summary import Summary, summarize
from labkit.experiments.catalog import CATALOG
from labkit.settings import Settings


def fake_dial(
    name: str, times: dict[str, float], *, blocks: int = 10, noise: float = 0.0005, **info: object
) -> tuple[dict[str, object], Summary]:
    """What run.json would say of an experiment of the catalog, and the summary of its run.

    Args:
        name: of the experiment.
        times: variant -> true normalized time; the baseline's is 1 and need not be named.
        blocks, noise: as `fakes.fake_trials` takes them.
        info: entries of run.json; mode is full unless it is given.
    """
    experiment = CATALOG[name](Settings(data="data/photos"))
    known = {**experiment.variants, **experiment.in_full}
    times = {info.get("baseline", experiment.baseline): 1.0, **times}
    told = {"mode": "full", "blocks": blocks, "question": experiment.question, **info}
    run = {
        **fake_info([*times, *info.get("skipped", {})], experiment=name, **told),
        "source": experiment.source,
        "dial": asdict(experiment.dial),
    }
    run["variants"] = {label: asdict(known[label]) for label in run["variants"]}
    trials = fake_trials(times, blocks=blocks, noise=noise, labels=LABELS) if blocks else []
    return run, summarize(run, trials)


def all_of(name: str, time: float = 1.2) -> dict[str, float]:
    """Every variant of an experiment but its baseline, with a cost of every time that it is done.

    Args:
        name: of the experiment.
        time: normalized, of whatever is done every step.
    """
    experiment = CATALOG[name](Settings(data="data/photos"))
    labels = [*experiment.variants, *experiment.in_full]
    labels.remove(experiment.baseline)
    return {label: 1 + (time - 1) / _steps(label) for label in labels}


def _steps(label: str) -> int:
    return next((n for n in (100, 10) if f"every {n} steps" in label), 1)
