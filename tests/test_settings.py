"""Settings refuse what cannot work, in words, and a mode fills only what is unset."""

import re
from dataclasses import asdict, fields, replace

import pytest

from labkit.settings import (
    MODES,
    Settings,
    complete,
    field_kinds,
    help_texts,
    read_settings,
    vary,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"batch_size": "8"}, "batch_size must be a whole number, got '8'"),
        ({"batch_size": True}, "batch_size must be a whole number, got True"),
        ({"pin_memory": "yes"}, "pin_memory must be True or False, got 'yes'"),
        ({"cache": "hot"}, "cache must be one of cold, warm, as found, got 'hot'"),
        ({"input_px": 100}, "input_px must be a positive multiple of 32, got 100; try 256 or 512"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"cached": -1}, "cached must be at least 0, got -1"),
        ({"cached": 101}, "cached must be at most 100, got 101"),
        ({"data": 3}, "data must be text, got 3"),
    ],
)
def test_wrong_values_name_argument_rule_and_value(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings(**changes)


def test_every_setting_has_one_line_of_help():
    assert set(help_texts()) == {field.name for field in fields(Settings)} == set(field_kinds())
    assert all("\n" not in text and text.endswith(".") for text in help_texts().values())


def test_vary_changes_one_setting_and_keeps_the_rest():
    base = Settings(num_workers=3)
    variants = vary(base, batch_size=[4, 8])
    assert list(variants) == ["4", "8"]
    assert variants["8"] == replace(base, batch_size=8)


def test_vary_refuses_two_settings_and_repeated_values():
    with pytest.raises(ValueError, match="vary must be given exactly one setting, got 2"):
        vary(Settings(), batch_size=[4], num_workers=[1])
    with pytest.raises(ValueError, match="batch_size must be given distinct values, got 4, 4"):
        vary(Settings(), batch_size=[4, 4])


@pytest.mark.parametrize("mode", MODES.values(), ids=lambda mode: mode.name)
def test_a_mode_fills_only_what_is_unset(mode):
    machine = {"cores": 8, "has_cuda": False, "can_fork": True}
    own = Settings(input_px=96, num_workers=0, device="cpu")
    filled = complete(own, mode, **machine)
    assert (filled.input_px, filled.num_workers, filled.device) == (96, 0, "cpu")
    assert filled.batch_size == mode.batch_size
    unset = {name for name, (_, _, may) in field_kinds().items() if may}
    unset -= {"images", "cached", "device_speed"}
    assert all(getattr(complete(Settings(), mode, **machine), name) is not None for name in unset)


@pytest.mark.parametrize(
    ("has_cuda", "device", "step"), [(True, "cuda", "detector"), (False, "emulated", "timed")]
)
def test_an_unset_device_is_cuda_where_it_works_and_else_emulated(has_cuda, device, step):
    filled = complete(Settings(), MODES["quick"], cores=2, has_cuda=has_cuda, can_fork=True)
    assert (filled.device, filled.step) == (device, step)


def test_stored_settings_of_another_version_are_refused_in_one_line():
    stored = {**asdict(Settings(num_workers=3)), "turbo": 5}
    with pytest.raises(ValueError, match=r"^settings must be known to this version .* got turbo; "):
        read_settings(stored)
    del stored["turbo"]
    assert read_settings(stored) == Settings(num_workers=3)
    assert read_settings({**stored, "profile": "matched", "if_not_written": "stop"}) == Settings(
        num_workers=3
    )
