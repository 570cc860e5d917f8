"""Write the winner of a run, or another variant, as a plain PyTorch program.

The programs in `labkit/recipes/` consist of blocks: `# --- decode: opencv ---` begins the block of
the kind `decode` with the name `opencv`.  A recipe is the block of each kind that the variant's
settings ask for, with the settings' values as the constants at the top.  Settings come from the run
folder, which may be a stranger's: each value is written with `repr`.
"""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from labkit import units
from labkit.analysis.roofline import ALONE
from labkit.analysis.simulated import warnings
from labkit.analysis.summary import Row, Summary
from labkit.analysis.winner import reasons_against_others, winner
from labkit.files import write_whole
from labkit.parts.decoding import Decoder
from labkit.parts.packing.folder import find_annotations
from labkit.parts.packing.manifest import ANNOTATIONS
from labkit.parts.preprocessing import Preprocessor
from labkit.parts.training.reporting import read_sink
from labkit.records import UNKNOWN
from labkit.report.words import check_baseline, how_measured, plain_labels, published_text, reason
from labkit.resolve import find_part, label_samples, source_folder
from labkit.runs.store import StoredRun
from labkit.settings import Settings, pick

RECIPES = Path(__file__).parents[1] / "recipes"
THREAD_LOADER = RECIPES / "thread_loader.py"
# Where blocks are taken from; the first file decides where several have the same block.
PROGRAMS = ("image_folder", "uint8_batches", "threads", "packed", "detector", "blocks")
BLOCK = re.compile(r"^# --- (.*) ---\n", re.MULTILINE)

# --- settings -> blocks -----------------------------------------------------------------------

READ = {
    "folder": "files",
    "raw": "raw",
    "mapped": "raw",  # the same file
    "pth": "pth",
    "hdf5": "hdf5",
    "lmdb": "lmdb",
    "tfrecord": "tfrecord",
    "tar": "tar",
}
# What is stored of an image -> the block that reads it, where it needs no decoder.
READ_UNDECODED = {"pixels": "raw, pixels", "yuv420": "raw, planes"}
# What is stored for random crops -> the block that takes them.
STORED_CROPS = {"small": "random crop, stored small", "yuv420": "random crop, stored YUV 4:2:0"}
# What is stored -> the packings whose programs read it; of what is not here, all.
PACKINGS_OF: dict[str, list[str]] = {
    "pixels": ["raw", "mapped"],
    "yuv420": ["raw", "mapped"],
    "small": [name for name in READ if name != "folder"],
}
DECODE = {
    "opencv": "opencv",
    "pillow": "pillow",
    "simplejpeg": "simplejpeg",
    "simplejpeg_scaled": "simplejpeg, scaled",
    "kornia_rs": "kornia-rs",
    "torchcodec": "torchcodec",
    "torchvision": "torchvision",
}
# Preprocessor -> what makes pixels of an image, and what makes samples of them.
SAMPLES = {
    "loops": ("CenterNet", "heat maps drawn by the workers"),
    "vectorized": ("CenterNet", "heat maps drawn by the workers"),
    "on_device": ("CenterNet", "heat maps drawn by the device"),
    "classification": ("whole image", "normalized by the workers"),
    "classification_on_device": ("whole image", "normalized by the device"),
    "classification_pillow": ("whole image, in Pillow", "normalized by the workers"),
    "classification_crop": ("random crop", "normalized by the workers"),
    "classification_crop_on_device": ("random crop", "normalized by the device"),
    "classification_crop_pillow": ("random crop, in Pillow", "normalized by the workers"),
    "classification_crop_v2": ("random crop, torchvision v2", "normalized by the workers"),
}
LOAD = {
    **dict.fromkeys(
        (
            "torch", "torch_iterable", "torch_by_batch", "torch_any_order", "torch_file_system",
            "shards", "resident",
        ),
        "worker processes",
    ),
    **dict.fromkeys(("bare_threads", "threads"), "threads"),
}  # fmt: skip
# Prefetcher -> what it adds to the loader, and how batches come to the device.
PREFETCH = {
    "none": ("", "copied when they are asked for"),
    "prefetch_generator": (" and a thread", "copied when they are asked for"),
    "data_prefetcher": ("", "copied on a side stream"),
    "data_prefetcher_step_first": ("", "copied on a side stream after the step"),
    "both": (" and a thread", "copied on a side stream"),
    "data_prefetcher_normalizing": ("", "copied and finished on a side stream"),
}
LOG_HANDLERS = {"file": "logging.FileHandler('reports.log')", "terminal": "logging.StreamHandler()"}
# What a program does otherwise than the run: setting -> its value -> the sentence.
SENTENCES: dict[str, dict[str, str]] = {
    "preprocessor": {
        "loops": "The run made its samples in loops; here they are the same but for rounding, "
        "without loops.",
        "classification_crop_v2": "The run normalized tensors by torchvision; here they are the "
        "same but for rounding.",
    },
    "loader": {
        "resident": "The run repeated one batch in memory, this program loads all of them.",
        "bare_threads": "The run made all samples and handed over one batch, this program all "
        "of them.",
        "torch_iterable": "The run's data set was iterable-style; this one delivers the same "
        "batches.",
        "torch_by_batch": "The run asked its data set for whole batches, by __getitems__; this one "
        "delivers the same, sample by sample.",
        "torch_any_order": "The run took batches as they got ready: pass in_order=False to "
        "DataLoader for that.",
        "shards": "The run read shard after shard and mixed samples in a buffer: for that, read "
        "the pack with webdataset; this program reads it at random.",
        "torch_file_system": "The run's workers shared batches by the names of files: for that, "
        "call torch.multiprocessing.set_sharing_strategy('file_system') before DataLoader.",
    },
    "metrics": {"loops": "The run counted its metrics in loops, this program on the device."},
    "loss": {
        name: f"The run's loss was {name!r}; the program's is a placeholder."
        for name in ("loops", "loops_sync", "threads")
    },
}


