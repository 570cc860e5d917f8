"""The largest batch: found by trying, said with what it takes, and divided for an experiment."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import labkit as lab
from labkit.claims.ledger import CLAIMS
from labkit.contracts import Skip
from labkit.experiments.largest_batch import describe
from labkit.machine import gpu
from labkit.machine.gpu import CudaState
from labkit.pipeline import Pipeline
from labkit.resolve import resolve
from labkit.runs import largest_batch
from labkit.runs.failure_reasons import is_out_of_gpu_memory
from labkit.runs.largest_batch import search
from labkit.settings import complete

GIB = 1 << 30
BASE = complete(lab.Settings(device="cuda"), cores=4, has_cuda=True, can_fork=True)


def memory_for(largest):
    """A GPU that holds so many images, and notes what was tried on it."""
    asked = []

    def fits(size):
        asked.append(size)
        return (size, 2 * size) if size <= largest else None

    return fits, asked


@pytest.mark.parametrize("largest", [4, 5, 8, 36, 63, 64, 65, 100, 2000])
def test_the_largest_multiple_of_4_that_fits_is_found_without_trying_any_twice(largest):
    fits, asked = memory_for(largest)
    tried = search(fits, most=5000)
    assert max(size for size, held in tried.items() if held) == largest // 4 * 4
    assert len(asked) == len(set(asked)) <= 2 * math.log2(5000)
    assert list(tried) == sorted(asked)
    assert all(size % 4 == 0 for size in asked)


@pytest.mark.parametrize(("most", "largest"), [(30, 28), (32, 32), (4, 4), (3, None)])
def test_no_batch_is_larger_than_the_images_there_are(most, largest):
    fits, asked = memory_for(1000)
    tried = search(fits, most)
    assert max(tried, default=None) == largest
    assert all(size <= most for size in asked)


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
    ids=str,
)
def test_a_size_that_the_gpu_has_no_memory_for_does_not_fit(monkeypatch, error, is_memory):
    def refuse(pipeline):
        if pipeline.parts.settings.batch_size > 8:
            raise error

    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: GIB)
    of_gpu = SimpleNamespace(total_memory=10 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: of_gpu)
    built = Pipeline(
        parts=replace(resolve(BASE), settings=BASE),
        source=SimpleNamespace(reader=range(100)),
        loader=None,
        device=None,
        step=None,
    )
    monkeypatch.setattr(largest_batch, "build", lambda settings, clock: built)
    monkeypatch.setattr(largest_batch, "warm_up", refuse)
    if not is_memory:
        with pytest.raises(RuntimeError, match="illegal memory access"):
            largest_batch.search_on_cuda(BASE)
        return
    tried = largest_batch.search_on_cuda(BASE)["tried"]
    assert [size for size, *held in tried if held == [GIB, GIB]] == [4, 8]
    assert [size for size, *held in tried if held == [None, None]] == [12, 16]


@pytest.mark.needs_cuda
def test_what_a_real_gpu_has_no_memory_for_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert is_out_of_gpu_memory(caught.value)


def found(*tried, images=1000):
    return describe(
        BASE, {"total_bytes": 10 * GIB, "images": images, "tried": [list(row) for row in tried]}
    )


def test_the_table_tells_memory_in_use_from_memory_that_is_kept():
    shown = found((4, GIB, 2 * GIB), (8, 5 * GIB, 8 * GIB), (12, None, None))
    assert repr(shown).startswith("The largest batch that fits: 8 images")
    table = shown.table()
    assert list(table.loc[8]) == [5 * GIB, 8 * GIB, 0.5]
    assert table.loc[12].isna().all()


def test_the_90_percent_rule_stands_beside_half_and_all_of_the_largest():
    experiment = found((84, GIB, GIB)).experiment()
    variants = experiment.variants
    assert list(variants) == [
        "50 % of the largest", "90 % of the largest", "100 % of the largest",
    ]  # fmt: skip
    assert experiment.notes == (
        "Batches: 50 % of the largest 40, 90 % of the largest 72, 100 % of the largest 80 images.",
    )
    asked = {(c.experiment, c.variant) for claim in CLAIMS for c in claim.contrasts}
    assert {variant for name, variant in asked if name == experiment.name} < set(variants)
    assert [settings.batch_size for settings in experiment.settings.values()] == [40, 72, 80]
    assert {settings.device for settings in experiment.settings.values()} == {"cuda"}


def test_without_cuda_it_is_skipped_with_the_reason(monkeypatch):
    monkeypatch.setattr(gpu, "cuda", lambda: CudaState(works=False, reason="no NVIDIA driver"))
    with pytest.raises(Skip, match="largest_batch needs a CUDA device: no NVIDIA driver"):
        lab.largest_batch(lab.Settings())


@pytest.mark.needs_cuda
def test_batches_are_tried_on_a_real_gpu(photos):
    largest = lab.largest_batch(
        lab.Settings(data=str(photos), input_px=64, preprocessor="classification")
    )
    assert largest.settings.batch_size == 24  # all there are
    sizes = list(largest.tried)
    assert sizes == [4, 8, 16, 24]
    for allocated, reserved in largest.tried.values():
        assert 0 < allocated <= reserved <= largest.total_bytes
    assert largest.tried[24][0] > largest.tried[4][0]
