"""What `benchmarks.loaders` concludes from its rounds, which themselves take minutes.

Run: python -m pytest tests/test_loader_report.py
"""

import json
from dataclasses import replace

import pytest

from benchmarks.loader_report import (
    DECODING,
    NO_LOADER,
    UNREAD,
    Rounds,
    judge,
    save,
)

# Seconds and CPU-seconds of 1,000 images on two cores; every round is a little slower.
TAKEN = {
    "ThreadLoader": (1.0, 1.96),
    "DataLoader": (1.1, 2.10),
    "tf.data": (2.5, 4.00),
    NO_LOADER: (0.98, 1.90),
    UNREAD: (0.95, 1.85),
    DECODING: (0.8, 1.60),
}
TARGETS = {
    ("ThreadLoader", "tf.data"): 2.0,
    ("ThreadLoader", "DataLoader"): 1.11,
    ("ThreadLoader", DECODING): 0.9,
    ("ThreadLoader", "DALI"): 2.0,
}


@pytest.fixture
def rounds():
    return Rounds(
        taken={
            name: [(slower * s, slower * cpu_s) for slower in (0.99, 1.0, 1.01)]
            for name, (s, cpu_s) in TAKEN.items()
        },
        images=1000,
        loader_us=12.0,
        targets=TARGETS,
        conditions=["made up"],
    )


def test_targets_are_met_missed_or_unknown(rounds):
    lines, met = judge(rounds)
    assert not met
    assert lines[0] == "met     ThreadLoader / tf.data: 2.500 [2.500, 2.500], target 2"
    assert lines[1] == "MISSED  ThreadLoader / DataLoader: 1.100 [1.100, 1.100], target 1.11"
    assert lines[-1] == "UNKNOWN ThreadLoader / DALI: not measured, target 2"
    only = {("ThreadLoader", "tf.data"): 2.0, ("ThreadLoader", "DALI"): 2.0}
    assert judge(replace(rounds, targets=only))[1]


def test_a_run_is_kept_with_its_rounds_machine_and_chart(rounds, tmp_path):
    provenance = {"python": "3.11.7", "machine_id": "7a93da", "cores": 2, "cpu_model": "A CPU"}
    save(rounds, tmp_path / "kept", provenance, "2026-11-22T10:00:00+00:00")
    text = (tmp_path / "kept" / "README.md").read_text()
    for line in ("| DataLoader | 909 | 2.10 | 1.91 | 1.100 [1.100, 1.100] |", "2 cores, A CPU"):
        assert line in text
    assert "so no loader can meet it" in text
    kept = json.loads((tmp_path / "kept" / "rounds.json").read_text())
    assert kept["taken"][DECODING] == [list(times) for times in rounds.taken[DECODING]]
    assert (tmp_path / "kept" / "chart.png").read_bytes().startswith(b"\x89PNG")
