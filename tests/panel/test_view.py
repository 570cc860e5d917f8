"""The panel without a browser: what it shows, and what its buttons do and allow."""

import html
import json
import re
import shlex
import shutil
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_runs import fake_roofline, save_rows, save_run
from fakes import fake_info, fake_trials
from small import SMALL
from widgets import below, labelled

import labkit as lab
from labkit.experiments.request import Request
from labkit.panel import job, view
from labkit.panel.earlier import EarlierRuns
from labkit.runs.store import write_info
from tests.processes import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "results/examples/2-cores-simulated"
EXAMPLE = EXAMPLES / "preprocessing"
HOSTILE = '<script>alert("1")</script>'


def shown(box, name):
    """The HTML of a part of a panel, by its class."""
    (found,) = (w for w in below(box) if f"labkit-{name}" in w._dom_classes)
    return found.value


def words(text):
    """What a user reads of HTML."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))).strip()


def said(box, name):
    return words(shown(box, name))


def press(box, text):
    labelled(box, text).click()


def listed(box):
    """The list of earlier runs."""
    (found,) = (w for w in below(box) if "labkit-runs" in w._dom_classes)
    return found


def cells(box):
    """The list's lines, a list of columns each."""
    lines = (re.split(r"\xa0{2,}", text) for text, _ in listed(box).options)
    return [[cell.replace("\xa0", " ") for cell in line] for line in lines]


def finish():
    assert job.current().wait(PATIENCE_S)
    for thread in threading.enumerate():  # the last drawing is the run's thread's
        if thread.name.startswith("labkit "):
            thread.join(PATIENCE_S)


def can_press(box):
    names = ("Run", "Cancel", "Resume", "Reset", "Show", "PNG")
    return [text for text in names if not labelled(box, text).disabled]


@pytest.fixture
def small(photos):
    return lab.Experiment(
        "small",
        question="Which decoder is <faster>?",
        variants=lab.sweep(
            lab.Settings(data=str(photos), **SMALL), "decoder", ["opencv", "pillow"]
        ),
        baseline="opencv",
    )


@pytest.fixture
def panel(small, tmp_path):
    return lab.panel(small, blocks=1, results=tmp_path)


@pytest.fixture
def earlier(tmp_path):
    """Results that hold two runs of one experiment, the newest last."""
    for name in ("20260101T000000Z-aaaa", "20260102T000000Z-bbbb"):
        shutil.copytree(EXAMPLE, tmp_path / "preprocessing" / name)
    return tmp_path


def test_run_shows_rows_and_then_the_result_from_disk(panel, small, tmp_path):
    assert said(panel, "status") == "ready: no run yet, press Run"
    assert said(panel, "forecast").startswith("At least ")
    assert can_press(panel) == ["Run", "Reset", "Show", "PNG"]
    seen = []
    (result,) = (w for w in below(panel) if "labkit-result" in w._dom_classes)
    result.observe(lambda change: seen.append("<table" in change["new"]), "value")
    press(panel, "Run")
    assert "Cancel" in can_press(panel)
    assert "Run" not in can_press(panel)
    assert labelled(panel, "num_workers").disabled
    finish()
    assert shown(panel, "error") == ""
    assert len(list(filter(None, seen))) > 1  # drawn while the run goes on, too
    assert said(panel, "status") == "finished: trial 3 of 3"
    assert said(panel, "forecast").startswith("About ")
    assert "Which decoder is &lt;faster&gt;?" in shown(panel, "result")
    assert "<table" in shown(panel, "result")
    assert can_press(panel) == ["Run", "Reset", "Show", "PNG"]
    (folder,) = lab.list_runs(tmp_path)
    assert [value for _, value in listed(panel).options] == [folder]
    assert panel.run.folder == folder

    # The same without running: what a reopened notebook finds.
    again = lab.panel(small, results=tmp_path)
    assert re.fullmatch(r"ready: showing the run of .* UTC, finished", said(again, "status"))
    assert shown(again, "result") == shown(panel, "result")
    press(again, "PNG")
    assert f"saved {folder / 'chart.png'}" in said(again, "exported")
    press(again, "CSV")
    assert 'download="table.csv"' in shown(again, "exported")


