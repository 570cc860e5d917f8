"""A watched loop trains bit for bit as before, and its phases add up on a fake clock."""

import copy
import io
import pickle
import random
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import labkit as lab
from labkit.contracts import SystemClock
from labkit.diagnosis import text
from labkit.diagnosis.watch import PHASES, EpochPhases, Phases, Watch
from tests.fake_clock import FakeClock

WAIT_S, MOVE_S, FORWARD_S, BACKWARD_S, UPDATE_S, LOG_S = 0.5, 0.25, 2.0, 3.0, 1.0, 0.125


class SlowModel(nn.Module):
    """Two layers, each a module; a call takes two seconds of the clock."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def forward(self, x):
        self.clock.sleep(FORWARD_S)
        return self.layers(x)


class SlowSGD(torch.optim.SGD):
    def __init__(self, parameters, clock):
        super().__init__(parameters, lr=0.01)
        self.clock = clock

    def step(self, closure=None):
        self.clock.sleep(UPDATE_S)
        return super().step(closure)


def deliver(clock, steps=4):
    for _ in range(steps):
        clock.sleep(WAIT_S)
        yield torch.ones(3, 2)


def training():
    clock = FakeClock()
    model = SlowModel(clock)
    return SimpleNamespace(
        clock=clock, model=model, optimizer=SlowSGD(model.parameters(), clock), phases=Phases(clock)
    )


def train(t, batch, *, criterion=torch.mean, update=True):
    """The step that anyone would write."""
    t.clock.sleep(MOVE_S)
    loss = criterion(t.model(batch))
    t.clock.sleep(BACKWARD_S)
    loss.backward()
    if update:
        t.optimizer.step()
        t.optimizer.zero_grad()
    t.clock.sleep(LOG_S)


def installed(*modules):
    """Every hook there is: those of torch, and those of modules."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return [
        len(hooks)
        for hooks in (
            module._global_forward_pre_hooks,
            module._global_forward_hooks,
            optimizer._global_optimizer_post_hooks,
            *(hooks for m in modules for hooks in (m._forward_pre_hooks, m._forward_hooks)),
        )
    ]


def per_step(phases):
    """Seconds per timed step, in the order of PHASES."""
    found = phases.result()
    return [
        None if found.host_s[phase] is None else found.host_s[phase] / found.timed_steps
        for phase in PHASES
    ]


def test_a_training_loop_falls_into_its_phases():
    t = training()
    for batch in t.phases.over(deliver(t.clock)):
        train(t, batch)
    found = t.phases.result()
    assert found.host_s == {
        "wait": 3 * WAIT_S,
        "transfer": 3 * MOVE_S,
        "forward": 3 * FORWARD_S,
        "backward": 3 * (BACKWARD_S + UPDATE_S),
        "rest": 3 * LOG_S,
        "step": 3 * (MOVE_S + FORWARD_S + BACKWARD_S + UPDATE_S + LOG_S),
    }
    assert (found.ended, found.steps, found.timed_steps) == ("exhausted", 4, 3)
    assert found.epoch_s == t.clock.now()
    assert (found.first_wait_s, found.device_s, found.device_steps) == (WAIT_S, None, 0)


def test_start_up_first_batch_first_step_and_shutdown_stay_apart():
    class Loader:
        def __iter__(self):
            t.clock.sleep(10)  # starts workers
            return self.deliver()

        def deliver(self):
            t.clock.sleep(20)  # fills a pipeline
            yield from deliver(t.clock, steps=2)
            t.clock.sleep(5)  # ends workers

    t = training()
    for step, batch in enumerate(t.phases.over(Loader())):
        train(t, batch)
        t.clock.sleep(0 if step else 40)  # compiles
    found = t.phases.result()
    assert (found.startup_s, found.first_wait_s, found.shutdown_s) == (10, 20 + WAIT_S, 5)
    assert found.first_step_s == 40 + found.host_s["step"]
    assert found.host_s["wait"] == WAIT_S
    apart_s = found.startup_s + found.first_wait_s + found.first_step_s + found.shutdown_s
    assert found.epoch_s == apart_s + found.host_s["wait"] + found.host_s["step"]


def test_modules_without_parameters_are_no_forward():
    class Augment(nn.Module):
        def forward(self, x):
            t.clock.sleep(10)
            return x

    class Criterion(nn.Module):
        def forward(self, x):
            t.clock.sleep(20)
            return x.mean()

    t = training()
    augment, criterion = Augment(), Criterion()
    for batch in t.phases.over(deliver(t.clock)):
        train(t, augment(batch), criterion=criterion)
    expected = [WAIT_S, 10 + MOVE_S, FORWARD_S, 20 + BACKWARD_S + UPDATE_S, LOG_S]
    assert per_step(t.phases) == expected