def recipe(run: StoredRun, variant: str | None = None) -> str:
    """Return a variant as a program of plain PyTorch: its data loading and its training loop.

    A program with threads imports `thread_loader.py`, which `write` puts beside it.

    Args:
        run: of any experiment that measures epochs; of a roofline, the fastest GPU's rows count.
        variant: a label, of a roofline a pipeline's name; None: the winner, or the baseline where
            nothing beat it.

    Raises:
        ValueError: no such variant, it has no numbers, or no program can do what it does.
    """
    summary = _compared(run)
    row = winner(summary) or summary.rows[0]
    if variant is not None:
        row = pick({row.name: row for row in summary.rows}, variant, "variant")
    if row.normalized_time is None:
        raise ValueError(f"variant must have been measured, got {variant!r}, {reason(row)}")
    settings = run.info.check_settings(row.variant)
    if settings.ranks > 1 or settings.exchange != Settings.exchange:
        raise ValueError(
            f"variant must be of one GPU to be written as a program, got {row.variant!r}; "
            "wrap the program's model in DistributedDataParallel and start it by torchrun"
        )
    loop = _loop(settings)
    blocks = list(_blocks(run, settings, has_more=loop != _loop(Settings())))
    values = {**_values(run, settings), **loop}
    comments = [
        "A training in plain PyTorch, with the settings of one variant of a labkit run.",
        "Model, loss and optimizer are placeholders: put yours there.",
        *_result(run, summary, row, is_chosen=variant is None),
        *_differences(run, settings),
    ]
    return "\n".join([*map(_comment, comments), "", _program(blocks, values)])


def write(run: StoredRun, file: Path, variant: str | None = None) -> Path:
    """Write a recipe, and beside it the `thread_loader.py` that one with threads imports.

    Returns:
        The recipe's file.

    Raises:
        ValueError: as `recipe`.
    """
    text = recipe(run, variant)
    if f"\nfrom {THREAD_LOADER.stem} import " in text:
        shutil.copyfile(THREAD_LOADER, file.with_name(THREAD_LOADER.name))
    return write_whole(file, text)


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


