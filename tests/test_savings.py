"""The closing sum of [004], against sums done by hand.

Run: python -m pytest tests/test_savings.py
"""

import json

import pytest
from fakes import fake_info, fake_trial

from labkit import machine
from labkit.results import append_trial, create_run, load_run
from labkit.savings import rows
from labkit.savings import savings as project
from labkit.savings_text import describe, document_savings

GB = 10**9
REAL = {"storage": "real", "cache": "cold", "accelerator": "cuda:H200"}
WARM = {**REAL, "cache": "warm"}
# fake_trial: 160 images per epoch, of which epoch 1 takes 60 % and epoch 2 40 % of the time.
HUNDRED = {"epochs": 100, "images": 1600}
ROOMY = {"memory_bytes": 64 * GB, "shared_memory_bytes": 32 * GB}
TIGHT = {"memory_bytes": GB // 10, "shared_memory_bytes": GB // 10}  # of 0.16 GB in all


def make_run(results, times, *, mode="quick", blocks=2, labels=None, storage=None, **info):
    """A run whose trials take exactly `times` seconds; the first variant is the baseline."""
    labels, storage = labels or {}, storage or {}
    base, *others = times
    variants = {name: {"storage": storage.get(name, "here")} for name in times}
    info = {"data": {"images": 1000, "bytes": GB // 10}, **info}
    folder = create_run(results, {**fake_info([*times], mode=mode, **info), "variants": variants})
    for block in range(blocks):
        for name, role in ((base, "A1"), (base, "A2"), *((name, "") for name in others)):
            known = labels.get(name, REAL)
            append_trial(folder, fake_trial(name, block, role, times[name], labels=known))
    return load_run(folder)


def calculate(run, room, **more):
    return project(run, **{**HUNDRED, **room, **more})


# --- the sums -----------------------------------------------------------------------------


def test_where_the_data_fits_only_the_first_epoch_is_cold(tmp_path):
    found = calculate(make_run(tmp_path, {"original": 10.0, "simplified": 5.0}), ROOMY)
    base, fast = found.projections
    # 160 images take 6 s and 4 s, so 1600 take ten times as long.
    assert (base.first_epoch_s, base.later_epoch_s) == pytest.approx((60, 40))
    assert base.total_s == pytest.approx(60 + 99 * 40)
    assert fast.total_s == pytest.approx(30 + 99 * 20)
    assert (found.fits_cache, found.fits_tmpfs, found.winner) == (True, True, "simplified")
    assert found.saved_s("simplified") == pytest.approx(4020 - 2010)
    assert found.saved_money("simplified") is None


def test_where_the_data_does_not_fit_every_epoch_is_cold(tmp_path):
    found = calculate(make_run(tmp_path, {"original": 10.0, "simplified": 5.0}), TIGHT)
    base, fast = found.projections
    assert (base.later_epoch_s, base.total_s) == pytest.approx((60, 100 * 60))
    assert fast.total_s == pytest.approx(100 * 30)
    assert (found.fits_cache, found.fits_tmpfs) == (False, False)


def test_the_full_data_set_is_what_must_fit_and_not_the_subset(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "simplified": 5.0})
    # 100 KB an image; 80 % of 1 GB holds 8,000 of them, and the run's 1,000 with ease.
    room = {"memory_bytes": GB, "shared_memory_bytes": GB // 2}
    assert calculate(run, room, images=8000).fits_cache is True
    assert calculate(run, room, images=8001).fits_cache is False
    assert calculate(run, room, images=5000).fits_tmpfs is True
    assert calculate(run, room, images=5001).fits_tmpfs is False
    assert calculate(run, room, images=8000).data_bytes == pytest.approx(0.8 * GB)


def test_money_is_hours_times_the_price(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "simplified": 5.0})
    found = calculate(run, TIGHT, gpu_hour=8)
    assert found.saved_money("simplified") == pytest.approx(8 * 3000 / 3600)
    assert "At 8 per GPU hour: 6.67 saved" in describe(found)
    assert not any("GPU hour" in line for line in describe(calculate(run, TIGHT)))


def test_the_variant_with_the_shortest_normalized_time_wins(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "good": 8.0, "best": 6.0, "bad": 12.0})
    found = calculate(run, ROOMY)
    assert found.winner == "best"
    assert found.saved_s("bad") < 0


def test_one_epoch_is_the_first_one(tmp_path):
    found = calculate(make_run(tmp_path, {"original": 10.0, "fast": 5.0}), ROOMY, epochs=1)
    assert found.saved_s("fast") == pytest.approx(60 - 30)


def test_seconds_follow_from_each_runs_own_number_of_images(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0})
    half, full = (calculate(run, ROOMY, images=images) for images in (800, 1600))
    assert full.saved_s("fast") == pytest.approx(2 * half.saved_s("fast"))


