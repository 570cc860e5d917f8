"""Change, run, watch, cancel, resume, reload, restart, close: what is on disk, and what is left."""

import pytest

from benchmarks.jupyter import rows_in, until
from benchmarks.lab_page import SIZE, LabPage
from browser.runs import (
    MANY_BLOCKS,
    asked,
    cancel,
    reset,
    start,
    status_of,
    wait_until_nothing_is_left,
)
from labkit.runs.store import load_run

IN_BLOCK = 3  # the baseline twice and prefetch_generator: a CPU has no streams for the others


def finished(run):
    return sum(trial.status == "ok" for trial in run.trials)


def test_run_all_needs_no_click(opened):
    assert opened.complaints == []
    assert opened.problems == []
    (folder, *_) = opened.server.runs()
    assert load_run(folder).info.status == "finished"
    # The run's table and chart stand in the panel, and in cells that are saved with the notebook.
    assert "prefetch_generator" in opened.first_result.partition("<table")[2]
    assert (opened.first_result.count("<img"), opened.first_images) == (1, 2)
    assert opened.panel.locator(".labkit-error").text_content().strip() == ""
    wait_until_nothing_is_left(opened)


def test_a_changed_dropdown_is_in_the_new_rows(lab):
    lab.field("preprocessor").select_option("loops")
    folder = start(lab, blocks=1)
    lab.until(lambda: status_of(folder) == "finished", "the run is complete")
    lab.wait_for_status("finished")
    run = load_run(folder)
    assert {settings.preprocessor for settings in run.info.variants.values()} == {"loops"}
    assert finished(run) == IN_BLOCK
    assert {trial.settings["preprocessor"] for trial in run.trials} == {"loops"}
    # What the panel shows now is this run.
    result = lab.panel.locator(".labkit-result")
    assert "prefetch_generator" in result.locator("table").first.text_content()
    assert "prefetch_generator" in result.locator("img").first.get_attribute("alt")
    newest = lab.panel.locator(".labkit-runs option").first
    lab.until(lambda: folder.name.split("-")[-1] in newest.text_content(), "it is in the history")
    reset(lab)
    assert lab.field("preprocessor").input_value() == "vectorized"


def test_a_value_that_is_added_is_another_tick(lab):
    lab.field("another setting").select_option("num_workers")
    lab.type_into("=", 3)
    lab.press("Add")
    lab.until(lambda: "--add num_workers=3" in asked(lab), "the variant is asked for")
    lab.field("num_workers=3").uncheck()
    lab.until(lambda: asked(lab) == lab.untouched, "nothing of it is asked for")
    lab.press("Reset")
    lab.until(lambda: lab.field("num_workers=3").count() == 0, "the tick is gone")


def test_run_and_its_result_are_in_view_and_what_is_below_stays_in_place(lab):
    lab.type_into("blocks", 1)
    lab.until(lambda: "--blocks 1" in asked(lab), "the change is seen")
    lab.panel.evaluate("panel => panel.scrollIntoView()")
    run = lab.panel.get_by_role("button", name="Run", exact=True).bounding_box()
    below = lab.panel.locator(".labkit-again")
    before = below.bounding_box()["y"]
    start(lab)
    assert below.bounding_box()["y"] == before
    lab.wait_for_status("finished")
    chart = lab.panel.locator(".labkit-result img").bounding_box()
    # Of the chart its title and the first rows.
    assert 0 < run["y"] < chart["y"] < SIZE["height"] - 270


def test_cancel_keeps_finished_rows_and_resume_adds_to_them(lab):
    folder = start(lab, blocks=MANY_BLOCKS)
    lab.until(lambda: rows_in(folder) >= 1, "there is a row")
    cancel(lab)
    assert status_of(folder) == "cancelled"
    kept = (folder / "trials.jsonl").read_bytes()
    assert kept
    lab.press("Resume")
    lab.until(lambda: rows_in(folder) > kept.count(b"\n"), "there is another row")
    assert (folder / "trials.jsonl").read_bytes().startswith(kept)
    cancel(lab)


def test_a_reload_finds_the_run_that_is_under_way(lab):
    folder = start(lab, blocks=MANY_BLOCKS)
    lab.wait_for_status("running")
    lab.reload()
    # The saved panel, still alive in the kernel.
    lab.wait_for_status("running")
    # And its cell once more: the new one takes the same run up.
    lab.run_cells("lab.panel(")
    lab.wait_for_status("running")
    assert lab.server.runs()[-1] == folder
    cancel(lab)
    assert status_of(folder) == "cancelled"


def test_a_kernel_restart_ends_the_run_and_the_panel_comes_back(lab):
    folder = start(lab, blocks=MANY_BLOCKS)
    lab.until(lambda: rows_in(folder) >= 1, "there is a row")
    lab.until(lab.server.left, "a trial is running")
    lab.restart_kernel()
    wait_until_nothing_is_left(lab)
    rows, runs = rows_in(folder), lab.server.runs()
    lab.run_cells("data =", "lab.panel(")  # and not the cell that runs the experiment
    lab.wait_for_status("ready", "finished", "cancelled")
    # The newest run is shown, without running anything again.
    lab.until(lambda: lab.panel.locator(".labkit-result img").count(), "the chart is shown")
    assert (rows_in(folder), lab.server.runs()) == (rows, runs)


@pytest.fixture
def closed(opened):
    """A run that was going on while its tab was closed: its folder and the server."""
    opened.save()
    folder = start(opened, blocks=1)
    opened.close()
    return folder, opened.server


def test_a_closed_tab_lets_the_run_end_and_a_reopened_notebook_is_not_empty(closed, browser):
    folder, server = closed
    until(lambda: status_of(folder) == "finished", lambda: "the run ends without its page")
    until(lambda: not server.left(), server.left)
    server.shut_down_kernels()
    until(lambda: len(server.processes()) == 1, server.processes)
    lab = LabPage(browser, server, "02_prefetching")
    outputs = lab.page.locator(".jp-OutputArea-output")
    lab.until(lambda: LOST in outputs.all_text_contents(), "the panel's cell is shown")
    # The claims are an output of the notebook, and the run is one cell away.
    lab.until(outputs.locator("table").last.is_visible, "the claims are shown")
    assert lab.complaints == [LOST]
    lab.run_cells("data =", "lab.panel(")
    lab.wait_for_status("ready: showing")
    lab.until(lab.panel.locator(".labkit-result img").is_visible, "the chart is shown")
    assert lab.complaints == []
    assert [problem for problem in lab.problems if "widget model not found" not in problem] == []
    lab.close()


# Widgets live as long as their kernel; JupyterLab writes this where one was.
LOST = "Error displaying widget: model not found"
