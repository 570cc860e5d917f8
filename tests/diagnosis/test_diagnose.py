"""A diagnosis of real loaders and steps, and of those that break.

Its budget is shorter than a user's may be: what is planted here is large.  Tests of a verdict have
the machine to themselves.
"""

import itertools
import logging
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

import labkit as lab
from labkit.diagnosis import arms, bounds, loaders, measure, rules, verify
from labkit.diagnosis.arms import Budget, Loop
from labkit.diagnosis.bounds import bounds_of
from labkit.diagnosis.facts import Batch, Facts, Stages
from labkit.diagnosis.gpu import find_device
from labkit.diagnosis.rules import conclude, propose
from labkit.diagnosis.say import screen
from labkit.diagnosis.thresholds import STALL_S
from labkit.diagnosis.verify import try_remedies
from labkit.machine import shared_memory
from labkit.machine.clock import SystemClock
from labkit.machine.usage import own_cpu_s
from labkit.parts.devices import GpuSpeeds, SimulatedGpu
from tests.diagnosis.made_sets import Made, Stream, compute, pixels, slow, waiting
from tests.diagnosis.trainings import Endless
from tests.fake_clock import FakeClock
from tests.processes import PATIENCE_S
from tests.short_diagnosis import BUDGET_S, shorten


@pytest.fixture(scope="module", autouse=True)
def short_stretches():
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch.setattr)
        yield


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    before = set(torch.multiprocessing.active_children())
    yield
    assert set(torch.multiprocessing.active_children()) <= before


class Simulated:
    """A step on a simulated GPU."""

    def __init__(self, ms=5.0):
        profile = GpuSpeeds(name="test", gpu_images_per_s=1e3 / ms)
        self.device = SimulatedGpu(profile, SystemClock())

    def __call__(self, batch):
        on_device = self.device.put({"image": batch}, pinned=True, side_stream=False)
        self.device.wait(on_device)
        self.device.compute(len(batch))


def diagnose(loader, step, budget_s=BUDGET_S, **how):
    device = getattr(step, "device", None)
    return lab.diagnose(loader, step, budget_s=budget_s, device=device, progress=False, **how)


def names(remedies):
    return {remedy.name for remedy in remedies}


def do_nothing(batch):
    pass


@pytest.fixture(scope="module")
def without_workers():
    loader = DataLoader(waiting(0.03), batch_size=2, shuffle=True)
    return diagnose(loader, Simulated(ms=3))


@pytest.mark.alone
def test_a_loader_without_workers_is_tried_with_some(without_workers):
    found = without_workers
    assert (found.broken, found.bottleneck) == ("", "workers")
    best = found.remedies[0]
    assert best.name == "more workers" and best.ci_low < best.measured < best.ci_high < 1
    assert 0 < found.ceiling < best.measured
    assert found.ceiling < 0.9


@pytest.mark.alone
def test_it_says_so_on_one_screen(without_workers):
    text = str(without_workers)
    assert "input-bound" in text and "With a loader that takes no time: up to" in text
    assert re.search(r"1\. more workers: [\d.]+× as fast \[[\d.]+, [\d.]+\] \(tried\), ", text)
    assert "DataLoader(dataset, batch_size=2, shuffle=True, num_workers=" in text
    assert "images/s, test)" in text and "the loader alone: " in text
    assert "time.sleep" in text and "not explained" in text
    assert len(text.splitlines()) < 20


@pytest.mark.alone
def test_the_rest_stands_in_details_and_tables(without_workers):
    assert "give files for that" in without_workers.details()
    assert list(without_workers.table().columns) == ["step_s", "epoch_s", "cpu_s"]
    rows = without_workers.bounds.rows
    assert "waiting" in {row.kind for row in rows}
    assert sum(row.share for row in rows) == pytest.approx(1, abs=0.05)


class Wrapper:
    """Iterates over a loader that it wraps, and passes for one, as accelerate's do."""

    __class__ = property(lambda self: DataLoader)

    def __init__(self, dataset, **arguments):
        self.base_dataloader = DataLoader(dataset, **arguments)

    def __getattr__(self, name):
        if name == "base_dataloader":
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    def __iter__(self):
        return iter(self.base_dataloader)

    def __len__(self):
        return len(self.base_dataloader)


