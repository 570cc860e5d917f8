"""A variant that goes wrong becomes a row with its reason, and costs no finished row."""

import itertools
import os
import re
import signal
from collections import Counter

import numpy as np
import pytest
import torch
from jpegs import encode, photo, with_segment
from kernel import FORKS
from small import compare

import labkit as lab
from labkit.contracts import Skip
from labkit.machine import hardware
from labkit.machine.page_cache import can_evict
from labkit.parts.decoding import decode_opencv
from labkit.parts.loading import load_with_torch
from labkit.parts.packing.folder import open_folder, write_folder
from labkit.parts.storage import locate
from labkit.pipeline import shuffled_images
from labkit.records import Hardware
from labkit.resolve import source_folder
from labkit.runs import epoch_trials
from labkit.runs.check_run import check_run
from labkit.runs.launcher import Launcher
from labkit.settings import AS_PUBLISHED

TOO_MANY = 1 << 47  # bytes: more than a process can address
COMMENT = 0xFE


class Said(list):
    """What a run says of its progress."""

    shown = False
    say = list.append

    def __getattr__(self, name):
        return lambda *given, **named: None


def test_a_row_with_another_part_in_memory_than_asked_does_not_count(photos, tmp_path):
    # No number of eight images comes close to a twentieth of their bytes.
    variants = {"none": {"cache": 0}, "a few": {"cache": 6}}
    run = compare(photos, tmp_path, variants, base={"storage": "modelled_hdd"})
    assert {row.variant: row.normalized_time is None for row in run.summary.rows} == {
        "none": False,
        "a few": True,
    }
    assert any(
        "not 6 % cached: 0.0 % of the data was in memory before epoch 1" in note
        for note in run.summary.notes
    )


def test_a_platform_without_fork_and_fadvise_spawns_and_stays_warm(photos, monkeypatch):
    # What macOS and Windows lack.
    monkeypatch.setattr(hardware, "can_fork", lambda: False)
    monkeypatch.delattr(os, "posix_fadvise")
    chosen = lab.experiment("preprocessing", data=str(photos), device="simulated")
    info, _ = check_run(chosen, "quick", None)
    for settings in info.variants.values():
        assert (settings.multiprocessing_context, settings.cache) == ("spawn", "warm")


def test_a_skipped_variants_batch_size_does_not_limit_the_others(photos, tmp_path):
    # No batch of 64 is in 24 images, but this one cannot run on a CPU.
    skipped = {"batch_size": 64, "prefetcher": "data_prefetcher"}
    base = {"batch_size": 5, "images": None}
    finished = compare(photos, tmp_path, {"a": {}, "b": skipped}, base=base)
    assert {trial.status for trial in finished.trials} == {"ok"}
    assert set(finished.info.skipped) == {"b"}
    assert finished.info.calibration.images == 20


# --- whatever goes wrong --------------------------------------------------------------------


def own_parts():
    """Parts of the user's own; functions in a function travel without this module."""

    def greedy(jpeg):
        if torch.utils.data.get_worker_info() is not None:  # the checks have no workers
            np.empty(TOO_MANY, np.uint8)
        return decode_opencv(jpeg)

    def breaks(jpeg):
        if torch.utils.data.get_worker_info() is not None:
            raise ValueError("image must be what it was")
        return decode_opencv(jpeg)

    def turned(jpeg):
        return decode_opencv(jpeg)[:, :, ::-1].copy()

    def dies(source, settings):
        # As a library that was built for another processor.
        os.kill(os.getpid(), signal.SIGILL)

    def loads(change):
        """A loader whose first batch, all that the checks look at, is right."""

        def load(source, settings):
            loader = load_with_torch(source, settings)

            class Changed:
                def __iter__(self):
                    yield from change(list(loader))

            return Changed()

        return load

    def later(spoil):
        def change(batches):
            first, *others = batches
            return [first, *({**batch, "image": spoil(batch["image"])} for batch in others)]

        return loads(change)

    def noise(image):
        """Random pixels of the same mean and spread."""
        return image.mean() + image.std() * torch.randn(image.shape)

    decoders = {"greedy": greedy, "breaks": breaks, "turned": turned, "broken": lambda jpeg: None}
    loaders = {
        "dies": dies,
        "short": loads(lambda batches: batches[:-1] or batches),
        "black": later(lambda image: image * 0 - 1.8),
        "noise": later(noise),
        "bgr": later(lambda image: image.flip(1)),
    }
    return decoders, loaders


HONEST = {
    "good": {},
    "pillow": {"decoder": "pillow"},
    "scaled": {"decoder": "simplejpeg_scaled"},
    "in a thread": {"prefetcher": "prefetch_generator"},
    "resized by pillow": {"preprocessor": "classification_pillow"},
}


