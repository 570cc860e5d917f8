"""The Chinese page: its links lead somewhere, and its claims are where it says they are."""

import re
from pathlib import Path

import nbformat

from labkit.claims.ledger import CLAIMS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| \[(\w+)\]\((.+?)\) \| (.*?) \| .* \| ([\d, ]*) \|$", re.MULTILINE)


def test_every_notebook_is_listed_and_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert [link for link in links if not (ROOT / link).exists()] == []
    notebooks = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert notebooks <= set(links)
    assert "(README.zh-CN.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_claims_stand_beside_the_notebook_that_runs_their_experiment():
    claims = {claim.number: claim for claim in CLAIMS}
    found = {}
    for _, path, documents, numbers in ROW.findall(TEXT):
        cells = nbformat.read(ROOT / path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        for number in re.findall(r"\d+", numbers):
            claim = claims[int(number)]
            found[int(number)] = path
            assert any(f'"{c.experiment}"' in code for c in claim.contrasts)
            assert set(claim.documents) <= set(re.findall(r"\[\d+\]", documents))
    there = {"prefetching", "storage", "preprocessing", "opencv_vs_pil", "operations"}
    there |= {"packing", "small_files", "offline", "distance"}
    there |= {"workers", "prefetch_factor", "pin_memory", "persistent_workers", "batch_size"}
    there |= {"sampling", "bottlenecks"}
    there |= {"stalls", "checkpoints", "logs", "metric_reports", "evaluation", "progress", "loss"}
    assert set(found) == {
        claim.number for claim in CLAIMS if there & {c.experiment for c in claim.contrasts}
    }
