"""What follows from facts, on made-up measurements with known answers: no loader and no clock."""

from dataclasses import replace

import pytest

from labkit.diagnosis.bounds import bounds_of
from labkit.diagnosis.facts import Batch, Copies, Facts, Kind, Readings, Stage, Stages, Stretch
from labkit.diagnosis.probe import Made, stages_of
from labkit.diagnosis.rules import conclude, propose
from labkit.diagnosis.say import as_json, screen
from labkit.machine.cores import CoreLimits
from tests.diagnosis.json_keys import undocumented

STEPS = 100
WORK = Stage(name="work", kind="transform", wall_s=0.05, cpu_s=0.05)
READS = Stage(name="open", kind="read", wall_s=0.05, cpu_s=0.01)


def stretch(arm, step_s, **changes):
    usual = {
        "steps": STEPS, "busy_s": step_s, "step_s": step_s, "startup_s": step_s, "epochs": 0,
        "epoch_s": None, "cpu_s": 0.0, "own_cpu_s": 0.0, "queued_s": None, "idle": 0.5,
        "readings": Readings(),
    }  # fmt: skip
    return Stretch(arm=arm, **(usual | changes))


def facts(resident=(0.01,), alone=(0.1,), warm=(0.1,), cold=(), alone_as=None, **changes):
    """Two of four cores make a batch in 50 ms each; together they deliver one in 100 ms."""
    alone_as = {"cpu_s": 0.05} | (alone_as or {})
    stretches = [
        *(stretch("resident", s) for s in resident),
        *(stretch("alone", s, **alone_as) for s in alone),
        *(stretch("warm", s, epoch_s=s * STEPS) for s in warm),
        *(stretch("cold", s, epoch_s=s * STEPS) for s in cold),
    ]
    usual = {
        "arguments": {"batch_size": 8, "num_workers": 2}, "length": STEPS,
        "limits": CoreLimits(machine=4, affinity=4),
        "batch": Batch(bytes_by_dtype={"uint8": 8_000_000}, samples=8),
        "stretches": tuple(stretches), "probe": Stages(stages=(WORK,)), "empty_s": 0.001,
    }  # fmt: skip
    return Facts(**(usual | changes))


def rows(measured):
    return {row.name: row.seconds for row in bounds_of(measured).rows}


def proposed(measured):
    return {remedy.name: remedy for remedy in propose(bounds_of(measured))}


def bottleneck(measured):
    bounds = bounds_of(measured)
    return conclude(measured, bounds, propose(bounds)).bottleneck


def probed(wall_s, cpu_s=None):
    """One stage, "work", which computes all the time unless told otherwise."""
    cpu_s = wall_s if cpu_s is None else cpu_s
    return Stages(stages=(replace(WORK, wall_s=wall_s, cpu_s=cpu_s),))


@pytest.mark.parametrize("arm", ["resident", "alone", "warm"])
def test_nothing_follows_where_an_arm_is_missing(arm):
    assert bounds_of(facts(**{arm: ()})) is None


@pytest.mark.parametrize(
    ("cold", "epoch_s", "fetch_s"),
    [((0.2, 0.16), 18.0, 0.08), ((0.2, 0.09), 10.0, 0.0), ((), 10.0, 0.0)],
)
def test_an_epoch_is_a_cold_one_where_that_takes_longer_in_every_block(cold, epoch_s, fetch_s):
    measured = facts(warm=(0.1, 0.1), cold=cold)
    bounds = bounds_of(measured)
    assert (bounds.epoch_s, bounds.now.fetch_s) == pytest.approx((epoch_s, fetch_s))
    assert ("faster medium" in proposed(measured)) == bool(fetch_s)


def test_the_ceiling_is_compared_block_by_block():
    # Every block is half computing, whatever the machine's speed in it.
    bounds = bounds_of(facts(resident=(0.01, 0.04), warm=(0.02, 0.08)))
    assert bounds.ceiling == pytest.approx(0.5)
    assert bounds.ceiling_ci == pytest.approx((0.5, 0.5))
    assert bounds.epoch_ci[0] < 0.5 and bounds.epoch_ci[1] > 1.5
    assert bounds.loading_cost_share_interval == pytest.approx((0.5, 0.5))
    assert bounds_of(facts()).ceiling_ci == (None, None)


