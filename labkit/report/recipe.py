"""Write the winner of a run, or another variant, as a plain PyTorch program.

Settings come from the run folder, which may be a stranger's: `recipe.py.j2` writes every value with
`repr`, unless it is marked as `Code` here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import units
from labkit.analysis.summary import Row, Summary, is_floor
from labkit.analysis.winner import passed_over, winner
from labkit.parts.loading import OUTSIDE
from labkit.parts.packing import PACKINGS
from labkit.parts.prefetching import STEPS_SHORT
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.parts.training.metrics import METRICS
from labkit.parts.training.reporting import HTTP
from labkit.report.captions import how_measured, plain_labels, stand_ins
from labkit.report.row_words import document, reason
from labkit.runs.store import StoredRun, how_to_complete
from labkit.settings import Settings, pick, read_settings

if TYPE_CHECKING:
    import jinja2

WIDTH = 98  # of comments


class Code(str):
    """Text that the template writes as it stands; everything else it writes with `repr`."""


# Decoder -> the pixels of the JPEG file in `content`, (H, W, 3) uint8 RGB.
DECODE = {
    "opencv": "cv2.imdecode(\n"
    "    np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION\n)",
    "pillow": 'np.array(Image.open(io.BytesIO(content)).convert("RGB"))',
    "simplejpeg": 'simplejpeg.decode_jpeg(content, "RGB")',
    "simplejpeg_scaled": "simplejpeg.decode_jpeg(\n"
    '    content, "RGB", min_height=SIZE_PX, min_width=SIZE_PX, min_factor=2\n)',
    "kornia_rs": 'kornia_rs.io.decode_image_jpegturbo(content, "rgb")',
    "torchvision": "decode_jpeg(\n"
    '    torch.frombuffer(bytearray(content), dtype=torch.uint8), mode="RGB"\n'
    ").permute(1, 2, 0).numpy()",
}
IN_THREAD = ("prefetch_generator", "both", "both_as_published")
ON_SIDE_STREAM = ("data_prefetcher", "both", "data_prefetcher_as_published", "both_as_published")
# Setting -> the choices that a program can express; other names are a user's own parts, or of an
# earlier version.
KNOWN = {
    "packing": tuple(PACKINGS),
    "decoder": tuple(DECODE),
    "preprocessor": (
        "loops", "loops_config_per_sample", "loops_label_list", "vectorized", "on_device",
        "classification", "classification_on_device", "classification_pillow",
    ),
    "loader": (
        "torch", "torch_iterable", "torch_batch_sampler", "torch_joined_in_loop",
        "torch_default_collate", "threads", "resident",
    ),
    "prefetcher": ("none", *dict.fromkeys((*IN_THREAD, *ON_SIDE_STREAM))),
    "saver": ("sync", "thread"),
    "metrics": tuple(METRICS),
    "progress_bar": ("none", "tqdm", "tqdm_every_step"),
}  # fmt: skip
# What a program needs where these names occur in it.
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
    "kornia_rs": "import kornia_rs",
    "np": "import numpy as np",
    "simplejpeg": "import simplejpeg",
    "torch": "import torch",
    "PREPROCESSORS": "from labkit import PACKINGS, PREPROCESSORS",
    "ThreadLoader": "from labkit import ThreadLoader",
    "Sample": "from labkit.contracts import Sample",
    "Image": "from PIL import Image",
    "BackgroundGenerator": "from prefetch_generator import BackgroundGenerator",
    "DataLoader": "from torch.utils.data import DataLoader, Dataset, default_collate",
    "Dataset": "from torch.utils.data import Dataset, default_collate",
    "decode_jpeg": "from torchvision.io import decode_jpeg",
    "tqdm": "from tqdm import tqdm",
}
# Where reports went in the run -> what takes them in the program.
HANDLERS = {
    "file": 'logging.FileHandler("reports.log")',
    "terminal": "logging.StreamHandler()",
    "http": 'logging.handlers.HTTPHandler("localhost:8000", "/", "POST")',
}


def recipe(run: StoredRun, variant: str | None = None) -> str:
    """Return a variant as a program of plain PyTorch: its data loading and its training loop.

    Args:
        run: of any experiment that measures epochs.
        variant: a label; None: the winner, or the baseline where nothing beat it.

    Raises:
        ValueError: no such variant, it has no numbers, or a program cannot express it.
    """
    if run.info.get("groups"):
        raise ValueError("run must measure epochs, got one of operations; take a run of combined")
    summary = run.summary
    if variant is not None:
        row = pick({row.variant: row for row in summary.rows}, variant, "variant")
    elif summary.rows[0].normalized_time is None:
        raise ValueError(
            f"run must hold a complete block of its baseline, got none in {run.folder.name}; "
            f"{how_to_complete(run)}"
        )
    else:
        row = winner(summary)
    if row.normalized_time is None:
        raise ValueError(f"variant must have been measured, got {variant!r}, {reason(row)}")
    settings = _settings(run, row.variant)
    comments = [*_result(run, summary, row, is_chosen=variant is None), *_differences(settings)]
    return program(
        settings,
        boxes=_boxes(run, settings),
        excluded=tuple(run.info.get("excluded") or ()),
        comments=comments,
    )


def program(
    settings: Settings,
    *,
    boxes: tuple[Path, Path] | None = None,
    excluded: tuple[int, ...] = (),
    comments: list[str] | tuple[str, ...] = (),
) -> str:
    """Return the program of one variant.

    Args:
        settings: complete (`settings.complete`), with choices from `KNOWN` only.
        boxes: COCO's JSON and the folder of its images; None: the data has no boxes.
        excluded: indices of unreadable images.
        comments: what is said at the top, a line each.
    """
    preprocessor = PREPROCESSORS[settings.preprocessor]
    detector, packed = preprocessor.batch == "detector", settings.packing != "folder"
    of_labkit = detector or packed or settings.stored != "jpeg"
    annotations, data = (None, Path(settings.data)) if of_labkit or boxes is None else boxes
    facts = {
        "s": settings,
        "data": f"{settings.data}_{settings.packing}" if packed else data.as_posix(),
        "annotations": annotations and annotations.as_posix(),
        "of_labkit": of_labkit,
        "excluded": sorted(excluded),
        "decode": "content" if settings.stored == "pixels" else DECODE[settings.decoder],
        "detector": detector,
        "on_device": preprocessor.on_device is not None,
        "in_thread": settings.prefetcher in IN_THREAD,
        "on_side_stream": settings.prefetcher in ON_SIDE_STREAM,
        "loader": _loader_arguments(settings, needs_collate=of_labkit),
        "handler": HANDLERS[_sink(settings)] if settings.report_every else "",
    }
    text = _template().render(**facts, comments=(), imports="")
    needed = [line for name, line in IMPORTS.items() if re.search(rf"(?<![\w.]){name}\b", text)]
    return _template().render(**facts, comments=comments, imports=Code("\n".join(needed)))


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
    lines = textwrap.wrap(repr(text)[1:-1], WIDTH, break_on_hyphens=False)
    return Code("\n".join(f"# {line}" for line in lines))


def _settings(run: StoredRun, variant: str) -> Settings:
    """Read a variant's settings, or say why no program can be written of them."""
    settings = read_settings(run.info["variants"][variant])
    if settings.loader in OUTSIDE:
        raise ValueError(
            f"variant must load with torch or threads, got loader {settings.loader!r} in "
            f"{variant!r}; see labkit/parts/loading for its pipeline"
        )
    for name, choices in KNOWN.items():
        pick(dict.fromkeys(choices), getattr(settings, name), f"{name} of a recipe")
    if settings.report_every:
        pick(HANDLERS, _sink(settings), "report_to of a recipe")
    return settings


