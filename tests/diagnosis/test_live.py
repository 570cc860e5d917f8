"""Trainings that run as they are are diagnosed: `labkit diagnose train.py`."""

import _thread
import contextlib
import itertools
import json
import os
import queue
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler

import labkit as lab
from labkit.diagnosis import together
from labkit.diagnosis.hook import HOOK
from labkit.diagnosis.live_script import TERMINATED, changed_files
from labkit.diagnosis.loaders import OneThread, copied, loaded_ahead, spread_over_epoch
from tests import warm_python
from tests.diagnosis.made_sets import Made
from tests.diagnosis.scripts import TRAINING
from tests.diagnosis.test_trainings import SCRIPT, WAITS
from tests.diagnosis.test_watch import free_port
from tests.processes import PATIENCE_S, until
from tests.short_diagnosis import BUDGET_S, SHORT, shorten

BUDGET = ["--budget-s", "10"]


def diagnose(*words, cwd=None, **environment):
    env = {**os.environ, **environment}
    return warm_python.run("-m", "labkit.diagnose", *words, cwd=cwd, env=env)


def left_running(folder):
    """Return the processes that still run in a folder after some seconds."""
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(process)
        if not left or time.monotonic() > ends_s:
            return left
        time.sleep(0.1)


@pytest.fixture
def script(tmp_path):
    """Write a script that begins as `TRAINING`; return its path."""

    def write(rest):
        path = tmp_path / "train.py"
        path.write_text(TRAINING + rest)
        return path

    return write


@pytest.fixture(scope="module")
def status_of_sigint(tmp_path_factory):
    """How a training of torch ends by SIGINT: what torch does at its end may make it status 1."""
    path = tmp_path_factory.mktemp("interrupted") / "train.py"
    path.write_text(
        f"{TRAINING}for batch in loader():\n    step(batch)\n    os.kill(os.getpid(), 2)\n"
    )
    return warm_python.run(path).returncode


# --- unchanged scripts ------------------------------------------------------------------------

NAMES = [
    "background_generator", "generator_of_a_loader", "endless_loader", "two_loaders", "in_a_thread",
    "inference", "slow_validation",
]  # fmt: skip
# What watch cannot judge, or whose batches a thread changes.
NOT_DIAGNOSED = {
    "unseen_loader": "its steps do not follow its batches",
    "own_process": "no DataLoader was iterated over in this process",
    "hidden_thread": "its steps do not follow its batches",
    "queues_in_a_row": "its steps do not follow its batches",
    "named_loader": "loader must yield batches in every epoch, got none",  # of 80 batches
}
MORE = sorted({*WAITS, "lists_of_dicts"} - {*NAMES, *NOT_DIAGNOSED})
EXPECTED = WAITS | {
    "two_loaders": 20 / 60,  # one is diagnosed; the other, drawn from in turn, is in the step
    "rebatching": 10 / 50,  # what the generator does after the loader is in the step
    "lists_of_dicts": 5 / 10,
}


def diagnose_some(names, folder):
    """Diagnose trainings, two at a time, as they sleep most of the time: name -> JSON."""

    def run(name):
        path = folder / f"{name}.json"
        done = diagnose("--json", path, *BUDGET, SCRIPT, name, cwd=folder)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(path.read_text())

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(run, names)))


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    return diagnose_some(NAMES, tmp_path_factory.mktemp("diagnosed"))


@pytest.fixture(scope="module")
def more_diagnosed(tmp_path_factory):
    return diagnose_some(MORE, tmp_path_factory.mktemp("diagnosed"))


def check_share(found, name):
    assert found["broken"] == ""
    assert found["loading_cost_share"] == pytest.approx(EXPECTED[name], abs=0.12)


@pytest.mark.alone
@pytest.mark.parametrize("name", NAMES)
def test_the_share_of_waiting_is_what_was_planted(diagnosed, name):
    check_share(diagnosed[name], name)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("name", MORE)
def test_all_that_watch_sees_is_diagnosed(more_diagnosed, name):
    check_share(more_diagnosed[name], name)


