"""Target: a person's own loader and step, named in a shell as module:function.

    "train:parts" ──▶ import train ──▶ parts() ──▶ (loader, step) or a dict ──▶ diagnose(**dict)

Main trap: the module is the person's, so what fails inside it must reach them as it is; only what
was named or returned wrongly is a sentence of ours.
"""

from __future__ import annotations

import glob  # a whole pattern, absolute ones too, which Path.glob refuses
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

from labkit.diagnosis.watch import brief, check_loader

REQUIRED = ("loader", "step")
OPTIONAL = ("files", "device", "transfer")
RETURNS = f"(loader, step), or a dict with loader, step and, if wanted, {', '.join(OPTIONAL)}"


def load(name: str) -> dict[str, object]:
    """Call the function that a person named, and check what it returns.

    Args:
        name: module:function; the module is looked for in the working directory, too.

    Returns:
        What `diagnose` is called with: loader, step and what else was given.

    Raises:
        ValueError: there is no such module or function, or it returns something else.
    """
    module_name, colon, function_name = name.partition(":")
    if not (colon and module_name and function_name):
        raise ValueError(f"target must be module:function, got {name!r}; such as train:parts")
    if module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").replace("/", ".")
        raise ValueError(
            f"target must name a module, got the file {module_name}; write {meant}:{function_name}"
        )
    module = _import(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        found = [n for n, value in vars(module).items() if callable(value) and n[:1] != "_"]
        raise ValueError(
            f"target must name a function of {module_name}, got {function_name!r}; "
            f"choose one of: {', '.join(sorted(found)) or 'there is none'}"
        )
    return check_returned(name, function())


def check_returned(name: str, returned: object) -> dict[str, object]:
    """Check what a target's function returned.

    Args:
        name: of the function, for the message.
        returned: what it returned.

    Returns:
        A dict with loader, step and what else was given.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(returned, tuple) and len(returned) == len(REQUIRED):
        returned = dict(zip(REQUIRED, returned))
    if not isinstance(returned, Mapping):
        raise ValueError(f"{name} must return {RETURNS}, got {brief(returned)}")
    missing = [key for key in REQUIRED if key not in returned]
    unknown = [str(key) for key in returned if key not in REQUIRED + OPTIONAL]
    if missing or unknown:
        wrong = f"{', '.join(unknown)} more" if unknown else f"no {' and no '.join(missing)}"
        raise ValueError(f"{name} must return {RETURNS}, got {wrong}")
    check_loader(returned["loader"])
    if not callable(returned["step"]):
        raise ValueError(f"step must be callable(batch), got {brief(returned['step'])}")
    return dict(returned)


def find_files(pattern: str) -> tuple[Path, ...]:
    """List the files that a pattern stands for, in order.

    Args:
        pattern: as in a shell; ** goes into folders.

    Raises:
        ValueError: it stands for none.
    """
    # Path.glob refuses absolute patterns.
    names = glob.glob(pattern, recursive=True)  # noqa: PTH207
    found = tuple(path for path in map(Path, sorted(names)) if path.is_file())
    if not found:
        raise ValueError(f"files must stand for at least one file, got {pattern!r}")
    return found


def _import(name: str) -> object:
    # A shell's command does not look where it is called, unlike python -m.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
        raise ValueError(
            f"target must name a module that can be imported, got {name!r}; "
            "call this in the folder that holds it"
        ) from None
