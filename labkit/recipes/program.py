"""The programs that recipes are: settings → plain PyTorch.

    settings ─▶ pieces (pieces), blanks filled ─▶ a program that imports labkit
                              inline: labkit's own source ─▶ one that does not

Main trap: what a setting does not reach must not be in the program: it is to be read.
"""

from __future__ import annotations

from collections.abc import Collection
from string import Template

from labkit.parts.preprocessing.draws import CONFIG_PATH
from labkit.parts.training import LOSSES
from labkit.parts.training.checkpoints import SAVERS
from labkit.parts.training.metrics import METRICS
from labkit.recipes import loop, pieces
from labkit.recipes.inline import inline
from labkit.settings import Settings

# Preprocessor -> its module, its function, and what finishes the batch on the device.
PREPROCESSING = "labkit.parts.preprocessing"
PREPROCESSORS = {
    "loops": ("loops", "loops", ""),
    "loops_config_per_sample": ("loops", "loops_config_per_sample", ""),
    "loops_label_list": ("loops", "loops_label_list", ""),
    "vectorized": ("vectorized", "vectorized", ""),
    "on_device": ("on_device", "on_device_sample", "finish_on_device"),
    "classification": ("classification", "classification", ""),
    "classification_on_device": (
        "classification",
        "classification_on_device",
        "normalize_on_device",
    ),
    "classification_pillow": ("classification", "classification_pillow", ""),
}
HAVE_RAGGED = ("on_device",)  # torch's own collate does not join their boxes
USE_OPENCV = tuple(name for name in PREPROCESSORS if name != "classification_pillow")
IN_THREAD = ("prefetch_generator", "both", "both_as_published")
ON_SIDE_STREAM = ("data_prefetcher", "both", "data_prefetcher_as_published", "both_as_published")
LOADER_SETTINGS = {
    "batch_size", "num_workers", "prefetch_factor", "persistent_workers", "start_method",
    "pin_memory", "order", "subset",
}  # fmt: skip
# Which images an epoch takes, where not all.
CHOSEN = {
    "random": "np.random.default_rng(SEED).permutation(len(images))",
    "first": "np.arange(len(images))",
}
# Loader -> the module and the class that a recipe takes over; the others are torch's DataLoader,
# which joins samples by its default_collate unless told otherwise.
LOADING = "labkit.parts.loading"
MAKERS = {
    "threads": ("threads", "ThreadLoader"),
    "torch_iterable": ("torch_variants", "IterableLoader"),
    "torch_batch_sampler": ("torch_variants", "BatchSampledLoader"),
    "torch_joined_in_loop": ("torch_variants", "LoopJoiningLoader"),
}
# Setting -> the choices that can be written out; whatever else a table has is a person's own.
BUILT_IN = {
    "packing": ("folder",),
    "decoder": tuple(pieces.DECODERS),
    "preprocessor": tuple(PREPROCESSORS),
    "loader": ("torch", "torch_default_collate", "resident", *MAKERS),
    "prefetcher": tuple(dict.fromkeys(("none", *IN_THREAD, *ON_SIDE_STREAM))),
    "loss": tuple(LOSSES),
    "saver": tuple(SAVERS),
    "metrics": tuple(METRICS),
    "progress_bar": ("none", *loop.TQDM),
}


def program(
    settings: Settings,
    *,
    layout: str,
    excluded: tuple[int, ...] = (),
    baseline: Settings | None = None,
) -> str:
    """Write the program of one variant.

    Args:
        settings: complete, all parts of them labkit's own.
        layout: of the folder, a key of `LAYOUTS`.
        excluded: indices of unreadable images.
        baseline: the run's; where the step differs from its, there is a training loop.

    Returns:
        Python source that imports torch, numpy and the libraries that the variant uses.
    """
    module, per_sample, finish = PREPROCESSORS[settings.preprocessor]
    imports, opening, boxes = pieces.LAYOUTS[layout]
    needs_collate = _needs_collate(settings)
    in_thread = settings.prefetcher in IN_THREAD
    on_side_stream = settings.prefetcher in ON_SIDE_STREAM
    is_resident = settings.loader == "resident"
    trains = loop.is_needed(settings, baseline)
    maker_module, maker = MAKERS.get(settings.loader, ("", "DataLoader"))
    words = {
        "chosen": CHOSEN[settings.subset],
        "order": ", sequential=True" if settings.order == "sequential" else "",
        "constants": _constants(settings, excluded, trains=trains),
        "open": opening,
        "boxes": boxes.rstrip("\n"),
        "per_sample": per_sample,
        "maker": maker,
        "loader": "DataLoaderX" if in_thread else maker,
        "choose": "    chosen = chosen[~np.isin(chosen, UNREADABLE)]\n" if excluded else "",
        "wanted": "IMAGES" if settings.images else "len(chosen)",
        "arguments": _loader_arguments(settings, ragged=needs_collate),
        "deliver": _deliver("put_ahead(loader)" if on_side_stream else "map(put, loader)", finish),
        "batch": f"{finish}(batch, INPUT_PX)" if finish else "batch",
    }
    needed = [name for name in (per_sample, finish) if name]
    texts = [
        pieces.IMPORTS,
        imports,
        f"from {PREPROCESSING}.{module} import {', '.join(needed)}\n",
        f"from {LOADING}.{maker_module} import {maker}\n" if maker_module else "",
        "from collections.abc import Iterator\n",
        "import itertools\n" if is_resident else "",
        "from torch.utils.data import default_collate\n" if needs_collate else "",
        "import cv2\n" if _uses_opencv(settings) else "",
        "$constants\n",
        pieces.DECODERS[settings.decoder],
        pieces.IMAGES,
        pieces.COLLATE if needs_collate else "",
        "from prefetch_generator import BackgroundGenerator\n" if in_thread else "",
        pieces.BANNER + (pieces.DATA_LOADER_X if in_thread else "") + pieces.MAKE_LOADER,
        pieces.PUT,
        pieces.PUT_AHEAD if on_side_stream and not is_resident else "",
        pieces.ONE_BATCH if is_resident else pieces.BATCHES,
        *(loop.texts(settings) if trains else [pieces.MAIN]),
    ]
    text = Template("\n".join(texts)).substitute(words)
    config = CONFIG_PATH.read_text(encoding="utf-8")
    read_config = pieces.READ_CONFIG.format(text=config.strip())
    return inline(text, {"read_config": read_config, "cores": pieces.CORES})


