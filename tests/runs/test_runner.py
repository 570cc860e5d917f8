"""A variant that goes wrong becomes a row with its reason, and costs no finished row."""

import os
import re
import shutil
import threading
from collections import Counter
from dataclasses import replace

import pytest

import labkit as lab
from labkit.machine.page_cache import can_evict
from labkit.parts.storage import locate
from labkit.pipeline import shuffled_images
from labkit.runs.store import load_run, write_info
from labkit.settings import AS_PUBLISHED

SMALL = {
    "device": "emulated", "input_px": 64, "batch_size": 4, "images": 8, "num_workers": 1,
    "preprocessor": "vectorized",
}  # fmt: skip


def fails_in_workers(jpeg):
    """Decodes in preflight, which has no workers, and breaks in every trial."""
    import torch

    from labkit.parts.decoding import decode_opencv

    if torch.utils.data.get_worker_info() is not None:
        raise MemoryError("no room")
    return decode_opencv(jpeg)


def turns_colors_round(jpeg):
    from labkit.parts.decoding import decode_opencv

    return decode_opencv(jpeg)[:, :, ::-1].copy()


def leaves_out_the_last_batch(source, settings):
    from labkit.parts.loading import load_with_torch

    loader = load_with_torch(source, settings)

    class Short:
        def __iter__(self):
            yield from list(loader)[:-1]

    # The first batch, all that preflight looks at, is right.
    return Short() if settings.num_workers else loader


def run(photos, results, **changes):
    """Run a good baseline beside variants that each change one setting."""
    base = lab.Settings(data=str(photos), **SMALL)
    experiment = lab.Experiment(
        "test",
        question="What goes wrong?",
        variants={"good": base} | {name: replace(base, **one) for name, one in changes.items()},
        baseline="good",
    )
    return lab.run(experiment, blocks=2, results=results, progress=False)


@pytest.fixture(autouse=True)
def own_parts(monkeypatch):
    monkeypatch.setitem(lab.DECODERS, "fails_in_workers", fails_in_workers)
    monkeypatch.setitem(lab.DECODERS, "turns_colors_round", turns_colors_round)
    monkeypatch.setitem(lab.LOADERS, "short", leaves_out_the_last_batch)


def test_what_goes_wrong_is_told_apart_and_the_rest_is_measured(photos, tmp_path):
    finished = run(
        photos,
        tmp_path,
        breaks={"decoder": "fails_in_workers"},
        other_work={"decoder": "turns_colors_round"},
        less_work={"loader": "short"},
        good_too={"decoder": "pillow"},
    )
    assert finished.info["status"] == "finished"
    rows = {row.variant: row for row in finished.summary.rows}
    assert (rows["good"].status, rows["good_too"].status) == ("ok", "ok")
    assert rows["good_too"].blocks == 2
    assert "MemoryError" in rows["breaks"].reason  # after it was tried once more
    assert "not the same work as good: image must differ" in rows["other_work"].reason
    assert "the loader must deliver 16 images, got 8" in rows["less_work"].reason
    for name in ("breaks", "other_work", "less_work"):
        assert rows[name].status == "failed"
        assert rows[name].normalized_time is None
    # Never timed: preflight had refused it.
    assert [t.block for t in finished.trials if t.variant == "other_work"] == [0]


def test_cancel_keeps_finished_rows_and_resume_counts_nothing_twice(photos, tmp_path):
    cancel = threading.Event()
    base = lab.Settings(data=str(photos), **SMALL)
    experiment = lab.Experiment(
        "test",
        question="?",
        variants=lab.vary(base, decoder=["opencv", "pillow"]),
        baseline="opencv",
    )

    def cancel_after_two_rows():
        while not any(
            path.read_text().count("\n") >= 2 for path in tmp_path.glob("test/*/trials.jsonl")
        ):
            cancel.wait(0.02)
        cancel.set()

    watcher = threading.Thread(target=cancel_after_two_rows, daemon=True)
    watcher.start()
    cancelled = lab.run(experiment, results=tmp_path, cancel=cancel, progress=False)
    assert cancelled.info["status"] == "cancelled"
    assert [t.status for t in cancelled.trials][-1] == "cancelled"

    finished = lab.resume(cancelled.folder, progress=False)
    done = [(t.block, t.variant, t.role) for t in finished.trials if t.status == "ok"]
    assert len(done) == len(set(done)) == 3 * 3
    assert finished.info["calibration"] == cancelled.info["calibration"]


