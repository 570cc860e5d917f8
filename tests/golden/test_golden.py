"""What orders and batches held before labkit was restructured.

The expected values lie beside this file, one line per entry: delete its line to drop an entry.
Only the functions of the first part know labkit's layout; adapt them to a new layout, and leave
the stored values alone.  Where a change is intended, write all of them anew and look at the
difference:

    python -m tests.golden.test_golden
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import labkit as lab
from labkit.contracts import Skip
from tests.small import completed

FOLDER = Path(__file__).parent
SEEDS = (0, 7)
IMAGE_ORDERS = {
    "all": {},
    "12 images": {"images": 12},
    "first 12, sequential": {"images": 12, "subset": "first", "shuffle": False},
}

# --- what knows the layout of labkit --------------------------------------------------------


def read_trial_order(seed):
    from labkit.runs.schedule import plan

    planned = plan(["a", "b", "c"], ["a"], groups={}, shuffled=True, blocks=range(3), seed=seed)
    return [f"{trial.block} {trial.variant} {trial.role}".strip() for trial in planned]


def read_image_order(photos, **changes):
    """The images of two epochs."""
    from labkit.pipeline import open_loader
    from labkit.resolve import resolve

    source, _ = open_loader(resolve(settings(photos, **changes)))
    epochs = []
    for epoch in range(2):
        source.order.epoch = epoch
        epochs.append([image_id for _, image_id in source.order])
    return epochs


def read_first_batch(photos, **changes):
    from labkit.pipeline import first_batch
    from labkit.resolve import resolve
    from labkit.runs.packs import ensure_pack

    chosen = settings(photos, **changes)
    ensure_pack(chosen, jobs=1)
    return first_batch(resolve(chosen), frozenset())


def list_parts():
    """What is looked at -> the settings that choose it."""
    from labkit.parts.decoding import Decoder
    from labkit.parts.loading import Loader
    from labkit.resolve import find_part

    parts = {f"preprocessor {name}": {"preprocessor": name} for name in lab.PREPROCESSORS}
    parts |= {f"decoder {name}": {"decoder": name} for name in lab.DECODERS}
    for name in lab.DECODERS:
        if find_part(Decoder, name).scaled:  # whose images no longer fit their boxes
            parts[f"decoder {name}"] |= {"preprocessor": "classification"}
    parts |= {f"packing {name}": {"packing": name} for name in lab.PACKINGS}
    parts |= {
        f"stored {kind}": {"packing": "raw", "storage_format": kind}
        for kind in ("resized", "pixels", "sample")
    }
    for name in lab.LOADERS:
        parts[f"loader {name}"] = {"loader": name}
        if find_part(Loader, name).makes_samples:
            parts[f"loader {name}"] |= {"preprocessor": "classification"}
        if name.startswith("tf_data_tfrecord"):
            parts[f"loader {name}"] |= {"packing": "tfrecord"}
    return parts


def settings(photos, **changes):
    return completed(data=str(photos), seed=3, num_workers=2, device="cpu", **changes)


# --- values that JSON can hold, and how they are compared -----------------------------------


def plain(value):
    """Four digits of numbers; None where there is none."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(item) for item in value]
    if isinstance(value, (bool, str)) or value is None:
        return value
    return None if math.isnan(value) else float(f"{value:.4g}")


def describe(batch):
    """Kind, shape and where the values lie: over all, of each image, and in the left half."""
    return {
        name: {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "mean": plain(array.mean()),
            "std": plain(array.std()),
            "images": plain(array.reshape(len(array), -1).mean(axis=1)),
            "left": plain(array[..., : array.shape[-1] // 2].mean()) if array.ndim > 1 else None,
        }
        for name, array in batch.items()
    }


def assert_same(found, wanted, where, abs_tol=1e-12):
    if isinstance(wanted, dict):
        # Libraries of other versions decode a few pixels otherwise.
        abs_tol = 0.01 * (wanted.get("std") or 0) or abs_tol
        for name, value in wanted.items():
            assert_same(found[name], value, f"{where}, {name}", abs_tol)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for i, value in enumerate(wanted):
            assert_same(found[i], value, f"{where}, {i}", abs_tol)
    elif isinstance(wanted, float):
        assert math.isclose(found, wanted, rel_tol=2e-3, abs_tol=abs_tol), (where, found, wanted)
    else:
        assert found == wanted, where


def stored(name):
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


ORDERS, BATCHES = stored("orders"), stored("batches")

# --- the orders -------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_trials_of_a_seed_have_the_same_order(seed):
    assert read_trial_order(seed) == ORDERS[f"trials, seed {seed}"]


@pytest.mark.parametrize("name", IMAGE_ORDERS)
def test_the_images_of_a_seed_have_the_same_order(photos, name):
    assert read_image_order(photos, **IMAGE_ORDERS[name]) == ORDERS[f"images, {name}"]


# --- the first batch of every part ----------------------------------------------------------


def is_rival(name):
    return name.startswith(("loader tf_data", "loader dali"))


RIVALS = [pytest.param(name, marks=pytest.mark.needs_rivals) for name in filter(is_rival, BATCHES)]


@pytest.mark.parametrize("name", [*(n for n in BATCHES if not is_rival(n)), *RIVALS])
def test_a_part_delivers_the_same_first_batch(photos, name):
    batch = read_first_batch(photos, **list_parts()[name])
    assert_same(describe(batch), BATCHES[name], name)


# --- writing the values anew ----------------------------------------------------------------


def write(name: str, entries: Mapping[str, object]) -> None:
    lines = []
    for key, entry in entries.items():
        line = json.dumps(entry, ensure_ascii=False)
        lines.append(f" {json.dumps(key)}: {line}")
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def write_all() -> None:
    from labkit.photos.make import make_photos

    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        make_photos(photos, 24, seed=1, progress=False)
        trials = {f"trials, seed {seed}": read_trial_order(seed) for seed in SEEDS}
        images = {f"images, {k}": read_image_order(photos, **v) for k, v in IMAGE_ORDERS.items()}
        write("orders", {**trials, **images})
        batches = {}
        for name, changes in list_parts().items():
            try:
                batches[name] = describe(read_first_batch(photos, **changes))
            except (ImportError, Skip) as reason:
                print(f"{name}: {reason}")
        write("batches", batches)


if __name__ == "__main__":
    write_all()