def _blocks(run: StoredRun, settings: Settings, *, has_more: bool) -> Iterator[str]:
    """Yield the names of a program's blocks, in order.

    Args:
        run: whose data has boxes or not.
        settings: of the variant.
        has_more: the training loop does more than to train.

    Raises:
        ValueError: no program does what the settings ask for.
    """
    decoder = find_part(Decoder, settings.decoder)
    preprocessor = find_part(Preprocessor, settings.preprocessor)
    has_boxes, is_detector = run.info.data.boxes == "coco", preprocessor.batch == "detector"
    read, decode = _pick(READ, settings, "packing"), _pick(DECODE, settings, "decoder")
    pixels, dataset = _pick(SAMPLES, settings, "preprocessor")
    loader = _pick(LOAD, settings, "loader")
    ahead, batches = _pick(PREFETCH, settings, "prefetcher")
    if is_detector and not has_boxes:
        raise ValueError(
            "data must have boxes for a recipe that trains a detector, got none (the run made some "
            "up); choose a preprocessor for classification"
        )
    stored = settings.storage_format
    stores = ["jpeg", "resized"]
    stores += ["pixels"] * (not preprocessor.in_pillow) + [*STORED_CROPS] * preprocessor.in_parts
    possible = {
        "packing": ["folder"] if is_detector else PACKINGS_OF.get(stored, READ),
        "storage_format": [*stores, "sample"] if dataset == "normalized by the workers" else stores,
        "decoder": ["pillow"] if preprocessor.in_pillow else DECODE,
        "loader": [name for name in LOAD if LOAD[name] == "worker processes"] if ahead else LOAD,
    }
    for name, names in possible.items():
        if getattr(settings, name) not in names:
            raise ValueError(
                f"{name} of a recipe must be {' or '.join(names)} beside {settings.preprocessor}, "
                f"{stored} and {settings.prefetcher}, got {getattr(settings, name)!r}"
            )

    is_packed = read != "files"
    labels = "largest box" if has_boxes else "class folders"
    if has_boxes:
        yield "categories"
    yield f"images: {'a pack, ' * is_packed}{'boxes' if is_detector else labels}"
    yield f"read: {READ_UNDECODED.get(stored, read)}"
    if stored == "sample":
        yield "dataset: finished when it was packed"
    else:
        decode = "nothing" if stored in READ_UNDECODED else decode
        yield f"decode: {decode}{' image' * preprocessor.in_pillow}"
        if preprocessor.crop is not None:
            yield "crop"
        if stored in STORED_CROPS:
            yield "crop of the original"
            pixels = STORED_CROPS[stored]
        yield f"pixels: {pixels}{', scaled' * decoder.scaled}"
        yield f"dataset: {dataset}"
    yield "order: by seed and epoch"
    yield f"loader: {loader}{ahead}"
    yield f"batches: {batches}"
    yield f"model: {'detector' if is_detector else 'classifier'}"
    yield f"training: {'with log, metrics and checkpoints' if has_more else 'plain'}"


def _pick(table: dict[str, Any], settings: Settings, name: str) -> Any:
    value = getattr(settings, name)
    if value not in table:
        raise ValueError(
            f"{name} of a recipe must be one of {', '.join(sorted(table))}, got {value!r}; take "
            f"the recipe of a variant with one of these and put {value!r} into the program"
        )
    return table[value]


def _values(run: StoredRun, settings: Settings) -> dict[str, object]:
    """Return the values of a program's constants by their names."""
    values: dict[str, object] = {
        **_places(run, settings),
        "INPUT_PX": settings.input_px,
        "BATCH_SIZE": settings.batch_size,
        "EPOCHS": settings.epochs,
        "SEED": settings.seed,
        "IMAGES": settings.images,
        "RANDOM_SUBSET": settings.subset == "random",
        "SHUFFLE": settings.shuffle,
        "UNREADABLE": tuple(sorted(run.info.excluded)),
        "NUM_WORKERS": settings.num_workers,
        "PREFETCH_FACTOR": settings.prefetch_factor,
        "PERSISTENT_WORKERS": settings.persistent_workers,
        "START_METHOD": settings.multiprocessing_context,
        "OPENCV_THREADS": settings.cv2_threads,
    }
    if not settings.pin_memory:
        values["PIN_MEMORY"] = False
    return values


