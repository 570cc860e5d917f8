"""Write the winner of a run, or another variant, as a plain PyTorch program.

Settings come from the run folder, which may be a stranger's: `recipe.py.j2` writes every value with
`repr`, unless it is marked as `Code` here.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import units
from labkit.analysis.roofline import ALONE
from labkit.analysis.simulated import warnings
from labkit.analysis.summary import Row, Summary
from labkit.analysis.winner import passed_over, winner
from labkit.contracts import as_part
from labkit.parts.decoding import Decoder
from labkit.parts.loading import Loader
from labkit.parts.packing.folder import find_annotations
from labkit.parts.packing.manifest import ANNOTATIONS
from labkit.parts.preprocessing.crops import draw_crop
from labkit.parts.training.reporting import check_sink
from labkit.records import UNKNOWN
from labkit.report.words import check_baseline, how_measured, plain_labels, published, reason
from labkit.resolve import BUILT_IN, find_part, label_samples, stored_folder
from labkit.runs.store import StoredRun
from labkit.settings import Settings, pick

if TYPE_CHECKING:
    import jinja2

COMMENT_COLUMNS = 98
PARTS = (
    *("packing", "decoder", "preprocessor", "loader", "prefetcher"),
    *("saver", "metrics", "progress_bar"),
)
# What a program imports where these names occur in it.
IMPORTS = {
    "copy": "import copy",
    "io": "import io",
    "json": "import json",
    "logging": "import logging\nimport logging.handlers",
    "queue": "import queue",
    "time": "import time",
    "ThreadPoolExecutor": "from concurrent.futures import ThreadPoolExecutor",
    "Path": "from pathlib import Path\n",
    "cv2": "import cv2",
    "np": "import numpy as np",
    "torch": "import torch",
    "PREPROCESSORS": "from labkit import PACKINGS, PREPROCESSORS",
    "ThreadLoader": "from labkit import ThreadLoader",
    "Sample": "from labkit.contracts import Sample",
    "read_size_px": "from labkit.contracts import read_size_px",
    "Image": "from PIL import Image",
    "BackgroundGenerator": "from prefetch_generator import BackgroundGenerator",
    "DataLoader": "from torch.utils.data import DataLoader",
    "Dataset": "from torch.utils.data import Dataset",
    "default_collate": "from torch.utils.data import default_collate",
    "tqdm": "from tqdm import tqdm",
}


class Code(str):
    """Text that the template writes as it stands; everything else it writes with `repr`."""


def recipe(run: StoredRun, variant: str | None = None) -> str:
    """Return a variant as a program of plain PyTorch: its data loading and its training loop.

    Args:
        run: of any experiment that measures epochs; of a roofline, the fastest GPU's rows count.
        variant: a label, of a roofline a pipeline's name; None: the winner, or the baseline where
            nothing beat it.

    Raises:
        ValueError: no such variant, it has no numbers, or a program cannot express it.
    """
    summary = _compared(run)
    row = winner(summary) or summary.rows[0]
    if variant is not None:
        row = pick({row.name: row for row in summary.rows}, variant, "variant")
    if row.normalized_time is None:
        raise ValueError(f"variant must have been measured, got {variant!r}, {reason(row)}")
    settings = _settings(run, row.variant)
    if settings.ranks > 1 or settings.exchange != Settings.exchange:
        raise ValueError(
            f"variant must be of one GPU to be written as a program, got {row.variant!r}; "
            "wrap the program's model in DistributedDataParallel and start it by torchrun"
        )
    decoder = as_part(Decoder, BUILT_IN["decoder"][settings.decoder])
    decode = inspect.unwrap(decoder.function)
    preprocessor = BUILT_IN["preprocessor"][settings.preprocessor]
    of_samples = [f"{name.capitalize()}: {text}" for name, text in label_samples(settings).items()]
    facts = {
        "s": settings,
        "repeats_one_batch": run.summary.facts(row.variant).repeats_one_batch,
        "decodes_scaled": decoder.scaled,
        "stored_folder": stored_folder(settings).as_posix(),
        "result": [*_result(run, summary, row, is_chosen=variant is None), *of_samples],
        "boxes": _boxes(run, settings),
        "excluded": sorted(run.info.excluded),
        "decode": Code(decode.__name__),
        "decode_source": Code(_source(decode)),
        "detector": preprocessor.batch == "detector",
        "on_device": preprocessor.on_device is not None,
        "in_pillow": preprocessor.in_pillow,
        "as_image": preprocessor.in_pillow and decoder.makes_pillow_image,
        "cropped": preprocessor.crop is not None,
        "crop_source": Code(_source(draw_crop)),
        "scaled_crop": preprocessor.crop is not None and decoder.scaled,
    }
    text = _template().render(facts, imports="")
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    needed = [line for name, line in IMPORTS.items() if re.search(rf"(?<![\w.]){name}\b", code)]
    return _template().render(facts, imports=Code("\n".join(needed)))


def _compared(run: StoredRun) -> Summary:
    """Return the rows that have one baseline: of several speeds, those of the fastest device."""
    summary = run.summary
    for compared in reversed(summary.at_speeds.values()):
        if compared.rows[0].normalized_time is not None:
            return compared
    if summary.kind == "roofline":
        by_speed = summary.groups()
        by_speed.pop(ALONE, None)
        for rows in reversed(by_speed.values()):
            if rows[0].normalized_time is not None:
                return replace(summary, rows=rows, baseline=rows[0].variant)
    check_baseline(run)
    return summary


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("labkit.report", "."),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Code) else repr(value),
        autoescape=False,
    )
    environment.filters |= {"code": Code, "comment": _comment}
    return environment.get_template("recipe.py.j2")


def _comment(text: str) -> Code:
    """Write text as comment lines; `repr` leaves no character in it that ends a line."""
    lines = textwrap.wrap(repr(text)[1:-1], COMMENT_COLUMNS, break_on_hyphens=False)
    return Code("\n".join(f"# {line}" for line in lines))


def _source(function: Callable) -> str:
    """Return a function's source without decorator and docstring, and with plain imports."""
    lines = inspect.getsource(function).splitlines()
    node: Any = ast.parse("\n".join(lines)).body[0]
    docstring = node.body[0]
    lines = [*lines[node.lineno - 1 : docstring.lineno - 1], *lines[docstring.end_lineno :]]
    text = re.sub(r'(\w+) = open_library\("([\w.]+)".*', r"import \2 as \1", "\n".join(lines))
    return re.sub(r"import (\w+) as \1\b", r"import \1", text)


