"""Resolved settings: samples that come late and their label, and what a device cannot compute."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small import completed

from labkit import pipeline
from labkit.contracts import Skip
from labkit.machine import hardware
from labkit.resolve import label_samples, resolve


def test_samples_wait_as_long_as_drawn_and_the_row_says_so(photos, monkeypatch):
    slept_s = []
    # Not the function in `time`, which threads of other tests' libraries call too.
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(sleep=slept_s.append))
    settings = completed(data=str(photos), preprocessor="loops", num_workers=0)
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


@pytest.mark.parametrize(
    ("setting", "value", "plain"),
    [("precision", "amp", "fp32"), ("memory_format", "channels_last", "contiguous")],
)
def test_what_an_emulated_device_cannot_compute_is_left_out(monkeypatch, setting, value, plain):
    message = (
        f"{setting} must be {plain} on the simulated GPU, which computes nothing, "
        f"got '{value}'; choose device cpu or cuda"
    )
    with pytest.raises(Skip) as caught:
        resolve(completed(**{setting: value}))
    assert str(caught.value) == message
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: True)
    resolve(completed(**{setting: value}, device="cpu"))


def test_batches_are_finished_on_the_side_stream_only_where_one_has_kernels_to_finish_with():
    name = {"prefetcher": "data_prefetcher_normalizing"}
    with pytest.raises(ValueError, match=r"preprocessor must be one of on_device, .* got 'loops'"):
        resolve(completed(**name, preprocessor="loops", device="cuda", step="detector"))
    pixels = {**name, "preprocessor": "on_device", "step": "detector"}
    with pytest.raises(Skip, match="one queue for all; choose device cuda"):
        resolve(completed(**{**pixels, "step": "timed"}, device="emulated"))
    with pytest.raises(Skip, match="the cpu device does not have"):
        resolve(completed(**pixels, device="cpu"))
    parts = resolve(completed(**pixels, device="cuda"))
    assert (parts.finishes_on_side_stream, parts.finishes_on_device) == (True, False)
    parts = resolve(completed(**{**pixels, "prefetcher": "data_prefetcher"}, device="cuda"))
    assert (parts.finishes_on_side_stream, parts.finishes_on_device) == (False, True)


def test_mixed_precision_is_left_out_on_a_cpu_that_computes_it_far_slower(monkeypatch):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: False)
    with pytest.raises(Skip, match=r"precision must be fp32 on a CPU without AVX-512, .* 'amp'"):
        resolve(completed(precision="amp", device="cpu"))


@pytest.mark.parametrize(
    ("error", "message", "choices"),
    [
        (ValueError, "has its own", {"device_speed": 460, "profile": "resnet50_a100"}),
        (Skip, "which is as fast as it is", {"device_speed": 460, "device": "cpu"}),
        (Skip, "only the simulated GPU", {"profile": "calibrated_sleeping", "device": "cpu"}),
    ],
)
def test_a_device_with_a_speed_of_its_own_takes_no_other(error, message, choices):
    with pytest.raises(error, match=message):
        resolve(completed(**choices))