def missing(chart):
    """List the variants that a chart's description calls missing."""
    return [
        name for names in re.findall(r"\. ([^.]+): missing: ", chart) for name in names.split(", ")
    ]


@pytest.fixture
def drawn_at_once(monkeypatch):
    """A panel draws after each trial, however short."""
    monkeypatch.setattr(job, "LEAST_PAUSE_S", 0)
    monkeypatch.setattr(job, "DRAWING_PAUSES", 0)


def test_variants_appear_in_the_chart_as_trials_finish(tmp_path, drawn_at_once):
    box = lab.panel("preprocessing", results=tmp_path)
    folder = tmp_path / "preprocessing" / "20260101T000000Z-aaaa"
    shutil.copytree(EXAMPLE, folder)
    info = lab.find_run(folder).info
    block = (folder / "trials.jsonl").read_text().splitlines(keepends=True)[:4]
    rows = sorted(block, key=lambda row: json.loads(row)["variant"] != info.baseline)
    (folder / "trials.jsonl").write_text("")
    write_info(folder, replace(info, status="running"))
    (result,) = (w for w in below(box) if "labkit-result" in w._dom_classes)
    drawn = []
    result.observe(lambda change: drawn.append(change["new"].partition("<table")[0]), "value")

    def run(cancel, progress):
        progress.begin(folder)
        progress.start(total=len(rows), done=0)
        for row in rows:
            with (folder / "trials.jsonl").open("a") as file:
                file.write(row)
            progress.advance()
        write_info(folder, replace(info, status="cancelled"))
        return lab.find_run(folder)

    job.start("preprocessing", run)
    finish()
    assert shown(box, "error") == ""
    assert [chart.count("<img") for chart in drawn[:4]] == [1, 1, 1, 1]
    # The baseline is there after its second trial, each other variant after its first.
    assert [len(missing(chart)) for chart in drawn[:4]] == [3, 2, 1, 0]


def test_what_the_user_chose_to_see_stays_while_a_run_goes_on(earlier, drawn_at_once):
    oldest, gone = lab.list_runs(earlier)
    box = lab.panel("preprocessing", results=earlier)
    current = earlier / "preprocessing" / "20260103T000000Z-cccc"
    drawn = []

    def run(cancel, progress):
        shutil.copytree(EXAMPLE, current)
        info = lab.find_run(current).info
        write_info(current, replace(info, status="running"))
        progress.begin(current)
        progress.start(total=3, done=0)
        for folder in (gone, oldest, current):
            listed(box).value = (folder,)
            if folder == gone:  # which cannot be shown: the run in progress is
                shutil.rmtree(folder)
            press(box, "Show")
            progress.advance()
            drawn.append(box.run.folder)
        listed(box).value = (oldest,)
        press(box, "Show")
        write_info(current, info)
        return lab.find_run(current)

    job.start("preprocessing", run)
    finish()
    assert shown(box, "error") == ""
    assert drawn == [current, oldest, current]
    assert said(box, "status").startswith("finished")
    assert box.run.folder == oldest


def test_a_value_that_is_filled_in_is_run_too(panel):
    labelled(panel, "num_workers").value = "0"
    assert said(panel, "error") == ""
    labelled(panel, "another setting").value = "num_workers"
    labelled(panel, "=").value = "many"
    for button in ("Add", "Run"):
        press(panel, button)
        assert said(panel, "error").startswith("num_workers must be a whole number, got 'many'")
    assert job.current() is None
    labelled(panel, "another setting").value = "prefetch_factor"
    labelled(panel, "=").value = "3"
    press(panel, "Run")
    finish()
    assert shown(panel, "error") == ""
    assert panel.run.info.request["added"] == ["prefetch_factor=3"]
    assert [row.variant for row in panel.run.summary.rows] == [
        "opencv", "pillow", "prefetch_factor=3",
    ]  # fmt: skip


def test_a_second_panel_takes_up_the_run_and_may_cancel_it(panel, small, tmp_path):
    labelled(panel, "blocks").value = "60"
    press(panel, "Run")
    second = lab.panel(small, results=tmp_path)
    assert "Cancel" in can_press(second)
    assert "Run" not in can_press(second)
    press(second, "Cancel")
    assert said(second, "status").startswith("cancel")  # it may have ended already
    finish()
    for each in (panel, second):
        assert said(each, "status").startswith("cancelled")
        assert shown(each, "error") == ""
        assert "Run" in can_press(each)
        assert "Cancel" not in can_press(each)
    (folder,) = lab.list_runs(tmp_path)
    assert lab.find_run(folder).info.status == "cancelled"
    assert "Resume" in can_press(panel)