def functions(settings: Settings, changed: Collection[str]) -> list[str]:
    """Name what of a program does the work of settings that were changed, in its order."""
    _, per_sample, finish = PREPROCESSORS[settings.preprocessor]
    found = ["decode"] if "decoder" in changed else []
    if "preprocessor" in changed:
        collate = ["collate"] if _needs_collate(settings) else []
        found += [per_sample, *collate, *([finish] if finish else [])]
    if "prefetcher" in changed and settings.prefetcher in IN_THREAD:
        found.append("DataLoaderX")
    if "loader" in changed and settings.loader in MAKERS:
        found.append(MAKERS[settings.loader][1])
    if LOADER_SETTINGS & set(changed):
        found.append("make_loader")
    if "prefetcher" in changed and settings.prefetcher in ON_SIDE_STREAM:
        found.append("put_ahead")
    return found + loop.functions(settings, changed)


def libraries(settings: Settings) -> list[str]:
    """Name what a program imports, as `machine.versions` calls it."""
    uses_pillow = "pillow" in (settings.decoder, settings.preprocessor.partition("_")[2])
    used = {
        "opencv": _uses_opencv(settings),
        "pillow": uses_pillow,
        "simplejpeg": settings.decoder.startswith("simplejpeg"),
        "kornia_rs": settings.decoder == "kornia_rs",
        "torchvision": settings.decoder == "torchvision",
        "prefetch_generator": settings.prefetcher in IN_THREAD,
    }
    return ["torch", "numpy", *(name for name, is_used in used.items() if is_used)]


def _uses_opencv(settings: Settings) -> bool:
    return settings.decoder == "opencv" or settings.preprocessor in USE_OPENCV


def _needs_collate(settings: Settings) -> bool:
    return settings.preprocessor in HAVE_RAGGED and settings.loader != "threads"


def _deliver(batches: str, finish: str) -> str:
    if not finish:
        return f"    yield from {batches}"
    return f"    for batch in {batches}:\n        yield {finish}(batch, INPUT_PX)"


def _constants(settings: Settings, excluded: tuple[int, ...], *, trains: bool) -> str:
    lines = [
        f"DATA = {_quoted(settings.data)}",
        f"IMAGES = {settings.images}  # per epoch" if settings.images else "",
        f"BATCH_SIZE = {settings.batch_size}",
        f"INPUT_PX = {settings.input_px}",
        f"SEED = {settings.seed}",
        f"UNREADABLE = {sorted(excluded)}  # left out" if excluded else "",
        'DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        f"cv2.setNumThreads({settings.cv2_threads})" if _uses_opencv(settings) else "",
        *(loop.constants(settings) if trains else []),
    ]
    return "\n".join(filter(None, lines))


def _quoted(text: str) -> str:
    """Write a string as Python does, in double quotes where it can be."""
    written = repr(text)
    return written if '"' in written else f'"{written[1:-1]}"'


def _loader_arguments(settings: Settings, *, ragged: bool) -> str:
    workers = settings.num_workers
    if settings.loader == "threads":
        ahead = settings.prefetch_factor * max(1, workers)
        arguments = {"num_threads": workers, "prefetch_batches": ahead}
    else:
        arguments = {"num_workers": workers}
    if settings.loader != "threads" and workers:
        arguments |= {
            "prefetch_factor": settings.prefetch_factor,
            "persistent_workers": settings.persistent_workers,
            "multiprocessing_context": f'"{settings.start_method}"',
        }
    if settings.pin_memory:
        arguments["pin_memory"] = 'DEVICE.type == "cuda"'
    if ragged:
        arguments["collate_fn"] = "collate"
    return "\n".join(f"        {name}={value}," for name, value in arguments.items())
