"""Main process and workers are profiled together, read as people call things, and let go."""

import tempfile
from pathlib import Path

import psutil
import pytest
import torch
from photo_sets import KINDS, BrokenPhotos, Photos, PhotoStream
from torch.utils.data import DataLoader

from labkit.diagnosis import call_graph
from labkit.diagnosis.call_graph import profile, tree
from labkit.diagnosis.frames import MAIN, WORKERS, Place, readable, short

SECONDS = 0.5


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    def folders():
        return set(Path(tempfile.gettempdir()).glob("labkit-profile-*"))

    before, children = folders(), {child.pid for child in psutil.Process().children()}
    yield
    assert folders() <= before
    assert {child.pid for child in psutil.Process().children()} <= children


def train_step(batch):
    torch.ones(64, 64) @ torch.ones(64, 64)


def names(root):
    return {node.name for node in root.walk()}


@pytest.mark.parametrize("kind", KINDS)
def test_workers_are_in_the_graph(photos, kind):
    loader = DataLoader(KINDS[kind](photos), batch_size=4, num_workers=2)
    before = dict(vars(loader))
    graph = profile(loader, train_step, seconds=SECONDS)
    assert graph.error is None and graph.notes == () and graph.worker_count == 2
    assert "imdecode" in names(graph.workers)
    assert any(n.startswith("Photo") and "__getitem__" in n for n in names(graph.workers))
    assert {"next batch", "train_step"} & names(graph.main)
    assert graph.steps > 0 and vars(loader) == before


def test_without_workers_all_is_in_the_main_process(photos):
    graph = profile(DataLoader(Photos(photos), batch_size=4), train_step, seconds=SECONDS)
    assert graph.workers is None and graph.worker_count == 0
    assert {"next batch", "imdecode"} <= names(graph.main)


@pytest.mark.thorough
def test_spawned_workers_are_in_the_graph(photos):
    loader = DataLoader(
        Photos(photos), batch_size=4, num_workers=1, multiprocessing_context="spawn"
    )
    graph = profile(loader, train_step, seconds=SECONDS)
    assert "imdecode" in names(graph.workers)


def test_an_endless_epoch_is_broken_off_and_its_workers_still_tell(photos):
    loader = DataLoader(PhotoStream(photos, length=10**9), batch_size=4, num_workers=2)
    graph = profile(loader, train_step, seconds=SECONDS)
    assert graph.notes == () and "imdecode" in names(graph.workers)


def test_a_step_that_raises_ends_the_profile_and_keeps_it(photos):
    steps = []

    def step(batch):
        steps.append(batch)
        if len(steps) == 3:
            raise FloatingPointError("loss is nan")

    graph = profile(DataLoader(Photos(photos), batch_size=4, num_workers=1), step, seconds=60)
    assert isinstance(graph.error, FloatingPointError) and graph.steps == 2
    assert "imdecode" in names(graph.workers)


# torch raises in whatever runs when a worker dies, were it a __del__; it looks again later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_is_missed_by_name(photos):
    loader = DataLoader(BrokenPhotos(photos, "die"), batch_size=4, num_workers=1)
    graph = profile(loader, train_step, seconds=60)
    assert "exited unexpectedly" in str(graph.error)
    assert graph.notes == ("no profile of 1 of the workers: they ended before they wrote it",)
    assert graph.workers is None


def test_of_any_other_iterable_this_thread_is_seen(photos):
    samples = Photos(photos)
    graph = profile((samples[i] for i in range(20)), train_step, seconds=60)
    assert "not a torch DataLoader" in graph.notes[0] and graph.steps == 20


def test_an_empty_loader_ends_at_once():
    graph = profile(DataLoader([]), train_step, seconds=60)
    assert graph.steps == 0 and graph.error is None


def test_nothing_is_profiled_afterwards(photos):
    import sys

    profile(DataLoader(Photos(photos), batch_size=4), train_step, seconds=0)
    assert sys.getprofile() is None and call_graph._running == []


# --- readable stacks


def frame(name, file, line=1, kind=""):
    return f"{name}\x00{file}\x00{line}" + (f"\x01c{kind}" if kind else "") + "\x01l7"


SITE = "/home/me/.venv/lib/python3.11/site-packages/"
TORCH = f"{SITE}torch/utils/data/"
LOOP = [frame("_profile", call_graph.__file__), frame("_run", call_graph.__file__)]
NEXT = frame("__next__", f"{TORCH}dataloader.py", kind="_MultiProcessingDataLoaderIter")
WORKER = frame("_worker_loop", f"{TORCH}_utils/worker.py")
FETCH = frame("fetch", f"{TORCH}_utils/fetch.py", kind="_MapDatasetFetcher")
STDLIB = str(Path(tempfile.__file__).parent)