@pytest.mark.long
@pytest.mark.parametrize("name", NOT_DIAGNOSED)
def test_what_cannot_be_diagnosed_gets_a_reason(tmp_path, name):
    done = diagnose(*BUDGET, SCRIPT, name, cwd=tmp_path)
    assert NOT_DIAGNOSED[name] in done.stdout + done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert left_running(tmp_path) == []


COUNTED = """
while True:
    iterator = iter(batches)
    for _ in range(len(batches)):
        step(next(iterator))
    print("an epoch ended")
"""
LOOPS = {
    "counts steps": "batches = loader()" + COUNTED,
    "counts the steps of short epochs": "batches = few()" + COUNTED,
    "counts the steps of short epochs, with workers that persist": (
        "batches = few(num_workers=1, persistent_workers=True)" + COUNTED
    ),
    "counts the steps of short epochs, and looks at all of another loader first": """
others, batches = few(), few()
assert len(others) > 2 and sum(1 for _ in others) == 2
for _ in range(1000):
    for _, batch in zip(range(len(batches)), batches):
        step(batch)
    print("an epoch ended")
""",
    "looks at other batches of its loader": """
batches, seen = loader(num_workers=1), set()
try:
    for number, batch in enumerate(batches):
        step(batch)
        if number % 5 == 0:
            next(iter(batches))
        if number == 15:
            seen.add(sum(1 for _ in batches))
finally:
    assert number > 15 and seen == {100}, (number, seen)
""",
    "fills a queue without an end": """
import queue, threading
ready = queue.Queue()

class Computed(Slow):
    def __getitem__(self, i):
        # A process that ends in the midst of this aborts: the thread cannot be unwound.
        return torch.rand(200_000).sort().values[:8], i % 3

def load():
    for batch in DataLoader(Computed(), batch_size=2):
        ready.put(batch)
    ready.put(None)

threading.Thread(target=load, daemon=True).start()
try:
    while (batch := ready.get()) is not None:
        step(batch)
finally:
    assert ready.qsize() < 1000, ready.qsize()
""",
    "trains in a thread of its own, and evaluates in the first one": """
import threading

def train():
    for batch in loader():
        step(batch)

thread = threading.Thread(target=train)
thread.start()
thread.join()
for batch in few():
    print("an epoch ended")
""",
    "catches everything": """
import json
print("folder:", json.loads(os.environ["LABKIT_DIAGNOSE"])["folder"])
while True:
    try:
        for batch in loader():
            step(batch)
        break
    except BaseException:
        pass
print("went on")
""",
    "has an end of its own": """
try:
    for batch in loader():
        step(batch)
finally:
    torch.save(model.state_dict(), "last.pt")
""",
    "writes many files": """
try:
    for batch in loader():
        step(batch)
finally:
    for number in range(14):
        open(f"{number}.pt", "w").close()
""",
    "has workers, and greenlets of its own that take turns in asking": """
from greenlet import getcurrent, greenlet
batches, main, steps = iter(loader(num_workers=1)), getcurrent(), 0

def draw():
    while True:
        main.switch(next(batches))

drawers = greenlet(draw), greenlet(draw)
try:
    while True:
        step(drawers[steps % 2].switch())
        steps += 1
finally:
    assert steps > 20
""",
    "forks": """
for number, batch in enumerate(loader()):
    step(batch)
    if number % 10 == 0:
        child = os.fork()
        if not child:
            sys.exit(0)
        os.waitpid(child, 0)
""",
    "evaluates in its loop": """
others, seen = few(), set()
try:
    for number, batch in enumerate(loader()):
        step(batch)
        if number % 10 == 9:
            next(iter(others))
            seen.add((len(others), sum(1 for _ in others)))
finally:
    assert {count for _, count in seen} == {2} and (2, 2) in seen, seen
""",
    "uses signals": """
def late(*_):
    raise TimeoutError

signal.signal(signal.SIGALRM, late)
seen, left_s = [], []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
try:
    for batch in loader():
        try:
            left_s.append(signal.setitimer(signal.ITIMER_REAL, 0.005)[0])
            time.sleep(5)
        except TimeoutError:
            signal.alarm(60)
        step(batch)
        os.kill(os.getpid(), signal.SIGUSR1)
finally:
    assert seen and signal.getsignal(signal.SIGALRM) is late
    assert 50 < min(left_s[1:]) < max(left_s) <= 60, left_s
""",
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_training_is_ended_once_it_is_diagnosed(script, tmp_path, name):
    budget = ["--budget-s", BUDGET_S]
    done = diagnose("--details", *budget, script(LOOPS[name]), cwd=tmp_path, **SHORT)
    assert "data loading costs" in done.stdout
    assert done.stdout.count("The step alone (cpu): ") == 1
    assert "an epoch ended" not in done.stdout
    assert "Note: cold was not measured: the files that a script reads stay" in done.stdout
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert ("catches what ends it" in done.stderr) == (name == "catches everything")
    changed = "Files that changed during this run: last.pt" in done.stderr
    assert changed == (name == "has an end of its own")
    # Beside those, the script itself may be new.
    many = re.search(r"during this run: (\S+, ){9}\S+, and [45] more", done.stderr)
    assert bool(many) == (name == "writes many files")
    assert left_running(tmp_path) == []
    for folder in re.findall("^folder: (.+)$", done.stdout, re.MULTILINE):
        assert not Path(folder).exists()


WITH_THREADS = """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor

pools = [ThreadPoolExecutor(1) for _ in range(20)]
for pool in pools:
    pool.submit(int).result()
threading.Thread(target=threading.Event().wait).start()
atexit.register(lambda: print(f"flushed after {time.monotonic() - ended_s} s"))
try:
    for batch in loader():
        step(batch)
finally:
    ended_s = time.monotonic()
"""


def test_a_script_whose_threads_go_on_runs_what_is_to_run_at_its_end(script, tmp_path):
    budget = ["--budget-s", BUDGET_S]
    done = diagnose(*budget, script(WITH_THREADS), cwd=tmp_path, **SHORT)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    (after_s,) = re.findall("^flushed after (.+) s$", done.stdout, re.MULTILINE)
    assert float(after_s) < 15.0  # all threads together, not one after the other
    assert left_running(tmp_path) == []


# --- what cannot be diagnosed -----------------------------------------------------------------

IN_ANOTHER_PROCESS = """
def load(counts):
    for batch in loader():
        counts.put(len(batch[1]))
    counts.put(0)

context = torch.multiprocessing.get_context("fork")
counts = context.Queue(4)
process = context.Process(target=load, args=(counts,))
process.start()
while count := counts.get():
    step((torch.ones(count, 8), torch.zeros(count, dtype=torch.long)))
process.join()
print("done")
"""


@pytest.mark.parametrize(
    ("rest", "status", "words"),
    [
        ("print('done')", 1, "no DataLoader was iterated over in this process"),
        (IN_ANOTHER_PROCESS, 1, "Nothing was diagnosed: no DataLoader was iterated over in this"),
        ("for _ in range(90_000 // len(loader()) - 1): pass", 1, "computed 0 epochs from len(l"),
        ("for _, batch in zip(range(3), loader()): step(batch)", 1, "after too few steps"),
        ("for batch in loader(): step(batch); raise KeyError('own')", 1, "KeyError: 'own'"),
        ("sys.exit(7)", 7, "Nothing was diagnosed"),
    ],
)
def test_a_script_that_ends_first_gets_a_line_and_keeps_its_status(
    script, tmp_path, rest, status, words
):
    done = diagnose(*BUDGET, script(rest), cwd=tmp_path)
    assert done.returncode == status
    assert words in done.stderr
    assert "labkit" not in done.stderr.partition("Traceback")[2]
    assert done.stdout in ("", "done\n")
    assert left_running(tmp_path) == []


IN_TURN = """
from concurrent.futures import ThreadPoolExecutor

first, second, batches = ThreadPoolExecutor(1), ThreadPoolExecutor(1), iter(loader())
for number in range(200):
    pool = first if number < 20 else second
    pool.submit(lambda: step(next(batches))).result()
"""


def test_a_training_that_moves_to_another_thread_gets_a_line(script, tmp_path):
    done = diagnose(*BUDGET, script(IN_TURN), cwd=tmp_path)
    assert "Nothing was diagnosed: the training moves from one thread to another" in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert left_running(tmp_path) == []


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("break", "the training ended before it was diagnosed"),
        ("raise KeyError('own')", "the training ended with KeyError"),
        ("os.kill(os.getpid(), signal.SIGINT)", "the training ended with KeyboardInterrupt"),
        ("break\nfor batch in loader(): step(batch)",
         "the training left its loop before it was diagnosed"),
        ("os.kill(os.getpid(), signal.SIGTERM)", TERMINATED),
    ],
)  # fmt: skip
def test_what_was_measured_until_then_is_printed(script, tmp_path, status_of_sigint, rest, words):
    loop = "for n, batch in enumerate(loader(num_workers=1)):\n    step(batch)\n    if n == 60: "
    done = diagnose(*BUDGET, script(loop + rest), cwd=tmp_path)
    assert f"Diagnosis stopped: {words}" in done.stdout
    assert "loading and computing: " in done.stdout
    status = {"SIGINT": status_of_sigint, "SIGTERM": -signal.SIGTERM}
    assert done.returncode == next((x for name, x in status.items() if name in rest), 1)
    assert ("KeyError: 'own'" in done.stderr) == ("KeyError" in rest)
    assert left_running(tmp_path) == []


