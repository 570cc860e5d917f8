"""Before anything is timed, unequal work and batches that do not fit are refused."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from jpegs import why_missing
from small import completed

import labkit as lab
from labkit.machine import hardware
from labkit.parts.decoding import DECODERS, Decoder
from labkit.parts.loading import LOADERS, Loader, load_with_torch
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.pipeline import first_batch
from labkit.resolve import resolve
from labkit.runs.check_equal_work import compare_work, measure_psnr
from labkit.runs.packs import ensure_pack

SAME = ("ok", "")


def settings(data, **changes):
    chosen = {"batch_size": 8, "device": "cpu", "decoder": "simplejpeg", **changes}
    return completed(data=str(data), preprocessor="classification", **chosen)


def assert_other(verdicts, label, baseline):
    status, reason = verdicts[label]
    assert (status, f"not the same work as {baseline}: image must differ" in reason) == (
        "failed", True,
    )  # fmt: skip


def of_another_epoch(name):
    """A preprocessor that crops as in another epoch."""
    part = PREPROCESSORS[name]
    return replace(part, function=lambda sample, px: part(replace(sample, epoch=9), px))


# --- decoders that make other pixels ------------------------------------------------------------


def test_a_scaled_decoder_is_let_through_and_wrong_colors_are_not(photos, monkeypatch):
    whole, scaled = settings(photos), DECODERS["simplejpeg_scaled"]

    def other_colors(jpeg, at_least_px):
        return scaled(jpeg, at_least_px=at_least_px)[..., ::-1].copy()

    monkeypatch.setitem(DECODERS, "other", replace(scaled, function=other_colors))
    names = {"whole": "simplejpeg", "scaled": "simplejpeg_scaled", "other": "other"}
    variants = {label: replace(whole, decoder=name) for label, name in names.items()}
    verdicts = compare_work(variants, "whole")
    assert verdicts["whole"] == verdicts["scaled"] == SAME
    assert_other(verdicts, "other", "whole")


def test_pixels_that_differ_by_design_are_let_through_as_far_as_they_are_numbers(
    photos, monkeypatch
):
    def decode_gray(jpeg):
        return DECODERS["opencv"](jpeg)[..., 1:2].repeat(3, axis=2)

    for name, decode in {
        "gray": decode_gray, "mirrored": lambda jpeg: decode_gray(jpeg)[:, ::-1].copy(),
    }.items():  # fmt: skip
        monkeypatch.setitem(DECODERS, name, Decoder(decode, other_pixels="in gray"))
    names = ("simplejpeg", "gray", "mirrored")
    variants = {name: replace(settings(photos), decoder=name) for name in names}
    assert compare_work(variants, "simplejpeg") == dict.fromkeys(variants, SAME)
    # Decoders that say the same are compared with each other.
    del variants["simplejpeg"]
    assert_other(compare_work(variants, "gray"), "mirrored", "gray")


def test_the_steps_of_the_textbook_do_the_same_work_and_other_crops_do_not(photos, monkeypatch):
    chosen = {"batch_size": 8, "input_px": 64, "device": "cpu", "num_workers": 1}
    steps = lab.experiment("textbook", data=str(photos), **chosen).settings
    variants = {label: completed(**asdict(step)) for label, step in steps.items()}
    for each in variants.values():
        ensure_pack(each, jobs=1)
    verdicts = compare_work(variants, "textbook")
    if why_missing("classification_crop_v2"):
        status, reason = verdicts.pop("textbook, torchvision v2")
        assert (status, reason.partition(";")[0]) == (
            "skipped", "torchvision.transforms.v2.functional is not installed",
        )  # fmt: skip
    assert verdicts == dict.fromkeys(verdicts, SAME)
    crop = "classification_crop"
    monkeypatch.setitem(PREPROCESSORS, crop, of_another_epoch(crop))
    assert_other(compare_work(variants, "textbook"), "with OpenCV", "textbook")


@pytest.mark.parametrize(("packing", "stored"), [("raw", "small"), ("mapped", "yuv420")])
def test_other_crops_of_what_is_stored_for_crops_are_not_the_same_work(
    packing, stored, photos, monkeypatch
):
    crop = "classification_crop"
    original = replace(settings(photos), preprocessor=crop, input_px=128)
    changed = replace(original, packing=packing, storage_format=stored)
    ensure_pack(changed, jobs=1)
    monkeypatch.setitem(PREPROCESSORS, "other", of_another_epoch(crop))
    variants = {
        "original": original,
        "pillow": replace(original, preprocessor=f"{crop}_pillow"),  # averages otherwise
        "stored": changed,
        "other": replace(changed, preprocessor="other"),
    }
    verdicts = compare_work(variants, "original")
    assert_other(verdicts, "other", "original")
    assert [verdicts[label] for label in ("original", "pillow", "stored")] == [SAME] * 3


# --- how far pixels are apart -------------------------------------------------------------------


def test_the_distance_of_pixels_is_measured_against_the_baseline(photos):
    whole = settings(photos)
    variants = {"whole": whole, "again": replace(whole, loader="threads")}
    assert measure_psnr(variants, "whole") == {}
    variants["scaled"] = replace(whole, decoder="simplejpeg_scaled")
    variants["scaled, too"] = variants["scaled"]
    psnr_db = measure_psnr(variants, "whole")
    batches = [first_batch(resolve(variants[label]), frozenset()) for label in ("whole", "scaled")]
    std = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]
    apart = (batches[0]["image"] - batches[1]["image"]) * std  # of pixels in 0 to 1
    expected = -10 * math.log10(np.mean(apart.astype(float) ** 2))
    assert psnr_db == {"scaled": pytest.approx(expected), "scaled, too": pytest.approx(expected)}


def load_reversed(source, settings):
    for batch in load_with_torch(source, settings):
        yield {name: tensor.flip(0) for name, tensor in batch.items()}


def test_pixels_of_the_same_images_are_compared_whatever_the_order(photos, monkeypatch):
    monkeypatch.setitem(LOADERS, "reversed", Loader(load_reversed, has_own_order=True))
    whole = settings(photos)
    scaled = replace(whole, decoder="simplejpeg_scaled")
    expected = measure_psnr({"whole": whole, "scaled": scaled}, "whole")["scaled"]
    other = replace(scaled, loader="reversed")
    turned = replace(whole, loader="reversed")
    variants = {"whole": whole, "reversed": turned}
    assert compare_work(variants, "whole") == dict.fromkeys(variants, SAME)
    for one, two in ((whole, other), (turned, scaled)):
        psnr_db = measure_psnr({"whole": one, "scaled": two}, "whole")
        assert psnr_db == {"scaled": pytest.approx(expected)}


# --- batches of another size --------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(8, 4), (4, 8), (4, 6)])
def test_batches_of_another_size_must_hold_the_same_images_and_pixels(photos, monkeypatch, sizes):
    base, other = (settings(photos, batch_size=size) for size in sizes)
    variants = {"base": base, "other": other, "ids": replace(other, loader="ids")}
    variants["pixels"] = replace(other, decoder="pixels")

    monkeypatch.setitem(LOADERS, "ids", load_reversed)
    decode = DECODERS["simplejpeg"]
    monkeypatch.setitem(DECODERS, "pixels", lambda jpeg: 255 - decode(jpeg))
    verdicts = compare_work(variants, "base")
    assert verdicts["base"] == verdicts["other"] == SAME
    assert "not the same work as base: " in verdicts["ids"][1]
    assert "not the same work as base: image must differ" in verdicts["pixels"][1]


# --- memory -------------------------------------------------------------------------------------


def test_a_batch_larger_than_memory_is_refused_before_it_is_made(photos):
    variants = {"small": settings(photos), "large": settings(photos, input_px=1 << 17)}
    verdicts = compare_work(variants, "small")
    fitting = hardware.memory_bytes() // (3 * 4 << 34)
    assert verdicts["small"] == SAME
    assert verdicts["large"][0] == "failed"
    assert re.search(
        rf"batch_size must be at most {fitting} at input_px 131072, so that one batch fits into "
        r"memory \(.+B\), got 8 \(1\.\d TB\); use a smaller",
        verdicts["large"][1],
    )
