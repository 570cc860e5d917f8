"""A roofline goes through the ordinary runner: rows, resume, table, chart."""

import pytest
from fake_runs import cancelled_after_a_row

import labkit as lab
from labkit.contracts import Skip
from labkit.experiments.request import Request
from labkit.runs import checks

SMALL = {"images": 8, "batch_size": 4, "input_px": 64}
FEW = {"variants": ("original", "simplified"), "settings": SMALL}


@pytest.fixture(scope="module", autouse=True)
def a_machine_too_slow_for_the_fastest_device():
    check = checks.check_emulator

    def slow(run, settings):
        if settings.device_speed > 2.5 * run.info["calibration"]["load_images_per_s"]:
            raise Skip("too fast")
        return check(run, settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labkit.runs.kinds.check_emulator", slow)
        yield


@pytest.fixture(scope="module")
def cancelled(photos, tmp_path_factory):
    """A run that was cancelled after its first row."""
    settings = {**FEW["settings"], "data": str(photos)}
    asked = Request(experiment="preprocessing", variants=FEW["variants"], settings=settings)
    how = {"results": tmp_path_factory.mktemp("results"), **cancelled_after_a_row()}
    return lab.roofline(asked.build(), blocks=1, **how)


@pytest.fixture(scope="module")
def run(cancelled):
    return lab.resume(cancelled.folder, progress=False)


def test_a_cancelled_roofline_is_completed_row_by_row(cancelled, run):
    assert cancelled.info["status"] == "cancelled"
    assert [trial.status for trial in cancelled.trials].count("ok") == 1
    assert run.info["status"] == "finished"
    assert run.trials[: len(cancelled.trials)] == cancelled.trials
    done = [(t.variant, t.role) for t in run.trials if t.status == "ok"]
    assert len(done) == len(set(done)) == 3 * 3


def test_a_speed_that_cannot_be_emulated_is_left_out_with_its_reason(run):
    left_out = {row.group for row in run.summary.rows if row.status == "skipped"}
    assert left_out == {"x = 4"}
    assert run.info["skipped"]["x = 4: original"] == "too fast"


def test_the_device_of_a_row_is_as_fast_as_its_group_says(run):
    load_rate = run.info["calibration"]["load_images_per_s"]
    for trial in (trial for trial in run.trials if trial.status == "ok"):
        assert trial.variant.startswith(f"{trial.group}: ")
        assert len(trial.epochs) == 1
        if trial.group == "loading alone":
            assert trial.epochs[0].compute_s == 0
        else:
            x = float(trial.group.removeprefix("x = "))
            assert trial.settings["device_speed"] == pytest.approx(x * load_rate)


def test_table_findings_and_chart_show_every_speed(run):
    table = lab.table(run)
    assert next(iter(table.columns)) == "speed after the first batch"
    assert ("x = 2", "simplified") in table.index
    (found,) = run.findings().values()
    assert [*found.index] == ["original", "simplified"]
    assert found.data["the document's time takes"].iloc[1].endswith("(0.661)")
    assert run.charts == ("roofline",)
    assert "simplified" in run.chart().get_label()
    assert {path.name for path in run.save()} >= {"table.csv", "chart.png"}


@pytest.mark.needs_cuda
def test_the_line_is_at_this_machines_gpu(photos, tmp_path):
    how = {"results": tmp_path, "progress": False, "blocks": 1, "data": str(photos)}
    run = lab.roofline("preprocessing", **FEW["settings"], **how)
    assert run.info["calibration"]["gpu_images_per_s"] > 0
    assert "your GPU" in run.chart().get_label()
