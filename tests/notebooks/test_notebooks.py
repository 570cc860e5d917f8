"""Every notebook runs from top to bottom without a click, and ends in a table and a figure."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.util import run_sync

import labkit as lab
from benchmarks.lab_page import why_no_browser
from benchmarks.notebooks import OF_REFERENCE, outputs_of
from labkit.runs.calibrated_device import FILE
from tests.processes import PATIENCE_S

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
# This one runs in JupyterLab where there is a browser: see tests/browser.
IN_BROWSER = () if why_no_browser() else ("02_prefetching",)
FEW = {"images": 24}
# Four processes have a batch each; a steady rate takes three batches of every worker.
SMALLER = {
    **{name: {"batch_size": 4} for name in ("02_prefetching", "03_storage", "05_opencv_vs_pil")},
    "10_distributed": {"batch_size": 2},
    "11_roofline": {"batch_size": 4},
}
# Nothing is measured here: calibrate in no time, as all tests do, and run few and short trials.
SHORT = """
from dataclasses import replace
from labkit.experiments import opencv_vs_pil
from labkit.runs import calibration, check_simulated
from labkit.settings import MODES
calibration.CALIBRATION_S = 0.1
# The checks run, but beside other tests a GPU or a disk may be late.
check_simulated.MIN_FREE_LOADER_UTILIZATION, check_simulated.MAX_RATE_ERROR_SHARE = 0.5, 1.0
MODES["quick"], opencv_vs_pil.QUICK_SIZES = replace(MODES["quick"], blocks=1, epoch_s=0.1), 1
"""
# The baseline and two variants show what a notebook shows.
ALL_VARIANTS = """
from labkit.runs.experiment import Experiment
Experiment.every = vars(Experiment).get("every", Experiment.measured)
Experiment.measured = Experiment.every
"""
FEW_VARIANTS = """
def measured(self, *, in_full):
    variants = self.every(in_full=in_full)
    kept = {self.baseline, *list(variants)[:3]}
    return {label: variant for label, variant in variants.items() if label in kept}
Experiment.measured = measured
"""
NEEDS_ALL = ("09_training_loop", "11_roofline")  # a named variant, and a whole curve
ALL = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def parameters(notebook):
    (cell,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    return cell


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["run = lab.run(lab.experiment('storage'), mode)", "run.chart()"], [[], ["image/png"]]),
        (["run = lab.run(lab.experiment('storage'), mode)", "run.table()"], [[], ["text/html"]]),
        (["run = lab.run(lab.experiment('nothing'), mode)", "run.table()"], [[], []]),
        (["lab.doctor(data)"], [[]]),
    ],
)
def test_outputs_are_those_of_the_runs_in_the_repository(cells, shown):
    names = {"lab": OF_REFERENCE, "mode": "quick"}
    outputs = [outputs_of(cell, names) for cell in cells]
    kinds = [[kind for one in of_cell for kind in one.data] for of_cell in outputs]
    assert [[kind for kind in of_cell if kind != "text/plain"] for of_cell in kinds] == shown


@ALL
def test_a_notebook_holds_words_settings_and_calls(path):
    # Logic lives in labkit: no function, class or loop in a notebook.
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert not any(
                line.lstrip().startswith(("def ", "class ", "for ", "while "))
                for line in cell.source.splitlines()
            )


def in_panels(notebook):
    """What the panels of an executed notebook show of runs, as HTML."""
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    widgets = [widget["state"] for widget in state.values()]
    return [one["value"] for one in widgets if "labkit-result" in one.get("_dom_classes", ())]


# The others have the same cells.
DIFFERENT = ("00_start", "01_bottleneck", "02_prefetching", "03_storage", "09_training_loop",
             "12_report")  # fmt: skip
RUN_HERE = [
    pytest.param(path, marks=[] if path.stem in DIFFERENT else pytest.mark.long)
    for path in NOTEBOOKS
    if path.stem not in IN_BROWSER
]


@pytest.fixture(scope="session")
def calibrated(photos, tmp_path_factory):
    """The file that keeps the speed of the simulated GPU, which a notebook would measure first."""
    results = tmp_path_factory.mktemp("calibrated")
    for input_px in (256, 512):
        lab.calibrate(str(photos), input_px, results=results, progress=False)
    return results / FILE


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks, as each new one would import torch; names are reset."""
    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.parametrize("path", RUN_HERE, ids=lambda path: path.stem)
@pytest.mark.notebooks
def test_a_notebook_runs_without_a_click(path, photos, calibrated, kernel, tmp_path):
    shutil.copy(calibrated, tmp_path)
    notebook = nbformat.read(path, as_version=4)
    # As papermill does it: the given values in a cell right after the defaults.
    given = f"data = {str(photos)!r}\nresults = {str(tmp_path)!r}"
    if "changes =" in parameters(notebook).source:
        given += f"\nchanges = {FEW | SMALLER.get(path.stem, {})}"
    if "budget_s =" in parameters(notebook).source:
        given += "\nbudget_s = 10"
    place = notebook.cells.index(parameters(notebook)) + 1
    shorter = SHORT + ALL_VARIANTS + FEW_VARIANTS * (path.stem not in NEEDS_ALL)
    notebook.cells.insert(place, nbformat.v4.new_code_cell(given + shorter))
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    # Not in the notebook's folder: a user's labkit.toml may lie above it.
    resources = {"metadata": {"path": str(Path.cwd())}}
    patience = dict.fromkeys(("timeout", "startup_timeout", "iopub_timeout"), int(PATIENCE_S))
    client = NotebookClient(notebook, km=kernel, resources=resources, **patience)
    try:
        client.execute(env={**os.environ, "PYTHONWARNINGS": "default"})
    finally:
        client.kc.stop_channels()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    streams = [output for output in outputs if output.output_type == "stream"]
    assert [output.text for output in streams if output.name == "stderr"] == []
    if any("run.table()" in cell.source for cell in notebook.cells):
        kinds = [set(output.data) for output in outputs if "data" in output]
        assert any("text/html" in kind and "image/png" not in kind for kind in kinds)  # a table
        assert any("image/png" in kind for kind in kinds)  # a figure
    else:
        assert any("<table" in shown and "<img" in shown for shown in in_panels(notebook))
    assert list(tmp_path.glob("*/*/trials.jsonl"))
    assert list(Path.cwd().iterdir()) == []
