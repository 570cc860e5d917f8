"""What a run leaves beside its rows can be made again at any time."""

import shutil
from dataclasses import replace

import pytest
from fake_runs import save_rows
from fakes import fake_info, fake_media_info, fake_media_trials, fake_trials

import labkit as lab
from labkit.report import figures
from labkit.runs.store import write_info
from labkit.settings import AS_PUBLISHED


def make_run(*given):
    return lab.find_run(save_rows(*given))


def test_a_run_as_in_the_document_never_hides_the_corrected_one(tmp_path):
    trials = fake_trials({"original": 1.0, "both": 0.9})
    corrected = make_run(tmp_path, fake_info(["original", "both"]), trials)
    published = corrected.folder.with_name("99990101T000000Z-ffff")
    shutil.copytree(corrected.folder, published)
    write_info(published, replace(corrected.info, protocol=AS_PUBLISHED, shuffled=False))
    assert lab.newest_run("storage", tmp_path) is None
    assert lab.newest_run("prefetching", tmp_path).folder == corrected.folder
    assert lab.find_run("prefetching", tmp_path).folder == corrected.folder
    assert lab.find_run("99990101", tmp_path).folder == published


OVER_STEPS = {"never": 1.0, "every step": 1.3, "every 100 steps": 1.0}


def make_curve_run(results, times=OVER_STEPS):
    """A run over steps as it lies on disk; the first variant is the baseline."""
    every = {"every step": 1, "every 100 steps": 100}
    variants = {label: {"report_every": every.get(label, 0)} for label in times}
    x_axis = {"setting": "report_every", "advice": 100, "source": "[001] 5.1"}
    info = fake_info([*times], experiment="mine", mode="full", variants=variants, x_axis=x_axis)
    return make_run(results, info, fake_trials(times, blocks=6, noise=0.001))


def test_a_run_over_steps_has_it_as_a_chart_everywhere(tmp_path, monkeypatch):
    run = make_curve_run(tmp_path)
    assert run.charts == ("lines", "utilization")
    kinds = ("png", "svg", "pdf")
    files = {f"{chart}.{kind}" for chart in ("chart", "utilization") for kind in kinds}
    assert {path.name for path in run.save()} == {"table.csv", *files}
    assert "less than 1 % from every 100 steps" in run.chart("lines").get_label()
    monkeypatch.setattr(figures, "KINDS", figures.KINDS[1:2])
    paths = run.report(tmp_path / "out")
    assert paths[0].read_text(encoding="utf-8").count("<img ") == 2
    drawn = [path.stem for path in paths if path.suffix == ".svg"]
    assert drawn == ["1-mine-lines", "1-mine-utilization"]
    other = make_curve_run(tmp_path, {"never": 1.0, "mine": 1.1})  # one number is no axis
    assert other.charts == ("dots", "utilization")
    with pytest.raises(ValueError, match="kind must be one of dots, utilization, got 'lines'"):
        other.chart("lines")


def test_a_run_of_cold_and_warm_variants_shows_epochs_and_compares_memory_with_disks(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(figures, "KINDS", figures.KINDS[1:2])
    run = make_run(tmp_path, fake_media_info(), fake_media_trials())
    assert run.charts == ("dots", "utilization", "epochs")
    assert list(run.findings()) == ["Memory and warm disks"]
    for path in run.report(tmp_path / "out")[:2]:
        text = path.read_text(encoding="utf-8").replace("\\", "").replace("<wbr>", "")
        assert "Memory and warm disks" in text
        assert "swapped_pages" in text
