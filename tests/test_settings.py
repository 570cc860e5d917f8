"""Settings are described and varied, and a mode fills only what is unset."""

from dataclasses import asdict

import pytest

from labkit.settings import (
    BATCH_SIZE,
    SLEEPING,
    Settings,
    complete,
    field_kinds,
    read_settings,
)


def test_only_what_is_unset_is_filled_in():
    machine = {"cores": 8, "has_cuda": False, "can_fork": True}
    own = Settings(input_px=96, num_workers=0, device="cpu")
    filled = complete(own, **machine)
    assert (filled.input_px, filled.num_workers, filled.device) == (96, 0, "cpu")
    assert filled.batch_size == BATCH_SIZE
    unset = {name for name, (_, _, may) in field_kinds().items() if may}
    unset -= {"images", "gpu_images_per_s"}
    assert all(getattr(complete(Settings(), **machine), name) is not None for name in unset)


@pytest.mark.parametrize(
    ("has_cuda", "device", "step"), [(True, "cuda", "detector"), (False, "simulated", "timed")]
)
def test_an_unset_device_is_cuda_where_it_works_and_else_simulated(has_cuda, device, step):
    filled = complete(Settings(), cores=2, has_cuda=has_cuda, can_fork=True)
    assert (filled.device, filled.step) == (device, step)


def test_stored_settings_of_an_earlier_version_are_read():
    stored = asdict(Settings(num_workers=3))
    expected = Settings(num_workers=3), {}
    assert read_settings(stored) == expected
    assert read_settings({**stored, "profile": "matched", "if_not_written": "stop"}) == expected


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"profile": "calibrated", "device_speed": 460.0}, {"gpu_images_per_s": 460.0}),
        ({"profile": "resnet50_a100"}, {"gpu_images_per_s": "resnet50_a100"}),
        ({"profile": "calibrated_sleeping", "device": "emulated"}, {"device": SLEEPING}),
        ({"profile": "matched", "device": "emulated"}, {"device": "simulated"}),
    ],
)
def test_the_simulated_gpus_of_earlier_versions_are_read(stored, expected):
    assert read_settings(stored) == (Settings(**expected), {})


@pytest.mark.parametrize(
    ("stored", "report_to"),
    [
        ({"report_loss": True}, "file"),
        ({"report_loss": False}, "file_without_loss"),
        ({"report_loss": False, "report_to": "http_5ms_thread"}, "http_5ms_without_loss_thread"),
        ({"report_in_background": True, "report_to": "terminal"}, "terminal_thread"),
    ],
)
def test_the_reports_of_earlier_versions_are_read(stored, report_to):
    assert read_settings(stored) == (Settings(report_to=report_to), {})


@pytest.mark.parametrize("given", [460, 460.0, "460"])
def test_the_speed_of_a_gpu_is_a_number_also_as_text(given):
    assert Settings(gpu_images_per_s=given).gpu_images_per_s == 460.0


def test_stored_settings_of_another_version_are_kept_apart():
    other = {"turbo": 5, "cache": "hot", "num_workers": -1}
    assert read_settings({"decoder": "pillow", **other}) == (Settings(decoder="pillow"), other)