def test_errors_stand_in_the_panel_with_their_next_step(panel):
    labelled(panel, "data").value = "/no/such/folder"
    press(panel, "Run")
    finish()
    assert said(panel, "status").startswith("failed")
    assert said(panel, "error").startswith("data must be ")
    assert "Traceback" in shown(panel, "error")
    assert not [w for w in below(panel) if "labkit-earlier" in w._dom_classes]
    press(panel, "Reset")
    assert shown(panel, "error") == ""
    labelled(panel, "input_px").value = "100"
    message = "input_px must be a positive multiple of 32, got 100; try 256 or 512"
    assert said(panel, "error").startswith(message)
    for button, advice in (
        ("Show", "choose some in the list"),
        ("PNG", "run the experiment first"),
    ):
        press(panel, button)
        message = f"runs must be at least one, got none; {advice}"
        assert said(panel, "error").startswith(message)


def test_the_request_is_shown_as_a_command_line_and_as_python(panel, photos, tmp_path):
    box = lab.panel("preprocessing", results=tmp_path, data=str(photos))
    labelled(box, "num_workers").value = "1"
    labelled(box, "vectorized").value = False
    command = (
        f"labkit run preprocessing --mode quick --variant original --variant simplified "
        f"--data {shlex.quote(str(photos))} --num-workers 1 --results {tmp_path}"
    )
    assert command in said(box, "again")
    assert "lab.experiment('preprocessing'" in said(box, "again")
    # An experiment of the user's own has no name that a shell knows.
    assert "labkit run" not in said(panel, "again")
    assert "lab.run(experiment, 'quick'" in said(panel, "again")


def test_several_runs_stand_side_by_side_and_are_exported_as_one_figure(earlier):
    box = lab.panel("preprocessing", results=earlier)
    newest, oldest = lab.list_runs(earlier)[::-1]
    assert said(box, "status").startswith("ready: showing the run of 2026-")
    listed(box).value = (newest, oldest)
    press(box, "Show")
    assert said(box, "status") == "ready: showing 2 runs side by side"
    assert shown(box, "result").count("<img") == 1
    assert "Resume" not in can_press(box)
    press(box, "CSV")
    assert said(box, "error").startswith("runs must be one for CSV, got 2; choose one")
    press(box, "SVG")
    assert f"saved {earlier / 'reports'}" in said(box, "exported")


def test_a_colleagues_run_and_a_roofline_stand_in_the_list_of_their_experiment(earlier, tmp_path):
    lab.open_shared(lab.find_run(EXAMPLE).share(tmp_path / "run.labkit.zip"), earlier)
    save_run(earlier, fake_roofline())
    box = lab.panel("preprocessing", roofline=True, results=earlier)
    notes = [line[-1] for line in cells(box)]
    assert len(notes) == 4
    assert (
        sum("machine" in note for note in notes) == sum("roofline" in note for note in notes) == 1
    )
    assert f"labkit roofline preprocessing --mode quick --results {earlier}" in said(box, "again")


def test_a_run_is_drawn_whatever_its_experiment_is_called(small, tmp_path):
    own = replace(small, name="my_roofline_test")
    info = fake_info(["opencv", "pillow"], experiment=own.name)
    save_rows(tmp_path, info, fake_trials({"opencv": 1.0, "pillow": 0.9}))
    assert "<table" in shown(lab.panel(own, results=tmp_path), "result")


def test_a_killed_run_is_called_stopped_and_a_broken_one_hides_no_other(earlier):
    oldest, newest = lab.list_runs(earlier)
    write_info(newest, replace(lab.find_run(newest).info, status="running"))
    box = lab.panel("preprocessing", results=earlier)
    assert re.fullmatch(r"ready: showing the run of .* UTC, stopped", said(box, "status"))
    assert cells(box)[0][2] == "stopped"
    (newest / "run.json").write_text('{"mode": 5, "status": null, "created_utc": 1}')
    box = lab.panel("preprocessing", results=earlier)
    assert [value for _, value in listed(box).options] == [oldest]


