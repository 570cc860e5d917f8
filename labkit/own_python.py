"""An experiment that no name of the catalog gives, written whole as Python.

    settings of the variants ─▶ what they share ─▶ base = lab.Settings(…)
                             ─▶ what differs    ─▶ experiment = lab.Experiment(…, variants={…})

Only what differs from the defaults is written.  Main trap: settings may name a part that no table
here has, and the code alone would not bring it along, so it is named above.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import asdict, fields

from labkit.python_text import Code, call, literal
from labkit.settings import Settings
from labkit.tables import TABLES


def common(variants: Mapping[Hashable, Mapping[str, object]]) -> dict[str, object]:
    """Take the settings in which all variants are alike."""
    differs = varying(variants)
    first = next(iter(variants.values()), {})
    return {name: value for name, value in first.items() if name not in differs}


def varying(variants: Mapping[Hashable, Mapping[str, object]]) -> set[str]:
    """Name the settings in which the variants differ."""
    first, *others = variants.values()
    return {name for values in others for name in first if values.get(name) != first[name]}


def experiment_lines(
    name: str,
    base: Mapping[str, object],
    groups: Mapping[str, Mapping[str, Mapping[str, object]]],
    told: Mapping[str, object],
) -> list[str]:
    """Write an experiment as Python.

    Args:
        name: the experiment's.
        base: settings that all variants share, as far as they have to be given.
        groups: "variants" and, where there are any, "in_full": label -> all settings.
        told: the experiment's other arguments; `question` is one.

    Returns:
        Pieces of code, a line or more each, from the imports to ``experiment = …``.
    """
    every = dict(enumerate(values for group in groups.values() for values in group.values()))
    differs, default = varying(every), asdict(Settings())
    ordered = [field.name for field in fields(Settings) if field.name in differs]

    def change(values: Mapping[str, object]) -> Code:
        found = {key: values.get(key) for key in ordered}
        changes = {k: v for k, v in found.items() if v is not None and v != default[k]}
        return Code(call("replace", [Code("base")], changes) if changes else "base")

    written = {
        group: {label: change(values) for label, values in variants.items()}
        for group, variants in groups.items()
    }
    arguments = {"question": told["question"], **written, **told}
    imports = "from dataclasses import replace\n\n" if differs else ""
    return [
        f"{imports}import labkit as lab\n",
        *(
            f"# first add {literal(value)} to the table of {table}s: it is not labkit's own"
            for table, value in _unknown_parts(every.values())
        ),
        call("base = lab.Settings", [], base),
        call("experiment = lab.Experiment", [name], arguments),
    ]


def _unknown_parts(variants: Collection[Mapping[str, object]]) -> list[tuple[str, object]]:
    """List parts that no table here has: whoever runs this has to add them."""
    named = {
        (table, values[table]): None
        for values in variants
        for table in TABLES
        if values.get(table) is not None
    }
    return [  # a storage may also be a folder, or named in labkit.toml
        (table, value)
        for table, value in named
        if table != "storage" and value not in TABLES[table]
    ]
