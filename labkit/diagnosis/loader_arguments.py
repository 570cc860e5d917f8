"""Arguments of DataLoader that change its speed alone: given from outside, and read.

"num_workers=8,pin_memory=True" ─ read_arguments ─▶ LoaderArguments ─▶ DataLoader.__init__
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from labkit.language import Text

Value = bool | float | str | None

EXAMPLE = "num_workers=8,pin_memory=True"
CONTEXTS = ("fork", "forkserver", "spawn")
NEED_WORKERS = (
    "prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context",
)  # fmt: skip


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if int(text) < least:
            raise ValueError
        return int(text)

    return read


def _seconds(text: str) -> float:
    if not 0 <= float(text) < float("inf"):
        raise ValueError
    return float(text)


def _context(text: str) -> str:
    return CONTEXTS[CONTEXTS.index(text)]


# Argument -> the rule for its value, and what reads it.
ARGUMENTS: dict[str, tuple[str, Callable[[str], Value]]] = {
    "num_workers": ("a whole number, 0 or more", _count(0)),
    "pin_memory": ("True or False", _truth),
    "persistent_workers": ("True or False", _truth),
    "prefetch_factor": ("a whole number, 1 or more", _count(1)),
    "in_order": ("True or False", _truth),
    "timeout": ("a number of seconds, 0 or more", _seconds),
    "multiprocessing_context": (f"one of {', '.join(CONTEXTS)}", _context),
}


def read_arguments(text: str) -> dict[str, Value]:
    """Return the arguments that a text gives to loaders.

    Args:
        text: such as "num_workers=8,pin_memory=True".

    Raises:
        ValueError: it names another argument, or has a value that DataLoader does not take.
    """
    change_the_training = (
        "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "collate_fn", "drop_last",
        "worker_init_fn", "generator",
    )  # fmt: skip
    arguments: dict[str, Value] = {}
    for part in text.split(","):
        name, equals, value = map(str.strip, part.partition("="))
        if not equals:
            raise ValueError(f"--loader must be NAME=VALUE,..., got {text!r}; such as {EXAMPLE}")
        if name in change_the_training:
            raise ValueError(
                f"--loader must not change {name}, which changes what is trained on; "
                "change it in the script"
            )
        if name not in ARGUMENTS:
            raise ValueError(f"--loader must name one of {', '.join(ARGUMENTS)}, got {name!r}")
        if name in arguments:
            raise ValueError(f"--loader must name {name} once, got {text!r}")
        rule, read = ARGUMENTS[name]
        try:
            arguments[name] = read(value)
        except (ValueError, KeyError):
            raise ValueError(f"{name} must be {rule}, got {value!r}") from None
    given = [name for name in NEED_WORKERS if arguments.get(name)]
    if given and arguments.get("num_workers") == 0:
        raise ValueError(f"num_workers must be at least 1 with {given[0]}, got 0")
    return arguments


def speed_arguments_of(loader: object) -> dict[str, Value]:
    """Return the arguments in `ARGUMENTS` that a DataLoader has; those that it lacks are left out.

    A multiprocessing context is the name of its start method.
    """
    known: dict[str, Value] = {}
    for name in ARGUMENTS:
        with suppress(Exception):  # a class of the user's own may raise anything
            value: Any = getattr(loader, name)
            if hasattr(value, "get_start_method"):
                value = value.get_start_method()
            if isinstance(value, bool | int | float | str | None):
                known[name] = value
    return known


class LoaderArguments:
    """Gives every DataLoader that this process makes some arguments in place of the script's.

    Args:
        arguments: from `read_arguments`.
    """

    def __init__(self, arguments: dict[str, Value]) -> None:
        self._arguments = arguments
        self._loaders = 0
        self._without_workers: set[str] = set()  # arguments that a loader without workers refuses

    def replace_in(self, init: Callable[..., None]) -> Callable[..., None]:
        """Return an `__init__` of DataLoader that takes these arguments instead of its own ones."""
        signature = inspect.signature(init)

        @wraps(init)
        def changed(*args: Any, **options: Any) -> None:
            try:
                values = {**signature.bind(*args, **options).arguments, **self._arguments}
            except TypeError:  # the script's own mistake, which torch reports
                return init(*args, **options)
            if not values.get("num_workers"):  # torch refuses what is for workers
                given = [name for name in NEED_WORKERS if self._arguments.get(name)]
                self._without_workers.update(given)
                # Also the script's own ones, which were for its workers.
                refused = NEED_WORKERS if "num_workers" in self._arguments else given
                values = {name: x for name, x in values.items() if name not in refused}
            self._loaders += 1
            return init(values.pop("self"), **values)

        return changed

    def notes(self) -> list[str]:
        """Return a sentence for each thing that did not happen as asked."""
        if not self._loaders:
            return [Text("--loader changed nothing: the script made no DataLoader.")]
        if not self._without_workers:
            return []
        names = ", ".join(name for name in NEED_WORKERS if name in self._without_workers)
        refused = Text(
            "--loader: a DataLoader without workers does not take {names}; add num_workers=N."
        )
        return [refused.format(names=names)]
