"""Slow-downs that benchmarks diagnose: their sources, and that both forms do the same work."""

import inspect
import re
from itertools import chain, islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks import planted_fresh, real_loops, real_samples
from benchmarks.diagnosis import ALL, CASES, FRESH, NOTHING, names
from benchmarks.photo_training import Site
from benchmarks.real_cases import REAL_CASES
from labkit.diagnosis.rules import REMEDIES

LISTED = [name for name, case in CASES.items() if case.kind == FRESH]
SAME = [name for name, case in REAL_CASES.items() if not case.changes]
COUNT = 32
# Nothing is measured here, so little data is enough, and nothing needs to wait.
SMALL = {
    planted_fresh: {
        "SAMPLES": COUNT, "IMAGES": COUNT, "FILES": COUNT, "TEXTS": 1_000, "ANSWER_S": 0.0,
    },
    planted_fresh.Ask: {"ANSWER_S": 0.0},
    planted_fresh.LockedFile: {"ANSWER_S": 0.0},
    planted_fresh.Cold: {"LATE_S": 0.0, "EVERY": 8},
    planted_fresh.Spelled: {"VOCABULARY": 1_000},
    planted_fresh.Queried: {"SERIES": COUNT},
    planted_fresh.Packing: {"WEIGHTS": 1_000},
    real_samples: {"IMAGES": COUNT, "WINDOWS": COUNT, "ROWS": COUNT},
    real_samples.Patches: {"SIDE": 32},
    real_loops: {"IMAGES": COUNT},
}  # fmt: skip


@pytest.fixture
def site(photos, tmp_path, monkeypatch):
    for owner, values in SMALL.items():
        for name, value in values.items():
            monkeypatch.setattr(owner, name, value)
    with Site(photos, tmp_path) as site:
        yield site


# --- planted ----------------------------------------------------------------------------------


def as_frames(batch):
    sounds, labels = batch
    made = [planted_fresh.spectrogram(sound.numpy()) for sound in sounds]
    return torch.from_numpy(np.stack(made)), labels


def as_numbers(batch):
    features, classes = batch
    return features, torch.stack([each.nonzero()[:, 0] for each in classes])


def in_order(batch):
    features, classes = batch
    return features, classes.sort(dim=1).values


def as_bytes(batch):
    clips, labels = batch
    return ((clips * 0.22 + 0.45) * 255).round().byte(), labels


def without_padding(batch):
    padded, labels = batch
    used = (padded != 0).any(dim=2).sum(dim=1)
    return [*(each[:length] for each, length in zip(padded, used)), labels]


def stacked(batch):
    return {**batch, "boxes": torch.stack([torch.stack(list(boxes)) for boxes in batch["boxes"]])}


# What the step, the device or nobody does to the batches of each form before they are the same.
CHANGES = {
    "spectrograms_in_the_loop": (as_frames, None),
    "dense_labels": (as_numbers, in_order),
    "clips_as_float64": (as_bytes, None),
    "padded_to_the_longest_of_all": (without_padding, without_padding),
    "tensor_per_object": (stacked, None),
}
ELSEWHERE = {"windows_in_pairs", "one_shard"}


def train(site, name, count=2):
    """Return the first batches of both forms, with which both have trained."""
    taken = []
    for fixed in (False, True):
        training = CASES[name].make(site, fixed)
        taken.append(list(islice(training["loader"], count)))
        for batch in taken[-1]:
            training["step"](batch)
    return taken


def leaves(batch):
    """Return all tensors of a batch."""
    if torch.is_tensor(batch):
        return [batch]
    each = batch.values() if isinstance(batch, dict) else batch
    return [tensor for one in each for tensor in leaves(one)]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in LISTED if name not in ELSEWHERE])
def test_both_forms_deliver_the_same_batches(site, name):
    for batches in zip(*train(site, name), strict=True):
        changes = CHANGES.get(name, (None, None))
        broken, fixed = (
            leaves(change(batch) if change else batch) for change, batch in zip(changes, batches)
        )
        assert [one.dtype for one in broken] == [one.dtype for one in fixed]
        for one, other in zip(broken, fixed, strict=True):
            np.testing.assert_array_equal(one, other)


