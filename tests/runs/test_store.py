"""Rows are safe on disk as they come, and what a crash leaves is read without harm."""

import json
import multiprocessing
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import fake_info, fake_json, fake_trial
from kernel import needs_fork

from labkit.cli import main
from labkit.report.report import method_facts
from labkit.runs import store
from labkit.runs.check_run import check_resumable
from labkit.runs.store import (
    append_trials,
    create_run,
    find_run,
    hold,
    load_run,
)
from tests.processes import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "results" / "examples" / "2-cores-simulated"
INFO = fake_info(["a"], status="running")
TRIAL = fake_trial("a", 0, "A1")


def test_a_trial_comes_back_as_it_was(tmp_path):
    folder = create_run(tmp_path, INFO)
    append_trials(folder, TRIAL)
    (back,) = load_run(folder).trials
    assert back == TRIAL
    assert (back.time_s, back.images) == (2.0, 320)


@pytest.mark.parametrize("path", [*EXAMPLES.glob("*/run.json")], ids=lambda path: path.parent.name)
def test_a_run_of_an_earlier_version_stays_what_it_is_when_it_is_written_again(path, tmp_path):
    info = load_run(path.parent).info
    assert load_run(create_run(tmp_path, info)).info == info


def test_what_earlier_versions_wrote_otherwise_is_read_as_today(tmp_path):
    earlier = fake_json(["a"], mode="document", schema=1, notes=["left out: /home/ada/1.jpg"])
    earlier |= {"provenance": {"cores": 2, "cpu_count": "unknown", "virtual": "unknown"}}
    earlier |= {"shared": {"opened_utc": "", "from": "2 cores"}, "accelerator": "x", "dial": None}
    earlier |= {"calibration": {"gpu_images_per_s": 900.0, "load_images_per_s": 410.0}}
    earlier |= {"data": {"manifest_hash": "abc", "images": 4}}
    info = store.from_json(earlier)
    assert info.calibration.real_gpu_images_per_s == 900.0
    assert (info.data.data_hash, info.data.images) == ("abc", 4)
    assert (info.shuffled, info.notes, info.local_notes) == (False, (), tuple(earlier["notes"]))
    provenance = info.provenance
    assert (provenance.cores, provenance.cpu_count, provenance.virtual) == (2, None, None)
    assert info.shared_from == "2 cores"
    assert load_run(create_run(tmp_path, info)).info == info


@pytest.mark.parametrize("name", ["gpu_slowdown", "step_repeats"])
def test_how_often_an_earlier_version_trained_on_each_batch_is_read_from_its_settings(
    name, tmp_path
):
    labels = ["this GPU: a", "x ≈ 0.5: a"]
    variants = {label: {"device": "cuda", "step": "detector", name: 1} for label in labels}
    variants[labels[1]][name] = 3
    earlier = fake_json(labels, kind="roofline", variants=variants)
    earlier |= {"groups": {label: label.partition(":")[0] for label in labels}}
    earlier |= {"baselines": {group: label for label, group in earlier["groups"].items()}}
    earlier |= {"tasks": {labels[0]: {"x": None}, labels[1]: {"x": 0.5}}}
    earlier |= {"calibration": {"load_images_per_s": 400.0, "device_images_per_s": 600.0}}
    info = store.from_json(earlier)
    assert list(map(info.gpu_slowdown_of, labels)) == [1, 3]
    assert list(map(info.x_of, labels)) == [None, 0.5]
    assert info.check_settings(labels[1]).device == "cuda"
    folder = create_run(tmp_path, info)
    rows = [
        {**fake_trial(label, 0, role).to_row(), "group": group, "settings": variants[label]}
        for label, group in earlier["groups"].items()
        for role in ("A1", "A2")
    ]
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = load_run(folder)
    assert again.info == info
    assert [row.device_images_per_s for row in again.summary.rows] == [600.0, 200.0]


