"""What benchmarks conclude from measurements, which themselves take minutes."""

import json
import math
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial

import pytest

import labkit as lab
from benchmarks import diagnosis, frame, gpu, gpu_host, ladder, repeat, tune
from benchmarks.diagnosis import Outcome
from benchmarks.environments import judge
from benchmarks.environments.places import Done
from benchmarks.environments.residency import resident_share
from labkit.analysis.compare import Comparison
from labkit.analysis.rows import Row
from labkit.parts.devices import GpuSpeeds, SimulatedGpu
from tests.fake_clock import FakeClock
from tests.fakes import fake_trial
from tests.short_diagnosis import BUDGET_S, shorten


def test_a_missed_limit_is_printed_saved_and_the_exit_status(tmp_path, capsys):
    report = frame.Report("Speed", Namespace(save=tmp_path / "kept"))
    report.table(("arm", "ratio"), [("faster", "0.5")])
    report.limit(True, "kept")
    assert report.finish() == 0
    report.limit(False, "not kept")
    assert report.finish({"a_s": [1.0]}) == 1
    text = (tmp_path / "kept" / "README.md").read_text()
    assert text == capsys.readouterr().out
    assert "| faster | 0.5   |" in text
    assert text.endswith("- met: kept\n- MISSED: not kept\n")
    assert json.loads((tmp_path / "kept" / "measured.json").read_text())["measured"] == {
        "a_s": [1.0]
    }


RIGHT = Outcome(
    name="slow_transform", bottleneck="transform", first="faster transform", claim=0.44,
    times_s={"broken": [2.0, 2.0], "fixed": [0.8, 0.8]},
)  # fmt: skip
SKIPPED = Outcome(name="slow_disk", skipped="no root")
UNTIMED = Outcome(name="small_shared_memory", bottleneck="shared memory", first="fewer bytes")
FAILED = Outcome(name="shared_lock", failed="exit status 1")


def test_skipped_cases_do_not_count_and_failed_ones_do():
    assert diagnosis.judge([RIGHT, SKIPPED, UNTIMED]) == [
        (True, "right bottleneck: 2 of 2, at least 90 % (seen 2 of 2)"),
        (True, "right first remedy: 2 of 2, at least 85 % (seen 2 of 2)"),
        (True, "right number: 1 of 1, at least 90 % (seen 1 of 1)"),
    ]
    assert diagnosis.judge([RIGHT, FAILED]) == [
        (False, "right bottleneck: 1 of 2, at least 90 % (seen 1 of 1, unseen 0 of 1)"),
        (False, "right first remedy: 1 of 2, at least 85 % (seen 1 of 1, unseen 0 of 1)"),
        (False, "right number: 1 of 2, at least 90 % (seen 1 of 1, unseen 0 of 1)"),
    ]


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({"claim": 0.2}, False),
        ({"claim": 0.2, "is_predicted": True}, False),
        ({"claim": 0.44, "is_predicted": True}, True),
        ({"claim": 0.48, "is_predicted": True, "interval": [0.39, 0.5]}, True),
        ({"claim": 0.48, "is_predicted": True, "interval": [0.42, 0.5]}, False),
        ({"claim": 0.6, "interval": [0.3, 0.9]}, True),
        ({"claim": 0.6, "interval": [0.5, 0.7]}, False),
        ({"claim": None}, False),
    ],
)
def test_numbers_are_scored_by_interval_or_error(changes, right):
    assert replace(RIGHT, **changes).right["number"] == right


def test_floors_are_beaten_where_the_whole_interval_is_below_and_errors_have_a_sign():
    # 0.4 was measured, without any spread.
    floors = [replace(RIGHT, is_predicted=True, claim=0.44, floor=floor) for floor in (0.3, 0.39)]
    beaten = replace(floors[0], floor=0.41)
    assert diagnosis.judge_floors([*floors, UNTIMED]) == (
        True, "floors beaten by more than noise: 0 of 2 (0.0 %), at most 5 %"
    )  # fmt: skip
    assert diagnosis.judge_floors([*floors, beaten]) == (
        False,
        "floors beaten by more than noise: 1 of 3 (33.3 %), at most 5 %: slow_transform",
    )
    assert diagnosis.judge_floors([RIGHT, UNTIMED]) == (
        False, "floors beaten by more than noise: 0 of 0 (–), at most 5 %"
    )  # fmt: skip
    tried, nothing = replace(RIGHT, claim=0.36), replace(RIGHT, name="slow_device", claim=1.0)
    assert list(diagnosis.errors([*floors, beaten, tried, nothing, SKIPPED])) == [
        "3 expected times: 10% off what was measured in the median, +10% to +10%",
        "1 tried time: 10% off what was measured in the median, -10% to -10%",
    ]


