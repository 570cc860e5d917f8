"""Plans are fair, and what a run still needs follows from its rows alone, however often it ends."""

import math
import random
from collections import Counter

import pytest
from fakes import fake_info, fake_logged, fake_trial
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.analysis.summary import summarize
from labkit.runs.schedule import next_trials, plan
from labkit.settings import AS_PUBLISHED

LABELS = ["original", "x", "y"]
SHUFFLED = {"groups": {}, "shuffled": True}

# --- one block ------------------------------------------------------------------------------


def test_every_block_runs_each_variant_once_and_the_baseline_twice():
    planned = plan(LABELS, ["original"], **SHUFFLED, blocks=range(3), seed=7)
    for block in range(3):
        trials = [p for p in planned if p.block == block]
        assert Counter(p.variant for p in trials) == {"original": 2, "x": 1, "y": 1}
        assert sorted(p.role for p in trials if p.variant == "original") == ["A1", "A2"]
        assert [p.position for p in trials] == [0, 1, 2, 3]


def test_the_trials_of_a_group_follow_one_another():
    groups = {"a": "x = 1", "b": "x = 1", "c": "x = 2", "d": "x = 2"}
    how = {"groups": groups, "shuffled": True, "seed": 7}
    orders = {
        tuple(groups[p.variant] for p in plan([*groups], ["a", "c"], blocks=[block], **how))
        for block in range(20)
    }
    assert orders == {("x = 1",) * 3 + ("x = 2",) * 3, ("x = 2",) * 3 + ("x = 1",) * 3}


# --- what a run still needs -----------------------------------------------------------------

N = 6


def full(**more):
    return fake_info(LABELS, **{"mode": "full", "blocks": N, "order_seed": 7, **more})


def measured(planned, *, disturbed=(), second_run=0.0):
    """Run what is planned: some blocks disturbed, A2 slower than A1 by a share that varies."""
    trials = []
    for p in planned:
        jitter = 1 + 0.01 * ((p.block * 7 + len(p.variant)) % 5)
        slower = 1 + second_run if p.role == "A2" else 1
        trial = fake_trial(p.variant, p.block, p.role, 2.0 * jitter * slower)
        trials.append(fake_logged(trial, other_cores=1.0) if p.block in disturbed else trial)
    return trials


def keys(trials):
    return {(t.block, t.variant, t.role) for t in trials}


@pytest.mark.parametrize("machine", [{}, {"disturbed": range(100)}, {"second_run": 0.2}], ids=str)
@pytest.mark.parametrize(
    "info",
    [full(), full(mode="quick", blocks=8), full(mode="document", blocks=8),
     full(shuffled=False, protocol=AS_PUBLISHED)],
    ids=["full", "quick", "document", "in order"],
)  # fmt: skip
def test_a_run_ends_with_its_planned_blocks_on_a_machine_that_is_never_quiet(info, machine):
    trials = measured(next_trials(info, []), **machine)
    assert sorted({t.block for t in trials}) == [*range(info.blocks)]
    assert next_trials(info, trials) == []


def test_a_run_of_an_earlier_version_with_additional_blocks_needs_nothing_more():
    later = plan(LABELS, ["original"], **SHUFFLED, blocks=[N, 2 * N, 2 * N + 1], seed=7)
    trials = measured([*next_trials(full(), []), *later])
    assert next_trials(full(), trials) == []
    assert summarize(full(), trials).n_blocks == N + 3


def test_what_is_out_is_not_planned_and_its_rows_stay_what_they_are():
    planned = next_trials(full(), [], dropped={"x"})
    # The order of the others is that of the whole plan: nothing moves when something drops out.
    assert planned == [p for p in next_trials(full(), []) if p.variant != "x"]
    some = measured(next_trials(full(), [])[:8])
    rest = next_trials(full(), some, dropped={"x"})
    assert keys(rest) == keys(planned) - keys(some)
    assert next_trials(full(), [*some, *measured(rest)], dropped={"x"}) == []


# --- resuming -------------------------------------------------------------------------------


class Fate:
    """A machine whose every trial was decided beforehand: its time, and what disturbed it."""

    def __init__(self, seed, disturbed_share, second_run):
        self.seed, self.disturbed_share, self.second_run = seed, disturbed_share, second_run

    def measure(self, planned):
        rng = random.Random(f"{self.seed}/{planned.block}/{planned.variant}/{planned.role}")
        slower = self.second_run if planned.role == "A2" else 0.0
        time_s = 2.0 * math.exp(rng.gauss(slower, 0.02))
        trial = fake_trial(planned.variant, planned.block, planned.role, time_s)
        is_disturbed = rng.random() < self.disturbed_share
        return fake_logged(trial, other_cores=1.0) if is_disturbed else trial


def numbers(info, trials):
    return [(row.ratios, row.ci_low, row.verdict) for row in summarize(info, trials).rows]


@settings(max_examples=40)  # each plans a run a hundred times
@given(
    fate=st.builds(
        Fate,
        st.integers(0, 10**6),
        st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        st.sampled_from([0.0, 0.0, 0.05]),
    ),
    killed=st.randoms(use_true_random=False),
)
def test_however_often_it_is_killed_a_run_has_the_same_trials_in_the_end(fate, killed):
    info, at_a_stretch = full(), []
    while planned := next_trials(info, at_a_stretch):
        at_a_stretch += [fate.measure(p) for p in planned]
    in_pieces = []
    while planned := next_trials(info, in_pieces):
        for p in planned[: killed.choice([1, 1, 2, 7, 100])]:
            in_pieces.append(fate.measure(p))
        lost = killed.choice(planned)  # its row says so
        in_pieces.append(fake_trial(lost.variant, lost.block, lost.role, status="cancelled"))
    done = [t for t in in_pieces if t.status == "ok"]
    assert len(done) == len(keys(done))  # nothing was measured twice
    assert keys(done) == keys(at_a_stretch)
    assert numbers(info, in_pieces) == numbers(info, at_a_stretch)
