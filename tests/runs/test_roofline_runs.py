"""A roofline goes through the ordinary runner: rows, resume, table, chart."""

from dataclasses import replace

import pytest
from fake_runs import cancelled_after_a_row

import labkit as lab
from labkit import units
from labkit.contracts import Skip
from labkit.experiments.device_speeds import over_device_speeds
from labkit.experiments.request import Request
from labkit.parts.devices import GpuSpeeds, SimulatedGpu
from labkit.runs import trial_speeds
from labkit.runs.store import TRIALS_FILE, write_info

# Six batches: fewer have no steady rate.
SMALL = {"storage": "here", "images": 12, "batch_size": 2, "input_px": 64, "num_workers": 2}
FEW = {"variants": ("original", "simplified"), "settings": SMALL}


@pytest.fixture(scope="module", autouse=True)
def a_machine_too_slow_for_the_fastest_device():
    check = trial_speeds.check_simulated_gpu

    def slow(run, settings):
        if settings.gpu_images_per_s > 2.5 * run.info.calibration.load_images_per_s:
            raise Skip("too fast")
        return check(run, settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_speeds, "check_simulated_gpu", slow)
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
    assert cancelled.info.status == "cancelled"
    assert [trial.status for trial in cancelled.trials].count("ok") == 1
    assert run.info.status == "finished"
    assert run.trials[: len(cancelled.trials)] == cancelled.trials
    done = [(t.variant, t.role) for t in run.trials if t.status == "ok"]
    assert len(done) == len(set(done)) == 3 * 3
    # What these show is tested with made-up rows.
    assert (run.charts, len(run.findings())) == (("roofline",), 1)


def test_a_speed_that_cannot_be_simulated_is_left_out_with_its_reason(run):
    left_out = {row.group for row in run.summary.rows if row.status == "skipped"}
    assert left_out == {"x = 4"}
    assert run.info.skipped["x = 4: original"] == "too fast"


def test_the_device_of_a_row_is_as_fast_as_its_group_says(run):
    load_rate = run.info.calibration.load_images_per_s
    for trial in (trial for trial in run.trials if trial.status == "ok"):
        assert trial.variant.startswith(f"{trial.group}: ")
        assert len(trial.epochs) == 1
        if trial.group == "loading alone":
            assert trial.epochs[0].compute_s == 0
        else:
            x = float(trial.group.removeprefix("x = "))
            assert trial.settings["gpu_images_per_s"] == pytest.approx(x * load_rate)


class OwnDevice(SimulatedGpu):
    """A device of the user's own, which labkit cannot make faster: 150 images/s."""

    is_simulated = False

    def __init__(self, profile, clock):
        super().__init__(GpuSpeeds(name="own", gpu_images_per_s=150.0), clock)


def work(settings, device):
    return lab.Step(forward=lambda batch: device.compute(len(batch["sample_id"])))


