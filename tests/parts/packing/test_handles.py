"""Open files of a pack: each process has its own, whatever is being read while it forks."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from packed import FORMATS, VARIANTS, assert_gives, some_samples, write
from test_pack import corrupt

from labkit.parts.packing import PACKINGS

WAIT_S = 60  # for another process; only a broken test ever waits so long
SHARD_BYTES = 5000  # about three records
can_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this platform has no fork"
)
OPEN_FILES = Path("/proc/self/fd")


def read_all(reader, samples, seed):
    assert_gives(reader, samples, order=np.random.default_rng(seed).permutation(len(samples)))


def open_files():
    """List the files that this process has open."""
    return [Path(os.path.realpath(link)) for link in OPEN_FILES.iterdir()]


def in_children(count, action):
    """Run something in several forks at once; none may fail, nor hang.

    Not by multiprocessing, whose processes cannot be waited for in two threads at once.
    """
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                action(number)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    deadline_s = time.monotonic() + WAIT_S
    for child in children:
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline_s:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.001)
        assert os.waitstatus_to_exitcode(ended[1]) == 0


@can_fork
@pytest.mark.parametrize("packing", FORMATS)
def test_forks_read_while_threads_of_the_parent_read_and_fork(packing, tmp_path):
    samples = some_samples(count=9)
    reader = write(packing, tmp_path / "pack", samples, shard_bytes=SHARD_BYTES)
    assert_gives(reader, samples)
    stop, failures, rounds = threading.Event(), [], []

    def go(action):
        try:
            while not stop.is_set():
                action(len(rounds))
                rounds.append(action)
        except BaseException as error:
            failures.append(error)

    def read(seed):
        read_all(reader, samples, seed)

    def reopen(seed):  # readers come and go meanwhile
        PACKINGS[packing].open(tmp_path / "pack").read(seed % 9)

    def fork(_):
        in_children(1, read)

    threads = [threading.Thread(target=go, args=(action,)) for action in (read, read, reopen, fork)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            in_children(2, read)
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert failures == []
    assert {read, reopen, fork} <= set(rounds)
    assert_gives(reader, samples)


@can_fork
@pytest.mark.parametrize("packing", ["hdf5", "lmdb"])
@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="needs Linux's list of open files")
def test_nothing_of_a_library_that_forbids_it_is_open_in_a_child(packing, tmp_path):
    reader = write(packing, tmp_path / "pack", some_samples())
    reader.read(0)

    def check(number):
        assert [link for link in open_files() if link.is_relative_to(tmp_path)] == []

    assert [link for link in open_files() if link.is_relative_to(tmp_path)] != []
    in_children(1, check)
    reader.read(1)  # opened again here


@can_fork
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.endswith("one_handle")])
def test_one_handle_is_opened_in_the_parent_and_used_by_its_forks(variant, tmp_path):
    samples = some_samples()
    write(VARIANTS[variant], tmp_path / "pack", samples)
    reader = PACKINGS[variant].open(tmp_path / "pack")
    (path,) = reader.paths
    path.rename(path.with_name("moved"))  # nobody can open it any more
    try:
        in_children(1, lambda number: assert_gives(reader, samples))
    finally:
        path.with_name("moved").rename(path)


@pytest.mark.parametrize("packing", [name for name in PACKINGS if name != "folder"])
def test_a_pickled_reader_reads_the_same_and_holds_no_open_file(packing, tmp_path):
    samples = some_samples()
    write(VARIANTS.get(packing, packing), tmp_path / "pack", samples)
    reader = PACKINGS[packing].open(tmp_path / "pack")
    before = len(pickle.dumps(reader))
    reader.read(0)
    assert len(pickle.dumps(reader)) == before
    travelled = pickle.loads(pickle.dumps(reader))
    assert_gives(travelled, samples)
    assert (travelled.paths, travelled.stored) == (reader.paths, reader.stored)


def test_spawned_processes_read_every_pack_and_write_the_same_bytes(tmp_path):
    samples = some_samples()
    readers = [write(name, tmp_path / name, samples) for name in FORMATS]
    for reader in readers:
        reader.read(0)
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=read_each, args=(readers, samples, tmp_path / "again"))
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == 0


def read_each(readers, samples, folder):
    for reader in readers:
        assert_gives(reader, samples)
        again = write(reader.format, folder / reader.format, samples)
        assert again.manifest_hash == reader.manifest_hash
        for path, other in zip(reader.paths, again.paths, strict=True):
            assert path.read_bytes() == other.read_bytes()


FORKS_WHILE_READING = """
import os, sys, threading
from labkit.parts.packing import PACKINGS

reader = PACKINGS[sys.argv[1]].open(sys.argv[2])

def read():
    while True:
        reader.read(0)

threading.Thread(target=read, daemon=True).start()
for _ in range(100):
    reader.read(1)
    child = os.fork()
    if child == 0:
        reader.read(2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


@can_fork
@pytest.mark.parametrize("packing", ["hdf5", "lmdb"])
def test_a_library_that_is_imported_late_waits_for_no_reader_before_a_fork(packing, tmp_path):
    write(packing, tmp_path / "pack", some_samples())
    # h5py takes its own lock before a fork, and readers need that one while they have ours.
    shown = subprocess.run(
        [sys.executable, "-c", FORKS_WHILE_READING, packing, str(tmp_path / "pack")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=WAIT_S,
        capture_output=True,
        text=True,
    )
    assert (shown.returncode, shown.stderr) == (0, "")


class Images:
    """A data set for torch's loader."""

    def __init__(self, reader):
        self.reader = reader

    def __len__(self):
        return len(self.reader)

    def __getitem__(self, i):
        return i, bytes(self.reader.read(i)[0])


@can_fork
@pytest.mark.parametrize("packing", FORMATS)
def test_a_corrupt_record_costs_a_loader_worker_only_this_record(packing, tmp_path):
    import torch

    samples = some_samples(count=12)
    reader = write(packing, tmp_path / "pack", samples, shard_bytes=SHARD_BYTES)
    corrupt(reader, samples[2][1])
    loader = torch.utils.data.DataLoader(
        Images(reader), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    batches, found, errors = iter(loader), {}, []
    for _ in range(12):
        try:
            i, image = next(batches)
        except ValueError as error:
            errors.append(str(error))
        else:
            found[i] = image
    assert found == {i: samples[i][1] for i in range(12) if i != 2}
    (message,) = errors
    assert str(tmp_path / "pack") in message
    assert "record 2 (straße/写真.jpeg)" in message
    assert next(batches, None) is None  # ends the workers