@pytest.mark.alone
@pytest.mark.parametrize("kind", [Wrapper, Endless])
def test_a_subclass_with_an_iterator_of_its_own_is_tried_with_workers(kind):
    found = diagnose(kind(waiting(0.03), batch_size=2), Simulated(ms=1))
    assert (found.broken, found.bottleneck) == ("", "workers")
    assert found.remedies[0].measured < 0.9
    assert "waiting" in {row.kind for row in found.bounds.rows}


@pytest.mark.alone
def test_nothing_is_to_gain_where_the_device_is_the_limit():
    loader = DataLoader(slow(0.0001, 16), batch_size=4)
    found = diagnose(loader, Simulated(ms=8))
    assert found.broken == ""
    assert found.ceiling > 0.8
    assert all(remedy.normalized_time > 0.8 for remedy in found.remedies)


def test_a_generator_that_delays_the_step_is_the_bottleneck():
    def late():
        while True:
            time.sleep(0.02)
            yield torch.ones(2, 3)

    found = diagnose(late(), do_nothing)
    assert (found.verdict, found.bottleneck) == ("highly input-bound", "waiting")
    assert re.search(r"1\. wait less: [\d.e+]+× as fast \[.*\] \(expected\), ", str(found))
    assert "not a torch DataLoader" in found.details()
    facts = replace(found.facts, probe=Stages())
    unseen = conclude(facts, bounds_of(facts), propose(bounds_of(facts)))
    assert unseen.bottleneck == "not explained"
    text = screen(unseen)
    assert "Not explained: 100 % of a batch's time." in text
    assert "Nothing to gain" not in text


@pytest.mark.alone
def test_workers_that_wait_for_each_other_are_told_from_busy_ones(monkeypatch):
    # Whatever other programs use the cores for.
    monkeypatch.setattr(bounds, "IDLE_CORES_SHARE", -1.0)
    lock = torch.multiprocessing.Lock()

    def make(_, i):
        with lock:
            time.sleep(0.008)
        return pixels(i)

    loader = DataLoader(Made(make, 400), batch_size=4, num_workers=2)
    found = diagnose(loader, Simulated(ms=1))
    assert found.bottleneck == "workers wait for each other"
    assert "waiting in time.sleep" in str(found)
    assert "faster decode" not in names(found.remedies)


@pytest.mark.alone
def test_workers_that_wait_for_a_late_batch_need_more_ahead(monkeypatch):
    # Whatever other programs use the cores for.
    monkeypatch.setattr(bounds, "IDLE_CORES_SHARE", -1.0)
    # One sample in six is late: in every third batch of two, from either worker.
    late = Made(lambda _, i: time.sleep(0.05 * (i % 6 == 5) + 0.001) or pixels(i), 240)
    loader = DataLoader(late, batch_size=2, num_workers=2, prefetch_factor=1)
    # Long enough to look at some late batches in a worker.
    found = diagnose(loader, Simulated(ms=5), budget_s=60)
    assert found.bottleneck == "jitter"
    assert found.remedies[0].name == "more prefetching"
    assert found.remedies[0].ci_high < 1
    assert "waiting for a late batch" in str(found)


class Parcel:
    """An object that takes the main process 10 ms of CPU to receive."""

    def __getstate__(self):
        return {"is_full": True}

    def __setstate__(self, state):
        compute(0.01)


class LateHandler(logging.Handler):
    def emit(self, record):
        time.sleep(0.001)


@pytest.mark.alone
def test_reports_that_explain_hardly_any_of_the_waiting_are_not_the_bottleneck():
    logger = logging.Logger("training")
    logger.addHandler(LateHandler())
    parcels = Made(lambda _, i: compute(0.004) or Parcel(), 400)
    loader = DataLoader(parcels, batch_size=None, num_workers=1, persistent_workers=True)
    found = diagnose(loader, lambda batch: logger.warning("loss"))
    assert found.remedies[0].name == "report less often"
    assert (found.verdict, found.bottleneck) == ("highly input-bound", "not explained")
    largest = "Bottleneck: not explained; the largest part of a batch's time is waiting for the"
    assert largest in str(found)