@pytest.fixture(scope="module")
def one_block(photos, tmp_path_factory):
    """A finished run with one variant that is not the same work as the others."""
    results = tmp_path_factory.mktemp("results")
    base = lab.Settings(data=str(photos), **SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(lab.DECODERS, "turns_colors_round", turns_colors_round)
        experiment = lab.Experiment(
            "test",
            question="?",
            variants=lab.vary(base, decoder=["opencv", "turns_colors_round"]),
            baseline="opencv",
        )
        return lab.run(experiment, blocks=1, results=results, progress=False)


def changed(run, folder, **changes):
    """A copy of a run whose run.json says something else."""
    shutil.copytree(run.folder, folder)
    write_info(folder, {**run.info, **changes})
    return folder


def test_resuming_never_measures_what_was_refused_as_other_work(one_block, tmp_path):
    resumed = lab.resume(changed(one_block, tmp_path / "run", blocks=2), progress=False)
    rows = {row.variant: row for row in resumed.summary.rows}
    assert rows["opencv"].status == "ok"
    assert rows["turns_colors_round"].status == "failed"
    assert "not the same work" in rows["turns_colors_round"].reason
    assert len([t for t in resumed.trials if t.status == "ok"]) == 4


def test_resuming_a_run_with_a_part_that_is_gone_lists_the_choices(one_block, monkeypatch):
    monkeypatch.delitem(lab.DECODERS, "turns_colors_round")
    with pytest.raises(ValueError, match=r"decoder must be one of .*, got 'turns_colors_round'"):
        lab.resume(one_block.folder, progress=False)


def test_resuming_a_run_with_a_setting_of_another_version_is_one_sentence(one_block, tmp_path):
    variants = {name: {**v, "turbo": 5} for name, v in one_block.info["variants"].items()}
    with pytest.raises(ValueError, match="known to this version of labkit, got turbo"):
        lab.resume(changed(one_block, tmp_path / "run", variants=variants), progress=False)


def test_resuming_on_other_data_or_another_machine_is_refused(one_block, tmp_path):
    data = {**one_block.info["data"], "manifest_hash": "other"}
    with pytest.raises(ValueError, match="data must be what the run began with"):
        lab.resume(changed(one_block, tmp_path / "data", data=data), progress=False)
    provenance = {**one_block.info["provenance"], "machine_id": "other"}
    with pytest.raises(ValueError, match="run must be resumed on the machine it began on"):
        lab.resume(changed(one_block, tmp_path / "m", provenance=provenance), progress=False)


def test_unreadable_images_beyond_the_first_look_are_made_up_for(photos, tmp_path, monkeypatch):
    folder = tmp_path / "own"
    folder.mkdir()
    for path in sorted((photos / "images").iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())
    base = lab.Settings(data=str(folder), on_bad_image="skip", **{**SMALL, "images": 16})
    order = [int(i) for i in shuffled_images(base)]
    names = sorted(path.name for path in folder.iterdir())
    for place in (3, 10, 17):  # in the first look, beyond it, and among those that make up for it
        (folder / names[order[place]]).write_bytes(b"")
    monkeypatch.setattr("labkit.runs.checks.FIRST_LOOK_IMAGES", 8)
    experiment = lab.Experiment("test", question="?", variants={"a": base}, baseline="a")
    finished = lab.run(experiment, blocks=1, results=tmp_path / "results", progress=False)
    assert sorted(finished.info["excluded"]) == sorted(order[place] for place in (3, 10, 17))
    assert {trial.images for trial in finished.trials} == {32}


# --- storage --------------------------------------------------------------------------------

# A real device that is ready at once: what is looked at here is not how fast it is.
IDLE = {**SMALL, "device": "cpu", "step": "nothing", "num_workers": 0}


def compare(photos, results, variants, cancel=None, **changes):
    """Run variants that each change some settings of the same base; the first is the baseline."""
    base = lab.Settings(data=str(photos), **{**IDLE, **changes.pop("base", {})})
    experiment = lab.Experiment(
        "test",
        question="Where does the data lie?",
        variants={label: replace(base, **one) for label, one in variants.items()},
        baseline=next(iter(variants)),
        **changes,
    )
    return lab.run(experiment, blocks=2, results=results, cancel=cancel, progress=False)


@pytest.fixture
def nothing_named(tmp_path, monkeypatch):
    """A place where no labkit.toml names any media."""
    (tmp_path / "lab").mkdir()
    monkeypatch.chdir(tmp_path / "lab")
    return tmp_path / "lab"


@pytest.fixture
def copy_in_memory(photos, nothing_named):
    """The folder that a copy of the photographs in memory has for as long as a run takes."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this platform has no /dev/shm")
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
    assert finished.info["status"] == "finished"
    measured = [trial for trial in finished.trials if trial.status == "ok"]
    assert Counter(trial.variant for trial in measured) == {"here": 4, "memory": 2}
    assert {trial.labels["storage"] for trial in measured} == {"real"}
    facts = finished.info["storages"]
    assert set(facts) == {"here", "tmpfs"}
    size_bytes = sum(path.stat().st_size for path in photos.rglob("*") if path.is_file())
    assert facts["here"]["copied_bytes"] is None
    assert (facts["tmpfs"]["copied_bytes"], facts["tmpfs"]["filesystem"]) == (size_bytes, "tmpfs")
    assert [facts[name]["rates"] for name in facts] == [[], []]
    assert_gone(copy_in_memory)
    rows = {row.variant: row for row in finished.summary.rows}
    assert (rows["spinning"].status, rows["spinning"].normalized_time) == ("skipped", None)
    assert rows["spinning"].reason == (
        "hdd is not named on this machine; name a folder on it with: "
        "labkit doctor --write --hdd DIR"
    )


class CancelledWhen(threading.Event):
    """Is set as soon as something holds."""

    def __init__(self, holds):
        super().__init__()
        self.holds = holds

    def is_set(self):
        if self.holds():
            self.set()
        return super().is_set()


def test_a_run_that_is_cancelled_while_it_copies_leaves_nothing_in_memory(
    photos, tmp_path, copy_in_memory
):
    def half_copied():
        return len(list(copy_in_memory.rglob("*.jpg"))) >= 10

    cancel = CancelledWhen(half_copied)
    variants = {"here": {"cache": "warm"}, "memory": {"storage": "tmpfs", "cache": "warm"}}
    cancelled = compare(photos, tmp_path, variants, cancel)
    assert cancel.is_set()
    assert (cancelled.info["status"], cancelled.trials) == ("cancelled", ())
    assert_gone(copy_in_memory)


def test_a_baseline_on_a_disk_that_is_not_there_is_one_clear_error(photos, tmp_path, nothing_named):
    message = (
        "baseline 'spinning' must be able to run here, got: hdd is not named on this machine; "
        "name a folder on it with: labkit doctor --write --hdd DIR"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        compare(photos, tmp_path, {"spinning": {"storage": "hdd"}, "here": {}})
    (folder,) = (tmp_path / "test").iterdir()
    stopped = load_run(folder)
    assert (stopped.info["status"], stopped.info["reason"]) == ("failed", message)


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


# --- the same work to the end ---------------------------------------------------------------


def spoils_later_batches(spoil):
    """A loader whose first batch, all that preflight looks at, is right."""

    def load(source, settings):
        from labkit.parts.loading import load_with_torch

        loader = load_with_torch(source, settings)

        class Spoiled:
            def __iter__(self):
                for number, batch in enumerate(loader):
                    yield {**batch, "image": spoil(batch["image"])} if number else batch

        return Spoiled()

    return load


def blackened(image):
    return image * 0 - 1.8


def noise(image):
    """Random pixels of the same mean and spread."""
    import torch

    return image.mean() + image.std() * torch.randn(image.shape)


def test_other_pixels_are_found_out_without_any_loss_and_honest_variants_pass(
    photos, tmp_path, monkeypatch
):
    planted = {"black": blackened, "noise": noise, "bgr": lambda image: image.flip(1)}
    for name, spoil in planted.items():
        monkeypatch.setitem(lab.LOADERS, name, spoils_later_batches(spoil))
    honest = {
        "good": {},
        "pillow": {"decoder": "pillow"},
        "simplejpeg": {"decoder": "simplejpeg"},
        "simplejpeg, scaled": {"decoder": "simplejpeg_scaled"},
        "in a thread": {"prefetcher": "prefetch_generator"},
        "resized by pillow": {"preprocessor": "classification_pillow"},
    }
    finished = compare(
        photos,
        tmp_path,
        {**honest, **{name: {"loader": name} for name in planted}},
        base={"preprocessor": "classification"},
    )
    assert set(finished.info["failed"]) == set(planted)
    pattern = (
        r"not the same work as good: the mean of image's \w+ in the last batch of epoch 1 "
        r"must be within \S+ of \S+, got \S+"
    )
    for reason in finished.info["failed"].values():
        assert re.fullmatch(pattern, reason)
    rows = {row.variant: row for row in finished.summary.rows}
    assert {name for name, row in rows.items() if row.status == "ok"} == set(honest)


# --- as in the document ---------------------------------------------------------------------


class WithStreams:
    """A device that is ready at once and takes copies on a side stream."""

    label = "streams"
    emulated = False

    def __init__(self, profile, clock):
        import torch

        self.torch_device = torch.device("cpu")

    def put(self, batch, *, pinned, non_blocking, side_stream):
        from labkit.contracts import DeviceBatch

        return DeviceBatch(batch)

    def wait(self, batch):
        pass

    def synchronize(self):
        pass


def test_as_in_the_document_each_runs_once_in_order_and_its_loop_is_a_step_short(
    photos, tmp_path, monkeypatch
):
    monkeypatch.setitem(lab.DEVICES, "streams", WithStreams)
    left = {"cache": "as found"}
    finished = compare(
        photos,
        tmp_path,
        {
            "original": {"cache": "cold" if can_evict() else "warm"},
            "prefetched": {"prefetcher": "data_prefetcher_as_published", **left},
            "both": {"prefetcher": "both_as_published", **left},
            "original, again": left,
        },
        protocol=AS_PUBLISHED,
        base={"device": "streams"},
    )
    order = ["original", "prefetched", "both", "original, again"]
    assert [trial.status for trial in finished.trials] == ["ok"] * 8
    assert [trial.variant for trial in finished.trials] == order * 2
    assert [trial.role for trial in finished.trials] == ["A1", "", "", ""] * 2
    # Two epochs of two batches of four images, and those that leave out the last batch.
    images = {trial.variant: trial.images for trial in finished.trials}
    assert images == {"original": 16, "prefetched": 8, "both": 8, "original, again": 16}
    for trial in finished.trials:
        share = trial.cache_proof["resident_share_before"]
        if share is not None and can_evict():  # the first starts cold and leaves all in memory
            assert (share <= 0.02) is (trial.variant == "original")
            assert (share >= 0.98) is (trial.variant != "original")
    summary = finished.summary
    assert [row.variant for row in summary.rows] == order
    assert {row.status for row in summary.rows} == {"ok"}
    assert {row.verdict for row in summary.rows} == {""}
    assert (summary.n_blocks, summary.aa_ratio, summary.judged) == (2, None, False)
    assert any(
        note.startswith("as in the document: variants in its order") for note in summary.notes
    )
