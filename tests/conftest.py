"""Shared fixtures: a small data set, and when a test may be skipped for want of CUDA."""

import os

import pytest


def pytest_collection_modifyitems(items):
    items = [item for item in items if item.get_closest_marker("needs_cuda")]
    if not items or os.environ.get("FAIL_WITHOUT_CUDA") == "1":
        return  # a GPU machine must not go green by skipping
    from labkit import machine

    cuda = machine.cuda()
    if not cuda.works:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=cuda.reason))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """24 synthetic photographs, made once."""
    from data_scripts.make_photos import make_photos

    folder = tmp_path_factory.mktemp("data") / "photos"
    make_photos(folder, 24, seed=1, progress=False)
    return folder
