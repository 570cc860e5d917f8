"""Every prefetcher delivers what the loader has, in order, and hands errors on."""

import sys
import threading

import pytest
import torch

from labkit.contracts import Skip
from labkit.parts.devices import SimulatedGpu
from labkit.parts.prefetching import PREFETCHERS, Prefetcher
from labkit.resolve import find_part
from tests.fake_clock import FakeClock
from tests.parts.test_devices import PROFILE

ALL = pytest.mark.parametrize("name", PREFETCHERS)


def batches(count):
    for number in range(count):
        yield {"sample_id": torch.tensor([number])}


def delivered(name, loader):
    device = SimulatedGpu(PROFILE, FakeClock())
    return [int(batch["sample_id"]) for batch in PREFETCHERS[name](loader, device, pinned=True)]


@ALL
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_all_batches_arrive_once_and_in_order(name, count):
    # The documents' rewrite of the loop ran one step fewer; ours must not.
    assert delivered(name, batches(count)) == list(range(count))


@ALL
def test_an_error_in_the_loader_reaches_the_loop(name):
    def breaking():
        yield from batches(2)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        delivered(name, breaking())


def test_a_missing_library_skips_by_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "prefetch_generator", None)
    with pytest.raises(Skip, match="prefetch_generator is not installed; pip install"):
        delivered("both", batches(2))


@pytest.mark.parametrize("left", [100, 2])
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("name", ["prefetch_generator", "both"])
def test_a_loop_that_breaks_off_leaves_no_thread_and_the_loader_is_let_go(name, breaks, left):
    ended, loaded = [], []

    def loader():
        try:
            for batch in batches(left):
                loaded.append(batch)
                yield batch
            if breaks:
                raise OSError("disk gone")
        finally:
            ended.append(True)

    before = set(threading.enumerate())
    iterator = PREFETCHERS[name](loader(), SimulatedGpu(PROFILE, FakeClock()), pinned=True)
    assert int(next(iterator)["sample_id"]) == 0
    iterator.close()
    assert set(threading.enumerate()) <= before
    assert ended == [True]
    assert len(loaded) < 10  # those that were on their way, and no more of a hundred


def run_steps(name, *, pinned, sync_every):
    """Two-second copies (pinned) before three-second steps, five of them, from a free loader."""
    clock = FakeClock()
    device = SimulatedGpu(PROFILE, clock)
    loader = [{"image": torch.zeros(4, dtype=torch.uint8)}] * 5
    for step, _ in enumerate(PREFETCHERS[name](loader, device, pinned=pinned), 1):
        device.compute(3)
        if sync_every and step % sync_every == 0:
            device.synchronize()
    device.synchronize()
    return clock.now()


@pytest.mark.parametrize("sync_every", [0, 1, 2])
def test_the_side_stream_hides_pinned_copies_whatever_the_sync(sync_every):
    assert run_steps("none", pinned=True, sync_every=sync_every) == 5 * (2 + 3)
    # Only the first copy is exposed.
    assert run_steps("data_prefetcher", pinned=True, sync_every=sync_every) == 2 + 5 * 3


def test_a_copy_that_begins_after_the_step_is_hidden_only_where_the_host_does_not_wait():
    assert run_steps("data_prefetcher_step_first", pinned=True, sync_every=0) == 2 + 5 * 3
    assert run_steps("data_prefetcher_step_first", pinned=True, sync_every=1) == 5 * (2 + 3)


def test_the_documents_prefetcher_finishes_each_batch_where_it_was_copied():
    done = []

    class Device:
        def put(self, batch, *, pinned, side_stream, finish):
            assert pinned and side_stream
            done.append(f"copy {int(batch['sample_id'])}")
            return finish(batch)

        def wait(self, batch):
            done.append(f"wait {int(batch['sample_id'])}")

    def finish(batch):
        done.append(f"finish {int(batch['sample_id'])}")
        return {**batch, "image": None}

    (name,) = (name for name in PREFETCHERS if find_part(Prefetcher, name).finishes)
    for batch in PREFETCHERS[name](batches(2), Device(), pinned=True, finish=finish):
        assert "image" in batch
        done.append(f"step {int(batch['sample_id'])}")
    assert done == [
        "copy 0", "finish 0", "wait 0", "copy 1", "finish 1", "step 0", "wait 1", "step 1",
    ]  # fmt: skip


def test_from_pageable_memory_the_side_stream_still_blocks_the_host():
    # Each four-second copy overlaps with the step before it, but no step can be launched earlier.
    assert run_steps("none", pinned=False, sync_every=1) == 5 * (4 + 3)
    assert run_steps("data_prefetcher", pinned=False, sync_every=1) > 2 + 5 * 3
