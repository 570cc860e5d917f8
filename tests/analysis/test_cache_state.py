"""A label of a cache state is believed as far as what was measured of the files.

Run: python -m pytest tests/analysis/test_cache_state.py
"""

from dataclasses import replace

import pytest
from fakes import fake_proved

from labkit.analysis.cache_state import cache_violation, is_verified
from labkit.records import Facts

MB = 1_000_000
NOT_COLD = {"resident_share_before": 0.5}  # of a trial that is labelled cold


@pytest.mark.parametrize(
    ("cache", "resident", "violation"),
    [
        ("cold", 0.0, ""),
        ("cold", 0.02, ""),
        ("cold", 0.021, "not cold: 2.1 % of the files were in memory"),
        ("cold", 1.0, "not cold: 100.0 % of the files were in memory"),
        ("warm", 1.0, ""),
        ("warm", 0.98, ""),
        ("warm", 0.979, "not warm: 97.9 % of the files were in memory before"),
        ("warm", 0.0, "not warm: 0.0 % of the files were in memory before"),
        ("as found", 0.0, ""),
        ("as found", 0.5, ""),
        ("as found", 1.0, ""),
    ],
)
def test_a_label_is_believed_as_far_as_what_memory_held(cache, resident, violation):
    assert cache_violation(fake_proved(cache, resident=resident)) == violation


@pytest.mark.parametrize(
    ("cache", "fetched", "violation"),
    [
        ("cold", 101 * MB, ""),
        ("cold", 80 * MB, ""),
        ("cold", 79_900_000, "not cold: only 79.9 % of the files' bytes came from disk"),
        ("cold", 0, "not cold: only 0.0 % of the files' bytes came from disk"),
        ("warm", 0, ""),
        # A tenth of the files, and a MiB for programs.
        ("warm", 10 * MB + (1 << 20), ""),
        ("warm", 10 * MB + (1 << 20) + 1, "not warm: 11.0 % of the files' bytes came from disk"),
        ("as found", 0, ""),
        ("as found", 100 * MB, ""),
    ],
)
def test_bytes_that_the_kernel_counts_must_agree(cache, fetched, violation):
    # Of warm files only where memory could not be looked at: programs are read, too.
    resident = None if cache == "warm" else 0.0
    proof = {"resident": resident, "file_bytes": 100 * MB, "device_read_bytes": fetched}
    assert cache_violation(fake_proved(cache, **proof)) == violation


def test_what_memory_lost_meanwhile_was_not_warm():
    trial = fake_proved("warm", resident=1.0)
    kept, lost = (
        replace(trial, cache_proof={**trial.cache_proof, "resident_share_after": share})
        for share in (0.98, 0.6)
    )
    assert cache_violation(kept) == ""
    assert cache_violation(lost) == "not warm: 60.0 % of the files were in memory after the epochs"


def test_nothing_known_is_no_proof_of_cold_and_speaks_against_nothing_else():
    unknown = "not known to be cold: neither memory nor the disk's bytes could be looked at"
    assert cache_violation(fake_proved("cold", resident=None)) == unknown
    assert cache_violation(fake_proved("warm", resident=None)) == ""
    assert cache_violation(fake_proved("as found", resident=None)) == ""


def test_a_resident_batch_was_read_beforehand_so_cold_files_stay_where_they_are():
    proof = {"resident": 0.0, "file_bytes": 100 * MB, "device_read_bytes": 0}
    trial, resident = fake_proved("cold", **proof), Facts(repeats_one_batch=True)
    assert cache_violation(trial, resident) == ""
    assert cache_violation(trial).startswith("not cold: only")
    not_cold = replace(trial, cache_proof=NOT_COLD)
    assert cache_violation(not_cold, resident).startswith("not cold: 50.0 %")


@pytest.mark.parametrize(
    ("shares", "fetched", "violation"),
    [
        ([0.5, 0.5], 100 * MB, ""),
        ([0.46, 0.54], 80 * MB, ""),
        ([0.5, 0.44], 100 * MB, "44.0 % of the data was in memory before epoch 2"),
        ([0.56, 0.5], 100 * MB, "56.0 % of the data was in memory before epoch 1"),
        ([0.5, 0.5], 79 * MB, "only 79.0 % of what memory lacked came from disk"),
    ],
)
def test_where_a_share_was_asked_every_epoch_must_begin_with_it(shares, fetched, violation):
    trial = fake_proved("50 % cached", file_bytes=100 * MB, device_read_bytes=fetched)
    proof = {**trial.cache_proof, "resident_shares_before": shares}
    trial = replace(trial, settings={"cache": 50}, cache_proof=proof)
    assert cache_violation(trial) == (violation and f"not 50 % cached: {violation}")
    unknown = replace(trial, cache_proof={**proof, "resident_shares_before": [0.5, None]})
    assert cache_violation(unknown) == (
        "not known to be 50 % cached: memory could not be looked at"
    )


@pytest.mark.parametrize(
    ("cache", "resident", "read", "verified"),
    [
        ("cold", 0.0, None, True),
        ("cold", None, 0.99, True),  # the bytes alone are a proof of cold files
        ("cold", None, None, False),
        ("warm", 1.0, None, True),
        ("warm", None, 0.0, False),  # and none of warm ones
        ("as found", 0.5, 0.5, False),
        ("", None, None, False),
    ],
)
def test_a_measurement_that_could_have_denied_a_label_verifies_it(cache, resident, read, verified):
    assert is_verified(cache, resident, read) is verified
