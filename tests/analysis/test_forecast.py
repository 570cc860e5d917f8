"""What a run will take and see, from what an earlier one on this machine showed."""

import math

import pytest
from fake_runs import save_rows
from fakes import fake_info, fake_trial

import labkit as lab
from labkit.analysis.forecast import forecast, noise_of
from labkit.analysis.statistics import detectable_share
from labkit.machine import hardware
from labkit.records import OperationTrial
from labkit.resolve import gather_facts
from labkit.runs.store import earlier_runs, load_run
from labkit.settings import Settings

VARIANTS = {name: Settings(epochs=2, step="timed") for name in ("base", "other", "third")}
HERE = {"provenance": {"machine_id": "here"}, "shuffled": True}


def leave_run(results, trials, mode="full", **info):
    """A run as it would lie in a folder of results."""
    names = sorted({trial.variant for trial in trials}, key=lambda name: name != "base")
    return load_run(save_rows(results, fake_info(names, mode=mode, **{**HERE, **info}), trials))


def expect(results, mode="full", blocks=10, variants=VARIANTS, **more):
    earlier = earlier_runs(results, "prefetching", machine_id="here", mode=mode)
    return forecast(
        (run.summary for run in earlier),
        mode=mode,
        blocks=blocks,
        variants=variants,
        baselines=["base"],
        facts={name: gather_facts(vars(settings)) for name, settings in variants.items()},
        **more,
    )


def noisy_run(results, s=0.02, third=None, **info):
    """Two blocks whose variants have log-ratios with exactly these standard deviations."""
    trials = []
    for block, sign in enumerate((1, -1)):
        trials += [fake_trial("base", block, role, 2.0) for role in ("A1", "A2")]
        for name, each in (("other", s), *([("third", third)] if third else [])):
            time_s = 2.0 * math.exp(sign * each / math.sqrt(2))
            trials.append(fake_trial(name, block, "", time_s))
    return leave_run(results, trials, **info)


def test_what_can_be_seen_follows_from_the_pooled_noise_and_holms_strictest_level(tmp_path):
    run = noisy_run(tmp_path / "pooled", s=0.03, third=0.04)
    assert noise_of(run.summary) == pytest.approx(math.sqrt((0.03**2 + 0.04**2) / 2))
    noisy_run(tmp_path)
    expected, seen = expect(tmp_path), detectable_share(0.02, 10, 0.05 / 2)
    assert (expected.mde, expected.trials) == (pytest.approx(seen), 10 * (3 + 1))
    sentence = f"About 1 min 24 s. Detects differences of {math.ceil(100 * seen)} % or more."
    assert str(expected) == sentence


def test_without_an_earlier_run_here_nothing_is_guessed(tmp_path):
    noisy_run(tmp_path, provenance={"machine_id": "elsewhere"})
    noisy_run(tmp_path, status="cancelled")
    noisy_run(tmp_path, shuffled=False)
    expected = expect(tmp_path)
    assert (expected.noise, expected.mde) == (None, None)
    assert str(expected) == (
        "At least 6 min 44 s. The smallest detectable effect is known after the first run."
    )


def test_a_run_in_the_same_mode_tells_more_than_a_newer_one_in_another(tmp_path):
    noisy_run(tmp_path, s=0.01)
    noisy_run(tmp_path, s=0.05, mode="quick")
    assert expect(tmp_path).noise == pytest.approx(0.01)
    assert expect(tmp_path, mode="quick", blocks=3).noise == pytest.approx(0.05)


def test_the_time_is_calibrated_else_the_last_runs_else_the_modes(tmp_path):
    # Three variants and the baseline twice: 40 trials of two epochs, and what comes beside them.
    assert expect(tmp_path, epoch_s=7.0).total_s == pytest.approx(40 * 14.1)
    assert expect(tmp_path).total_s == pytest.approx(40 * 10.1)
    leave_run(tmp_path, [fake_trial("base", 0, role, 20.0) for role in ("A1", "A2")])
    assert expect(tmp_path).total_s == pytest.approx(40 * 20.1)
    document = expect(tmp_path, mode="document", blocks=1)
    assert str(document).startswith("Reads all images, however many there are.")


def test_operations_take_at_least_their_rounds_or_what_they_took_in_the_last_run(tmp_path):
    variants = {name: Settings(device="cpu") for name in VARIANTS}
    how = {"block": 0, "position": 0, "status": "ok", "image_s": 0.005, "calls": 8}
    trials = [OperationTrial(variant="base", role=role, **how) for role in ("A1", "A2")]
    for total_s in (40 * 0.02, 40 * 0.04):
        expected = expect(tmp_path, variants=variants, round_s=0.02)
        assert (expected.total_s, expected.timed) == (pytest.approx(total_s), False)
        assert str(expected).startswith("At least ")
        leave_run(tmp_path, trials, kind="operation")


def test_loading_alone_is_not_judged_and_so_hides_no_effect_of_an_experiment(tmp_path):
    noisy_run(tmp_path, provenance={"machine_id": hardware.provenance().machine_id})
    compared = {name: Settings(prefetcher=name) for name in ("none", "both")}
    alone = {"loading alone": Settings(step="nothing")}
    smallest = [
        lab.forecast(lab.Experiment("prefetching", question="?", variants=each), results=tmp_path)
        for each in (compared, compared | alone)
    ]
    assert smallest[0].mde == smallest[1].mde == pytest.approx(detectable_share(0.02, 10, 0.05))