def test_without_a_module_only_wait_and_step_are_known():
    t = training()
    for _ in t.phases.over(deliver(t.clock)):
        t.clock.sleep(7)
        t.optimizer.step()
    assert per_step(t.phases) == [WAIT_S, None, None, None, None]
    assert t.phases.result().host_s["step"] == 3 * (7 + UPDATE_S)


def test_without_an_optimizer_backward_and_rest_are_unknown():
    t = training()
    for batch in t.phases.over(deliver(t.clock)):
        train(t, batch, update=False)
    assert per_step(t.phases) == [WAIT_S, MOVE_S, FORWARD_S, None, None]


def test_what_the_loader_calls_and_what_other_threads_call_is_no_forward():
    def deliver_features():
        for batch in deliver(t.clock):
            t.model(batch)
            yield batch

    t = training()
    for batch in t.phases.over(deliver_features()):
        train(t, batch)
        thread = threading.Thread(target=t.model, args=(batch,))
        thread.start()
        thread.join()
    assert per_step(t.phases) == [
        WAIT_S + FORWARD_S, MOVE_S, FORWARD_S, BACKWARD_S + UPDATE_S, LOG_S + FORWARD_S,
    ]  # fmt: skip


def test_the_step_that_a_break_cuts_short_is_not_timed():
    t = training()
    for step, batch in enumerate(t.phases.over(deliver(t.clock))):
        if step == 2:
            break
        train(t, batch)
    found = t.phases.result()
    assert (found.ended, found.steps, found.timed_steps) == ("stopped", 3, 1)
    assert found.host_s["forward"] == FORWARD_S
    assert found.shutdown_s is None


def exhaust(t, batches):
    for batch in batches:
        train(t, batch)


def leave_early(t, batches):
    for batch in batches:
        train(t, batch)
        break


def fail_in_the_model(t, batches):
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        for _ in batches:
            t.model(torch.ones(3, 5))


def forget_it(t, batches):
    next(batches)


@pytest.mark.parametrize("use", [exhaust, leave_early, fail_in_the_model, forget_it])
def test_no_hook_remains(use):
    t = training()
    before = installed(t.model, t.model.layers)
    use(t, t.phases.over(deliver(t.clock)))
    assert installed(t.model, t.model.layers) == before


def test_a_failing_loader_keeps_what_was_measured_and_its_error():
    def fail():
        yield from deliver(t.clock, steps=3)
        raise error

    t, error = training(), KeyError("the fourth image")
    with pytest.raises(KeyError) as raised:
        exhaust(t, t.phases.over(fail()))
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    found = t.phases.result()
    assert (found.ended, found.steps, found.timed_steps) == ("failed", 3, 2)
    assert found.host_s["forward"] == 2 * FORWARD_S


def test_a_model_saved_or_copied_in_the_loop_takes_nothing_along():
    t = training()
    for batch in t.phases.over(deliver(t.clock)):
        train(t, batch)
        copies = [copy.deepcopy(t.model), pickle.loads(pickle.dumps(t.model))]
        file = io.BytesIO()
        torch.save(t.model, file)
    file.seek(0)
    assert b"labkit.diagnosis" not in file.getvalue()
    before = t.phases.result()
    for model in [*copies, torch.load(file, weights_only=False)]:
        model.clock = t.clock
        assert torch.equal(model(batch), t.model(batch))
    assert t.phases.result() == before


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("how", ["wrapped", "in place", "inside"])
def test_compiled_models_train_as_before_and_are_compiled_no_more_than_twice(how):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    call = model
    if how == "wrapped":
        call = torch.compile(model, backend=backend, fullgraph=True)
    elif how == "in place":
        model.compile(backend=backend, fullgraph=True)
    else:
        call = torch.compile(lambda x: model(x), backend=backend, fullgraph=True)
    clock = FakeClock()
    for _ in range(2):
        phases = Phases(clock)
        losses = [call(batch).sum().item() for batch in phases.over(deliver(clock))]
        assert losses == [model.forward(torch.ones(3, 2)).sum().item()] * 4
        assert (phases.result().host_s["forward"] is None) == (how != "wrapped")
    assert len(graphs) <= (1 if how == "wrapped" else 2)
    assert installed(model) == [0] * 5