IN_A_FORK = """
def train():
    for _, batch in zip(range(LAST), loader()):
        step(batch)

process = torch.multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
"""


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (60, "Diagnosis stopped: the training ended before it was diagnosed"),
        (3, "Nothing was diagnosed: the training ended after too few steps"),
    ],
)
def test_what_a_forked_process_measured_until_its_end_is_printed(script, tmp_path, last, words):
    done = diagnose(*BUDGET, script(IN_A_FORK.replace("LAST", str(last))), cwd=tmp_path)
    assert words in done.stdout + done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert left_running(tmp_path) == []


SIGNALLED = """
import json, threading
print("folder:", json.loads(os.environ["LABKIT_DIAGNOSE"])["folder"], flush=True)

class Ending(Slow):
    loaded = 0

    def __getitem__(self, i):
        self.loaded += 1
        if self.loaded == 400:
            os.kill(os.getpid(), signal.SIGNAL)
        return super().__getitem__(i)

def train():
    for batch in DataLoader(Ending(), batch_size=4):
        step(batch)
"""
IN_A_THREAD = "thread = threading.Thread(target=train)\nthread.start()\nthread.join()\n"


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("SIGINT", "train()", "the training ended with KeyboardInterrupt"),
        ("SIGTERM", "train()", TERMINATED),
        ("SIGTERM", IN_A_THREAD, TERMINATED),
    ],
)
def test_a_signal_while_the_loader_runs_alone_ends_both(
    script, tmp_path, status_of_sigint, name, how, words
):
    path = script(SIGNALLED.replace("SIGNAL)", f"{name})") + how)
    done = diagnose(*BUDGET, path, cwd=tmp_path)
    assert f"Diagnosis stopped: {words}" in done.stdout
    assert "loading and computing: " in done.stdout
    status = {"SIGINT": status_of_sigint, "SIGTERM": -signal.SIGTERM}[name]
    assert done.returncode == status, done.stderr
    assert left_running(tmp_path) == []
    (folder,) = re.findall("^folder: (.+)$", done.stdout, re.MULTILINE)
    assert not Path(folder).exists()