class Deliberate(Sampler):
    """An order of which each number takes a while."""

    def __len__(self):
        return 64

    def __iter__(self):
        for i in range(64):
            compute(0.01)
            yield i


@pytest.mark.alone
def test_a_slow_sampler_is_the_bottleneck():
    loader = DataLoader(slow(0.002), batch_size=4, sampler=Deliberate())
    found = diagnose(loader, Simulated(ms=1))
    assert (found.broken, found.bottleneck) == ("", "sampler")
    assert found.facts.probe.sampler_s >= 0.04
    assert found.remedies[0].name == "faster sampler"


def test_an_order_that_takes_long_to_draw_is_not_drawn_whole(monkeypatch):
    monkeypatch.setattr(loaders, "DRAWING_S", 0.1)
    loader = DataLoader(slow(0.004), batch_size=4, sampler=Deliberate())
    assert loaders.spread_over_epoch(loader) == {}


@pytest.mark.alone
def test_many_small_batches_are_told_from_much_work():
    tiny = Made(lambda _, i: torch.tensor([float(i)]), 400)
    loader = DataLoader(tiny, num_workers=1, persistent_workers=True)
    found = diagnose(loader, do_nothing)
    assert found.bottleneck == "per-batch overhead"
    assert {"no workers", "larger batches"} & names(found.remedies)


def everything(wait_s=0.0):
    """Samples that every worker yields all of."""
    for value in itertools.count(0.0):
        time.sleep(wait_s)
        yield torch.tensor(value)


@pytest.mark.alone
def test_workers_that_would_deliver_the_same_samples_are_not_proposed():
    found = diagnose(DataLoader(Stream(partial(everything, 0.003)), batch_size=4), do_nothing)
    assert found.bottleneck == "waiting"
    assert "more workers" not in names(found.proposed)


def test_workers_that_deliver_the_same_samples_are_found():
    found = diagnose(DataLoader(Stream(everything), batch_size=4, num_workers=2), do_nothing)
    assert found.bottleneck == "duplicated work"
    assert "get_worker_info()" in str(found)


def test_the_first_batches_of_an_iterable_loader_stand_for_the_epoch_as_a_note_says():
    loader = DataLoader(Stream(itertools.count), batch_size=4)
    found = diagnose(loader, lambda batch: time.sleep(1e-3))
    (first,) = re.findall("Note: the first ([0-9]+) batches stand for the whole epoch", str(found))
    read = max(stretch.steps for stretch in found.facts.of("warm"))
    assert int(first) == read + 1
    # One that is short is read whole; where batches have numbers, they are from all of it.
    for data in (Stream(partial(range, 20)), slow(0.004, 10_000)):
        found = diagnose(DataLoader(data, batch_size=4), do_nothing)
        assert "stand for the whole epoch" not in str(found)


def test_equal_samples_are_not_taken_for_duplicates():
    equal = Stream(partial(itertools.repeat, torch.ones(3)))
    found = diagnose(DataLoader(equal, batch_size=4, num_workers=2), do_nothing)
    assert found.broken == "" and not found.facts.duplicated


def test_a_model_that_is_given_learns_nothing_and_is_tried_in_other_forms(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)  # takes a minute
    monkeypatch.setattr(rules, "DEVICE_BOUND_CEILING", 0.0)  # whatever else this machine does
    layers = torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(), torch.nn.Linear(576, 2)
    model = torch.nn.Sequential(*layers)
    model.register_buffer("steps", torch.zeros(1), persistent=False)
    optimizer = torch.optim.Adam(model.parameters())
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def step(batch):
        model.steps += 1
        optimizer.zero_grad()
        model(batch.pop()).sum().backward()
        time.sleep(0.02)
        optimizer.step()

    loader = DataLoader([[torch.ones(3, 8, 8)]] * 16, batch_size=4)
    found = diagnose(loader, step, model=model, optimizer=optimizer)
    assert found.broken == ""
    tried = {r.name for r in found.proposed if r.measured is not None}
    assert {"bf16 autocast", "channels last"} <= tried
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert optimizer.state_dict()["state"] == {}
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model[0].weight.is_contiguous()
    assert model.steps == 0


