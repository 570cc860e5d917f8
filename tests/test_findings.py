"""Comparisons of cold, warm and in-memory variants.

Run: python -m pytest tests/test_findings.py
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import MEDIA, fake_info, fake_media_info, fake_media_trials, fake_trials

import labkit as lab
from labkit.results import Run

FULL = {"mode": "full", "blocks": 10}


def find(media=MEDIA, *, noise=0.005, change=lambda info: None, **info):
    info = fake_media_info(media, **info)
    change(info)
    trials = fake_media_trials(media, blocks=info.get("blocks", 3), noise=noise)
    return lab.findings(Run(folder=Path("run"), info=info, trials=tuple(trials)))


def row(found, variant, other, epochs):
    match = found.loc[[variant]]
    (index,) = ((match["divided by"] == other) & (match["epochs"] == epochs)).to_numpy().nonzero()
    (place,) = index
    return match.iloc[place]


def changed(name, **values):
    return MEDIA | {name: replace(MEDIA[name], **values)}


def test_cold_disks_are_compared_with_their_warm_twins_and_with_memory_epoch_by_epoch():
    found = find(noise=0)
    pairs = [(name, *cells) for name, *cells in found[["divided by", "epochs"]].itertuples()]
    assert pairs == [
        *(("hdd", "hdd, warm", part) for part in ("epoch 1", "later")),
        *(("ssd", "ssd, warm", part) for part in ("epoch 1", "later")),
        *(("ssd", "tmpfs", part) for part in ("epoch 1", "later")),
        ("tmpfs", "hdd, warm", "total"),
        ("tmpfs", "ssd, warm", "total"),
    ]
    first = row(found, "hdd", "hdd, warm", "epoch 1")
    assert first["ratio"] == pytest.approx(2.05 / 1.44)
    assert first["disk_read_share"] == pytest.approx(0.501)
    assert first["verdict"] == ""  # quick mode
    assert row(found, "tmpfs", "ssd, warm", "total")["ratio"] == pytest.approx(2.84 / 2.85)


def test_full_mode_judges_each_comparison():
    found = find(**FULL)
    assert row(found, "ssd", "tmpfs", "epoch 1")["verdict"] == "slower"
    assert row(found, "ssd", "tmpfs", "later")["verdict"] == "no practical difference"
    assert row(found, "tmpfs", "ssd, warm", "total")["verdict"] == "no practical difference"


def test_the_baselines_two_runs_of_a_block_count_as_their_geometric_mean():
    media = {name: MEDIA[name] for name in ("hdd", "hdd, warm")}
    info = fake_media_info(media, **FULL)
    trials = fake_media_trials(media, blocks=10, noise=0.05)
    found = lab.findings(Run(folder=Path("run"), info=info, trials=tuple(trials)))
    first_s = {name: [] for name in media}
    for trial in trials:
        first_s[trial.variant].append(trial.epochs[0].epoch_s)
    twice = zip(first_s["hdd"][::2], first_s["hdd"][1::2])
    logs = [math.log(math.sqrt(a * b) / w) for (a, b), w in zip(twice, first_s["hdd, warm"])]
    ratio = row(found, "hdd", "hdd, warm", "epoch 1")["ratio"]
    assert ratio == pytest.approx(math.exp(sum(logs) / 10))


def test_a_warm_disk_that_was_read_is_not_compared_with_memory():
    found = find(changed("ssd, warm", read_share=0.2))
    assert list(found.loc[["tmpfs"], "divided by"]) == ["hdd, warm"]


def test_swapped_pages_are_those_of_both_variants():
    found = find(changed("ssd, warm", swapped_pages=500))
    assert row(found, "ssd", "ssd, warm", "epoch 1")["swapped_pages"] == 1500
    assert row(found, "hdd", "hdd, warm", "epoch 1")["swapped_pages"] == 0
    found = find(changed("ssd, warm", swapped_pages=None))
    assert math.isnan(row(found, "ssd", "ssd, warm", "epoch 1")["swapped_pages"])


def test_variants_that_differ_in_more_than_the_cache_are_no_pair():
    def more_workers(info):
        for name in ("hdd, warm", "ssd, warm"):
            info["variants"][name]["num_workers"] = 8

    assert find(change=more_workers).empty
    names = ["original", "both"]
    trials = tuple(fake_trials(dict.fromkeys(names, 1.0)))
    assert lab.findings(Run(folder=Path("run"), info=fake_info(names), trials=trials)).empty
