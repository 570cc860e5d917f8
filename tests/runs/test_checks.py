"""Before anything is timed: bad images are found for all variants, and unequal work is refused."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from jpegs import encode, photo, with_segment

import labkit as lab
from labkit.machine import hardware
from labkit.parts.decoding import DECODERS
from labkit.runs import checks
from labkit.settings import MODES, Settings, complete

COMMENT = 0xFE
TOO_MANY = 1 << 47  # bytes: more than a process can address
SMALL = {
    "device": "cpu", "step": "nothing", "preprocessor": "vectorized", "cache": "as found",
    "input_px": 64, "batch_size": 4, "images": 8, "num_workers": 1, "epochs": 1,
}  # fmt: skip


def settings(data, **changes):
    chosen = {
        "batch_size": 8, "input_px": 64, "device": "cpu", "step": "classifier",
        "preprocessor": "classification", "decoder": "simplejpeg",
    }  # fmt: skip
    own = Settings(data=str(data), **{**chosen, **changes})
    return complete(own, MODES["quick"], cores=2, has_cuda=False, can_fork=True)


def run(data, results, *, base, variants):
    base = Settings(data=str(data), **{**SMALL, **base})
    experiment = lab.Experiment(
        "test",
        question="?",
        variants={label: replace(base, **changes) for label, changes in variants.items()},
        baseline=next(iter(variants)),
    )
    return lab.run(experiment, blocks=1, results=results, progress=False)


# --- images that cannot be read -----------------------------------------------------------------


def refuses_comments(jpeg):
    if b"\xff\xfe" in jpeg[:64]:
        raise ValueError("comments are not supported")
    return DECODERS["opencv"](jpeg)


@pytest.fixture
def own_images(tmp_path):
    """Twelve images that every decoder reads, and one that only some do."""
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i:02}.jpg").write_bytes(encode(photo().rotate(i)))
    (folder / "commented.jpg").write_bytes(with_segment(encode(photo()), COMMENT, b"words"))
    return folder


def test_what_any_decoder_refuses_is_left_out_for_every_variant(own_images, tmp_path, monkeypatch):
    monkeypatch.setitem(DECODERS, "picky", refuses_comments)
    (own_images / "linked.jpg").symlink_to("nowhere.jpg")
    variants = {"opencv": {}, "picky": {"decoder": "picky"}}
    base = {"images": 12, "on_bad_image": "skip"}
    finished = run(own_images, tmp_path / "results", base=base, variants=variants)
    assert {trial.status for trial in finished.trials} == {"ok"}
    assert {trial.images for trial in finished.trials} == {12}
    assert finished.info["excluded"] == [12, 13]
    assert "2 unreadable images are left out for all variants" in finished.info["notes"]
    [note] = finished.info["local_notes"]
    assert "commented.jpg: comments are not supported" in note
    assert "linked.jpg, a broken link: No such file or directory" in note


def test_where_images_must_all_be_readable_the_run_stops_and_names_them(
    own_images, tmp_path, monkeypatch
):
    monkeypatch.setitem(DECODERS, "picky", refuses_comments)
    variants = {"opencv": {}, "picky": {"decoder": "picky"}}
    message = (
        r"^images must all be readable, got 1 that are not \(\S+commented.jpg: comments are not "
        r"supported\); replace them, or leave them out for all variants with on_bad_image=skip$"
    )
    with pytest.raises(ValueError, match=message):
        run(own_images, tmp_path / "results", base={}, variants=variants)


def test_a_decoder_that_reads_nothing_is_a_row_and_no_fault_of_the_images(
    own_images, tmp_path, monkeypatch
):
    monkeypatch.setitem(DECODERS, "broken", lambda jpeg: None)
    variants = {"opencv": {}, "broken": {"decoder": "broken"}}
    finished = run(own_images, tmp_path / "results", base={}, variants=variants)
    assert finished.info["excluded"] == []
    rows = {row.variant: row for row in finished.summary.rows}
    assert (rows["opencv"].status, rows["broken"].status) == ("ok", "failed")


def test_an_image_that_breaks_in_a_trial_is_one_line(own_images, tmp_path, monkeypatch):
    def breaks_in_workers(jpeg):
        if torch.utils.data.get_worker_info() is not None:
            raise ValueError("image must be what it was")
        return DECODERS["opencv"](jpeg)

    monkeypatch.setitem(DECODERS, "breaks", breaks_in_workers)
    variants = {"opencv": {}, "breaks": {"decoder": "breaks"}}
    finished = run(own_images, tmp_path / "results", base={}, variants=variants)
    reason = next(row for row in finished.summary.rows if row.variant == "breaks").reason
    assert re.fullmatch(r"ValueError: \S+\d\d.jpg: image must be what it was", reason)


# --- decoders that make other pixels ------------------------------------------------------------


def test_a_scaled_decoder_is_let_through_and_wrong_colors_are_not(photos, monkeypatch):
    whole = settings(photos)
    variants = {"whole": whole, "scaled": replace(whole, decoder="simplejpeg_scaled")}
    assert checks.compare_work(variants, "whole") == dict.fromkeys(variants, ("ok", ""))
    scaled = DECODERS["simplejpeg_scaled"]
    monkeypatch.setitem(
        DECODERS,
        "simplejpeg_scaled",
        lambda jpeg, at_least_px: scaled(jpeg, at_least_px=at_least_px)[..., ::-1].copy(),
    )
    status, reason = checks.compare_work(variants, "whole")["scaled"]
    assert status == "failed"
    assert "not the same work as whole: image must differ" in reason


def test_rows_of_a_scaled_decoder_say_that_the_pixels_are_others(photos, tmp_path):
    variants = {"whole": {"decoder": "simplejpeg"}, "scaled": {"decoder": "simplejpeg_scaled"}}
    finished = run(photos, tmp_path, base={"preprocessor": "classification"}, variants=variants)
    words = "decoded to half a side or less where 64 px remain, so other pixels"
    labels = {row.variant: row.labels.get("images", "") for row in finished.summary.rows}
    assert labels == {"whole": "", "scaled": words}
    assert words in lab.table(finished).second_lines["scaled"]
    assert f"scaled: {words}." in lab.chart(finished).get_label()


# --- memory -------------------------------------------------------------------------------------


def test_a_batch_larger_than_memory_is_refused_before_it_is_made(photos):
    variants = {"small": settings(photos), "large": settings(photos, input_px=1 << 17)}
    verdicts = checks.compare_work(variants, "small")
    fitting = hardware.memory_bytes() // (3 * 4 << 34)
    assert verdicts["small"] == ("ok", "")
    assert verdicts["large"][0] == "failed"
    assert re.search(
        rf"batch_size must be at most {fitting} at input_px 131072, so that one batch fits into "
        r"memory \(.+B\), got 8 \(1\.\d TB\); use a smaller",
        verdicts["large"][1],
    )


def greedy_in_trials(jpeg):
    if torch.utils.data.get_worker_info() is not None:  # preflight has no workers
        np.empty(TOO_MANY, np.uint8)
    return DECODERS["opencv"](jpeg)


def dies(source, settings):
    """A rival's library that was built for another processor takes its process with it."""
    os.kill(os.getpid(), signal.SIGILL)


@pytest.mark.skipif(not hardware.can_fork(), reason="signals say who was killed")
def test_whoever_finds_no_memory_or_is_killed_is_a_row_and_the_others_are_measured(
    photos, tmp_path, monkeypatch
):
    monkeypatch.setitem(lab.DECODERS, "greedy", greedy_in_trials)
    monkeypatch.setitem(lab.LOADERS, "illegal", dies)
    changes = {
        "good": {},
        "good too": {"decoder": "pillow"},
        "greedy": {"decoder": "greedy"},
        "illegal": {"loader": "illegal"},
    }
    finished = run(photos, tmp_path, base={}, variants=changes)
    assert finished.info["status"] == "finished"
    rows = {row.variant: row for row in finished.summary.rows}
    assert {name for name, row in rows.items() if row.status == "ok"} == {"good", "good too"}
    assert "batch_size must leave room in memory, got 4 (" in rows["greedy"].reason
    assert rows["illegal"].reason == "the trial's process was killed by SIGILL; see worker.log"
