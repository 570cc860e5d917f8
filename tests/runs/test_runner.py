"""A variant that goes wrong becomes a row with its reason, and costs no finished row."""

import os
import re
import signal
from collections import Counter

import numpy as np
import pytest
import torch
from fakes import fake_info, fake_trial
from jpegs import encode, photo, with_segment
from kernel import FORKS
from small import compare

import labkit as lab
from labkit.analysis.summary import summarize
from labkit.contracts import Skip
from labkit.machine import hardware
from labkit.machine.page_cache import can_evict
from labkit.parts.decoding import decode_opencv
from labkit.parts.loading import load_with_torch
from labkit.parts.storage import locate
from labkit.pipeline import shuffled_images
from labkit.records import Hardware
from labkit.runs import epoch_trials
from labkit.runs.active_run import ActiveRun
from labkit.runs.check_run import check_run
from labkit.runs.launcher import Launcher, TrialFailed, TrialKilled
from labkit.runs.store import create_run, load_run
from labkit.settings import AS_PUBLISHED

TOO_MANY = 1 << 47  # bytes: more than a process can address
COMMENT = 0xFE
HAS_SHARED_MEMORY = os.access("/dev/shm", os.W_OK)


def test_a_platform_without_fork_and_fadvise_spawns_and_stays_warm(photos, monkeypatch):
    # What macOS and Windows lack.
    monkeypatch.setattr(hardware, "can_fork", lambda: False)
    monkeypatch.delattr(os, "posix_fadvise")
    chosen = lab.experiment("preprocessing", data=str(photos), device="simulated")
    info, _ = check_run(chosen, "quick", None)
    for settings in info.variants.values():
        assert (settings.multiprocessing_context, settings.cache) == ("spawn", "warm")


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
        "short": loads(lambda batches: batches[:-1] or batches),
        "black": later(lambda image: image * 0 - 1.8),
        "noise": later(noise),
        "bgr": later(lambda image: image.flip(1)),
    }
    if FORKS:  # signals say who was killed
        loaders["dies"] = dies
    return decoders, loaders


HONEST = {
    "good": {},
    "pillow": {"decoder": "pillow"},
    "scaled": {"decoder": "simplejpeg_scaled"},
    "in a thread": {"prefetcher": "prefetch_generator"},
    "resized by pillow": {"preprocessor": "classification_pillow"},
    "smaller batches": {"batch_size": 2},
    **({"in memory": {"storage": "tmpfs"}} if HAS_SHARED_MEMORY else {}),
}
NO_MEDIUM = (
    "hdd is not named on this machine; name a folder on it with: labkit doctor --write --hdd DIR"
)
OTHER_PIXELS = (
    r"not the same work as good: the mean of image's \w+ in the last batch of epoch 1 "
    r"must be within \S+ of \S+, got \S+"
)
REASONS = {
    "greedy": r".*batch_size must leave room in memory, got 4 \(.*",
    "breaks": r"ValueError: \S+\d\d.jpg: image must be what it was",
    "turned": "ValueError: not the same work as good: image must differ.*",
    "broken": ".+",
    "short": ".*the loader must deliver the epoch's 8 images, got 4.*",
    "dies": "the trial's process was killed by SIGILL; see worker.log",
    **dict.fromkeys(("black", "noise", "bgr", "black in smaller batches"), OTHER_PIXELS),
    # No batch of 64 is in 24 images: this one must not limit the others.
    "without streams": "data_prefetcher copies on a side stream, which the cpu device does not.*",
    "spinning": re.escape(NO_MEDIUM),
}
SKIPPED = {"without streams", "spinning"}