def _loop(settings: Settings) -> dict[str, object]:
    """Return the constants of what a training loop does beside the steps.

    Raises:
        ValueError: no program does it.
    """
    shows_bar = {"none": False, "tqdm": True, "tqdm_loss": True}
    has_metrics = {"none": False, "loops": True, "vectorized": True}
    values: dict[str, object] = {
        "MIXED_PRECISION": settings.precision == "amp",
        "PROGRESS_BAR": _pick(shows_bar, settings, "progress_bar"),
        "LOG_EVERY": settings.report_every,
        "METRICS_EVERY": settings.metrics_every * _pick(has_metrics, settings, "metrics"),
        "CHECKPOINT_EVERY": settings.checkpoint_every,
    }
    if settings.memory_format != Settings.memory_format:
        values["MEMORY_FORMAT"] = Code("torch.channels_last")
    if values["PROGRESS_BAR"]:
        values["PROGRESS_LOSS"] = {"tqdm_loss": True}.get(settings.progress_bar, False)
    if settings.checkpoint_every:
        values["CHECKPOINT_IN_THREAD"] = _pick(
            {"sync": False, "thread": True}, settings, "checkpoint_writer"
        )
    if settings.report_every:
        sink = read_sink(settings.report_to)
        to_a_server = "logging.handlers.HTTPHandler('localhost:8000', '/', 'POST')"
        values["LOG_HANDLER"] = Code(LOG_HANDLERS.get(sink.kind, to_a_server))
        values["LOG_IN_THREAD"] = sink.is_in_thread
        values["LOG_LOSS"] = sink.shows_loss
    return values


def _places(run: StoredRun, settings: Settings) -> dict[str, object]:
    """Return where the images lie, and the file of their boxes, where there is one."""
    data, folder = run.info.data, Path(settings.data)
    stored = source_folder(settings)
    if READ[settings.packing] != "files":
        return {"FOLDER": stored}
    if settings.storage_format != "jpeg":  # labkit made it
        return {"FOLDER": stored / "images", "ANNOTATIONS": stored / ANNOTATIONS}
    if data.boxes != "coco":
        return {"FOLDER": folder}
    places = folder.parent / "annotations" / f"instances_{folder.name}.json", folder
    if data.data_hash != UNKNOWN:  # likewise
        places = folder / ANNOTATIONS, folder / "images"
    elif not run.info.shared_from:
        with contextlib.suppress(OSError, ValueError):  # it may have changed since
            places = find_annotations(folder) or places
    return {"FOLDER": places[1], "ANNOTATIONS": places[0]}


def _differences(run: StoredRun, settings: Settings) -> Iterator[str]:
    """Yield what a program does otherwise than the run, and what it needs."""
    for name, text in label_samples(settings).items():
        yield f"{name.capitalize()}: {text}"
    for name, sentences in SENTENCES.items():
        if getattr(settings, name) in sentences:
            yield sentences[getattr(settings, name)]
    is_original = READ[settings.packing] == "files" and settings.storage_format == "jpeg"
    if "://" in settings.data:
        yield "The run copied its data from a URL: copy it, too, and change FOLDER."
    if not is_original:
        yield (
            f"FOLDER is the run's data as {settings.packing!r}, {settings.storage_format}: make it "
            "with data_scripts/pack_dataset.py."
        )
    if run.info.data.boxes != "coco":
        yield "A label is the number of an image's folder; the run, without boxes, made labels up."
    if settings.compile_model:
        yield "The run compiled its model: write model = torch.compile(model) below."
    if settings.storage != Settings.storage:
        yield f"The run read from storage {settings.storage!r}, this program reads from FOLDER."
    if settings.report_every and read_sink(settings.report_to).kind not in LOG_HANDLERS:
        yield f"The run sent its reports to {settings.report_to!r}: name your server below."
    if settings.checkpoint_every and settings.checkpoint_to != Settings.checkpoint_to:
        yield "The run saved its checkpoints elsewhere: change CHECKPOINT."
    if LOAD[settings.loader] == "threads":
        yield "thread_loader.py is labkit/recipes/thread_loader.py: put it beside this program."


