"""The exported trace is a file that Chrome opens, with the step's operations in it."""

import json

import pytest
import torch
from torch.utils.data import DataLoader

from labkit.diagnosis.trace import export_trace


def step(batch):
    return torch.relu(batch.float() @ torch.ones(3, 3))


def events(path):
    return [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_trace_holds_the_steps_and_their_operations(tmp_path, workers):
    loader = DataLoader(torch.zeros(32, 3), batch_size=2, num_workers=workers)
    assert export_trace(loader, step, tmp_path / "trace.json", steps=4) == 4
    found = events(tmp_path / "trace.json")
    assert found.count("step") >= 4 and found.count("next batch") >= 4
    assert found.count("aten::relu") == 4 and "aten::mm" in found
    assert not torch.autograd._profiler_enabled()


def test_a_step_that_raises_leaves_what_was_traced(tmp_path):
    steps = []

    def failing(batch):
        steps.append(step(batch))
        if len(steps) == 3:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        export_trace(DataLoader(torch.zeros(32, 3)), failing, tmp_path / "trace.json")
    assert "aten::relu" in events(tmp_path / "trace.json")
    assert not torch.autograd._profiler_enabled()


@pytest.mark.parametrize("samples", [0, 2])
def test_too_few_batches_are_refused(tmp_path, samples):
    loader = DataLoader(torch.zeros(samples, 3), batch_size=2)
    with pytest.raises(ValueError, match=rf"at least two batches .* got {samples // 2}; use"):
        export_trace(loader, step, tmp_path / "trace.json")
