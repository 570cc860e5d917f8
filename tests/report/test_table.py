"""Tables: the same numbers in every form, what they rest on, and no free text that is markup."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from fakes import (
    CHECKED,
    H200,
    LABELS,
    RATES,
    REAL_DISK,
    SIMULATED_GPU,
    THROTTLED,
    TIMES,
    fake_info,
    fake_throttled_hdd,
    fake_trial,
    fake_trials,
    judged_summary,
    make_summary,
)

from labkit import units
from labkit.analysis.summary import summarize
from labkit.report import words
from labkit.report.table import Table, Tables, table

NASTY = '<script>alert("x")</script> & $HOME'


# --- the table ----------------------------------------------------------------------------


def test_the_table_has_five_columns_of_text():
    trials = [
        fake_trial(name, block, role, 1.0 if name == "other" else 2.0)
        for block in range(2)
        for name, role in (("base", "A1"), ("base", "A2"), ("other", ""))
    ]
    names = ["base", "other", "dali"]
    info = fake_info(names, published={"other": 0.61}, skipped={"dali": "not installed"})
    found = table(summarize(info, trials))
    assert found.header == [
        "variant", "two-epoch time", "normalized time [95 % interval]", "published", "verdict",
    ]  # fmt: skip
    assert found.rows == [
        ["base", "2.00 s", "1.000", "–", "–"],
        ["other", "1.00 s", "0.500 [0.500, 0.500]", "0.610", "–"],
        ["dali", "–", "–", "–", "skipped: not installed"],
    ]


def test_loaders_of_other_libraries_compared_alone_also_have_their_cpu_time():
    trials = fake_trials({"threads": 1.0, "dali": 2.0})
    names, nothing = ["threads", "dali"], {"trains_nothing": True}
    outside = {"threads": nothing, "dali": {**nothing, "loads_outside": True}}
    found = table(summarize(fake_info(names, facts=outside), trials))
    column = found.header.index("CPU time per image")
    for name, *_ in found.rows:
        own = [trial for trial in trials if trial.variant == name]
        images = sum(epoch.images for trial in own for epoch in trial.epochs)
        cpu_s = sum(trial.cpu_s for trial in own)
        cells = {row[0]: row[column] for row in found.rows}
        assert cells[name] == units.seconds(cpu_s / images)
    assert cells["dali"] != cells["threads"]
    for facts in (dict.fromkeys(names, nothing), {"dali": outside["dali"]}):
        other = table(summarize(fake_info(names, facts=facts), trials))
        assert "CPU time per image" not in other.header


def test_html_and_text_hold_question_conditions_numbers_and_notes_in_order():
    summary = judged_summary(skipped={"nvme": "not named"}, **CHECKED)
    found = table(summary)
    html = re.sub(r"<.*?>", "", found.to_html(exclude_styles=True)).replace("\u00a0", " ")
    text = str(found)
    for shown in (" ".join(html.split()), " ".join(text.split())):
        parts = [
            summary.question,
            "Throttled storage (7200 rpm: 81 reads/s, 106 MB/s)",
            "full mode · 9 blocks, 1 disturbed, left out",
            "normalized time [95 % interval]",
            *(row[0] for row in found.rows),
            *words.proofs(summary),
            "throttled: 80.0 of 81.0 files/s random",
            "1 block disturbed, left out of the verdicts: ",
        ]
        at = 0
        for part in parts:
            at = shown.index(part, at)


def test_the_terminal_table_is_aligned_also_with_chinese_names():
    lines = str(table(make_summary({"original": 1.0, "数据预取": 0.5}))).splitlines()
    # A Chinese letter takes two columns of a terminal, so four of them take eight.
    latin, chinese = (
        re.search(r"\d\.\d{3}", line).start()
        for name in ("original", "数据预取")
        for line in lines
        if line.startswith(name)
    )
    assert latin == chinese + 4
    assert not any(line.endswith(" ") for line in lines)


def test_no_free_text_becomes_markup():
    info = {"question": NASTY, "notes": [NASTY], "source": NASTY}
    html = table(
        make_summary({"original": 1.0, NASTY: 0.5}, skipped={"b": NASTY}, **info)
    ).to_html()
    assert "<script>" not in html
    assert html.count("&lt;script&gt;") == 5  # question, source, variant, reason, note
    assert "mathjax_ignore" in html  # dollars are no formula


def test_numbers_of_other_tables_are_readable_and_keep_their_data():
    values = [1234567.0, 0.25, None]
    found = Table({"name": [*"uvw"], "saved_s": values, "x": ["a", None, "c"]})
    assert found.rows == [["u", "1,234,567", "a"], ["v", "0.250", "–"], ["w", "–", "c"]]
    assert "saved_<wbr>s" in found.to_html()
    shown = Tables({NASTY: found})
    assert "<script>" not in shown._repr_html_()
    assert str(shown).startswith(NASTY)
    assert list(found.data["saved_s"].dropna()) == values[:2]


def test_the_detailed_table_has_every_field_as_csv_and_json_can_hold_it():
    summary = judged_summary()
    rows = summary.records()
    assert json.loads(json.dumps(rows, allow_nan=False))[1]["left_out"] == 1
    detail = table(summary, detail=True)
    assert {"outliers", "left_out", "mde", "agreement", "level"} <= set(detail.columns)
    cells = list(csv.DictReader(io.StringIO(detail.to_csv())))
    assert [float(cell["normalized_time"]) for cell in cells] == [
        pytest.approx(row.normalized_time, abs=1e-12) for row in summary.rows
    ]


# --- what a number rests on ---------------------------------------------------------------


def test_the_notes_say_noise_proof_medium_and_what_is_odd():
    summary = judged_summary(skipped={"nvme": "not named"})
    twice = summary.noise_floors[""]
    aa = units.change(twice.ratio, twice.low, twice.high)
    row = summary.rows[1]
    (place,) = row.outliers
    hdd, ssd, *others = words.proofs(summary)
    assert hdd == (
        f"hdd: two runs of the same code differ by {aa} · "
        "cold, verified: epoch 1 from disk, epoch 2 from memory · throttled storage · "
        "disturbed, left out of the verdict: 0.992 (block 10), 1.008 (block 10)"
    )
    assert ssd == (
        f"ssd: 8 of 9 blocks · smallest detectable effect {100 * row.mde:.1f} % · "
        "cold, verified: epoch 1 from disk, epoch 2 from memory · real storage · "
        f"1 outlier, kept: {row.ratios[place]:.3f} · "
        "disturbed, left out of the verdict: 0.862 (block 10)"
    )
    assert not any(other.startswith("nvme") for other in others)


REAL = {"storage": REAL_DISK, "device": H200}
PUBLISHED = {"true": 0.894, "far": 0.75, "none": 0.999, "beyond": 0.6}
TRUE = {"base": 1.0, "true": 0.894, "far": 0.9, "none": 0.9, "beyond": 0.9}


@pytest.mark.parametrize(
    ("labels", "beside"),
    [
        (REAL, ""),
        (REAL | {"device": SIMULATED_GPU}, " · simulated GPU"),
        (REAL | {"storage": THROTTLED}, " · simulated storage"),
        (None, " · simulated storage"),  # the baseline's alone
    ],
)
def test_what_was_simulated_stands_beside_the_words_and_not_in_them(labels, beside):
    trials = fake_trials(TRUE, blocks=10, noise=0.01, labels=labels or REAL)
    if labels is None:
        trials = [
            replace(trial, hardware=(THROTTLED, H200)) if trial.variant == "base" else trial
            for trial in trials
        ]
    info = fake_info(list(TRUE), mode="full", blocks=10, published=PUBLISHED)
    bound = "waiting is 30 % of the epoch"
    assert dict(table(summarize(info, trials)).data["published"]) == {
        "base": "–",
        "true": f"0.894, as published{beside}",
        "far": f"0.750, saves less than published{beside}",
        "none": f"0.999, inconclusive{beside}",
        "beyond": f"0.600, not reproducible here: {bound}{beside}",
    }


# --- what a run rests on ------------------------------------------------------------------


def test_stand_ins_are_named_with_the_variants_they_belong_to():
    found = table(summarize(fake_info(["hdd", "ssd"]), fake_throttled_hdd()))
    assert found.heading[1] == "Throttled storage (81 reads/s): hdd"
    assert "device: cuda:H200" in found.heading[2]


def test_a_check_says_when_it_was_made_with_how_many_readers():
    random, sequential = RATES
    off = {**random, "readers": 8, "delivered_per_s": 41.0}
    free = {**sequential, "requested_per_s": None}
    facts = {"rates": [off, free], "rates_checked_utc": "2026-11-20T09:05:59Z"}
    checked = {"free_loader_au": 0.99512, "free_loader_checked_utc": "2026-11-21T14:03:22Z"}
    summary = make_summary(calibration=checked, storages={"hdd": facts})
    assert words.checks(summary) == [
        "simulated GPU: 99.5 % utilization without loading (at least 99 % required; "
        "checked 2026-11-21 14:03 UTC)",
        "hdd: 41.0 of 81.0 files/s random with 8 readers, 104.9 MB/s sequential with "
        "2 readers, no limit (tolerance: 5 %; checked 2026-11-20 09:05 UTC)",
    ]


@pytest.mark.parametrize(
    ("x", "said"),
    [(2.1, "2.1 × the loading rate, 165 images/s"), (1.02, "loading keeps up with it")],
)
def test_a_table_compares_the_simulated_gpu_with_the_loading_rate_of_its_rows(x, said):
    # A device that trains x times as fast as the baseline loads in the run's own rows.
    rate = make_summary().rows[0].steady_images_per_s
    shown = table(make_summary(calibration={"device_images_per_s": x * rate}))
    assert f"Simulated GPU, 460 images/s ({said})" in shown.heading
    best = "Faster loading can save about 30.0 % of the time at most"
    assert best in shown.notes or x < 2


def test_a_table_compares_a_real_gpu_with_the_loading_rate_of_the_rows_of_its_step():
    rate = make_summary().rows[0].steady_images_per_s
    names, labels = (
        ["original", "faster"],
        {**LABELS, "device": replace(H200, details="cuda:NVIDIA H100")},
    )
    calibration = {"device_images_per_s": 2.1 * rate}

    def summary_of(precision):
        """Of a run whose second variant has numbers of this precision."""
        its = {"device": "cuda", "num_workers": 2, "precision": "fp32"}
        variants = {"original": its, "faster": {**its, "precision": precision}}
        info = fake_info(names, variants=variants, calibration=calibration)
        return summarize(info, fake_trials(dict.fromkeys(names, 1.0), labels=labels))

    first, second = summary_of("fp32").rows
    assert first.x == second.x == first.device_images_per_s / first.steady_images_per_s
    said = f"device: cuda:NVIDIA H100, {units.rate(2.1 * rate)} ({first.x:.1f} × the loading"
    assert said in words.conditions(summary_of("fp32"))
    assert [row.x for row in summary_of("amp").rows] == [first.x, None]
    assert "device: cuda:NVIDIA H100 ·" in words.conditions(summary_of("amp"))


GPUS_NEED = "GPUs that train {} images/s each: {}; this machine loads 410 images/s"


@pytest.mark.parametrize(
    ("tasks", "real_gpu_images_per_s", "lines"),
    [
        ({"slow": {"x": 0.5}, "fast": {"x": 2.0}}, None,
         [GPUS_NEED.format(205, "2 need 410"), GPUS_NEED.format(820, "4 need 3,280")]),
        ({}, 480.0, [GPUS_NEED.format(480, "2 need 960, 4 need 1,920")]),
        ({}, None, []),  # real ones whose speed could not be measured
    ],
)  # fmt: skip
def test_a_table_names_what_several_gpus_need_and_what_this_machine_loads(
    tasks, real_gpu_images_per_s, lines
):
    ranks = {"one": {}, "slow": {"ranks": 2}, "fast": {"ranks": 4}}
    speeds = {"load_images_per_s": 410.0, "real_gpu_images_per_s": real_gpu_images_per_s}
    speeds["free_loader_au"] = 0.995
    info = fake_info([*ranks], variants=ranks, tasks=tasks, calibration=speeds)
    notes = table(summarize(info, fake_trials(dict.fromkeys(ranks, 1.0)))).notes
    assert [note for note in notes if note.startswith("GPUs that")] == lines
    assert "one simulated GPU: 99.5 % utilization without loading (at least 99 % required)" in notes


def test_the_loading_rate_stands_beside_the_baselines_device_only():
    names, trials = ["calibrated", "a100"], []
    for name, rate in zip(names, (400, 920)):
        labels = {**LABELS, "device": replace(SIMULATED_GPU, details=f"{rate} images/s")}
        trials += [
            t for t in fake_trials(dict.fromkeys(names, 1.0), labels=labels) if t.variant == name
        ]
    summary = summarize(fake_info(names, calibration={"device_images_per_s": 400}), trials)
    first, second = table(summary).heading[1:3]
    assert first.startswith("Simulated GPU, 400 images/s (")
    assert second == "Simulated GPU, 920 images/s: a100"


@pytest.mark.parametrize(("mode", "is_said"), [("full", True), ("quick", False)])
def test_an_unstable_machine_is_named_wherever_something_is_judged(mode, is_said):
    trials = [
        replace(t, epochs=tuple(replace(e, epoch_s=1.3 * e.epoch_s) for e in t.epochs))
        if t.role == "A2"
        else t
        for t in fake_trials(TIMES, blocks=10)
    ]
    summary = summarize(fake_info(list(TIMES), mode=mode, published=TIMES), trials)
    assert ("machine unstable, no verdicts" in words.conditions(summary)) is is_said
    assert words.published_text(summary, summary.rows[1]) == "0.894"


def test_the_origin_names_machine_versions_run_and_time_and_nothing_personal():
    versions = {"torch": "2.13.0", "opencv": "5.0.0", "pillow": "13", "simplejpeg": "unknown"}
    known = {
        "created_utc": "2026-11-21T19:12:22Z",
        "variants": {"a": {"decoder": "opencv", "data": "/home/ada/photos", "num_workers": 2}},
        "data": {"folder": "/home/ada/photos"},
        "provenance": {
            "machine_id": "7a93da180d42", "cpu_model": "AMD EPYC", "cores": 2, "dirty": False,
            "versions": versions, "revision": "d3b547a28684a3e15409176c609ce62422561b00",
            "gpu": {"works": False, "name": ""},
        },
    }  # fmt: skip
    summary = summarize(fake_info(["a"], **known), [], run="20261121T191222Z-1f2e")
    assert words.origin(summary) == (
        "2 cores, AMD EPYC, no GPU (machine 7a93da) · torch 2.13.0, opencv 5.0.0 · "
        "labkit d3b547a · run 20261121T191222Z-1f2e · 2026-11-21 19:12 UTC"
    )


SCALED = {"decoder": "simplejpeg_scaled", "preprocessor": "classification"}
PILLOW = {"decoder": "pillow"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SCALED, "opencv 5, simplejpeg 2"),
        ({**PILLOW, "preprocessor": "classification_pillow"}, "pillow 13"),
        ({**PILLOW, "loader": "dali_cpu"}, "pillow 13, dali 1"),
        ({**PILLOW, "loader": "tf_data_plain"}, "pillow 13, tensorflow 3"),
        ({**PILLOW, "prefetcher": "both"}, "pillow 13, prefetch_generator 4"),
        ({"decoder": "of another version", "progress_bar": "tqdm_loss"}, "tqdm 6"),
    ],
)
def test_the_origin_has_the_versions_of_what_the_parts_work_with(settings, expected):
    versions = {
        "torch": "2", "opencv": "5", "pillow": "13", "simplejpeg": "2", "prefetch_generator": "4",
        "tqdm": "6", "tensorflow": "3", "dali": "1",
    }  # fmt: skip
    plain = {"preprocessor": "of another version", "device": "cpu"}
    info = fake_info(["a"], variants={"a": plain | settings}, provenance={"versions": versions})
    assert f"torch 2, {expected}" in words.origin(summarize(info, [])).split(" · ")