@pytest.fixture(scope="module")
def faulty(photos, tmp_path_factory):
    """A run of honest variants beside others that each go wrong in their own way."""
    decoders, loaders = own_parts()
    with pytest.MonkeyPatch.context() as patch:
        for name, part in decoders.items():
            patch.setitem(lab.DECODERS, name, part)
        for name, part in loaders.items():
            patch.setitem(lab.LOADERS, name, part)
        if not FORKS:
            del loaders["dies"]  # signals say who was killed
        variants = {
            **HONEST,
            **{name: {"decoder": name} for name in decoders},
            **{name: {"loader": name} for name in loaders},
        }
        base = {"preprocessor": "classification", "num_workers": 1}
        return compare(photos, tmp_path_factory.mktemp("results"), variants, base=base)


def test_what_goes_wrong_is_told_apart_and_the_rest_is_measured(faulty):
    assert faulty.info.status == "finished"
    rows = {row.variant: row for row in faulty.summary.rows}
    assert {name for name, row in rows.items() if row.status == "ok"} == set(HONEST)
    assert {row.blocks for row in rows.values() if row.status == "ok"} == {1}
    assert {row.normalized_time for row in rows.values() if row.status != "ok"} == {None}
    assert "batch_size must leave room in memory, got 4 (" in rows["greedy"].reason
    reason = rows["breaks"].reason
    assert re.fullmatch(r"ValueError: \S+\d\d.jpg: image must be what it was", reason)
    assert "the loader must deliver the epoch's 8 images, got 4" in rows["short"].reason
    assert "not the same work as good: image must differ" in rows["turned"].reason
    if "dies" in rows:
        killed = "the trial's process was killed by SIGILL; see worker.log"
        assert rows["dies"].reason == killed
    assert (rows["broken"].status, faulty.info.excluded) == ("failed", ())
    # After it was tried once more, and never timed.
    tried = Counter(trial.variant for trial in faulty.trials)
    assert (tried["greedy"], tried["turned"]) == (2, 1)


@pytest.mark.parametrize("skipped", [(0, 2), (0, 1)], ids=["once a block", "twice"])
def test_a_trial_that_is_skipped_is_tried_once_more(photos, tmp_path, monkeypatch, skipped):
    reason, attempts = "cold data must have at most 2.0 % in memory, but 3.1 %", itertools.count()
    measure_epochs = epoch_trials.measure_epochs

    def measure(run, label):
        if label == "v" and next(attempts) in skipped:
            raise Skip(reason)
        return measure_epochs(run, label)

    monkeypatch.setattr(epoch_trials, "measure_epochs", measure)
    run = compare(photos, tmp_path, {"base": {}, "v": {}}, blocks=2)
    row = run.summary.rows[1]
    if skipped == (0, 2):
        assert (row.status, row.blocks) == ("ok", 2)
        assert f"v: skipped 2×, last: {reason}" in run.summary.notes
    else:
        assert (row.status, row.reason) == ("skipped", reason)


@pytest.mark.parametrize("job", ["measure_rate", "compare_work"])
def test_a_check_that_is_skipped_is_tried_once_more(photos, tmp_path, monkeypatch, job):
    run_job, skipped = Launcher.run, []

    def run_once_skipped(launcher, name, **arguments):
        if name == job and not skipped:
            skipped.append(name)
            raise Skip("cold data must have at most 2.0 % in memory, but 3.1 %")
        return run_job(launcher, name, **arguments)

    monkeypatch.setattr(Launcher, "run", run_once_skipped)
    run = compare(photos, tmp_path, {"base": {}, "v": {}}, blocks=1)
    assert [row.status for row in run.summary.rows] == ["ok", "ok"]
    assert skipped == [job]


def test_other_pixels_are_found_out_without_any_loss(faulty):
    reasons = {row.variant: row.reason for row in faulty.summary.rows}
    pattern = (
        r"not the same work as good: the mean of image's \w+ in the last batch of epoch 1 "
        r"must be within \S+ of \S+, got \S+"
    )
    for name in ("black", "noise", "bgr"):
        assert re.fullmatch(pattern, reasons[name])