def test_unset_memory_is_that_of_the_machine_the_run_was_made_on(tmp_path):
    provenance = {"memory_bytes": 10 * GB, "shm_bytes": GB}
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0}, provenance=provenance)
    found = project(run, **HUNDRED)
    assert (found.cache_bytes, found.tmpfs_bytes) == (8 * GB, GB)
    unrecorded = project(make_run(tmp_path, {"original": 10.0, "fast": 5.0}), **HUNDRED)
    assert unrecorded.cache_bytes == pytest.approx(0.8 * machine.memory_bytes())


def test_a_tmpfs_larger_than_memory_holds_no_more_than_memory(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0})
    found = calculate(run, {"memory_bytes": GB, "shared_memory_bytes": 30 * GB})
    assert found.tmpfs_bytes == pytest.approx(0.8 * GB)


# --- what is not extrapolated -------------------------------------------------------------


def test_nothing_to_save_where_no_variant_is_faster(tmp_path):
    found = calculate(make_run(tmp_path, {"original": 10.0, "both": 10.5}), ROOMY, gpu_hour=8)
    assert found.winner == ""
    assert "Nothing to save: no variant is known to be faster than original" in describe(found)
    assert not any("saved" in line for line in describe(found))


def test_a_variant_judged_the_same_saves_nothing(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "both": 9.95}, mode="full", blocks=6)
    assert calculate(run, ROOMY).winner == ""


def test_data_in_memory_is_out_where_it_does_not_fit(tmp_path):
    run = make_run(
        tmp_path,
        {"hdd": 10.0, "ssd": 8.0, "tmpfs": 5.0},
        storage={"hdd": "hdd", "ssd": "ssd", "tmpfs": "tmpfs"},
        labels={"tmpfs": WARM},
    )
    tight = calculate(run, TIGHT)
    assert tight.winner == "ssd"
    said = "tmpfs is left out: the full data set does not fit into a file system in memory"
    assert said in describe(tight)
    roomy = calculate(run, ROOMY)
    assert roomy.winner == "tmpfs"
    said = "Not counted for tmpfs: copying the data into memory before the first epoch"
    assert said in describe(roomy)


def test_a_warm_row_beside_a_cold_baseline_is_a_state_and_wins_nothing(tmp_path):
    run = make_run(tmp_path, {"hdd": 10.0, "hdd, warm": 5.0}, labels={"hdd, warm": WARM})
    found = calculate(run, ROOMY)
    assert found.winner == ""
    said = "“hdd, warm” is left out: its cache was warm, the baseline's cold: a state, not a remedy"
    assert said in describe(found)


@pytest.mark.parametrize("floor", [{"step": "nothing"}, {"loader": "resident"}])
def test_a_floor_that_does_part_of_the_work_is_no_remedy(tmp_path, floor):
    run = make_run(tmp_path, {"original": 10.0, "best": 6.0, "alone": 2.0})
    run.info["variants"]["alone"] |= floor
    found = calculate(run, ROOMY)
    assert found.winner == "best"
    said = "alone is left out: it does only part of the work: a floor, not a remedy"
    assert said in describe(found)


def test_a_warm_run_is_not_extrapolated_to_data_that_memory_cannot_hold(tmp_path):
    labels = {"original": WARM, "fast": WARM}
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0}, labels=labels)
    tight = calculate(run, TIGHT)
    assert (tight.winner, tight.saved_s("fast")) == ("", None)
    said = (
        "Nothing is extrapolated: measured with cache warm, but a full data set that does not "
        "stay in memory is read from the disk in every epoch; run it with cache=cold"
    )
    assert describe(tight).count(said) == 1
    assert not any("left out" in line for line in describe(tight))  # said once is enough
    roomy = calculate(run, ROOMY)
    assert roomy.winner == "fast"
    said = "Not counted for fast: reading the data from the disk once; the first epoch was warm"
    assert said in describe(roomy)


