"""Rivals: loaders of other libraries do torch's work, and end as cleanly; or say why not.

Without the extra most of this is skipped.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from jpegs import encode, exif, photo, with_segment
from kernel import needs_fork
from small import completed

from labkit.analysis.equal_work import difference
from labkit.analysis.thresholds import AVERAGED_TOLERANCE_LEVELS
from labkit.batches import classifier_batch
from labkit.contracts import Skip, open_library
from labkit.parts.loading import LOADERS
from labkit.parts.loading.dali import DaliLoader
from labkit.parts.loading.source import Outside
from labkit.pipeline import open_loader
from labkit.resolve import resolve
from labkit.runs.check_equal_work import compare_work
from labkit.runs.launcher import Launcher
from labkit.runs.packs import ensure_pack
from tests.parts.loading.test_loading import assert_nothing_left
from tests.processes import PATIENCE_S

OTHERS = [name for name, its in LOADERS.items() if its.needs and not its.needs_gpu]
NORMALIZING = sorted(
    name for name in OTHERS if LOADERS[name].makes_samples and not LOADERS[name].leaves_uint8
)
OWN_ORDER = [*(name for name in NORMALIZING if LOADERS[name].has_own_order), "webdataset"]
IN_ORDER = [*(name for name in NORMALIZING if name not in OWN_ORDER), "spdl"]
CROPPING = ["tf_data", "dali_cpu", "spdl_decoder"]
OUR_SAMPLES = ["spdl", "webdataset"]
ONE_OF_EACH = ["tf_data", "dali_cpu", "spdl", "spdl_decoder", "webdataset"]
BATCH_SIZE, INPUT_PX = 4, 64
SPECS = classifier_batch(BATCH_SIZE, INPUT_PX)


def rivals(names):
    """Parameters of a test: those whose library is missing are skipped."""
    return [
        pytest.param(name, marks=pytest.mark.needs_rivals(LOADERS[name].needs)) for name in names
    ]


def settings(data, loader, **changes):
    of_pixels = LOADERS[loader].leaves_uint8
    small = {
        "num_workers": 2, "device": "cpu", "packing": LOADERS[loader].reads or "folder",
        "preprocessor": "classification_crop_on_device" if of_pixels else "classification",
    }  # fmt: skip
    return completed(data=str(data), loader=loader, **{**small, **changes})


def opened(data, loader, **changes):
    return open_loader(resolve(settings(data, loader, **changes)))


def arrays(batches):
    return [{name: tensor.numpy() for name, tensor in batch.items()} for batch in batches]


def ids(batches):
    return [int(i) for batch in batches for i in batch["sample_id"]]


def torchs(data, epoch=0, **changes):
    source, loader = opened(data, "torch", num_workers=0, **changes)
    source.order.epoch = epoch
    return arrays(loader)


@pytest.fixture(scope="module")
def packed(photos, tmp_path_factory):
    """The photos, and beside them a pack of them in several shards."""
    data = tmp_path_factory.mktemp("packed") / "photos"
    shutil.copytree(photos, data)
    for loader in ("tf_data_tfrecord", "webdataset"):
        ensure_pack(settings(data, loader))
    return data


def seen(**kinds):
    """Files of a data set whose photographs are all different, by what is special about them."""
    return {name: make(photo().rotate(7 * i)) for i, (name, make) in enumerate(kinds.items())}


KINDS = {
    "as it is": seen(a=encode, b=encode),
    "turned by EXIF": seen(
        a=lambda image: with_segment(encode(image), 0xE1, exif(3)),
        b=lambda image: with_segment(encode(image), 0xE1, exif(6)),
    ),
    "grey": seen(a=lambda image: encode(image.convert("L"))),
    "full chroma": seen(a=lambda image: encode(image, subsampling=0)),
}


@pytest.mark.needs_rivals
class TestTheSameWork:
    @pytest.mark.parametrize("name", rivals(IN_ORDER))
    def test_every_epoch_has_torchs_batches_in_torchs_order(self, photos, name):
        source, loader = opened(photos, name, batch_size=5)
        specs = classifier_batch(5, INPUT_PX)
        for epoch in range(2):
            source.order.epoch = epoch
            found, wanted = arrays(loader), torchs(photos, epoch, batch_size=5)
            assert len(found) == len(wanted) == 4  # of 24 images; what is left over is left out
            for batch, reference in zip(found, wanted):
                assert {n: a.dtype for n, a in batch.items()} == {
                    n: a.dtype for n, a in reference.items()
                }
                assert difference(batch, reference, specs) == ""

    @pytest.mark.parametrize("name", rivals(OWN_ORDER))
    def test_an_order_of_its_own_still_has_every_image_once(self, packed, name):
        source, loader = opened(packed, name)
        reference = {int(i): (image, label) for batch in torchs(packed) for i, image, label in
                     zip(batch["sample_id"], batch["image"], batch["label"])}  # fmt: skip
        orders = []
        for source.order.epoch in range(2):
            batches = arrays(loader)
            orders.append(ids(batches))
            assert sorted(orders[-1]) == list(range(24))
            for batch in batches:
                wanted = [reference[int(i)] for i in batch["sample_id"]]
                same = {
                    "image": np.stack([image for image, _ in wanted]),
                    "label": np.array([label for _, label in wanted]),
                    "sample_id": batch["sample_id"],
                }
                assert difference(batch, same, SPECS) == ""
        shuffles = name in ("tf_data_as_published", "webdataset")
        assert (orders[0] != orders[1]) is shuffles
        assert (orders[0] == list(range(24))) is (name == "tf_data_tfrecord_one_by_one")

    @pytest.mark.parametrize("name", rivals(["tf_data", "dali_cpu", "spdl"]))
    def test_a_batch_that_is_kept_is_not_written_to_again(self, photos, name):
        source, loader = opened(photos, name)
        kept = []
        for epoch in range(3):
            source.order.epoch = epoch
            kept += list(loader)
        wanted = [batch for epoch in range(3) for batch in torchs(photos, epoch)]
        for batch, reference in zip(arrays(kept), wanted, strict=True):
            assert difference(batch, reference, SPECS) == ""

    @pytest.mark.parametrize("name", rivals([*NORMALIZING, *OUR_SAMPLES]))
    def test_the_gate_lets_them_pass(self, packed, name):
        variants = {each: settings(packed, each, batch_size=24) for each in ("torch", name)}
        assert compare_work(variants, "torch") == dict.fromkeys(variants, ("ok", ""))

    @pytest.mark.parametrize("name", rivals([*CROPPING, *OUR_SAMPLES]))
    def test_random_crops_pass_too_and_those_of_another_epoch_do_not(
        self, packed, name, monkeypatch
    ):
        how = {"preprocessor": "classification_crop_on_device", "decoder": "simplejpeg"}
        variants = {each: settings(packed, each, batch_size=24, **how) for each in ("torch", name)}
        assert compare_work(variants, "torch") == dict.fromkeys(variants, ("ok", ""))
        if name in CROPPING:
            monkeypatch.setattr(Outside, "crops", lambda self, source: self.draw_crops(9))
            status, reason = compare_work(variants, "torch")[name]
            assert status == "failed"
            assert "not the same work as torch: image must differ" in reason

    @pytest.mark.parametrize("name", rivals(CROPPING))
    def test_every_epoch_has_its_own_crops_in_torchs_order(self, photos, name):
        how = {"preprocessor": "classification_crop_on_device", "decoder": "simplejpeg"}
        source, loader = opened(photos, name, **how)
        for epoch in range(3):  # one more than the settings have
            source.order.epoch = epoch
            wanted = torchs(photos, epoch, **how)
            for batch, reference in zip(arrays(loader), wanted, strict=True):
                assert batch["sample_id"].tolist() == reference["sample_id"].tolist()
                assert batch["label"].tolist() == reference["label"].tolist()
                assert batch["pixels"].dtype == np.uint8
                apart = batch["pixels"].astype(float) - reference["pixels"]
                assert np.abs(apart).mean() < AVERAGED_TOLERANCE_LEVELS

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_of_jpeg_becomes_the_same_pixels(self, kind, tmp_path):
        for name, jpeg in KINDS[kind].items():
            (tmp_path / f"{name}.jpg").write_bytes(jpeg)
        loaders = ("torch", "threads", "tf_data", "tf_data_as_published", "dali_cpu")
        variants = {name: settings(tmp_path, name, batch_size=len(KINDS[kind])) for name in loaders}
        assert compare_work(variants, "torch") == dict.fromkeys(variants, ("ok", ""))


@pytest.mark.needs_rivals
def test_tensorflow_reads_tfrecord(packed):
    import tensorflow as tf

    pack = resolve(settings(packed, "tf_data_tfrecord")).reader
    assert len(pack.paths) == 2
    text = tf.io.FixedLenFeature([], tf.string)
    found = [
        tf.io.parse_single_example(record, {"image/encoded": text, "image/filename": text})
        for record in tf.data.TFRecordDataset([str(path) for path in pack.paths])
    ]
    files = sorted((packed / "images").iterdir())
    assert [row["image/encoded"].numpy() for row in found] == [file.read_bytes() for file in files]
    names = [Path(os.fsdecode(row["image/filename"].numpy())).name for row in found]
    assert names == [file.name for file in files]


@pytest.mark.needs_rivals
class TestEnding:
    @pytest.mark.parametrize("how", [{}, {"pin_memory": True, "device": "simulated"}])
    @pytest.mark.parametrize("name", rivals(ONE_OF_EACH))
    def test_breaking_off_again_and_again_leaves_nothing(self, packed, name, how):
        assert_nothing_left(opened(packed, name, **how)[1], times=5)

    @pytest.mark.parametrize("name", rivals(ONE_OF_EACH[:-1]))
    def test_a_file_that_is_no_image_ends_the_epoch_with_an_error(self, photos, tmp_path, name):
        data = tmp_path / "data"
        shutil.copytree(photos, data)
        _, loader = opened(data, name)
        for file in (data / "images").iterdir():
            file.write_bytes(b"no image")
        with pytest.raises(Exception, match=r"(?i)image|decod"):
            list(loader)

    @needs_fork
    def test_forked_trials_load_and_what_they_read_is_counted(self, photos, tmp_path):
        read_bytes = 2 * sum(file.stat().st_size for file in photos.rglob("*.jpg"))
        crcs = set()
        with Launcher(tmp_path / "log") as launcher:
            for name in ("torch", "tf_data", "dali_cpu"):
                wanted = asdict(settings(photos, name, device="simulated"))
                wanted["gpu_images_per_s"] = 10_000
                wanted |= {"cache": "as found", "images": 24}
                measured = launcher.run("measure", settings=wanted, excluded=[])
                assert measured["cache_proof"]["logical_read_bytes"] >= read_bytes, name
                crcs.add(tuple(epoch["last_ids_crc"] for epoch in measured["epochs"]))
        assert len(crcs) == 1  # the same images last, in both epochs


class FakePipeline:
    """Two batches of numbers, and the arguments it was run with."""

    def __init__(self):
        self.asked = []

    def reset(self):
        pass

    def run(self, *asked, **named):
        if len(self.asked) == 2:
            raise StopIteration
        self.asked.append((asked, named))
        return [SimpleNamespace(as_tensor=lambda: np.arange(3.0)) for _ in range(3)]


@pytest.mark.parametrize("on_gpu", [True, False])
def test_dali_hands_its_outputs_to_the_stream_that_computes(on_gpu, monkeypatch):
    made, loader = FakePipeline(), object.__new__(DaliLoader)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the stream that computes")
    loader._on_gpu, loader._entry = on_gpu, "image"
    assert len(list(loader._batches(made, None))) == 2
    assert made.asked == [(("the stream that computes",) if on_gpu else (), {})] * 2


@pytest.mark.needs_cuda
@pytest.mark.needs_rivals
def test_dalis_batches_on_the_gpu_stay_whole_while_queued_steps_read_them(photos):
    settings_on_gpu = {"device": "cuda", "batch_size": 4, "pin_memory": True}
    source, loader = opened(photos, "dali", **settings_on_gpu)
    sums, wanted = [], []
    for epoch in range(3):
        source.order.epoch = epoch
        for batch in loader:
            torch.cuda._sleep(20_000_000)  # a step of some 10 ms, which nothing waits for
            sums.append((batch["sample_id"], batch["image"].double().mean()))
            del batch
        wanted += torchs(photos, epoch, batch_size=4)
    for (numbers, mean), reference in zip(sums, wanted, strict=True):
        assert numbers.tolist() == reference["sample_id"].tolist()
        assert mean.item() == pytest.approx(reference["image"].mean(), abs=0.05)


class TestReasons:
    @pytest.mark.parametrize(
        ("name", "changes", "message"),
        [
            ("dali", {"preprocessor": "vectorized"},
             "the loader dali preprocesses by itself, and can do classification, "
             "classification_crop_on_device, not vectorized"),
            ("tf_data", {"preprocessor": "classification_pillow"},
             "classification_crop_on_device, not classification_pillow; choose preprocessor"),
            ("spdl_decoder", {"preprocessor": "classification"},
             "and can do classification_crop_on_device, not classification; choose preprocessor"),
            ("webdataset", {"packing": "raw"},
             "the loader webdataset reads JPEGs by itself from the packing tar, got raw with jpeg"),
            ("tf_data_tfrecord", {"packing": "folder"},
             "reads JPEGs by itself from the packing tfrecord, got folder"),
            ("dali_cpu", {"storage": "modelled_ssd"},
             "reads files by itself, so it cannot wait for modelled_ssd; choose a real disk"),
            ("tf_data", {"jitter_ms": 40},
             "jitter_ms must be 0 with the loader tf_data, which reads files by itself, got 40"),
            ("dali", {}, "the loader dali decodes and preprocesses on the GPU, got device cpu; "
             "choose device cuda, or the loader dali_cpu"),
            ("dali", {"device": "simulated"}, "got device simulated; choose device cuda"),
        ],
    )  # fmt: skip
    def test_what_a_rival_cannot_do_it_skips(self, photos, name, changes, message):
        with pytest.raises(Skip, match=message):
            opened(photos, name, **changes)

    @pytest.mark.parametrize("name", OTHERS)
    def test_without_its_library_each_is_skipped_and_says_what_installs_it(
        self, packed, name, monkeypatch
    ):
        monkeypatch.setitem(LOADERS, name, replace(LOADERS[name], needs="no_such_library.part"))
        reason = r"^no_such_library\.part is not installed; pip install 'torch-labkit\[rivals\]'$"
        with pytest.raises(Skip, match=reason):
            opened(packed, name)

    @pytest.mark.needs_rivals("spdl.io")
    def test_spdls_decoder_without_ffmpeg_is_skipped(self, photos, monkeypatch):
        import spdl.io.utils

        def find_none():
            raise RuntimeError("Failed to import libspdl")

        monkeypatch.setattr(spdl.io.utils, "get_ffmpeg_versions", find_none)
        with pytest.raises(Skip, match=r"^spdl\.io finds no FFmpeg 4 to 9; install its shared lib"):
            opened(photos, "spdl_decoder")

    def test_a_missing_and_a_broken_library_are_told_apart(self, tmp_path, monkeypatch):
        install = "pip install it"
        monkeypatch.syspath_prepend(tmp_path)
        broken = "a_rival_\\d is installed and broken \\({}\\); install it again: " + install
        for number, (content, reason) in enumerate(
            [
                (None, rf"a_rival_0 is not installed; {install}"),
                (
                    "raise ImportError('libcudart.so.9:\\n no such file')",
                    broken.format("ImportError: libcudart.so.9: no such file"),
                ),
                ("import a_package_it_needs", broken.format("ModuleNotFoundError: No module .*")),
            ]
        ):
            if content is not None:
                (tmp_path / f"a_rival_{number}.py").write_text(content)
            with pytest.raises(Skip, match=f"^{reason}$"):
                open_library(f"a_rival_{number}", "it")

    @pytest.mark.needs_rivals
    def test_nothing_of_them_is_imported_before_a_loader_is_opened(self):
        program = """
import importlib, sys
from labkit.runs import server
for module in server.JOBS.values():
    importlib.import_module(module)
print([name for name in sys.modules if name.startswith(("tensorflow", "nvidia.dali"))])
"""
        shown = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert (shown.stderr, shown.stdout) == ("", "[]\n")
