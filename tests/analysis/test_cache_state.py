"""A label of a cache state is believed as far as what was measured of the files."""

from dataclasses import replace

import pytest
from fakes import fake_proved

from labkit.analysis.cache_state import cache_violation, is_verified
from labkit.records import Facts

MB = 1_000_000
UNKNOWN = "not known to be cold: neither memory nor the disk's bytes could be looked at"


@pytest.mark.parametrize(
    ("cache", "resident", "fetched", "after", "violation"),
    [
        # What memory held before.
        ("cold", 0.0, None, None, ""),
        ("cold", 0.02, None, None, ""),
        ("cold", 0.021, None, None, "not cold: 2.1 % of the files were in memory"),
        ("cold", 1.0, None, None, "not cold: 100.0 % of the files were in memory"),
        ("warm", 1.0, None, None, ""),
        ("warm", 0.98, None, None, ""),
        ("warm", 0.979, None, None, "not warm: 97.9 % of the files were in memory before"),
        ("warm", 0.0, None, None, "not warm: 0.0 % of the files were in memory before"),
        ("as found", 0.5, None, None, ""),
        # And after: what it lost meanwhile was not warm.
        ("warm", 1.0, None, 0.98, ""),
        ("warm", 1.0, None, 0.6, "not warm: 60.0 % of the files were in memory after the epochs"),
        # Bytes that the kernel counts must agree.
        ("cold", 0.0, 101 * MB, None, ""),
        ("cold", 0.0, 80 * MB, None, ""),
        ("cold", 0.0, 79_900_000, None, "not cold: only 79.9 % of the files' bytes came from disk"),
        ("cold", 0.0, 0, None, "not cold: only 0.0 % of the files' bytes came from disk"),
        ("as found", 0.0, 0, None, ""),
        ("as found", 0.0, 100 * MB, None, ""),
        # Of warm files only where memory could not be looked at: programs are read, too.
        ("warm", None, 0, None, ""),
        ("warm", None, 10 * MB + (1 << 20), None, ""),  # a tenth of the files, and a MiB
        ("warm", None, 10 * MB + (1 << 20) + 1, None,
         "not warm: 11.0 % of the files' bytes came from disk"),
        # Nothing known is no proof of cold, and speaks against nothing else.
        ("cold", None, None, None, UNKNOWN),
        ("warm", None, None, None, ""),
        ("as found", None, None, None, ""),
    ],
)  # fmt: skip
def test_a_label_is_believed_as_far_as_what_was_measured(
    cache, resident, fetched, after, violation
):
    file_bytes = None if fetched is None else 100 * MB
    proof = {"resident": resident, "file_bytes": file_bytes, "device_read_bytes": fetched}
    trial = fake_proved(cache, **proof)
    more = {} if after is None else {"resident_share_after": after}
    trial = replace(trial, cache_proof={**trial.cache_proof, **more})
    assert cache_violation(trial) == violation


def test_a_resident_batch_was_read_beforehand_so_cold_files_stay_where_they_are():
    proof = {"resident": 0.0, "file_bytes": 100 * MB, "device_read_bytes": 0}
    trial, resident = fake_proved("cold", **proof), Facts(repeats_one_batch=True)
    assert cache_violation(trial, resident) == ""
    not_cold = replace(trial, cache_proof={"resident_share_before": 0.5})
    assert cache_violation(not_cold, resident).startswith("not cold: 50.0 %")


@pytest.mark.parametrize(
    ("shares", "fetched", "violation"),
    [
        ([0.5, 0.5], 100 * MB, ""),
        ([0.46, 0.54], 80 * MB, ""),
        ([0.5, 0.549], 80 * MB, ""),
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
    assert cache_violation(unknown) == "not known to be 50 % cached: memory could not be looked at"


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
