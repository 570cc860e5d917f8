"""A watched loop trains bit for bit as before, and says where its time goes."""

import io
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import labkit as lab
from labkit.diagnosis import phase_words
from labkit.diagnosis.phases import EpochPhases
from labkit.diagnosis.watch import Log, Notebook, Terminal, Watch
from tests.diagnosis.test_phases import deliver, installed, train, training
from tests.fake_clock import FakeClock


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
    watched = Watch([torch.ones(3, 2)] * 4, None, t.clock)
    assert watched.phases is None
    for epoch in range(2):
        for step, batch in enumerate(watched):
            assert (watched.phases.ended, watched.phases.steps) == ("running", step + 1)
            train(t, batch)
        assert len(watched.epochs) == epoch + 1
    assert [epoch.timed_steps for epoch in watched.epochs] == [3, 3]
    assert watched.epochs[1] == watched.phases


def test_a_generator_can_be_watched_once_and_says_so_the_second_time():
    file = io.StringIO()
    watched = Watch((x for x in range(3)), Log(file), FakeClock())
    assert watched
    assert list(watched) == [0, 1, 2]
    assert list(watched) == []
    assert "The loader gave no batch: a generator is used up after one epoch" in file.getvalue()


@pytest.mark.parametrize("loader", [5, None, nn.Linear(1, 1)])
def test_what_is_no_iterable_is_refused_at_once(loader):
    with pytest.raises(ValueError, match=r"^loader must be an iterable of batches, got \S"):
        lab.watch(loader)


def test_a_loop_can_watch_another_inside():
    t = training()
    outer_file, inner_file = io.StringIO(), io.StringIO()
    for batch in Watch([torch.ones(3, 2)] * 3, Log(outer_file), t.clock):
        train(t, batch)
        with torch.no_grad():
            for held_out in Watch([torch.ones(3, 2)] * 2, Log(inner_file), t.clock):
                t.model(held_out)
    assert inner_file.getvalue().count("epoch 1: 2 steps") == 3
    assert outer_file.getvalue().count("epoch 1: 3 steps") == 1
    assert installed(t.model) == [0] * 5


class Tty(io.StringIO):
    def isatty(self):
        return True


def on_screen(written):
    """What a terminal shows in the end: each line after its last carriage return, over the rest."""
    lines = []
    for line in written.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def watch_on(screen, steps=4, loader=None):
    t = training()
    for batch in Watch(loader or deliver(t.clock, steps), screen, t.clock):
        train(t, batch)


def test_a_terminal_shows_a_line_that_is_redrawn_and_then_the_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    file = Tty()
    watch_on(Terminal(file), loader=[torch.ones(3, 2)] * 3)
    drawn = [part.rstrip() for part in file.getvalue().split("\n")[0].split("\r")]
    first, second, third = drawn[1:4]
    assert first == "1/3: first batch 0 s, first step 6.38 s"
    assert second == (
        "2/3, 6 s left: wait 0 %, transfer 4 %, forward 31 %, backward 63 %, rest 2 %"
    )
    assert third == second.replace("2/3, 6 s left", "3/3")
    assert on_screen(file.getvalue())[0].startswith("epoch 1: 3 steps in 19.1 s; ")


def test_a_log_gets_the_table_only():
    file = io.StringIO()
    watch_on(Log(file))
    assert file.getvalue().splitlines() == [
        "epoch 1: 4 steps in 27.5 s; apart from the table: start-up 0 s, first batch 500 ms, "
        "first step 6.38 s, shutdown 0 s",
        "                      host, per step",
        "wait                 500 ms    7.3 %",
        "transfer             250 ms    3.6 %",
        "forward              2.00 s   29.1 %",
        "backward+optimizer   4.00 s   58.2 %",
        "rest                 125 ms    1.8 %",
        f"- {phase_words.NO_CUDA}",
    ]


def test_a_notebook_has_one_output_per_epoch_that_is_updated_in_place():
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    class Publisher(DisplayPublisher):
        def publish(self, data, *, transient=None, update=False, **_):
            published.append((transient["display_id"], update, data["text/plain"]))

    published = []
    shell = InteractiveShell.instance(display_pub_class=Publisher)
    try:
        watch_on(Notebook())
    finally:
        shell.history_manager.end_session()
        InteractiveShell.clear_instance()
    ids, updates, texts = zip(*published)
    assert len(set(ids)) == 1
    assert updates == (False, True, True, True, True)
    assert texts[1].startswith("2 steps: wait 7 %")
    assert texts[-1].startswith("epoch 1: 4 steps in")


def test_silence_prints_nothing(capsys):
    assert list(lab.watch([1, 2], show=False)) == [1, 2]
    assert capsys.readouterr() == ("", "")


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
        "device_steps": 0, "waits_s": (), "none_batches": 0,
    }  # fmt: skip
    return EpochPhases(**{**known, **changes})


def test_cudas_clock_stands_beside_the_hosts_and_says_where_that_misleads():
    of_device = {"transfer": 0.5, "forward": 1.5, "backward": 2.5, "rest": 0.0, "step": 4.5}
    shown = phase_words.text(
        epoch(device_s={"wait": 0.5, **of_device}, device_steps=50), 2
    ).splitlines()
    assert shown[1:7] == [
        "                       host, per step     CUDA, per step",
        "wait                 10.0 ms   10.0 %   10.0 ms   10.0 %",
        "transfer             10.0 ms   10.0 %   10.0 ms   10.0 %",
        "forward              10.0 ms   10.0 %   30.0 ms   30.0 %",
        "backward+optimizer   10.0 ms   10.0 %   50.0 ms   50.0 %",
        "rest                 60.0 ms   60.0 %       0 s    0.0 %",
    ]
    assert shown[-1] == (
        "- The host's clock misleads: backward is 50.0 % of CUDA's time and 10.0 % of "
        "the host's, which only queues work there. It waits for that work in rest: 60.0 % of the "
        "host's time, 0.0 % of CUDA's."
    )
