"""Time is told apart into wait, transfer, compute and sync, on a clock that never lies.

What a whole trial records beside time is looked at in real ones, with real loader workers.
"""

import gc
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from kernel import needs_fork, needs_read_counts, why_not_evicted

from labkit.analysis.cache_state import cache_violation
from labkit.contracts import Skip
from labkit.machine.clock import SystemClock
from labkit.parts.devices import CpuDevice, EmulatedDevice
from labkit.parts.loading import LOADERS, load_with_torch
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.training import STEPS, Step
from labkit.records import Trial
from labkit.runs import timing
from labkit.runs.packs import ensure_pack
from labkit.runs.process import Launcher
from labkit.runs.timing import time_epoch
from labkit.settings import Settings
from tests.fake_clock import FakeClock
from tests.parts.test_devices import PROFILE
from tests.runs.test_process import measure, settings

# A page of a library that nothing had touched before comes with its neighbors, some 100 KiB.
PROGRAM_BYTES = 1 << 20
BATCH = {"sample_id": torch.zeros(8, dtype=torch.uint8)}  # 8 images, 8 bytes


class Loader:
    """Takes 3 s to start and half a second per batch."""

    def __init__(self, clock, steps=4):
        self.clock, self.steps = clock, steps

    def __iter__(self):
        self.clock.sleep(3)
        return self.deliver()

    def deliver(self):
        for _ in range(self.steps):
            self.clock.sleep(0.5)
            yield BATCH


def pipeline(clock, device, *, forward, backward=None, prefetcher="none", sync_every=1, **settings):
    return SimpleNamespace(
        loader=Loader(clock),
        device=device,
        settings=SimpleNamespace(sync_every=sync_every, **settings),
        step=Step(forward=forward, backward=backward, loss=lambda: None),
        forward=forward,
        batches=lambda loader, device: PREFETCHERS[prefetcher](loader, device, pinned=True),
    )


def test_start_up_wait_forward_and_backward_are_told_apart():
    clock = FakeClock()
    epoch, *_ = time_epoch(
        pipeline(
            clock,
            CpuDevice(),
            forward=lambda batch: clock.sleep(0.25),
            backward=lambda loss: clock.sleep(0.125),
        ),
        clock,
    )
    assert epoch.epoch_s == 3 + 4 * (0.5 + 0.25 + 0.125)
    assert (epoch.startup_s, epoch.first_batch_s, epoch.wait_s) == (3.0, 3.5, 2.0)
    assert (epoch.forward_s, epoch.backward_s) == (1.0, 0.5)
    assert (epoch.transfer_s, epoch.sync_s) == (0.0, 0.0)
    assert (epoch.steps, epoch.images, epoch.batch_bytes) == (4, 32, 32)
    assert epoch.compute_s is None


@pytest.mark.parametrize("prefetcher", ["none", "data_prefetcher"])
def test_every_steps_wait_is_told_without_start_up_and_transfer(prefetcher):
    clock = FakeClock()
    device = EmulatedDevice(PROFILE, clock)
    steps = {"forward": lambda batch: device.compute(8), "prefetcher": prefetcher}
    epoch, *_ = time_epoch(pipeline(clock, device, **steps), clock)
    # The side stream's batch is asked for one step early: twice in the first step, and not in
    # the last.
    expected = {"none": (0.5, 0.5, 0.5, 0.5), "data_prefetcher": (1.0, 0.5, 0.5, 0.0)}
    assert epoch.waits_s == expected[prefetcher]
    assert sum(epoch.waits_s) == epoch.wait_s


def test_every_batchs_arrival_is_told_from_the_start_of_the_epoch():
    clock = FakeClock()
    steps = {"forward": lambda batch: clock.sleep(0.25), "backward": None}
    epoch, *_ = time_epoch(pipeline(clock, CpuDevice(), **steps), clock)
    # 3 s of start-up; 0.5 s for every batch, after a step of 0.25 s.
    assert epoch.arrivals_s == (3.5, 4.25, 5.0, 5.75)


def test_an_emulated_epoch_ends_when_the_device_is_done():
    clock = FakeClock()
    device = EmulatedDevice(PROFILE, clock)  # 1 s per image, 2 bytes/s
    emulated = pipeline(clock, device, forward=lambda batch: device.compute(8), sync_every=0)
    epoch, *_ = time_epoch(emulated, clock)
    # The first batch arrives at 3.5 s; then every copy (4 s) and step (8 s) queue on one stream.
    assert epoch.epoch_s == 3.5 + 4 * (4 + 8)
    assert epoch.compute_s == 32.0
    assert epoch.forward_s is None