def _sink(settings: Settings) -> str:
    return "http" if HTTP.fullmatch(settings.report_to) else settings.report_to


def _boxes(run: StoredRun, settings: Settings) -> tuple[Path, Path] | None:
    """Name COCO's JSON and the folder of its images."""
    data, folder = run.info.get("data") or {}, Path(settings.data)
    if data.get("boxes") != "coco":
        return None
    if data.get("manifest_hash", "unknown") != "unknown":
        return folder / "annotations.json", folder / "images"
    for file in sorted(folder.glob("annotations/instances_*.json")):
        images = folder / file.stem.removeprefix("instances_")
        if images.is_dir():
            return file, images
    return folder.parent / "annotations" / f"instances_{folder.name}.json", folder


def _loader_arguments(settings: Settings, *, needs_collate: bool) -> dict[str, object]:
    """Give the loader's arguments that are not their defaults."""
    workers, arguments = settings.num_workers, {}
    if settings.loader == "threads":
        arguments["num_threads"] = workers
        arguments["prefetch_batches"] = settings.prefetch_factor * max(1, workers)
    elif workers:
        arguments["num_workers"] = workers
        arguments["multiprocessing_context"] = settings.start_method
        if settings.prefetch_factor != 2:
            arguments["prefetch_factor"] = settings.prefetch_factor
        if settings.persistent_workers:
            arguments["persistent_workers"] = True
    if settings.pin_memory:
        arguments["pin_memory"] = Code('DEVICE.type == "cuda"')
    if needs_collate:
        arguments["collate_fn"] = Code("collate")
    return arguments