def test_every_name_of_a_right_remedy_is_right():
    said = ["less prefetching", "fewer bytes", "fewer workers", "faster decode", ""]
    outcomes = [Outcome(name="deep_queue", first=first) for first in said]
    assert [one.right["first remedy"] for one in outcomes] == [True, True, True, False, False]


def test_a_real_slow_down_has_gains_beside_the_published_one(capsys):
    report = frame.Report("Speed", Namespace(save=None))
    one = replace(
        RIGHT, name="opencv_threads", bottleneck="threads", claim=0.8, interval=(0.5, 1.0),
        times_s={"broken": [2.0, 2.0], "fixed": [1.0, 1.0]},
    )  # fmt: skip
    diagnosis.report_real(report, [one, replace(one, claim=None, times_s={})])
    text = " ".join(capsys.readouterr().out.split())
    assert "1.25× [1.00, 2.00] tried | 2.00× [2.00, 2.00] | 1.09×" in text
    assert "right first remedy: 0 of 2" in text
    assert "more than noise: 1 of 1" in text
    assert report.missed == 0


def test_real_slow_downs_and_fresh_cases_are_chosen_by_themselves():
    options = Namespace(case=None, quick=False, real=False, fresh=False, held_out=True)
    planted = diagnosis.choose(options)
    real = diagnosis.choose(Namespace(**{**vars(options), "real": True}))
    fresh = diagnosis.choose(Namespace(**{**vars(options), "fresh": True}))
    assert sorted([*planted, *real, *fresh]) == sorted(diagnosis.CASES)


def test_fresh_cases_have_shares_with_intervals_and_no_limits(capsys):
    report = frame.Report("Speed", Namespace(save=None))
    right = Outcome(name="tensors_in_memory", bottleneck="compute", first="nothing")
    wrong = replace(right, bottleneck="workers", first="more workers")
    diagnosis.report_fresh(report, [right, right, right, wrong, replace(right, skipped="no")])
    text = capsys.readouterr().out
    assert "| WRONG workers | nothing | WRONG more workers | WRONG –" in text
    assert "- right bottleneck: 3 of 4 (75.0 %, 95 % interval 30.1 to 95.4 %)\n" in text
    assert report.missed == 0
    assert diagnosis.share([]) == "0 of 0"


def fake_row(time):
    """Three blocks whose log-ratios have a standard deviation of 1 %: an interval of ±2.5 %."""
    log_ratios = tuple(math.log(time) + apart for apart in (-0.01, 0.0, 0.01))
    return Row(
        variant="v",
        name="v",
        status="ok",
        trials=tuple(fake_trial("v", block) for block in range(3)),
        compared=Comparison(log_ratios=log_ratios),
    )


@pytest.mark.parametrize(
    ("shift", "held", "spread"), [(1.0, True, True), (1.02, True, False), (1.1, False, False)]
)
def test_runs_must_agree_as_their_intervals_promise(shift, held, spread):
    times = [0.7, 0.701, 0.7, 0.702, 0.7 * shift, 0.7, 0.701 * shift, 0.7 * shift]
    variant = repeat.Repeated("v", tuple(map(fake_row, times)), fake_row(0.7))
    (holds, _), (spreads, _), _, _ = repeat.judge([variant])
    assert (holds, spreads) == (held, spread)


@pytest.mark.parametrize(
    ("full", "is_close", "is_turned"),
    [(0.72, True, False), (0.8, False, False), (1.1, False, True)],
)
def test_full_mode_must_measure_what_quick_mode_does(full, is_close, is_turned):
    variant = repeat.Repeated("v", (fake_row(0.7), fake_row(0.71), fake_row(0.69)), fake_row(full))
    _, _, (close, _), (kept, _) = repeat.judge([variant])
    assert (close, not kept) == (is_close, is_turned)


ONE_TEST = """
import pytest

@pytest.mark.needs_cuda
def test_one():
    pass
"""


def of_each_kind(parts):
    """Leave out runs that differ from others in the name of an experiment alone."""
    kept = {}
    for name, work in parts.items():
        mode = getattr(work, "keywords", {}).get("mode")
        assert mode is None or work.keywords["experiment"] in lab.CATALOG
        kept.setdefault(mode or name, (name, work))
    return dict(kept.values())


@pytest.fixture
def perform(photos, tmp_path, monkeypatch):
    """Perform a stage for GPUs on a CPU; return what it found by row."""
    shorten(monkeypatch.setattr)
    monkeypatch.setattr(gpu, "SMALL_BUDGET_S", BUDGET_S)
    (tmp_path / "root/tests").mkdir(parents=True)
    (tmp_path / "root/tests/test_one.py").write_text(ONE_TEST)
    monkeypatch.setattr(gpu, "ROOT", tmp_path / "root")  # the project's own tests take long
    for name in ("pyinstrument", "pyinstrument.low_level.stat_profile", "ipywidgets"):
        monkeypatch.setitem(sys.modules, name, None)  # not where nothing can be installed

    def perform(stage, *options):
        monkeypatch.setitem(gpu.STAGES, stage, of_each_kind(gpu.STAGES[stage]))
        words = ["--stage", stage, "--device", "cpu", "--data", str(photos), "--out", str(tmp_path)]
        status = gpu.main([*words, "--minutes", "60", *options])  # however slow it is here
        (folder,) = tmp_path.glob(f"cpu-*/{stage}")
        left = {path.name for path in folder.iterdir()}
        assert left - {"log.txt"} == {"README.md", "measured.json", "runs.tar.gz"}
        rows = json.loads((folder / "measured.json").read_text())["measured"]
        return status, {name: found for name, found, _ in rows}

    return perform