@pytest.fixture(scope="module")
def faulty(photos, tmp_path_factory):
    """A run of honest variants beside others that each go wrong in their own way."""
    decoders, loaders = own_parts()
    with pytest.MonkeyPatch.context() as patch:
        for name, part in decoders.items():
            patch.setitem(lab.DECODERS, name, part)
        for name, part in loaders.items():
            patch.setitem(lab.LOADERS, name, part)
        variants = {
            **HONEST,
            **{name: {"decoder": name} for name in decoders},
            **{name: {"loader": name} for name in loaders},
            "black in smaller batches": {"batch_size": 2, "loader": "black"},
            "without streams": {"batch_size": 64, "prefetcher": "data_prefetcher"},
            "spinning": {"storage": "hdd"},
        }
        base = {"preprocessor": "classification", "num_workers": 1}
        return compare(photos, tmp_path_factory.mktemp("results"), variants, base=base)


def test_what_goes_wrong_is_told_apart_and_the_rest_is_measured(faulty):
    assert (faulty.info.status, faulty.info.excluded) == ("finished", ())
    rows = {row.variant: row for row in faulty.summary.rows}
    assert {row.variant: row.blocks for row in rows.values() if row.status == "ok"} == (
        dict.fromkeys(HONEST, 1)
    )
    for name in rows.keys() - HONEST.keys():
        assert re.fullmatch(REASONS[name], rows[name].reason, re.DOTALL), rows[name].reason
        assert rows[name].status == ("skipped" if name in SKIPPED else "failed")
        assert rows[name].normalized_time is None
    # After it was tried once more, and never timed.
    tried = Counter(trial.variant for trial in faulty.trials)
    assert (tried["greedy"], tried["turned"]) == (2, 1)
    assert rows["good"].labels.get("images", "") == ""
    scaled = "decoded at a reduced size of 64 px or more, so other pixels"
    assert rows["scaled"].labels["images"] == scaled


@pytest.mark.skipif(not HAS_SHARED_MEMORY, reason="this platform has no /dev/shm")
def test_a_copy_in_memory_is_measured_beside_the_disk_and_goes(faulty, photos):
    measured = [trial for trial in faulty.trials if trial.status == "ok"]
    assert all(Hardware("storage") in trial.hardware for trial in measured)
    facts = faulty.info.storages
    assert set(facts) == {"here", "tmpfs"}
    size_bytes = sum(path.stat().st_size for path in photos.rglob("*") if path.is_file())
    assert facts["here"].copied_bytes is None
    assert (facts["tmpfs"].copied_bytes, facts["tmpfs"].filesystem) == (size_bytes, "tmpfs")
    assert not any(its.rates for its in facts.values())
    copy = locate("tmpfs", photos).copy
    assert not copy.exists()
    assert not copy.with_name(f"{copy.name}.lock").exists()


# --- once more ------------------------------------------------------------------------------

SKIP, FAIL, KILL = Skip("too warm"), TrialFailed("broken"), TrialKilled("killed")


@pytest.mark.parametrize(
    ("fates", "status", "blocks"),
    [
        ([SKIP, None, SKIP, None], "ok", 2),  # a state of the files may fail once in any block
        ([SKIP, SKIP], "skipped", None),
        ([FAIL, None, FAIL], "failed", None),
        ([KILL, KILL], "failed", None),
        ([FAIL, None, None], "ok", 2),
    ],
    ids=str,
)
def test_a_trial_that_goes_wrong_comes_again_at_the_end_of_its_block(
    tmp_path, monkeypatch, fates, status, blocks
):
    fates = list(fates)
    asked = [fate for fate in fates if fate]

    def measure(run, label):
        if label == "v" and (fate := fates.pop(0)):
            raise fate
        measured = fake_trial(label, 0).to_row()
        return {name: measured[name] for name in ("epochs", "hardware", "labels")}

    monkeypatch.setattr(epoch_trials, "measure_epochs", measure)
    info = fake_info(["base", "v", "w"], blocks=2)
    run = ActiveRun(create_run(tmp_path, info), info, parts={}, cancel=None, progress=False)
    epoch_trials.run_blocks(run, [])
    assert fates == []
    trials = load_run(run.folder).trials
    row = summarize(run.info, trials).rows[1]
    assert row.status == status
    if status == "ok":
        assert row.blocks == blocks
        counted = "skipped" if SKIP in asked else "failed"
        notes = summarize(run.info, trials).notes
        assert any(note.startswith(f"v: {counted} {len(asked)}×, last: ") for note in notes)
    else:
        assert row.reason == str(asked[-1])
    # Of a block of four others, all but those that come later were done before it came again.
    first = [trial.status for trial in trials if trial.block == 0]
    again = [n for n, t in enumerate(t for t in trials if t.block == 0) if t.variant == "v"][-1]
    assert again == len(first) - 1