# --- blocks -> a program ----------------------------------------------------------------------


class Code(str):
    """The source of a value; other values are written with `repr`."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """What the programs consist of."""

    imports: dict[str, tuple[str, str]]
    """Name -> the statement that imports it, and the name as it ends the statement, if it does."""
    settings: dict[str, tuple[str, str]]
    """Constant -> the source of its value, and the comment after it."""
    blocks: dict[str, str]


@cache
def _library() -> Library:
    """Read the programs."""
    library = Library(imports={}, settings={}, blocks={})
    for program in PROGRAMS:
        head, *parts = BLOCK.split((RECIPES / f"{program}.py").read_text(encoding="utf-8"))
        blocks = dict(zip(parts[::2], parts[1::2]))
        for node in ast.parse(head).body:
            for each in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                if isinstance(node, ast.ImportFrom):
                    library.imports.setdefault(each.name, (f"from {node.module} import", each.name))
                else:
                    name = each.asname or each.name.partition(".")[0]
                    library.imports.setdefault(name, (ast.unparse(node), ""))
        for line in blocks.pop("settings").split("\n"):
            name, _, rest = line.partition(" = ")
            value, mark, comment = rest.partition("  # ")
            library.settings.setdefault(name, (value, mark + comment))
        for name, text in blocks.items():
            library.blocks.setdefault(name, text.strip("\n"))
    return library


def _program(names: list[str], values: dict[str, object]) -> str:
    """Return imports, constants and blocks as a program.

    Raises:
        ValueError: there is no such block.
    """
    library = _library()
    blocks = [f"# --- {name} ---\n{pick(library.blocks, name, 'block')}" for name in names]
    body = "\n\n\n".join(blocks)
    used = _names(body)
    lines = [
        f"{name} = {_source(values[name]) if name in values else default}{comment}"
        for name, (default, comment) in library.settings.items()
        if name in used
    ]
    settings = "\n".join(["# --- settings ---", *lines])
    used |= _names(settings)
    imports = [library.imports[name] for name in sorted(used & library.imports.keys())]
    return f"{_import_lines(imports)}\n\n{settings}\n\n\n{body}\n"


def _import_lines(imports: list[tuple[str, str]]) -> str:
    """Return the statements: Python's own modules first, then the others."""
    names: dict[str, list[str]] = defaultdict(list)
    for statement, name in imports:
        names[statement].append(name)
    own: list[str] = []
    others: list[str] = []
    for statement in sorted(names, key=lambda each: (each.startswith("from"), each)):
        package = statement.split()[1].partition(".")[0]
        group = own if package in sys.stdlib_module_names else others
        group.append(f"{statement} {', '.join(names[statement])}".strip())
    return "\n".join([*own, "", *others])


def _names(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def _source(value: object) -> str:
    if isinstance(value, Path):
        return f"Path({value.as_posix()!r})"
    return value if isinstance(value, Code) else repr(value)


def _comment(text: str) -> str:
    """Write text as comment lines; `repr` leaves no character in it that ends a line."""
    lines = textwrap.wrap(repr(text)[1:-1], 98, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in lines)


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
        for name, why in reasons_against_others(summary).items():
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
            measured += f"; the document reported {published_text(summary, row)}"
        yield measured
    if (times := run.info.gpu_slowdown_of(row.variant)) > 1:
        yield f"The run trained on each batch {times} times, this program does once."
    if summary.is_floor(row.variant):
        yield "It does only part of the baseline's work, so it is a limit and no remedy."
    yield f"Conditions: {' · '.join([*how_measured(summary), *plain_labels(summary)])}"
    if lines := warnings(summary):
        yield " · ".join(lines)
