"""Every loader delivers the same images; the stand-in for pinning adds a thread and no more."""

import threading

import pytest
import torch

from labkit.contracts import Skip
from labkit.parts.loading import LOADERS, OUTSIDE, PinningLoader
from labkit.pipeline import open_loader
from labkit.resolve import resolve
from labkit.settings import MODES, Settings, complete

OURS = [name for name in LOADERS if name not in OUTSIDE]  # the others: test_rivals
ALL = pytest.mark.parametrize("name", OURS)
LOADING = pytest.mark.parametrize("name", [name for name in OURS if name != "resident"])


def settings(photos, **changes):
    small = {"input_px": 64, "batch_size": 4, "num_workers": 0, "device": "emulated"}
    filled = Settings(data=str(photos), **{**small, **changes})
    return complete(filled, MODES["quick"], cores=2, has_cuda=False, can_fork=True)


def delivered(photos, epoch=0, **changes):
    source, loader = open_loader(resolve(settings(photos, **changes)))
    source.order.epoch = epoch
    return list(loader)


def ids(batches):
    return [int(i) for batch in batches for i in batch["sample_id"]]


@LOADING
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_has_every_image_once_in_the_seeds_order(photos, name, workers, persistent):
    changes = {"loader": name, "num_workers": workers, "persistent_workers": persistent}
    source, loader = open_loader(resolve(settings(photos, **changes)))
    seen = []
    for epoch in range(2):
        source.order.epoch = epoch
        seen.append(ids(loader))
        assert sorted(seen[-1]) == list(range(24))
    assert seen[0] != seen[1]
    assert seen[0] == ids(delivered(photos, loader=name))


def test_the_resident_loader_repeats_the_first_batch_and_reads_no_more(photos):
    source, loader = open_loader(resolve(settings(photos, loader="resident")))
    first = ids(delivered(photos))[:4]
    source.reader = None  # any further read would fail
    assert ids(loader) == first * 6
    assert ids(loader) == first * 6


@pytest.mark.parametrize(
    ("device", "pin_memory", "copies"),
    [("cuda", True, 1), ("cuda", False, 0), ("emulated", False, 0)],
)
def test_the_resident_batch_is_page_locked_once_where_the_settings_ask_for_it(
    photos, monkeypatch, device, pin_memory, copies
):
    locked = []

    def lock(tensor):  # needs CUDA
        locked.append(tensor.clone())
        return locked[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", lock)
    step = "timed" if device == "emulated" else "detector"
    how = {"loader": "resident", "device": device, "step": step, "pin_memory": pin_memory}
    _, loader = open_loader(resolve(settings(photos, **how)))
    batches = list(loader)
    assert len(locked) == copies * len(batches[0])
    if copies:
        assert all(any(t is one for one in locked) for batch in batches for t in batch.values())


@pytest.mark.needs_cuda
def test_the_resident_batch_is_page_locked_on_cuda(photos):
    how = {"loader": "resident", "device": "cuda", "step": "detector"}
    _, loader = open_loader(resolve(settings(photos, **how)))
    assert all(tensor.is_pinned() for batch in loader for tensor in batch.values())


@ALL
def test_pixels_depend_on_neither_workers_nor_pinning(photos, name):
    plain = delivered(photos, loader=name, pin_memory=False)
    other = delivered(photos, loader=name, num_workers=2, pin_memory=True)
    for a, b in zip(plain, other, strict=True):
        assert set(a) == set(b)
        assert all(torch.equal(a[entry], b[entry]) for entry in a)


@pytest.mark.parametrize(("workers", "threads"), [(0, 0), (1, 1)])
def test_pinning_has_a_thread_only_beside_workers_as_in_torch(photos, workers, threads):
    def threads_while_loading(pin_memory):
        _, loader = open_loader(
            resolve(settings(photos, num_workers=workers, pin_memory=pin_memory))
        )
        before = set(threading.enumerate())  # some of which end meanwhile
        batches = iter(loader)
        next(batches)
        return len(set(threading.enumerate()) - before)

    # torch has a thread of its own that tells the workers what to load.
    assert threads_while_loading(True) - threads_while_loading(False) == threads


@ALL
def test_the_last_incomplete_batch_is_left_out(photos, name):
    assert len(delivered(photos, loader=name, batch_size=5)) == 4


def test_a_batch_larger_than_the_data_is_refused(photos):
    message = r"batch_size must be at most the number of readable images \(24\), got 25; use a"
    with pytest.raises(ValueError, match=message):
        open_loader(resolve(settings(photos, batch_size=25)))


class TestPinningLoader:
    def batches(self, count=5):
        for number in range(count):
            yield {"sample_id": torch.tensor([number])}

    @pytest.mark.parametrize("threaded", [True, False])
    def test_batches_arrive_in_order_as_copies(self, threaded):
        kept = list(self.batches())
        assert ids(PinningLoader(kept, threaded=threaded)) == [0, 1, 2, 3, 4]
        (copy,) = PinningLoader(kept[:1], threaded=threaded)
        assert copy["sample_id"].data_ptr() != kept[0]["sample_id"].data_ptr()

    def test_an_error_in_the_loader_reaches_the_loop(self):
        def breaking():
            yield from self.batches(2)
            raise OSError("disk gone")

        iterator = iter(PinningLoader(breaking(), threaded=True))
        assert [int(next(iterator)["sample_id"]) for _ in range(2)] == [0, 1]
        with pytest.raises(OSError, match="disk gone"):
            next(iterator)

    def test_stopping_early_ends_the_thread(self):
        before = set(threading.enumerate())
        iterator = iter(PinningLoader(self.batches(1000), threaded=True))
        next(iterator)
        (thread,) = set(threading.enumerate()) - before
        del iterator
        assert not thread.is_alive()


# --- torch's DataLoader in its other ways ------------------------------------------------------

IN_OTHER_WAYS = [name for name in OURS if name.startswith("torch_")]


@pytest.mark.parametrize("name", IN_OTHER_WAYS)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than cores
@pytest.mark.parametrize("workers", [0, 3])
def test_each_delivers_torchs_batches_in_torchs_order_for_any_number_of_workers(
    photos, name, workers
):
    wanted = delivered(photos, epoch=1, batch_size=3)
    found = delivered(photos, epoch=1, batch_size=3, loader=name, num_workers=workers)
    for a, b in zip(found, wanted, strict=True):
        assert set(a) == set(b)
        assert all(torch.equal(a[entry], b[entry]) for entry in b)


def test_what_spawned_workers_load_is_the_same(photos):
    changes = {"num_workers": 1, "start_method": "spawn"}
    assert ids(delivered(photos, **changes)) == ids(delivered(photos))


def test_torchs_own_collate_says_what_it_cannot_join(photos):
    message = r"joins entries of one size, got boxes_ragged; choose a preprocessor that makes none"
    with pytest.raises(Skip, match=message):
        delivered(photos, loader="torch_default_collate", preprocessor="on_device")
