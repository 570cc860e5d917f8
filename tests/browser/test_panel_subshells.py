"""The panel where JupyterLab sends all messages to the kernel's main thread."""

import json

import pytest

from benchmarks.jupyter import rows_in
from benchmarks.lab_page import LabPage
from browser.runs import MANY_BLOCKS, cancel, start
from labkit.runs.store import load_run

SETTING = "@jupyterlab/apputils-extension/kernels-settings.jupyterlab-settings"


@pytest.fixture
def lab(browser, server):
    """A notebook that was opened with JupyterLab's setting as a user may choose it."""
    setting = server.settings / SETTING
    setting.write_text(json.dumps({"commsOverSubshells": "disabled"}))
    lab = LabPage(browser, server, "04_preprocessing")
    yield lab
    lab.close()
    setting.unlink()


@pytest.mark.long
def test_run_and_cancel_without_subshells(lab):
    lab.run_cells("data =", "lab.panel(")
    assert lab.subshells == "disabled"
    assert lab.complaints == []
    lab.field("decoder").select_option("pillow")
    folder = start(lab, blocks=MANY_BLOCKS)
    lab.until(lambda: rows_in(folder) >= 1, "there is a row")
    cancel(lab)
    run = load_run(folder)
    assert run.info.status == "cancelled"
    assert {settings.decoder for settings in run.info.variants.values()} == {"pillow"}
    assert run.trials[0].status == "ok"
    assert lab.problems == []
