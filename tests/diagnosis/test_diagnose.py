"""A diagnosis of real loaders and steps, and of those that break.

Its budget is shorter than a user's may be: what is planted here is large.
"""

import os
import shutil
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import labkit as lab
from labkit.contracts import SystemClock
from labkit.diagnosis import diagnose as module
from labkit.diagnosis import loaders, measure, verify
from labkit.diagnosis.diagnose import conclude
from labkit.diagnosis.measure import Collected, Loop
from labkit.diagnosis.remedies import Remedy
from labkit.machine import shared_memory
from labkit.parts.devices import PROFILES, EmulatedDevice

BUDGET_S = 1.0


@pytest.fixture(scope="module", autouse=True)
def short_stretches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_BUDGET_S", BUDGET_S)
        patch.setattr(measure, "SHORTEST_S", 0.1)
        patch.setattr(measure, "FEWEST_STEPS", 4)
        yield


class Slow(Dataset):
    """Samples that take a while on the CPU; the number of each is in it."""

    def __init__(self, length=64, cpu_s=0.004):
        self.length, self.cpu_s = length, cpu_s

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.grind()
        return torch.full((3, 8, 8), float(i))

    def grind(self):
        ends_s = time.perf_counter() + self.cpu_s
        while time.perf_counter() < ends_s:
            pass


class Waiting(Slow):
    """Samples that come late, whatever else this machine does."""

    def grind(self):
        time.sleep(self.cpu_s)


class Emulated:
    """A step on an emulated device."""

    def __init__(self, ms=5.0):
        profile = replace(PROFILES["resnet50_a100"], compute_s_per_image=ms / 1e3)
        self.device = EmulatedDevice(profile, SystemClock())

    def __call__(self, batch):
        how = {"pinned": True, "non_blocking": True, "side_stream": False}
        on_device = self.device.put({"image": batch}, **how)
        self.device.wait(on_device)
        self.device.compute(len(batch))


def diagnose(loader, step, **how):
    return lab.diagnose(loader, step, budget_s=BUDGET_S, progress=False, **how)


@pytest.fixture(scope="module")
def without_workers():
    step = Emulated(ms=3)
    loader = DataLoader(Waiting(cpu_s=0.01), batch_size=4, shuffle=True)
    return diagnose(loader, step, device=step.device, verify=True)


# Which remedy gains most depends on how busy the cores are: test_remedies has fixed times.
def test_a_loader_without_workers_beside_a_device_is_told_to_take_some(without_workers):
    found = without_workers
    assert found.broken == ""
    (remedy,) = [each for each in found.remedies if each.name == "more workers"]
    assert remedy.ci_low < remedy.measured < remedy.ci_high
    assert found.stalls["input"].mean > 0.1
    assert 0 < found.ceiling < 1


def test_it_says_so_on_one_screen(without_workers):
    text = str(without_workers)
    assert "input-bound" in text and "Ceiling:" in text and "num_workers=" in text
    assert "images/s, resnet50_a100)" in text
    assert "give files for that" in text
    assert len(text.splitlines()) < 20
    assert "<li>" in without_workers._repr_html_()
    assert list(without_workers.table().columns) == ["step_s", "epoch_s", "cpu_s"]
    assert "collate" in set(without_workers.stages()["kind"])


def test_nothing_is_to_gain_where_the_device_is_the_limit():
    step = Emulated(ms=20)
    found = diagnose(
        DataLoader(Slow(length=16, cpu_s=0.0001), batch_size=4), step, device=step.device
    )
    assert (found.bottleneck, found.remedies) == ("compute", ())
    assert found.ceiling > 0.9
    assert "Data loading is not the bottleneck" in str(found)