def test_a_script_that_is_terminated_before_it_trains_gets_a_line(script, tmp_path):
    path = script("os.kill(os.getpid(), signal.SIGTERM)")
    done = diagnose(*BUDGET, path, cwd=tmp_path)
    assert f"Nothing was diagnosed: {TERMINATED}." in done.stderr
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "")


FILLS_A_QUEUE = """
import queue, threading

class Failing(Slow):
    loaded = 0

    def __getitem__(self, i):
        self.loaded += 1
        if self.loaded == 300:
            time.sleep(0.5)  # the thread fills the queue meanwhile
            raise KeyError("own")
        return super().__getitem__(i)

def train():
    ready = queue.Queue(2)
    batches = DataLoader(Failing(), batch_size=4)
    thread = threading.Thread(target=lambda: [ready.put(batch) for batch in batches])
    thread.start()
    try:
        while True:
            step(ready.get())
    finally:
        thread.join()

process = torch.multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
"""


def test_a_process_that_waits_for_the_thread_which_fills_its_queue_ends(script, tmp_path):
    done = diagnose(*BUDGET, script(FILLS_A_QUEUE), cwd=tmp_path)
    assert "Diagnosis stopped: KeyError: 'own'" in done.stdout
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert left_running(tmp_path) == []


NOT_COPIED = """
class Fixed(DataLoader):
    def __copy__(self):
        raise TypeError("it has the only connection")

for batch in Fixed(Slow(), batch_size=4, num_workers=1):
    step(batch)
"""


