"""The panel without a browser: what its controls say is chosen, what its buttons do and allow."""

import re
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from traitlets.utils.bunch import Bunch

import labkit as lab
from labkit.experiments.request import Request
from labkit.panel import job
from labkit.panel.widget import Panel
from labkit.runs.store import write_info

PATIENCE_S = 60.0  # how long to wait for what must happen; not a speed limit
SMALL = {
    "device": "cpu", "step": "nothing", "preprocessor": "vectorized", "cache": "as found",
    "input_px": 64, "batch_size": 4, "images": 8, "num_workers": 1, "epochs": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(job, "_current", None)
    monkeypatch.setattr(job, "_watchers", [])


def words(widget):
    """What a person reads of an HTML widget."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", widget.value)).strip()


def below(widget):
    """A widget and all inside it."""
    found = [widget]
    for child in getattr(widget, "children", ()):
        found += below(child)
    return found


def labelled(box, text):
    (found,) = (w for w in below(box) if getattr(w, "description", None) == text)
    return found


# --- the panel ------------------------------------------------------------------------------


@pytest.fixture
def small(photos):
    base = lab.Settings(data=str(photos), **SMALL)
    return lab.Experiment(
        "small",
        question="Which decoder is <faster>?",
        variants=lab.vary(base, decoder=["opencv", "pillow"]),
        baseline="opencv",
    )


@pytest.fixture
def panel(small, tmp_path):
    return Panel(Request(experiment=small, blocks=1), tmp_path)


def press(panel, text):
    labelled(panel.box, text).click()


def finish():
    assert job.current().wait(PATIENCE_S)
    for thread in threading.enumerate():  # the last drawing is the run's thread's
        if thread.name.startswith("labkit "):
            thread.join(PATIENCE_S)


def can_press(panel):
    return [
        text
        for text in ("Run", "Cancel", "Resume", "Reset", "Show", "Export")
        if not labelled(panel.box, text).disabled
    ]


def test_run_shows_rows_and_then_the_result_from_disk(panel, tmp_path):
    assert words(panel._status) == "ready"
    assert words(panel._forecast).startswith("quick mode: about ")
    assert can_press(panel) == ["Run", "Reset", "Show", "Export"]
    seen = []
    panel._trials.observe(lambda change: seen.append(words(panel._trials)), "value")
    press(panel, "Run")
    assert "Cancel" in can_press(panel)
    assert "Run" not in can_press(panel)
    assert labelled(panel.box, "num_workers").disabled
    finish()
    assert panel._error.value == ""
    # More and more, but no oftener than twice a second.
    counts = [int(text.split(" trial")[0]) for text in seen if text]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 3)
    assert words(panel._status) == "finished: trial 3 of 3"
    assert panel._bar.value == 1.0
    assert re.match(r"last trial, \w+( A[12])?: start-up of the loader \d", words(panel._strip))
    assert 'alt="Which decoder is &lt;faster&gt;?' in panel._result.value
    assert "<table" in panel._result.value
    assert can_press(panel) == ["Run", "Reset", "Show", "Export"]
    (folder,) = lab.list_runs(tmp_path)
    assert [value for _, value in panel._history._runs.options] == [folder]

    # The same without running: what a reopened notebook finds.
    again = Panel(panel._start, tmp_path)
    assert words(again._status) == f"ready: shows {folder.name}, finished"
    assert again._result.value == panel._result.value
    press(again, "Export")
    assert f"saved {folder / 'chart.png'}" in words(again._history._exported)
    again._history._formats.value = "CSV"
    press(again, "Export")
    assert 'download="table.csv"' in again._history._exported.value


def test_a_second_panel_takes_up_the_run_and_may_cancel_it(panel, small, tmp_path):
    labelled(panel.box, "blocks").value = "60"
    press(panel, "Run")
    second = Panel(Request(experiment=small), tmp_path)
    assert "Cancel" in can_press(second)
    assert "Run" not in can_press(second)
    press(second, "Cancel")
    assert words(second._status).startswith("cancelling")
    finish()
    for each in (panel, second):
        assert words(each._status).startswith("cancelled")
        assert each._error.value == ""
        assert "Run" in can_press(each)
        assert "Cancel" not in can_press(each)
    (folder,) = lab.list_runs(tmp_path)
    assert lab.find_run(folder).info["status"] == "cancelled"
    assert "Resume" in can_press(panel)


def test_errors_stand_in_the_panel_with_their_next_step(panel):
    labelled(panel.box, "data").value = "/no/such/folder"
    press(panel, "Run")
    finish()
    assert words(panel._status).startswith("failed")
    assert words(panel._error).startswith("data must be ")
    assert "Traceback" in panel._error.value
    press(panel, "Reset")
    assert panel._error.value == ""
    labelled(panel.box, "input_px").value = "100"
    said = "input_px must be a positive multiple of 32, got 100; try 256 or 512"
    assert words(panel._error).startswith(said)
    press(panel, "Show")
    said = "runs must be at least one, got none; choose some in the list"
    assert words(panel._error).startswith(said)


def test_a_choice_can_be_taken_along_as_python_and_as_a_command_line(photos, tmp_path):
    panel = Panel(Request(experiment="preprocessing", settings={"data": str(photos)}), tmp_path)
    labelled(panel.box, "num_workers").value = "1"
    labelled(panel.box, "vectorized").value = False
    press(panel, "Copy as command line")
    area = labelled(panel.box, "copy")
    assert area.value == (
        f"labkit run preprocessing --mode quick --variant original --variant simplified "
        f"--data {photos} --num-workers 1 --results {tmp_path}"
    )
    press(panel, "Copy as Python")
    area = labelled(panel.box, "copy")
    compile(area.value, "copied", "exec")
    assert "lab.experiment('preprocessing'" in area.value


def test_an_experiment_of_ones_own_has_no_command_line_but_python(panel):
    assert labelled(panel.box, "Copy as command line").disabled
    press(panel, "Copy as Python")
    area = labelled(panel.box, "copy")
    compile(area.value, "copied", "exec")
    assert "lab.run(experiment, 'quick'" in area.value


EXAMPLE = Path(__file__).parents[2] / "results/examples/2-cores-emulated/preprocessing"


@pytest.fixture
def earlier(tmp_path):
    """Results that hold two runs of one experiment, the newest last."""
    for name in ("20260101T000000Z-aaaa", "20260102T000000Z-bbbb"):
        shutil.copytree(EXAMPLE, tmp_path / "preprocessing" / name)
    return tmp_path


def test_several_runs_stand_side_by_side_and_are_exported_as_one_figure(earlier):
    panel = Panel(Request(experiment="preprocessing"), earlier)
    newest, oldest = lab.list_runs(earlier)[::-1]
    assert words(panel._status).startswith(f"ready: shows {newest.name}")
    labelled(panel.box, "runs").value = (newest, oldest)
    press(panel, "Show")
    assert words(panel._status) == "ready: shows 2 runs side by side"
    assert panel._result.value.count("<img") == 1
    assert "Resume" not in can_press(panel)
    labelled(panel.box, "format").value = "CSV"
    press(panel, "Export")
    assert words(panel._error).startswith("runs must be one for CSV, got 2; choose one")
    labelled(panel.box, "format").value = "SVG"
    press(panel, "Export")
    assert f"saved {earlier / 'reports'}" in words(panel._history._exported)


def uploaded(name, data):
    """What ipywidgets makes of a file that a person chose."""
    return Bunch(
        name=name,
        type="application/zip",
        size=len(data),
        content=memoryview(data),
        last_modified=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_a_share_file_is_opened_as_another_machines_run(earlier, tmp_path_factory):
    file = lab.Run.share(
        lab.find_run(EXAMPLE), tmp_path_factory.mktemp("shared") / "run.labkit.zip"
    )
    given = uploaded(file.name, file.read_bytes())
    panel = Panel(Request(experiment="preprocessing"), earlier)
    panel._history._file.value = (given,)
    assert panel._error.value == ""
    (folder,) = lab.list_runs(earlier / "shared")
    assert words(panel._status).startswith(f"ready: shows {folder.name}")
    texts = [text for text, _ in panel._history._runs.options]
    assert len(texts) == 3
    assert "machine" in texts[-1]
    other = Panel(Request(experiment="prefetching"), earlier)
    other._history._file.value = (given,)
    assert words(other._error).startswith(
        "share file must hold a run of prefetching to be shown here, got one of preprocessing"
    )
    broken = Panel(Request(experiment="preprocessing"), earlier)
    broken._history._file.value = (uploaded("a.zip", b"no zip"),)
    assert "share file must be" in words(broken._error)


def test_a_run_whose_process_was_killed_is_called_stopped(earlier):
    newest = lab.list_runs(earlier)[-1]
    write_info(newest, {**lab.find_run(newest).info, "status": "running"})
    panel = Panel(Request(experiment="preprocessing"), earlier)
    assert words(panel._status) == f"ready: shows {newest.name}, stopped"
    assert " stopped " in panel._history._runs.options[0][0]


def test_a_broken_run_folder_hides_no_other(earlier):
    newest = lab.list_runs(earlier)[-1]
    (newest / "run.json").write_text('{"mode": 5, "status": null, "created_utc": 1}')
    panel = Panel(Request(experiment="preprocessing"), earlier)
    assert [value for _, value in panel._history._runs.options] == lab.list_runs(earlier)[:1]


def test_a_choice_that_another_experiment_does_not_allow_is_said(earlier):
    box = lab.panel(results=earlier, preprocessor="vectorized")
    names, problem, _ = box.children
    names.value = "preprocessing"
    assert words(problem).startswith("preprocessor must be left out for preprocessing")
    names.value = "storage"
    assert words(problem).startswith("preprocessor must be left out for storage")
    names.value = "prefetching"
    assert words(problem) == ""


def test_without_a_name_the_catalog_can_be_chosen_from(earlier):
    box = lab.panel(results=earlier)
    names = labelled(box, "experiment")
    assert names.options == tuple(lab.CATALOG)
    watching = len(job._watchers)
    names.value = "preprocessing"
    assert len(job._watchers) == watching  # the panel that went hears nothing more
    assert lab.experiment("preprocessing").question in box.children[2].children[1].value
