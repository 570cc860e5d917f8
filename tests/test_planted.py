"""The planted trainings deliver the same samples with and without the bottleneck."""

import numpy as np
import pytest
import torch
from kernel import why_no_throttled_disk

from benchmarks import planted_held_out, planted_steps, planted_unseen, planted_workers
from benchmarks.diagnosis import CASES, FRESH, REAL
from benchmarks.photo_training import Site

pytestmark = pytest.mark.long
# The benchmark itself tries what only some machines have.
NEEDS = {"slow_disk", "shared_disk", "small_shared_memory", "deep_queue"}
RESIDENT = {"slow_device", "small_steps", "training_here"}
ELSEWHERE = {*NEEDS, *RESIDENT, "everything_twice"}
ANYWHERE = [
    name for name, case in CASES.items() if case.kind not in (FRESH, REAL) and name not in ELSEWHERE
]


@pytest.fixture
def site(photos, tmp_path, monkeypatch):
    # Nothing is measured here, so no sample needs to wait.
    monkeypatch.setattr(planted_workers.Labelled, "ANSWER_S", 0.0)
    monkeypatch.setattr(planted_workers.Late, "LATE_S", 0.0)
    monkeypatch.setattr(planted_unseen.Locked, "ANSWER_S", 0.0)
    monkeypatch.setattr(planted_unseen.Server, "ANSWER_S", 0.0)
    monkeypatch.setattr(planted_workers, "ENTRIES", 1000)
    monkeypatch.setattr(planted_unseen, "ENTRIES", 1000)
    monkeypatch.setattr(planted_held_out, "CANDIDATES", 1000)
    threads = torch.get_num_threads()
    with Site(photos, tmp_path) as site:
        yield site
    torch.set_num_threads(threads)


def batch_of(case, numbers):
    """Make a batch as a worker does."""
    batches = case["loader"]
    return batches.collate_fn([batches.dataset[i] for i in numbers])


def as_arrays(batch):
    """Convert the batches of both forms to arrays that can be compared."""
    found = dict(batch)
    if "outlines" in found:
        found["outlines"] = [
            np.array([[point.x, point.y] for point in outline])
            if isinstance(outline, list)
            else outline.numpy()
            for outline in found["outlines"]
        ]
    for i, patch in enumerate(found.pop("patch", ())):  # of different sizes
        found[f"patch {i}"] = patch
    return {name: np.asarray(value) for name, value in found.items()}


@pytest.mark.parametrize("name", ANYWHERE)
def test_both_forms_deliver_the_same_samples(site, name):
    make = CASES[name].make
    forms = [make(site, fixed) for fixed in (False, True)]
    orders = [list(form["loader"].sampler) for form in forms]
    assert orders[0] == orders[1]
    broken, fixed = (batch_of(form, [0, 3, 5]) for form in forms)
    if name == "float64_samples":  # the device would convert them
        broken["image"] = broken["image"].float()
    if name == "main_thread_transform":
        broken = planted_unseen.smoothed(broken)
    if name == "large_batches":  # the device would do it
        samples = [{key: value[i] for key, value in fixed.items()} for i in range(3)]
        expanded = [planted_steps.expanded(sample) for sample in samples]
        fixed = {key: torch.stack([one[key] for one in expanded]) for key in broken}
    broken, fixed = as_arrays(broken), as_arrays(fixed)
    assert list(broken) == list(fixed)
    for key in broken:
        assert broken[key].dtype == fixed[key].dtype
        np.testing.assert_array_equal(broken[key], fixed[key], err_msg=key)


def test_only_the_broken_stream_delivers_everything_twice(site):
    make = CASES["everything_twice"].make
    broken, fixed = (
        sorted(label for batch in make(site, fixed)["loader"] for label in batch["label"].tolist())
        for fixed in (False, True)
    )
    assert fixed == list(range(planted_unseen.IMAGES))
    assert broken == sorted(2 * fixed)


def test_the_slow_disk_is_throttled_or_modelled_and_says_so(site):
    make = CASES["slow_disk"].make
    broken, fixed = make(site, False), make(site, True)
    assert site.notes[0].startswith("modelled" if why_no_throttled_disk() else "throttled")
    broken, fixed = (batch_of(case, [0, 3, 5]) for case in (broken, fixed))
    assert torch.equal(broken["image"], fixed["image"])
