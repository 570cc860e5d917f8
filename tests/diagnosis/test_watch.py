"""A watched training runs as before, alone, as ranks and under signals."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import labkit as lab
from labkit import units
from labkit.diagnosis.hook import Hook
from labkit.diagnosis.loops import Event
from labkit.diagnosis.thresholds import REPORT_PERIOD_S
from labkit.diagnosis.watch import Watch, WatchedLoader
from tests import warm_python
from tests.diagnosis.json_keys import undocumented
from tests.fake_clock import FakeClock
from tests.processes import PATIENCE_S, until

START_S, WAIT_S, STEP_S = 10.0, 0.5, 1.5


@pytest.fixture
def clock():
    return FakeClock()


# --- one loader


class Loader:
    """An iterable with a start, whose batches take half a second of the clock."""

    def __init__(self, clock, batches=4):
        self.clock, self.batches = clock, batches

    def __iter__(self):
        self.clock.sleep(START_S)
        return self.deliver()

    def deliver(self):
        for _ in range(self.batches):
            self.clock.sleep(WAIT_S)
            yield torch.ones(3, 2)


def watched(loader, clock):
    hook = Hook(clock.now)
    return WatchedLoader(loader, Watch(hook), hook)


def train(batches, clock, stop_at=None):
    for number, _ in enumerate(batches):
        clock.sleep(STEP_S)
        if number == stop_at:
            break


def test_a_loop_falls_into_waiting_and_steps_after_its_first_step(clock):
    loop = watched(Loader(clock), clock)
    train(loop, clock)
    clock.sleep(100)  # between epochs, nobody waits for data
    train(loop, clock)
    phases = loop.watch.facts().phases
    training = phases.training
    assert (training.steps, training.images, training.step_s) == (7, 21, 7 * STEP_S)
    assert (training.wait_s, training.starts_s) == (7 * WAIT_S + START_S, START_S + WAIT_S)
    assert (phases.outside_s, phases.trains) == (100, False)


def test_a_loop_that_is_left_ends_there(clock):
    loop = watched(Loader(clock), clock)
    train(loop, clock, stop_at=2)
    clock.sleep(100)
    phases = loop.watch.facts().phases
    assert (phases.training.steps, phases.outside_s) == (2, 100)


@pytest.mark.parametrize(("size", "images"), [(None, 2), (1, 1)])
def test_images_are_counted_by_what_the_loader_tells_of_its_batches(clock, size, images):
    batch = {"image": torch.ones(2, 9, 7)}  # a single image in batches of one
    loader = [batch] * 2
    if size is not None:
        loader = DataLoader(range(2 * size), size, collate_fn=lambda _: batch)
    loop = watched(loader, clock)
    list(loop)  # the first step does not count
    assert loop.watch.facts().phases.training.images == images


def test_a_loader_that_hangs_is_told_of_once(clock):
    warned, hook = [], Hook(clock.now)
    watch = Watch(hook, warn=warned.append)
    hook.fetching[threading.get_ident()] = clock.now()
    for _ in range(40):
        clock.sleep(2)
        watch.look()
    (line,) = warned
    waited_s = units.seconds(REPORT_PERIOD_S)
    assert line.startswith(f"The training has waited {waited_s} for its next batch: the loader may")
    hook.fetching.clear()
    clock.sleep(REPORT_PERIOD_S)
    watch.look()
    assert len(warned) == 1


def test_reports_come_after_50_steps_then_now_and_then_and_at_the_end(clock):
    reported, hook = [], Hook(clock.now)
    watch = Watch(hook, lambda watch: reported.append(watch.facts().phases.training.steps))
    hook._number(object(), object(), True)
    for _ in range(602):
        began_s = clock.now()
        clock.sleep(WAIT_S / 8)
        watch.events.append(Event("draw", 1, began_s, clock.now(), 0, 3))
        clock.sleep(STEP_S / 8)
        watch.look()
    watch.stop()
    # In seconds: at 12.5, then 30, 60 and 120 later.
    assert reported == [50, 170, 410, 600]


def test_importing_labkit_watch_keeps_the_function():
    import_module("labkit.watch")
    assert list(lab.watch([1, 2], show=False)) == [1, 2]


def test_length_and_attributes_are_the_loaders():
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=3, shuffle=True)
    loop = lab.watch(loader, show=False)
    assert len(loop) == 4
    assert loop.sampler is loader.sampler
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'nothing'"):
        loop.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="batch_size"):
        loop.batch_size = 4


def test_a_failing_loader_keeps_what_was_measured_and_its_error(capsys):
    def fail():
        yield from [1, 2, 3]
        raise error

    error = KeyError("the fourth")
    with pytest.raises(KeyError) as raised:
        list(lab.watch(fail()))
    assert raised.value is error
    assert raised.value.__context__ is None
    assert "[labkit] Loop: 2 batches, " in capsys.readouterr().err


def test_two_watches_share_the_hook_and_leave_torch_as_it_was():
    before = DataLoader.__iter__, torch.autograd.backward
    loader = DataLoader(TensorDataset(torch.arange(8.0)))
    first, second = (lab.watch(loader, show=False) for _ in range(2))
    assert [a.item() for (a,), _ in zip(first, second, strict=False)] == list(range(8))
    list(second)
    assert (DataLoader.__iter__, torch.autograd.backward) == before


class Noisy(Dataset):
    """Images with noise from torch, NumPy and Python, as an augmentation would add it."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        noise = torch.rand(3, 8, 8) + np.random.rand() + random.random()
        return torch.full((3, 8, 8), float(index)) + noise, index % 5


