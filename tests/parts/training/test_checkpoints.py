"""Checkpoints are whole whatever happens, hold the moment of their saving, and leave nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from fake_clock import FakeClock
from places import SHARED_MEMORY, memory_mounted

from labkit.files import part_of
from labkit.parts.training.checkpoint_file import write
from labkit.parts.training.checkpoints import SAVERS, CheckpointFailed, Saved

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name, /proc")

WAIT_S = 60  # for another process; only a broken test ever waits so long
BACKGROUND = ["thread", "process"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last.pt"


@contextlib.contextmanager
def saver_of(name, path, **more):
    with contextlib.closing(SAVERS[name](path, **more)) as saver:
        yield saver


def trained(device="cpu"):
    """A model and an optimizer with a state of its own: steps, moments, hyperparameters."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.randn(2, 3, 8, 8, device=device)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def state_of(model, optimizer, step=2):
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "losses": [0.5, 0.25, {"nested": (1, None, True)}],
        "half": torch.ones(2, 3, dtype=torch.bfloat16, device=next(model.parameters()).device),
        "nothing": torch.empty(0, 3),
        "scalar": torch.tensor(True),
        "strided": torch.arange(24).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    }


def filled(value, size_bytes=4096):
    return {"step": value, "weights": torch.full((size_bytes // 4,), float(value))}


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def loaded(path):
    return torch.load(path, weights_only=True)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@contextlib.contextmanager
def held_up(path):
    """Let no writer of this file go on: it is somebody else's for as long as the context lasts."""
    with part_of(path).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- what is in the file --------------------------------------------------------------------


@pytest.mark.parametrize("name", SAVERS)
def test_what_was_saved_is_loaded_and_training_goes_on_from_it(name, path):
    model, optimizer = trained()
    state = state_of(model, optimizer)
    with saver_of(name, path) as saver:
        saver.save(state)
        saver.finish()
    found = loaded(path)
    assert equal(found, state)
    assert found["model"]._metadata == state["model"]._metadata  # versions of the layers
    assert names(path.parent) == ["last.pt"]
    fresh, its_optimizer = trained()
    fresh.load_state_dict(found["model"])
    its_optimizer.load_state_dict(found["optimizer"])
    assert equal(its_optimizer.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("name", SAVERS)
def test_the_file_has_the_values_of_the_moment_it_was_saved(name, path):
    model, optimizer = trained()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with saver_of(name, path) as saver:
        with held_up(path) if name in BACKGROUND else contextlib.nullcontext():
            state = state_of(model, optimizer)
            saver.save(state)
            state["losses"].append("later")
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(7)
        saver.finish()
    found = loaded(path)
    assert equal(found["model"], before)
    assert len(found["losses"]) == 3


@pytest.mark.parametrize("name", SAVERS)
def test_a_state_may_grow_and_shrink_between_saves(name, path):
    with saver_of(name, path) as saver:
        for value, size_bytes in enumerate([4096, 1 << 20, 16]):
            saver.save(filled(value, size_bytes))
            saver.finish()
            assert equal(loaded(path), filled(value, size_bytes))
    assert [one.step for one in saver.saved] == [0, 1, 2]


@pytest.mark.parametrize("name", SAVERS)
def test_shared_weights_are_saved_once(name, path):
    weights = torch.rand(1 << 16)
    with saver_of(name, path) as saver:
        saver.save({"encoder": weights, "decoder": weights.detach()})
        saver.finish()
    assert saver.saved[0].size_bytes == path.stat().st_size < 1.5 * weights.nbytes
    assert equal(loaded(path), {"encoder": weights, "decoder": weights})


@pytest.mark.needs_cuda
@pytest.mark.parametrize("name", SAVERS)
def test_a_state_on_a_cuda_device_is_saved_as_it_was(name, path):
    model, optimizer = trained("cuda")
    with saver_of(name, path) as saver:
        for step in range(3):  # page-locked memory is used again, and grows
            state = {**state_of(model, optimizer, step), "more": torch.full((1 << step * 8,), step)}
            expected = {key: value.cpu() for key, value in model.state_dict().items()}
            saver.save(state)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(1)
            saver.finish()
            assert equal({k: v.cpu() for k, v in loaded(path)["model"].items()}, expected)


# --- what it took ---------------------------------------------------------------------------


class TakesTwoSeconds:
    """Becomes None when it is pickled, by a clock that only moves then."""

    def __init__(self, clock):
        self.clock = clock

    def __reduce__(self):
        self.clock.sleep(2)
        return dict, ()


@pytest.mark.parametrize("name", ["sync", "thread"])
def test_each_save_says_how_long_training_waited(name, path):
    clock = FakeClock()
    with saver_of(name, path, clock=clock) as saver:
        saver.save({"step": 5, "slow": TakesTwoSeconds(clock)})
        saver.finish()
    size_bytes = path.stat().st_size
    assert saver.saved == [Saved(step=5, size_bytes=size_bytes, blocked_s=2.0, took_s=2.0)]


@pytest.mark.parametrize("name", BACKGROUND)
def test_a_second_save_waits_for_the_first(name, path):
    clock, second_done = FakeClock(), threading.Event()
    with saver_of(name, path, clock=clock) as saver:

        def save_second():
            saver.save(filled(2))
            second_done.set()

        with held_up(path):
            saver.save(filled(1))  # returns although nothing can be written
            second = threading.Thread(target=save_second)
            second.start()
            assert not second_done.wait(0.2)
            clock.sleep(3)
        second.join(WAIT_S)
        assert [one.step for one in saver.saved] == [1]
        saver.finish()
    assert [(one.step, one.blocked_s) for one in saver.saved] == [(1, 0.0), (2, 3.0)]
    assert equal(loaded(path), filled(2))


# --- what fails -----------------------------------------------------------------------------


def fails(saver, state):
    with pytest.raises(CheckpointFailed) as caught:
        saver.save(state)
        saver.finish()
    return str(caught.value)


@pytest.mark.parametrize("name", SAVERS)
def test_a_full_disk_is_one_clear_line_and_the_earlier_file_stays_whole(name, tmp_path):
    with memory_mounted(tmp_path / "small", size="4m") as small:
        path = small / "last.pt"
        with saver_of(name, path) as saver:
            saver.save(filled(30, 1 << 20))
            saver.finish()
            said = fails(saver, filled(40, 8_000_000))
            free = re.escape("(needs 8.0 MB, 3.1 MB free)")
            assert re.fullmatch(
                f"checkpoint must be written to {small}, got No space left on device {free}; "
                "the one of step 30 is whole; free space or save elsewhere",
                said,
            )
            assert names(small) == ["last.pt"]
            assert equal(loaded(path), filled(30, 1 << 20))
            saver.save(filled(50, 1 << 20))  # whoever goes on can save again
            saver.finish()
        assert equal(loaded(path), filled(50, 1 << 20))


@pytest.mark.parametrize("name", SAVERS)
def test_without_a_disk_of_its_own_the_kernel_has_one_that_is_always_full(name, path):
    write(path, filled(1))
    with saver_of(name, path) as saver:
        part_of(path).symlink_to("/dev/full")
        said = fails(saver, filled(2, 62_000_000))
        assert re.search(
            r", got No space left on device \(needs 62 MB, .* free\); "
            "the earlier one is whole; free space or save elsewhere$",
            said,
        )
        assert names(path.parent) == ["last.pt"]
    assert equal(loaded(path), filled(1))


@pytest.mark.parametrize("name", SAVERS)
def test_a_file_system_that_became_read_only_is_said(name, tmp_path):
    with memory_mounted(tmp_path / "locked") as locked:
        path = locked / "last.pt"
        with saver_of(name, path) as saver:
            saver.save(filled(3))
            saver.finish()
            subprocess.run(["mount", "-o", "remount,ro", str(locked)], check=True)
            assert fails(saver, filled(4)) == (
                f"checkpoint must be written to {locked}, got Read-only file system; "
                "the one of step 3 is whole; save elsewhere"
            )
        assert equal(loaded(path), filled(3))
        assert names(locked) == ["last.pt"]


@pytest.mark.parametrize("name", SAVERS)
def test_a_folder_that_is_not_there_is_said(name, tmp_path):
    with saver_of(name, tmp_path / "gone" / "last.pt") as saver:
        assert fails(saver, filled(1)) == (
            f"checkpoint must be written to {tmp_path / 'gone'}, got No such file or directory; "
            "save elsewhere"
        )


def in_fork(work):
    """Run something in a process forked from here; gives what it returned."""
    here, there = multiprocessing.Pipe(duplex=False)

    def in_child():
        torch.set_num_threads(1)  # the other threads stayed behind
        there.send(work())

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    there.close()
    child.join(WAIT_S)
    return here.recv()


@pytest.mark.parametrize("name", ["sync", "thread"])
def test_a_folder_of_somebody_elses_is_said(name):
    def as_stranger():
        if os.geteuid() == 0:  # to whom no folder is closed
            os.setgid(65534)
            os.setuid(65534)
        with saver_of(name, locked / "last.pt") as saver:
            return fails(saver, filled(2))

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        locked = Path(folder, "locked")
        locked.mkdir()
        write(locked / "last.pt", filled(1))
        locked.chmod(0o555)
        assert in_fork(as_stranger) == (
            f"checkpoint must be written to {locked}, got Permission denied; "
            "the earlier one is whole; save elsewhere"
        )
        assert names(locked) == ["last.pt"]


def test_what_torch_itself_refuses_is_no_matter_of_the_medium(path):
    def refuse():
        raise RuntimeError("not to be pickled")

    refuses = type("Refuses", (), {"__reduce__": lambda self: refuse()})()
    with saver_of("sync", path) as saver, pytest.raises(RuntimeError, match="not to be pickled"):
        saver.save({"it": refuses})
    assert names(path.parent) == []


def test_a_writer_that_was_killed_is_said_at_every_save_and_can_be_closed(path):
    with saver_of("process", path) as saver:
        saver.save(filled(1))
        saver.finish()
        (child,) = psutil.Process().children()
        child.kill()
        for _ in range(2):
            assert fails(saver, filled(2)) == (
                f"checkpoint must be written to {path.parent}, got an end of the process that "
                "writes it (exit status -9); the one of step 1 is whole; save elsewhere"
            )
    assert equal(loaded(path), filled(1))


@pytest.mark.parametrize("name", BACKGROUND)
def test_a_failure_is_heard_by_the_next_save_and_only_once(name, tmp_path):
    path = tmp_path / "later" / "last.pt"
    with saver_of(name, path) as saver:
        saver.save(filled(1))
        with pytest.raises(CheckpointFailed):
            saver.save(filled(2))
        path.parent.mkdir()
        saver.save(filled(3))
        saver.finish()
        saver.finish()
    assert [one.step for one in saver.saved] == [3]


# --- what stays -----------------------------------------------------------------------------


def standing():
    """What a saver may leave in this process: threads, children, descriptors, shared memory."""
    own = psutil.Process()
    children = own.children(recursive=True)
    shared = Path("/proc/self/maps").read_text().count("labkit-checkpoint")
    named = [entry.name for entry in SHARED_MEMORY.iterdir() if f"_{os.getpid()}_" in entry.name]
    return threading.enumerate(), children, own.num_fds(), shared, named


@pytest.mark.parametrize("ends", ["saved", "unfinished", "failed", "unused"])
@pytest.mark.parametrize("name", SAVERS)
def test_nothing_stays_after_closing(name, ends, path):
    write(path, filled(0))  # torch opens what it keeps
    before = standing()
    target = path.parent / "gone" / "last.pt" if ends == "failed" else path
    saver = SAVERS[name](target)
    with contextlib.suppress(CheckpointFailed):
        if ends != "unused":
            saver.save(filled(1))
        if ends == "saved":
            saver.finish()
    saver.close()
    saver.close()
    assert standing() == before
    assert names(path.parent) == ["last.pt"]


@pytest.mark.parametrize("name", ["sync", "process"])
def test_what_a_killed_save_left_is_removed_but_not_what_is_being_written(name, path):
    with held_up(path):
        SAVERS[name](path).close()
        assert part_of(path).exists()
    others = path.with_name(".last.pt.old.part")
    others.touch()
    SAVERS[name](path).close()
    assert names(path.parent) == [others.name]


def wait_for_the_end_of(process):
    """Wait until nothing of it runs; whoever has inherited it may reap it later."""
    deadline_s = time.monotonic() + WAIT_S
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline_s, f"{process} goes on"
            time.sleep(0.01)


@pytest.mark.parametrize("is_saving", [True, False])
def test_the_writer_ends_with_a_training_process_that_is_killed(is_saving, path):
    def train():
        saver = SAVERS["process"](path)
        if is_saving:
            saver.save(filled(1))
        started.set()
        time.sleep(WAIT_S)

    fork = multiprocessing.get_context("fork")
    started = fork.Event()
    with held_up(path):  # a save cannot get further
        training = fork.Process(target=train)
        training.start()
        assert started.wait(WAIT_S)
        (writer,) = psutil.Process(training.pid).children()
        training.kill()
        training.join(WAIT_S)
        wait_for_the_end_of(writer)


def save_for_ever(name, path, started):
    torch.set_num_threads(1)  # the other threads stayed behind
    saver = SAVERS[name](path)
    tensors = [torch.empty(1 << 18) for _ in range(4)]
    for step in range(1, 1 << 30):
        for tensor in tensors:
            tensor.fill_(step)
        saver.save({"step": step, "tensors": tensors})
        started.set()


@pytest.mark.parametrize(("name", "kills"), [("sync", 20), ("thread", 20), ("process", 20)])
def test_a_save_killed_at_any_moment_leaves_a_whole_file(name, kills, path):
    draw, fork, unfinished, last = random.Random(1), multiprocessing.get_context("fork"), 0, 0
    for _ in range(kills):
        started = fork.Event()
        training = fork.Process(target=save_for_ever, args=(name, path, started))
        training.start()
        assert started.wait(WAIT_S)
        time.sleep(draw.uniform(0, 0.05))
        processes = [psutil.Process(training.pid), *psutil.Process(training.pid).children()]
        for process in processes:  # as a trial's whole group
            process.kill()
        for process in processes:
            wait_for_the_end_of(process)
        training.join(WAIT_S)
        unfinished += part_of(path).exists()
        if path.exists():
            found = loaded(path)
            last = found["step"]
            assert all(torch.equal(t, torch.full((1 << 18,), last)) for t in found["tensors"])
    assert last
    assert unfinished  # else no kill came in the midst of a save
    SAVERS["sync"](path).close()
    assert names(path.parent) == ["last.pt"]


def test_the_next_save_goes_on_after_one_that_was_killed(path):
    part_of(path).write_bytes(b"half of one")
    with saver_of("sync", path) as saver:
        saver.save(filled(1))
    assert equal(loaded(path), filled(1))


def test_choosing_a_saver_does_not_import_torch():
    code = "import sys, labkit.parts.training.checkpoints; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_reasons_are_the_kernels_own(path):
    part_of(path).mkdir()
    with pytest.raises(OSError) as caught:
        write(path, filled(1))
    assert caught.value.errno == errno.EISDIR
