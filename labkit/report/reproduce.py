"""How to run it again: a run's request as a command line and as Python.

run.json: request ─▶ command_line() ─▶ labkit run prefetching --mode full --num-workers 4
                  ─▶ python_code()  ─▶ lab.run(lab.experiment(...), "full")
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from labkit.experiments import catalog
from labkit.settings import CORRECTED

Request = Mapping[str, object]
"""As given: mode, blocks, protocol, settings, variants, baseline and, of one of the catalog, the
experiment's name; what was not given is missing, None or empty."""


def request_of(info: Mapping[str, object]) -> Request:
    """Return how a stored run was asked for; of runs before schema 2 its name and mode only.

    Args:
        info: what its `run.json` holds.
    """
    if "request" in info:
        return info["request"]
    is_listed = info["experiment"] in catalog.CATALOG
    return {"experiment": info["experiment"], "mode": info["mode"]} if is_listed else {}


def command_line(request: Request, results: str | None = None) -> str:
    """Write what the user would type to run it again.

    Args:
        request: how it was asked for.
        results: folder that takes the run folder.

    Returns:
        One line for a POSIX shell; empty for an experiment of the user's own.
    """
    if "experiment" not in request:
        return ""
    protocol = request.get("protocol") or CORRECTED
    options = [
        ("mode", request.get("mode")),
        ("blocks", request.get("blocks")),
        ("protocol", None if protocol == CORRECTED else protocol.replace(" ", "-")),
        *(("variant", label) for label in request.get("variants") or ()),
        ("baseline", request.get("baseline")),
        *(request.get("settings") or {}).items(),
        ("results", results),
    ]
    words = ["labkit", "run", str(request["experiment"])]
    for name, value in options:
        if value is not None:
            text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
            option = f"--{name.replace('_', '-')}"
            # After a blank, a value such as "-1" would be taken for an option.
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return shlex.join(words)


def python_code(request: Request, results: str | None = None) -> str:
    """Write the same as `command_line` for a notebook; the arguments are the same.

    Returns:
        Lines that end in ``run = …``; of an experiment of the user's own without its definition.
    """
    if not request:
        return ""
    settings, name = request.get("settings") or {}, request.get("experiment")
    if name is None:
        changed = f", with {_arguments(settings)} for all variants" if settings else ""
        lines = [f"# experiment: as defined in the notebook{changed}"]
    else:
        protocol = request.get("protocol") or CORRECTED
        given = {"protocol": None if protocol == CORRECTED else protocol, **settings}
        lines = [f"experiment = lab.experiment({_arguments(given, name)})"]
    chosen = {"variants": request.get("variants") or None, "baseline": request.get("baseline")}
    if any(chosen.values()):
        lines.append(f"experiment = lab.choose(experiment, {_arguments(chosen)})")
    given = {"blocks": request.get("blocks"), "results": results}
    lines.append(f"run = lab.run(experiment, {_arguments(given, request.get('mode'))})")
    return "\n".join(["import labkit as lab\n", *lines]) + "\n"


def _arguments(named: Mapping[str, object], *positional: object) -> str:
    said = [repr(value) for value in positional]
    said += [f"{name}={value!r}" for name, value in named.items() if value is not None]
    return ", ".join(said)
