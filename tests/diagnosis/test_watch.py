"""A watched training runs as before, and its shares add up on a fake clock."""

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import labkit as lab
from labkit import units
from labkit.cli import main
from labkit.diagnosis.watch import LOOK_S, PERIOD_S, Watch, WatchedLoader
from labkit.machine import hardware
from tests.fake_clock import FakeClock
from tests.processes import PATIENCE_S

START_S, WAIT_S, STEP_S = 10.0, 0.5, 1.5


class Loader:
    """An iterable with a start, whose batches take half a second of the clock."""

    def __init__(self, clock, batches=4, wait_s=WAIT_S):
        self.clock, self.batches, self.wait_s = clock, batches, wait_s

    def __iter__(self):
        self.clock.sleep(START_S)
        return self.deliver()

    def deliver(self):
        for _ in range(self.batches):
            self.clock.sleep(self.wait_s)
            yield torch.ones(3, 2)


@pytest.fixture
def clock():
    return FakeClock()


def watched(loader, clock, say=str):
    return WatchedLoader(loader, Watch(say, clock))


def train(batches, clock, step_s=STEP_S):
    for _ in batches:
        clock.sleep(step_s)


# --- what is measured


def test_a_loop_falls_into_waiting_and_the_rest_after_its_first_step(clock):
    loop = watched(Loader(clock), clock)
    train(loop, clock)
    found = loop.watch.total
    assert (found.steps, found.images) == (3, 9)
    assert (found.wait_s, found.rest_s, found.starts_s) == (3 * WAIT_S, 3 * STEP_S, 0)
    assert found.first_s == START_S + WAIT_S + STEP_S
    assert found.shares == {"waiting for data": 0.25, "rest": 0.75}
    assert found.images_per_s == 9 / found.loop_s


def test_the_start_of_a_later_epoch_is_waiting(clock):
    loop = watched(Loader(clock), clock)
    train(loop, clock)
    clock.sleep(100)  # between epochs, nobody waits for data
    train(loop, clock)
    found = loop.watch.total
    assert (found.steps, found.rest_s) == (7, 7 * STEP_S)
    assert (found.wait_s, found.starts_s) == (7 * WAIT_S + START_S, START_S + WAIT_S)


def test_the_step_that_a_break_cuts_short_does_not_count(clock):
    loop = watched(Loader(clock), clock)
    for step, _ in enumerate(loop):
        clock.sleep(STEP_S)
        if step == 2:
            break
    clock.sleep(100)
    assert (loop.watch.total.steps, loop.watch.total.rest_s) == (1, STEP_S)


def test_a_wait_that_brings_no_batch_does_not_count(clock):
    def batches():
        yield from [torch.ones(3, 2)] * 3
        clock.sleep(1000)
        raise KeyboardInterrupt

    loop = watched(batches(), clock)
    with pytest.raises(KeyboardInterrupt):
        train(loop, clock)
    assert (loop.watch.total.wait_s, loop.watch.total.rest_s) == (0, 2 * STEP_S)


def test_a_validation_inside_a_step_is_no_waiting_of_the_training(clock):
    watch = Watch(str, clock)
    outer = WatchedLoader(Loader(clock, 3), watch)
    inner = WatchedLoader([torch.ones(3, 2)] * 3, watch)
    for _ in outer:
        clock.sleep(STEP_S)
        train(inner, clock)
    assert watch.loops["Loader"].rest_s == 2 * STEP_S
    assert watch.loops["list"].steps == 2 + 2 * 3
    assert watch.total.rest_s == (2 + 8) * STEP_S


@pytest.mark.parametrize(
    ("batch", "size", "images"),
    [
        (torch.ones(5, 3), 8, 5),
        ([torch.ones(5, 3), torch.ones(5)], 8, 5),
        ({"epoch": 1, "pixels": torch.ones(5, 3)}, None, 5),
        (((torch.ones(3, 9), torch.ones(3, 7)), ({}, {})), 2, 2),  # zip(*samples)
        ([(torch.ones(3, 9), 1)] * 4, 4, 4),  # a list of samples
        (object(), None, 0),
        (object(), 8, 8),
    ],
)
def test_images_are_counted_in_batches_of_every_form(clock, batch, size, images):
    loader = [batch] * 2
    if size is not None:
        loader = DataLoader(range(2 * size), size, collate_fn=lambda _: batch)
    loop = watched(loader, clock)
    list(loop)  # the first step does not count
    assert loop.watch.total.images == images