@pytest.fixture(scope="module")
def on_a_real_device(photos, tmp_path_factory):
    whole = lab.experiment(
        "preprocessing", **{**SMALL, "num_workers": 1}, data=str(photos), device="own", step="work",
        jitter_ms=40, pin_memory=False,
    )  # fmt: skip
    whole = over_device_speeds(lab.choose(whole, FEW["variants"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(lab.DEVICES, "own", OwnDevice)
        patch.setitem(lab.STEPS, "work", work)
        how = {"results": tmp_path_factory.mktemp("results"), **cancelled_after_a_row()}
        cut = lab.run(whole, blocks=1, **how)
        # As if it had ended while the device was measured: without a row, or a slower device.
        calibration = replace(cut.info.calibration, device_images_per_s=None)
        tasks = {label: {"x": task["x"]} for label, task in cut.info.tasks.items()}
        write_info(cut.folder, replace(cut.info, calibration=calibration, tasks=tasks))
        (cut.folder / TRIALS_FILE).write_text("")
        yield lab.resume(cut.folder, progress=False)


@pytest.mark.long
def test_a_real_device_is_slowed_down_by_repeating_the_step(on_a_real_device):
    run = on_a_real_device
    calibration = run.info.calibration
    own, load = calibration.device_images_per_s, calibration.load_images_per_s
    repeats = {name: run.info.gpu_slowdown_of(name) for name in run.info.variants}
    alone = next(x for x in run.summary.rows if x.is_baseline and x.group == "loading alone")
    for row in run.summary.rows:
        times = repeats[row.variant]
        if row.group.startswith("x ≈"):
            wanted = round(own / load / float(row.group.removeprefix("x ≈ ")))
            assert times == wanted > 1 or (wanted == 1 and row.status == "skipped")
            is_beyond = float(row.group.removeprefix("x ≈ ")) > own / load
            assert ("not reachable" in row.reason) == is_beyond
        else:
            assert times == 1
        if row.status == "ok" and row.group != "loading alone":
            assert row.device_images_per_s == own / times
            assert row.x == pytest.approx(own / times / alone.steady_images_per_s)
    done = [trial for trial in run.trials if trial.status == "ok"]
    assert {"this GPU", "x ≈ 0.5", "x ≈ 1", "loading alone"} <= {trial.group for trial in done}
    for trial in done:
        if trial.group != "loading alone":
            assert trial.time_s >= trial.images * repeats[trial.variant] / 150


@pytest.mark.long
def test_the_chart_of_a_real_device_is_read_at_its_own_speed(on_a_real_device):
    run = on_a_real_device
    own = run.info.calibration.device_images_per_s
    assert own == pytest.approx(150, rel=0.3)
    assert f"With your GPU of {units.rate(own)}" in run.chart().get_label()
    (found,) = run.findings().values()
    assert f"GPU of {own:,.0f}" in found.data.columns


def test_training_on_each_batch_several_times_is_the_same_work(photos, tmp_path):
    trained = {"device": "cpu", "step": "small_classifier", "preprocessor": "classification"}
    base = lab.Settings(**{**SMALL, **trained, "num_workers": 0}, data=str(photos))
    thrice = lab.Variant(settings=base, task={"gpu_slowdown": 3})
    whole = lab.Experiment("test", question="?", variants={"once": base, "thrice": thrice})
    run = lab.run(whole, blocks=1, results=tmp_path, progress=False)
    assert {row.status for row in run.summary.rows} == {"ok"}
    once, *_, thrice = sorted(run.trials, key=lambda trial: trial.variant)
    assert once.first_loss == thrice.first_loss
    assert thrice.loss != pytest.approx(once.loss, rel=0.001)


@pytest.mark.needs_cuda
def test_the_line_is_at_this_machines_gpu(photos, tmp_path):
    how = {"results": tmp_path, "progress": False, "blocks": 1, "data": str(photos)}
    run = lab.roofline("preprocessing", **SMALL, **how)
    assert run.info.calibration.real_gpu_images_per_s > 0
    assert "your GPU" in run.chart().get_label()


@pytest.mark.needs_cuda
def test_a_roofline_on_this_machines_gpu_is_measured_up_to_its_speed(photos, tmp_path):
    how = {"results": tmp_path, "progress": False, "blocks": 1, "data": str(photos)}
    slow = {"jitter_ms": 20, "num_workers": 1}  # slower than any GPU
    run = lab.roofline("preprocessing", device="cuda", **SMALL, **slow, **how)
    own = run.info.calibration.device_images_per_s
    rates = {row.group: row.device_images_per_s for row in run.summary.rows}
    assert own == rates["this GPU"] > rates["x ≈ 2"] > rates["x ≈ 1"] > rates["x ≈ 0.5"]
    assert {row.status for row in run.summary.rows} == {"ok"}
    assert "With your GPU of" in run.chart().get_label()


@pytest.mark.needs_cuda
def test_a_run_on_this_machines_gpu_knows_its_rate_and_x(photos, tmp_path):
    how = {"results": tmp_path, "progress": False, "blocks": 1}
    experiment = lab.experiment(
        "preprocessing", device="cuda", num_workers=1, data=str(photos), **SMALL
    )
    run = lab.run(experiment, **how)
    base = run.summary.rows[0]
    assert base.device_images_per_s == run.info.calibration.device_images_per_s > 0
    assert base.x == base.device_images_per_s / base.load_images_per_s