def test_other_pixels_are_found_out_in_batches_of_another_size(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(lab.LOADERS, "black", own_parts()[1]["black"])
    variants = {"good": {}, "half": {"batch_size": 2}}
    variants["black"] = {"batch_size": 2, "loader": "black"}
    base = {"preprocessor": "classification"}
    rows = {r.variant: r for r in compare(photos, tmp_path, variants, base=base).summary.rows}
    assert (rows["half"].status, rows["black"].status) == ("ok", "failed")
    assert "not the same work as good: the mean of image's" in rows["black"].reason


def test_rows_of_a_scaled_decoder_say_that_the_pixels_are_others(faulty):
    labels = {row.variant: row.labels.get("images", "") for row in faulty.summary.rows}
    assert labels["good"] == ""
    assert labels["scaled"] == ("decoded at a reduced size of 64 px or more, so other pixels")


def test_what_any_decoder_refuses_is_left_out_for_every_variant_and_made_up_for(
    photos, tmp_path, monkeypatch
):
    def picky(jpeg):
        if b"\xff\xfe" in jpeg[:64]:
            raise ValueError("comments are not supported")
        return decode_opencv(jpeg)

    folder = tmp_path / "own"
    folder.mkdir()
    for path in sorted((photos / "images").iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())
    base = {"images": 16, "on_bad_image": "skip"}
    paths = sorted(folder.iterdir())
    order = [int(i) for i in shuffled_images(lab.Settings(**base), len(paths))]
    bad = [order[place] for place in (3, 5, 10, 17)]  # in the first look, and beyond it
    commented, linked, *empty = [paths[index] for index in bad]
    commented.write_bytes(with_segment(encode(photo()), COMMENT, b"words"))
    linked.unlink()
    linked.symlink_to("nowhere.jpg")
    for path in empty:
        path.write_bytes(b"")
    monkeypatch.setattr("labkit.runs.check_images.FIRST_LOOK_IMAGES", 8)
    monkeypatch.setitem(lab.DECODERS, "picky", picky)
    variants = {"opencv": {}, "picky": {"decoder": "picky"}}
    finished = compare(folder, tmp_path / "results", variants, base=base)
    assert sorted(finished.info.excluded) == sorted(bad)
    assert {(trial.status, trial.images) for trial in finished.trials} == {("ok", 16)}
    assert {trial.unreadable_images for trial in finished.trials} == {4}
    assert "4 unreadable images left out for all variants" in finished.summary.notes
    listed = finished.info.unreadable
    assert [line.partition(".jpg")[0] for line in listed] == [
        str(paths[index].with_suffix("")) for index in finished.info.excluded
    ]
    assert f"{commented}: comments are not supported" in listed
    assert f"{linked}, a broken link: No such file or directory" in listed


def test_unreadable_images_are_remembered_by_the_manifest_and_decoded_again(photos, tmp_path):
    reader, data = open_folder(photos), tmp_path / "data"
    samples = [(reader.name(i), *reader.read(i)) for i in range(len(reader))]
    name, jpeg, boxes = samples[5]
    frame = jpeg.index(b"\xff\xc0") + 4
    refused = jpeg[:frame] + b"\x0c" + jpeg[frame + 1 :]  # twelve bits a color
    samples[5] = name, refused, boxes
    write_folder(samples, data, images=len(samples), about={})

    def run():
        said = Said()
        base = {"images": 20, "epochs": 1, "on_bad_image": "skip"}
        run = compare(data, tmp_path / "results", {"a": {}}, base=base, progress=said)
        assert {trial.images for trial in run.trials} == {20}
        return run.info.excluded, "decoding each with opencv" in " ".join(said)

    assert run() == ((5,), True)
    assert run() == ((5,), False)
    (data / samples[7][0]).write_bytes(samples[8][1])
    with pytest.raises(ValueError, match="data must be what its manifest says, got 1 changed file"):
        run()


def test_an_unreadable_image_keeps_its_number_in_packs_and_is_left_out(photos, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for path in sorted((photos / "images").iterdir()):
        (data / path.name).write_bytes(path.read_bytes())
    base = {
        "images": 8, "epochs": 1, "on_bad_image": "skip", "input_px": 256,
        "preprocessor": "classification",
    }  # fmt: skip
    images = len([*data.iterdir()])
    bad = int(shuffled_images(lab.Settings(**base), images)[2])
    sorted(data.iterdir())[bad].write_bytes(b"")
    ways = {"resized": "folder", "pixels": "raw", "sample": "raw", "jpeg": "pth"}
    variants = {
        "files": {},
        **{
            stored: {"packing": packing, "storage_format": stored}
            for stored, packing in ways.items()
        },
    }
    finished = compare(data, tmp_path / "results", variants, base=base)
    assert finished.info.excluded == (bad,)
    assert finished.info.failed == {}
    assert {(trial.variant, trial.status, trial.images) for trial in finished.trials} == {
        (label, "ok", 8) for label in variants
    }
    # A pack is data, too.
    for stored in ("resized", "jpeg"):
        packing = ways[stored]
        pack = source_folder(finished.info.variants[stored])
        how = {"packing": packing, "storage_format": stored}
        again = compare(pack, tmp_path / stored, {"a": how}, base=base)
        assert again.info.excluded == (bad,)


# --- storage --------------------------------------------------------------------------------


@pytest.fixture
def copy_in_memory(photos, tmp_path, monkeypatch):
    """The folder of a run's copy in memory; no labkit.toml names any media here."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this platform has no /dev/shm")
    (tmp_path / "lab").mkdir()
    monkeypatch.chdir(tmp_path / "lab")
    return locate("tmpfs", photos).copy


def assert_gone(copy):
    assert not copy.exists()
    assert not copy.with_name(f"{copy.name}.lock").exists()


def test_a_copy_in_memory_beside_the_disk_and_a_disk_that_is_not_there(
    photos, tmp_path, copy_in_memory
):
    finished = compare(
        photos,
        tmp_path,
        {"here": {"cache": "warm"}, "memory": {"storage": "tmpfs", "cache": "warm"},
         "spinning": {"storage": "hdd"}},
    )  # fmt: skip
    assert finished.info.status == "finished"
    measured = [trial for trial in finished.trials if trial.status == "ok"]
    assert Counter(trial.variant for trial in measured) == {"here": 2, "memory": 1}
    assert all(Hardware("storage") in trial.hardware for trial in measured)
    facts = finished.info.storages
    assert set(facts) == {"here", "tmpfs"}
    size_bytes = sum(path.stat().st_size for path in photos.rglob("*") if path.is_file())
    assert facts["here"].copied_bytes is None
    assert (facts["tmpfs"].copied_bytes, facts["tmpfs"].filesystem) == (size_bytes, "tmpfs")
    assert not any(its.rates for its in facts.values())
    assert_gone(copy_in_memory)
    rows = {row.variant: row for row in finished.summary.rows}
    assert (rows["spinning"].status, rows["spinning"].normalized_time) == ("skipped", None)
    assert rows["spinning"].reason == (
        "hdd is not named on this machine; name a folder on it with: "
        "labkit doctor --write --hdd DIR"
    )


def test_a_model_never_stands_beside_measured_media(photos, tmp_path):
    message = (
        "storage must be modelled for all variants or for none, got here on real storage; "
        "a model's figures must not stand beside measured ones"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        compare(
            photos,
            tmp_path,
            {"here": {}, "model": {"storage": "modelled_ssd"}, "named": {"storage": "hdd"}},
        )
    assert not (tmp_path / "test").exists()


# --- as in the document ---------------------------------------------------------------------


def test_as_in_the_document_each_runs_once_in_order(photos, tmp_path):
    left = {"cache": "as found"}
    finished = compare(
        photos,
        tmp_path,
        {
            "original": {"cache": "cold" if can_evict() else "warm"},
            "prefetched": {"prefetcher": "data_prefetcher", **left},
            "both": {"prefetcher": "both", **left},
            "original, again": left,
        },
        protocol=AS_PUBLISHED,
        base={"device": "simulated", "step": "timed", "gpu_images_per_s": 5000.0, "epochs": 2},
    )
    order = ["original", "prefetched", "both", "original, again"]
    assert [trial.status for trial in finished.trials] == ["ok"] * 4
    assert [trial.variant for trial in finished.trials] == order
    assert [trial.role for trial in finished.trials] == ["A1", "", "", ""]
    # Two epochs of two batches of four images.
    assert [trial.images for trial in finished.trials] == [16] * 4
    for trial in finished.trials:
        share = trial.cache_proof["resident_share_before"]
        if share is not None and can_evict():  # the first starts cold and leaves all in memory
            assert (share <= 0.02) is (trial.variant == "original")
            assert (share >= 0.98) is (trial.variant != "original")
    summary = finished.summary
    assert [row.variant for row in summary.rows] == order
    assert {row.status for row in summary.rows} == {"ok"}
    assert {row.verdict for row in summary.rows} == {""}
    assert (summary.n_blocks, summary.noise_floors[""].ratio, summary.judged) == (1, None, False)
    assert any(
        note.startswith("as in the document: variants in its order") for note in summary.notes
    )


def test_batches_of_all_sizes_are_trained_on_by_the_same_device(photos, tmp_path):
    base = {"device": "simulated", "step": "timed", "gpu_images_per_s": 5000.0}
    sizes = {"4": {}, "8": {"batch_size": 8}}
    found = compare(photos, tmp_path, sizes, base)
    speeds = {trial.variant: trial.settings["gpu_images_per_s"] for trial in found.trials}
    # 4 × 0.2 ms, of which a tenth does not grow with the batch.
    assert speeds == {"4": 5000.0, "8": pytest.approx(8 / (0.00008 + 8 * 0.00018))}
