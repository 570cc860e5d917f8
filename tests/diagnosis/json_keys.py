"""Keys of the JSON files of `watch` and `diagnose` that the documentation does not name."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/diagnosis.md"
# What they hold has keys of its own: names of arms, of arguments, facts of a loader.
OPEN = {"arms", "arguments", "changes", "left_out", "loaders", "machine", "measured", "unchanged"}


def undocumented(known):
    """Return the keys of a file's content, nested ones as well, that the page lacks."""
    section = PAGE.read_text("utf-8").partition("## Keys of the JSON files\n")[2]
    named = set(re.findall(r"`(\w+)`", section.partition("\n## ")[0]))
    return set(_keys(known)) - named


def _keys(value):
    if isinstance(value, list | tuple):
        for each in value:
            yield from _keys(each)
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _keys(each) if key not in OPEN else ()
