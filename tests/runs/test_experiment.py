"""What cannot work is refused before anything is timed."""

import os
from dataclasses import replace

import labkit as lab
from labkit.machine import hardware
from labkit.runs.experiment import Experiment
from labkit.runs.runner import check, run
from labkit.settings import Settings


def test_a_platform_without_fork_and_fadvise_spawns_and_stays_warm(photos, monkeypatch):
    # What macOS and Windows lack.
    monkeypatch.setattr(hardware, "can_fork", lambda: False)
    monkeypatch.delattr(os, "posix_fadvise")
    chosen = lab.experiment("preprocessing", data=str(photos), device="emulated")
    for settings in check(chosen, "quick", None, None)["variants"].values():
        assert (settings["start_method"], settings["cache"]) == ("spawn", "warm")


def test_a_skipped_variants_batch_size_does_not_limit_the_others(tmp_path, photos):
    base = Settings(
        data=str(photos), device="cpu", step="nothing", input_px=64, batch_size=5, num_workers=0,
        cache="as found", epochs=1,
    )  # fmt: skip
    # No batch of 64 is in 24 images, but this one cannot run on a CPU.
    skipped = replace(base, batch_size=64, prefetcher="data_prefetcher")
    both = Experiment("test", question="?", variants={"a": base, "b": skipped}, baseline="a")
    finished = run(both, blocks=1, results=tmp_path, progress=False)
    assert {trial.status for trial in finished.trials} == {"ok"}
    assert set(finished.info["skipped"]) == {"b"}
    assert finished.info["calibration"]["images"] == 20
