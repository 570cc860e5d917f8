"""Take the picture of the form that README shows, docs/form.png.

    python -m benchmarks.form_picture    after changes of the form

A notebook of this repository is opened in JupyterLab, beside a run of results/examples.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import frame
from benchmarks.jupyter import ROOT, make_workplace, serve
from benchmarks.lab_page import LabPage, browse, why_no_browser
from labkit.claims.ledger import REFERENCE
from labkit.photos.make import make_photos

NOTEBOOK, EXPERIMENT = "04_preprocessing", "preprocessing"
PICTURE = ROOT / "docs" / "form.png"
WINDOW = {"width": 1440, "height": 1750}  # all of the form without scrolling


def main() -> int:
    """Take the picture; return the exit status."""
    frame.parser(__doc__).parse_args()
    if reason := why_no_browser():
        raise SystemExit(f"form_picture: {reason}")
    (run,) = REFERENCE.glob(f"*/{EXPERIMENT}")
    with tempfile.TemporaryDirectory() as place, browse() as browser:
        folder = make_workplace(Path(place) / "lab", {NOTEBOOK: {}})
        make_photos(folder / "data" / "photos", 24, progress=False)
        shutil.copytree(run, folder / "results" / EXPERIMENT / run.name)
        with serve(folder) as server:
            lab = LabPage(browser, server, NOTEBOOK)
            lab.page.set_viewport_size(WINDOW)
            lab.run_cells("data =", "lab.panel(")
            lab.panel.locator(".labkit-result img").wait_for()
            lab.panel.screenshot(path=PICTURE)
            lab.close()
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