def shown(process, *stack):
    return [place.name for place in readable(stack, process)]


def test_waiting_is_a_word():
    get = frame("get", f"{STDLIB}/multiprocessing/queues.py", kind="Queue")
    poll = frame("poll", f"{STDLIB}/multiprocessing/connection.py")
    wait = frame("wait", f"{STDLIB}/multiprocessing/connection.py")
    select = "select.poll\x00<built-in>\x000"
    waiting = [get, poll, wait, select]
    assert shown(MAIN, *LOOP, NEXT, *waiting) == ["next batch", "waiting for workers"]
    assert shown(WORKERS, WORKER, *waiting) == ["waiting for the loop"]


def test_a_persons_own_queue_is_their_own():
    step = frame("step", "/home/me/train.py")
    wait = frame("wait", f"{STDLIB}/threading.py", kind="Condition")
    assert shown(MAIN, *LOOP, step, wait) == ["step", "Condition.wait"]


def test_what_a_worker_does_starts_at_the_data_set():
    getitem = frame("__getitem__", "/home/me/train.py", 12, kind="main.<locals>.Photos")
    forward = frame("forward", f"{SITE}torchvision/transforms/transforms.py", kind="Resize")
    wrapped = frame("_call_impl", f"{SITE}torch/nn/modules/module.py", kind="Resize")
    listed = frame("<listcomp>", f"{TORCH}_utils/fetch.py")
    stack = [frame("<module>", "/home/me/train.py"), WORKER, FETCH, listed, getitem]
    assert shown(WORKERS, *stack, wrapped, forward) == ["Photos.__getitem__", "Resize.forward"]
    assert readable(stack, WORKERS) == (Place("Photos.__getitem__", "me/train.py", 12),)


def test_joining_a_batch_is_shown_once():
    collate = [
        frame(name, f"{TORCH}_utils/collate.py", line)
        for name, line in (("default_collate", 300), ("collate", 100), ("collate", 100))
    ]
    assert shown(WORKERS, WORKER, FETCH, *collate) == ["default_collate", "collate"]


def test_stacks_outside_of_the_loop_do_not_count():
    assert readable([frame("<module>", "/home/me/train.py")], MAIN) is None


@pytest.mark.parametrize(
    "file, shortened",
    [
        ("<built-in>", "built-in"),
        (f"{SITE}cv2/utils/__init__.py", "cv2/utils/__init__.py"),
        ("/tmp/ipykernel_77/123.py", "a notebook cell"),
        (str(Path.cwd() / "project" / "train.py"), "project/train.py"),
        ("/elsewhere/of/mine/data.py", "mine/data.py"),
    ],
)
def test_files_are_shortened(file, shortened):
    assert short(file) == shortened


# --- trees and tables


def test_a_tree_adds_up_and_keeps_what_is_small_as_one():
    a, b, c = (Place(name, "train.py", 1) for name in "abc")
    root = tree({(a,): 1.0, (a, b): 6.0, (b,): 2.999, (c,): 0.001}, MAIN)
    assert (root.name, root.total_s, root.self_s) == (MAIN, 10.0, 0)
    assert [(n.name, n.total_s) for n in root.children] == [
        ("a", 7.0),
        ("b", 2.999),
        ("other", 0.001),
    ]
    assert root.children[0].children[0].total_s == 6.0
    assert sum(node.self_s for node in root.walk()) == pytest.approx(10)


def test_the_table_lists_functions_by_their_own_time():
    a, b = Place("a", "train.py", 3), Place("imdecode", "built-in", 0)
    graph = call_graph.CallGraph(
        main=tree({(a,): 1.0, (a, b): 2.0}, MAIN), workers=tree({(b,): 4.0, (a, b): 4.0}, WORKERS),
        worker_count=2, seconds=3.0, steps=1, notes=(), error=None,
    )  # fmt: skip
    assert graph.top(2) == [
        {"function": "imdecode", "where": "built-in", "self_s": 8.0, "share": 1.0,
         "process": "workers"},
        {"function": "imdecode", "where": "built-in", "self_s": 2.0, "share": 2 / 3,
         "process": "main process"},
    ]  # fmt: skip
    assert graph.top()[-1]["where"] == "train.py:3"


def test_an_endless_loader_is_left_after_its_time():
    assert profile(iter(int, 1), train_step, seconds=0).steps == 1
