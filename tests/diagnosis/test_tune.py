"""Tuning: what the search chooses of made-up times, and real loaders, scripts and settings."""

import json
import random
import re
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import labkit as lab
from labkit.analysis.compare import Comparison
from labkit.diagnosis import arms, loader_search
from labkit.diagnosis.arms import Loop, Stopped
from labkit.diagnosis.loader_search import Arguments, Trials, Tuned, search
from labkit.diagnosis.tune import LoaderTrials
from labkit.machine import hardware, shared_memory
from tests import warm_python
from tests.diagnosis.json_keys import undocumented
from tests.diagnosis.made_sets import Made, Stream
from tests.diagnosis.scripts import TRAINING
from tests.fake_clock import FakeClock

EQUAL = {"no difference", "no gain shown"}


# --- made-up times ----------------------------------------------------------------------------


@dataclass
class FakeTrials(Trials):
    """Trials whose times are computed."""

    epoch_s: object
    now: Arguments = Arguments(0)  # noqa: RUF009 - it cannot be changed
    changeable: frozenset = frozenset(Arguments._fields)
    most_workers: int = 4
    trial_s: float = 0.0
    no_room: object = lambda arguments: ""
    tried: list = field(default_factory=list)
    steps: list = field(default_factory=list)

    def why_not(self, arguments):
        return self.no_room(arguments)

    @contextmanager
    def opened(self, candidates):
        draw = random.Random(1)
        self.steps.append(list(candidates))

        def trial(arguments):
            assert arguments in candidates
            self.tried.append(arguments)
            return self.epoch_s(arguments) * draw.lognormvariate(0, 0.005)

        yield trial


def search_in(trials, budget_s=60.0):
    return search(trials, budget_s=budget_s, say=lambda what: None)


def tuned(epoch_s, budget_s=60.0, **how):
    return search_in(FakeTrials(epoch_s, **how), budget_s)


def by_workers(arguments):
    """Every worker up to three helps."""
    return 1 / max(min(arguments.num_workers, 3), 0.9)


def test_the_fewest_of_the_fastest_workers_are_chosen():
    result = tuned(by_workers)
    assert result.changes == {"num_workers": 3}
    assert result.line == "DataLoader(..., num_workers=3)"
    assert result.times_as_fast == pytest.approx(3 / 0.9, rel=0.02)
    low, high = result.interval
    assert low < result.times_as_fast < high


def test_the_screen_says_what_is_faster_and_what_is_not_worth_changing():
    first, line, unchanged, last = str(tuned(by_workers)).splitlines()
    assert re.fullmatch(r"3\.\d\d times as fast \[3\.\d\d, 3\.\d\d\]:", first)
    assert line == "DataLoader(..., num_workers=3)"
    no_gain = "(no difference|no gain shown)"
    words = f"Not worth changing: threads of a worker: {no_gain}; prefetch_factor: {no_gain}; "
    assert re.match(words, unchanged)
    assert "num_workers" not in unchanged
    assert re.fullmatch(r"\d+ sets of arguments in \d+ trials, 0 s\.", last)


def test_what_is_slower_is_not_called_equal():
    result = tuned(by_workers, now=Arguments(3))
    assert result.changes == {} and result.line == ""
    assert result.unchanged["num_workers"] in EQUAL  # 4

    def epoch_s(arguments):
        return 2.0 - (arguments.num_workers > 0) + 0.5 * (arguments.prefetch_factor > 2)

    slower = tuned(epoch_s, now=Arguments(1), most_workers=1)
    assert re.match(r"8 takes 1\.\d+ \[.*\] times as long", slower.unchanged["prefetch_factor"])


def test_nothing_is_changed_where_nothing_helps():
    result = tuned(lambda arguments: 1.0, now=Arguments(2))
    assert result.changes == {}
    assert str(result).startswith("Nothing is worth changing: num_workers=0 is 1.00 times as fast")
    assert set(result.unchanged.values()) <= EQUAL