def test_a_step_may_take_things_out_of_its_batch_whose_bytes_are_told_in_words():
    samples = [{"image": np.ones((3, 300, 300)), "name": 1}] * 16
    found = diagnose(DataLoader(samples, batch_size=4), lambda batch: batch.pop("name"))
    assert found.broken == ""
    assert "A sample: float64, 2.2 MB; float32 would be half." in str(found)


def test_random_numbers_and_the_loader_stay_as_they_were():
    loader = DataLoader(
        slow(0.0, 16), batch_size=4, shuffle=True, num_workers=1,
        persistent_workers=True,
    )  # fmt: skip
    torch.manual_seed(5)
    before = torch.get_rng_state()
    diagnose(loader, do_nothing)
    assert torch.equal(torch.get_rng_state(), before)
    assert loader.num_workers == 1 and loader._iterator is None


def test_the_line_to_paste_holds_all_arguments_that_are_not_torchs_defaults():
    loader = DataLoader(
        [0], batch_size=4, shuffle=True, num_workers=2, prefetch_factor=2, collate_fn=give_none,
        pin_memory=False, in_order=False, worker_init_fn=print, multiprocessing_context="spawn",
    )  # fmt: skip
    arguments = loaders.arguments_of(loader)
    assert loaders.line_of(arguments) == (
        "DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, collate_fn=give_none, "
        "worker_init_fn=print, multiprocessing_context='spawn', in_order=False)"
    )
    arguments["worker_init_fn"] = loaders.OneThread(print, has_opencv=False)
    written = "worker_init_fn=lambda i: (print(i), torch.set_num_threads(1)),"
    assert written in loaders.line_of(arguments)
    assert (
        loaders.line_of(loaders.arguments_of(DataLoader([1])))
        == "DataLoader(dataset, batch_size=1)"
    )


def test_a_stretch_counts_whole_rounds_of_the_workers(monkeypatch):
    monkeypatch.setattr(arms, "FEWEST_STRETCH_STEPS", 5)
    loader = DataLoader(slow(0), batch_size=4, num_workers=2)
    assert Loop(loader, print).run("alone", loader, 0.0).steps == 6


class Together:
    """Batches that workers bring at once, four every 40 ms, in epochs whose last round has two."""

    def __init__(self, batches, clock):
        self.batches, self.clock = batches, clock

    def __iter__(self):
        for batch in range(self.batches):
            if batch % 4 == 0:
                self.clock.sleep(0.04)
            yield [0]


@pytest.mark.parametrize("batches", [14, 62])
def test_a_step_is_measured_over_whole_rounds_in_short_epochs_too(batches, monkeypatch):
    monkeypatch.setattr(arms, "_skip_of", lambda loader: 4)
    clock = FakeClock()
    monkeypatch.setattr("time.perf_counter", clock.now)
    loader = Together(batches, clock)
    stretch = Loop(loader, do_nothing).run("warm", loader, 0.3)
    assert stretch.step_s == pytest.approx(0.01)


def test_cpu_time_is_counted_from_the_wait_for_the_first_batch_that_counts():
    # However long it waits for a core.
    busy = Made(lambda _, i: compute(0.05, time.thread_time) or pixels(i))
    loader = DataLoader(busy, batch_size=2)
    assert Loop(loader, print).run("alone", loader, 0.0).cpu_s == pytest.approx(0.1, rel=0.3)


def test_slow_steps_need_not_be_eight(monkeypatch):
    monkeypatch.setattr(arms, "LONGEST_STRETCH_S", 0.1)
    loader = DataLoader(slow(0))
    assert Loop(loader, lambda batch: time.sleep(0.05)).run("warm", loader, 0.01).steps < 4