def _result(run: StoredRun, summary: Summary, row: Row, *, is_chosen: bool) -> Iterator[str]:
    """Give the variant's result and its conditions, a comment each."""
    stored = run.info["variants"]
    own, baseline = stored[row.variant], stored[summary.baseline]
    is_baseline = row.variant == summary.baseline
    chosen = "fastest " if is_chosen and not is_baseline else ""
    yield (
        f"Run: {summary.experiment}/{run.folder.name}, {chosen}variant {row.variant!r}, "
        f"baseline {summary.baseline!r}"
    )
    if is_baseline and is_chosen:
        yield "No variant beat the baseline, so this is the baseline."
    if is_chosen:
        for name, why in passed_over(summary).items():
            yield f"Not {name!r}: {why}."
    if not is_baseline:
        changes = [
            f"{name} {own[name]!r} (was {baseline.get(name)!r})"
            for name in own
            if own[name] != baseline.get(name)
        ]
        yield f"Changed: {', '.join(changes) or 'nothing, so its gain is noise'}"
        measured = f"Measured: {units.normalized(row.normalized_time)} of the baseline's time"
        if row.ci_low is not None:
            measured += f", 95 % interval {units.interval(row.ci_low, row.ci_high)}"
        measured += f", {row.verdict}" if row.verdict else ", no verdict"
        if row.published is not None:
            measured += f"; the document reported {document(summary, row)}"
        yield measured
    if is_floor(own, baseline):
        yield "It does only part of the baseline's work, so it is a limit and no remedy."
    yield f"Conditions: {' · '.join([*how_measured(summary), *plain_labels(summary)])}"
    if stand_in := stand_ins(summary):
        yield " · ".join(stand_in)


def _differences(settings: Settings) -> Iterator[str]:
    """Say where the program differs from the run, a comment each."""
    packed = f"{settings.packing!r}, {settings.stored}"
    if "://" in settings.data:
        yield "The run copied its data from a URL: copy it, too, and change DATA."
    if (settings.packing, settings.stored) != ("folder", "jpeg"):
        yield f"DATA is the run's data as {packed}: make it with data_scripts/pack_dataset.py."
    if settings.storage != "here":
        yield f"The run read from storage {settings.storage!r}, this reads from where DATA lies."
    if PREPROCESSORS[settings.preprocessor].batch == "detector":
        yield "Samples are made by labkit, as CenterNet makes them: your own data set goes there."
    if settings.loader == "resident":
        yield "The run repeated one batch in memory, this loads all of them."
    elif settings.loader.startswith("torch_"):
        yield f"The run's loader was {settings.loader!r}, this one delivers the same batches."
    if settings.prefetcher in STEPS_SHORT:
        yield "The run left out the last step of each epoch, this does not."
    if settings.jitter_ms:
        yield f"In the run samples came up to {settings.jitter_ms} ms late."
    if settings.loss != "vectorized":
        yield f"The run's loss was {settings.loss!r}."
    if settings.metrics == "loops":
        yield "The run counted its metrics in Python loops."
    if settings.report_every and _sink(settings) == "http":
        yield f"The run sent its reports to {settings.report_to!r}: name your server below."
    if settings.checkpoint_every and settings.checkpoint_to != "here":
        yield "The run saved its checkpoints elsewhere: name a folder below."
