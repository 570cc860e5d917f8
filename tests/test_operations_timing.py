"""Blocks of operations: what is timed, how often and in which order; by a clock that only
moves when an operation says so."""

import gc
import itertools

import numpy as np
import pytest
from fake_clock import FakeClock

from labkit.operations import Operation, make_picture
from labkit.operations_timing import PHOTOS, compare_work, time_block

PHOTOGRAPHS = [np.full((60, 80, 3), 10 * i, np.uint8) for i in range(PHOTOS)]
SIZES = [(32, 24), (64, 48)]


class Library:
    """An operation that takes a known time and remembers when it was called."""

    def __init__(self, clock, name, call_s, calls, *, result=0):
        self.clock, self.name, self.call_s, self.calls = clock, name, call_s, calls
        self.result = result

    def __call__(self, pixels):
        self.clock.sleep(self.call_s * pixels.shape[0])
        self.calls.append((self.name, pixels.shape[0], int(pixels[0, 0, 0]), gc.isenabled()))
        return np.full((2, 2), self.result, np.uint8)


def table(clock, calls, *, results=(0, 0), more=None):
    def operation(name, call_s, result=0):
        run = Library(clock, name, call_s, calls, result=result)
        return Operation(lambda picture: picture.pixels, run)

    return {
        ("decode", "pillow"): operation("A", 1e-5),
        ("crop", "pillow"): operation("B", 2e-5, results[0]),
        ("crop", "numpy"): operation("C", 3e-5, results[1]),
        **(more or {}),
    }


def block(*, order_seed="0/0", cell_s=0.1, calls=None, **how):
    clock, calls = FakeClock(), [] if calls is None else calls
    return time_block(
        PHOTOGRAPHS,
        SIZES,
        cell_s=cell_s,
        order_seed=order_seed,
        clock=clock,
        operations=table(clock, calls, **how),
    )


def test_every_cell_gets_a_row_with_its_time_per_image():
    rows = block()
    times = {
        (row["operation"], row["library"], row["size"], row["role"]): row["image_s"] for row in rows
    }
    expected = {
        ("decode", "pillow", "A1"): 1e-5, ("decode", "pillow", "A2"): 1e-5,
        ("crop", "pillow", ""): 2e-5, ("crop", "numpy", ""): 3e-5,
    }  # fmt: skip
    assert times == {
        (name, library, f"{width}x{height}", role): pytest.approx(call_s * height)
        for (name, library, role), call_s in expected.items()
        for width, height in SIZES
    }
    assert {row["status"] for row in rows} == {"ok"}


@pytest.mark.parametrize("cell_s", [0.0, 0.001, 0.5])
def test_calls_are_repeated_until_they_take_long_enough_together(cell_s):
    for row in block(cell_s=cell_s):
        together_s = row["repeats"] * row["image_s"]
        assert together_s >= cell_s * 0.999
        assert row["repeats"] % PHOTOS == 0
        # And not far longer: at most one call more per photograph.
        assert together_s <= cell_s + 1.001 * PHOTOS * row["image_s"]


def test_every_photograph_is_used_alike():
    calls = []
    rows = block(calls=calls, cell_s=0.02)
    timed = [call for call in calls if not call[3]]
    assert {value for _, _, value, _ in timed} == {0, 10, 20, 30}
    assert len({row["repeats"] for row in rows}) > 1
    # Two tries and one comparison come before, on the first photograph alone.
    counts = [sum(call[2] == value for call in timed) for value in (10, 20, 30)]
    assert len(set(counts)) == 1


def test_all_cells_are_interleaved_in_an_order_that_the_seed_gives():
    def order(seed):
        calls = []
        block(calls=calls, cell_s=0.02, order_seed=seed)
        timed = [call[:3] for call in calls if not call[3] and call[2] == 20]  # one round
        return [visit for visit, _ in itertools.groupby(timed)]

    assert order("0/0") == order("0/0")
    assert len({tuple(order(f"0/{b}")) for b in range(4)}) > 1
    assert {height for _, height, _ in order("0/0")} == {24, 48}


def test_nothing_is_collected_while_timing_and_the_collector_is_left_as_it_was():
    calls = []
    block(calls=calls)
    assert gc.isenabled()
    compared = 2 * 3  # sizes, operations: the comparison before
    assert [call[3] for call in calls[:compared]] == [True] * compared
    assert not any(call[3] for call in calls[compared:])


def test_a_library_that_does_other_work_is_a_row_with_its_reason_and_never_timed():
    calls = []
    rows = block(results=(0, 1), calls=calls)
    (small, large) = (row for row in rows if row["library"] == "numpy")
    assert small["status"] == large["status"] == "failed"
    assert small["reason"].startswith("ValueError: not the same work as pillow: 100.0 % of the")
    assert small["image_s"] is None
    assert [name for name, *_ in calls].count("C") == len(SIZES)  # once each, to compare


def pixels_to(run):
    return Operation(lambda picture: picture.pixels, run)


def compare(more):
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    mirror = pixels_to(lambda pixels: pixels[:, ::-1].copy())
    operations = {("flip", name): operation for name, operation in more.items()}
    return compare_work(make_picture(noise, 64, 48), {**operations, ("flip", "numpy"): mirror})


def test_a_missing_library_is_skipped_and_a_broken_one_fails_without_stopping_the_others():
    def missing(pixels):
        raise ImportError("No module named 'nothere'")

    def broken(pixels):
        raise RuntimeError("out of luck")

    assert compare({"missing": pixels_to(missing), "broken": pixels_to(broken)}) == {
        ("flip", "missing"): ("skipped", "No module named 'nothere'"),
        ("flip", "broken"): ("failed", "RuntimeError: out of luck"),
        ("flip", "numpy"): ("ok", ""),
    }


def test_a_reference_that_fails_its_own_check_judges_nobody():
    verdicts = compare({"view": pixels_to(lambda pixels: pixels[:, ::-1])})
    assert verdicts["flip", "view"][0] == "failed"
    assert verdicts["flip", "numpy"] == ("ok", "")
