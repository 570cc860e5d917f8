"""What a run leaves beside its rows can be made again at any time."""

import csv
import shutil

import pytest
from fakes import fake_info, fake_media_info, fake_media_trials, fake_trials

from labkit.report import report
from labkit.report.report import write_report
from labkit.report.run import Run, newest_run
from labkit.runs.store import append_trial, create_run, find_run, load_run, write_info
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
    first = {path: path.read_bytes() for path in Run.save(run)}
    assert sorted(path.suffix for path in first) == [".csv", ".pdf", ".png", ".svg"]
    assert {path: path.read_bytes() for path in Run.save(run)} == first


def test_the_saved_table_has_a_row_per_variant_with_unrounded_numbers(tmp_path):
    run = load_run(make_run(tmp_path))
    csv_file, *_ = Run.save(run)
    rows = list(csv.DictReader(csv_file.open()))
    assert [row["variant"] for row in rows] == ["original", "both"]
    assert float(rows[1]["normalized_time"]) == pytest.approx(
        run.summary.rows[1].normalized_time, abs=1e-12
    )


def test_a_failed_run_does_not_hide_the_finished_one_before_it(tmp_path):
    finished = make_run(tmp_path)
    failed = finished.with_name("99990101T000000Z-ffff")
    failed.mkdir()
    write_info(failed, {**load_run(finished).info, "status": "failed"})
    page = report.write_page(tmp_path).read_text(encoding="utf-8")
    assert finished.name in page
    assert failed.name not in page


def test_the_page_keeps_the_catalogs_order_and_takes_own_experiments_after_it(tmp_path):
    for name in ("mine", "preprocessing", "prefetching"):
        make_run(tmp_path, experiment=name)
    page = report.write_page(tmp_path).read_text(encoding="utf-8")
    places = [page.index(f"{name}/2") for name in ("prefetching", "preprocessing", "mine")]
    assert places == sorted(places)


def test_a_run_as_in_the_document_stands_beside_the_corrected_one(tmp_path):
    corrected = make_run(tmp_path)
    faithful = corrected.with_name("99990101T000000Z-ffff")
    shutil.copytree(corrected, faithful)
    write_info(faithful, {**load_run(corrected).info, "protocol": AS_PUBLISHED, "shuffled": False})
    shown = report.write_page(tmp_path).read_text(encoding="utf-8")
    assert shown.index(corrected.name) < shown.index(faithful.name)
    assert "(as in the document)" in shown
    assert newest_run("prefetching", tmp_path).folder == corrected
    assert find_run(tmp_path, "prefetching").folder == corrected
    assert find_run(tmp_path, "99990101").folder == faithful


DIALLED = {"never": 1.0, "every step": 1.3, "every 100 steps": 1.0}


def make_dialled_run(results, times=DIALLED):
    """A run with a dial as it lies on disk."""
    variants = {
        label: {"report_every": {"every step": 1, "every 100 steps": 100}.get(label, 0)}
        for label in times
    }
    dial = {"setting": "report_every", "advice": 100, "source": "[001] 5.1"}
    info = {**fake_info([*times], experiment="mine", mode="full"), "variants": variants}
    info["dial"] = dial
    folder = create_run(results, info)
    for trial in fake_trials(times, blocks=6, noise=0.001):
        append_trial(folder, trial)
    return load_run(folder)


def test_a_run_with_a_dial_has_it_as_its_second_chart_everywhere(tmp_path):
    run = make_dialled_run(tmp_path)
    names = {path.name for path in Run.save(run)}
    kinds = ("png", "svg", "pdf")
    assert names == {"table.csv", *(f"{c}.{k}" for c in ("chart", "dial") for k in kinds)}
    label = Run.chart(run, "dial").get_label()
    assert "less than 1 % at every 100 steps or more" in label
    assert list(report.section(run).figures) == ["chart", "dial"]
    assert report.write_page(tmp_path).read_text(encoding="utf-8").count("<img ") == 2
    paths = write_report(run, tmp_path / "out")
    drawn = [path.name.split("-")[-1] for path in paths if path.suffix == ".svg"]
    assert drawn == ["chart.svg", "dial.svg"]
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "-chart.png)" in markdown
    assert "-dial.png)" in markdown


def test_a_run_of_which_nothing_lies_along_the_dial_has_one_chart(tmp_path):
    run = make_dialled_run(tmp_path, {"never": 1.0, "mine": 1.1})
    assert list(report.section(run).figures) == ["chart"]
    assert {path.stem for path in Run.save(run)} == {"table", "chart"}


def test_the_storage_experiment_has_its_epochs_as_its_second_chart(tmp_path):
    info = fake_media_info()
    folder = create_run(tmp_path, info)
    for trial in fake_media_trials():
        append_trial(folder, trial)
    assert list(report.section(load_run(folder)).figures) == ["chart", "epochs"]


def test_what_else_the_rows_support_is_on_the_page_and_in_the_report(tmp_path):
    folder = create_run(tmp_path, fake_media_info())
    for trial in fake_media_trials():
        append_trial(folder, trial)
    run = load_run(folder)
    assert list(report.more_tables(run)) == ["Cold, warm and in memory"]
    write_report(run, tmp_path / "out")
    for text in (
        report.write_page(tmp_path).read_text(encoding="utf-8"),
        (tmp_path / "out" / "report.md").read_text(encoding="utf-8"),
    ):
        assert "Cold, warm and in memory" in text
        assert "disk_read_share" in text