def test_both_forms_of_windows_files_and_metrics_do_the_same_work(site):
    [pair], [large] = train(site, "windows_in_pairs", count=1)
    for one, other in zip(pair, large, strict=True):
        assert len(other) > len(one)
        np.testing.assert_array_equal(one, other[: len(one)])
    # A list of files is delivered once by one worker or by two.
    for batches in train(site, "one_shard", count=None):
        labels = [batch["label"].tolist() for batch in batches]
        assert sorted(chain.from_iterable(labels)) == list(range(COUNT))
    true, predicted = np.random.default_rng(0).integers(0, planted_fresh.CLASSES, (2, 4, 9, 9))
    np.testing.assert_array_equal(
        planted_fresh.confusion(true, predicted), planted_fresh.confusion_by_pixel(true, predicted)
    )


# --- of real projects ---------------------------------------------------------------------------


def both_forms(site, name):
    return [REAL_CASES[name].make(site, fixed) for fixed in (False, True)]


def batch_of(training):
    """Make a batch of four samples as a worker does."""
    loader = training["loader"]
    sampler = [[0, 3, 5, COUNT - 1]]
    return next(
        iter(DataLoader(loader.dataset, batch_sampler=sampler, collate_fn=loader.collate_fn))
    )


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")
@pytest.mark.parametrize("name", SAME)
def test_the_fix_delivers_the_same_samples_in_the_same_order(site, name):
    forms = both_forms(site, name)
    orders = [list(form["loader"].sampler) for form in forms]
    assert orders[0] == orders[1]
    broken, fixed = map(batch_of, forms)
    assert list(broken) == list(fixed)
    for key in broken:
        assert broken[key].dtype == fixed[key].dtype
        np.testing.assert_array_equal(broken[key], fixed[key], err_msg=key)


def test_fixes_that_change_the_samples_change_them_as_they_say(site):
    broken, fixed = map(batch_of, both_forms(site, "decoded_in_full_size"))
    apart = (broken["image"].float() - fixed["image"].float()).abs()
    assert 0 < apart.mean() < 2  # levels of 255
    broken, fixed = map(batch_of, both_forms(site, "floats_sent"))
    assert fixed["image"].dtype == torch.uint8
    assert torch.equal(broken["image"], fixed["image"].float() / 255)
    broken, fixed = (
        sorted(label for batch in form["loader"] for label in batch["label"].tolist())
        for form in both_forms(site, "all_from_every_worker")
    )
    assert fixed == list(range(COUNT))
    assert broken == sorted(2 * fixed)
    tested_here = {"decoded_in_full_size", "floats_sent", "all_from_every_worker"}
    assert set(REAL_CASES) - set(SAME) == tested_here


# --- all ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL_CASES)
def test_a_real_case_has_its_source_and_speaks_in_the_words_of_the_diagnosis(name):
    case = REAL_CASES[name]
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case.source)
    assert case.cause
    assert bool(case.published) == bool(case.published_for)
    assert names(case.bottleneck) <= {line.bottleneck for line in REMEDIES}
    assert names(case.remedy) <= {line.name for line in REMEDIES}


def test_every_case_is_listed_under_its_own_name_in_the_words_of_the_others():
    assert len({case.source for case in REAL_CASES.values()}) == len(REAL_CASES) >= 8
    assert len(CASES) == len(ALL) + len(REAL_CASES)
    functions = inspect.getmembers(planted_fresh, inspect.isfunction)
    takes = {name: list(inspect.signature(made).parameters) for name, made in functions}
    assert {name for name in takes if takes[name] == ["site", "fixed"]} == set(LISTED)
    assert len(LISTED) >= 24
    assert sum(CASES[name].remedy == NOTHING for name in LISTED) >= 5
    others = [case for case in CASES.values() if case.kind != FRESH]
    for words in (
        lambda case: names(case.bottleneck),
        lambda case: names(case.remedy) | names(case.also),
    ):
        known = set().union(*map(words, others)) | {NOTHING}
        assert all(words(CASES[name]) <= known for name in LISTED)
