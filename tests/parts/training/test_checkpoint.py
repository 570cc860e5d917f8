"""Checkpoints: complete whatever happens, and the values of the moment they were saved.

Run: python -m pytest tests/parts/training/test_checkpoint.py
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading

import pytest
import torch
from places import memory_mounted

from labkit.parts.training import checkpoint
from labkit.parts.training.checkpoint import CHECKPOINT_WRITERS
from tests.processes import PATIENCE_S

KILLS = 10
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last.pth"


@pytest.fixture(params=CHECKPOINT_WRITERS)
def saver(request, path):
    with contextlib.closing(CHECKPOINT_WRITERS[request.param](path)) as opened:
        yield opened


def trained(device="cpu"):
    """A model and an optimizer with steps and moments."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3, 8, 8, device=device)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(model, optimizer):
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "losses": [0.5, {"nested": (1, None, True)}],
        "half": torch.ones(2, 3, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "strided": torch.arange(24).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    }


def filled(value, size_bytes=4096):
    return {"step": value, "weights": torch.full((size_bytes // 4,), float(value))}


def loaded(path):
    return torch.load(path, weights_only=True, map_location="cpu")


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@pytest.mark.parametrize("device", DEVICES)
def test_the_file_has_the_values_of_the_moment_it_was_saved(saver, path, device):
    model, optimizer = trained(device)
    for _ in range(2):  # the second time, memory is used again
        expected = {key: value.clone() for key, value in model.state_dict().items()}
        state = state_of(model, optimizer)
        saver.save(state)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(7)
        saver.finish()
        restored = loaded(path)
        assert equal(restored, {**state, "model": expected})
        assert restored["model"]._metadata == state["model"]._metadata  # versions of the layers
        fresh, fresh_optimizer = trained()
        fresh.load_state_dict(restored["model"])
        fresh_optimizer.load_state_dict(restored["optimizer"])
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_second_save_waits_for_the_first(path, monkeypatch):
    may_write, second_done, written = threading.Event(), threading.Event(), []

    def held_up(path, state):
        assert may_write.wait(PATIENCE_S)
        written.append(state["step"])

    monkeypatch.setattr(checkpoint, "write", held_up)
    with contextlib.closing(CHECKPOINT_WRITERS["thread"](path)) as saver:
        saver.save(filled(1))  # returns although nothing has been written

        def save_second():
            saver.save(filled(2))
            second_done.set()

        second = threading.Thread(target=save_second)
        second.start()
        assert not second_done.wait(0.1) and not written
        may_write.set()
        second.join(PATIENCE_S)
        assert written[0] == 1
        saver.finish()
    assert written == [1, 2]


# --- failures -------------------------------------------------------------------------------


def test_a_full_disk_is_named_and_the_previous_file_stays(tmp_path):
    with memory_mounted(tmp_path / "small", size="4m") as small:
        path = small / "last.pth"
        for name in CHECKPOINT_WRITERS:
            with contextlib.closing(CHECKPOINT_WRITERS[name](path)) as saver:
                saver.save(filled(30, 1 << 20))
                saver.finish()
                words = rf"checkpoint must be written to {small}, got .*, with .* free; free space"
                with pytest.raises(OSError, match=words):
                    saver.save(filled(40, 8_000_000))
                    saver.finish()
                assert [file.name for file in small.iterdir()] == [path.name]
                assert equal(loaded(path), filled(30, 1 << 20))
                saver.save(filled(50, 1 << 20))  # the space of the unfinished file is free again
                saver.finish()
            assert equal(loaded(path), filled(50, 1 << 20))


def save_for_ever(name, path, started):
    torch.set_num_threads(1)  # torch's other threads were not forked
    saver = CHECKPOINT_WRITERS[name](path)
    tensors = [torch.empty(1 << 18) for _ in range(4)]
    for step in range(1, 1 << 30):
        for tensor in tensors:
            tensor.fill_(step)
        saver.save({"step": step, "tensors": tensors})
        if step == 2:  # it has waited for the first
            started.set()


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
@pytest.mark.parametrize("name", CHECKPOINT_WRITERS)
def test_a_save_killed_at_any_moment_leaves_a_complete_file(name, path):
    fork = multiprocessing.get_context("fork")
    for kill in range(KILLS):
        started = fork.Event()
        training = fork.Process(target=save_for_ever, args=(name, path, started))
        training.start()
        assert started.wait(PATIENCE_S)
        training.join(kill / 200)  # other moments of a save each time
        training.kill()
        training.join(PATIENCE_S)
        restored = loaded(path)
        step = float(restored["step"])
        assert all(torch.equal(t, torch.full((1 << 18,), step)) for t in restored["tensors"])
    with contextlib.closing(CHECKPOINT_WRITERS[name](path)) as saver:
        saver.save(filled(1))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