@pytest.mark.parametrize("data", [{"images": 1000}, {"images": 1000, "bytes": None}, None])
def test_without_the_size_of_the_data_nothing_is_extrapolated(tmp_path, data):
    found = calculate(make_run(tmp_path, {"original": 10.0, "fast": 5.0}, data=data), ROOMY)
    assert (found.fits_cache, found.winner) == (None, "")
    said = (
        "Nothing is extrapolated: the run did not record the size of its data; "
        "run the experiment again"
    )
    assert said in describe(found)


def test_a_variant_without_numbers_is_left_out_with_its_reason(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0})
    run.info["variants"]["dali"] = {}
    run.info["skipped"] = {"dali": "not installed"}
    assert "dali is left out: skipped: not installed" in describe(calculate(run, ROOMY))


def test_a_run_of_one_epoch_says_nothing_of_later_ones(tmp_path):
    folder = create_run(tmp_path, fake_info(["original"], data={"images": 1000, "bytes": GB // 10}))
    for role in ("A1", "A2"):
        row = fake_trial("original", 0, role, 10.0, labels=REAL).to_row()
        row["epochs"] = row["epochs"][:1]
        append_trial(folder, type(fake_trial("original", 0)).from_row(row))
    run = load_run(folder)
    roomy, tight = (calculate(run, room) for room in (ROOMY, TIGHT))
    said = "Nothing is extrapolated: its later epochs were not measured; run it with epochs=2"
    assert said in describe(roomy)
    assert tight.projections[0].total_s == pytest.approx(100 * 60)


# --- words --------------------------------------------------------------------------------


def test_the_sentences_name_epochs_days_and_the_fit(tmp_path):
    run = make_run(tmp_path, {"original": 1000.0, "simplified": 610.0})
    lines = describe(calculate(run, TIGHT))
    assert "An epoch of 1,600 images: 1 h 40 min with original, 1 h 1 min with simplified" in lines
    assert (
        "100 epochs: 6.94 days with original, 4.24 days with simplified: 2.71 days saved (39.0 %)"
        in lines
    )
    assert (
        "The full data set, about 160 MB, does not fit into the page cache (80 MB, 80.0 % of "
        "memory): every epoch reads the disk like the first; what the second one gained from "
        "memory holding the few measured images is not extrapolated" in lines
    )
    assert "It does not fit into a tmpfs (80 MB)" in lines


def test_cold_and_warm_epochs_are_told_apart_where_the_data_fits(tmp_path):
    lines = describe(calculate(make_run(tmp_path, {"original": 10.0, "fast": 5.0}), ROOMY))
    assert (
        "An epoch of 1,600 images: 1 min 0 s for the first and 40.0 s for each later one with "
        "original, 30.0 s for the first and 20.0 s for each later one with fast" in lines
    )
    assert (
        "The full data set, about 160 MB, fits into the page cache (51 GB, 80.0 % of memory): "
        "only the first epoch reads the disk" in lines
    )
    assert "It fits into a tmpfs (32 GB)" in lines


def test_a_gain_that_no_verdict_carries_is_said_to_be_not_established(tmp_path):
    times = {"original": 10.0, "fast": 5.0}
    quick = describe(calculate(make_run(tmp_path, times), ROOMY))
    assert "Not established: this run speaks no verdict; run it with --mode full" in quick
    full = describe(calculate(make_run(tmp_path, times, mode="full", blocks=6), ROOMY))
    assert not any(line.startswith("Not established") for line in full)


def test_an_unstable_machine_establishes_nothing(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0}, mode="full", blocks=0)
    for block in range(6):
        for name, role, seconds in (
            ("original", "A1", 10.0), ("original", "A2", 12.0 + block / 10), ("fast", "", 5.0),
        ):  # fmt: skip
            append_trial(run.folder, fake_trial(name, block, role, seconds, labels=REAL))
    lines = describe(calculate(load_run(run.folder), ROOMY))
    assert "Nothing to save: no variant is known to be faster than original" in lines


def test_a_variant_that_saves_more_in_the_long_run_is_named(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "ssd": 8.0}, blocks=0)
    # The first epoch is short on the SSD; "code" saves less there, but in every epoch.
    run.info["variants"]["code"] = {}
    kinds = {"original": (6.0, 4.0), "ssd": (3.0, 4.0), "code": (5.0, 3.2)}
    trials = []
    for name, role in (("original", "A1"), ("original", "A2"), ("ssd", ""), ("code", "")):
        row = fake_trial(name, 0, role, labels=REAL).to_row()
        for epoch, seconds in zip(row["epochs"], kinds[name]):
            epoch["epoch_s"] = seconds
        trials.append(type(fake_trial("original", 0)).from_row(row))
    run = type(run)(folder=run.folder, info=run.info, trials=tuple(trials))
    found = calculate(run, ROOMY)
    assert found.winner == "ssd"
    assert found.saved_s("ssd") == pytest.approx(30)
    said = "Over 100 epochs code saves more, 13 min 22 s: its gain is in the later epochs"
    assert said in describe(found)


def test_stand_ins_come_first(tmp_path):
    emulated = {**REAL, "accelerator": "emulated(matched, 11.2 ms/image)"}
    labels = {"original": emulated, "fast": emulated}
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0}, labels=labels)
    assert describe(calculate(run, ROOMY))[0] == (
        "Emulated accelerator (matched, 11.2 ms/image): the times below are those of the stand-in"
    )