def test_without_a_name_the_catalog_can_be_chosen_from(earlier):
    box = lab.panel(results=earlier, preprocessor="vectorized")
    names = labelled(box, "experiment")
    assert names.options == tuple(lab.CATALOG)
    watching = len(job._watchers)
    names.value = "storage"  # the panel that is shown stays
    problem, shown_now = box.children[1:]
    assert words(problem.value).startswith("preprocessor must be left out for storage")
    assert box.children[2] is shown_now
    names.value = "combined"
    names.value = "workers"
    assert problem.value == ""
    assert lab.experiment("workers").question in words(box.children[2].children[1].value)
    assert len(job._watchers) == watching  # the panel that went hears nothing more


def test_an_unknown_mode_is_refused_in_words():
    with pytest.raises(ValueError, match=r"^mode must be one of .*, got 'fast'"):
        lab.panel("preprocessing", mode="fast")


def test_rooflines_can_be_chosen_from_the_list_where_there_are_any(tmp_path):
    box = lab.panel(roofline=True, results=tmp_path)
    for name, roofline in (("preprocessing", True), ("stalls", False), ("storage", True)):
        labelled(box, "experiment").value = name
        asked = said(box.children[2], "again")
        assert f"labkit {'roofline' if roofline else 'run'} {name}" in asked


def test_hostile_text_stays_text(tmp_path):
    file = tmp_path / "<b>.txt"
    file.write_text("x")
    everything = [
        view.status_html("failed", HOSTILE),
        view.error_html(ValueError(HOSTILE)),
        view.again_html(Request(experiment="storage", settings={"data": HOSTILE}), HOSTILE),
        view.download_html(file),
    ]
    elements = []
    parser = HTMLParser()
    parser.handle_starttag = lambda name, _: elements.append(name)
    for text in everything:
        parser.feed(text)
    assert {"script", "b"}.isdisjoint(elements)


def test_a_line_of_the_list_says_when_how_and_what_was_fastest(tmp_path):
    names = ("storage", "preprocessing_full", "prefetching_as_in_the_document")
    for name in names:
        shutil.copytree(EXAMPLES / name, tmp_path / "mine" / f"20260101T000000Z-{name}")
    listed_runs = EarlierRuns("mine", tmp_path)
    listed_runs.read()
    lines = {line[-1].split(" · ")[-1]: line for line in cells(listed_runs.box)}
    date, *others, notes = lines["storage"]
    assert re.fullmatch(r"2026-11-26 \d\d:\d\d", date)
    assert others == ["full", "finished", "simulated", "–", "–"]
    assert notes == "throttled storage · unconfirmed storage · storage"
    assert lines["preprocessing_full"][4:6] == ["simplified", "0.413"]
    assert lines["prefetching_as_in_the_document"][-1].startswith("as in the document · ")


def test_earlier_runs_are_sorted_and_filtered(tmp_path):
    kept = {"full": "preprocessing_full", "quick": "preprocessing", "none": "prefetching"}
    for number, (name, example) in enumerate(kept.items()):
        folder = tmp_path / "mine" / f"20260101T00000{number}Z-{name}"
        shutil.copytree(EXAMPLES / example, folder)
        created = f"2026-01-0{1 + number}T00:00:00Z"
        write_info(folder, replace(lab.find_run(folder).info, created_utc=created))
    runs = EarlierRuns("mine", tmp_path)
    runs.read()

    def names():
        return [line[-1].split(" · ")[-1] for line in cells(runs.box)]

    assert names() == ["none", "quick", "full"]  # the newest first
    listed(runs.box).value = (folder,)
    for order, expected in {
        "ratio": ["full", "quick", "none"],
        "mode": ["none", "full", "quick"],
        "date": ["none", "quick", "full"],
    }.items():
        labelled(runs.box, "sort by").value = order
        assert names() == expected
        assert runs.chosen == (folder,)
    labelled(runs.box, "filter").value = "SIMPLIFIED 0."
    assert names() == ["quick", "full"]
    labelled(runs.box, "filter").value = "simplified full"
    assert names() == ["full"]
    assert runs.chosen == ()
    labelled(runs.box, "filter").value = ""
    assert names() == ["none", "quick", "full"]
