"""How to run it again: a run's settings as a command line, and as Python.

    name, mode, changes … ─▶ command_line() ─▶ labkit run prefetching --mode full --num-workers 4
    run.json ─▶ of_run()  ─▶ python_code()  ─▶ lab.run(lab.experiment(...), "full")
    an experiment of one's own ─▶ python_of() ─▶ lab.run(lab.Experiment(...), "full")

Only what differs from the catalog's defaults is written, so that a line stays short enough to
read.  Main trap: a run stores its settings completed, and what a machine or a mode filled in
must not come back as somebody's choice: it is left to the machine that runs it again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields

from labkit import catalog
from labkit.experiment import Experiment
from labkit.operations_run import NAME as OPERATIONS
from labkit.own_python import common, experiment_lines, varying
from labkit.python_text import Code, call
from labkit.settings import CORRECTED, MODES, Mode, Settings, complete, with_settings
from labkit.tables import real_step

# As published, the order decides from which disk and which cache state a variant reads.
ORDERED = {"storage", "cache"}
# Which of them there are is the machine's to say.
MEDIA = {"storage", "cache"}


def command_line(
    experiment: str,
    *,
    mode: str,
    blocks: int | None = None,
    changes: Mapping[str, object],
    variants: Sequence[str] | None = None,
    baseline: str | None = None,
    protocol: str = CORRECTED,
    results: str | None = None,
) -> str:
    """Write what a person would type to run an experiment of the catalog.

    Args:
        experiment: a key of `catalog.CATALOG`, or "operations".
        mode: quick, document or full.
        blocks: repetitions; None: the mode's.
        changes: settings that all variants share; None stands for unset and is left out.
        variants: labels to measure; None: all.
        baseline: label that the others are divided by; None: the catalog's.
        protocol: corrected, or as in the document.
        results: folder that takes the run folder; None: left out.

    Returns:
        One line for a POSIX shell, every word quoted where it has to be.
    """
    words = ["labkit", "run", experiment, *_option("mode", mode)]
    words += [] if blocks is None else _option("blocks", blocks)
    words += [] if protocol == CORRECTED else _option("protocol", protocol.replace(" ", "-"))
    for label in variants or ():
        words += _option("variant", label)
    words += [] if baseline is None else _option("baseline", baseline)
    for name, value in changes.items():
        words += [] if value is None else _option(name.replace("_", "-"), value)
    words += [] if results is None else _option("results", results)
    return shlex.join(words)


def python_code(
    experiment: str,
    *,
    mode: str,
    blocks: int | None = None,
    changes: Mapping[str, object],
    variants: Sequence[str] | None = None,
    baseline: str | None = None,
    protocol: str = CORRECTED,
    results: str | None = None,
) -> str:
    """Write the same as `command_line` for a notebook; the arguments are the same.

    Returns:
        Lines that end in ``run = …``.
    """
    set_here = {name: value for name, value in changes.items() if value is not None}
    if experiment == OPERATIONS:
        given = {**set_here, "mode": mode, **_given(blocks, results)}
        line = call("run = lab.run_operations", [], given)
        return f"import labkit as lab\n\n{line}\n"
    asked = {} if protocol == CORRECTED else {"protocol": protocol}
    lines = [call("experiment = lab.experiment", [experiment], {**asked, **set_here})]
    chosen = {"variants": list(variants)} if variants else {}
    chosen |= {"baseline": baseline} if baseline else {}
    if chosen:
        lines.append(call("experiment = lab.choose", [Code("experiment")], chosen))
    lines.append(_runcall(mode, blocks, results))
    return "\n".join(["import labkit as lab\n", *lines]) + "\n"


def python_of(
    experiment: Experiment, *, mode: str, blocks: int | None = None, results: str | None = None
) -> str:
    """Write an experiment of somebody's own for a notebook, whole.

    Args:
        experiment: what is to be run; what it would run instead where the throttled disk cannot
            be put up is a function, and cannot be written.
        mode: quick, document or full.
        blocks: repetitions; None: the mode's.
        results: folder that takes the run folder; None: left out.

    Returns:
        Lines that end in ``run = …``.
    """
    groups = {
        name: {label: asdict(settings) for label, settings in variants.items()}
        for name in ("variants", "in_full")
        if (variants := getattr(experiment, name))
    }
    every = [values for variants in groups.values() for values in variants.values()]
    default = asdict(Settings())
    shared = common(dict(enumerate(every)))
    base = {name: value for name, value in shared.items() if value != default[name]}
    told = {"question": experiment.question, "baseline": experiment.baseline}
    if experiment.published:
        told["published"] = {key: float(value) for key, value in experiment.published.items()}
    told |= {"source": experiment.source} if experiment.source else {}
    told |= {} if experiment.protocol == CORRECTED else {"protocol": experiment.protocol}
    told |= {"notes": tuple(experiment.notes)} if experiment.notes else {}
    lines = experiment_lines(experiment.name, base, groups, told)
    if experiment.otherwise is not None:
        lines.append("# not written: what to run where the throttled disk cannot be put up")
    return "\n".join([*lines, _runcall(mode, blocks, results)]) + "\n"


def of_run(info: Mapping[str, object]) -> tuple[str, str]:
    """Say how a stored run can be made again.

    Args:
        info: what its `run.json` holds.

    Returns:
        (command line, Python); no command line for an experiment of somebody's own, and neither
        where this labkit no longer takes the stored settings.
    """
    try:
        return _of_run(info)
    except ValueError:  # of another version, or of a stranger's: all else of it can be shown
        return "", ""


def _of_run(info: Mapping[str, object]) -> tuple[str, str]:
    mode = str(info["mode"])
    planned = info.get("blocks")
    blocks = None if mode in MODES and planned == MODES[mode].blocks else planned
    if info.get("kind") == OPERATIONS:
        chosen = {"data": (info.get("data") or {}).get("folder"), "seed": info.get("order_seed")}
        default = Settings()
        changes = {
            name: value
            for name, value in chosen.items()
            if value is not None and value != getattr(default, name)
        }
        asked = {"mode": mode, "blocks": blocks, "changes": changes}
        return command_line(OPERATIONS, **asked), python_code(OPERATIONS, **asked)
    for values in _stored(info).values():
        Settings(**values)  # refuses what cannot be asked for
    known = _from_catalog(info)
    if known is None:
        return "", _own_experiment(info, mode, blocks)
    asked = {"mode": mode, "blocks": blocks, **known}
    name = str(info["experiment"])
    return command_line(name, **asked), python_code(name, **asked)


def _option(name: str, value: object) -> list[str]:
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    # After a blank, a value such as "-1" would be taken for an option.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


# --- what a run's settings say that the catalog does not ----------------------------------


def _from_catalog(info: Mapping[str, object]) -> dict[str, object] | None:
    """Find what turns the catalog's experiment into this run's; None where nothing does."""
    name, protocol = info["experiment"], str(info.get("protocol", CORRECTED))
    if name not in catalog.CATALOG or info.get("mode") not in MODES:
        return None
    if protocol != CORRECTED and name not in catalog.AS_PUBLISHED_TOO:
        return None
    mode, stored = MODES[str(info["mode"])], _stored(info)
    listed = catalog.experiment(str(name), protocol=protocol)
    every = {**listed.variants, **(listed.in_full if mode.judged else {})}
    if not stored or not set(stored) <= set(every):
        return None
    base = catalog.document_base()
    decided = {
        field.name
        for field in fields(Settings)
        if {getattr(settings, field.name) for settings in every.values()}
        != {getattr(base, field.name)}
    }
    decided |= ORDERED if protocol != CORRECTED else set()
    for label, values in stored.items():
        for key in decided - MEDIA:
            wanted = getattr(every[label], key)
            if wanted is not None and values.get(key, wanted) != wanted:
                return None  # of the same name, but somebody's own
    if varying(stored) - decided:
        return None
    changes = _changes(base, common(stored), mode, info, decided)
    media = {str(values.get("storage", "")) for values in stored.values()}
    is_modelled = any(medium.startswith("modelled") for medium in media)
    if "storage" in decided and is_modelled and not catalog.disks().modelled:
        changes["storage"] = catalog.MODELLED.hdd
    return {
        "changes": changes,
        "variants": None if set(stored) == set(every) else list(stored),
        "baseline": None if info["baseline"] == listed.baseline else info["baseline"],
        "protocol": protocol,
    }


def _changes(
    base: Settings,
    common: Mapping[str, object],
    mode: Mode,
    info: Mapping[str, object],
    decided: set[str] = frozenset(),
) -> dict[str, object]:
    """Find the fewest settings that, filled up as the run's were, give what it ran."""
    asked = {name: value for name, value in common.items() if name not in decided}

    def is_enough(changes: Mapping[str, object]) -> bool:
        filled = _fill(with_settings(base, dict(changes)), mode, info)
        return all(getattr(filled, name) == value for name, value in asked.items())

    filled = _fill(base, mode, info)
    changes = {name: value for name, value in asked.items() if getattr(filled, name) != value}
    for name in list(changes):  # the device alone may bring its step with it
        fewer = {key: value for key, value in changes.items() if key != name}
        if is_enough(fewer):
            changes = fewer
    return changes


