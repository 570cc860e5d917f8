"""Loaders leave nothing behind, however an epoch ends, and bear a fork beside their threads.

Thread, process, shared-memory and file-handle counts are the kernel's own.
"""

import gc
from pathlib import Path

import psutil
import pytest
from jpegs import encode, photo

from labkit.machine import hardware
from labkit.pipeline import open_loader
from labkit.resolve import resolve
from labkit.settings import MODES, Settings, complete
from tests.processes import until

TIMES = 20


def settings(data, loader, **changes):
    small = {
        "input_px": 64, "batch_size": 4, "num_workers": 1, "device": "cpu", "step": "classifier",
        "preprocessor": "classification",
    }  # fmt: skip
    filled = Settings(data=str(data), loader=loader, **{**small, **changes})
    return complete(filled, MODES["quick"], cores=2, has_cuda=False, can_fork=hardware.can_fork())


@pytest.fixture(scope="module")
def small_photos(tmp_path_factory):
    """So small that many epochs take no time to decode."""
    folder = tmp_path_factory.mktemp("small")
    for number in range(24):
        (folder / f"{number}.jpg").write_bytes(encode(photo()))
    return folder


def held():
    """Count this process's threads, children, open files and entries in shared memory."""
    gc.collect()
    this = psutil.Process()
    ours = {this.pid, *(child.pid for child in this.children(recursive=True))}
    shared = Path("/dev/shm").glob("torch_*")
    return {
        "threads": this.num_threads(),
        "processes": len(ours),
        "files": this.num_fds(),
        "shared memory": sum(int(entry.name.split("_")[1]) in ours for entry in shared),
    }


def assert_nothing_left(loader, times):
    def break_off(times):
        for _ in range(times):
            for _ in loader:
                break

    break_off(3)  # what is started once, and stays
    before = held()
    break_off(times)
    until(lambda: all(n <= before[kind] for kind, n in held().items()), lambda: (before, held()))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="counts as Linux has them")
@pytest.mark.parametrize("how", [{}, {"pin_memory": True, "device": "emulated", "step": "timed"}])
@pytest.mark.parametrize("name", ["torch", "threads"])  # the rivals: test_rivals
def test_breaking_off_again_and_again_leaves_nothing(small_photos, name, how):
    _, loader = open_loader(resolve(settings(small_photos, name, **how)))
    assert_nothing_left(loader, times=5 if how else TIMES)
