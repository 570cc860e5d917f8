"""Every loader delivers the same images and leaves nothing; pinning adds a thread and no more.

Thread, process, shared-memory and file-handle counts are the kernel's own.
"""

import gc
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from jpegs import encode, photo
from small import completed

from labkit.parts.decoding import DECODERS
from labkit.parts.loading import LOADERS, load_with_torch
from labkit.parts.loading.source import PinningLoader
from labkit.pipeline import open_loader
from labkit.resolve import resolve
from tests.processes import until

OURS = [name for name, its in LOADERS.items() if not its.needs]  # the others: test_rivals
ALL = pytest.mark.parametrize("name", OURS)
OTHER_ORDER = ("resident", "bare_threads", "torch_any_order", "shards")
IN_ORDER = [name for name in OURS if name not in OTHER_ORDER]
LOADING = pytest.mark.parametrize("name", IN_ORDER)


def settings(photos, **changes):
    quickest = {"num_workers": 0, "device": "simulated", "preprocessor": "vectorized"}
    return completed(data=str(photos), **{**quickest, **changes})


def delivered(photos, epoch=0, **changes):
    source, loader = open_loader(resolve(settings(photos, **changes)))
    source.order.epoch = epoch
    return list(loader)


def ids(batches):
    return [int(i) for batch in batches for i in batch["sample_id"]]


@pytest.fixture(scope="module")
def wanted(photos):
    """What torch's DataLoader delivers without workers in two epochs."""
    epochs = [delivered(photos, epoch) for epoch in range(2)]
    assert [sorted(ids(batches)) for batches in epochs] == [list(range(24))] * 2
    assert ids(epochs[0]) != ids(epochs[1])
    return epochs


@LOADING
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_workers": 2, "pin_memory": True},
        {"num_workers": 3, "persistent_workers": True},
    ],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than cores
def test_every_epoch_has_torchs_batches_in_torchs_order(photos, wanted, name, how):
    source, loader = open_loader(resolve(settings(photos, loader=name, **how)))
    for source.order.epoch in range(2):
        for found, batch in zip(loader, wanted[source.order.epoch], strict=True):
            assert set(found) == set(batch)
            assert all(torch.equal(found[entry], batch[entry]) for entry in batch)


def test_the_resident_loader_repeats_the_first_batch_and_reads_no_more(photos):
    source, loader = open_loader(resolve(settings(photos, loader="resident")))
    first = ids(delivered(photos))[:4]
    source.reader = None  # any further read would fail
    assert ids(loader) == first * 6
    assert ids(loader) == first * 6
    how = {"loader": "resident", "num_workers": 2, "pin_memory": True}
    assert ids(delivered(photos, **how)) == first * 6


def test_bare_threads_make_every_sample_once_and_hand_over_the_first_batch(photos):
    source, loader = open_loader(
        resolve(settings(photos, loader="bare_threads", num_workers=3, batch_size=5))
    )
    first, made, make = ids(loader)[:5], [], source.parts.preprocessor.function
    part = replace(
        source.parts.preprocessor,
        function=lambda sample, px: made.append(sample.sample_id) or make(sample, px),
    )
    source.parts = replace(source.parts, preprocessor=part)
    for source.order.epoch in range(2):
        made.clear()
        assert ids(loader) == first * 4
        assert sorted(made) == sorted(image_id for _, image_id in list(source.order)[:20])


def test_an_error_in_a_sample_of_bare_threads_reaches_the_loop(photos):
    source, loader = open_loader(resolve(settings(photos, loader="bare_threads", num_workers=2)))
    source.reader = None
    with pytest.raises(AttributeError):
        list(loader)


@pytest.mark.needs_cuda
def test_the_resident_batch_is_page_locked_on_cuda(photos):
    how = {"loader": "resident", "device": "cuda", "step": "detector"}
    _, loader = open_loader(resolve(settings(photos, **how)))
    assert all(tensor.is_pinned() for batch in loader for tensor in batch.values())


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


def test_an_error_behind_the_stand_in_for_pinning_reaches_the_loop():
    def breaking():
        yield from ({"sample_id": torch.tensor([number])} for number in range(2))
        raise OSError("disk gone")

    iterator = iter(PinningLoader(breaking(), threaded=True))
    assert [int(next(iterator)["sample_id"]) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="disk gone"):
        next(iterator)


