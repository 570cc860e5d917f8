"""Made-up events become the phases that they tell of."""

import pytest

from labkit.diagnosis.loops import Event, Loader, Loops, cycle_of

TRAIN, VALID, OTHER = 0, 1, 2
MAIN, BESIDE = 7, 8
LOADERS = (
    Loader(name="training", workers=0, batch_size=4, epoch_batches=10),
    Loader(name="validation", workers=0, batch_size=4, epoch_batches=5),
    Loader(name="other", workers=2, batch_size=4, ahead=4),
)


class Story:
    """Events of threads that act one after the other, on a clock of their own."""

    def __init__(self, *loaders):
        self.now_s = 100.0
        self.loops = Loops(loaders or LOADERS)

    def add(self, kind, took_s=0.0, loader=0, thread=MAIN, samples=0):
        began_s, self.now_s = self.now_s, self.now_s + took_s
        self.loops.add(Event(kind, thread, began_s, self.now_s, loader, samples))

    def rest(self, s):
        self.now_s += s

    def open(self, loader=TRAIN, thread=MAIN, took_s=0.0):
        self.add("open", took_s, loader, thread)

    def draw(self, wait_s, loader=TRAIN, thread=MAIN):
        self.add("draw", wait_s, loader, thread, samples=4)

    def train(self, step_s, mark="train", thread=MAIN):
        self.rest(step_s)
        self.add(mark, thread=thread)

    def steps(self, count, wait_s, step_s, loader=TRAIN, mark="train"):
        for _ in range(count):
            self.draw(wait_s, loader)
            if mark:
                self.train(step_s, mark)
            else:
                self.rest(step_s)

    def epoch(self, batches, wait_s, step_s, loader=TRAIN, mark="train"):
        self.open(loader)
        self.steps(batches, wait_s, step_s, loader, mark)
        self.add("end", 0.0, loader)

    def phases(self):
        return self.loops.phases(self.now_s)


def test_waits_and_steps_add_up_from_the_end_of_the_first_step_on():
    story = Story()
    story.open(took_s=3)
    story.steps(1, 5, 60)  # compiles
    story.steps(4, 0.5, 1.5)
    story.draw(0.5)  # this step goes on
    phases = story.phases()
    assert (phases.unseen, phases.trains, phases.batches_per_update) == ("", True, 1)
    training = phases.training
    assert (training.steps, training.images, training.step_s) == (4, 16, 6.0)
    assert (training.wait_s, training.starts_s) == (2.5, 0)
    assert (phases.outside_s, phases.validation.steps, phases.run_s) == (0, 0, 8.5)


@pytest.mark.parametrize("mark", ["train", None])
def test_batches_that_were_loaded_during_the_first_step_are_not_the_steady_state(mark):
    story = Story()
    story.open(OTHER)
    story.steps(1, 2, 60, OTHER, mark)
    story.steps(4, 0, 1, OTHER, mark)  # two workers load two batches each ahead
    story.steps(5, 1, 1, OTHER, mark)
    training = story.phases().training
    assert (training.wait_s, training.step_s) == (5, 4)


def test_validation_and_time_outside_are_told_from_training():
    story = Story()
    for _ in range(3):
        story.epoch(10, wait_s=0.1, step_s=0.9)
        story.epoch(5, wait_s=0.8, step_s=0.2, loader=VALID, mark=None)
        story.rest(4)
    phases = story.phases()
    assert phases.training.steps == 29
    assert phases.training.loading_share == pytest.approx(0.1)
    assert phases.training.starts_s == pytest.approx(0.2)
    assert phases.validation.steps == 15
    assert phases.validation.loading_share == pytest.approx(0.8)
    assert phases.outside_s == pytest.approx(12)
    assert phases.run_s == pytest.approx(29 + 15 + 12)


def test_a_validation_before_the_training_and_inside_a_step_is_none_of_it():
    story = Story()
    story.epoch(2, 0.5, 0.5, VALID, mark=None)  # Lightning's check
    story.open()
    story.steps(6, 0.25, 0.75)
    story.epoch(5, 0.8, 0.2, VALID, mark=None)
    story.steps(4, 0.25, 0.75)
    story.add("end")
    phases = story.phases()
    assert (phases.training.wait_s, phases.training.step_s) == (9 * 0.25, 9 * 0.75)
    assert (phases.validation.steps, phases.validation.wait_s) == (5, pytest.approx(4))