def test_a_synchronizing_loop_spends_the_rest_of_its_time_waiting_for_the_device():
    clock = FakeClock()
    device = EmulatedDevice(PROFILE, clock)
    emulated = pipeline(clock, device, forward=lambda batch: device.compute(8), sync_every=1)
    epoch, *_ = time_epoch(emulated, clock)
    # Every step: half a second for the batch, then its copy (4 s) and its compute (8 s).
    assert epoch.epoch_s == 3 + 4 * (0.5 + 4 + 8)
    assert (epoch.startup_s, epoch.wait_s, epoch.sync_s) == (3.0, 2.0, 4 * (4 + 8))


@pytest.mark.parametrize("prefetcher", ["none", "data_prefetcher"])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_the_warm_up_copies_as_the_epochs_do(monkeypatch, prefetcher, pin_memory):
    pinned, copied, trained = [], [], []

    class Device:
        emulated, torch_device = False, torch.device("cuda")

        def put(self, batch, *, pinned, side_stream):
            copied.append((id(batch["sample_id"]), pinned, side_stream))
            return batch

        def wait(self, batch):
            pass

        def synchronize(self):
            trained.append("synchronized")

    def pin(tensor):
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    warmed = SimpleNamespace(
        device=Device(),
        settings=SimpleNamespace(pin_memory=pin_memory),
        resident_batch=lambda: BATCH,
        forward=trained.append,
        step=Step(forward=None, backward=None, loss=lambda: None),
        batches=lambda loader, device: PREFETCHERS[prefetcher](loader, device, pinned=pin_memory),
    )
    timing.warm_up(warmed)
    assert len(trained) == timing.WARM_UP_STEPS + 1 and trained[-1] == "synchronized"
    on_side_stream = prefetcher == "data_prefetcher"
    assert [how for _, *how in copied] == [[pin_memory, on_side_stream]] * timing.WARM_UP_STEPS
    # Each in page-locked memory of its own, as what a loader has loaded ahead.
    assert {number for number, *_ in copied} == (
        {id(tensor) for tensor in pinned} if pin_memory else {id(BATCH["sample_id"])}
    )


@pytest.mark.needs_cuda
def test_the_first_epoch_on_cuda_pins_and_copies_from_memory_that_is_there(photos):
    chosen = settings(
        photos, num_workers=0, images=8, cache="as found", prefetcher="data_prefetcher"
    )
    chosen |= {"device": "cuda", "step": "small_classifier", "preprocessor": "classification"}
    chosen = Settings(**{**chosen, "pin_memory": True, "device_speed": None})
    opened, _ = timing.open_trial(chosen, SystemClock(), frozenset())
    reserved = torch.cuda.memory_stats()["num_device_alloc"]
    time_epoch(opened, SystemClock())
    assert torch.cuda.memory_stats()["num_device_alloc"] == reserved


def test_cpu_seconds_are_those_of_the_epochs_alone(photos, monkeypatch):
    def busily(batch, last_images):
        end_s = time.process_time() + 0.5
        while time.process_time() < end_s:
            pass
        return {}

    monkeypatch.setattr("labkit.runs.timing.fingerprint_of", busily)
    chosen = Settings(**settings(photos, num_workers=0, images=8, cache="as found"))
    before_s = time.process_time()
    measured = timing.measure(chosen)
    spent_s = time.process_time() - before_s
    # Two fingerprints of half a second each are left out, to the 0.01 s that the kernel counts in.
    assert 0 < measured["cpu_s"] < spent_s - 0.95
    wall_s = sum(epoch.epoch_s for epoch in measured["epochs"])
    assert measured["cpu_percent"] == pytest.approx(100 * measured["cpu_s"] / wall_s)


class ReportsCollector:
    """A data set whose samples say whether the garbage collector is on where they are made."""

    def __init__(self, source):
        self.order, self.collate = source.order, source.collate
        self.start_worker = source.start_worker

    def __getitem__(self, key):
        return {"sample_id": key[1], "collects": gc.isenabled()}


