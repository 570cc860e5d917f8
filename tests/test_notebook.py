"""What a run leaves beside its rows can be made again at any time."""

import csv
import shutil

import pytest
from fakes import fake_info, fake_trials

from labkit import notebook
from labkit.results import append_trial, create_run, find_run, load_run, write_info
from labkit.settings import AS_PUBLISHED


def make_run(results, experiment="prefetching", status="finished", trials=True):
    info = fake_info(["original", "both"], experiment=experiment, status=status)
    folder = create_run(results, info)
    if trials:
        for trial in fake_trials({"original": 1.0, "both": 0.9}):
            append_trial(folder, trial)
    return folder


def test_derived_files_are_the_same_when_made_again(tmp_path):
    run = load_run(make_run(tmp_path))
    first = {path: path.read_bytes() for path in notebook.save(run)}
    assert sorted(path.suffix for path in first) == [".csv", ".pdf", ".png", ".svg"]
    assert {path: path.read_bytes() for path in notebook.save(run)} == first


def test_the_saved_table_has_a_row_per_variant_with_unrounded_numbers(tmp_path):
    run = load_run(make_run(tmp_path))
    csv_file, *_ = notebook.save(run)
    rows = list(csv.DictReader(csv_file.open()))
    assert [row["variant"] for row in rows] == ["original", "both"]
    assert float(rows[1]["normalized_time"]) == pytest.approx(
        notebook.summarize(run).rows[1].normalized_time, abs=1e-12
    )


def test_a_failed_run_does_not_hide_the_finished_one_before_it(tmp_path):
    finished = make_run(tmp_path)
    failed = finished.with_name("99990101T000000Z-ffff")
    failed.mkdir()
    write_info(failed, {**load_run(finished).info, "status": "failed"})
    page = notebook.write_page(tmp_path).read_text(encoding="utf-8")
    assert finished.name in page
    assert failed.name not in page


def test_the_page_keeps_the_catalogs_order_and_takes_own_experiments_after_it(tmp_path):
    for name in ("mine", "preprocessing", "prefetching"):
        make_run(tmp_path, experiment=name)
    page = notebook.write_page(tmp_path).read_text(encoding="utf-8")
    places = [page.index(f"{name}/2") for name in ("prefetching", "preprocessing", "mine")]
    assert places == sorted(places)


def test_a_run_as_in_the_document_stands_beside_the_corrected_one(tmp_path):
    corrected = make_run(tmp_path)
    faithful = corrected.with_name("99990101T000000Z-ffff")
    shutil.copytree(corrected, faithful)
    write_info(faithful, {**load_run(corrected).info, "protocol": AS_PUBLISHED, "shuffled": False})
    shown = notebook.write_page(tmp_path).read_text(encoding="utf-8")
    assert shown.index(corrected.name) < shown.index(faithful.name)
    assert "(as in the document)" in shown
    assert notebook.newest_run("prefetching", tmp_path).folder == corrected
    assert find_run(tmp_path, "prefetching").folder == corrected
    assert find_run(tmp_path, "99990101").folder == faithful


def test_a_gallery_shows_second_lines_and_conditions_once(tmp_path):
    make_run(tmp_path)
    shown = notebook.gallery(tmp_path)._repr_html_()
    assert shown.count("noise floor") == 1
    assert shown.count('class="labkit-second"') == 2
    assert shown.count("<p>Emulated accelerator") == 1