@pytest.mark.parametrize("mark", ["train", "backward"])
def test_an_optimizer_that_is_not_torchs_is_known_by_backward_passes(mark):
    story = Story()
    story.epoch(10, 0.5, 0.5, mark=mark)
    story.epoch(5, 0.9, 0.1, VALID, mark=None)
    phases = story.phases()
    assert phases.trains
    assert (phases.training.steps, phases.validation.steps) == (9, 5)


def test_without_any_training_all_loops_are_one_phase():
    story = Story()
    story.epoch(10, 0.5, 0.5, mark=None)
    phases = story.phases()
    assert (phases.trains, phases.unseen, phases.training.steps) == (False, "", 9)
    assert phases.batches_per_update is None


def test_several_batches_to_an_optimizer_step_are_counted():
    story = Story()
    story.open()
    for number in range(1, 21):
        story.draw(0.5)
        story.train(0.5, "backward")
        if number % 4 == 0:
            story.add("train")
    assert story.phases().batches_per_update == 4


def in_turn(first_s, second_s, step_s):
    """A training that draws from two loaders for each step."""
    story = Story()
    story.open(TRAIN)
    story.open(VALID)
    for _ in range(50):
        story.draw(first_s, TRAIN)
        story.steps(1, second_s, step_s, VALID)
    return story


def test_two_loaders_in_turn_are_both_the_trainings():
    phases = in_turn(0.1, 0.2, 0.7).phases()
    assert {loader.name for loader in phases.training.loaders} == {"training", "validation"}
    assert phases.training.loading_share == pytest.approx(0.3, abs=0.01)
    assert phases.validation.steps == 0


def test_of_an_endless_iterator_time_between_epochs_is_outside():
    story = Story()
    story.open()
    for _ in range(3):
        story.steps(10, 0.5, 0.5)
        story.rest(7)
    phases = story.phases()
    assert phases.training.loading_share == pytest.approx(0.5, abs=0.02)
    assert phases.outside_s == pytest.approx(3 * 7)


def test_time_after_a_loop_was_left_is_outside_also_where_nobody_notices():
    story = Story()
    for _ in range(2):  # persistent workers keep the iterator
        story.open()
        story.steps(5, 0.5, 0.5)
        story.rest(9)
    phases = story.phases()
    assert (phases.training.steps, phases.outside_s) == (8, 18)


def test_only_the_thread_that_trains_counts():
    story = Story()
    for _ in range(10):
        story.draw(0.9, thread=BESIDE)
        story.draw(0.1)  # it arrived through a queue
        story.train(0.9)
    phases = story.phases()
    assert phases.training.wait_s == pytest.approx(0.9)
    assert phases.training.steps == 8


@pytest.mark.parametrize(
    ("tell", "unseen"),
    [
        (lambda story: None, "nothing"),
        (lambda story: story.epoch(1, 0.5, 0.5), "short"),
        # DALI trains, a DataLoader validates.
        (lambda story: [
            ([story.train(0.1) for _ in range(30)], story.epoch(5, 0.9, 0.1, VALID, mark=None))
            for _ in range(3)
        ], "loader"),
        (lambda story: [(story.draw(0.1, thread=BESIDE), story.train(0.1)) for _ in range(9)],
         "thread"),
    ],
)  # fmt: skip
def test_a_training_whose_batches_were_not_seen_gets_no_phase(tell, unseen):
    story = Story()
    tell(story)
    phases = story.phases()
    assert (phases.unseen, phases.training.steps) == (unseen, 0)


def test_a_loader_that_the_user_named_trains_whatever_is_seen():
    story = Story(Loader(name="named", is_training=True))
    story.epoch(5, 0.5, 0.5, mark=None)
    assert story.phases().training.steps == 4