def test_slow_steps_leave_time_for_fewer_trials():
    loader = DataLoader(slow(0.004))
    assert arms.count_arms(1.0, Loop(loader, print), step_s=0.05) == 3  # six steps each
    assert arms.count_arms(1.0, Loop(loader, print), step_s=0.0) == 10


@pytest.mark.parametrize(("ends_s", "begun"), [(1.0, 3), (10.0, 3), (13.0, 4), (100.0, 9)])
def test_after_the_time_is_over_only_the_first_block_goes_on(ends_s, begun, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(arms, "time", SimpleNamespace(monotonic=clock.now, sleep=clock.sleep))
    monkeypatch.setattr(arms, "FILLING_S", 0.0)
    count = 0
    for _ in arms.in_blocks(["warm", "alone", "resident"], ends_s, lambda *_: None):
        clock.sleep(4.0)
        count += 1
    assert count == begun


@pytest.mark.alone
def test_a_diagnosis_of_slow_steps_ends_with_its_budget_and_names_what_it_left_out():
    # A step and its batch take 0.3 s; three blocks alone would take ten seconds and more.
    loader = DataLoader(waiting(0.04, 400), batch_size=4)
    begun_s = time.monotonic()
    found = diagnose(loader, lambda batch: time.sleep(0.15), budget_s=2)
    assert time.monotonic() - begun_s < 2 + 1.5
    assert found.broken == "" and 0.3 < found.ceiling < 0.7
    assert found.facts.left_out[0] == "2 of 3 blocks of measurements"
    (line,) = (each for each in str(found).splitlines() if "lack of time" in each)
    assert line.endswith("trials of more workers; raise budget_s.")
    assert all(remedy.measured is None for remedy in found.proposed)


@pytest.mark.alone
def test_a_budget_that_is_over_before_all_was_measured_once_is_named():
    loader = DataLoader(slow(0, 400), batch_size=4)
    begun_s = time.monotonic()
    found = diagnose(loader, lambda batch: time.sleep(0.6), budget_s=1)
    assert time.monotonic() - begun_s < 1 + 2
    assert found.broken == measure.NO_TIME
    assert "loading and computing: " in str(found) or "loading alone: " in str(found)


def test_workers_that_fill_their_queues_are_no_part_of_the_step(monkeypatch):
    # A busy machine may give a worker no core for many milliseconds.
    monkeypatch.setattr(arms, "RESTS_S", 0.3)
    monkeypatch.setattr(arms, "FILLING_S", PATIENCE_S)
    loader = DataLoader(slow(0.1), batch_size=4, num_workers=1, persistent_workers=True)
    loop = Loop(loader, lambda batch: time.sleep(0.05))
    batches = iter(loader)
    loop.keep(next(batches))
    assert loop.compute(0.2).cpu_s < 0.02
    ends_s = time.monotonic() + PATIENCE_S
    assert next(arms.in_blocks(["alone"], ends_s, lambda *_: None)) == "alone"
    before_s = own_cpu_s()
    time.sleep(0.2)
    assert own_cpu_s() - before_s < 0.1
    batches._shutdown_workers()


class Pinned(dict):
    """A batch that takes 20 ms of CPU to copy into pinned memory."""

    def pin_memory(self):
        compute(0.02, time.thread_time)
        return self


def pinned(samples):
    return Pinned(image=torch.stack(samples))


@pytest.fixture
def pinning_loader(monkeypatch):
    # Torch starts the thread that pins only where there is an accelerator.
    for name in ("current_accelerator", "set_device_index"):
        monkeypatch.setattr(torch.accelerator, name, lambda *_: None)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    samples = [torch.zeros(3, 8, 8)] * 200
    return DataLoader(samples, batch_size=4, num_workers=1, pin_memory=True, collate_fn=pinned)


def test_the_cpu_time_of_the_thread_that_pins_is_counted_apart(pinning_loader):
    with loaders.copied(pinning_loader) as twin:
        stretch = Loop(twin, print).run("alone", twin, 0.0)
    assert 0.015 < stretch.pinning_s < 0.05
    with loaders.copied(pinning_loader, pin_memory=False) as twin:
        assert Loop(twin, print).run("alone", twin, 0.0).pinning_s is None


@pytest.mark.alone
def test_a_saturated_thread_that_pins_is_the_bottleneck(pinning_loader):
    found = diagnose(pinning_loader, do_nothing)
    assert (found.broken, found.bottleneck) == ("", "pinning")
    assert found.remedies[0].name == "no pinning"
    assert found.remedies[0].ci_high < 1
    assert "pin_memory=False" in found.remedies[0].change
    assert "waiting for the thread that pins batches" in str(found)


class Cold:
    """Two batches, which take long in the first epoch alone."""

    def __init__(self):
        self.waits_s = iter([0.3])

    def __len__(self):
        return 2

    def __iter__(self):
        time.sleep(next(self.waits_s, 0.0))
        return iter([1, 2])


def test_a_cold_epoch_is_the_first_alone():
    loader = Cold()
    assert Loop(loader, do_nothing).run("cold", loader, 0.0, once=True).epoch_s > 0.3


def test_an_epoch_is_measured_cold_or_a_note_says_why_not(tmp_path):
    path = tmp_path / "pixels"
    path.write_bytes(bytes(1_000_000))
    found = diagnose(DataLoader(slow(0), batch_size=4), do_nothing, files=[path])
    assert found.broken == ""
    is_cold = "loading and computing, files evicted before" in found.table().index
    assert is_cold or "Note: cold was not measured: " in found.details()
    assert "give files for that" not in found.details()


def batches(count=None):
    number = 0
    while count is None or number < count:
        yield {"image": torch.full((2, 3), float(number)), "boxes": [np.zeros((1, 4))]}
        number += 1


def test_a_generator_that_ends_early_leaves_what_was_measured():
    found = diagnose(batches(40), lambda batch: time.sleep(0.002))
    assert "give one that can be iterated again" in found.broken
    assert "Diagnosis stopped: loader must yield batches in every epoch, got none" in str(found)
    assert "first steps, loading and computing: " in str(found)


def broken(_, i):
    if i == 21:
        raise OSError("disk on fire")
    return pixels(i)


class Foreign:
    """A loader of another library's, with workers of its own."""

    num_workers = 2

    def __iter__(self):
        raise OSError("disk on fire")


def killed(_, i, told=None):
    """Make a sample; end the worker, after writing a file."""
    if i == 21 and torch.utils.data.get_worker_info():
        if told is not None:
            told.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return pixels(i)


def give_none(samples):
    return None


@pytest.mark.usefixtures("dying_workers")
@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(Made(broken), batch_size=4), "OSError: disk on fire"),
        (DataLoader(Made(broken), batch_size=4, num_workers=1), "OSError: disk on fire"),
        (Foreign(), "OSError: disk on fire"),
        (DataLoader(Made(killed), batch_size=4, num_workers=1), "a loader worker ended"),
        (DataLoader(Stream(tuple)), "loader must yield at least one batch, got an empty one"),
        (
            DataLoader(slow(0), collate_fn=give_none),
            "loader must yield batches, got None; does its collate_fn return one?",
        ),
    ],
    ids=["raises", "in a worker", "of another library", "worker dies", "empty", "yields None"],
)
def test_a_loader_that_breaks_is_told_of_in_one_line(loader, said):
    found = diagnose(loader, do_nothing)
    assert said in found.broken  # and not that it was waited for in vain
    assert "\n" not in found.broken
    assert str(found).startswith("Diagnosis stopped: ")
    assert found.remedies == ()


