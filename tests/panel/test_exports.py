"""Every format of a run opens as what it says it is; several runs have only what they can share."""

import re
import resource
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

import labkit as lab
from labkit.panel.view import EXPORTS, export

EXAMPLES = Path(__file__).parents[2] / "results" / "examples" / "2-cores-emulated"


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


def is_svg(path):
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"width", "height", "viewBox"} <= set(root.attrib)
    texts = [text for text in root.itertext() if text.strip()]
    assert any("normalized epoch time" in text for text in texts)


def is_pdf(path):
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    assert b"/FontFile2" in data  # TrueType
    assert b"/Type3" not in data
    (width_pt,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+)", data)
    assert 2 < float(width_pt) / 72 <= 10  # inches


def is_csv(path):
    table = pd.read_csv(path, index_col="variant")
    assert list(table.index) == ["original", "vectorized", "simplified"]
    assert table.loc["original", "normalized_time"] == pytest.approx(1.0)


CHECKS = {"PNG": is_png, "SVG": is_svg, "PDF": is_pdf, "CSV": is_csv}


@pytest.mark.parametrize("form", EXPORTS)
def test_a_run_is_exported_into_its_own_folder(form, runs, results):
    path = export(runs[:1], form, results)
    assert path.is_relative_to(runs[0])
    CHECKS.get(form, Path.stat)(path)  # what the others hold: their own tests


def test_what_cannot_be_exported_is_refused_in_words(results):
    message = r"^runs must be at least one, got none; run the experiment first$"
    with pytest.raises(ValueError, match=message):
        export([], "PNG", results)


def test_an_export_that_fails_leaves_the_earlier_file_whole(runs, results):
    path = export(runs[:1], "CSV", results)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # Python ignores SIGXFSZ
    try:
        for form in ("CSV", "PNG", "Markdown report", "Recipe"):
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
    is_svg(first)
    is_svg(second)
