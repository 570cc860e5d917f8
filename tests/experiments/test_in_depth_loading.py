"""The loader's knobs: each experiment turns its own, and all variants can do equal work.

Run: python -m pytest tests/test_in_depth_loading.py
"""

import math
from dataclasses import replace

import numpy as np
import pytest

import labkit as lab
from labkit import pipeline
from labkit.machine import hardware
from labkit.resolve import label_samples, resolve
from labkit.settings import MODES, complete

KNOBS = {
    "workers": {"num_workers"},
    "prefetch_factor": {"prefetch_factor"},
    "pin_memory": {"pin_memory", "prefetcher", "sync_every", "preprocessor"},
    "persistent_workers": {"persistent_workers", "start_method"},
    "short_epochs": {"persistent_workers", "start_method"},
    "batch_size": {"batch_size"},
    "batch_size_powers": {"batch_size", "device"},
    "sampling": {"order", "loader"},
    "opencv_threads": {"cv2_threads", "num_workers", "torch_threads"},
    "prefetching_in_depth": {
        "prefetcher", "num_workers", "prefetch_factor", "pin_memory", "sync_every"
    },
}  # fmt: skip
PHOTOS = 1000  # what `make lab` makes


def everything(experiment):
    return {**experiment.variants, **experiment.in_full}


@pytest.mark.parametrize("cores", [1, 2, 3, 16, 192])
@pytest.mark.parametrize("name", KNOBS)
def test_an_experiment_turns_its_own_knobs_and_repeats_no_variant(monkeypatch, name, cores):
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    chosen = lab.experiment(name)
    assert 2 <= len(chosen.variants) <= 5
    assert not set(chosen.variants) & set(chosen.in_full)
    every = everything(chosen)
    assert len(set(every.values())) == len(every)
    base = chosen.variants[chosen.baseline]
    for settings in every.values():
        assert replace(settings, **{knob: getattr(base, knob) for knob in KNOBS[name]}) == base


@pytest.mark.parametrize("name", KNOBS)
def test_all_batch_sizes_fit_the_photographs_there_are(name):
    for mode in ("quick", "full"):
        chosen = lab.experiment(name)
        variants = everything(chosen) if mode == "full" else chosen.variants
        whole = [
            complete(s, MODES[mode], cores=2, has_cuda=False, can_fork=True)
            for s in variants.values()
        ]
        assert math.lcm(*(settings.batch_size for settings in whole)) <= PHOTOS


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_equal_depth_is_what_a_thread_holds_more(monkeypatch, cores):
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    variants = lab.experiment("prefetching_in_depth").variants
    plain, deep = variants["original"], variants["equal depth"]
    more = plain.num_workers * (deep.prefetch_factor - plain.prefetch_factor)
    assert 2 <= more < 2 + plain.num_workers  # whole batches for each worker, and no more


# --- jitter ---------------------------------------------------------------------------------


def test_samples_wait_as_long_as_drawn_and_the_row_says_so(photos, monkeypatch):
    slept_s = []
    monkeypatch.setattr(pipeline.time, "sleep", slept_s.append)
    settings = complete(
        lab.Settings(data=str(photos), images=8, batch_size=4, input_px=64, num_workers=0),
        MODES["quick"], cores=2, has_cuda=False, can_fork=True,
    )  # fmt: skip
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
