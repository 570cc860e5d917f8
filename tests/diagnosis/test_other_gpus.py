"""Apple's and Intel's GPUs, played by torch's functions for them: a synchronize does the work."""

import time

import pytest
import torch
from torch.utils.data import DataLoader

import labkit as lab
from labkit.diagnosis.gpu import find_device
from tests.short_diagnosis import BUDGET_S, shorten

STEP_S = 0.02
ROOM = 8


@pytest.fixture(params=["mps", "xpu"])
def gpu(request, monkeypatch):
    if request.param == "mps":
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 1)
    else:
        monkeypatch.setattr(torch.xpu, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.xpu, "memory_allocated", lambda: 1)
    return request.param


@pytest.fixture
def queued(gpu, monkeypatch):
    """Seconds of work that wait for the GPU's `synchronize`, as a list."""
    left = []

    def synchronize():
        time.sleep(sum(left))
        left.clear()

    monkeypatch.setattr(getattr(torch, gpu), "synchronize", synchronize)
    return left


def test_a_step_is_timed_until_its_work_is_done(gpu, queued, monkeypatch):
    shorten(monkeypatch.setattr)
    loader = DataLoader([(i, i) for i in range(64)], batch_size=4, collate_fn=list)

    def step(batch):
        queued.append(STEP_S)
        if len(queued) == ROOM:  # the queue is full: the host waits
            getattr(torch, gpu).synchronize()

    found = lab.diagnose(loader, step, budget_s=BUDGET_S, progress=False)
    assert found.facts.device == gpu
    step_s = found.table().loc["computing alone (batches are kept)", "step_s"]
    assert step_s >= STEP_S


def test_launching_is_no_work_that_workers_could_do(gpu, queued, monkeypatch):
    shorten(monkeypatch.setattr)
    weights = torch.ones(400, 400)
    loader = DataLoader([torch.ones(400)] * 64, batch_size=8, num_workers=1)

    def step(batch):
        for _ in range(20):
            torch.mm(weights, weights)  # stands for what launches the GPU's work
        queued.append(0.001)
        if len(queued) == ROOM:
            getattr(torch, gpu).synchronize()

    found = lab.diagnose(loader, step, budget_s=BUDGET_S, progress=False)
    assert found.broken == ""
    assert found.facts.host_kinds["launch"].share > 0.5
    assert {"main thread", "launching"} & {remedy.bottleneck for remedy in found.proposed} == set()


def test_without_tensors_on_it_the_step_computes_on_the_cpu(gpu, monkeypatch):
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 0)
    monkeypatch.setattr(torch.xpu, "memory_allocated", lambda: 0)
    assert find_device(None).label == "cpu"
