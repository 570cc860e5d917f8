"""The panel where JupyterLab sends all messages to the kernel's main thread."""

import pytest

from benchmarks.jupyter import make_workplace, rows_in, serve
from benchmarks.lab_page import LabPage
from browser.runs import ACKNOWLEDGED_S, ENDED_S, GRACE, cancel, start, status_of
from labkit.runs.store import load_run

DISABLED = {"kernels-settings": {"commsOverSubshells": "disabled"}}


@pytest.fixture
def lab(browser, notebooks, tmp_path):
    folder = make_workplace(tmp_path / "lab", notebooks)
    with serve(folder, settings=DISABLED) as server:
        lab = LabPage(browser, server, "04_preprocessing")
        yield lab
        lab.close()


@pytest.mark.thorough
def test_run_and_cancel_without_subshells(lab):
    lab.run_all()
    assert lab.subshells == "disabled"
    assert lab.complaints == []
    lab.field("decoder").select_option("pillow")
    folder = start(lab, blocks=1)
    lab.wait_for_status("finished")
    run = load_run(folder)
    assert {values["decoder"] for values in run.info["variants"].values()} == {"pillow"}
    assert [trial.status for trial in run.trials] == ["ok"] * 4  # the baseline twice
    folder = start(lab, blocks=20)
    lab.until(lambda: rows_in(folder) >= 1, "there is a row")
    acknowledged_s, ended_s = cancel(lab)
    assert acknowledged_s < GRACE * ACKNOWLEDGED_S
    assert ended_s < GRACE * ENDED_S
    lab.wait_for_status("cancelled")
    assert status_of(folder) == "cancelled"
    assert rows_in(folder) >= 1
    assert lab.problems == []
