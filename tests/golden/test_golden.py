"""The orders of a seed, and the first batch of every preprocessor, stay what they were.

A run of an earlier version is resumed in its own order.  The expected values lie beside this file,
one line per entry: delete its line to drop an entry.  Where a change is intended, write all of them
anew and look at the difference:

    python -m tests.golden.test_golden

That all decoders, packings and loaders deliver what these do is tested with them.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest

import labkit as lab
from labkit.contracts import Skip
from labkit.photos.make import make_photos
from labkit.pipeline import first_batch, open_loader
from labkit.resolve import resolve
from labkit.runs.schedule import plan
from tests.small import completed

FOLDER = Path(__file__).parent
SEEDS = (0, 7)
IMAGE_ORDERS = {
    "all": {},
    "12 images": {"images": 12},
    "first 12, sequential": {"images": 12, "subset": "first", "shuffle": False},
}


def stored(name):
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


ORDERS, BATCHES = stored("orders"), stored("batches")


def parts_of(photos, **changes):
    return resolve(completed(data=str(photos), seed=3, num_workers=2, device="cpu", **changes))


def order_of_trials(seed):
    planned = plan(["a", "b", "c"], ["a"], groups={}, shuffled=True, blocks=range(3), seed=seed)
    return [f"{trial.block} {trial.variant} {trial.role}".strip() for trial in planned]


def order_of_images(photos, **changes):
    """The images of two epochs."""
    source, _ = open_loader(parts_of(photos, **changes))
    epochs = []
    for source.order.epoch in range(2):
        epochs.append([image_id for _, image_id in source.order])
    return epochs


def describe_batch(photos, preprocessor):
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
        for name, array in first_batch(
            parts_of(photos, preprocessor=preprocessor), frozenset()
        ).items()
    }


def plain(value):
    """Four digits of numbers; None where there is none."""
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    return None if math.isnan(value) else float(f"{value:.4g}")


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


@pytest.mark.parametrize("seed", SEEDS)
def test_the_trials_of_a_seed_have_the_same_order(seed):
    assert order_of_trials(seed) == ORDERS[f"trials, seed {seed}"]


@pytest.mark.parametrize("name", IMAGE_ORDERS)
def test_the_images_of_a_seed_have_the_same_order(photos, name):
    assert order_of_images(photos, **IMAGE_ORDERS[name]) == ORDERS[f"images, {name}"]


@pytest.mark.parametrize("name", BATCHES)
def test_a_preprocessor_delivers_the_same_first_batch(photos, name):
    found = describe_batch(photos, name.removeprefix("preprocessor "))
    assert_same(found, BATCHES[name], name)


def write(name, entries):
    lines = [
        f" {json.dumps(key)}: {json.dumps(entries[key], ensure_ascii=False)}" for key in entries
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def write_all():
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        make_photos(photos, 24, seed=1, progress=False)
        trials = {f"trials, seed {seed}": order_of_trials(seed) for seed in SEEDS}
        images = {f"images, {k}": order_of_images(photos, **v) for k, v in IMAGE_ORDERS.items()}
        write("orders", {**trials, **images})
        batches = {}
        for name in lab.PREPROCESSORS:
            try:
                batches[f"preprocessor {name}"] = describe_batch(photos, name)
            except (ImportError, Skip) as reason:
                print(f"{name}: {reason}")
        write("batches", batches)


if __name__ == "__main__":
    write_all()
