"""Apple's GPU, played by torch's functions for it: work is queued, and done by a synchronize."""

import time

import pytest
import torch
from torch.utils.data import DataLoader

import labkit as lab
from labkit.diagnosis import diagnose as module
from labkit.diagnosis.devices import find_device

STEP_S = 0.02
ROOM = 8


@pytest.fixture
def queued(monkeypatch):
    """Seconds of work that wait for `torch.mps.synchronize`, as a list."""
    left = []

    def synchronize():
        time.sleep(sum(left))
        left.clear()

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 1)
    monkeypatch.setattr(torch.mps, "synchronize", synchronize)
    return left


def test_a_step_on_mps_is_timed_until_its_work_is_done(queued, monkeypatch):
    monkeypatch.setattr(module, "LEAST_BUDGET_S", 1.0)
    loader = DataLoader([(i, i) for i in range(64)], batch_size=4, collate_fn=list)

    def step(batch):
        queued.append(STEP_S)
        if len(queued) == ROOM:  # the queue is full: the host waits
            torch.mps.synchronize()

    found = lab.diagnose(loader, step, budget_s=1.0, progress=False)
    assert found.facts.device == "mps"
    step_s, *_ = found.arms()["computing alone (batches are kept)"]
    assert step_s >= STEP_S


def test_without_tensors_on_mps_the_step_computes_on_the_cpu(queued, monkeypatch):
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 0)
    assert find_device(None).label == "cpu"
