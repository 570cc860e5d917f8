"""What a run saves over a whole training, against sums done by hand.

Run: python -m pytest tests/test_savings.py
"""

import math

import pytest
from fakes import fake_epoch, fake_info, fake_trial

import labkit as lab
from labkit.cli import main
from labkit.contracts import Trial
from labkit.runs.store import append_trial, create_run, load_run

GB = 10**9
COLD = {"storage": "real", "cache": "cold", "accelerator": "cuda:H200"}
WARM = {**COLD, "cache": "warm"}
# fake_trial: 160 images per epoch, of which epoch 1 takes 60 % and epoch 2 40 % of the time.
HUNDRED = {"epochs": 100, "images": 1600}
TIGHT = {"memory_bytes": GB // 10}  # of 0.16 GB in all


def make_run(
    results, times, *, mode="quick", blocks=2, labels=None, settings=None, memory_bytes=64 * GB,
    epochs_s=None, **info,
):  # fmt: skip
    """A run whose trials take exactly `times` seconds; the first variant is the baseline."""
    base, *others = times
    variants = {name: {"storage": "here", **(settings or {}).get(name, {})} for name in times}
    data = {"images": 1000, "bytes": GB // 10}
    info = {"data": data, "provenance": {"memory_bytes": memory_bytes}, **info}
    folder = create_run(results, {**fake_info([*times], mode=mode, **info), "variants": variants})
    for block in range(blocks):
        for name, role in ((base, "A1"), (base, "A2"), *((name, "") for name in others)):
            known = (labels or {}).get(name, COLD)
            trial = fake_trial(name, block, role, times[name], labels=known)
            if epochs_s:
                row = {**trial.to_row(), "epochs": []}
                epochs = tuple(map(fake_epoch, epochs_s[name]))
                trial = Trial(**{**vars(Trial.from_row(row)), "epochs": epochs})
            append_trial(folder, trial)
    return load_run(folder)


def test_only_the_first_epoch_is_cold_where_memory_holds_the_data(tmp_path):
    found = lab.Run.savings(make_run(tmp_path, {"original": 10.0, "fast": 5.0}), **HUNDRED)
    base, fast = found.loc["original"], found.loc["fast"]
    # 160 images take 6 s and 4 s, so 1600 take ten times as long.
    assert (base["first_epoch_s"], base["later_epoch_s"]) == pytest.approx((60, 40))
    assert base["total_h"] == pytest.approx((60 + 99 * 40) / 3600)
    assert fast["saved_h"] == pytest.approx((4020 - 2010) / 3600)
    assert "saved_money" not in found


def test_every_epoch_is_cold_where_memory_does_not_hold_the_full_data_set(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0}, memory_bytes=GB)
    # 100 KB an image: 80 % of 1 GB holds 8,000 images, and the run's 1,000 with ease.
    fits, not_fits = (lab.Run.savings(run, epochs=100, images=n).loc["fast"] for n in (8000, 8001))
    assert fits["later_epoch_s"] == pytest.approx(20 * 5)
    assert not_fits["later_epoch_s"] == not_fits["first_epoch_s"]
    assert not_fits["total_h"] == pytest.approx(100 * not_fits["first_epoch_s"] / 3600)


def test_later_epochs_are_the_mean_of_all_that_were_measured(tmp_path):
    epochs_s = {"original": (6.0, 4.0, 5.0, 6.0), "fast": (3.0, 2.0, 1.0, 3.0)}
    run = make_run(tmp_path, {"original": 21.0, "fast": 9.0}, epochs_s=epochs_s)
    found = lab.Run.savings(run, **HUNDRED)
    assert list(found["later_epoch_s"]) == pytest.approx([50, 20])


def test_data_in_memory_is_out_where_it_does_not_fit(tmp_path):
    times = {"hdd": 10.0, "tmpfs": 5.0}
    more = {"settings": {"tmpfs": {"storage": "tmpfs"}}, "labels": {"tmpfs": WARM}}
    tight = lab.Run.savings(make_run(tmp_path, times, **more, **TIGHT), **HUNDRED)
    assert tight.notes[0].startswith("No variant is faster")
    tight = tight.loc["tmpfs"]
    assert tight["remark"] == "the full data set does not fit into memory"
    assert math.isnan(tight["saved_h"])
    roomy = lab.Run.savings(make_run(tmp_path, times, **more), **HUNDRED).loc["tmpfs"]
    assert roomy["remark"] == "without the copy into memory"
    assert roomy["saved_h"] > 0


def test_a_warm_run_is_not_extrapolated_to_data_that_memory_cannot_hold(tmp_path):
    labels = {"original": WARM, "fast": WARM}
    times = {"original": 10.0, "fast": 5.0}
    tight = lab.Run.savings(make_run(tmp_path, times, labels=labels, **TIGHT), **HUNDRED)
    assert tight["total_h"].isna().all()
    assert tight.loc["fast", "remark"].startswith("measured warm, but")
    roomy = lab.Run.savings(make_run(tmp_path, times, labels=labels), **HUNDRED)
    assert list(roomy["remark"]) == ["without the first, cold epoch"] * 2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"images": 0}, "images must be at least 1, got 0"),
        ({"gpu_hour": -1}, "gpu_hour must be at least 0, got -1"),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path, asked, message):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0})
    with pytest.raises(ValueError, match=message):
        lab.Run.savings(run, **{**HUNDRED, **asked})


def test_the_command_prints_the_table_with_stand_ins_first(tmp_path, capsys):
    emulated = {**COLD, "accelerator": "emulated(matched, 11.2 ms/image)"}
    labels = {"original": emulated, "fast": emulated}
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0}, labels=labels)
    asked = [run.folder.name, "--epochs", "100", "--images", "1600", "--gpu-hour", "8"]
    assert main(["savings", *asked, "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "100 epochs of 1,600 images",
        "Emulated accelerator (matched, 11.2 ms/image)",
    ]
    assert any(line.startswith("fast") for line in lines)
