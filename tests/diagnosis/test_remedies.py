"""Remedies are proposed for what they gain, and not for how settings look."""

import pytest

from labkit.diagnosis.predict import HostStep, Measured, Parts, Work, simulate
from labkit.diagnosis.remedies import propose
from labkit.diagnosis.stages import Stage


def made(cpu_s=0.010, wait_s=0.0):
    return (Work(wait_s=wait_s, cpu_s=cpu_s),)


def steps(cpu_s, **how):
    return (HostStep(wait_s=0.0, cpu_s=cpu_s, **how),)


def measured(parts=None, warm_s=None, **changes):
    """A pipeline that waits for nothing, unless changed: 10 ms to prepare, 20 ms on a device."""
    usual = {
        "works": made(),
        "workers": 2,
        "host": steps(0.001),
        "device_s": 0.020,
        "steps": 200,
        "cores": 2.0,
    }
    parts = Parts(**(usual | (parts or {})))
    return Measured(
        parts=parts,
        warm_s=warm_s or simulate(parts).epoch_s,
        has_device=True,
        batch_bytes=1_000_000,
        **changes,
    )


def names(found):
    return [remedy.name for remedy in propose(found)]


def first(found):
    return propose(found)[0]


def test_nothing_is_proposed_where_nothing_is_to_gain():
    assert names(measured()) == []


def test_more_workers_where_the_loop_prepares_by_itself():
    found = first(measured({"workers": 0, "works": made(0.030)}))
    assert (found.name, found.bottleneck) == ("more workers", "workers")
    assert found.change == "DataLoader(…, num_workers=2)"
    assert "the training loop prepares batches itself" in found.reason
    assert found.predicted == pytest.approx(20 / 31, rel=0.05)
    assert found.knobs == {"num_workers": 2}


def test_many_workers_where_batches_wait_and_need_no_core():
    found = first(measured(parts={"works": made(0.001, wait_s=0.150)}))
    assert found.name == "more workers"
    assert "waiting, which needs no core" in found.reason
    assert found.knobs["num_workers"] >= 8


def test_workers_are_kept_where_starting_them_takes_much_of_an_epoch():
    found = first(measured(parts={"startup_s": 2.0, "steps": 50}))
    assert found.name == "persistent workers"
    assert "2.00 s of every epoch of 50 steps" in found.reason
    assert found.predicted == pytest.approx(1 / 3, abs=0.03)


def test_more_is_prefetched_where_some_batches_are_late():
    late = tuple(Work(wait_s=0.150 if k == 10 else 0.005, cpu_s=0.001) for k in range(11))
    found = first(measured({"prefetch_factor": 1, "works": late}))
    assert (found.name, found.bottleneck) == ("more prefetching", "jitter")
    assert "prefetch_factor=4" in found.change


STAGES = (
    Stage(name="imdecode", kind="decode", cpu_s=0.020, wait_s=0.0),
    Stage(name="blur", kind="transform", cpu_s=0.070, wait_s=0.0),
    Stage(name="flip", kind="transform", cpu_s=0.010, wait_s=0.0),
)


def test_the_stage_that_takes_most_is_named_where_the_cores_are_exhausted():
    found = propose(measured(parts={"works": made(0.100)}, stages=STAGES))
    assert [(each.name, each.change.split(":")[0]) for each in found] == [
        ("faster transform", "blur"),
        ("faster decode", "imdecode"),
        ("faster transform", "flip"),
    ]
    assert found[0].predicted == pytest.approx(0.4, abs=0.03)  # then the device sets the pace
    assert found[0].at_most and found[0].knobs == {}
    assert "70.0 ms of the 100 ms" in found[0].reason


def test_pinning_is_proposed_for_copies_that_are_waited_for_and_for_no_others():
    heavy = {"copy_s": 0.010, "copy_blocks": True}
    found = first(measured(parts=heavy | {"works": made(0.001)}, pinned_s=0.002))
    assert (found.name, found.bottleneck) == ("pin memory", "transfer")
    assert names(measured(parts={"copy_s": 0.0001, "copy_blocks": True}, pinned_s=0.0001)) == []


def test_a_wait_in_every_step_counts_only_where_the_host_has_something_to_do():
    busy = {"host": steps(0.015, synchronizes=True), "after_sync": 1.0}
    found = first(measured(parts=busy))
    assert (found.name, found.bottleneck) == ("synchronize less often", "synchronization")
    assert found.predicted == pytest.approx(20 / 35, abs=0.03)
    assert names(measured(parts={"host": steps(0.0001, synchronizes=True)})) == []


def test_saving_is_told_from_reporting_by_what_the_step_does():
    storms = tuple(HostStep(wait_s=0.5 if k == 9 else 0.0, cpu_s=0.001) for k in range(10))
    found = first(measured(parts={"host": storms}, host_kinds_s={"checkpoint": 0.05}))
    assert (found.name, found.bottleneck) == ("save less often", "checkpoint")
    found = first(measured(parts={"host": storms}, host_kinds_s={"reports": 0.05}))
    assert (found.name, found.bottleneck) == ("report less often", "reports")


def test_a_python_loop_in_the_step_is_predicted_as_if_it_took_no_time():
    found = first(measured(parts={"host": steps(0.080)}, host_kinds_s={"host work": 0.076}))
    assert found.name == "vectorize host work" and found.at_most
    assert found.predicted == pytest.approx(20 / 80, abs=0.03)


def test_threads_are_limited_where_that_was_measured_to_help():
    slow = measured(parts={"works": made(0.080)}, limited=0.5, worker_threads=4)
    found = first(slow)
    assert (found.name, found.bottleneck) == ("limit threads", "threads")
    assert "2 workers × 4 threads need 8 cores of 2" in found.reason
    assert names(Measured(**(vars(slow) | {"limited": 1.0}))) == []


def test_a_faster_medium_takes_an_epoch_to_what_it_is_from_memory():
    found = first(measured(warm_s=4.0, cold_s=10.0))
    assert (found.name, found.bottleneck) == ("faster medium", "storage")
    assert found.predicted == pytest.approx(0.4)