# `host` takes the least time.
STAGES = [
    pytest.param(stage, marks=[] if stage == "host" else pytest.mark.long)
    for stage in gpu.STAGES
    if stage != "roofline"
]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_for_gpus_is_performed_to_its_end(stage, perform):
    status, found = perform(stage)
    assert found
    assert status == 0


@pytest.mark.long
def test_a_stage_for_gpus_goes_on_where_its_time_was_over(perform):
    assert perform("roofline", "--minutes", "0") == (1, {})
    found = perform("roofline")
    assert found[0] == 0
    assert perform("roofline") == found


@pytest.mark.parametrize(("behind", "is_near"), [(0.98, True), (1.03, True), (1.04, False)])
def test_a_tuned_loader_may_be_three_percent_behind_the_optimum(behind, is_near):
    outcome = tune.Outcome(name="slow_step", behind=(behind, behind - 0.1, behind + 0.1))
    assert outcome.is_near == is_near
    assert ("MISSED" in tune.row(outcome)[3]) != is_near
    assert not tune.Outcome(name="slow_step", failed="exit status 1").is_near


def test_every_candidate_of_the_exhaustive_search_makes_a_loader():
    case = tune.CASES["late_batches"]()
    assert {case.loader(each).num_workers for each in tune.candidates(case)} >= {0, 1}


def test_the_part_per_batch_is_what_a_step_on_no_images_would_take():
    step_s = {size: 0.002 + 0.001 * size for size in (4, 8, 16)}
    assert gpu_host.part_per_batch(step_s, 8) == pytest.approx(0.2)


def test_launching_is_told_from_the_time_of_a_step():
    clock = FakeClock()
    profile = GpuSpeeds(name="test", gpu_images_per_s=1.0, launch_share=0.25)
    device = SimulatedGpu(profile, clock)
    took = gpu_host.time_steps(partial(device.compute, 8), device.synchronize, clock.now)
    assert took == gpu_host.StepTimes(launch_s=2.0, step_s=8.0)


def test_a_pack_pays_after_as_many_epochs_as_cover_what_it_cost():
    cost = {"images": 1000, "pack_s": 10.0}
    assert ladder.epochs_until_it_pays(None, 0.001, 0.001) == ""
    assert ladder.epochs_until_it_pays(cost, 0.001, 0.001) == "never"
    assert ladder.epochs_until_it_pays(cost, 0.001, 0.005) == "3 epochs"  # 4 s each
    assert ladder.epochs_until_it_pays(cost, 0.001, 0.101) == "1 epoch"


@pytest.mark.long
def test_a_session_of_some_seconds_leaves_nothing_behind():
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", "0.02", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "- met: left in the end: 0 processes, 0 files" in done.stdout
    assert "1 action (cancel 1), 0.02 min, seed 7" in done.stdout


LINE = "labkit: results must be a folder that can be written, got results; choose another"


@pytest.mark.parametrize(
    ("status", "errors", "may_end", "cell"),
    [
        (0, "waiting for data 3 %", False, "ok (2 s)"),
        (0, "no result", False, "FAILED: status 0 without"),
        (1, f"storage:  50%|██  | 1/2\r\n{LINE}\n", True, "one clear line: results must be"),
        (1, LINE, False, "FAILED: it could work here, but: labkit: results"),
        (1, f"{LINE}\n{LINE}\n", True, "FAILED: status 1, labkit: results"),
        (1, "Killed", True, "FAILED: status 1, Killed"),
        (1, f"Traceback (most recent call last):\n{LINE}", True, "FAILED: traceback"),
    ],
)
def test_a_command_ends_with_its_result_or_one_line_where_it_cannot_work(
    status, errors, may_end, cell
):
    done = Done(status=status, out="", errors=errors, took_s=2.0)
    assert judge.judge_end("watch", done, may_end=may_end).startswith(cell)


def test_residency_is_counted_without_labkit(tmp_path):
    """With mincore(2) alone: a file that was written and read is in memory."""
    if sys.platform != "linux":
        pytest.skip("needs mincore(2)")
    (tmp_path / "file").write_bytes(bytes(100_000))
    (tmp_path / "empty").touch()
    assert resident_share(sorted(tmp_path.iterdir())) == 1.0