def test_what_loading_costs_has_one_name_in_bounds_text_and_json():
    measured = facts(resident=(0.01, 0.05), warm=(0.02, 0.08))
    bounds = bounds_of(measured)
    findings = conclude(measured, bounds, propose(bounds))
    found = as_json(findings)
    low, high = found["loading_cost_share_interval"]
    assert found["loading_cost_share"] == pytest.approx(bounds.loading_cost_share)
    assert (low, high) == bounds.loading_cost_share_interval
    assert low < found["loading_cost_share"] < high
    assert found["loading_cost_share"] == pytest.approx(1 - 0.06 / 0.1)
    assert "data loading costs 40.0 % [" in screen(findings).splitlines()[0]
    assert findings.remedies and undocumented(found) == set()
    # One block has no interval, and no block no share.
    once = as_json(conclude(facts(), bounds_of(facts()), ()))
    assert once["loading_cost_share"] == pytest.approx(0.9)
    assert once["loading_cost_share_interval"] is None
    stopped = as_json(conclude(Facts(broken="no batch"), None, ()))
    assert (stopped["loading_cost_share"], stopped["broken"]) == (None, "no batch")


@pytest.mark.parametrize(
    ("alone_as", "cpu_s", "wall_s"),
    [
        # 40 ms of CPU in a worker of its own, and 10 ms of waiting, which does not get longer.
        ({"cpu_s": 0.08}, 0.08, 0.09),
        ({"cpu_s": 0.09, "own_cpu_s": 0.01}, 0.08, 0.09),
        ({"cpu_s": 0.08, "epochs": 2}, 0.04, 0.05),  # workers started meanwhile
        ({"cpu_s": 0.0}, 0.004, 0.014),
    ],
)
def test_work_takes_the_cpu_time_that_it_takes_beside_other_workers(alone_as, cpu_s, wall_s):
    now = bounds_of(facts(alone_as=alone_as, probe=probed(0.05, 0.04))).now
    assert (now.cpu_s, now.wall_s) == pytest.approx((cpu_s, wall_s))


def test_a_sum_of_probed_stages_is_no_longer_than_the_batch():
    # Without workers; the probe makes calls take twice as long.
    (one,) = bounds_of(facts(arguments={"batch_size": 8}, probe=probed(0.2))).stages
    assert (one.wall_s, one.cpu_s) == pytest.approx((0.1, 0.1))
    (one,) = bounds_of(facts(arguments={"batch_size": 8})).stages
    assert one.wall_s == pytest.approx(0.05)


def test_workers_hinder_each_other_for_as_long_as_no_resource_explains():
    # 50 ms in one of two workers: 25 ms a batch would do.
    assert bounds_of(facts()).now.hindered_s == pytest.approx(0.075)
    # 400 ms of CPU on four cores explain 100 ms a batch.
    busy = bounds_of(facts(alone_as={"cpu_s": 0.4}, probe=probed(0.05, 0.4)))
    assert busy.now.hindered_s == pytest.approx(0.0)


def test_idle_cores_tell_workers_that_wait_for_each_other_from_those_that_wait_for_a_core():
    more, less = 0.26, 0.24
    idle, busy = (facts(alone_as={"idle": share}) for share in (more, less))
    assert rows(idle)["workers wait for each other"] == pytest.approx(0.148)
    assert bottleneck(idle) == "workers wait for each other"
    assert rows(busy)["waiting for a core"] == pytest.approx(0.15)
    assert "workers wait for each other" not in rows(busy)
    assert bottleneck(busy) != "workers wait for each other"
    # What the kernel counted comes first.
    counted = rows(facts(alone_as={"queued_s": 0.1}))
    assert counted["waiting for a core"] == pytest.approx(0.1)
    assert counted["workers wait for each other"] == pytest.approx(0.048)
    counted = rows(facts(alone_as={"queued_s": 0.1, "idle": less}))
    assert counted["not explained"] == pytest.approx(0.048)


