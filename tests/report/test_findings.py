"""What a run's rows support beside its table, against sums done by hand."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from fake_runs import fake_grouped_run, fake_roofline
from fakes import (
    H200,
    MEDIA,
    REAL_DISK,
    SIMULATED_GPU,
    fake_epoch,
    fake_info,
    fake_media_info,
    fake_media_trials,
    fake_trial,
    fake_trials,
)

from labkit.report.findings import MODELS
from labkit.report.run import Run, find_run

EXAMPLES = Path(__file__).parents[2] / "results" / "examples" / "2-cores-simulated"


def made(info, trials):
    return Run(folder=Path("run"), info=info, trials=tuple(trials))


# --- speeds of a device -------------------------------------------------------------------


def test_a_roofline_killed_before_its_first_trial_supports_nothing():
    assert fake_roofline(blocks=0).findings() == {}


# --- communication ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "said"),
    [
        # 3 % of a step make it 1.0309 times as long, 0.62 of the way from 0 to 1 ÷ 400.
        ({"all_reduce": 1.0, "400mbit": 1.05, "100mbit": 1.2}, "from about 647 Mbit/s on"),
        ({"all_reduce": 1.0, "400mbit": 1.0, "100mbit": 1.2}, "from about 273 Mbit/s on"),
        # The loopback's 5 % are the processor's: it is at 0, and 1.05 ÷ 0.97 is 0.65 of the way.
        ({"all_reduce": 1.05, "400mbit": 1.1}, "from about 616 Mbit/s on"),
        ({"all_reduce": 1.0, "400mbit": 1.01}, "over every network here"),
        # A variant of the user's own, which differs in more, is no second loopback.
        ({"all_reduce": 1.0, "batch_size=4, all_reduce": 1.2, "400mbit": 1.05},
         "from about 647 Mbit/s on"),
    ],
)  # fmt: skip
def test_the_bandwidth_that_keeps_communication_small_lies_between_two_links(times, said):
    run = fake_grouped_run({"2 machines": {"noop": 1.0, **times}}, noise=0.0)
    variants = {
        label: replace(
            settings, exchange=label.rpartition(" ")[2], batch_size=4 if "size=4" in label else 8
        )
        for label, settings in run.info.variants.items()
    }
    run = replace(run, info=replace(run.info, variants=variants))
    found = run.findings()["What the network takes of a step"]
    least = f"2 machines: without that work, a link takes less than 3 % of a step {said}."
    assert least in found.notes
    shares = dict(zip(found.data["variant"], found.data["share"]))
    assert shares == pytest.approx({name: 1 - 1 / time for name, time in times.items()})


# --- memory and warm disks ----------------------------------------------------------------


def against_memory(media=MEDIA, *, noise=0.005, **info):
    info = fake_media_info(media, **info)
    trials = fake_media_trials(media, blocks=info.blocks or 3, noise=noise)
    cells = made(info, trials).findings()["Memory and warm disks"].data
    return cells.reset_index().set_index(["variant", "divided by"])


def test_media_in_memory_are_compared_with_warm_disks_each_pair_once():
    found = against_memory(noise=0)
    assert list(found.index) == [("tmpfs", "hdd, warm"), ("tmpfs", "ssd, warm")]
    assert found.loc["tmpfs", "ssd, warm"]["ratio"] == pytest.approx(2.84 / 2.85)
    assert set(found["verdict"]) == {""}  # quick mode
    assert against_memory({**MEDIA, "ssd, warm too": MEDIA["ssd, warm"]}).index.is_unique
    verdicts = against_memory(mode="full", blocks=10)["verdict"]
    assert verdicts["tmpfs", "hdd, warm"] == "no practical difference"


# --- what storing costs -------------------------------------------------------------------

DATA = {"images": 1000, "bytes": 100_000_000, "folder": "data/photos"}


def pack(pack_s, size_bytes=100_000_000):
    return {"folder": "packs/x", "images": 1000, "bytes": size_bytes, "pack_s": pack_s}


def costs(times, packs, *, mode="full", blocks=10, noise=0.002, **more):
    """The baseline takes 2 s for two epochs of 100 images: 10 s for an epoch of all images."""
    known = {"data": DATA, "costs": packs, "calibration": {"images": 100}, **more}
    info = fake_info(list(times), mode=mode, blocks=blocks, **known)
    trials = fake_trials(times, blocks=blocks, noise=noise, drift=0)
    return made(info, trials).findings()


def test_seconds_once_are_earned_back_by_seconds_saved_per_epoch_of_all_images():
    packs = {"both": pack(7.0), "mine": pack(50.0, 250_000_000)}
    cells = costs({"original": 1.0, "both": 0.8, "mine": 0.5}, packs)["What storing costs"].data
    both, mine = cells.loc["both"], cells.loc["mine"]
    assert both["saved_s_per_epoch"] == pytest.approx(0.2 * 10, rel=0.05)
    assert both["earned_back_epochs"] == math.ceil(7.0 / both["saved_s_per_epoch"])
    assert mine["earned_back_epochs"] == math.ceil(50.0 / mine["saved_s_per_epoch"])
    assert (both["of_original"], mine["of_original"]) == (1.0, 2.5)
    assert math.isnan(cells.loc["original", "saved_s_per_epoch"])


@pytest.mark.parametrize(
    ("time", "more"),
    [
        (1.0, {}),  # no practical difference
        (1.5, {"mode": "quick", "blocks": 3}),  # slower
        (0.9, {"noise": 0.5}),  # inconclusive
        (0.9, {"noise": 0.5, "mode": "quick", "blocks": 3}),  # its interval holds 1
    ],
)
def test_what_gains_nothing_is_never_earned_back(time, more):
    found = costs({"original": 1.0, "both": time}, {"both": pack(7.0)}, **more)
    both = found["What storing costs"].data.loc["both"]
    assert both["earned_back_epochs"] is None or math.isnan(both["earned_back_epochs"])
    assert both["made_s"] == 7.0


def test_pixels_that_differ_by_design_have_their_distance_beside_their_cost():
    times, packs = {"original": 1.0, "both": 0.8}, {"both": pack(7.0)}
    assert "psnr_db" not in costs(times, packs)["What storing costs"].data
    table = costs(times, packs, psnr_db={"both": 31.4})["What storing costs"]
    assert table.data.loc["both", "psnr_db"] == 31.4
    assert math.isnan(table.data.loc["original", "psnr_db"])
    assert any(note.startswith("psnr_db is the peak signal-to-noise ratio") for note in table.notes)


def test_what_reads_the_data_as_it_is_has_no_row_of_its_own_but_the_baseline():
    found = costs({"original": 1.0, "packed": 0.8, "other loader": 1.2}, {"packed": pack(7.0)})
    assert [*found["What storing costs"].data.index] == ["original", "packed"]
    assert costs({"original": 1.0, "both": 0.5}, {}) == {}


# --- do single changes predict combined ones? ---------------------------------------------

# Loading and computing alone, and single changes, as shares of the baseline's time.
LOADS = {("hdd", "loops"): 0.6, ("ssd", "loops"): 0.5, ("hdd", "on_device"): 0.75,
         ("ssd", "on_device"): 0.3}  # fmt: skip
COMPUTES = {"loops": 0.8, "on_device": 0.7}
SINGLES = {"ssd": 0.9, "prefetch_generator": 0.95, "data_prefetcher": 0.98, "on_device": 0.7}


def arm(storage="hdd", prefetcher="none", preprocessor="loops", **other):
    return {
        "storage": storage, "prefetcher": prefetcher, "preprocessor": preprocessor,
        "loader": "torch", "step": "timed", "num_workers": 2, **other,
    }  # fmt: skip


def factorial():
    """Every arm of full mode with its time; the combinations multiply, so that one is right."""
    arms = {}
    prefetchers = ("none", "prefetch_generator", "data_prefetcher")
    for values in itertools.product(("hdd", "ssd"), prefetchers, ("loops", "on_device")):
        time = math.prod(SINGLES.get(value, 1.0) for value in values)
        arms[" ".join(values)] = arm(*values), time
    for (storage, preprocessor), time in LOADS.items():
        name = f"load {storage} {preprocessor}"
        arms[name] = arm(storage, preprocessor=preprocessor, step="nothing"), time
    for preprocessor, time in COMPUTES.items():
        arms[f"compute {preprocessor}"] = arm(preprocessor=preprocessor, loader="resident"), time
    return arms


def predictions(arms, *, noise=0.0, blocks=3, **info):
    """Of (settings, time) by label, the baseline first; no time: not measured."""
    times = {name: time for name, (_, time) in arms.items() if time is not None}
    variants = {name: settings for name, (settings, _) in arms.items()}
    info = fake_info(list(arms), variants=variants, **info)
    trials = fake_trials(times, noise=noise, drift=0.0, blocks=blocks)
    return made(info, trials).findings()["Do the savings add up?"].data


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (
            "ssd prefetch_generator on_device",
            (1 - 0.1 - 0.05 - 0.3, 0.9 * 0.95 * 0.7, 0.7, 0.7 + 0.2),
        ),
        ("hdd data_prefetcher on_device", (1 - 0.02 - 0.3, 0.98 * 0.7, 0.7, 0.75 + 0.2)),
        # The baseline's max(0.6, 0.8) leaves 0.2 that is not overlapped.
        ("ssd none loops", (None, None, None, 0.8 + 0.2)),
        ("hdd none on_device", (None, None, None, 0.75 + 0.2)),  # loading is longer
    ],
)
def test_each_model_predicts_as_its_sum_says(variant, expected):
    row = predictions(factorial()).loc[variant]
    found = [None if math.isnan(row[model]) else row[model] for model in MODELS]
    assert found == [x and pytest.approx(x) for x in expected]


def test_what_differs_in_more_than_the_factors_or_has_no_number_is_told_apart():
    arms = {**factorial(), "more workers": (arm("ssd", num_workers=8), 0.5)}
    found = predictions(arms)
    assert "more workers" not in found.index
    assert found.loc["ssd none on_device", "additive"] == pytest.approx(1 - 0.1 - 0.3)
    name = "ssd none on_device"
    row = predictions(arms | {name: (arms[name][0], None)}, skipped={name: "no such disk"}).loc[
        name
    ]
    assert math.isnan(row["measured"])
    assert (row["additive"], row["remark"]) == (pytest.approx(0.6), "skipped: no such disk")


def test_a_quick_run_shows_what_was_measured_and_the_documents_own_sums(tmp_path, monkeypatch):
    (tmp_path / "labkit.toml").write_text("broken")
    monkeypatch.chdir(tmp_path)
    best = arm("ssd", "prefetch_generator", "on_device")
    label = "ssd + prefetch_generator + on_device"
    arms = {"original": (arm(), 1.0), label: (best, 0.6)}
    shown = predictions(arms, published={label: 0.61})
    assert shown.loc[label, "measured"] == pytest.approx(0.6)
    assert shown.loc[label, list(MODELS)].isna().all()
    assert shown.loc[label, "remark"] == "to predict, run all variants in full mode"
    document = shown.loc[f"published: {label}"]
    assert list(document[["measured", *MODELS[:3]]]) == pytest.approx(
        [0.61, 0.415, 0.860 * 0.894 * 0.661, 0.661]
    )


def test_the_measured_interval_tells_which_model_holds():
    shown = predictions(factorial(), noise=0.02, blocks=6, mode="full")
    inside = shown.loc["ssd prefetch_generator on_device", "inside_interval"].split(", ")
    assert "multiplicative" in inside  # how the run was made
    assert "additive" not in inside


# --- savings over a whole training --------------------------------------------------------

GB = 10**9
COLD = {"storage": REAL_DISK, "cache": "cold", "device": H200}
WARM = {**COLD, "cache": "warm"}
TIMES = {"original": 10.0, "fast": 5.0}
# fake_trial: 160 images per epoch, of which epoch 1 takes 60 % and epoch 2 40 % of the time.
HUNDRED = {"epochs": 100, "images": 1600}
TIGHT = GB // 10  # of 0.16 GB in all


def timed(times=TIMES, *, labels=COLD, memory_bytes=64 * GB, epochs_s=None, in_memory=()):
    """A run whose trials take exactly `times` seconds; the first variant is the baseline."""
    base, *others = times
    info = fake_info(
        [*times],
        data={"images": 1000, "bytes": GB // 10},
        provenance={"memory_bytes": memory_bytes},
        variants={name: {"storage": "tmpfs" if name in in_memory else "here"} for name in times},
    )
    trials = []
    for block in range(2):
        for name, role in ((base, "A1"), (base, "A2"), *((name, "") for name in others)):
            known = WARM if name in in_memory else labels
            trial = fake_trial(name, block, role, times[name], labels=known)
            if epochs_s:
                trial = replace(trial, epochs=tuple(map(fake_epoch, epochs_s[name])))
            trials.append(trial)
    return made(info, trials)


def scaled_s(epoch_s, by):
    """An epoch of so many times as many images; starting up takes 0.01 s of any."""
    return 0.01 + by * (epoch_s - 0.01)


def test_only_the_first_epoch_is_cold_where_memory_holds_the_data():
    found = timed().savings(**HUNDRED).data
    base, fast = found.loc["original"], found.loc["fast"]
    # 160 images take 6 s and 4 s, so 1600 take ten times as long; starting up does not.
    first_s, later_s = scaled_s(6, 10), scaled_s(4, 10)
    assert (base["first_epoch_s"], base["later_epoch_s"]) == pytest.approx((first_s, later_s))
    assert base["total_h"] == pytest.approx((first_s + 99 * later_s) / 3600)
    fast_s = scaled_s(3, 10) + 99 * scaled_s(2, 10)
    assert fast["saved_h"] == pytest.approx((first_s + 99 * later_s - fast_s) / 3600)
    # Later epochs are the mean of all that were measured.
    epochs_s = {"original": (6.0, 4.0, 5.0, 6.0), "fast": (3.0, 2.0, 1.0, 3.0)}
    found = timed(epochs_s=epochs_s).savings(**HUNDRED).data
    assert list(found["later_epoch_s"]) == pytest.approx([scaled_s(5, 10), scaled_s(2, 10)])


def test_every_epoch_is_cold_where_memory_does_not_hold_the_full_data_set():
    run = timed(memory_bytes=GB)
    # 100 KB an image: 80 % of 1 GB holds 8,000 images, and the run's 1,000 with ease.
    fits, not_fits = (run.savings(epochs=100, images=n).data.loc["fast"] for n in (8000, 8001))
    assert fits["later_epoch_s"] == pytest.approx(scaled_s(2, 50))
    assert not_fits["later_epoch_s"] == not_fits["first_epoch_s"]
    assert not_fits["total_h"] == pytest.approx(100 * not_fits["first_epoch_s"] / 3600)


def test_data_that_memory_cannot_hold_is_not_extrapolated_from_memory():
    times = {"hdd": 10.0, "tmpfs": 5.0}
    tight = timed(times, in_memory=["tmpfs"], memory_bytes=TIGHT).savings(**HUNDRED)
    assert tight.notes[0].startswith("No variant is measurably faster")
    assert tight.data.loc["tmpfs", "remark"] == "the full data set does not fit into memory"
    assert math.isnan(tight.data.loc["tmpfs", "saved_h"])
    roomy = timed(times, in_memory=["tmpfs"]).savings(**HUNDRED).data.loc["tmpfs"]
    assert roomy["remark"] == "without the copy into memory"
    assert roomy["saved_h"] > 0
    # Nor is a warm run.
    tight = timed(labels=WARM, memory_bytes=TIGHT).savings(**HUNDRED).data
    assert tight["total_h"].isna().all()
    assert tight.loc["fast", "remark"].startswith("measured warm, but")
    roomy = timed(labels=WARM).savings(**HUNDRED).data
    assert list(roomy["remark"]) == ["without the first, cold epoch"] * 2


@pytest.mark.parametrize("name", ["epochs", "images"])
def test_arguments_out_of_range_and_rooflines_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        timed().savings(**{**HUNDRED, name: 0})
    message = "without groups, got textbook_roofline; take a run of textbook$"
    with pytest.raises(ValueError, match=message):
        find_run(EXAMPLES / "textbook_roofline").savings(**HUNDRED)


def test_savings_name_what_stood_in_above_the_table():
    simulated = {**COLD, "device": SIMULATED_GPU}
    assert str(timed(labels=simulated).savings(**HUNDRED)).splitlines()[:2] == [
        "100 epochs of 1,600 images",
        "Simulated GPU, 460 images/s",
    ]
