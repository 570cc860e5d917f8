"""The line at the foot of every chart: enough to find a run again, and nothing personal.

Run: python -m pytest tests/test_origin.py
"""

from labkit.analysis.origin import origin

PROVENANCE = {
    "machine_id": "7a93da180d42",
    "cpu_model": "AMD EPYC",
    "cores": 2,
    "versions": {"torch": "2.13.0", "opencv": "5.0.0", "pillow": "13.0.0", "simplejpeg": "unknown"},
    "revision": "d3b547a28684a3e15409176c609ce62422561b00",
    "dirty": False,
    "gpu": {"works": False, "name": ""},
}
INFO = {
    "run": "20261121T191222Z-1f2e",
    "created_utc": "2026-11-21T19:12:22Z",
    "variants": {"a": {"decoder": "opencv", "data": "/home/ada/photos", "num_workers": 2}},
    "data": {"folder": "/home/ada/photos"},
    "provenance": PROVENANCE,
}
WHEN = "run 20261121T191222Z-1f2e · 2026-11-21 19:12 UTC"


def test_machine_used_versions_labkit_run_and_minute_stand_in_one_line():
    assert origin(INFO) == (
        "2 cores, AMD EPYC, no GPU (machine 7a93da) · torch 2.13.0, opencv 5.0.0 · "
        f"labkit d3b547a · {WHEN}"
    )


def test_no_folder_of_the_person_is_in_it():
    assert "ada" not in origin(INFO) and "/" not in origin(INFO)