@pytest.mark.parametrize(("more", "name"), [(1.02, "workers wait for each other"),
                                            (0.98, "not explained")])  # fmt: skip
def test_what_may_be_noise_is_not_blamed_on_other_workers(more, name):
    # Of 2 × 50 ms, a worker computes but for a share, and needs no time to hand over.
    made_s = 0.1 * (1 - 0.15 * more)
    alone_as = {"cpu_s": made_s}
    found = rows(facts(alone=(0.05,), alone_as=alone_as, probe=probed(made_s), empty_s=0.0))
    assert found == pytest.approx({"work": made_s, name: 0.1 - made_s})


def test_batches_that_are_late_in_order_are_waited_for():
    # 2 × 2 batches that each take 25 ms last 100 ms.
    late, usual = (Stages(stages=(WORK,), slowest=slowest) for slowest in (2.1, 1.9))
    assert "waiting for a late batch" in rows(facts(probe=late))
    assert "workers wait for each other" in rows(facts(probe=usual))
    busy = facts(probe=late, alone_as={"queued_s": 0.001, "idle": 0.24})
    assert "waiting for a late batch" not in rows(busy)
    # Others that wait for it read no more than one does.
    reads = Stages(stages=(READS,), slowest=2.1, fetched_per_s=10e6)
    alone_as = {"fetched_bytes": 1_000_000, "cpu_s": 0.01}
    assert "waiting for a late batch" in rows(facts(probe=reads, alone_as=alone_as))
    alone_as |= {"queued_s": 0.001, "idle": 0.0}
    assert "waiting for shared storage" not in rows(facts(probe=reads, alone_as=alone_as))


def test_a_busy_main_process_keeps_workers_waiting():
    busy = facts(alone_as={"cpu_s": 0.11, "own_cpu_s": 0.06})
    assert rows(busy)["waiting for the main process"] == pytest.approx(0.148)


def test_a_main_process_that_draws_samples_is_named_on_a_busy_machine_too():
    draws = Stages(stages=(WORK,), sampler_s=0.035)
    as_usual = {"cpu_s": 0.09, "own_cpu_s": 0.04}
    usual = facts(alone_as=as_usual, probe=draws)
    assert "waiting for the main process" not in rows(usual)
    # Other programs had its core for 40 of the 100 ms of a step.
    busy = facts(alone_as=as_usual | {"own_queued_s": 0.04}, probe=draws)
    assert rows(busy)["waiting for the main process"] > 0.1
    assert bottleneck(busy) == "sampler"
    remedies = proposed(busy)
    assert remedies["faster sampler"].expected == pytest.approx(0.347, rel=0.01)
    # Workers wait for the main process as before.
    assert remedies["faster transform"].expected >= 0.6


@pytest.mark.parametrize("idle", [0.0, 0.9])
@pytest.mark.parametrize(
    ("fetched_bytes", "one_per_s", "stage", "is_saturated"),
    [
        # One worker reads 10 MB/s, and two of them 10, 14, or 16 together.
        (1_000_000, 10e6, READS, True),
        (1_400_000, 10e6, READS, True),
        (1_400_000, 10e6, replace(READS, name="cv2.imread", kind="decode"), True),
        (1_600_000, 10e6, READS, False),
        (1_000_000, 10e6, WORK, False),  # waits for nothing that reads
        (8 * 2000, 160e3, READS, False),  # most samples come from memory
        (8 * 2100, 168e3, READS, True),
        (None, 10e6, READS, False),
        (1_000_000, None, READS, False),
        (0, 0.0, READS, False),
    ],
)
def test_storage_is_saturated_where_more_workers_read_no_more(
    fetched_bytes, one_per_s, stage, is_saturated, idle
):
    # The kernel counted that hardly any worker waited for a core.
    alone_as = {"fetched_bytes": fetched_bytes, "queued_s": 0.001, "idle": idle, "cpu_s": 0.01}
    waits = Stage(name="lock", kind="transform", wall_s=0.01, cpu_s=0.0)
    probe = Stages(stages=(stage, waits), fetched_per_s=one_per_s)
    measured = facts(alone_as=alone_as, probe=probe)
    assert ("waiting for shared storage" in rows(measured)) == is_saturated
    assert (bottleneck(measured) == "shared storage") == is_saturated


