"""Resolved settings: the parts that names stand for, their facts, and where the data is."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from small import completed

from labkit import pipeline
from labkit.contracts import Skip
from labkit.machine import hardware
from labkit.parts.decoding import Decoder
from labkit.parts.packing.remote import data_folder
from labkit.resolve import (
    PART_TYPES,
    TABLES,
    find_part,
    gather_facts,
    label_samples,
    open_data,
    record_facts,
    resolve,
    source_folder,
)


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


def test_a_decoder_says_what_differs_by_design_in_rows_and_where_its_pixels_are_of_no_use(
    monkeypatch,
):
    monkeypatch.setitem(TABLES["decoder"], "gray", Decoder(len, other_pixels="in gray"))
    gray = completed(decoder="gray", preprocessor="loops")
    assert label_samples(gray) == {"images": "decoded in gray, so other pixels"}
    assert gather_facts(vars(gray)).other_pixels == "in gray"
    resolve(gray)
    with pytest.raises(ValueError, match=r"storage_format must be 'jpeg' for the decoder gray"):
        resolve(replace(gray, packing="raw", storage_format="pixels"))


@pytest.mark.parametrize(
    ("stored", "label"),
    [
        ("small", "JPEGs scaled to 256 px beforehand, so other pixels"),
        ("yuv420", "YUV 4:2:0 planes of 256 px made beforehand, so other pixels"),
    ],
)
def test_what_is_stored_for_random_crops_of_224_px_is_labelled_with_256(stored, label):
    settings = completed(packing="mapped", storage_format=stored, input_px=224)
    assert label_samples(settings) == {"images": label}
    assert label_samples(replace(settings, input_px=512))["images"] == label.replace("256", "586")
    with pytest.raises(ValueError, match=r"storage_format must be jpeg or resized for the packing"):
        resolve(replace(settings, packing="folder"))


ON_SIDE_STREAM = {"prefetcher": "data_prefetcher_normalizing"}
PIXELS = {**ON_SIDE_STREAM, "preprocessor": "on_device", "step": "detector"}


@pytest.mark.parametrize(
    ("error", "choices", "message"),
    [
        *(
            (Skip, {setting: value},
             f"{setting} must be {plain} on the simulated GPU, which computes nothing, got "
             f"{value!r}; choose device cpu or cuda")
            for setting, value, plain in (("precision", "amp", "fp32"),
                                          ("memory_format", "channels_last", "contiguous"),
                                          ("compile_model", True, False))
        ),
        (Skip, {"compile_model": True, "device": "cpu"},
         "compile_model must be False here, where no C++ compiler is installed; install g++"),
        (Skip, {"precision": "amp", "device": "cpu"},
         "precision must be fp32 on a CPU without AVX-512, "),
        (ValueError, {"gpu_images_per_s": "a100"}, "one of resnet50_a100, resnet50_h100"),
        (Skip, {"gpu_images_per_s": 460, "device": "cpu"}, "which is as fast as it is"),
        (ValueError, {**ON_SIDE_STREAM, "preprocessor": "loops", "device": "cuda",
                      "step": "detector"}, "preprocessor must be one of on_device, "),
        (Skip, {**PIXELS, "step": "timed", "device": "simulated"},
         "one queue for all; choose device cuda"),
        (Skip, {**PIXELS, "device": "cpu"}, "the cpu device does not have"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_here_is_left_out(monkeypatch, tmp_path, error, choices, message):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(error, match=re.escape(message)):
        resolve(completed(**choices))


def test_a_cpu_that_computes_in_bfloat16_and_has_a_compiler_takes_all(monkeypatch):
    monkeypatch.setattr(hardware, "has_bfloat16", lambda: True)
    monkeypatch.setattr(hardware, "why_no_compiler", lambda: "")
    more = {"precision": "amp", "memory_format": "channels_last", "compile_model": True}
    resolve(completed(**more, device="cpu"))


@pytest.mark.parametrize("prefetcher", ["data_prefetcher_normalizing", "data_prefetcher"])
def test_batches_are_finished_on_the_side_stream_or_on_the_device(prefetcher):
    parts = resolve(completed(**{**PIXELS, "prefetcher": prefetcher}, device="cuda"))
    is_on_side_stream = prefetcher in ON_SIDE_STREAM.values()
    assert parts.finishes_on_side_stream is is_on_side_stream
    assert parts.finishes_on_device is not is_on_side_stream


# --- parts and their facts --------------------------------------------------------------------


@pytest.mark.parametrize("setting", PART_TYPES)
def test_a_bare_function_is_a_part_with_the_defaults_and_so_is_an_unknown_name(
    setting, monkeypatch
):
    kind = PART_TYPES[setting]
    monkeypatch.setitem(TABLES[setting], "mine", print)
    assert find_part(kind, "mine") == kind(print)
    assert find_part(kind, "of another version") == find_part(kind, None) == kind(None)


@pytest.mark.parametrize("setting", PART_TYPES)
def test_the_library_of_a_part_is_one_whose_version_is_recorded(setting):
    parts = [find_part(PART_TYPES[setting], name) for name in TABLES[setting]]
    assert {part.library for part in parts} <= {"", *hardware.LIBRARIES}


def test_a_part_of_the_users_own_says_itself_why_it_cannot_be_used(monkeypatch):
    class Careful(PART_TYPES["decoder"]):
        def why_not(self, chosen):
            if chosen.settings.input_px > 32:
                return "mine decodes no more than 32 px"
            return ""

    monkeypatch.setitem(TABLES["decoder"], "mine", Careful(print))
    with pytest.raises(Skip, match=r"^mine decodes no more than 32 px$"):
        resolve(completed(decoder="mine", input_px=64))
    assert resolve(completed(decoder="mine", input_px=32)).decode is print


def test_a_storage_and_a_packing_of_the_users_own_may_be_any_class(photos, monkeypatch):
    files = SimpleNamespace(open=TABLES["packing"]["folder"].open, stores=("jpeg",))
    disk = SimpleNamespace(directory=photos, needs_our_reader=False)
    monkeypatch.setitem(TABLES["packing"], "mine", files)
    monkeypatch.setitem(TABLES["storage"], "mine", lambda folder: disk)
    parts = resolve(completed(data=str(photos), packing="mine", storage="mine"))
    assert len(parts.reader) == len(open_data(parts.settings))


def test_a_run_keeps_the_facts_that_are_not_the_default():
    variants = {
        "plain": {"loader": "torch", "device": "cuda"},
        "resident": {"loader": "resident", "step": "nothing", "device": "cpu"},
        "rival": {"loader": "tf_data_tfrecord"},
        "any order": {"loader": "torch_any_order"},
        "scaled": {"decoder": "simplejpeg_scaled", "storage": "tmpfs", "device": "simulated"},
        "older": {"prefetcher": "both_as_published", "preprocessor": "on_device"},
        "newer": {"loader": "of another version", "device": "tpu"},
    }
    assert record_facts(variants) == {
        "plain": {},
        "resident": {"repeats_one_batch": True, "trains_nothing": True, "is_on_cpu": True},
        "rival": {"has_own_order": True, "loads_outside": True},
        "any order": {"order_varies": True},
        "scaled": {"decodes_scaled": True, "stays_in_memory": True, "is_simulated": True},
        "older": {"steps_short": 1, "finishes_on_device": True},
        "newer": {},
    }
    assert gather_facts(variants["resident"]).leaves_out == {"loading", "computing"}


# --- folders ----------------------------------------------------------------------------------


def test_a_pack_lies_beside_the_data_and_the_data_is_found_in_spite_of_it(photos):
    packed = completed(data=str(photos), packing="lmdb", storage_format="pixels", input_px=96)
    assert source_folder(packed) == photos.with_name(f"{photos.name}.packs") / "lmdb-pixels-96"
    assert source_folder(completed(data=str(photos))) == data_folder(str(photos)) == photos
    assert open_data(packed).root == photos


def test_where_a_pack_is_read_does_not_depend_on_whether_it_is_made_yet(tmp_path):
    (tmp_path / "disk").mkdir()
    data = tmp_path / "photos"
    how = {"packing": "raw", "storage": str(tmp_path / "disk")}
    before = resolve(completed(data=str(data), **how))
    assert (before.storage.directory, before.storage.copy) == (before.folder, None)
    before.folder.mkdir(parents=True)
    assert resolve(completed(data=str(data), **how)).storage == before.storage
