"""Main process and workers are profiled together."""

import sys
import tempfile
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
import torch
from photo_sets import BrokenPhotos, BusyPhotos, Photos, PhotoStream
from torch.utils.data import DataLoader

from labkit.diagnosis import call_graph as module
from labkit.diagnosis.call_graph import call_graph

SECONDS = 0.5


@pytest.fixture(autouse=True)
def nothing_stays_behind(monkeypatch, tmp_path):
    # Other processes may be profiling, too: a temporary directory of this test's own.
    own = partial(tempfile.TemporaryDirectory, dir=tmp_path)
    monkeypatch.setattr(module, "tempfile", SimpleNamespace(TemporaryDirectory=own))
    children = set(psutil.Process().children())
    yield
    assert list(tmp_path.glob("labkit-profile-*")) == []
    assert set(psutil.Process().children()) <= children
    assert sys.getprofile() is None


def train_step(batch):
    torch.ones(640, 640) @ torch.ones(640, 640)  # long enough to be seen


def functions(graph, process):
    table = graph.table(10**6)
    return set(table.index[table["process"] == process])


@pytest.mark.parametrize("make", [Photos, lambda photos: PhotoStream(photos, length=10**9)])
def test_workers_are_in_the_graph_also_in_an_endless_epoch(photos, make):
    loader = DataLoader(make(photos), batch_size=4, num_workers=2)
    before = dict(vars(loader))
    graph = call_graph(loader, train_step, seconds=SECONDS)
    assert (graph.error, graph.notes, graph.worker_count) == (None, (), 2)
    assert "imdecode" in functions(graph, "workers")
    assert "imdecode" not in functions(graph, "main process")
    assert "train_step" in functions(graph, "main process")
    assert graph.steps > 0 and vars(loader) == before


def test_without_workers_all_is_in_the_main_process(photos):
    graph = call_graph(DataLoader(Photos(photos), batch_size=4), train_step, seconds=SECONDS)
    assert graph.workers is None and graph.worker_count == 0
    assert "imdecode" in functions(graph, "main process")
    assert len(str(graph)) < 100_000


def test_spawned_workers_are_in_the_graph_and_end_quietly(photos, capfd):
    how = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "spawn"}
    loader = DataLoader(BusyPhotos(photos), **how)
    graph = call_graph(loader, train_step, seconds=SECONDS)
    assert "imdecode" in functions(graph, "workers")
    assert (graph.error, capfd.readouterr().err) == (None, "")


def test_a_step_that_raises_ends_the_profile_and_keeps_it(photos):
    steps = []

    def step(batch):
        steps.append(batch)
        if len(steps) == 3:
            raise FloatingPointError("loss is nan")

    graph = call_graph(DataLoader(Photos(photos), batch_size=4, num_workers=1), step, seconds=60)
    assert isinstance(graph.error, FloatingPointError) and graph.steps == 2
    assert "imdecode" in functions(graph, "workers")
    assert "ended early: FloatingPointError: loss is nan" in str(graph)


@pytest.mark.usefixtures("dying_workers")
def test_a_worker_that_dies_is_missed_by_name(photos):
    loader = DataLoader(BrokenPhotos(photos, "die"), batch_size=4, num_workers=1)
    graph = call_graph(loader, train_step, seconds=60)
    assert graph.error is not None  # of which class depends on what torch's handler interrupts
    assert graph.notes == ("no profile of 1 of the workers: they ended before they wrote it",)
    assert graph.workers is None


def test_of_any_other_iterable_this_thread_is_seen(photos):
    samples = Photos(photos)
    graph = call_graph((samples[i] for i in range(20)), train_step, seconds=60)
    assert "not a torch DataLoader" in str(graph) and graph.steps == 20


def test_an_empty_loader_ends_at_once():
    graph = call_graph(DataLoader([]), train_step, seconds=60)
    assert graph.steps == 0 and graph.error is None and "0 steps" in str(graph)


def test_the_table_holds_ten_functions_of_all_processes_by_their_own_time(photos):
    graph = call_graph(DataLoader(Photos(photos), num_workers=1), train_step, seconds=SECONDS)
    table = graph.table()
    assert list(table.columns) == ["process", "self_s", "share", "where"]
    assert table["self_s"].is_monotonic_decreasing and len(table) <= 10
    whole = graph.table(10**6)
    shares = whole.groupby("process")["share"].sum()
    assert dict(shares) == {"main process": pytest.approx(1), "workers": pytest.approx(1)}
    assert set(whole.loc[["imdecode"], "where"]) == {"<built-in>"}