def test_what_saturated_storage_costs_is_told_in_bytes_per_second():
    alone_as = {"fetched_bytes": 1_000_000, "cpu_s": 0.01}
    measured = facts(alone_as=alone_as, probe=Stages(stages=(READS,), fetched_per_s=9e6))
    remedies = proposed(measured)
    shared = remedies["faster shared storage"]
    assert shared.reason == "2 workers together read 10 MB/s from storage, and one alone 9.0 MB/s"
    assert shared.expected == pytest.approx(0.1)  # the device's 10 ms
    assert not {"share no lock", "faster reads"} & remedies.keys()
    assert remedies["more workers"].expected is None


@pytest.mark.parametrize(
    ("pinning_s", "is_saturated"), [(0.09, True), (0.07, False), (None, False)]
)
def test_a_thread_that_pins_all_the_time_keeps_workers_waiting(pinning_s, is_saturated):
    busy = {"cpu_s": 0.15, "own_cpu_s": 0.1, "pinning_s": pinning_s}
    arguments = {"batch_size": 8, "num_workers": 2, "pin_memory": True}
    measured = facts(alone_as=busy, arguments=arguments)
    assert ("waiting for the thread that pins batches" in rows(measured)) == is_saturated
    assert (bottleneck(measured) == "pinning") == is_saturated
    remedies = proposed(measured)
    assert {"no pinning", "pin less"} <= remedies.keys() or not is_saturated
    if is_saturated:
        assert remedies["pin less"].reason == (
            "a single thread copies every batch of 8.0 MB into pinned memory; that takes it "
            "90.0 ms of the 100 ms in which the loader delivers a batch"
        )
        assert remedies["no pinning"].arguments == {"pin_memory": False}
        # Its work is apart from the training thread's, so that neither waits for the other.
        assert bounds_of(measured).now.take_s == pytest.approx(0.01)
        assert bounds_of(measured).now.hindered_s == pytest.approx(0.1 - 0.09)


def test_all_of_a_batch_s_time_has_a_row():
    probe = Stages(stages=(
        Stage(name="open", kind="read", wall_s=0.02, cpu_s=0.005),
        Stage(name="work", kind="transform", wall_s=0.05, cpu_s=0.04),
    ), pickle_s=0.005)  # fmt: skip
    found = rows(facts(alone_as={"cpu_s": 0.05}, probe=probe))
    assert found == pytest.approx({
        "open": 0.005, "waiting in open": 0.015, "work": 0.04, "waiting in work": 0.01,
        "sending": 0.005, "handing over a batch": 0.002, "workers wait for each other": 0.123,
    })  # fmt: skip
    assert rows(facts(probe=Stages())) == {"not explained": pytest.approx(0.2)}


def test_handing_over_is_what_a_batch_of_little_work_takes():
    found = facts(alone=(0.005,), warm=(0.01,), alone_as={"cpu_s": 0.003}, probe=probed(0.003))
    assert rows(found) == pytest.approx({"work": 0.003, "handing over a batch": 0.007})


def test_starting_up_is_what_an_epoch_s_first_batch_takes_longer():
    head = tuple(stretch("warm", 0.1, epoch_s=11.0, startup_s=1.2) for _ in range(2))
    measured = facts(warm=())
    measured = facts(stretches=(*measured.stretches, *head))
    assert bounds_of(measured).now.startup_s == pytest.approx((1.2 - 2 * 0.1) / STEPS)


