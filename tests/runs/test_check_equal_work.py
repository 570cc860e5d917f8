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


def settings(data, **changes):
    chosen = {"batch_size": 8, "device": "cpu", "decoder": "simplejpeg", **changes}
    return completed(data=str(data), preprocessor="classification", **chosen)


# --- decoders that make other pixels ------------------------------------------------------------


def test_a_scaled_decoder_is_let_through_and_wrong_colors_are_not(photos, monkeypatch):
    whole = settings(photos)
    variants = {"whole": whole, "scaled": replace(whole, decoder="simplejpeg_scaled")}
    assert compare_work(variants, "whole") == dict.fromkeys(variants, ("ok", ""))
    scaled = DECODERS["simplejpeg_scaled"]

    def other_colors(jpeg, at_least_px):
        return scaled(jpeg, at_least_px=at_least_px)[..., ::-1].copy()

    monkeypatch.setitem(DECODERS, "simplejpeg_scaled", replace(scaled, function=other_colors))
    status, reason = compare_work(variants, "whole")["scaled"]
    assert status == "failed"
    assert "not the same work as whole: image must differ" in reason


def test_pixels_that_differ_by_design_are_let_through_as_far_as_they_are_numbers(
    photos, monkeypatch
):
    color = settings(photos)

    def decode_gray(jpeg):
        return DECODERS["opencv"](jpeg)[..., 1:2].repeat(3, axis=2)

    variants = {name: replace(color, decoder=name) for name in ("simplejpeg", "gray", "mirrored")}
    monkeypatch.setitem(DECODERS, "gray", Decoder(decode_gray, other_pixels="in gray"))
    monkeypatch.setitem(
        DECODERS,
        "mirrored",
        Decoder(lambda jpeg: decode_gray(jpeg)[:, ::-1].copy(), other_pixels="in gray"),
    )
    verdicts = compare_work(variants, "simplejpeg")
    assert verdicts == dict.fromkeys(variants, ("ok", ""))
    # Decoders that say the same are compared with each other.
    del variants["simplejpeg"]
    status, reason = compare_work(variants, "gray")["mirrored"]
    assert status == "failed"
    assert "not the same work as gray: image must differ" in reason


def test_the_steps_of_the_textbook_do_the_same_work_and_other_crops_do_not(photos, monkeypatch):
    chosen = {
        "data": str(photos),
        "batch_size": 8,
        "input_px": 64,
        "device": "cpu",
        "num_workers": 1,
    }
    steps = lab.experiment("textbook", **chosen).settings
    variants = {label: completed(**asdict(step)) for label, step in steps.items()}
    for each in variants.values():
        ensure_pack(each, jobs=1)
    verdicts = compare_work(variants, "textbook")
    if why_missing("classification_crop_v2"):
        status, reason = verdicts.pop("textbook, torchvision v2")
        assert (status, reason.partition(";")[0]) == (
            "skipped", "torchvision.transforms.v2.functional is not installed",
        )  # fmt: skip
    assert verdicts == dict.fromkeys(verdicts, ("ok", ""))
    part = PREPROCESSORS["classification_crop"]

    def of_another_epoch(sample, input_px):
        return part(replace(sample, epoch=9), input_px)

    monkeypatch.setitem(
        PREPROCESSORS, "classification_crop", replace(part, function=of_another_epoch)
    )
    status, reason = compare_work(variants, "textbook")["with OpenCV"]
    assert status == "failed"
    assert "not the same work as textbook: image must differ" in reason


@pytest.mark.parametrize(("packing", "stored"), [("raw", "small"), ("mapped", "yuv420")])
def test_other_crops_of_what_is_stored_for_crops_are_not_the_same_work(
    packing, stored, photos, monkeypatch
):
    chosen = {"preprocessor": "classification_crop", "input_px": 128}
    original = replace(settings(photos), **chosen)
    changed = replace(original, packing=packing, storage_format=stored)
    ensure_pack(changed, jobs=1)
    variants = {"original": original, "stored": changed}
    assert compare_work(variants, "original") == dict.fromkeys(variants, ("ok", ""))
    part = PREPROCESSORS["classification_crop"]
    other = replace(part, function=lambda sample, px: part(replace(sample, epoch=9), px))
    monkeypatch.setitem(PREPROCESSORS, "other", other)
    status, reason = compare_work(
        {**variants, "stored": replace(changed, preprocessor="other")}, "original"
    )["stored"]
    assert status == "failed"
    assert "not the same work as original: image must differ" in reason


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


def test_pixels_of_the_same_images_are_compared_whatever_the_order(photos, monkeypatch):
    def load_reversed(source, settings):
        for batch in load_with_torch(source, settings):
            yield {name: tensor.flip(0) for name, tensor in batch.items()}

    monkeypatch.setitem(LOADERS, "reversed", Loader(load_reversed, has_own_order=True))
    whole = settings(photos)
    scaled = replace(whole, decoder="simplejpeg_scaled")
    expected = measure_psnr({"whole": whole, "scaled": scaled}, "whole")["scaled"]
    other = replace(scaled, loader="reversed")
    psnr_db = measure_psnr({"whole": whole, "scaled": other}, "whole")
    assert psnr_db == {"scaled": pytest.approx(expected)}
    psnr_db = measure_psnr({"whole": replace(whole, loader="reversed"), "scaled": scaled}, "whole")
    assert psnr_db == {"scaled": pytest.approx(expected)}


def test_pillow_and_opencv_may_average_a_crop_differently(photos):
    opencv = replace(settings(photos), preprocessor="classification_crop")
    variants = {"opencv": opencv}
    variants["pillow"] = replace(opencv, preprocessor="classification_crop_pillow")
    assert compare_work(variants, "opencv") == dict.fromkeys(variants, ("ok", ""))


# --- batches of another size --------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(8, 4), (4, 8), (4, 6)])
def test_batches_of_another_size_must_hold_the_same_images_and_pixels(photos, monkeypatch, sizes):
    base, other = (settings(photos, batch_size=size) for size in sizes)
    variants = {"base": base, "other": other, "ids": replace(other, loader="ids")}
    variants["pixels"] = replace(other, decoder="pixels")

    def reverse(source, settings):
        for batch in load_with_torch(source, settings):
            yield {name: tensor.flip(0) for name, tensor in batch.items()}

    monkeypatch.setitem(LOADERS, "ids", reverse)
    decode = DECODERS["simplejpeg"]
    monkeypatch.setitem(DECODERS, "pixels", lambda jpeg: 255 - decode(jpeg))
    verdicts = compare_work(variants, "base")
    assert verdicts["base"] == verdicts["other"] == ("ok", "")
    assert "not the same work as base: " in verdicts["ids"][1]
    assert "not the same work as base: image must differ" in verdicts["pixels"][1]


# --- memory -------------------------------------------------------------------------------------


def test_a_batch_larger_than_memory_is_refused_before_it_is_made(photos):
    variants = {"small": settings(photos), "large": settings(photos, input_px=1 << 17)}
    verdicts = compare_work(variants, "small")
    fitting = hardware.memory_bytes() // (3 * 4 << 34)
    assert verdicts["small"] == ("ok", "")
    assert verdicts["large"][0] == "failed"
    assert re.search(
        rf"batch_size must be at most {fitting} at input_px 131072, so that one batch fits into "
        r"memory \(.+B\), got 8 \(1\.\d TB\); use a smaller",
        verdicts["large"][1],
    )