@needs_fork
def test_loader_workers_collect_garbage_and_the_timed_loop_does_not(photos, monkeypatch):
    in_workers, in_loop = [], []
    how = {"start_method": "fork", "persistent_workers": True}
    chosen = Settings(**settings(photos, images=8, cache="as found", **how))

    def load(source, settings):
        return load_with_torch(ReportsCollector(source), settings)

    def look(batch):
        in_workers.extend(batch["collects"].tolist())
        in_loop.append(gc.isenabled())

    def nothing(settings, device):
        return Step(forward=look, backward=None, loss=lambda: None)

    monkeypatch.setitem(LOADERS, "torch", load)
    monkeypatch.setitem(STEPS, "nothing", nothing)
    timing.measure(replace(chosen, step="nothing"))
    assert in_workers == [True] * 16
    assert in_loop == [False] * 4
    assert gc.isenabled()


def test_a_trial_says_what_the_last_batch_of_each_epoch_held(photos, launcher):
    how = {"preprocessor": "on_device", "images": 8, "cache": "as found", "num_workers": 0}
    measured = measure(launcher, photos, **how)
    entries = {"pixels", "colours", "boxes_ragged", "boxes_ragged_counts"}
    first, second = measured["epochs"]
    assert set(first["last_means"]) == set(second["last_means"]) == entries
    assert first["last_ids_crc"] != second["last_ids_crc"]  # shuffled anew


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    """Trials as a run starts them; on a platform without fork each is a process of its own."""
    log = tmp_path_factory.mktemp("launcher") / "log"
    with Launcher(log) as launcher:
        yield launcher


@needs_fork  # what spawned workers read of their libraries would count, too
@needs_read_counts
@pytest.mark.parametrize(("cache", "persistent"), [("cold", False), ("warm", True)])
def test_bytes_of_all_loader_workers_prove_the_cache_state(photos, launcher, cache, persistent):
    """Workers of the first epoch have ended by the end, persistent ones are still alive."""
    if cache == "cold" and (reason := why_not_evicted(photos.parent)):
        pytest.skip(reason)
    how = {"num_workers": 2, "persistent_workers": persistent, "start_method": "fork"}
    measure(launcher, photos, cache="warm", **how)  # from now on memory holds the libraries
    proof = measure(launcher, photos, cache=cache, **how)["cache_proof"]
    files_bytes = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
    assert proof["file_bytes"] == files_bytes
    assert proof["logical_read_bytes"] >= 2 * files_bytes  # two epochs
    if cache == "cold":
        most_bytes = 1.05 * files_bytes + PROGRAM_BYTES
        assert 0.98 * files_bytes <= proof["device_read_bytes"] <= most_bytes
    else:
        assert proof["device_read_bytes"] <= PROGRAM_BYTES


@pytest.mark.parametrize(
    ("cached", "how"),
    [
        (0, {}),
        (50, {"num_workers": 2, "persistent_workers": True}),
        (50, {"packing": "raw"}),
        (50, {"packing": "tfrecord", "num_workers": 2}),
        (50, {"storage": "modelled_hdd", "num_workers": 2}),
    ],
)
def test_before_every_epoch_memory_holds_the_share_that_was_asked(photos, launcher, cached, how):
    if reason := why_not_evicted(photos.parent):
        pytest.skip(reason)
    ensure_pack(Settings(**settings(photos, **how)))
    found = measure(launcher, photos, cached=cached, **how)
    trial = Trial(
        experiment="e", variant="v", block=0, position=0, role="", status="ok",
        settings={"cached": cached}, **found,
    )  # fmt: skip
    proof = found["cache_proof"]
    assert trial.labels["cache"] == f"{cached} % cached"
    assert proof["resident_shares_before"] == pytest.approx([cached / 100] * 2, abs=0.05)
    assert cache_violation(trial) == ""
    if proof["device_read_bytes"] is not None:
        fetched = proof["device_read_bytes"] / proof["file_bytes"]
        assert fetched >= 0.95 * 2 * (1 - cached / 100)


def test_a_pack_that_does_not_tell_where_its_images_lie_is_skipped(photos, launcher):
    ensure_pack(Settings(**settings(photos, packing="pth")))
    with pytest.raises(Skip, match=r"cached must be unset for a pack .* as pth; choose .* raw"):
        measure(launcher, photos, cached=50, packing="pth")
