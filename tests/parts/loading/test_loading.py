"""Every loader delivers the same images and leaves nothing; pinning adds a thread and no more.

Thread, process, shared-memory and file-handle counts are the kernel's own.
"""

import gc
import threading
from pathlib import Path

import psutil
import pytest
import torch
from jpegs import encode, photo
from small import completed

from labkit.parts.loading import LOADERS
from labkit.parts.loading.source import PinningLoader
from labkit.pipeline import open_loader
from labkit.resolve import resolve
from tests.processes import until

OURS = [name for name, its in LOADERS.items() if not its.is_outside]  # the others: test_rivals
ALL = pytest.mark.parametrize("name", OURS)
LOADING = pytest.mark.parametrize("name", [name for name in OURS if name != "resident"])


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
