"""Results of checks that take seconds, kept in the results folder for later runs.

Each names all that it depends on, and counts while that is the same.  `self_checks.json` is a list
of them; whoever removes it has everything checked again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.files import write_whole
from labkit.resolve import own_parts
from labkit.runs.store import fits

FILE = "self_checks.json"


@dataclass(frozen=True, kw_only=True)
class KeptCheck:
    """A check that was passed."""

    depends_on: dict[str, Any]
    """What was checked, and of the machine and the program what the result depends on."""
    result: list[Any]
    checked_utc: str


def find_kept(results: Path, depends_on: Mapping[str, Any]) -> KeptCheck | None:
    """Return the kept check that depends on the same; None where there is none.

    Args:
        results: folder that holds all results.
        depends_on: what JSON can hold.
    """
    kept = (each for each in _read(results) if each.depends_on == depends_on)
    return None if own_parts() else next(kept, None)  # their sources are not known


def keep(results: Path, check: KeptCheck) -> None:
    """Keep a check in place of one that depends on the same; where nothing can be written, none."""
    if own_parts():
        return
    others = [each for each in _read(results) if each.depends_on != check.depends_on]
    checks = [asdict(each) for each in (*others, check)]
    with contextlib.suppress(OSError):  # it only saves time
        write_whole(results / FILE, json.dumps(checks, indent=1) + "\n")


def hash_sources(*modules: ModuleType) -> dict[str, str]:
    """Return the name of each module, or of a whole package, -> a hash of its sources.

    An installed copy of labkit has no revision, and a changed checkout has an old one.
    """
    hashes = {}
    for module in modules:
        file, hashed = Path(module.__file__), hashlib.sha256()
        paths = sorted(file.parent.rglob("*.py")) if hasattr(module, "__path__") else [file]
        for path in paths:
            hashed.update(path.read_bytes())
        hashes[module.__name__] = hashed.hexdigest()[:16]
    return hashes


def _read(results: Path) -> list[KeptCheck]:
    try:
        kept = json.loads((results / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    return [KeptCheck(**each) for each in kept] if fits(kept, list[KeptCheck]) else []
