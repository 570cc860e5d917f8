"""What a whole trial records beside time, in real ones with real loader workers."""

import gc
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from kernel import needs_fork, needs_read_counts, why_not_evicted

from labkit.analysis.validity import cache_violation
from labkit.contracts import Skip
from labkit.machine.clock import SystemClock
from labkit.parts.loading import LOADERS, load_with_torch
from labkit.parts.prefetching import PREFETCHERS
from labkit.parts.training import STEPS, Step
from labkit.records import Trial
from labkit.runs import trial
from labkit.runs.launcher import Launcher
from labkit.runs.packs import ensure_pack
from labkit.runs.timing import time_epoch
from labkit.settings import Settings
from tests.runs.test_launcher import measure, settings

# A page of a library that nothing had touched before comes with its neighbors, some 100 KiB.
PROGRAM_BYTES = 1 << 20
BATCH = {"sample_id": torch.zeros(8, dtype=torch.uint8)}  # 8 images, 8 bytes


@pytest.mark.parametrize("prefetcher", ["none", "data_prefetcher"])
@pytest.mark.parametrize("pin_memory", [True, False])
def test_the_warm_up_copies_as_the_epochs_do(monkeypatch, prefetcher, pin_memory):
    pinned, copied, trained = [], [], []

    class Device:
        is_simulated, torch_device = False, torch.device("cuda")

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
        settings=SimpleNamespace(pin_memory=pin_memory, num_workers=2, prefetch_factor=4),
        resident_batch=lambda: BATCH,
        forward=trained.append,
        step=Step(forward=None, backward=None, loss=lambda: None),
        batches=lambda loader, device: PREFETCHERS[prefetcher](loader, device, pinned=pin_memory),
    )
    trial.warm_up(warmed)
    steps = 8 if pin_memory else 3  # as many as the workers load ahead
    assert len(trained) == steps + 1 and trained[-1] == "synchronized"
    on_side_stream = prefetcher == "data_prefetcher"
    assert [how for _, *how in copied] == [[pin_memory, on_side_stream]] * steps
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
    chosen = Settings(**{**chosen, "pin_memory": True, "gpu_images_per_s": None})
    opened, _ = trial.open_trial(chosen, SystemClock(), frozenset())
    reserved = torch.cuda.memory_stats()["num_device_alloc"]
    time_epoch(opened, SystemClock())
    assert torch.cuda.memory_stats()["num_device_alloc"] == reserved


def test_cpu_seconds_are_those_of_the_epochs_alone(photos, monkeypatch):
    def busily(batch, last_images):
        end_s = time.process_time() + 0.5
        while time.process_time() < end_s:
            pass
        return {}

    monkeypatch.setattr("labkit.runs.trial.fingerprint_of", busily)
    chosen = Settings(**settings(photos, num_workers=0, images=8, cache="as found"))
    before_s = time.process_time()
    measured = trial.measure(chosen)
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
    how = {"multiprocessing_context": "fork", "persistent_workers": True}
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
    trial.measure(replace(chosen, step="nothing"))
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
    how = {"num_workers": 2, "persistent_workers": persistent, "multiprocessing_context": "fork"}
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
    ("percent", "how"),
    [
        (0, {}),
        (50, {"num_workers": 2, "persistent_workers": True}),
        (50, {"packing": "raw"}),
        (50, {"packing": "tfrecord", "num_workers": 2}),
        (50, {"storage": "modelled_hdd", "num_workers": 2}),
    ],
)
def test_before_every_epoch_memory_holds_the_share_that_was_asked(photos, launcher, percent, how):
    if reason := why_not_evicted(photos.parent):
        pytest.skip(reason)
    ensure_pack(Settings(**settings(photos, **how)))
    found = measure(launcher, photos, cache=percent, **how)
    row = Trial(
        experiment="e", variant="v", block=0, position=0, role="", status="ok",
        settings={"cache": percent}, **found,
    )  # fmt: skip
    proof = found["cache_proof"]
    assert row.labels["cache"] == f"{percent} % cached"
    assert proof["resident_shares_before"] == pytest.approx([percent / 100] * 2, abs=0.05)
    assert cache_violation(row) == ""
    if os.access("/proc/self/io", os.R_OK):
        fetched = proof["device_read_bytes"] / proof["file_bytes"]
        assert fetched >= 0.95 * 2 * (1 - percent / 100)


def test_a_pack_that_does_not_tell_where_its_images_lie_is_skipped(photos, launcher):
    ensure_pack(Settings(**settings(photos, packing="pth")))
    with pytest.raises(
        Skip, match=r"cache must be no percentage for a pack .* as pth; choose .* raw"
    ):
        measure(launcher, photos, cache=50, packing="pth")
