"""The host of the simulated GPU needs its core and the GIL as a real one does, in real CPU time."""

import os
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import cv2
import numpy as np
import pytest
import torch

from labkit.machine.clock import SystemClock
from labkit.parts.devices import PIECE_BYTES, SimulatedGpu
from tests.parts.test_devices import PROFILE

pytestmark = pytest.mark.alone
ROUND_S = 0.1  # some hundred photographs
ROUNDS = 15


def train(until_s):
    """Train a model whose operations are small: launching is all that they cost."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(144, 8),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.rand(2, 3, 8, 8), torch.tensor([1, 2])
    while time.perf_counter() < until_s:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def large_operations(until_s):
    """Call what takes milliseconds, as waiting for a GPU does."""
    matrix = torch.rand(512, 512)
    while time.perf_counter() < until_s:
        matrix @ matrix


def launch(until_s):
    SystemClock().launch(until_s - time.perf_counter())


def hold_the_gil(until_s):
    while time.perf_counter() < until_s:
        pass


def done_beside(*works):
    """Decode photographs in a second thread; return how many a second beside each work."""
    cv2.setNumThreads(0)
    pixels = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    _, jpeg = cv2.imencode(".jpg", pixels)
    decoded, stopped = 0, False

    def decode():
        nonlocal decoded
        while not stopped:
            cv2.imdecode(jpeg, cv2.IMREAD_COLOR)
            decoded += 1

    thread = threading.Thread(target=decode)
    thread.start()
    rates = [[] for _ in works]
    for number in range(ROUNDS):
        for work, decoded_per_s in list(zip(works, rates))[:: 1 if number % 2 else -1]:
            begun_s, before = time.perf_counter(), decoded
            work(begun_s + ROUND_S)
            decoded_per_s.append((decoded - before) / (time.perf_counter() - begun_s))
    stopped = True
    thread.join()
    return [statistics.median(decoded_per_s) for decoded_per_s in rates]


@pytest.fixture
def one_thread():
    """As in trials."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("simulated", "real"),
    [(SystemClock().spin_until, large_operations), (launch, train)],
    ids=["waiting", "launching"],
)
def test_a_thread_gets_done_what_it_does_beside_torch_and_not_beside_python(simulated, real):
    simulated_per_s, real_per_s, held_per_s = done_beside(simulated, real, hold_the_gil)
    assert held_per_s < 0.8 * real_per_s
    assert simulated_per_s == pytest.approx(real_per_s, rel=0.15)


def cpu_s_of(work):
    begun_s = time.thread_time()
    work()
    return time.thread_time() - begun_s


def test_spinning_takes_the_core_and_ends_in_time():
    clock, late_s, spun_s, looped_s = SystemClock(), [], 0.0, 0.0
    for number in range(100):
        took_s = 0.001 * (1 + number % 5)
        deadline_s = time.perf_counter() + took_s
        spun_s += cpu_s_of(partial(clock.spin_until, deadline_s))
        late_s.append(time.perf_counter() - deadline_s)
        # Beside other programs it gets less than all of the core, too.
        looped_s += cpu_s_of(partial(hold_the_gil, time.perf_counter() + took_s))
    assert statistics.median(late_s) < 100e-6  # sleeping alone is late by more
    assert spun_s > 0.8 * looped_s


def test_launching_takes_as_long_as_asked_on_a_free_core():
    clock = SystemClock()
    clock.launch(0.0)
    # The CPU time is that of a free core, whatever else runs.
    took_s = [cpu_s_of(lambda: clock.launch(0.01)) for _ in range(20)]
    assert statistics.median(took_s) == pytest.approx(0.01, rel=0.15)


ON_A_CORE = """
import os, statistics, subprocess, sys, time
core = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core})
from labkit.machine.clock import SystemClock
clock = SystemClock()
clock.launch(0.0)

def launched_s():
    took_s = []
    for _ in range(20):
        begun_s = time.perf_counter()
        clock.launch(0.02)
        took_s.append(time.perf_counter() - begun_s)
    return statistics.mean(took_s)

alone_s = launched_s()
with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
    beside_s = launched_s()
    other.kill()
print(beside_s / alone_s)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a core cannot be chosen here")
def test_launching_takes_longer_on_a_core_that_is_shared():
    told = subprocess.run([sys.executable, "-c", ON_A_CORE], capture_output=True, text=True)
    assert float(told.stdout) > 1.5, told.stderr


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_copy_from_pageable_memory_takes_cpu_time_and_one_from_pinned_none(layout):
    # Its copies take 64 ms; the host sleeps while it waits.
    speeds = {"pageable_bytes_per_s": 1e9, "pinned_bytes_per_s": 1e9}
    device = SimulatedGpu(replace(PROFILE, sleeps=True, **speeds), SystemClock())
    batch = {"image": torch.ones(64, 4, 256, 256).to(torch.float32, memory_format=layout)}
    put = partial(device.put, batch, side_stream=False)
    staging, size_bytes = np.empty(PIECE_BYTES, np.uint8), batch["image"].nbytes
    pieces = np.split(np.ones(size_bytes, np.uint8), size_bytes // PIECE_BYTES)
    copied_s = cpu_s_of(lambda: [np.copyto(staging, piece) for piece in pieces])
    assert cpu_s_of(lambda: put(pinned=False)) > copied_s / 2
    device.synchronize()
    assert cpu_s_of(lambda: put(pinned=True)) < copied_s / 2