@pytest.mark.parametrize("where", ["start", "batch"])
def test_a_loader_that_hangs_is_told_of_once(clock, where):
    reports, warned, told = [], [], threading.Event()

    def warn(what):
        warned.append(what)
        told.set()

    class Hanging(Loader):
        def hang(self, at):
            if at == where:
                clock.sleep(PERIOD_S)
                assert told.wait(PATIENCE_S)
                time.sleep(2 * LOOK_S)  # for a second message, if there were one

        def __iter__(self):
            self.hang("start")
            return self.deliver()

        def deliver(self):
            yield torch.ones(3, 2)
            self.hang("batch")
            yield torch.ones(3, 2)

    # As of a rank that does not report.
    train(WatchedLoader(Hanging(clock), Watch(reports.append, clock, warn)), clock)
    (line,) = warned
    waited = f"The training has waited {units.seconds(PERIOD_S)} for its next batch: the loader may"
    assert line.startswith(waited) and line not in reports


def test_reports_come_after_50_steps_then_now_and_then_and_at_the_end(clock):
    said = []
    loader = Loader(clock, 601, WAIT_S / 8)
    clock.sleep(100)  # a script imports its modules meanwhile
    train(watched(loader, clock, lambda what: said.append(str(what))), clock, STEP_S / 8)
    assert said[0].startswith(
        "Loader: 50 steps, 12.0 images/s, waiting for data 25.0 %, rest 75.0 %"
    )
    assert [report.partition(" steps")[0] for report in said[1:]] == [
        "Loader: 170", "Loader: 410", "Loader: 600",
    ]  # fmt: skip
    cpu, verdict = said[1].splitlines()[1:]
    assert cpu.startswith("cores in use, of ")
    assert verdict.endswith(
        "with a loader that takes no time it would be at most 1.33 times as fast."
    )


@pytest.mark.parametrize(
    ("make", "verdict"),
    [
        (lambda _: [1] * 3, "% of it: the step is the limit, not loading."),
        (lambda _: [], "No loop ran two steps, so there is no result."),
        (
            lambda clock: DataLoader([1] * 8, collate_fn=lambda _: clock.sleep(WAIT_S)),
            "; the training process loads the data itself (num_workers=0).",
        ),
    ],
)
def test_the_verdict_is_a_sentence(clock, make, verdict):
    loop = watched(make(clock), clock)
    train(loop, clock)
    assert verdict in loop.watch.verdict


@pytest.mark.parametrize(
    ("cores", "worker", "why"),
    [
        (0.5, 0.9, "and cores are idle, so more workers may help."),
        (0.95, 0.9, "of its time; all 2 cores are busy: more workers would not help, "),
        (0.95, 0.1, "workers wait, too, for a disk, the network, a lock or a core."),
        (None, 0.9, " times as fast."),  # no tick of the cores' clocks was seen
    ],
)
def test_more_workers_help_only_where_they_find_idle_cores(monkeypatch, cores, worker, why):
    busy = {"process": 0.0, "workers": worker, "worker": worker}
    busy |= {} if cores is None else {"cores": cores}
    monkeypatch.setattr(Watch, "busy", busy)
    monkeypatch.setattr(hardware, "cores", lambda: 2)
    loader = DataLoader([1] * 8, num_workers=1, collate_fn=lambda _: time.sleep(0.05))
    loop = lab.watch(loader, show=False)
    list(loop)
    assert why in loop.watch.verdict


def test_of_several_ranks_no_speed_up_is_promised(clock, monkeypatch):
    loop = watched(Loader(clock), clock)
    train(loop, clock)
    alone = loop.watch.verdict
    monkeypatch.setenv("WORLD_SIZE", "2")
    start = "The training waits for data 25.0 % of its time"
    assert alone.startswith(f"{start}: with a loader that takes no time it would be at most 1.33")
    assert loop.watch.verdict == f"{start}; the rest may include waiting for other ranks."


def test_what_a_thread_takes_ahead_gets_no_verdict():
    loop = lab.watch([1] * 5, show=False)
    thread = threading.Thread(target=list, args=(loop,))
    thread.start()
    thread.join()
    assert loop.watch.verdict.startswith("A background thread consumes the loader")


@pytest.mark.needs_cuda
def test_transfers_to_cuda_are_seen_and_nothing_remains():
    torch.ones(1, device="cuda")
    loop = lab.watch([torch.ones(64, 3, 256, 256)] * 5, show=False)
    for batch in loop:
        batch.to("cuda").cuda()
        torch.cuda.synchronize()
    assert 0 < loop.watch.total.transfer_s < loop.watch.total.loop_s
    assert "to" not in vars(torch.Tensor)


# --- one loader


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
    assert "[labkit] generator: 2 steps, " in capsys.readouterr().err


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
import os, random, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, index):
        if index >= 480:
            raise KeyError("image 480")
        return torch.rand(3, 8, 8) + random.random(), index % 5

class Shard(DataLoader):  # takes a batch ahead, as accelerate's DataLoaderShard does
    def __iter__(self):
        batches = super().__iter__()
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch

def main(how: str, samples=480):
    torch.manual_seed(0)
    random.seed(0)
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    kind, workers = (Shard, 0) if how == "shard" else (DataLoader, 2)
    loader = kind(Noisy(int(samples)), batch_size=8, shuffle=True, num_workers=workers)
    losses = []
    for images, labels in loader if how != "none" else ():
        losses.append((images.mean() + labels.sum()).item())
        if "RANK" in os.environ:
            torch.distributed.barrier()
        if how == "wait" and len(losses) == 60:
            print("60 steps", flush=True)
            time.sleep(60)
    print(sys.argv, sys.path[0], sum(losses), torch.rand(1).item(), random.random(), __name__)
    print(main.__annotations__, flush=True)
    if how == "exit" and os.fork() == 0:
        sys.exit()  # a child has nothing to report
    sys.exit(3 if how == "exit" else None)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    return path


def shell(*words, module=""):
    words = [sys.executable, *(["-m", module] if module else []), *map(str, words)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    ours = [line for line in done.stderr.splitlines() if line.startswith("[labkit")]
    rest = [line for line in done.stderr.splitlines() if not line.startswith("[labkit")]
    return done.returncode, done.stdout, rest, ours


@pytest.mark.parametrize(("how", "status"), [("exit", 3), ("fail", 1)])
def test_a_script_prints_and_ends_as_without_watch(script, how, status):
    words = (script, how, 500 if how == "fail" else 480)
    *bare, _ = shell(*words)
    *found, ours = shell(*words, module="labkit.watch")
    # Addresses in shared memory and workers' pids differ from run to run.
    assert [re.sub(r"\d{4,}", "", str(x)) for x in found] == [
        re.sub(r"\d{4,}", "", str(x)) for x in bare
    ]
    assert found[0] == status
    said = "\n".join(ours)
    assert re.search(r"Noisy, \d+ samples, batches of 8, 2 workers: \d+ steps, \S+ images/s", said)
    hint = f"[labkit] Next: cd {script.parent} && labkit diagnose train:make, where make() returns"
    # At the end, and after 50 steps, which one that fails does not reach.
    assert said.count(hint) == (1 if how == "fail" else 2)
    assert ("The script ended with KeyError; this was measured until then." in said) == (
        how == "fail"
    )


def test_a_subclass_that_takes_a_batch_ahead_is_seen(script, tmp_path, capsys):
    json_file, chart = tmp_path / "found.json", tmp_path / "chart.png"
    with pytest.raises(SystemExit):
        main(["watch", "--json", str(json_file), "--chart", str(chart), str(script), "shard"])
    said = capsys.readouterr()
    assert said.out.startswith("['")
    assert said.err.count("Noisy, 480 samples, batches of 8, 0 workers: 50 steps, ") == 1
    found = json.loads(json_file.read_text())
    (loop,) = found["loops"].values()
    assert (loop["steps"], loop["images"], found["script"]) == (59, 59 * 8, str(script))
    assert found["arguments"] == ["shard"]
    assert found["verdict"] in said.err
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert not hasattr(DataLoader.__iter__, "__wrapped__")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "[labkit] No DataLoader of torch was iterated over in this process, so "),
        (["plain", "8"], "[labkit] No loop ran two steps, so there is no result. "),
    ],
)
def test_a_script_without_a_loop_gets_a_sentence(script, capsys, words, said):
    with pytest.raises(SystemExit):
        main(["watch", str(script), *words])
    assert said in capsys.readouterr().err


def test_ctrl_c_ends_it_as_without_watch_and_what_was_measured_is_shown(script):
    words = [sys.executable, "-m", "labkit.watch", script, "wait"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as process:
        assert process.stdout.readline() == "60 steps\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT
    assert "[labkit] The script ended with KeyboardInterrupt; this was measured until then." in said
    assert re.search(r"2 workers: 5\d steps, \S+ images/s, waiting for data", said)
    assert "watch.py" not in said


def test_of_torchruns_processes_the_first_reports_and_each_says_a_line(script, tmp_path):
    options = ["--standalone", "--nproc-per-node", "2", "-m", "labkit.watch"]
    words = [*options, "--json", tmp_path / "found.json", script, "plain"]
    status, _, rest, ours = shell(*words, module="torch.distributed.run")
    assert status == 0, rest
    of_second = [line for line in ours if line.startswith("[labkit, rank 1] ")]
    (line,) = of_second
    assert line.startswith("[labkit, rank 1] 59 steps, ")
    assert any(re.match(r"\[labkit, rank 0\] Noisy.*: 50 steps", line) for line in ours)
    for name, rank in (("found.json", 0), ("found-rank1.json", 1)):
        assert json.loads((tmp_path / name).read_text())["rank"] == rank