def test_every_stand_in_is_named_with_its_details(tmp_path):
    labels = {
        "hdd": {**REAL, "storage": "modelled(7200 rpm)"},
        "ssd": {**REAL, "storage": "modelled(SATA SSD)"},
    }
    run = make_run(tmp_path, {"hdd": 10.0, "ssd": 5.0}, labels=labels)
    assert calculate(run, ROOMY).stand_ins == {"modelled storage": "7200 rpm, SATA SSD"}
    labels = {name: {**REAL, "storage": "throttled"} for name in labels}
    plain = calculate(make_run(tmp_path, {"hdd": 10.0, "ssd": 5.0}, labels=labels), ROOMY)
    assert describe(plain)[0].startswith("Throttled storage: the times below")


def test_rows_are_json_and_one_per_variant(tmp_path):
    listed = rows(calculate(make_run(tmp_path, {"a": 10.0, "b": 5.0}), TIGHT, gpu_hour=3.6))
    assert [row["variant"] for row in listed] == ["a", "b"]
    assert listed[1]["saved_s"] == pytest.approx(3000)
    assert listed[1]["saved_money"] == pytest.approx(3)
    assert json.loads(json.dumps(listed)) == listed


def test_the_documents_own_sum_is_done_again():
    # 100 min * 100 = 10,000 min = 6.94 days; 6.94 * 0.61 = 4.24; 7 * 0.61 = 4.27.
    assert document_savings() == (
        "The document: 100 epochs of 110,000 images at 100 min each are 6.94 days, said to be 7; "
        "39.0 % less is 4.27 days (4.24 from the exact figure), said to be 4.5"
    )


def test_the_documents_sum_closes_every_description(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0})
    assert describe(calculate(run, ROOMY))[-1] == document_savings()


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, r"epochs must be at least 1, got 0; \[004\] trains 100"),
        ({"images": 0}, "images must be at least 1, got 0; COCO's training set has 118287"),
        ({"gpu_hour": -1.5}, "gpu_hour must be at least 0, got -1.5; leave it out for no price"),
        ({"gpu_hour": float("nan")}, "gpu_hour must be at least 0, got nan"),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path, wrong, message):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0})
    with pytest.raises(ValueError, match=message):
        calculate(run, ROOMY, **wrong)


def test_a_run_without_a_complete_block_is_refused_with_the_next_step(tmp_path):
    run = make_run(tmp_path, {"original": 10.0, "fast": 5.0}, blocks=0)
    name = run.folder.name
    message = (
        f"run must hold a complete block of its baseline, got none in {name}; "
        f"complete it with: labkit run --resume {name}"
    )
    with pytest.raises(ValueError, match=message):
        calculate(run, ROOMY)


def test_a_run_of_operations_is_refused(tmp_path):
    run = make_run(tmp_path, {"pillow": 10.0, "opencv": 5.0}, kind="operations")
    with pytest.raises(ValueError, match="run must measure epochs, got one of operations"):
        calculate(run, ROOMY)