@pytest.mark.parametrize(
    ("copies", "on_device_s", "copy"),
    [
        (Copies(), None, (0.0, False, False)),
        (Copies(pageable_s=0.006, pinned_s=0.002), None, (0.006, True, False)),
        (Copies(pageable_s=0.006, pinned_s=0.002, are_pinned=True), None, (0.002, False, False)),
        (Copies(pageable_s=0.006, pinned_s=0.002, are_pinned=True, are_beside=True), None,
         (0.002, False, True)),
        # CUDA: the step took 10 ms with copies.
        (Copies(pageable_s=0.006, pinned_s=0.002), 0.007, (0.003, True, False)),
        (Copies(pageable_s=0.006, pinned_s=0.002, are_pinned=True), 0.007, (0.003, False, False)),
        (Copies(pageable_s=0.006, pinned_s=0.002), 0.011, (0.0, True, False)),
    ],
)  # fmt: skip
def test_a_copy_takes_what_the_step_s_own_copies_take(copies, on_device_s, copy):
    on_device = None if on_device_s is None else stretch("resident", on_device_s)
    found = bounds_of(facts(copies=copies, resident_on_device=on_device, has_queue=True))
    assert found.copy == pytest.approx(copy)


@pytest.mark.parametrize(("syncs", "host_s", "syncs_s"), [(1, 0.01, 0.004), (0.5, 0.003, 0.0)])
def test_a_host_that_waits_for_the_device_in_every_step_does_nothing_else(syncs, host_s, syncs_s):
    readings = Readings(waited_s=0.006, copy_wait_s=0.002, device_s=0.008, syncs=syncs)
    step = stretch("resident", 0.01, busy_s=0.003, readings=readings)
    found = bounds_of(facts(stretches=(*facts(resident=()).stretches, step), has_queue=True))
    assert (found.now.host_s, found.syncs_s) == pytest.approx((host_s, syncs_s))
    assert found.now.device_s == pytest.approx(0.008)


def test_kinds_of_host_work_are_shares_of_a_step():
    found = bounds_of(facts(host_kinds={"checkpoint": Kind(0.4, "save")}))
    assert found.kind_s("checkpoint") == pytest.approx(0.004)
    assert found.kind_s("reports") == 0.0


# --- floors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"batch_size": 8}, {}], ids=["DataLoader", "generator"])
@pytest.mark.parametrize(
    ("warm_s", "floor"),
    [
        (0.15, 0.1 / 0.15),  # one after the other: without half of the loading, 100 of 150 ms
        (0.13, 0.1 / 0.15),  # as far as the clock can tell
        (0.12, 0.05 / 0.12),  # a thread loads while the step computes: the step alone is left
        (0.1, 0.05 / 0.1),
    ],
)
def test_a_thread_that_loads_ahead_does_not_lengthen_the_step(arguments, warm_s, floor):
    # Loading takes 100 ms, half of it WORK, and the step 50.
    remedies = proposed(facts(resident=(0.05,), warm=(warm_s,), arguments=arguments))
    assert remedies["faster transform"].floor == pytest.approx(floor)
    assert "in which a worker" not in remedies["faster transform"].reason
    assert not {"persistent workers", "more prefetching", "no workers"} & remedies.keys()
    assert ("more workers" in remedies) == bool(arguments)


def test_what_an_epoch_draws_ahead_is_gone_with_a_slow_sampler():
    # Drawing takes 40 ms, the device 24; before the first of 20 batches, four are drawn.
    measured = facts(
        resident=(), alone=(0.042,), warm=(), alone_as={"cpu_s": 0.05, "own_cpu_s": 0.04},
        probe=Stages(stages=(WORK,), sampler_s=0.04), length=20, has_queue=True,
    )  # fmt: skip
    warm = stretch("warm", 0.042, epoch_s=0.97, startup_s=0.18)
    step = stretch("resident", 0.024, busy_s=0.002, readings=Readings(device_s=0.024))
    measured = replace(measured, stretches=(*measured.stretches, warm, step))
    assert bounds_of(measured).now.startup_s == pytest.approx((0.18 - 2 * 0.042) / 20)
    assert proposed(measured)["faster sampler"].floor == pytest.approx(0.024 * 20 / 0.97)
    # Where drawing is half of it, the rest is left.
    half = replace(measured, probe=replace(measured.probe, sampler_s=0.02))
    left_s = 0.024 + (0.18 - 2 * 0.042 - 4 * 0.02) / 20
    assert proposed(half)["faster sampler"].floor == pytest.approx(left_s * 20 / 0.97)


