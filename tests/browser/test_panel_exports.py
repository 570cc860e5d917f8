"""Every export is what it says, and the link downloads the very file that lies on disk."""

import ast
import io
import re
import zipfile
import zlib
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from PIL import Image

from labkit.runs.store import load_run

DPI = 300
POINTS_PER_INCH = 72


@pytest.fixture
def export(lab):
    """Export what is shown; gives the file's name and content, from the link and from disk."""

    def export(form):
        said = lab.panel.locator(".labkit-exported")
        before = said.text_content()
        lab.field("format").select_option(form)
        lab.press("Export")
        link = said.locator("a[download]")
        lab.until(lambda: link.count() and said.text_content() != before, f"{form} is exported")
        with lab.page.expect_download() as download:
            link.click()
        name = download.value.suggested_filename
        assert name.endswith(SUFFIXES[form])
        content = Path(download.value.path()).read_bytes()
        (path,) = [word for word in said.text_content().split() if word.endswith(f"/{name}")]
        assert (lab.server.folder / "notebooks" / path).read_bytes() == content
        return content

    return export


SUFFIXES = {
    "PNG": ".png", "SVG": ".svg", "PDF": ".pdf", "CSV": ".csv",
    "HTML report": ".html", "Markdown report": ".md", "Recipe": ".py", "Share file": ".labkit.zip",
}  # fmt: skip


def test_every_format_is_offered(lab):
    offered = lab.field("format").locator("option").all_text_contents()
    assert [" ".join(form.split()) for form in offered] == list(SUFFIXES)  # spaces do not break


def test_png_is_a_figure_of_300_dots_per_inch(export):
    with Image.open(io.BytesIO(export("PNG"))) as image:
        assert image.format == "PNG"
        assert [round(dots) for dots in image.info["dpi"]] == [DPI, DPI]
        assert 4 * DPI < image.width < 12 * DPI
        assert 2 * DPI < image.height < 12 * DPI
        image.load()
        assert image.convert("RGBA").getextrema()[3] == (255, 255)  # opaque, for dark pages


def test_svg_is_xml_with_readable_text(export):
    root = ElementTree.fromstring(export("SVG"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"width", "height", "viewBox"} <= set(root.attrib)


def test_pdf_has_its_fonts_as_truetype(export):
    content = export("PDF")
    assert content.startswith(b"%PDF-")
    inflated = content
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL):
        try:
            inflated += zlib.decompressobj().decompress(stream)
        except zlib.error:
            continue  # not a compressed one
    assert b"/FontFile2" in inflated
    assert not re.search(rb"/Type3\b", inflated)
    (width_pt,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+)", inflated)
    assert 2 < float(width_pt) / POINTS_PER_INCH <= 10


def test_csv_comes_back_as_the_table(export, opened):
    table = pd.read_csv(io.BytesIO(export("CSV")))
    written = table.to_csv(index=False)
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(written)), table)
    run = load_run(opened.server.runs()[-1])
    assert set(run.info["variants"]) <= set(table["variant"])


def test_markdown_report_holds_the_table(export):
    assert re.search(r"^\|.*prefetch_generator", export("Markdown report").decode(), re.MULTILINE)


class References(HTMLParser):
    """Collects all that a page would load."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "srcset", "data", "poster") or (tag == "link" and name == "href"):
                self.found.append(value)


def test_html_report_loads_nothing(export):
    text = export("HTML report").decode()
    page = References()
    page.feed(text)
    assert page.found
    assert all(reference.startswith("data:") for reference in page.found)
    assert not re.search(r"@import|url\((?!['\"]?(data:|#))|<script[^>]+src", text)


def test_recipe_is_a_program_of_at_most_120_lines(export):
    text = export("Recipe").decode()
    assert len(text.splitlines()) <= 120
    functions = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert {"make_loader", "batches"} <= functions


def test_share_file_is_a_zip_that_says_nothing_of_this_machine(export, opened):
    content = export("Share file")
    with zipfile.ZipFile(io.BytesIO(content)) as shared:
        assert shared.testzip() is None
        names = shared.namelist()
        everything = b"".join(shared.read(name) for name in names)
    assert sorted(names) == ["run.json", "trials.jsonl"]
    assert str(opened.server.folder).encode() not in everything
