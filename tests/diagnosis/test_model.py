"""The simulated pipeline does what arithmetic says it must."""

from dataclasses import replace

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


def test_without_workers_and_with_a_wait_in_every_step_nothing_goes_on_at_once():
    waiting = (HostStep(wait_s=0.0, cpu_s=0.001, synchronizes=True),)
    assert step_ms(parts(workers=0, host=waiting)) == pytest.approx(30, rel=0.02)


def test_where_the_host_computes_workers_and_host_share_the_cores():
    alone = {"device_s": 0.0, "host": (HostStep(wait_s=0.0, cpu_s=0.010),), "cores": 1.0}
    assert step_ms(parts(workers=1, **alone)) == pytest.approx(20, rel=0.02)
    assert step_ms(parts(workers=1, **alone | {"cores": 2.0})) == pytest.approx(10, rel=0.05)


def test_cores_are_shared_by_more_workers_than_there_are():
    busy = {"works": (Work(wait_s=0.0, cpu_s=0.1),), "cores": 2.0}
    assert step_ms(parts(workers=2, **busy)) == pytest.approx(50, rel=0.06)
    assert step_ms(parts(workers=8, **busy)) == pytest.approx(50, rel=0.06)


def test_a_core_may_be_worth_less_when_all_are_busy():
    busy = parts(workers=2, works=(Work(wait_s=0.0, cpu_s=0.1),), cores=2.0, share_when_full=0.8)
    assert step_ms(busy) == pytest.approx(50 / 0.8, rel=0.06)


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


def test_a_copy_on_a_stream_of_its_own_goes_beside_the_computing():
    assert step_ms(parts(copy_s=0.005, copy_beside=True)) == pytest.approx(20, rel=0.02)
    assert step_ms(parts(copy_s=0.050, copy_beside=True)) == pytest.approx(50, rel=0.02)


def test_the_host_is_few_steps_ahead_of_the_device():
    quick = parts(works=(Work(wait_s=0.0, cpu_s=0.0001),))
    assert simulate(quick).epoch_s == pytest.approx(STEPS * 0.020, rel=0.01)


def test_what_is_done_now_and_then_on_the_host_is_waited_for_once_the_queue_is_empty():
    works = tuple(HostStep(wait_s=0.200 if k == 9 else 0.0, cpu_s=0.001) for k in range(10))
    # Three steps are queued when it begins: 60 of its 200 ms cost nothing.
    assert step_ms(parts(host=works)) == pytest.approx(20 + (200 - 60) / 10, rel=0.1)


def test_workers_that_start_delay_every_epoch_once():
    assert simulate(parts(startup_s=1.0)).epoch_s == pytest.approx(
        simulate(parts()).epoch_s + 1.0, rel=0.001
    )


def test_long_epochs_go_on_as_they_began():
    assert step_ms(parts(steps=4000)) == pytest.approx(step_ms(parts(steps=400)), rel=0.01)


def test_it_says_what_the_host_waited_and_the_device_worked():
    slow = simulate(parts(works=(Work(wait_s=0.0, cpu_s=0.100),)))
    assert slow.device_busy_s == pytest.approx(STEPS * 0.020)
    assert slow.wait_s > 0.5 * slow.epoch_s
    assert simulate(replace(parts(), works=(Work(wait_s=0.0, cpu_s=0.0),))).wait_s < 0.01
