"""What counts is decided by the cache's proof, the machine's log and the plan: never by a time."""

from dataclasses import replace

import pytest
from fakes import fake_info, fake_logged, fake_trial
from hypothesis import given
from hypothesis import strategies as st

from labkit.analysis.validity import disturbed_blocks, valid_trials, why_disturbed

NOT_COLD = {"resident_share_before": 0.5}  # of a trial that is labelled cold
BUSY = {"other_cores": 0.75}


# --- the machine's log ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ({}, ""),
        ({"steal_share": 0.02, "other_cores": 0.2}, ""),
        ({"steal_share": 0.021}, "2.1 % of the CPU time was stolen by other machines"),
        ({"other_gpu_share": 0.05}, ""),
        ({"other_gpu_share": 0.06}, "other programs used 6.0 % of the GPU"),
        ({"other_gpu_share": 0.06, "busiest_gpu_program": "train"},
         "other programs used 6.0 % of the GPU, most train"),
        ({"other_cores": 0.21}, "other programs took 21.0 % of a core"),
        ({"swapped_in_pages": 1, "swapped_out_pages": 0}, "1 page swapped"),
        ({"swapped_in_pages": 4, "swapped_out_pages": 3}, "7 pages swapped"),
        ({"swapped_in_pages": None, "swapped_out_pages": 2}, "2 pages swapped"),
        ({"steal_share": 0.5, "other_cores": 1.0}, "50.0 % of the CPU time was stolen by other "
         "machines"),
        (dict.fromkeys(("steal_share", "other_cores", "swapped_in_pages", "swapped_out_pages")),
         ""),
        # Pre-declared are only the three above (EVIDENCE 1).
        ({"load_1min": 50.0, "cpu_pressure_share": 1.0, "major_faults": 10_000}, ""),
    ],
)  # fmt: skip
def test_a_machine_is_disturbed_for_three_reasons_and_no_other(log, reason):
    assert why_disturbed(fake_logged(fake_trial("v", 0), **log).disturbance, cores=2) == reason


@pytest.mark.parametrize(
    ("machine", "others", "is_disturbed"),
    [
        ({"cores": 64}, 6.4, False),
        ({"cores": 64}, 6.5, True),
        ({"cores": 4}, 0.4, False),
        ({"cores": 4}, 0.5, True),
        ({"cores": 0}, 0.3, True),
        ({"cpu_count": 64, "cores": 2}, 0.75, False),
        ({}, 0.75, True),
    ],
)
def test_other_programs_may_take_a_tenth_of_the_machines_cores(machine, others, is_disturbed):
    trials = [fake_logged(trial, other_cores=others) for trial in blocks_of(range(3))]
    assert bool(valid_of(trials, provenance=machine).disturbed) is is_disturbed


def logged(name, block, **log):
    return fake_logged(fake_trial(name, block), **log)


# One hundredth of a second is 14 % of this trial's time, and 2 % of its block's.
SHORT = [logged("v", 0, duration_s=0.07, steal_share=0.14)]
SHORT += [logged("w", 0, duration_s=0.07) for _ in range(6)]
SHORT_BUSY = [logged("v", 1, duration_s=0.1, other_cores=cores) for cores in (0.0, 0.5)]


@pytest.mark.parametrize(
    ("trials", "disturbed"),
    [
        (SHORT, {}),
        ([*SHORT, *SHORT_BUSY], {1: "v: other programs took 25.0 % of a core"}),
        ([*SHORT, logged("v", 2, duration_s=0.1, swapped_in_pages=2)], {2: "v: 2 pages swapped"}),
        # From a second on a trial is judged by itself, otherwise by its share of all: 1.9 %.
        *(([logged("v", 0, duration_s=s, steal_share=0.13)]
           + [logged(name, 0, duration_s=s) for name in "abcdef"], disturbed) for s, disturbed in (
            (0.99, {}), (1.0, {0: "v: 13.0 % of the CPU time was stolen by other machines"}))),
    ],
)  # fmt: skip
def test_trials_too_short_for_the_kernels_counters_are_judged_together(trials, disturbed):
    assert disturbed_blocks(trials, cores=2) == disturbed


def test_two_variants_that_were_disturbed_in_a_block_are_named_and_more_are_counted():
    trials = [logged(name, 0, other_cores=1.0) for name in "vwx"]
    why = "other programs took 100.0 % of a core"
    assert disturbed_blocks(trials[:2], cores=2) == {0: f"v: {why}, w: {why}"}
    assert disturbed_blocks(trials, cores=2) == {0: f"3 variants, the first v: {why}"}


def swaps(trial):
    return fake_logged(trial, swapped_in_pages=5)


def test_what_one_variant_does_again_and_again_is_a_result_and_no_disturbance():
    often = {("v", block, ""): swaps for block in range(7)}
    valid = valid_of(blocks_of(range(8), changed=often))
    assert (valid.disturbed, valid.swapping) == ({}, {"v": "swapped in 7 of 8 trials"})
    assert list(valid.runs["v"]) == [*range(8)]
    # What happens now and then, or to all variants, is the machine's state.
    now_and_then = {("v", block, ""): swaps for block in (1, 4)}
    valid = valid_of(blocks_of(range(8), changed=now_and_then))
    assert (list(valid.disturbed), valid.swapping) == ([1, 4], {})
    valid = valid_of(list(map(swaps, blocks_of(range(8)))))
    assert (list(valid.disturbed), valid.swapping) == ([*range(8)], {})


# --- what counts ----------------------------------------------------------------------------