def test_a_loader_that_cannot_be_copied_gets_a_line(script, tmp_path):
    done = diagnose(*BUDGET, script(NOT_COPIED), cwd=tmp_path)
    why = "the loader cannot be copied: TypeError: it has the only connection"
    assert done.stdout == f"Diagnosis stopped: {why}.\n"
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert left_running(tmp_path) == []


# --- ranks ------------------------------------------------------------------------------------

RANKS = """
def work(rank, ranks=2):
    global model, optimizer
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in loader():
        step(batch)
    print("an epoch ended")

if __name__ == "__main__" and "RANK" in os.environ:
    work(-1, -1)
elif __name__ == "__main__":
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
    torch.multiprocessing.spawn(work, nprocs=2)
"""
TORCHRUN = ["--standalone", "--nproc-per-node", "2"]


LONG_WAYS = [pytest.param(how, marks=pytest.mark.long) for how in ("inside", "spawn")]


@pytest.mark.parametrize("how", [*LONG_WAYS, "outside"])
def test_ranks_take_the_same_steps_and_the_first_one_prints(script, tmp_path, how):
    path = script(RANKS)
    if how == "spawn":
        done = diagnose(*BUDGET, path, free_port(), cwd=tmp_path)
    elif how == "inside":
        done = diagnose(*BUDGET, "-m", "torch.distributed.run", *TORCHRUN, path, cwd=tmp_path)
    else:
        # Two ranks take longer to begin, on a busy machine more so.
        words = [*TORCHRUN, "-m", "labkit.diagnose", "--budget-s", "20", path]
        done = warm_python.run("-m", "torch.distributed.run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("data loading costs") == 1
    assert "an epoch ended" not in done.stdout


RANKS_APART = """
def work(rank):
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    steps = 0
    try:
        for batch in loader(num_workers=1):
            step(batch)
            if rank == 0 and steps % 3 == 0:
                for _ in few():
                    pass
            steps += 1
    finally:
        print(f"trained {steps} steps")

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
torch.multiprocessing.start_processes(work, nprocs=2, start_method="fork")
"""


def test_ranks_are_diagnosed_from_the_same_step_on_where_one_evaluates(script, tmp_path):
    budget = ["--budget-s", BUDGET_S]
    done = diagnose(*budget, script(RANKS_APART), free_port(), cwd=tmp_path, **SHORT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("data loading costs") == 1
    first, second = re.findall("^trained (.+) steps$", done.stdout, re.MULTILINE)
    assert first == second


DISPATCHED = """
from labkit.diagnosis import together
together.STALL_S = 2.0

def work(rank):
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    batches, batch = iter(loader()), (torch.ones(4, 8), torch.ones(4, dtype=torch.long))
    while True:
        if rank == 0:
            batch = next(batches)
        for each in batch:
            torch.distributed.broadcast(each, 0)
        step(batch)

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
torch.multiprocessing.start_processes(work, nprocs=2, start_method="fork")
"""


def test_ranks_that_get_their_batches_from_the_first_one_get_a_line(script, tmp_path):
    done = diagnose(*BUDGET, script(DISPATCHED), free_port(), cwd=tmp_path)
    assert "Diagnosis stopped: not all ranks load batches" in done.stdout
    assert done.returncode == 1
    assert left_running(tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("how", ["inside", "outside"])
def test_why_nothing_was_diagnosed_stands_in_the_last_lines_of_torchrun(script, tmp_path, how):
    path = script("for _, batch in zip(range(3), loader()): step(batch)")
    ours, theirs = ["-m", "labkit.diagnose", *BUDGET], ["-m", "torch.distributed.run", *TORCHRUN]
    words = [*ours, *theirs] if how == "inside" else [*theirs, *ours]
    done = warm_python.run(*words, path, cwd=tmp_path)
    assert done.returncode == 1
    last_lines = "\n".join(done.stderr.strip().splitlines()[-2:])
    assert "the training ended after too few steps" in last_lines, done.stderr
    assert left_running(tmp_path) == []


class Share(Sampler):
    """The samples of one rank, in an order that cannot be pickled."""

    def __init__(self, rank):
        self.draw = lambda: range(1000 * rank, 1000 * rank + 100)

    def __len__(self):
        return 100

    def __iter__(self):
        return iter(self.draw())


NUMBERS = Made(lambda _, i: i, 1000)


def test_each_rank_loads_samples_of_its_own_sampler(tmp_path):
    group = together.Group(1, torch.distributed.FileStore(str(tmp_path / "store"), 1))
    leader = together.Leader(group)
    own = DataLoader(NUMBERS, sampler=Share(0), worker_init_fn=lambda _: None)
    with copied(own, **spread_over_epoch(own)) as twin:
        for changes in ({}, {"worker_init_fn": OneThread(own.worker_init_fn, False)}):
            with copied(twin, **changes) as tried:
                leader.begin("warm", tried._changes)
                for _ in range(100):
                    leader.step()
    leader.end()
    trained, other = [], DataLoader(NUMBERS, sampler=Share(1), worker_init_fn=lambda _: None)
    together.follow(group, other, lambda batch: trained.append(batch.item()))
    assert sorted(trained[:100]) == sorted(trained[100:]) == list(range(1000, 1100))
    assert sum(trained[:10]) / 10 == pytest.approx(1049.5, abs=10)  # of its whole epoch


# --- in a program -----------------------------------------------------------------------------


def test_a_function_that_trains_is_diagnosed_in_a_context(capsys, monkeypatch):
    shorten(monkeypatch.setattr)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    ended = []

    def train():
        for batch in DataLoader(torch.ones(64, 3), batch_size=4):
            model(batch).sum().backward()
            optimizer.step()
        ended.append(True)

    with lab.diagnosing(budget_s=BUDGET_S, progress=False) as live:
        for _ in range(100):
            train()
    assert live.diagnosis.broken == ""
    assert "The step alone (cpu): " in str(live.diagnosis)
    assert capsys.readouterr() == (f"{live.diagnosis}\n", "")
    assert len(DataLoader(torch.ones(64, 3), batch_size=4)) == 16
    train()
    assert ended[-1] is True  # nothing is diagnosed any more


def test_a_context_ends_once_all_threads_have_that_load_ahead(monkeypatch):
    shorten(monkeypatch.setattr)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader, ready = DataLoader(torch.ones(40_000, 3), batch_size=4), queue.Queue(2)
    has_ended = threading.Event()

    def load():
        with contextlib.suppress(SystemExit):  # pytest would warn of it
            for batch in loader:
                ready.put(batch)
                if live.diagnosis is not None:
                    time.sleep(1.5)  # works on the batch, and would load the next one

    def load_one():
        iterator = iter(DataLoader(torch.ones(1)))
        next(iterator)
        threading.current_thread()  # lists it, though it cannot be joined
        has_ended.wait()

    threads = [threading.Thread(target=load, daemon=True) for _ in range(2)]
    with lab.diagnosing(budget_s=BUDGET_S, progress=False) as live:
        _thread.start_new_thread(load_one, ())
        for thread in threads:
            thread.start()
        while True:
            model(ready.get()).sum().backward()
            optimizer.step()
    has_ended.set()
    assert live.diagnosis.broken == ""
    assert not any(thread.is_alive() for thread in threads)


def test_a_context_ends_without_a_word_where_a_pool_trains(monkeypatch):
    shorten(monkeypatch.setattr)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = DataLoader(torch.ones(40_000, 3), batch_size=4)
    evaluated = []

    def train():
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()

    with lab.diagnosing(budget_s=BUDGET_S, progress=False) as live:
        with ThreadPoolExecutor(1) as pool, contextlib.suppress(SystemExit):
            pool.submit(train).result()
        evaluated.extend(loader)
    assert live.diagnosis.broken == ""
    assert evaluated == []
    with pytest.raises(SystemExit, match="own"), lab.diagnosing():
        raise SystemExit("own")


def test_a_context_goes_on_after_another_inside_it(monkeypatch):
    shorten(monkeypatch.setattr)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    loader = DataLoader(torch.ones(4_000, 3), batch_size=4)
    with lab.diagnosing(budget_s=BUDGET_S, progress=False) as live:
        with lab.diagnosing(progress=False):
            opened_inside = iter(DataLoader(torch.ones(40, 3), batch_size=4))
        for batch in itertools.chain(opened_inside, loader):
            model(batch).sum().backward()
            optimizer.step()
    assert live.diagnosis is not None
    assert live.diagnosis.broken == ""


def test_a_batch_that_is_twice_in_a_queue_comes_twice():
    ready = queue.Queue()

    def load():
        batch = next(iter(DataLoader(torch.ones(1))))
        ready.put(batch)
        ready.put(batch)

    with HOOK.listen() as events:
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        assert ready.get() is ready.get()
    here = [event for event in events if event.thread == threading.get_ident()]
    assert [event.kind for event in here] == ["draw", "draw"]


def test_a_context_without_a_training_says_so(capsys):
    with lab.diagnosing(progress=False) as live:
        pass
    assert live.diagnosis is None
    why = "no DataLoader was iterated over in this process"
    assert capsys.readouterr() == ("", f"[labkit] Nothing was diagnosed: {why}.\n")


def test_too_short_a_budget_is_refused():
    with (
        pytest.raises(ValueError, match="budget_s must be at least 5, got 1"),
        lab.diagnosing(budget_s=1),
    ):
        pass


# --- which batches, which files ---------------------------------------------------------------


def test_batches_that_are_loaded_ahead_come_in_order_with_their_error():
    def fail():
        yield from range(3)
        raise KeyError("the fourth")

    assert list(loaded_ahead(range(100), 2)) == list(range(100))
    taken = []
    with pytest.raises(KeyError, match="the fourth"):
        for each in loaded_ahead(fail(), 1):
            taken.append(each)
    assert taken == [0, 1, 2]


def test_a_thread_that_loads_ahead_holds_few_batches_and_ends_with_its_iterator():
    begun = threading.active_count()
    drawn = []
    batches = loaded_ahead((drawn.append(n) for n in itertools.count()), 2)
    next(batches)
    until(lambda: len(drawn) == 4)  # one taken, two ready, one in the thread's hands
    batches.close()
    assert (len(drawn), threading.active_count()) == (4, begun)


@pytest.mark.parametrize("taken", [10, 37, 99])
def test_batches_of_sorted_data_stand_for_the_whole_epoch(taken):
    loader = DataLoader(NUMBERS, batch_size=10)
    with copied(loader, **spread_over_epoch(loader)) as spread:
        batches = [batch.float().mean().item() for batch in spread]
    assert sorted(batches) == [4.5 + 10 * n for n in range(100)]
    assert sum(batches[:taken]) / taken == pytest.approx(499.5, rel=0.11)


def test_shuffled_batches_stay_as_they_are():
    assert spread_over_epoch(DataLoader(NUMBERS, batch_size=10, shuffle=True)) == {}
    own = BatchSampler(SequentialSampler(NUMBERS), 10, drop_last=False)
    assert "batch_sampler" in spread_over_epoch(DataLoader(NUMBERS, batch_sampler=own))


def test_files_that_changed_are_listed(tmp_path):
    for name, at_s in (("old", 100), ("sub/new", 300)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

        os.utime(path, (at_s, at_s))
    assert changed_files(tmp_path, 200) == [str(Path("sub", "new"))]
    for number in range(12):
        (tmp_path / f"{number}.pt").touch()
    assert len(changed_files(tmp_path, 200)) == 13
