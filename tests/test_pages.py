"""The pages: links lead somewhere, English and Chinese say the same, claims are where they run."""

import re
from pathlib import Path

import nbformat
import pytest

import labkit as lab
from labkit.claims.ledger import CLAIMS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CHINESE = {
    ROOT / "README.md": "README.zh-CN.md",
    ROOT / "docs/guide.md": "guide.zh-CN.md",
    ROOT / "docs/faq.md": "faq.zh-CN.md",
}
ADDRESS = re.compile(r"https?://[^\s)]*")
LINK = re.compile(r"\]\(([^)]+)\)")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r" *#.*")
INLINE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
HEADING = re.compile(r"^#+ (.*)", re.MULTILINE)
PUBLIC = re.compile(r"^\.\. (?:autofunction|autoclass|data):: (\w+)", re.MULTILINE)
ROW = re.compile(r"^\| \[\w+\]\((.+?)\) \| .* \| (.*?) \| ([\d, ]*) \|$", re.MULTILINE)

all_pages = pytest.mark.parametrize(
    "page",
    [*PAGES, *(page.parent / name for page, name in CHINESE.items() if page.parent == ROOT)],
    ids=lambda page: page.name,
)
in_two_languages = pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.name)


def anchors(page):
    """The names that GitHub gives to a page's headings."""
    headings = HEADING.findall(BLOCK.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@all_pages
def test_relative_links_lead_somewhere(page):
    broken = []
    for link in LINK.findall(page.read_text("utf-8")):
        name, _, anchor = link.partition("#")
        path = page.parent / name if name else page
        if "://" not in link and not (path.exists() and (not anchor or anchor in anchors(path))):
            broken.append(link)
    assert broken == []


@all_pages
def test_files_named_in_a_page_exist(page):
    text = ADDRESS.sub("", page.read_text("utf-8"))
    named = re.findall(r"\b(?:labkit|tests|docs|notebooks)/[\w./-]*\w", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@in_two_languages
def test_the_chinese_page_has_the_commands_of_the_english_one(page):
    blocks, inline = [], []
    for path in (page, page.parent / CHINESE[page]):
        text = path.read_text("utf-8")
        blocks.append([COMMENT.sub("", block) for block in BLOCK.findall(text)])
        inline.append({*INLINE.findall(BLOCK.sub("", text))})
    assert blocks[1] == blocks[0]
    assert inline[1] == inline[0]


@in_two_languages
def test_the_chinese_page_has_the_links_of_the_english_one(page):
    english, chinese = (
        sorted(
            link.replace(".zh-CN", "").partition("#")[0]
            for link in LINK.findall(path.read_text("utf-8"))
        )
        for path in (page, page.parent / CHINESE[page])
    )
    assert chinese == english


def test_the_reference_has_every_public_name():
    assert sorted(PUBLIC.findall((ROOT / "docs/api.rst").read_text("utf-8"))) == sorted(lab.__all__)


def test_a_notebook_stands_beside_the_claims_that_its_experiments_test():
    text = (ROOT / "README.md").read_text("utf-8")
    rows = {path: (documents, numbers) for path, documents, numbers in ROW.findall(text)}
    assert rows == {
        path: (documents, numbers)
        for path, documents, numbers in ROW.findall((ROOT / "README.zh-CN.md").read_text("utf-8"))
    }
    claims = {claim.number: claim for claim in CLAIMS}
    found, run = set(), set()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        run |= {
            c.experiment for claim in CLAIMS for c in claim.contrasts if f'"{c.experiment}"' in code
        }
        documents, numbers = rows.get(f"notebooks/{path.name}", ("", ""))
        for number in re.findall(r"\d+", numbers):
            claim = claims[int(number)]
            found.add(claim.number)
            assert any(f'"{c.experiment}"' in code for c in claim.contrasts)
            assert set(claim.documents) <= set(re.findall(r"\[\d+\]", documents))
    assert found == {
        claim.number for claim in CLAIMS if run & {c.experiment for c in claim.contrasts}
    }