def _settings(run: StoredRun, variant: str) -> Settings:
    """Read a variant's settings.

    Raises:
        ValueError: no program can be written of them.
    """
    settings = run.info.check_settings(variant)
    if find_part(Loader, settings.loader).is_outside:
        raise ValueError(
            f"variant must load with torch or threads, got loader {settings.loader!r} in "
            f"{variant!r}; see labkit/parts/loading for its pipeline"
        )
    for name in PARTS:
        pick(BUILT_IN[name], getattr(settings, name), f"{name} of a recipe")
    if settings.report_every:
        check_sink(settings.report_to)
    return settings


def _boxes(run: StoredRun, settings: Settings) -> tuple[str, str] | None:
    """Return COCO's JSON file and the folder of its images; None: the data has no boxes."""
    data, folder = run.info.data, Path(settings.data)
    if data.boxes != "coco":
        return None
    found = folder.parent / "annotations" / f"instances_{folder.name}.json", folder
    if data.manifest_hash != UNKNOWN:  # labkit made it
        found = folder / ANNOTATIONS, folder / "images"
    elif not run.info.shared_from:
        with contextlib.suppress(OSError, ValueError):  # it may have changed since
            found = find_annotations(folder) or found
    return found[0].as_posix(), found[1].as_posix()


def _result(run: StoredRun, summary: Summary, row: Row, *, is_chosen: bool) -> Iterator[str]:
    """Yield the variant's result and its conditions, a comment each."""
    own, baseline = (run.info.variants[label] for label in (row.variant, summary.baseline))
    is_baseline = row.variant == summary.baseline
    chosen = "fastest " if is_chosen and not is_baseline else ""
    yield (
        f"Run: {run.info.experiment}/{run.folder.name}, {chosen}variant {row.variant!r}, "
        f"baseline {summary.baseline!r}"
    )
    if is_baseline and is_chosen:
        yield "No variant is measurably faster than the baseline, so this is the baseline."
    if is_chosen:
        for name, why in passed_over(summary).items():
            yield f"Not {name!r}: {why}."
    if not is_baseline:
        was = vars(baseline)
        changes = [
            f"{name} {value!r} (was {was[name]!r})"
            for name, value in vars(own).items()
            if value != was[name]
        ]
        yield f"Changed: {', '.join(changes) or 'nothing, so its gain is noise'}"
        measured = f"Measured: {units.normalized(row.normalized_time)} of the baseline's time"
        if row.ci_low is not None:
            measured += f", 95 % interval {units.interval(row.ci_low, row.ci_high)}"
        measured += f", {row.verdict}" if row.verdict else ", no verdict"
        if row.published is not None:
            measured += f"; the document reported {published(summary, row)}"
        yield measured
    if own.step_repeats > 1:
        yield f"The run trained on each batch {own.step_repeats} times, this program does once."
    if summary.is_floor(row.variant):
        yield "It does only part of the baseline's work, so it is a limit and no remedy."
    yield f"Conditions: {' · '.join([*how_measured(summary), *plain_labels(summary)])}"
    if lines := warnings(summary):
        yield " · ".join(lines)
