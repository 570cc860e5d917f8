"""What watch says of trainings whose waits are planted; nothing else may run beside them."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import warm_python

pytestmark = pytest.mark.alone
SCRIPT = Path(__file__).with_name("trainings.py")
# The sleep of a step is not all of it: computing and waking up take some milliseconds.
SHARE = 0.08

# Name -> the share of the training's time that it waits for data.
WAITS = {
    "background_generator": 10 / 30,
    "generator_of_a_loader": 10 / 30,
    "executor": 10 / 30,
    "evaluation_between_epochs": 20 / 30,
    "slow_validation": 2 / 42,
    "rebatching": 40 / 50,
    "endless_loader": 20 / 30,
    "kept_iterator": 20 / 30,
    "two_loaders": 30 / 60,
    "compiling": 20 / 30,
    "in_a_thread": 20 / 40,
    "accumulation": 5 / 10,
    "one_ahead": 10 / 20,
    "own_prefetcher": 10 / 20,
    "own_optimizer": 10 / 20,
    "inference": 10 / 20,
    "queues_in_a_row": 10 / 20,
    "every_fourth": 18 / 20,
    "named_loader": 20 / 30,
    "polled_queue": 10 / 30,
}
UNSEEN = {"unseen_loader": "loader", "own_process": "loader", "hidden_thread": "thread"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """All trainings, two at a time, as they sleep most of the time: name -> facts."""
    folder = tmp_path_factory.mktemp("seen")

    def watch(name):
        path = folder / f"{name}.json"
        done = warm_python.run("-m", "labkit.watch", "--json", path, SCRIPT, name)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("Training: ") <= 2  # after 50 batches, and at the end
        return json.loads(path.read_text())

    names = [*WAITS, *UNSEEN, "lists_of_dicts"]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(watch, names)))


@pytest.mark.parametrize("name", WAITS)
def test_the_share_of_waiting_is_what_was_planted(seen, name):
    found = seen[name]
    assert found["unseen"] == ""
    assert found["training"]["loading_share"] == pytest.approx(WAITS[name], abs=SHARE)


@pytest.mark.parametrize("name", UNSEEN)
def test_a_loader_that_is_not_seen_gets_no_verdict(seen, name):
    found = seen[name]
    assert (found["unseen"], found["answer"]["verdict"]) == (UNSEEN[name], "cannot tell")


def test_the_bound_holds_for_the_whole_run(seen):
    # Three epochs of 20 steps of 30 ms, and a second after each.
    run_s = 3 * (20 * 0.030 + 1.0)
    bound = run_s / (run_s - 3 * 20 * 0.020)
    speed_up = seen["evaluation_between_epochs"]["answer"]["speed_up"]
    assert speed_up == pytest.approx(bound, rel=0.1)


def test_validation_is_not_the_training(seen):
    found = seen["slow_validation"]
    assert found["validation"]["loading_share"] > 0.9
    assert "in the validation" in found["answer"]["sentence"]


@pytest.mark.parametrize("name", ["endless_loader", "kept_iterator"])
def test_time_between_the_epochs_of_an_endless_loader_is_outside(seen, name):
    assert seen[name]["outside_s"] == pytest.approx(4 * 0.5, rel=0.2)


def test_waits_every_fourth_step_are_said(seen):
    assert seen["every_fourth"]["training"]["cycle"] == 4


def test_batches_to_an_optimizer_step_are_counted(seen):
    assert seen["accumulation"]["batches_per_update"] == 4


def test_a_dict_of_one_image_is_one_image(seen):
    # 5 ms to load, 5 ms to train on, for each image.
    assert seen["lists_of_dicts"]["training"]["images_per_s"] < 1 / 0.010
