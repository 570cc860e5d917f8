"""The same variants at several speeds of the device.

    variants × device speeds, one group per speed ─┬─▶ an Experiment: what each saves at each speed
    each variant's loading alone, a group too      ┴─▶ one of the kind "roofline"

A speed is a multiple of the baseline's loading rate, x, which the run measures.  A real device is
measured at its own speed and, by training on each batch several times, at slower ones.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.analysis.equal_work import STEP, is_floor
from labkit.analysis.roofline import ALONE
from labkit.experiments.sweep import change_all, in_groups, with_published
from labkit.parts.devices import DevicePart
from labkit.records import EPOCHS, ROOFLINE
from labkit.resolve import find_part, gather_facts
from labkit.runs.experiment import Experiment
from labkit.settings import with_settings

THIS_DEVICE = "this GPU"
SUFFIX = "_roofline"


def has_roofline(experiment: Experiment) -> bool:
    """Return whether an experiment compares epochs whose baseline loads and trains every batch."""
    base = gather_facts(vars(experiment.settings[experiment.baseline]))
    is_plain = experiment.kind == EPOCHS and not experiment.has_tasks
    return is_plain and not base.leaves_out


def at_several_speeds(experiment: Experiment) -> Experiment:
    """Return an experiment that asks what each variant saves at several speeds of the device.

    That depends on x, the device's rate ÷ the baseline's loading rate: fetching ahead saves most at
    1, a faster loader where x is above 1.  The device is a simulated one.

    Args:
        experiment: what to compare; each of its variants loads and trains every batch.
    """
    simulated = experiment.change(lambda settings: replace(settings, device="simulated"))
    known, first = simulated.variants, experiment.baseline
    ordered = {first: known[first], **known}  # the first variant of a group is its baseline
    # EVIDENCE 1, "Operating point": of experiments whose remedies save most at one of them.
    points = {f"x = {x:g}": x for x in (1.0, 2.0, 0.5, 4.0)}
    quick = ("x = 1", "x = 2")
    grouped = in_groups(
        dict.fromkeys(points, ordered),
        lambda group, label: group in quick,
        {group: {"x": x} for group, x in points.items()},
    )
    baseline = f"{next(iter(points))}: {first}"
    return replace(simulated, variants=grouped, baseline=baseline, at_several_speeds=False)


def over_device_speeds(experiment: Experiment, cache: str | None = None) -> Experiment:
    """Return an experiment that measures another one's variants at several device speeds.

    The device is a simulated one unless the baseline names another, and a trial has one epoch.
    Variants that leave out loading or computing are left out, and those that differ from another
    in what happens between epochs only.

    Args:
        experiment: what to compare, with the variants that the mode measures.
        cache: page cache before the epoch; unset: the baseline's.  Of an experiment that compares
            cold with warm, the variants in that state stay, and those whose files are always in
            memory; the state ends the roofline's name.

    Raises:
        ValueError: it times something else, its epochs load nothing, fewer than two variants
            stay, or its device is the CPU, which loads the data, too.
    """
    if not has_roofline(experiment):
        raise ValueError(
            "experiment must time epochs that load every batch and train with it, got "
            f"{experiment.name}; take another one, as preprocessing"
        )
    known = experiment.settings
    base = known[experiment.baseline]
    device = base.device or "simulated"
    if find_part(DevicePart, device).is_cpu:
        raise ValueError(
            f"device must be simulated or cuda for a roofline, got {device}; choose one of them"
        )
    wanted = with_settings(base, {"cache": cache or base.cache})
    facts = {label: gather_facts(vars(settings)) for label, settings in known.items()}
    base_facts = facts[experiment.baseline]
    kept = {
        label: settings
        for label, settings in known.items()
        if not is_floor(facts[label], base_facts)
    }
    # The baseline last, as the later of two that are alike stays.
    in_turn = sorted(kept, key=lambda label: label == experiment.baseline)
    alike = {replace(kept[label], persistent_workers=False): label for label in in_turn}
    kept = {label: settings for label, settings in kept.items() if label in alike.values()}
    name, about = f"{experiment.name}{SUFFIX}", experiment.name
    states = {str(settings.cache) for settings in kept.values()}
    if len(states) > 1:
        if str(wanted.cache) not in states:
            raise ValueError(
                f"cache must be {' or '.join(sorted(states))} for a roofline of {experiment.name}, "
                f"got {wanted.cache}; leave it out"
            )
        state = str(wanted.cache).replace(" ", "_")
        name, about = f"{name}_{state}", f"{about}, {wanted.cache} epoch"
        kept = {
            label: settings
            for label, settings in kept.items()
            if settings.cache == wanted.cache or facts[label].stays_in_memory
        }
    else:
        kept = change_all(kept, cache=wanted.cache)
    if len(kept) < 2:
        raise ValueError(
            "variants must be at least two for a roofline, which compares pipelines, got "
            f"{', '.join(kept) or 'none'}; choose more, or full mode"
        )
    baseline = next(
        (label for label, settings in kept.items() if settings == wanted), next(iter(kept))
    )
    # The first variant of a group is its baseline.
    kept = change_all({baseline: kept[baseline], **kept}, device=device, epochs=1)
    is_real = not find_part(DevicePart, device).is_simulated
    steps = {label: [getattr(settings, name) for name in STEP] for label, settings in kept.items()}
    if is_real and (others := [label for label in kept if steps[label] != steps[baseline]]):
        raise ValueError(
            f"variants must train alike for a roofline on device {device}, whose speed is measured "
            f"once, got {others[0]}; choose others"
        )
    # EVIDENCE 2, "The roofline".  Quick mode leaves out 1.4, where little differs from 1 and 2:
    # with it, the five variants of textbook take more than a minute.  A real device is often
    # slower than twice the loader: at 1, 2 and 4 only, its own speed would stand alone.
    sign, quick_speeds = ("≈", (0.5, 1.0, 2.0)) if is_real else ("=", (1.0, 2.0, 4.0))
    speeds = {f"x {sign} {x:g}": x for x in (0.5, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)}
    quick = {ALONE, THIS_DEVICE, *(group for group, x in speeds.items() if x in quick_speeds)}
    groups = dict.fromkeys([*speeds, *([THIS_DEVICE] * is_real)], kept)
    groups[ALONE] = change_all(kept, step="nothing")
    grouped = in_groups(
        groups,
        lambda group, label: group in quick and not experiment.variants[label].full_only,
        {group: {"x": speeds.get(group)} for group in groups},
    )
    # A published time needs a loader that is as much faster; at some speed every gain is met.
    if baseline == experiment.baseline:
        figures = {
            f"{ALONE}: {label}": experiment.variants[label].published
            for label in kept
            if experiment.variants[label].published is not None
        }
        grouped = with_published(figures, grouped)
    return replace(
        experiment,
        name=name,
        kind=ROOFLINE,
        question=f"{about}: how fast would you train on a slower or faster GPU?",
        variants=grouped,
        baseline=f"{THIS_DEVICE if is_real else 'x = 1'}: {baseline}",
        document_order={},
        x_axis=None,
    )