@pytest.fixture
def queue(monkeypatch):
    """A stand-in for CUDA: work that is queued at once, and done one after the other."""

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.time_s = max(queue.clock.now(), queue.done_s)

        def synchronize(self):
            queue.clock.sleep_until(self.time_s)
            queue.synchronized += 1
            if queue.failed:
                raise RuntimeError("CUDA error: unspecified launch failure")

        def elapsed_time(self, end):
            return 1000 * (end.time_s - self.time_s)

    def launch(seconds):
        queue.done_s = max(queue.clock.now(), queue.done_s) + seconds

    queue = SimpleNamespace(clock=None, done_s=0.0, failed=False, synchronized=0, launch=launch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return queue


def train_on(queue, steps=4):
    """Launches 2 s of forward and 4 s of backward in no time, and waits for them in the rest."""
    t = training()
    queue.clock, model = t.clock, nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.register_forward_hook(lambda *_: queue.launch(2))
    for batch in t.phases.over(deliver(t.clock, steps)):
        loss = model(batch).mean()
        queue.launch(4)
        loss.backward()
        optimizer.step()
        t.clock.sleep(1)
        t.clock.sleep_until(queue.done_s)
    return t.phases.result()


def test_a_devices_own_time_stands_beside_the_hosts(queue):
    found = train_on(queue)
    naive = {"wait": 1.5, "transfer": 0.0, "forward": 0.0, "backward": 0.0, "rest": 18.0}
    assert found.host_s == {**naive, "step": 18.0}
    true = {"wait": 1.5, "transfer": 0.0, "forward": 6.0, "backward": 12.0, "rest": 0.0}
    assert found.device_s == {**true, "step": 18.0}
    assert (found.device_steps, queue.synchronized) == (3, 1)


@pytest.mark.needs_cuda
def test_cuda_takes_the_seconds_that_the_host_only_queues():
    """A long forward that returns at once, and a host that waits for it in the rest."""
    model = nn.Linear(2, 1).cuda()
    big = torch.ones(4096, 4096, device="cuda")

    def multiply(*_):
        for _ in range(10):  # some ten milliseconds
            big @ big

    model.register_forward_hook(multiply)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    phases = Phases(SystemClock())
    for batch in phases.over([torch.ones(3, 2)] * 10):
        model(batch.cuda()).mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
    found = phases.result()
    assert found.device_steps == found.timed_steps == 9
    assert found.device_s["forward"] > 0.9 * found.device_s["step"]
    assert found.host_s["rest"] > found.host_s["forward"]
    assert found.device_s["step"] == pytest.approx(found.host_s["step"], rel=0.2)


# --- the loop that is watched


class Noisy(Dataset):
    """Images with noise from torch, NumPy and Python, as an augmentation would add it."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        noise = torch.rand(3, 8, 8) + np.random.rand() + random.random()
        return torch.full((3, 8, 8), float(index)) + noise, index % 5


def train_really(watch, *, workers):
    """Two epochs of a small network with dropout; what its losses and the random states were."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    torch.use_deterministic_algorithms(True)
    try:
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(),
            nn.Linear(4 * 6 * 6, 5),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        loader = watch(DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=workers))
        for _ in range(2):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    finally:
        torch.use_deterministic_algorithms(False)
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    return losses, [p.tolist() for p in model.parameters()], states, installed(*model.modules())


@pytest.mark.parametrize("workers", [0, 2])
def test_losses_weights_and_random_states_are_equal_bit_for_bit(workers):
    bare = train_really(lambda loader: loader, workers=workers)
    assert train_really(lambda loader: lab.watch(loader), workers=workers) == bare
    assert len(bare[0]) == 10


def test_length_and_attributes_are_the_loaders():
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=3, shuffle=True)
    watched = lab.watch(loader, show=False)
    assert len(watched) == 4
    assert watched.dataset is loader.dataset
    assert watched.sampler is loader.sampler
    assert watched.batch_size == 3
    with pytest.raises(AttributeError, match="'DataLoader' object has no attribute 'nothing'"):
        watched.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="batch_size"):
        watched.batch_size = 4


def test_every_epoch_is_kept_and_the_one_that_goes_on_can_be_looked_at():
    t = training()
    watched = Watch([torch.ones(3, 2)] * 4, show=False, clock=t.clock)
    assert watched.phases is None
    for epoch in range(2):
        for step, batch in enumerate(watched):
            assert (watched.phases.ended, watched.phases.steps) == ("running", step + 1)
            train(t, batch)
        assert len(watched.epochs) == epoch + 1
    assert [epoch.timed_steps for epoch in watched.epochs] == [3, 3]
    assert watched.epochs[1] == watched.phases


def test_a_generator_can_be_watched_once_and_says_so_the_second_time(capsys):
    watched = lab.watch(x for x in range(3))
    assert watched
    assert list(watched) == [0, 1, 2]
    assert list(watched) == []
    said = capsys.readouterr().err
    assert "The loader yielded no batch: a generator is used up after one epoch" in said