def train_really(watch, *, workers):
    """Two epochs of a small network with dropout: its losses, its weights, the random states."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(192, 5))
    optimizer, losses = torch.optim.Adam(model.parameters()), []
    loader = watch(DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=workers))
    for _ in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    return losses, [p.tolist() for p in model.parameters()], states


@pytest.mark.parametrize("workers", [0, 2])
def test_losses_weights_and_random_states_are_equal_bit_for_bit(workers):
    bare = train_really(lambda loader: loader, workers=workers)
    assert train_really(lambda loader: lab.watch(loader), workers=workers) == bare
    assert len(bare[0]) == 10


# --- a script

SCRIPT = """
import os, random, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
try:
    from .beside import NAME  # python -m package.train
except ImportError:
    NAME = "none"

class Noisy(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, index):
        if index >= 480:
            raise KeyError("image 480")
        return torch.rand(3, 8, 8) + random.random(), index % 5

def work(rank, ranks):
    torch.manual_seed(0)
    random.seed(0)
    if ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    how = sys.argv[1]
    model = torch.nn.Linear(192, 5)
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Noisy(480 + (how == "fail")), batch_size=8, shuffle=True, num_workers=2)
    losses = []
    for images, labels in loader if how != "none" else ():
        if ranks > 1:
            time.sleep(0.005)
        loss = torch.nn.functional.cross_entropy(model(images.flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if sys.argv[-1] == "wait" and len(losses) == 60:
            print("60 steps", flush=True)
            time.sleep(60)
    print(sum(losses), torch.rand(1).item(), random.random(), __name__, NAME, flush=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()

def main():
    how = sys.argv[1]
    print(sys.argv[1:], main.__annotations__, signal.getsignal(signal.SIGTERM), flush=True)
    if how == "closed":
        sys.stderr.close()
    if how == "signals":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    elif how in ("spawn", "fork"):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
        torch.multiprocessing.start_processes(work, (2,), nprocs=2, start_method=how)
    else:
        work(0, 1)
    if how == "signals":
        signal.raise_signal(signal.SIGTERM)
    if how == "exit" and os.fork() == 0:
        sys.exit()  # a child has nothing to report
    try:
        sys.exit(3 if how == "exit" else None)
    except BaseException:
        if how != "caught":
            raise

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "package" / "train.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    (path.parent / "beside.py").write_text("NAME = 'beside'")
    return path


def shell(*words, module="", cwd=None, python=None):
    """Run a script or a module; return its status, output, other errors and labkit's lines."""
    words = [*(["-m", module] if module else []), *words]
    done = warm_python.run(*words, cwd=cwd, python=python)
    lines = warm_python.without_its_frame(done.stderr).splitlines()
    ours = [line for line in lines if line.startswith("[labkit")]
    rest = [line for line in lines if not line.startswith("[labkit")]
    return done.returncode, done.stdout, rest, ours


@pytest.mark.parametrize(
    ("how", "status"),
    [("exit", 3), ("fail", 1), ("closed", 0), ("signals", 5), ("caught", 0)],
)
def test_a_script_prints_and_ends_as_without_watch(script, how, status):
    *bare, _ = shell(script, how)
    *seen, ours = shell(script, how, module="labkit.watch")
    # Addresses in shared memory and workers' pids differ from run to run.
    assert [re.sub(r"\d{4,}", "", str(x)) for x in seen] == [
        re.sub(r"\d{4,}", "", str(x)) for x in bare
    ]
    assert seen[0] == status
    said = "\n".join(ours)
    if how != "closed":
        assert re.search(r"Training: \d+ batches, \S+ images/s, waiting for data", said)
        assert len(re.findall("[Dd]ata loading is", said)) <= 2  # after 50 steps, and at the end
    assert ("The script ended with KeyError; this was measured until then." in said) == (
        how == "fail"
    )


def test_a_module_is_run_as_by_python_m(script):
    # In a Python of its own, as users start it.
    how = {"cwd": script.parents[1], "python": [sys.executable]}
    words = ("-m", "package.train", "plain", "--lr", "1")
    *bare, _ = shell(*words, **how)
    assert "beside" in bare[1]
    *seen, ours = shell(*words, module="labkit.watch", **how)
    assert seen == bare
    assert "Training: " in "\n".join(ours)


@contextmanager
def trained(*words, ranks=1, **how):
    """Start a command that waits after 60 steps; yield its process there."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(map(str, words)), **pipes, **how) as process:
        while ranks:
            line = process.stdout.readline()
            assert line, process.communicate()
            ranks -= line == "60 steps\n"
        yield process


def test_json_is_written_at_every_report(script, tmp_path):
    path = tmp_path / "seen.json"
    words = ["-m", "labkit.watch", "--json", path, script, "wait"]
    with trained(*warm_python.command(), *words) as process:
        until(path.exists)
        process.send_signal(signal.SIGKILL)
    seen = json.loads(path.read_text())
    assert (seen["has_ended"], seen["training"]["steps"] >= 50) == (False, True)
    assert undocumented(seen) == set()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, "The script ended with KeyboardInterrupt; this was measured until then."),
        (signal.SIGTERM, "The script was terminated; this was measured until then."),
    ],
)
def test_a_signal_ends_it_as_without_watch_and_what_was_measured_is_shown(
    script, tmp_path, number, words
):
    path, statuses = tmp_path / "seen.json", []
    for watch in ([], ["-m", "labkit.watch", "--json", path]):
        with trained(*warm_python.command(), *watch, script, "wait") as process:
            process.send_signal(number)
            _, said = process.communicate(timeout=PATIENCE_S)
        statuses.append(process.returncode)
    assert statuses[0] == statuses[1] != 0
    assert f"[labkit] {words}" in said
    assert re.search(r"Training: 5\d batches, \S+ images/s, waiting for data", said)
    assert "script.py" not in said
    seen = json.loads(path.read_text())
    assert (seen["arguments"], seen["has_ended"]) == (["wait"], True)
    assert seen["answer"]["sentence"] in said


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_processes_that_are_terminated_together_leave_nothing(script, tmp_path, ranks):
    words = ["wait"] if ranks == 1 else ["spawn", free_port(), "wait"]
    # In a Python of its own, as users start it.
    command = [sys.executable, "-m", "labkit.watch", script, *words]
    how = {"env": os.environ | {"TMPDIR": str(tmp_path)}, "start_new_session": True}
    with trained(*command, ranks=ranks, **how) as process:
        assert len([*tmp_path.glob("labkit-*")]) == 1
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGTERM
    names = ["labkit"] if ranks == 1 else ["labkit, rank 0", "labkit, rank 1"]
    for name in names:
        assert f"[{name}] The script was terminated; this was measured until then." in said
    assert ("rank  images/s" in said) == (ranks == 2)
    assert [*tmp_path.glob("labkit-*")] == []


def test_a_script_without_a_loop_gets_a_sentence(script):
    status, _, rest, ours = shell(script, "none", module="labkit.watch")
    assert (status, rest) == (0, [])
    why = "no DataLoader of torch was iterated over in this process"
    assert f"Whether data loading is the problem cannot be told: {why}" in ours[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py"], "argument SCRIPT: must be a Python file, got 'nothing.py'"),
        (["-m", "nothing.train"], "-m must name a module that can be run, got 'nothing.train'"),
        ([], "watch needs a script or -m MODULE, or --pid PID"),
        (["-m"], "watch needs a script or -m MODULE, or --pid PID"),
    ],
)
def test_what_cannot_be_run_is_one_line(words, message):
    status, _, rest, _ = shell(*words, module="labkit.watch")
    assert status == 2
    assert len(rest) == 1
    assert rest[0].startswith(f"labkit: {message}")


def test_a_script_that_is_no_python_ends_as_in_python(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("if\n")
    own = {"python": [sys.executable]}
    assert shell(path, module="labkit.watch", **own)[:3] == shell(path, **own)[:3]


def free_port():
    """Find a port that no other program is given when it asks for any."""
    import socket

    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


TORCHRUN = ["--standalone", "--nproc-per-node", "2"]


LONG_WAYS = [pytest.param(how, marks=pytest.mark.long) for how in ("spawn", "torchrun outside")]


@pytest.mark.parametrize("how", ["fork", "torchrun inside", *LONG_WAYS])
def test_each_rank_reports_and_the_first_one_compares_them(script, tmp_path, how):
    path = tmp_path / "seen.json"
    watch = ["labkit.watch", "--json", path]
    if how == "torchrun outside":
        words = ["torch.distributed.run", *TORCHRUN, "-m", *watch, script, "ranks"]
    elif how == "torchrun inside":
        words = [*watch, "-m", "torch.distributed.run", *TORCHRUN, script, "ranks"]
    else:
        words = [*watch, script, how, free_port()]
    status, out, rest, ours = shell(*words[1:], module=words[0])
    assert status == 0, rest
    assert len(re.findall("__main__|__mp_main__", out)) == 2
    first = [line for line in ours if line.startswith("[labkit, rank 0] ")]
    assert sum("rank  images/s" in line for line in first) >= 1
    (of_second,) = (line for line in ours if line not in first)  # who started them is silent
    assert of_second.startswith("[labkit, rank 1] Training: 5")
    assert all("labkit diagnose " in x for x in first if "Next:" in x)
    for name, rank in (("seen.json", 0), ("seen-rank1.json", 1)):
        assert json.loads((tmp_path / name).read_text())["rank"] == rank