@pytest.mark.usefixtures("dying_workers")
def test_a_dead_worker_is_noticed_also_outside_the_main_thread(tmp_path):
    # There torch's handler of a dead child does not interrupt the wait.
    found, told = [], tmp_path / "killed"
    loader = DataLoader(Made(partial(killed, told=told)), batch_size=4, num_workers=2)

    def run():
        found.append(diagnose(loader, do_nothing))
        found.append(time.time())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)
    assert "a loader worker ended" in found[0].broken
    assert found[1] - told.stat().st_mtime < STALL_S  # from when on nothing is waited for


def only_here(_, i):
    if torch.utils.data.get_worker_info():
        raise OSError("no connection in a worker")
    return compute(0.004) or pixels(i)


def test_a_change_that_breaks_the_loader_is_named_on_the_screen():
    found = diagnose(DataLoader(Made(only_here), batch_size=4), do_nothing)
    assert not found.broken
    said = "num_workers=2) could not be tried: OSError: no connection in a worker (in a loader"
    assert said in str(found)


def try_workers(*counts):
    """Try some numbers of workers; return what was proposed, and what came of it."""
    loop = Loop(DataLoader(slow(0), batch_size=4), do_nothing)
    budget = Budget(BUDGET_S, time.monotonic() + 60, lambda *_: None)
    facts = measure.collect(loop, budget)
    usual = {"name": "more workers", "bottleneck": "workers", "reason": "", "change": "the same"}
    proposed = tuple(
        rules.Remedy(**usual, subject=str(count), arguments={"num_workers": count})
        for count in counts
    )
    return proposed, *try_remedies(loop, bounds_of(facts), proposed, budget, ())