def blocks_of(blocks, variants=("base", "v", "w"), changed=None):
    """All trials of some blocks; `changed` maps (variant, block, role) to what a trial becomes."""
    trials = []
    for block in blocks:
        arms = [(variants[0], "A1"), (variants[0], "A2"), *((name, "") for name in variants[1:])]
        for name, role in arms:
            trial = fake_trial(name, block, role, labels={"cache": "cold"})
            trials.append((changed or {}).get((name, block, role), lambda t: t)(trial))
    return trials


def not_cold(trial):
    return replace(trial, cache_proof=NOT_COLD)


def busy(trial):
    return fake_logged(trial, **BUSY)


def valid_of(trials, *, mode="full", blocks=None, **more):
    info = fake_info(["base", "v", "w"], mode=mode, blocks=blocks or 0, **more)
    return valid_trials(info, trials)


def test_blocks_that_earlier_versions_measured_in_addition_count():
    blocks = [*range(9), *range(12, 18)]
    assert valid_of(blocks_of(blocks), blocks=6).blocks == set(blocks)


@pytest.mark.parametrize(
    ("name", "role", "blocks", "of_v", "of_w"),
    [
        ("v", "", [0, 1, 2], [0, 2], [0, 1, 2]),
        ("base", "A1", [0, 2], [0, 2], [0, 2]),
        ("base", "A2", [0, 2], [0, 2], [0, 2]),
    ],
)
def test_a_doubtful_trial_costs_itself_and_one_of_the_baseline_its_block(
    name, role, blocks, of_v, of_w
):
    valid = valid_of(blocks_of(range(3), changed={(name, 1, role): not_cold}))
    assert sorted(valid.blocks) == blocks
    assert {each: list(runs) for each, runs in valid.runs.items()} == {"v": of_v, "w": of_w}
    assert valid.cache_violations == {name: ("not cold: 50.0 % of the files were in memory",)}
    assert valid.disturbed == {}


def test_a_block_repeated_after_a_crash_counts_once_the_first_time():
    first = blocks_of(range(2))
    again = [replace(trial, machine_id="again") for trial in blocks_of(range(2))]
    valid, alone = (
        valid_of(trials)
        for trials in ([*first, *again, fake_trial("v", 0, status="failed")], first)
    )
    assert (valid.base_runs, valid.runs) == (alone.base_runs, alone.runs)


def test_disturbed_blocks_are_left_out_only_where_enough_others_remain():
    disturbed = {("w", block, ""): busy for block in (1, 4)}
    valid = valid_of(blocks_of(range(8), changed=disturbed))
    assert valid.are_disturbed_left_out and valid.blocks == {0, 2, 3, 5, 6, 7}
    left_out = {name: list(runs) for name, runs in valid.left_out_runs.items()}
    assert left_out == {"v": [1, 4], "w": [1, 4]}
    valid = valid_of(blocks_of(range(7), changed=disturbed))
    assert not valid.are_disturbed_left_out and len(valid.blocks) == 7
    assert valid.undisturbed == {0, 2, 3, 5, 6}


def test_a_block_counts_where_the_baselines_of_all_measured_groups_are_complete():
    names = {"x = 1: base": "x = 1", "x = 2: base": "x = 2", "x = 4: base": "x = 4"}
    more = {"groups": names, "baselines": {group: name for name, group in names.items()}}
    info = fake_info([*names], mode="full", **more)
    measured = {"x = 1: base": (0, 1, 2), "x = 2: base": (0, 2, 3)}  # of the last one nothing
    trials = [
        fake_trial(name, block, role)
        for name, blocks in measured.items() for block in blocks for role in ("A1", "A2")
    ]  # fmt: skip
    assert valid_trials(info, trials).blocks == {0, 2}
    assert valid_trials(info, trials[:-1]).blocks == {0, 2}
    assert valid_trials(info, []).blocks == set()


@pytest.mark.parametrize(
    ("mode", "shuffled", "blocks", "is_judged"),
    [
        ("full", True, 6, True),
        ("full", True, 5, False),
        ("full", False, 6, False),  # a fixed order confounds a variant with its place
        ("quick", True, 6, False),
        ("document", False, 6, False),
        ("of another version", True, 6, False),
    ],
)
def test_verdicts_take_a_mode_for_them_a_random_order_and_six_blocks(
    mode, shuffled, blocks, is_judged
):
    assert valid_of(blocks_of(range(blocks)), mode=mode, shuffled=shuffled).judged is is_judged


keyed = st.tuples(
    st.sampled_from([("base", "A1"), ("base", "A2"), ("v", ""), ("w", "")]),
    st.integers(0, 14),
    st.sampled_from(["ok", "ok", "ok", "failed", "cancelled"]),
    st.sampled_from([lambda t: t, lambda t: t, not_cold, busy]),
)
times = st.floats(0.001, 1000)


@given(
    rows=st.lists(st.tuples(keyed, times, times), max_size=40),
    mode=st.sampled_from(["full", "quick", "document"]),
)
def test_what_counts_does_not_depend_on_any_time(rows, mode):
    def run(which):
        trials = []
        for number, ((variant, role), block, status, change), *both in rows_numbered:
            labels = {"cache": "cold"}
            trial = fake_trial(variant, block, role, both[which], status=status, labels=labels)
            trials.append(replace(change(trial), machine_id=str(number)))
        valid = valid_of(trials, mode=mode, blocks=6)
        base = {b: [t.machine_id for t in runs] for b, runs in valid.base_runs[""].items()}
        others = {
            name: {b: t.machine_id for b, t in runs.items()} for name, runs in valid.runs.items()
        }
        return base, others, valid.disturbed, valid.cache_violations

    rows_numbered = [(number, *row) for number, row in enumerate(rows)]
    assert run(0) == run(1)