# --- stages of one worker ---------------------------------------------------------------------


def made(number, wall_s, thread_s=None, at_s=0.0, queued_s=0.0):
    thread_s = wall_s if thread_s is None else thread_s
    totals = {("transform", "work", "", ""): [wall_s, thread_s, thread_s]}
    return Made(number, totals, at_s, queued_s)


def test_the_first_batch_of_a_worker_counts_only_if_it_is_alone():
    first, second, third = made(0, 5.0), made(1, 0.1, at_s=0.1), made(2, 0.3, at_s=0.4)
    (one,) = stages_of([first, second, third], None).stages
    assert (one.wall_s, one.cpu_s) == pytest.approx((0.2, 0.2))
    (alone,) = stages_of([first], None).stages
    assert alone.wall_s == pytest.approx(5.0)


def test_time_in_which_others_had_the_cores_is_no_part_of_a_stage():
    # Of 300 ms the thread computed for 100, waited for a core for 50, and 150 for something else.
    taken = [
        made(0, 0.3, 0.1),
        made(1, 0.3, 0.1, at_s=0.3, queued_s=0.05),
        made(2, 0.3, 0.1, at_s=0.6, queued_s=0.1),
    ]
    (one,) = stages_of(taken, None).stages
    assert (one.wall_s, one.wait_s) == pytest.approx((0.25, 0.15))


def test_bytes_from_storage_are_counted_per_second():
    counts = ((0, 0.0, 5_000_000), (1, 0.1, 6_000_000), (2, 0.4, 9_000_000))
    taken = [made(n, 0.1, at_s=s)._replace(fetched_bytes=total) for n, s, total in counts]
    assert stages_of(taken, None).fetched_per_s == pytest.approx(4e6 / 0.4)
    unknown = [one._replace(fetched_bytes=None) for one in taken]
    assert stages_of(unknown, None).fetched_per_s is None


def test_the_slowest_and_the_fastest_batch_are_told_from_the_mean():
    taken = [made(0, 9.0), *(made(n, 0.1, at_s=s) for n, s in ((1, 0.1), (2, 0.2), (3, 0.8)))]
    # The next epoch's first batch comes from a worker that has just started.
    found = stages_of([*taken, made(0, 9.0, at_s=5.0)], None)
    mean_s = 0.8 / 3
    assert (found.slowest, found.fastest) == pytest.approx((0.6 / mean_s, 0.1 / mean_s))


# --- cores that the process may not use ---------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "cpu_s", "line"),
    [
        (CoreLimits(machine=2, affinity=2), 0.18, ""),
        (
            CoreLimits(machine=16, affinity=2),
            0.18,
            "This process may use 2 of the machine's 16 cores: the CPU affinity (taskset, numactl, "
            "a batch system) leaves out the others. They are busy 90 % of the time: give the "
            "training more cores.",
        ),
        (
            CoreLimits(machine=16, affinity=16, ranks=8),
            0.05,
            "This process may use 2 of the machine's 16 cores: 8 ranks share 16.",
        ),
    ],
)
def test_few_cores_get_a_line_and_are_named_as_the_limit_where_they_are_busy(limits, cpu_s, line):
    measured = facts(limits=limits, alone_as={"cpu_s": cpu_s}, resident=(0.001,))
    diagnosis = conclude(measured, bounds_of(measured), ())
    lines = [each for each in screen(diagnosis).splitlines() if "cores" in each]
    assert lines == ([line] if line else [])
    assert as_json(diagnosis)["cores"]["usable"] == 2
