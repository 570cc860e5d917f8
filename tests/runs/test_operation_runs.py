"""Operations go through the ordinary runner: rows, table, chart."""

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from fake_runs import cancelled_after_a_row, fake_grouped_run
from figure_checks import check_texts_are_whole_and_apart, everything_written
from jpegs import why_missing

import labkit as lab
from labkit import units
from labkit.claims.ledger import answers
from labkit.records import OperationTrial
from labkit.runs.active_run import ActiveRun
from labkit.runs.check_run import check_resumable, check_run
from labkit.runs.launcher import TrialKilled
from labkit.runs.operation_trials import compare_operations

EXAMPLES = Path(__file__).parents[2] / "results" / "examples" / "2-cores-simulated"
GROUPS = ("decode, 320×240", "crop, 320×240")


def few(photos, **changes):
    """The operations of two groups."""
    whole = lab.experiment("operations", data=str(photos), **changes)
    return lab.choose(
        whole, [label for label, variant in whole.variants.items() if variant.group in GROUPS]
    )


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    return lab.run(few(photos), blocks=1, results=results, progress=False)


def test_a_row_is_small_and_says_what_it_timed(run):
    assert run.info.status == "finished"
    measured = [trial for trial in run.trials if trial.status == "ok"]
    assert {run.info.group_of(trial.variant) for trial in measured} == set(GROUPS)
    twice = {(t.block, t.variant, t.role) for t in measured if t.role}
    assert len(twice) == 2 * len(GROUPS)
    for trial in measured:
        assert trial.image_s > 0 and trial.calls >= 4
        assert trial.labels == {"input": "in memory", "threads": "1"}
        assert "steal_share" in trial.disturbance
    lines = (run.folder / "trials.jsonl").read_text().splitlines()
    assert max(map(len, lines)) < 500 and "epochs" not in "".join(lines)


def test_quick_mode_has_ten_rounds_unless_the_user_asks_for_another_number(photos):
    assert check_run(few(photos), "quick", None)[0].blocks == 10
    assert check_run(few(photos), "quick", 2)[0].blocks == 2
    assert check_run(few(photos), "document", None)[0].blocks == 1


def test_each_group_is_divided_by_its_own_baseline(run):
    summary = run.summary
    for group, rows in summary.groups().items():
        assert rows[0].variant == f"{group}: pillow"
        assert rows[0].normalized_time == 1
        for row in rows:
            missing = why_missing(row.variant.rpartition(": ")[2])
            assert row.status == ("skipped" if missing else "ok"), row.reason
            assert (row.normalized_time is None) == bool(missing)


def test_the_table_shows_groups(run):
    table = lab.table(run)
    assert table.index.names == ["group", "variant"]
    assert ("crop, 320×240", "numpy") in table.index
    assert next(iter(table.columns)) == "time per image"


def test_a_killed_process_costs_its_group_alone_and_a_resumed_run_times_it(
    photos, tmp_path, monkeypatch
):
    with monkeypatch.context() as patched:
        ask = ActiveRun.ask

        def killed(run, job, **arguments):
            if any(task["operation"] == "crop" for task in arguments["tasks"].values()):
                raise TrialKilled("the trial's process was killed by SIGSEGV; see worker.log")
            return ask(run, job, **arguments)

        patched.setattr(ActiveRun, "ask", killed)
        how = {"results": tmp_path, "progress": False, "blocks": 1}
        broken = lab.run(few(photos), **how)
    rows = {row.variant: row for row in broken.summary.rows}
    assert rows["decode, 320×240: opencv"].status == "ok"
    assert rows["crop, 320×240: pillow"].status == "failed"
    assert rows["crop, 320×240: numpy"].reason.endswith("was killed by SIGSEGV; see worker.log")
    resumed = lab.resume(broken.folder, progress=False)
    assert resumed.info.status == "finished"
    assert resumed.trials[: len(broken.trials)] == broken.trials
    timed = [(t.variant, t.block, t.role) for t in resumed.trials if t.status == "ok"]
    assert len(timed) == len(set(timed))
    assert {resumed.info.group_of(name) for name, _, _ in timed} == set(GROUPS)


def test_a_cancelled_run_keeps_its_finished_groups(photos, tmp_path):
    cancelled = lab.run(few(photos), blocks=1, results=tmp_path, **cancelled_after_a_row())
    assert cancelled.info.status == "cancelled"
    done = {cancelled.info.group_of(t.variant) for t in cancelled.trials if t.status == "ok"}
    assert len(done) == 1
    assert lab.resume(cancelled.folder, progress=False).info.status == "finished"


# --- a decoder of the user's own ------------------------------------------------------------


def own_decoder(jpeg):
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)


def swapped(jpeg):
    return np.ascontiguousarray(own_decoder(jpeg)[..., ::-1])


