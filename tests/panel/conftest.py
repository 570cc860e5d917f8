"""A registry of runs in progress for each test."""

import pytest

from labkit.panel import job


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(job, "_current", None)
    monkeypatch.setattr(job, "_watchers", set())
