"""Cases that are looked at once: all are listed, and both forms deliver the same batches."""

import inspect
from itertools import chain, islice

import numpy as np
import pytest
import torch

from benchmarks import planted_fresh
from benchmarks.diagnosis import CASES, FRESH, NOTHING, names
from benchmarks.photo_training import Site

LISTED = [name for name, case in CASES.items() if case.kind == FRESH]
COUNT = 32


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


@pytest.fixture
def site(photos, tmp_path, monkeypatch):
    # Nothing is measured here, so little data is enough, and nothing needs to wait.
    for name in ("SAMPLES", "IMAGES"):
        monkeypatch.setattr(planted_fresh, name, COUNT)
    monkeypatch.setattr(planted_fresh, "TEXTS", 1_000)
    monkeypatch.setattr(planted_fresh, "FILES", COUNT)
    monkeypatch.setattr(planted_fresh, "ANSWER_S", 0.0)
    monkeypatch.setattr(planted_fresh.Ask, "ANSWER_S", 0.0)
    monkeypatch.setattr(planted_fresh.LockedFile, "ANSWER_S", 0.0)
    monkeypatch.setattr(planted_fresh.Cold, "LATE_S", 0.0)
    monkeypatch.setattr(planted_fresh.Cold, "EVERY", 8)
    monkeypatch.setattr(planted_fresh.Spelled, "VOCABULARY", 1_000)
    monkeypatch.setattr(planted_fresh.Queried, "SERIES", COUNT)
    monkeypatch.setattr(planted_fresh.Packing, "WEIGHTS", 1_000)
    with Site(photos, tmp_path) as site:
        yield site


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


def test_windows_are_the_same_in_batches_of_any_size(site):
    [pair], [large] = train(site, "windows_in_pairs", count=1)
    for one, other in zip(pair, large, strict=True):
        assert len(other) > len(one)
        np.testing.assert_array_equal(one, other[: len(one)])


def test_a_list_of_files_is_delivered_once_by_one_worker_or_by_two(site):
    orders = [
        [batch["label"].tolist() for batch in batches]
        for batches in train(site, "one_shard", count=None)
    ]
    for order in orders:
        assert sorted(chain.from_iterable(order)) == list(range(COUNT))
    assert orders[0][0] == list(range(len(orders[0][0])))
    assert orders[1][:2] == [list(range(start, 16, 2)) for start in (0, 1)]


def test_metrics_of_both_forms_are_the_same():
    true, predicted = np.random.default_rng(0).integers(0, planted_fresh.CLASSES, (2, 4, 9, 9))
    np.testing.assert_array_equal(
        planted_fresh.confusion(true, predicted), planted_fresh.confusion_by_pixel(true, predicted)
    )


def test_every_fresh_case_is_listed():
    made = {
        name
        for name, made in inspect.getmembers(planted_fresh, inspect.isfunction)
        if list(inspect.signature(made).parameters) == ["site", "fixed"]
    }
    assert made == set(LISTED)
    assert len(LISTED) >= 24
    assert sum(CASES[name].remedy == NOTHING for name in LISTED) >= 5


def test_fresh_cases_speak_in_the_words_of_the_others():
    others = [case for case in CASES.values() if case.kind != FRESH]
    for words in (
        lambda case: names(case.bottleneck),
        lambda case: names(case.remedy) | names(case.also),
    ):
        known = set().union(*map(words, others)) | {NOTHING}
        for name in LISTED:
            assert words(CASES[name]) <= known