def test_decoders_of_the_users_own_are_timed_if_they_do_the_same_work(
    photos, tmp_path, monkeypatch
):
    monkeypatch.setitem(lab.DECODERS, "mine", own_decoder)
    monkeypatch.setitem(lab.DECODERS, "swapped", swapped)
    whole = lab.experiment("operations", data=str(photos))
    own = [f"decode, 320×240: {name}" for name in ("pillow", "mine", "swapped")]
    run = lab.run(lab.choose(whole, own), blocks=1, results=tmp_path, progress=False)
    rows = {row.name: row for row in run.summary.rows}
    assert rows["mine"].status == "ok" and rows["mine"].normalized_time > 0
    assert rows["swapped"].status == "failed"
    assert "not the same work as pillow: " in rows["swapped"].reason


def test_an_operation_that_is_not_known_any_more_is_skipped(photos):
    size = {"width_px": 320, "height_px": 240}
    tasks = {"gone": {"operation": "decode", "library": "mine", **size}}
    verdicts = compare_operations(lab.Settings(data=str(photos)), tasks)
    reason = "decode by 'mine' is not known here; add it again, and resume"
    assert verdicts == {"gone": ("skipped", reason)}


# --- runs of earlier versions, which timed each operation in a process of its own ------------


def test_a_run_of_an_earlier_version_has_its_numbers_and_is_not_resumed():
    old = lab.find_run(EXAMPLES / "lookups")
    assert {type(trial) for trial in old.trials} == {OperationTrial}
    first = json.loads((old.folder / "trials.jsonl").read_text().splitlines()[0])
    (epoch,) = first["epochs"]
    assert (old.trials[0].image_s, old.trials[0].calls) == (epoch["epoch_s"], epoch["steps"])
    with pytest.raises(ValueError, match="must have operations that were timed in rounds, got "):
        check_resumable(old)


def test_a_broken_photograph_ends_the_run_and_is_named(photos, tmp_path):
    (tmp_path / "own").mkdir()
    for path in sorted((photos / "images").iterdir())[:8]:
        (tmp_path / "own" / path.name).write_bytes(b"\xff\xd8 broken")
    with pytest.raises(RuntimeError, match=r"\.jpg: "):
        lab.run(few(tmp_path / "own"), results=tmp_path / "results", progress=False)


# --- look-ups, the same way ---------------------------------------------------------------


@pytest.fixture(scope="module")
def looked_up(photos, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    experiment = lab.experiment("lookups", data=str(photos))
    return lab.run(experiment, blocks=1, results=results, progress=False)


def test_what_is_looked_up_takes_a_share_of_a_sample(looked_up):
    rows = {row.variant: row for row in looked_up.summary.rows}
    assert {row.status for row in rows.values()} == {"ok"}
    assert rows["label among 10,000 names: dict"].normalized_time < 0.5
    assert rows["configuration of 1,000 KB: parsed once"].normalized_time < 0.01
    shown = looked_up.table().data
    whole = rows["one sample: decoded and preprocessed"].time_s
    for row in rows.values():
        cells = shown.loc[row.group, row.name]
        assert cells["of a sample"] == f"{100 * row.time_s / whole:.1f} %"
        look_ups = row.labels.get("look-ups per image")
        assert (look_ups is None) == (cells["per look-up"] == "–")
        assert (look_ups is None) == ("label" not in row.group)


def test_the_curve_shows_every_look_up_beside_a_samples_time(looked_up):
    figure = looked_up.chart()
    rows = {row.variant: row for row in looked_up.summary.rows}
    sample_s = rows.pop("one sample: decoded and preprocessed").time_s
    drawn = {y for axes in figure.axes for line in axes.lines for y in line.get_ydata()}
    assert drawn == {*(row.time_s for row in rows.values()), sample_s, 0.01 * sample_s}
    assert f"decoded and preprocessed, {units.seconds(sample_s)}" in everything_written(figure)
    check_texts_are_whole_and_apart(figure)


def test_the_claims_about_look_ups_are_answered(looked_up):
    once, as_dict = answers(looked_up.folder.parents[1], numbers=[27, 28])
    said = "took less time in %s groups, no verdict in quick mode"
    assert once["answer"] == f"parsed once {said % '2 of 2'}"
    assert re.fullmatch(f"dict {said % '[34] of 4'}", as_dict["answer"])


# --- what is shown, without running anything ----------------------------------------------


def test_in_full_mode_all_groups_are_judged_together():
    # Three blocks more than verdicts need; the noise is small beside every difference.
    summary = fake_grouped_run(blocks=9, mode="full").summary
    verdicts = {row.variant: row.verdict for row in summary.rows if row.verdict != "baseline"}
    assert set(verdicts.values()) == {"faster", "slower"}
    compared = [row for row in summary.rows if not row.is_baseline]
    assert min(row.level for row in compared) == pytest.approx(0.05 / len(compared))


def test_a_group_whose_baseline_is_missing_has_reasons_and_the_others_numbers():
    run = fake_grouped_run(skipped={"crop, 320×240: pillow": "not installed"})
    trials = tuple(t for t in run.trials if t.variant != "crop, 320×240: pillow")
    rows = {
        row.variant: row
        for row in lab.Run(folder=run.folder, info=run.info, trials=trials).summary.rows
    }
    assert rows["crop, 320×240: pillow"].reason == "not installed"
    assert rows["crop, 320×240: opencv"].status == "missing"
    assert rows["decode, 320×240: opencv"].normalized_time == pytest.approx(0.7, rel=0.1)