def test_settings_of_another_version_are_shown_and_kept_but_not_run(tmp_path):
    variants = {"a": {"num_workers": 3, "turbo": 5, "cache": "hot"}}
    folder = create_run(tmp_path, fake_info(["a"], variants=variants))
    for line in (TRIAL, replace(TRIAL, role="A2")):
        append_trials(folder, line)
    info = load_run(folder).info
    assert (info.variants["a"].num_workers, info.variants["a"].cache) == (3, "cold")
    assert json.loads((folder / "run.json").read_text())["variants"]["a"].items() >= {
        ("turbo", 5), ("cache", "hot"), ("num_workers", 3)
    }  # fmt: skip
    assert "turbo=5" in dict(method_facts(load_run(folder)))["settings"]
    with pytest.raises(ValueError, match="known to this version of labkit, got cache='hot', turbo"):
        info.check_settings("a")
    with pytest.raises(ValueError, match="known to this version of labkit"):
        check_resumable(load_run(folder))


def test_a_row_of_a_newer_labkit_is_refused(tmp_path):
    folder = create_run(tmp_path, INFO)
    (folder / "trials.jsonl").write_text(json.dumps({**TRIAL.to_row(), "schema": 99}) + "\n")
    with pytest.raises(
        ValueError, match=r"schema must be at most \d+, got 99; update labkit to read"
    ):
        load_run(folder)


def test_a_run_of_a_newer_labkit_is_one_line_and_hides_no_other(tmp_path, capsys):
    create_run(tmp_path, replace(INFO, status="finished"))
    newer, broken = (create_run(tmp_path, INFO) for _ in range(2))
    newer = newer.rename(newer.with_name("99990101T000000Z-ffff"))
    (newer / "run.json").write_text(json.dumps({**store.to_json(INFO), "schema": 99}))
    (broken / "run.json").write_text("{half")
    message = "schema must be at most 3, got 99 in 99990101T000000Z-ffff; update labkit to read"
    with pytest.raises(ValueError, match=message):
        load_run(newer)
    assert main(["list", "--results", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "  quick, finished\n" in listed
    assert f"{broken.name}  cannot be read: run.json must be what a run writes, got " in listed
    assert f"{newer.name}  cannot be read: {message}" in listed
    assert find_run(tmp_path, "prefetching").info.status == "finished"


def test_the_facts_of_an_older_run_are_found_when_it_is_read(tmp_path):
    variants = {"a": {"loader": "resident", "device": "emulated"}}
    facts = {"a": {"repeats_one_batch": True, "is_simulated": True}}
    stored = fake_json(["a"], variants=variants)
    assert store.from_json(stored).facts_of("a").repeats_one_batch
    folder = create_run(tmp_path, store.from_json(stored))
    assert json.loads((folder / "run.json").read_text())["facts"] == facts
    assert load_run(folder).summary.facts("a").repeats_one_batch
    with pytest.raises(ValueError, match=r"^facts$"):
        store.from_json({**stored, "facts": {"a": {"repeats_one_batch": "yes"}}})


def test_a_run_is_found_by_experiment_id_and_folder_else_the_newest_are_listed(tmp_path):
    folder = create_run(tmp_path, INFO)
    for name in ("prefetching", folder.name, folder.name[-4:], str(folder)):
        assert find_run(tmp_path, name).folder == folder
    message = f"got 'nope'; newest runs: prefetching/{folder.name}"
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        find_run(tmp_path, "nope")
    create_run(tmp_path, INFO)
    with pytest.raises(ValueError, match=r"run must match one run, got '2', which matches"):
        find_run(tmp_path, "2")


def hold_for_ever(folder, held):
    with hold(folder):
        held.set()
        signal.pause()


@needs_fork
def test_a_run_is_held_by_one_process_until_it_ends_even_by_a_kill(tmp_path):
    folder, fork = create_run(tmp_path, INFO), multiprocessing.get_context("fork")
    held = fork.Event()
    holder = fork.Process(target=hold_for_ever, args=(folder, held), daemon=True)
    holder.start()
    assert held.wait(PATIENCE_S)
    message = (
        f"run must be in progress in one process at a time, got another process for {folder}; "
        "wait until it ends, or end it, and resume again"
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"):
        with hold(folder):
            pass
    append_trials(folder, TRIAL)  # rows are added beneath the lock, and reading needs none
    assert len(load_run(folder).trials) == 1
    holder.kill()
    holder.join()
    with hold(folder):
        pass
