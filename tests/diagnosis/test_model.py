"""The simulated pipeline does what arithmetic says it must."""

import pytest

from labkit.diagnosis.model import HostStep, Parts, Work, simulate

STEPS = 100


def parts(**changes):
    """A pipeline of plain numbers: 10 ms to prepare, 20 ms on a device."""
    usual = {
        "works": (Work(wait_s=0.0, cpu_s=0.010),),
        "workers": 2,
        "host": (HostStep(wait_s=0.0, cpu_s=0.001),),
        "device_s": 0.020,
        "steps": STEPS,
        "cores": 4.0,
    }
    return Parts(**(usual | changes))


def step_ms(parts):
    return 1000 * simulate(parts).epoch_s / parts.steps


def test_a_device_that_is_slower_than_loading_sets_the_pace():
    assert step_ms(parts()) == pytest.approx(20, rel=0.02)


def test_a_loader_that_is_slower_than_the_device_sets_the_pace():
    slow = parts(works=(Work(wait_s=0.0, cpu_s=0.060),))
    assert step_ms(slow) == pytest.approx(30, rel=0.03)  # two workers share it


def test_without_workers_the_device_computes_while_the_host_prepares():
    assert step_ms(parts(workers=0)) == pytest.approx(20, rel=0.02)
    slow = parts(workers=0, works=(Work(wait_s=0.0, cpu_s=0.060),))
    assert step_ms(slow) == pytest.approx(61, rel=0.02)


def test_cores_are_shared_by_more_workers_than_there_are():
    busy = {"works": (Work(wait_s=0.0, cpu_s=0.1),), "cores": 2.0}
    assert step_ms(parts(workers=2, **busy)) == pytest.approx(50, rel=0.06)
    assert step_ms(parts(workers=8, **busy)) == pytest.approx(50, rel=0.06)


def test_waiting_needs_no_core():
    waiting = {"works": (Work(wait_s=0.080, cpu_s=0.0),), "cores": 1.0}
    assert step_ms(parts(workers=2, **waiting)) == pytest.approx(40, rel=0.03)
    assert step_ms(parts(workers=4, **waiting)) == pytest.approx(20, rel=0.05)


def late(prefetch_factor):
    """Every eleventh batch is 150 ms late, so that no worker has all of them."""
    works = tuple(Work(wait_s=0.150 if k == 10 else 0.005, cpu_s=0.001) for k in range(11))
    return parts(works=works, prefetch_factor=prefetch_factor)


def test_more_prefetching_hides_late_batches():
    assert step_ms(late(1)) > 1.2 * step_ms(late(8))
    assert step_ms(late(8)) == pytest.approx(20, rel=0.1)


def test_a_copy_from_pageable_memory_makes_the_host_wait_for_the_device():
    beside = parts(copy_s=0.005)
    assert step_ms(beside) == pytest.approx(25, rel=0.02)  # the device copies, then computes
    slow_host = {"workers": 0, "works": (Work(wait_s=0.0, cpu_s=0.022),), "copy_s": 0.005}
    assert step_ms(parts(**slow_host)) == pytest.approx(25, rel=0.02)
    blocked = step_ms(parts(copy_blocks=True, **slow_host))
    assert blocked == pytest.approx(22 + 5 + 1, rel=0.02)  # prepare, copy, launch: one by one


def test_what_is_done_now_and_then_on_the_host_is_waited_for_once_the_queue_is_empty():
    works = tuple(HostStep(wait_s=0.200 if k == 9 else 0.0, cpu_s=0.001) for k in range(10))
    # Three steps are queued when it begins: 60 of its 200 ms cost nothing.
    assert step_ms(parts(host=works)) == pytest.approx(20 + (200 - 60) / 10, rel=0.1)