@pytest.mark.parametrize(
    ("job", "answers", "calls"),
    [("check", [SKIP, 1], 2), ("check", [KILL, 1], 2), ("check", [SKIP, SKIP], 2),
     ("check", [FAIL], 1), ("measure", [SKIP], 1)],
    ids=str,
)  # fmt: skip
def test_a_job_that_is_skipped_or_killed_is_asked_once_more_unless_it_is_a_trial(
    tmp_path, monkeypatch, job, answers, calls
):
    asked = []

    def run_job(launcher, name, **arguments):
        asked.append(name)
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Launcher, "run", run_job)
    info = fake_info(["base", "v"])
    run = ActiveRun(create_run(tmp_path, info), info, parts={}, cancel=None, progress=False)
    if isinstance(answers[-1], Exception):
        with pytest.raises(type(answers[-1])):
            run.ask(job)
    else:
        assert run.ask(job) == answers[-1]
    assert asked == [job] * calls


# --- images ---------------------------------------------------------------------------------


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
    assert {(t.status, t.images, t.unreadable_images) for t in finished.trials} == {("ok", 16, 4)}
    assert "4 unreadable images left out for all variants" in finished.summary.notes
    listed = finished.info.unreadable
    assert [line.partition(".jpg")[0] for line in listed] == [
        str(paths[index].with_suffix("")) for index in finished.info.excluded
    ]
    assert f"{commented}: comments are not supported" in listed
    assert f"{linked}, a broken link: No such file or directory" in listed


# --- storage, and the document's order -------------------------------------------------------


def test_a_model_never_stands_beside_measured_media(photos, tmp_path):
    message = (
        "storage must be modelled for all variants or for none, got here on real storage; "
        "a model's figures must not stand beside measured ones"
    )
    variants = {
        "here": {}, "model": {"storage": "modelled_ssd"}, "named": {"storage": "hdd"},
    }  # fmt: skip
    with pytest.raises(ValueError, match=re.escape(message)):
        compare(photos, tmp_path, variants)
    assert not (tmp_path / "test").exists()


def test_as_in_the_document_each_runs_once_in_order(photos, tmp_path):
    order = ["original", "pillow", "original, again"]
    variants = {
        order[0]: {"cache": "cold" if can_evict() else "warm"}, order[1]: {"decoder": "pillow"},
        order[2]: {},
    }  # fmt: skip
    finished = compare(photos, tmp_path, variants, protocol=AS_PUBLISHED, base={"epochs": 2})
    # Two epochs of two batches of four images.
    assert [(t.variant, t.status, t.role, t.images) for t in finished.trials] == [
        (order[0], "ok", "A1", 16), (order[1], "ok", "", 16), (order[2], "ok", "", 16),
    ]  # fmt: skip
    for trial in finished.trials:
        share = trial.cache_proof["resident_share_before"]
        if share is not None and can_evict():  # the first starts cold and leaves all in memory
            assert (share <= 0.02) is (trial.variant == "original")
            assert (share >= 0.98) is (trial.variant != "original")
    summary = finished.summary
    assert [(row.variant, row.status, row.verdict) for row in summary.rows] == [
        (name, "ok", "") for name in order
    ]
    assert (summary.n_blocks, summary.noise_floors[""].ratio, summary.judged) == (1, None, False)
    assert any(
        note.startswith("as in the document: variants in its order") for note in summary.notes
    )