def test_random_numbers_and_the_loader_stay_as_they_were():
    loader = DataLoader(Slow(length=16, cpu_s=0.0), batch_size=4, shuffle=True, num_workers=1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    diagnose(loader, lambda batch: None)
    assert torch.equal(torch.get_rng_state(), before)
    assert loader.num_workers == 1 and loader._iterator is None


def batches(count=None):
    number = 0
    while count is None or number < count:
        yield {"image": torch.full((2, 3), float(number)), "boxes": [np.zeros((1, 4))]}
        number += 1


def test_a_generator_that_ends_early_leaves_what_was_measured():
    found = diagnose(batches(40), lambda batch: time.sleep(0.002))
    assert "give one that can be iterated again" in found.broken
    assert "Broke off: loader must have" in str(found)


class Broken(Slow):
    def __getitem__(self, i):
        if i == 21:
            raise OSError("disk on fire")
        return super().__getitem__(i)


class Killed(Slow):
    def __getitem__(self, i):
        if i == 21 and torch.utils.data.get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


def give_none(samples):
    return None


# torch raises in whatever runs when a worker dies, were it a __del__; it looks again later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(Broken(cpu_s=0), batch_size=4), "OSError: disk on fire"),
        (DataLoader(Broken(cpu_s=0), batch_size=4, num_workers=1), "OSError: disk on fire"),
        (DataLoader(Killed(cpu_s=0), batch_size=4, num_workers=1), "a loader worker ended"),
        (DataLoader(Nothing()), "loader must yield at least one batch, got an empty one"),
        ([], "loader must yield at least one batch, got an empty one"),
        (
            DataLoader(Slow(cpu_s=0), collate_fn=give_none),
            "loader must yield batches, got None; does its collate_fn return one?",
        ),
    ],
    ids=["raises", "raises in a worker", "worker dies", "empty", "empty list", "yields None"],
)
def test_a_loader_that_breaks_is_told_of_in_one_line(loader, said):
    found = diagnose(loader, lambda batch: None)
    assert said in found.broken
    assert "\n" not in found.broken
    assert str(found).startswith("- Broke off: ")
    assert found.remedies == ()


def test_a_loader_that_stalls_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(loaders, "STALL_S", 0.3)

    def stalling():
        yield torch.zeros(2)
        time.sleep(60)

    found = diagnose(stalling(), lambda batch: None)
    assert "waited 0.3 s for loader to yield a batch, got nothing" in found.broken
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3, print), "loader must be an iterable of batches, got 3"),
        (([1], 3), "step must be a function of a batch, got 3"),
        (([1], print, {"budget_s": 0.5}), "budget_s must be at least 1, got 0.5"),
        (([1], print, {"files": ["/no/such"]}), "files must be files that can be read, got /no/"),
        (([1], print, {"device": "cuda"}), "device must be an emulated device"),
    ],
)
def test_bad_arguments_are_refused(arguments, said):
    loader, step, *rest = arguments
    with pytest.raises(ValueError, match=said):
        lab.diagnose(loader, step, progress=False, **(rest[0] if rest else {}))


def test_a_pipeline_of_labkits_own_is_diagnosed_and_its_remedies_run(photos, tmp_path, monkeypatch):
    vectorize = Remedy(
        name="faster transform",
        bottleneck="transform",
        predicted=0.5,
        at_most=True,
        reason="",
        change="",
    )
    monkeypatch.setattr(module, "propose", lambda measured: (vectorize,))
    monkeypatch.setattr(verify, "BLOCKS", 2)
    settings = lab.Settings(
        data=str(photos), images=24, input_px=64, batch_size=4, device="cpu",
        step="nothing", preprocessor="loops", num_workers=0, cache="warm",
    )  # fmt: skip
    found = lab.diagnose(settings, budget_s=BUDGET_S, verify=True, results=tmp_path, progress=False)
    assert found.broken == ""
    assert {"read", "decode", "transform"} <= set(found.stages()["kind"])
    (tried,) = found.remedies
    assert tried.ci_low < tried.measured < tried.ci_high
    assert lab.newest_run("diagnosis", results=tmp_path).info["status"] == "finished"
    assert "Tried: measured" in str(found)


@pytest.mark.parametrize(("total", "free", "said"), [
    (40_000_000, 30_000_000, "shared memory"),  # five batches of 10 MB may be on their way
    (90_000_000, 5_000_000, "shared memory"),
    (90_000_000, 80_000_000, ""),
])  # fmt: skip
def test_a_stall_for_want_of_shared_memory_is_told_from_others(monkeypatch, total, free, said):
    room = shutil._ntuple_diskusage(total, total - free, free)
    monkeypatch.setattr(shared_memory, "usage", lambda: room)
    loop = Loop(DataLoader(Slow(), num_workers=2), print)
    loop.batch_bytes = 10_000_000
    found = conclude(Collected(loop=loop, broken="waited 30 s for loader to yield a batch"))
    assert found.bottleneck == said
    assert ("docker run --shm-size=2g" in str(found)) == bool(said)