def _fill(settings: Settings, mode: Mode, info: Mapping[str, object]) -> Settings:
    """Fill what was left unset as the run's own machine did."""
    found = info.get("provenance") or {}
    return complete(
        settings,
        mode,
        cores=found.get("cores", 1),
        has_cuda=bool((found.get("gpu") or {}).get("works")),
        can_fork=str(found.get("platform", "Linux")).startswith("Linux"),
        real_step=real_step(settings),
    )


def _stored(info: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Read every variant's settings, without those that this labkit does not have."""
    known = {field.name for field in fields(Settings)}
    return {
        str(label): {name: value for name, value in values.items() if name in known}
        for label, values in info["variants"].items()
    }


# --- Python -------------------------------------------------------------------------------


def _own_experiment(info: Mapping[str, object], mode: str, blocks: int | None) -> str:
    """Write an experiment that is not in the catalog, whole."""
    stored = _stored(info)
    base = _changes(Settings(), common(stored), MODES.get(mode, MODES["quick"]), info)
    told = {"question": info["question"], "baseline": info["baseline"]}
    told |= {name: info[name] for name in ("published", "source") if info.get(name)}
    if info.get("protocol", CORRECTED) != CORRECTED:
        told["protocol"] = info["protocol"]
    lines = experiment_lines(str(info["experiment"]), base, {"variants": stored}, told)
    return "\n".join([*lines, _runcall(mode, blocks)]) + "\n"


def _runcall(mode: str, blocks: int | None, results: str | None = None) -> str:
    return call("run = lab.run", [Code("experiment"), mode], _given(blocks, results))


def _given(blocks: int | None, results: str | None) -> dict[str, object]:
    given = {"blocks": blocks, "results": results}
    return {name: value for name, value in given.items() if value is not None}