@pytest.mark.parametrize("loader", [5, None, nn.Linear(1, 1)])
def test_what_is_no_iterable_is_refused_at_once(loader):
    with pytest.raises(ValueError, match=r"^loader must be an iterable of batches, got \S"):
        lab.watch(loader)


def test_a_loop_can_watch_another_inside():
    t = training()
    outer = Watch([torch.ones(3, 2)] * 3, show=False, clock=t.clock)
    inner = Watch([torch.ones(3, 2)] * 2, show=False, clock=t.clock)
    for batch in outer:
        train(t, batch)
        with torch.no_grad():
            for held_out in inner:
                t.model(held_out)
    assert [epoch.steps for epoch in inner.epochs] == [2] * 3
    assert [epoch.steps for epoch in outer.epochs] == [3]
    assert installed(t.model) == [0] * 5


class Tty(io.StringIO):
    def isatty(self):
        return True


def watch_on(file, monkeypatch, loader=None):
    monkeypatch.setattr(sys, "stderr", file)
    t = training()
    for batch in Watch(loader or deliver(t.clock), clock=t.clock):
        train(t, batch)


def test_a_terminal_shows_a_line_that_is_redrawn_and_then_the_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    file = Tty()
    watch_on(file, monkeypatch, loader=[torch.ones(3, 2)] * 3)
    first_line, *_ = file.getvalue().split("\n")
    drawn = [part.strip() for part in first_line.split("\r") if part.strip()]
    second = "2/3, 6 s left: wait 0 %, transfer 4 %, forward 31 %, backward 63 %, rest 2 %"
    assert drawn[:3] == [
        "1/3: first batch 0 s, first step 6.38 s", second, second.replace("2/3, 6 s left", "3/3"),
    ]  # fmt: skip
    assert drawn[3].startswith("epoch 1: 3 steps in 19.1 s; ")


def test_a_log_gets_the_table_only(monkeypatch):
    file = io.StringIO()
    watch_on(file, monkeypatch)
    assert file.getvalue().splitlines() == [
        "epoch 1: 4 steps in 27.5 s; not in the table: start-up 0 s, first batch 500 ms, "
        "first step 6.38 s, shutdown 0 s",
        "                         host, per step",
        "wait                    500 ms    7.3 %",
        "transfer                250 ms    3.6 %",
        "forward                 2.00 s   29.1 %",
        "backward+optimizer      4.00 s   58.2 %",
        "rest                    125 ms    1.8 %",
        f"- {text.NO_CUDA}",
    ]


def test_a_failing_loader_shows_what_was_measured_before_its_error(capsys):
    def fail():
        yield from [1, 2, 3]
        raise KeyError("the fourth")

    watched = lab.watch(fail())
    with pytest.raises(KeyError, match="the fourth"):
        list(watched)
    said = capsys.readouterr().err
    assert "epoch 1: 3 steps in" in said
    assert "- The loader failed; this is what was measured until then." in said
    assert watched.epochs[0].timed_steps == 2


def epoch(**changes):
    known = {
        "ended": "exhausted", "steps": 101, "timed_steps": 100, "epoch_s": 10.0, "startup_s": 0.1,
        "first_wait_s": 0.2, "first_step_s": 0.3, "shutdown_s": 0.0, "device_s": None,
        "host_s": {
            "wait": 1.0, "transfer": 1.0, "forward": 1.0, "backward": 1.0, "rest": 6.0, "step": 9.0
        },
        "device_steps": 0,
    }  # fmt: skip
    return EpochPhases(**{**known, **changes})


def test_cudas_clock_stands_beside_the_hosts():
    of_device = {"transfer": 0.5, "forward": 1.5, "backward": 2.5, "rest": 0.0, "step": 4.5}
    phases = epoch(device_s={"wait": 0.5, **of_device}, device_steps=50)
    shown = text.epoch_text(phases, 2).splitlines()
    assert shown[1:7] == [
        "                         host, per step       CUDA, per step",
        "wait                   10.0 ms   10.0 %     10.0 ms   10.0 %",
        "transfer               10.0 ms   10.0 %     10.0 ms   10.0 %",
        "forward                10.0 ms   10.0 %     30.0 ms   30.0 %",
        "backward+optimizer     10.0 ms   10.0 %     50.0 ms   50.0 %",
        "rest                   60.0 ms   60.0 %         0 s    0.0 %",
    ]
    assert shown[-1].startswith("- CUDA's column tells where its time went: ")