def test_each_trial_has_a_time_of_its_own_whatever_its_text():
    _, remedies, _ = try_workers(1, 2)
    one, two = (remedy.measured for remedy in remedies)
    assert None not in (one, two) and one != two


def test_what_was_timed_once_counts_as_left_out_and_not_as_measured(monkeypatch):
    # A second block that ends before its turn.
    monkeypatch.setattr(verify, "in_blocks", lambda arms, *_: [*arms, *verify.AS_IS])
    proposed, remedies, facts = try_workers(1)
    assert remedies == proposed
    assert [*map(str, facts.left_out)] == ["trials of more workers"]


def test_a_step_that_fails_leaves_what_was_measured():
    def step(batch):
        if step.calls > 40:
            raise FloatingPointError("loss is nan")
        step.calls += 1
        time.sleep(0.01)

    step.calls = 0
    found = diagnose(DataLoader(slow(0, 16), batch_size=4), step)
    assert found.broken == "FloatingPointError: loss is nan"
    assert "What was measured until then is below." in str(found)
    # Nothing was looked into or tried.
    assert "loading alone" in str(found)
    assert not any(words in str(found).lower() for words in ("not explained", "no change"))


def test_a_loader_that_stalls_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(arms, "STALL_S", 0.3)

    def stalling():
        yield torch.zeros(2)
        time.sleep(60)

    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)  # the user's own
    found = diagnose(stalling(), do_nothing)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0.0)
    assert "waited 0.3 s for loader to yield a batch, got nothing" in found.broken
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert 0 < left_s < PATIENCE_S


@pytest.mark.needs_cuda
@pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.detach], ids=["waits", "goes on"])
def test_what_waits_for_a_gpu_is_counted_and_what_ran_on_it_is_timed(read):
    picture = torch.ones(2048, 2048, device="cuda")

    def run():
        for _ in range(20):
            read((picture @ picture).sum())
        return 20

    seen = find_device(None).profile(run)
    assert (seen.syncs > 0.9) == (read is torch.Tensor.item)
    assert 0 < seen.device_s < 1
    assert 0 < seen.waited_s < 1


@pytest.mark.parametrize(("total", "free", "said"), [
    (40_000_000, 30_000_000, "shared memory"),  # five batches of 10 MB may be on their way
    (90_000_000, 5_000_000, "shared memory"),
    (90_000_000, 80_000_000, ""),
])  # fmt: skip
def test_a_stall_for_want_of_shared_memory_is_told_from_others(monkeypatch, total, free, said):
    room = shutil._ntuple_diskusage(total, total - free, free)
    monkeypatch.setattr(shared_memory, "usage", lambda: room)
    facts = Facts(
        arguments={"batch_size": 1, "num_workers": 2},
        batch=Batch(bytes_by_dtype={"float32": 10_000_000}),
        broken="waited 30 s for loader to yield a batch",
    )
    found = conclude(facts, None, ())
    assert found.bottleneck == said
    assert ("docker run --shm-size=2g" in screen(found)) == bool(said)
