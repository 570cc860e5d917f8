"""Shared fixtures: a small data set, and when a test may be skipped for want of CUDA or rivals."""

import importlib.util
import os

import pytest


def pytest_collection_modifyitems(items):
    # The rivals' threads stay in the process once they are imported: no other test is to fork, or
    # to count its threads, beside them.
    items.sort(key=_needs_rivals)
    cuda_items = [item for item in items if item.get_closest_marker("needs_cuda")]
    # A machine that has it must not go green by skipping.
    if cuda_items and os.environ.get("FAIL_WITHOUT_CUDA") != "1":
        from labkit import machine

        _skip(cuda_items, machine.cuda().reason)
    if os.environ.get("FAIL_WITHOUT_RIVALS") != "1":
        _skip(list(filter(_needs_rivals, items)), _missing_rivals())


def _skip(items, reason):
    for item in items if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


def _needs_rivals(item):
    return item.get_closest_marker("needs_rivals") is not None


def _missing_rivals():
    missing = [name for name in ("tensorflow", "nvidia.dali") if not _is_installed(name)]
    return f"not installed: {', '.join(missing)}; pip install 'labkit[rivals]'" if missing else ""


def _is_installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it lies in
        return False


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """24 synthetic photographs, made once."""
    from data_scripts.make_photos import make_photos

    folder = tmp_path_factory.mktemp("data") / "photos"
    make_photos(folder, 24, seed=1, progress=False)
    return folder
