"""Slow-downs of real projects: what is known of each, and the same samples before and after."""

import re

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks import real_loops, real_samples
from benchmarks.diagnosis import ALL, CASES, names
from benchmarks.photo_training import Site
from benchmarks.real_cases import REAL_CASES
from labkit.diagnosis.rules import REMEDIES

SAME = [name for name, case in REAL_CASES.items() if not case.changes]
COUNT = 24


@pytest.fixture
def site(photos, tmp_path, monkeypatch):
    # Nothing is measured here, so little data is enough.
    for module, name in (
        (real_samples, "IMAGES"),
        (real_samples, "WINDOWS"),
        (real_samples, "ROWS"),
        (real_loops, "IMAGES"),
    ):
        monkeypatch.setattr(module, name, COUNT)
    monkeypatch.setattr(real_samples.Patches, "SIDE", 32)
    with Site(photos, tmp_path) as site:
        yield site


def both_forms(site, name):
    return [REAL_CASES[name].make(site, fixed) for fixed in (False, True)]


def batch_of(training):
    """Make a batch of four samples as a worker does."""
    loader = training["loader"]
    batches = DataLoader(
        loader.dataset, batch_sampler=[[0, 3, 5, COUNT - 1]], collate_fn=loader.collate_fn
    )
    return next(iter(batches))


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


def test_images_decoded_at_a_reduced_size_look_the_same(site):
    broken, fixed = map(batch_of, both_forms(site, "decoded_in_full_size"))
    apart = (broken["image"].float() - fixed["image"].float()).abs()
    assert 0 < apart.mean() < 2  # levels of 255


def test_floats_are_the_bytes_that_the_device_would_convert(site):
    broken, fixed = map(batch_of, both_forms(site, "floats_sent"))
    assert fixed["image"].dtype == torch.uint8
    assert torch.equal(broken["image"], fixed["image"].float() / 255)


def test_only_the_broken_stream_delivers_all_samples_from_every_worker(site):
    broken, fixed = (
        sorted(label for batch in form["loader"] for label in batch["label"].tolist())
        for form in both_forms(site, "all_from_every_worker")
    )
    assert fixed == list(range(COUNT))
    assert broken == sorted(2 * fixed)


def test_every_fix_that_changes_the_samples_has_its_own_test():
    assert set(REAL_CASES) - set(SAME) == {
        "decoded_in_full_size", "floats_sent", "all_from_every_worker",
    }  # fmt: skip


@pytest.mark.parametrize("name", REAL_CASES)
def test_a_real_case_has_its_source_and_speaks_in_the_words_of_the_diagnosis(name):
    case = REAL_CASES[name]
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case.source)
    assert case.cause
    assert bool(case.published) == bool(case.published_for)
    assert names(case.bottleneck) <= {line.bottleneck for line in REMEDIES}
    assert names(case.remedy) <= {line.name for line in REMEDIES}


def test_every_real_case_is_run_under_its_own_name():
    assert len({case.source for case in REAL_CASES.values()}) == len(REAL_CASES) >= 8
    assert len(CASES) == len(ALL) + len(REAL_CASES)
