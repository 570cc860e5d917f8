"""Every format of a run opens as what it says it is; several runs have only what they can share."""

import re
import resource
import shutil
from pathlib import Path

import pytest
from PIL import Image

import labkit as lab
from labkit.panel.view import EXPORTS, export
from labkit.report import figures

EXAMPLES = Path(__file__).parents[2] / "results" / "examples" / "2-cores-simulated"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two runs of one experiment, as they lie on disk."""
    folder = tmp_path_factory.mktemp("results")
    for name in ("one", "two"):
        shutil.copytree(EXAMPLES / "preprocessing", folder / "preprocessing" / name)
    return folder


@pytest.fixture(scope="module")
def runs(results):
    return lab.list_runs(results)


def is_png(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert [round(dots) for dots in image.info["dpi"]] == [300, 300]
        assert 1200 < image.width < 3600 and 600 < image.height < 3600
        assert image.convert("RGBA").getextrema()[3] == (255, 255)  # opaque, for dark pages


def is_pdf(path):
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    assert b"/FontFile2" in data  # TrueType
    assert b"/Type3" not in data
    (width_pt,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+)", data)
    assert 2 < float(width_pt) / 72 <= 10  # inches


CHECKS = {"PNG": is_png, "PDF": is_pdf}


@pytest.mark.parametrize("form", EXPORTS)
def test_a_run_is_exported_into_its_own_folder(form, runs, results, monkeypatch):
    if "report" in form:  # whose figures have tests of their own
        monkeypatch.setattr(figures, "KINDS", figures.KINDS[1:2])
    path = export(runs[:1], form, results)
    assert path.is_relative_to(runs[0])
    CHECKS.get(form, Path.stat)(path)  # what the others hold: their own tests


def test_an_export_that_fails_leaves_the_earlier_file_whole(runs, results):
    path = export(runs[:1], "CSV", results)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # Python ignores SIGXFSZ
    try:
        for form in ("CSV", "PNG", "Markdown report", "PyTorch program"):
            with pytest.raises(OSError, match="results must be a folder that can be written"):
                export(runs[:1], form, results)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert not list(runs[0].glob(".*.part"))


def test_several_runs_are_exported_beside_them_and_a_second_export_hides_no_other(runs, results):
    first, second = (export(runs, "SVG", results) for _ in range(2))
    assert first != second
    assert first.is_relative_to(results / "reports")
    assert export(runs, "HTML report", results).is_relative_to(results / "reports")