def test_code_that_makes_batches_in_the_training_thread_is_loading():
    story = Story()
    story.open()
    for _ in range(20):
        story.draw(0.2)
        for kind in ("preparing", "preparing", "preparing", "computing"):
            story.rest(0.2)
            story.add(kind)
        story.add("train")
    training = story.phases().training
    assert training.prepare_s == pytest.approx(3 * training.step_s)
    assert training.loading_share == pytest.approx(0.8, abs=0.01)


def test_a_wait_that_brings_no_batch_does_not_count():
    story = Story()
    story.open()
    story.steps(3, 0.5, 1.5)
    story.add("leave", 1000)
    training = story.phases().training
    assert (training.wait_s, training.step_s) == (1, 3)


def test_percentiles_show_what_a_mean_hides():
    story = Story()
    story.open()
    for number in range(1001):
        story.draw(67.0 if number and number % 50 == 0 else 0.001)
        story.train(0.1)
    training = story.phases().training
    assert training.median_wait_s == pytest.approx(0.001, rel=0.05)
    assert training.p99_wait_s == pytest.approx(67, rel=0.05)


@pytest.mark.parametrize(
    ("waits", "cycle"),
    [
        ([4.0, 0.01, 0.02, 0.01] * 8, 4),
        ([0.01, 4.0] * 8, 2),
        ([1.0] * 200, None),
        ([0.0] * 200, None),
        ([4.0, 0.01, 0.02, 0.01] * 7, None),  # too few to say so
        ([3.0, 1.0, 3.0, 1.0] * 40, None),
    ],
)
def test_waits_that_come_every_few_steps_are_told_from_others(waits, cycle):
    assert cycle_of(waits) == cycle


# --- stretches


def assert_stretches_are_the_training(phases, not_yet_s=0.0):
    """Check that stretches have all steps and seconds, but for waits since the last step."""
    steps, s = zip(*phases.stretches)
    assert sum(steps) == phases.training.steps
    assert sum(s) == pytest.approx(phases.training.s - not_yet_s)


def test_stretches_have_all_steps_of_the_training_and_their_waits():
    story = Story()
    for _ in range(3):
        story.epoch(10, 0.5, 1.5)
        story.rest(100)
        story.epoch(5, 0.7, 0.3, VALID, mark=None)
    phases = story.phases()
    assert_stretches_are_the_training(phases)
    assert phases.stretches == ((1, 2.0),) * 29


def test_a_long_training_has_few_stretches_of_equal_length():
    story = Story()
    story.open()
    story.steps(10_001, 0.5, 1.5)
    stretches = story.phases().stretches
    assert 64 <= len(stretches) <= 128
    assert set(stretches) == {(128, 256.0)}


@pytest.mark.parametrize("batches_per_update", [1, 2])
def test_stretches_have_the_epochs_of_loaders_that_are_made_anew(batches_per_update):
    story = Story(*(Loader(name=f"epoch {number}", workers=0) for number in range(4)))
    for number in range(4):
        story.open(number, took_s=1)
        for _ in range(6):
            for _ in range(batches_per_update):
                story.draw(0.25, number)
            story.train(1.5)
        story.add("end", 0.5, number)
    assert_stretches_are_the_training(story.phases(), not_yet_s=0.5)


def test_stretches_of_loaders_that_are_drawn_from_in_turn_have_the_time_of_both():
    story = in_turn(0.25, 0.25, 1.5)
    story.add("end", 0.0, TRAIN)
    story.add("end", 0.0, VALID)
    phases = story.phases()
    assert len(phases.training.loaders) == 2
    assert_stretches_are_the_training(phases)


def test_a_training_that_was_not_seen_has_no_stretches():
    story = Story()
    story.epoch(3, 0.5, 1.5)
    for _ in range(100):
        story.train(1.5)
    phases = story.phases()
    assert (phases.unseen, phases.stretches) == ("loader", ())


def test_asking_for_the_phases_changes_nothing():
    asked, unasked = Story(), Story()
    for story in (asked, unasked):
        for _ in range(3):
            story.epoch(10, wait_s=1, step_s=2)
            story.rest(5)
            if story is asked:
                story.phases()
            story.open()
            story.draw(1)
            story.rest(7)
            assert story is unasked or story.phases() == story.phases()
    assert asked.phases() == unasked.phases()
