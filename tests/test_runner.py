"""A variant that goes wrong becomes a row with its reason, and costs no finished row."""

import shutil
import threading
from dataclasses import replace

import pytest

import labkit as lab
from labkit.results import write_info
from labkit.source import shuffled_images

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
    rows = {row.variant: row for row in lab.summarize(finished).rows}
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
    rows = {row.variant: row for row in lab.summarize(resumed).rows}
    assert rows["opencv"].status == "ok"
    assert rows["turns_colors_round"].status == "failed"
    assert "not the same work" in rows["turns_colors_round"].reason
    assert len([t for t in resumed.trials if t.status == "ok"]) == 4


def test_resuming_a_run_with_a_part_that_is_gone_lists_the_choices(one_block, monkeypatch):
    monkeypatch.delitem(lab.DECODERS, "turns_colors_round")
    with pytest.raises(ValueError, match=r"decoder must be one of .*, got 'turns_colors_round'"):
        lab.resume(one_block.folder, progress=False)


def test_resuming_on_other_data_or_another_machine_is_refused(one_block, tmp_path):
    data = {**one_block.info["data"], "manifest_hash": "other"}
    with pytest.raises(ValueError, match="data must be what the run began with"):
        lab.resume(changed(one_block, tmp_path / "data", data=data), progress=False)
    provenance = {**one_block.info["provenance"], "machine_id": "other"}
    with pytest.raises(ValueError, match="run must be resumed on the machine it began on"):
        lab.resume(changed(one_block, tmp_path / "m", provenance=provenance), progress=False)


@pytest.mark.parametrize("profile", lab.PROFILES)
def test_every_profile_runs(photos, tmp_path, profile):
    base = lab.Settings(data=str(photos), profile=profile, **SMALL)
    experiment = lab.Experiment("test", question="?", variants={"a": base}, baseline="a")
    finished = lab.run(experiment, blocks=1, results=tmp_path, progress=False)
    for trial in finished.trials:
        assert trial.status == "ok"
        assert trial.labels["accelerator"].startswith(f"emulated({profile}, ")


@pytest.mark.parametrize(
    ("step", "preprocessor"), [("detector", "on_device"), ("classifier", "classification")]
)
def test_a_real_step_on_the_cpu_reports_equal_losses(photos, tmp_path, step, preprocessor):
    real = {**SMALL, "device": "cpu", "preprocessor": preprocessor, "num_workers": 0}
    base = lab.Settings(data=str(photos), step=step, **real)
    experiment = lab.Experiment("test", question="?", variants={"a": base}, baseline="a")
    first, second = lab.run(experiment, blocks=1, results=tmp_path, progress=False).trials
    assert (first.status, second.status) == ("ok", "ok")
    assert first.loss == pytest.approx(second.loss, rel=1e-4)
    assert first.labels["accelerator"] == "cpu"
    assert all(epoch.forward_s > 0 and epoch.backward_s > 0 for epoch in first.epochs)


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
    monkeypatch.setattr("labkit.preparation.FIRST_LOOK_IMAGES", 8)
    experiment = lab.Experiment("test", question="?", variants={"a": base}, baseline="a")
    finished = lab.run(experiment, blocks=1, results=tmp_path / "results", progress=False)
    assert sorted(finished.info["excluded"]) == sorted(order[place] for place in (3, 10, 17))
    assert {trial.images for trial in finished.trials} == {32}
