"""Experiments in depth: on machines of all sizes, and what their settings do."""

from dataclasses import replace

import numpy as np
import pytest

import labkit as lab
from labkit import pipeline
from labkit.contracts import Skip
from labkit.machine import gpu, hardware
from labkit.machine.gpu import CudaState
from labkit.resolve import label_samples, resolve
from labkit.settings import MODES, complete

SMALL = {"input_px": 64, "batch_size": 4, "images": 8, "num_workers": 0}


def completed(**settings):
    wanted = lab.Settings(**settings)
    step = lab.PREPROCESSORS[wanted.preprocessor].batch
    return complete(wanted, MODES["quick"], cores=2, has_cuda=False, can_fork=True, real_step=step)


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_equal_depth_is_what_a_thread_holds_more(monkeypatch, cores):
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    variants = lab.experiment("prefetching_in_depth").variants
    plain, deep = variants["original"], variants["equal depth"]
    more = plain.num_workers * (deep.prefetch_factor - plain.prefetch_factor)
    assert 2 <= more < 2 + plain.num_workers  # whole batches for each worker, and no more


def test_samples_wait_as_long_as_drawn_and_the_row_says_so(photos, monkeypatch):
    slept_s = []
    monkeypatch.setattr(pipeline.time, "sleep", slept_s.append)
    settings = completed(data=str(photos), preprocessor="loops", **SMALL)
    prompt, _ = pipeline.open_loader(resolve(settings))
    key = (0, int(prompt.order.image_ids[0]))
    steady = prompt[key]
    assert slept_s == []
    late, _ = pipeline.open_loader(resolve(replace(settings, jitter_ms=40)))
    sample = late[key]
    assert slept_s == [pipeline.jitter_s(late.settings, *key)]
    assert all(np.array_equal(sample[name], steady[name]) for name in steady)
    assert label_samples(settings) == {}
    assert "up to 40 ms late" in label_samples(late.settings)["samples"]


def test_without_a_gpu_precision_is_compared_on_the_cpu(monkeypatch):
    monkeypatch.setattr(gpu, "cuda", lambda: CudaState(works=False, reason="no NVIDIA driver"))
    small = lab.experiment("precision").variants["amp"]
    assert (small.device, small.preprocessor, small.input_px) == ("cpu", "classification", 64)
    assert lab.experiment("precision", device="emulated").variants["amp"].device == "emulated"
    monkeypatch.setattr(gpu, "cuda", lambda: CudaState(works=True, reason=""))
    assert lab.experiment("precision").variants["amp"].device is None


@pytest.mark.parametrize(
    ("setting", "value", "plain"),
    [("precision", "amp", "fp32"), ("memory_format", "channels_last", "contiguous")],
)
def test_what_an_emulated_device_cannot_compute_is_left_out(setting, value, plain):
    message = (
        f"{setting} must be {plain} on the emulated device, which computes nothing, "
        f"got '{value}'; choose device cpu or cuda"
    )
    with pytest.raises(Skip) as caught:
        resolve(completed(**{setting: value}))
    assert str(caught.value) == message
    resolve(completed(**{setting: value}, device="cpu"))
