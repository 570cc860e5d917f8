"""A decoder that makes fewer pixels does the same work: it is let through, and labelled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import labkit as lab
from labkit import preflight
from labkit.contracts import SCALED_DECODING_TOLERANCE_LEVELS, tolerance_levels
from labkit.parts.decoding import DECODERS
from labkit.settings import MODES, Settings, complete
from labkit.source import label_scaled, open_loader
from labkit.summary import summarize_run

SCALED = {"decoder": "simplejpeg_scaled"}


@pytest.fixture
def whole(photos):
    chosen = Settings(
        data=str(photos), decoder="simplejpeg", preprocessor="classification", device="cpu",
        input_px=64, batch_size=8, num_workers=0,
    )  # fmt: skip
    return complete(
        chosen, MODES["quick"], cores=2, has_cuda=False, can_fork=False, real_step="classifier"
    )


def batch(settings):
    _, loader = open_loader(settings)
    return {name: tensor.numpy() for name, tensor in next(iter(loader)).items()}


def test_only_the_pixels_are_others(whole):
    reference, found = batch(whole), batch(replace(whole, **SCALED))
    assert np.array_equal(found["label"], reference["label"])
    assert np.array_equal(found["sample_id"], reference["sample_id"])
    assert 0.01 < np.abs(found["image"] - reference["image"]).mean() < 0.2


def test_a_scaled_decoder_is_let_through_and_wrong_colors_are_not(whole, monkeypatch):
    monkeypatch.setitem(DECODERS, "swapped", lambda jpeg: DECODERS["simplejpeg"](jpeg)[..., ::-1])
    monkeypatch.setitem(
        DECODERS,
        "simplejpeg_scaled",
        lambda jpeg, at_least_px, scaled=DECODERS["simplejpeg_scaled"]: np.ascontiguousarray(
            scaled(jpeg, at_least_px=at_least_px)[..., ::-1]
        ),
    )
    swapped = preflight.compare_work({"whole": whole, "scaled": replace(whole, **SCALED)}, "whole")
    status, reason = swapped["scaled"]
    assert status == "failed"
    assert "not the same work as whole: image must differ" in reason
    monkeypatch.undo()
    found = preflight.compare_work({"whole": whole, "scaled": replace(whole, **SCALED)}, "whole")
    assert found == {"whole": ("ok", ""), "scaled": ("ok", "")}


@pytest.mark.parametrize(
    ("how", "levels"),
    [
        ({"decoders_differ": False, "scaled": False}, None),
        ({"decoders_differ": True, "scaled": True}, 8),
        (
            {"decoders_differ": True, "scaled": False, "decoded_scaled": True},
            SCALED_DECODING_TOLERANCE_LEVELS,
        ),
    ],
)
def test_the_tolerance_is_the_difference_that_is_there(how, levels):
    assert tolerance_levels(**how) == levels


def test_its_rows_say_that_the_pixels_are_others(whole, photos, tmp_path):
    words = "decoded to half a side or less where 64 px remain, so other pixels"
    assert label_scaled(whole) == {}
    assert label_scaled(replace(whole, **SCALED)) == {"images": words}
    base = Settings(
        data=str(photos), preprocessor="classification", device="emulated", input_px=64,
        batch_size=8, images=16, num_workers=1, cache="warm",
    )  # fmt: skip
    experiment = lab.Experiment(
        "scaled",
        question="What does a scaled decode save?",
        variants={"whole": replace(base, decoder="simplejpeg"), "scaled": replace(base, **SCALED)},
        baseline="whole",
    )
    run = lab.run(experiment, blocks=1, results=tmp_path, progress=False)
    assert {trial.status for trial in run.trials} == {"ok"}
    labels = {row.variant: row.labels.get("images", "") for row in summarize_run(run).rows}
    assert labels == {"whole": "", "scaled": words}
    second_lines = lab.table(run).second_lines
    assert words in second_lines["scaled"]
    assert words not in second_lines["whole"]
    chart = lab.chart(run)
    shown = " ".join(" ".join(text.get_text().split()) for text in chart.texts)
    assert f"scaled: {words}" in shown
    assert f"scaled: {words}." in chart.get_label()
