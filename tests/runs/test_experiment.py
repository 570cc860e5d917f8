"""What cannot work is refused before anything is timed."""

import os
import re
from dataclasses import replace

import pytest

import labkit as lab
from labkit.machine import hardware
from labkit.runs.experiment import Experiment
from labkit.runs.preconditions import check
from labkit.runs.runner import run
from labkit.settings import Settings, vary

BASE = Settings()
SCALED = {"decoder": "simplejpeg_scaled", "preprocessor": "classification"}


def experiment(**changes):
    given = {"question": "Which?", "variants": {"a": BASE}, "baseline": "a", **changes}
    return Experiment("test", **given)


def test_a_platform_without_fork_and_fadvise_spawns_and_stays_warm(photos, monkeypatch):
    # What macOS and Windows lack.
    monkeypatch.setattr(hardware, "can_fork", lambda: False)
    monkeypatch.delattr(os, "posix_fadvise")
    chosen = lab.experiment("preprocessing", data=str(photos), device="emulated")
    for settings in check(chosen, "quick", None, None)["variants"].values():
        assert (settings["start_method"], settings["cache"]) == ("spawn", "warm")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"baseline": "b"}, "baseline must be one of a, got 'b'"),
        ({"variants": {}}, "variants must be at least one, got none"),
        ({"published": {"z": 0.9}}, "published label must be one of a, got 'z'"),
    ],
)
def test_an_experiment_that_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        experiment(**changes)


@pytest.mark.parametrize("name", ["shared", "reports"])
def test_a_name_whose_folder_of_results_is_another_things_is_refused(name):
    message = (
        f"name must be none of shared, reports, got '{name}'; "
        "those folders of results hold something else"
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        Experiment(name, question="?", variants={"a": BASE}, baseline="a")


@pytest.mark.parametrize(
    ("mode", "blocks", "message"),
    [
        ("fast", None, "mode must be one of document, full, quick, got 'fast'"),
        ("full", 5, "blocks must be at least 6 in mode full, got 5"),
        ("quick", 0, "blocks must be at least 1 in mode quick, got 0"),
        ("document", 2, "blocks must be 1 in mode document, got 2"),
    ],
)
def test_wrong_modes_and_blocks_are_refused(tmp_path, mode, blocks, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run(experiment(), mode, blocks=blocks, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_variants_that_would_do_different_work_are_refused(tmp_path, photos):
    base = Settings(data=str(photos), device="emulated")
    wrong = experiment(variants=vary(base, images=[8, 16]), baseline="8")
    message = "images must be the same for all variants, got 16, 8; make them experiments of their"
    with pytest.raises(ValueError, match=re.escape(message)):
        run(wrong, results=tmp_path / "results")


def test_batch_sizes_without_a_common_multiple_in_the_data_are_refused(tmp_path, photos):
    base = Settings(data=str(photos), device="emulated")
    wrong = experiment(variants=vary(base, batch_size=[5, 7]), baseline="5")
    message = (
        "batch_size must have a common multiple of at most 24 images in all variants, got 5, 7"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        run(wrong, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"decoder": "opencvv"},
            "decoder must be one of kornia_rs, opencv, pillow, simplejpeg, simplejpeg_scaled, ",
        ),
        (
            {"decoder": "simplejpeg_scaled"},
            "preprocessor must be one of classification, classification_on_device, "
            "classification_pillow, classification_crop, classification_crop_on_device, "
            "classification_crop_pillow for the decoder simplejpeg_scaled, whose images no longer "
            "fit their boxes, got 'loops'",
        ),
        (
            {**SCALED, "loader": "dali"},
            "decoder must be another one for the loader dali, which decodes by itself and in full",
        ),
        ({"device": "emulated", "step": "detector"}, "step must be timed on the simulated GPU"),
        (
            {"device": "cpu", "step": "classifier"},
            "preprocessor must be one of classification, classification_on_device, classification_",
        ),
        ({"data": "nowhere"}, "nowhere"),
    ],
)
def test_settings_that_cannot_work_cost_nothing(tmp_path, settings, message):
    wrong = experiment(variants={"a": Settings(**settings)})
    with pytest.raises((ValueError, OSError), match=re.escape(message)):
        run(wrong, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_skipped_variants_batch_size_does_not_limit_the_others(tmp_path, photos):
    base = Settings(
        data=str(photos), device="cpu", step="nothing", input_px=64, batch_size=5, num_workers=0,
        cache="as found", epochs=1,
    )  # fmt: skip
    # No batch of 64 is in 24 images, but this one cannot run on a CPU.
    skipped = replace(base, batch_size=64, prefetcher="data_prefetcher")
    finished = run(
        experiment(variants={"a": base, "b": skipped}), blocks=1, results=tmp_path, progress=False
    )
    assert {trial.status for trial in finished.trials} == {"ok"}
    assert set(finished.info["skipped"]) == {"b"}
    assert finished.info["calibration"]["images"] == 20
