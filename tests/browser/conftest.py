"""One JupyterLab and one Chromium for all tests of the panel, and a notebook that has been run."""

from pathlib import Path

import pytest
from small import SMALL

from benchmarks.jupyter import make_workplace, serve
from benchmarks.lab_page import LabPage, browse, why_no_browser
from browser.runs import asked, reset

SOME_BLOCKS = 99


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="package")
def browser():
    """Chromium, without a window."""
    if reason := why_no_browser():
        pytest.skip(reason)
    with browse() as browser:
        yield browser


@pytest.fixture(scope="package")
def notebooks(photos):
    """The notebooks that are opened, and what they get for their parameters."""
    given = {"data": str(photos), "results": "../results", "mode": "quick"}
    # What 04 compares cannot be given to it.
    apart = {name: value for name, value in SMALL.items() if name != "preprocessor"}
    return {
        "02_prefetching": {**given, "changes": {**SMALL, "images": 16}},
        "04_preprocessing": {**given, "changes": apart},
    }


@pytest.fixture(scope="package")
def server(browser, notebooks, tmp_path_factory):
    """A JupyterLab as it is by default."""
    folder = make_workplace(tmp_path_factory.mktemp("jupyter") / "lab", notebooks)
    with serve(folder) as server:
        yield server


@pytest.fixture(scope="package")
def opened(browser, server):
    """02_prefetching, run from top to bottom once and saved."""
    lab = LabPage(browser, server, "02_prefetching")
    lab.run_all()
    lab.save()
    lab.until(lambda: asked(lab), "the panel is complete")
    lab.untouched = asked(lab)
    # As the notebook left it; other tests show other runs.
    result = lab.panel.locator(".labkit-result")
    lab.until(lambda: result.locator("img").count(), "the run's chart is shown")
    lab.first_result = result.inner_html()
    lab.first_images = lab.page.locator(".jp-OutputArea-output img").count()
    yield lab
    lab.close()


@pytest.fixture
def lab(opened):
    """The notebook with a panel that waits; whatever a test does to it must leave no problem."""
    opened.wait_for_status("ready", "finished", "cancelled", "failed")
    # Reset alone would change nothing where nothing was changed, and could not be waited for.
    opened.type_into("blocks", SOME_BLOCKS)
    opened.until(lambda: str(SOME_BLOCKS) in asked(opened), "the change is seen")
    reset(opened)
    yield opened
    assert opened.problems == []