def test_what_has_no_room_is_left_out_with_its_reason():
    def no_room(arguments):
        return "no room" if arguments.num_workers * arguments.prefetch_factor > 6 else ""

    trials = FakeTrials(by_workers, no_room=no_room)
    result = search_in(trials)
    assert result.changes == {"num_workers": 3}
    assert all(each.num_workers * each.prefetch_factor <= 6 for each in trials.tried)
    assert "Not tried, num_workers=4, persistent_workers=True, …: no room" in str(result)


def test_a_candidate_that_fails_is_left_out():
    def epoch_s(arguments):
        if arguments.num_workers > 1:
            raise OSError("too many open files")
        return by_workers(arguments)

    result = tuned(epoch_s)
    assert result.changes == {"num_workers": 1}
    assert "OSError: too many open files" in str(result)


# What is tried -> seconds of an epoch, the arguments now, and what is changed.
CHANGED = {
    "several arguments are changed together": (
        lambda a: by_workers(a) * 0.8**a.persistent_workers * 0.8 ** (a.prefetch_factor > 2)
        * 0.9**a.pin_memory,
        Arguments(0),
        {"num_workers": 3, "prefetch_factor": 8, "persistent_workers": True, "pin_memory": True},
    ),
    "the order is kept where batches ahead help as much": (
        lambda a: 0.6 if a.num_workers > 1 and (not a.in_order or a.prefetch_factor > 2) else 1.0,
        Arguments(0), {"num_workers": 2, "prefetch_factor": 8},
    ),
    "the order is changed where nothing else helps": (
        lambda a: 1.0 if a.num_workers < 2 or a.in_order else 0.6,
        Arguments(0), {"num_workers": 2, "in_order": False},
    ),
    "fewer batches ahead suit a free order": (
        lambda a: {2: 0.6, 4: 0.5}.get(a.prefetch_factor, 0.7)
        if a.num_workers > 1 and not a.in_order else 1.0,
        Arguments(0), {"num_workers": 2, "in_order": False, "prefetch_factor": 4},
    ),
    "workers that take long to start are kept": (
        lambda a: by_workers(a) + (a.num_workers > 0 and not a.persistent_workers),
        Arguments(0), {"num_workers": 3, "persistent_workers": True},
    ),
    "no workers take their arguments along": (
        lambda a: 1.0 + a.num_workers, Arguments(2, prefetch_factor=8, persistent_workers=True),
        {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("epoch_s", "now", "changes"), CHANGED.values(), ids=CHANGED)
def test_what_is_fastest_is_chosen(epoch_s, now, changes):
    assert tuned(epoch_s, now=now).changes == changes


def test_only_what_can_be_changed_is_tried():
    trials = FakeTrials(by_workers, changeable=frozenset({"num_workers"}))
    search_in(trials)
    assert {each._replace(num_workers=0) for each in trials.tried} == {Arguments(0)}


def test_a_budget_for_no_round_is_refused():
    message = "budget_s must be at least 69 to try 2 sets of arguments once, as each takes 12.0 s"
    with pytest.raises(Stopped, match=re.escape(message)):
        tuned(by_workers, trial_s=12.0)


@pytest.mark.parametrize(
    ("cores", "trial_s", "counts"),
    [
        (8, 0.5, [0, 1, 2, 3, 4, 6, 8]),
        (8, 1.9, [0, 1, 2, 4, 8]),
        (32, 0.5, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]),
        (32, 1.0, [0, 1, 2, 4, 8, 16, 32]),
        (64, 2.9, [0, 1, 8, 64]),
        (64, 9.0, [0, 64]),
    ],
)
def test_fewer_numbers_of_workers_are_tried_where_a_trial_is_long(cores, trial_s, counts):
    trials = FakeTrials(by_workers, most_workers=cores, trial_s=trial_s)
    result = search_in(trials)
    first_step = trials.steps[0]
    assert [*dict.fromkeys(each.num_workers for each in first_step)] == counts
    assert len(first_step) * trial_s <= 21.0
    # The fewest workers of the fastest, of those that were tried.
    assert result.changes["num_workers"] == min(n for n in counts if n >= 3)
    is_thinned = not {3, cores} <= {*counts}
    assert ("no time for it in budget_s=60; " in str(result)) == is_thinned


def test_the_number_of_workers_now_is_tried_however_long_a_trial_is():
    trials = FakeTrials(by_workers, now=Arguments(6), most_workers=64, trial_s=6.9)
    search_in(trials)
    assert [each.num_workers for each in trials.steps[0]] == [0, 6, 64]


def test_a_gain_that_is_not_certain_says_so():
    compared = Comparison(log_ratios=(-0.5, 0.1, -0.4, -0.1))
    result = Tuned(changes={"num_workers": 3}, line="L", compared=compared, budget_s=60.0)
    first, line, *_ = str(result).splitlines()
    assert re.fullmatch(
        r"1\.25 times as fast \[0\.\d\d, 1\.\d\d\]; the interval includes 1: more time may show "
        r"it, budget_s=120:",
        first,
    )
    assert line == "L"


@pytest.mark.parametrize(
    ("logs", "first"),
    [
        (
            (0.01, 0.012, 0.011, 0.01),
            "Nothing is worth changing: num_workers=2 is 0.99 times as fast [0.99, 0.99], "
            "not more than 3 % faster.",
        ),
        (
            (0.3, -0.3, 0.2, -0.24),
            "Inconclusive: num_workers=2 is 1.01 times as fast [0.62, 1.64]; more time may show "
            "it, budget_s=120.",
        ),
        (
            (-0.5,),
            "Inconclusive: num_workers=2 was the fastest, and there was no time to compare it with "
            "the loader as it is; more time may show it, budget_s=120.",
        ),
    ],
)
def test_nothing_is_worth_changing_only_where_the_interval_shows_it(logs, first):
    compared = Comparison(log_ratios=logs)
    result = Tuned(tried="num_workers=2", compared=compared, budget_s=60.0)
    assert str(result).splitlines()[0] == first


def test_where_the_loader_as_it_is_was_the_fastest_nothing_is_worth_changing():
    first = "Nothing is worth changing: nothing that was tried is shown to be faster."
    assert str(Tuned(budget_s=60.0)).splitlines()[0] == first


# Seconds of a trial: of the arguments, whatever they are; slow workers; slow without any.
TRIALS_S = {
    "all alike": lambda arguments: 3.0,
    "slow workers": lambda arguments: 8.0 if arguments.num_workers else 1.0,
    "slow without": lambda arguments: 1.0 if arguments.num_workers else 12.0,
    "slow with several": lambda arguments: 20.0 if arguments.num_workers > 2 else 1.0,
    "slow to start": lambda arguments: 1.0 if arguments.persistent_workers else 15.0,
    "one takes all": lambda arguments: 1.0 if arguments.num_workers else 90.0,
}


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(loader_search, "time", SimpleNamespace(monotonic=clock.now))
    return clock


def after(trial_s, clock):
    """Times of trials that take some seconds each."""
    return lambda arguments: clock.sleep(trial_s) or by_workers(arguments)


@pytest.mark.parametrize("cores", [2, 16])
@pytest.mark.parametrize("takes_s", TRIALS_S.values(), ids=TRIALS_S)
def test_the_search_ends_with_its_budget_or_a_trial_later(clock, takes_s, cores):
    def epoch_s(arguments):
        clock.sleep(takes_s(arguments))
        longest_s.append(takes_s(arguments))
        return by_workers(arguments)

    longest_s = []
    result = tuned(epoch_s, most_workers=cores)
    assert clock.now() <= 60 + max(longest_s)
    assert result.took_s == clock.now()
    assert result.trials == len(longest_s)
    assert str(result).splitlines()[0]  # whatever came of it


def test_time_is_kept_for_comparing_the_best_with_the_loader_as_it_is(clock):
    result = tuned(after(3.0, clock), most_workers=2)
    assert result.changes == {"num_workers": 2}
    assert result.compared.blocks >= 4
    reason = r"Not tried, .*: no time for it in budget_s=60; \d+ is enough for all"
    assert re.search(reason, str(result))


def test_the_budget_that_is_called_enough_is_enough(clock):
    trial = after(3.0, clock)
    short = str(tuned(trial, most_workers=2))
    enough_s = max(int(number) for number in re.findall(r"; (\d+) is enough for all", short))
    assert "no time" not in str(tuned(trial, budget_s=enough_s, most_workers=2))


def test_without_time_to_compare_nothing_is_recommended(clock):
    def epoch_s(arguments):
        clock.sleep(50.0 if arguments.num_workers else 1.0)
        return by_workers(arguments)

    result = tuned(epoch_s, most_workers=2)
    assert result.changes == {} and result.line == ""
    assert result.times_as_fast is None and result.interval is None
    assert "there was no time to compare it with the loader as it is" in str(result)


def test_a_noisy_search_does_not_call_anything_equal():
    inconclusive = 0
    for seed in range(20):
        draw = random.Random(seed)
        result = tuned(lambda arguments: draw.lognormvariate(0, 0.5))  # noqa: B023
        if result.compared.blocks and not result.changes:
            is_shown = result.interval[1] <= 1.03
            assert str(result).startswith("Nothing is" if is_shown else "Inconclusive: ")
            inconclusive += not is_shown
            assert is_shown or "num_workers" not in result.unchanged or "num_w" not in result.tried
    assert inconclusive


def test_it_is_written_as_json():
    known = json.loads(json.dumps(tuned(by_workers).as_json()))
    assert known["changes"] == {"num_workers": 3}
    assert known["interval"][0] < known["times_as_fast"] < known["interval"][1]
    assert known["broken"] == ""
    assert undocumented(known) == set()


# --- real loaders -----------------------------------------------------------------------------


@pytest.fixture
def short_trials(monkeypatch):
    monkeypatch.setattr("labkit.diagnosis.diagnose.LEAST_BUDGET_S", 0.5)
    monkeypatch.setattr("labkit.diagnosis.tune.SHORTEST_STRETCH_S", 0.1)
    monkeypatch.setattr(arms, "FEWEST_STRETCH_STEPS", 4)
    monkeypatch.setattr(loader_search, "FEWEST_PAIRS", 3)


def waiting(wait_s=0.02, shape=(4,)):
    """Samples that come late and need no core."""
    return Made(lambda _, i: time.sleep(wait_s) or torch.zeros(shape), 200)


def step(batch):
    time.sleep(0.001)


def tune(data, step=step, budget_s=4, **how):
    return lab.tune(DataLoader(data, 2), step, budget_s=budget_s, progress=False, **how)


@pytest.mark.alone
def test_samples_that_wait_get_more_workers(short_trials):
    loader = DataLoader(waiting(), batch_size=2)
    result = lab.tune(loader, step, budget_s=8, progress=False)
    assert result.changes["num_workers"] == hardware.cores()
    assert result.interval[0] > 1.3
    assert loader.num_workers == 0  # as it was
    assert torch.multiprocessing.active_children() == []


@pytest.mark.alone
def test_a_slow_step_needs_no_change(short_trials):
    assert tune(waiting(0.0), lambda batch: time.sleep(0.02), budget_s=8).changes == {}


def test_the_model_and_random_numbers_stay_as_they_were(short_trials):
    model = torch.nn.Linear(4, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(batch):
        model(batch).mean().backward()
        optimizer.step()

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    loader = DataLoader(waiting(0.001), batch_size=2, shuffle=True)
    how = {"model": model, "optimizer": optimizer, "progress": False}
    lab.tune(loader, train, budget_s=5, **how)
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def limit_shared_memory(monkeypatch, free_bytes):
    usage = shutil._ntuple_diskusage(free_bytes, 0, free_bytes)
    monkeypatch.setattr(shared_memory, "usage", lambda: usage)


def test_workers_that_do_not_fit_into_shared_memory_are_not_tried(short_trials, monkeypatch):
    limit_shared_memory(monkeypatch, 10_000_000)
    result = tune(waiting(0.001, shape=(500_000,)))  # 4 MB a batch
    assert "/dev/shm must have room for 3 batches of 4.0 MB" in str(result)
    assert set(result.measured) == {"as it is"}


def test_workers_that_do_not_fit_into_memory_are_not_tried(short_trials, monkeypatch):
    monkeypatch.setattr(hardware, "free_memory_bytes", lambda: 1000)
    result = tune(waiting(0.001))
    reason = r"num_workers=1, .*: 1 worker would take .* MB of memory, of which 1.0 KB is free"
    assert re.search(reason, str(result))


def why_not_one_worker(sample_floats, ranks, monkeypatch):
    """Return why one worker cannot be tried of each of some ranks."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    loop = Loop(DataLoader(waiting(0.001, shape=(sample_floats,)), batch_size=2), step)
    return LoaderTrials(loop, device=None, budget_s=4).why_not(Arguments(1))


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ("1", ""),
        ("4", "/dev/shm must have room for 12 batches of 4.0 MB, got 20 MB free of 20 MB; "),
    ],
)
def test_the_ranks_of_a_machine_share_its_shared_memory(ranks, reason, monkeypatch):
    limit_shared_memory(monkeypatch, 20_000_000)
    why_not = why_not_one_worker(500_000, ranks, monkeypatch)
    assert why_not.startswith(reason) and bool(why_not) == bool(reason)


def test_the_ranks_of_a_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(hardware, "free_memory_bytes", lambda: 1000)
    reasons = [why_not_one_worker(5_000_000, ranks, monkeypatch) for ranks in ("1", "4")]
    one, four = (re.search(r"would take ([\d.]+) ([MG])B of memory", text) for text in reasons)
    one, four = (float(n) * {"M": 1e6, "G": 1e9}[unit] for n, unit in (one.groups(), four.groups()))
    assert four / one == pytest.approx(4, rel=0.3)
    assert reasons[0].startswith("1 worker would take ")
    assert reasons[1].startswith("1 worker in each of 4 processes would take ")


# --- what cannot be tuned ---------------------------------------------------------------------


class Uncopied(DataLoader):
    def __copy__(self):
        raise TypeError("holds a connection")


class Once(IterableDataset):
    """Its iterator is itself."""

    def __iter__(self):
        return self

    def __next__(self):
        return torch.zeros(4)


class OneGenerator(IterableDataset):
    def __init__(self):
        self.samples = iter([torch.zeros(4)] * 100)

    def __iter__(self):
        return self.samples


def fail(batch):
    raise KeyError("image")


@pytest.mark.parametrize(
    ("loader", "step", "message"),
    [
        ([1, 2], step, "loader must be torch's DataLoader or a subclass of it, got [1, 2]; "),
        (DataLoader(Once()), step, "loader must have a data set that can be read again, got Once"),
        (DataLoader(OneGenerator()), step, "can be read again, got OneGenerator, whose iter() re"),
        (Uncopied(waiting()), step, "one that can be copied, got TypeError: holds a connection; "),
        (DataLoader(waiting()), None, "step must be a function of a batch, got None; "),
        (lab.Settings(), step, "step must be left out for settings, got <function ste"),
    ],
)
def test_a_loader_that_cannot_be_tuned_is_one_line(loader, step, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        lab.tune(loader, step, progress=False)
    assert "\n" not in str(error.value)


def test_too_short_a_budget_is_refused():
    with pytest.raises(ValueError, match="budget_s must be at least 5, got 1; the default is 60"):
        lab.tune(DataLoader(waiting()), step, budget_s=1)
    message = r"budget_s must be at least \d+ to try \d+ sets"
    with pytest.raises(RuntimeError, match=message) as short:
        lab.tune(DataLoader(waiting(0.3)), step, budget_s=5, progress=False)
    assert "\n" not in str(short.value)


def test_a_step_that_fails_is_one_line():
    message = "step must work on the loader's batches, got KeyError: 'image'; try step(next("
    with pytest.raises(RuntimeError, match=re.escape(message)) as error:
        lab.tune(DataLoader(waiting()), fail, progress=False)
    assert isinstance(error.value.__cause__, KeyError)


def broken(_, i):
    raise ValueError("broken file")


def test_a_loader_that_fails_is_one_line():
    message = "loader must yield batches, got ValueError: broken file"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        lab.tune(DataLoader(Made(broken)), step, progress=False)


def test_workers_that_would_repeat_the_samples_are_not_tried(short_trials):
    repeated = Stream(lambda: (torch.full((4,), float(n)) for n in range(200)))
    assert "each worker would yield all samples of this IterableDataset" in str(tune(repeated))


# --- scripts and settings ---------------------------------------------------------------------

EPOCHS = """
for epoch in range(100):
    for batch in loader():
        step(batch)
    print("an epoch ended")
"""


def tune_script(folder, text, *words):
    script = folder / "train.py"
    script.write_text(text)
    return warm_python.run("-m", "labkit.diagnose", "--tune", *words, script, cwd=folder)


@pytest.mark.alone
def test_a_script_is_tuned_as_it_is(tmp_path):
    saved, text = tmp_path / "tuned.json", TRAINING.replace("sleep(0.002)", "sleep(0.005)") + EPOCHS
    done = tune_script(tmp_path, text, "--budget-s", "15", "--json", saved)
    assert done.returncode == 0, done.stderr[-2000:]
    cores = hardware.cores()
    assert f"DataLoader(..., num_workers={cores}" in done.stdout
    assert re.search(r"^[\d.]+ times as fast \[[\d.]+, [\d.]+\]:$", done.stdout, re.MULTILINE)
    assert "an epoch ended" not in done.stdout
    known = json.loads(saved.read_text())
    assert known["changes"]["num_workers"] == cores
    assert known["interval"][0] > 1.3


def test_a_script_whose_budget_is_too_short_gets_one_line(tmp_path):
    text = TRAINING.replace("sleep(0.002)", "sleep(0.3)") + EPOCHS
    done = tune_script(tmp_path, text, "--budget-s", "5")
    assert done.returncode == 1
    assert re.fullmatch(
        r"Tuning stopped: budget_s must be at least \d+ to try \d+ sets of arguments once, as each "
        r"takes [\d.]+ s, got 5; give it more seconds\.\n",
        done.stdout,
    )
    assert "Traceback" not in done.stderr


def test_a_script_that_cannot_be_tuned_gets_one_line(tmp_path):
    text = TRAINING.replace("(Dataset)", "(torch.utils.data.IterableDataset)") + EPOCHS
    text = text.replace("__len__", "__iter__").replace("return 400", "return self")
    text = text.replace("__getitem__(self, i)", "__next__(self, i=0)")
    done = tune_script(tmp_path, text, "--budget-s", "5")
    assert done.returncode == 1
    assert done.stdout.startswith("Tuning stopped: loader must have a data set that can be read")
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_settings_are_tuned_by_the_same_search(photos, tmp_path, monkeypatch):
    given = lab.Settings(
        data=str(photos), images=16, batch_size=4, input_px=64, num_workers=0, epochs=1,
        cache="warm", gpu_images_per_s="resnet50_h100", device="simulated",
    )  # fmt: skip
    # No end that comes by the clock: a trial takes seconds on a busy machine.
    monkeypatch.setattr(loader_search, "MOST_PAIRS", 4)
    result = lab.tune(given, results=tmp_path, budget_s=100, progress=False)
    assert result.broken == ""
    assert {"as it is", "num_workers=1, persistent_workers=True"} <= set(result.measured)
    assert result.settings == replace(given, **result.changes)
    assert [*tmp_path.iterdir()] == []  # nothing is kept


@pytest.mark.parametrize(
    ("logs", "words"),
    [
        ((0.0, 0.001, -0.001, 0.0), "no difference"),
        ((0.0,), "no gain shown"),  # a single block shows nothing
        ((0.1, -0.1, 0.05, -0.05), "no gain shown"),
        ((0.2, 0.21, 0.2, 0.19), "8 takes 1.221"),
    ],
)
def test_equal_is_only_said_where_it_is_shown(logs, words):
    assert loader_search.effect(8, Comparison(log_ratios=logs)).startswith(words)
