"""Comparisons of cold, warm and in-memory variants.

Run: python -m pytest tests/test_findings.py
"""

from pathlib import Path

import pytest
from fakes import MEDIA, fake_media_info, fake_media_trials

from labkit.report.findings import findings
from labkit.report.run import Run

FULL = {"mode": "full", "blocks": 10}


def find(media=MEDIA, *, noise=0.005, change=lambda info: None, **info):
    info = fake_media_info(media, **info)
    change(info)
    trials = fake_media_trials(media, blocks=info.get("blocks", 3), noise=noise)
    return findings(Run(folder=Path("run"), info=info, trials=tuple(trials)))


def row(found, variant, other, epochs):
    match = found.loc[[variant]]
    (index,) = ((match["divided by"] == other) & (match["epochs"] == epochs)).to_numpy().nonzero()
    (place,) = index
    return match.iloc[place]


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