def test_what_spawned_workers_load_is_the_same(photos):
    changes = {"num_workers": 1, "multiprocessing_context": "spawn"}
    assert ids(delivered(photos, **changes)) == ids(delivered(photos))


# --- PyTorch's own list -----------------------------------------------------------------------


def test_in_any_order_a_late_batch_holds_up_no_other_and_none_is_lost(photos, wanted, monkeypatch):
    first = set(ids(wanted[0][:1]))
    plain = DECODERS["opencv"]
    late_jpegs = {Path(path).read_bytes() for path in first_files(photos, first)}

    def late(jpeg):
        time.sleep(0.5 * (jpeg in late_jpegs))
        return plain(jpeg)

    monkeypatch.setitem(DECODERS, "late", late)
    how = {"num_workers": 2, "decoder": "late"}
    in_order = delivered(photos, loader="torch", **how)
    any_order = delivered(photos, loader="torch_any_order", **how)
    assert set(ids(in_order[:1])) == first
    assert set(ids(any_order[:1])).isdisjoint(first)
    assert sorted(map(ids_of, any_order)) == sorted(map(ids_of, in_order))


def first_files(photos, image_ids):
    reader = resolve(settings(photos)).reader
    return [reader.where(i) for i in image_ids]


def ids_of(batch):
    return batch["sample_id"].tolist()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="counts as Linux has them")
def test_a_batch_that_is_shared_by_file_keeps_no_file_open(photos):
    opened = {}
    for name in ("torch", "torch_file_system"):
        before = psutil.Process().num_fds()
        batches = delivered(photos, loader=name, num_workers=1, pin_memory=False)
        tensors = sum(len(batch) for batch in batches)
        gc.collect()
        opened[name] = psutil.Process().num_fds() - before
        del batches
    assert opened["torch"] >= tensors > 2 * opened["torch_file_system"]
    assert torch.multiprocessing.get_sharing_strategy() == "file_descriptor"


def test_a_data_set_is_asked_for_a_whole_batch_at_once(photos):
    asked = []

    class Recording(torch.utils.data.DataLoader):
        def __init__(self, dataset, **how):
            fetch = dataset.__getitems__
            dataset.__getitems__ = lambda keys: asked.append(len(keys)) or fetch(keys)
            super().__init__(dataset, **how)

    source, _ = open_loader(resolve(settings(photos)))
    loader = load_with_torch(source, source.settings, Recording, by_batch=True)
    assert len(ids(loader)) == 24
    assert asked == [4] * 6


# --- what is left ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_photos(tmp_path_factory):
    """So small that many epochs take no time to decode."""
    folder = tmp_path_factory.mktemp("small")
    for number in range(24):
        (folder / f"{number}.jpg").write_bytes(encode(photo()))
    return folder


def held():
    """Count this process's threads, children, open files and entries in shared memory."""
    gc.collect()
    this = psutil.Process()
    ours = {this.pid, *(child.pid for child in this.children(recursive=True))}
    shared = Path("/dev/shm").glob("torch_*")
    return {
        "threads": this.num_threads(),
        "processes": len(ours),
        "files": this.num_fds(),
        "shared memory": sum(int(entry.name.split("_")[1]) in ours for entry in shared),
    }


def assert_nothing_left(loader, times):
    def break_off(times):
        for _ in range(times):
            for _ in loader:
                break

    break_off(3)  # what is started once, and stays
    before = held()
    break_off(times)
    until(lambda: all(n <= before[kind] for kind, n in held().items()), lambda: (before, held()))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="counts as Linux has them")
@pytest.mark.parametrize("how", [{}, {"pin_memory": True, "device": "simulated"}])
@pytest.mark.parametrize("name", ["torch", "threads"])  # the rivals: test_rivals
def test_breaking_off_again_and_again_leaves_nothing(small_photos, name, how):
    own = {"num_workers": 1, "device": "cpu", "preprocessor": "classification", **how}
    _, loader = open_loader(resolve(settings(small_photos, loader=name, **own)))
    assert_nothing_left(loader, times=5 if how else 20)
