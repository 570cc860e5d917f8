"""Every library does the same work, at every size, and none leaves a part of it undone.

Reference is the operation's first library; tolerances are those of the run's own gate.
"""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
from fake_clock import FakeClock
from jpegs import encode, photo, why_missing

import labkit as lab
from labkit.contracts import Annotation
from labkit.experiments.opencv_vs_pil import SIZES_PX
from labkit.parts import operations
from labkit.parts.decoding import DECODERS
from labkit.parts.operations import Operation, make_picture
from labkit.parts.packing.folder import open_folder, write_folder
from labkit.runs.operation_trials import (
    AGREEMENTS,
    INPUTS,
    Timed,
    all_operations,
    compare_operations,
    difference,
    draw_labels,
    time_operations,
)

OPERATIONS = {
    (name, library): operation
    for (name, library), operation in all_operations().items()
    if name not in INPUTS  # these take pictures
}
KEYS = [key for key in OPERATIONS if not why_missing(key[1])]


@pytest.fixture(scope="module")
def photos_rgb(photos):
    paths = sorted((photos / "images").glob("*.jpg"))[:3]
    return [DECODERS["opencv"](path.read_bytes()) for path in paths]


@pytest.fixture(scope="module")
def picture(photos_rgb):
    return make_picture(photos_rgb[0], 640, 480)


def tasks_of(table, width_px=320, height_px=240):
    size = {"width_px": width_px, "height_px": height_px}
    return {f"{o} {x}": {"operation": o, "library": x, **size} for o, x in table}


def run(key, picture):
    operation = OPERATIONS[key]
    return operation.run(operation.prepare(picture))


@pytest.mark.parametrize("size_px", SIZES_PX)
def test_all_libraries_do_the_same_work(photos, size_px):
    tasks = tasks_of(OPERATIONS, *size_px)
    verdicts = compare_operations(lab.Settings(data=str(photos)), tasks)
    for label, verdict in verdicts.items():
        missing = why_missing(tasks[label]["library"])
        status, reason = verdict
        assert status == ("skipped" if missing else "ok"), label
        assert ("is not installed" in reason) == bool(missing), label


@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_results_are_copies_and_leave_what_they_were_made_of_alone(key, picture):
    given = OPERATIONS[key].prepare(picture)
    if key[0] == "decode":
        assert not np.shares_memory(run(key, picture), np.frombuffer(given, np.uint8))
        return
    before = np.asarray(given).copy()
    result = np.asarray(OPERATIONS[key].run(given))
    assert not np.shares_memory(result, np.asarray(given))
    assert np.array_equal(np.asarray(given), before)


# --- look-ups -------------------------------------------------------------------------------


def test_a_label_is_drawn_for_each_box_from_all_names(photos):
    images = draw_labels(lab.Settings(data=str(photos)), 1000)
    reader = open_folder(photos)
    boxes = (len(reader.annotation(i).category_ids) for i in range(len(reader)))
    assert [len(image.wanted) for image in images] == sorted(boxes, reverse=True)
    places = [image.names.index(label) for image in images for label in image.wanted]
    assert np.mean(places) == pytest.approx(500, abs=150)
    assert len(set(places)) > 0.8 * len(places)


def test_data_without_boxes_has_no_labels_and_the_rest_is_compared(tmp_path):
    none = Annotation(boxes_xyxy=np.empty((0, 4), np.float32), category_ids=np.empty(0, np.int64))
    write_folder([("a.jpg", encode(photo()), none)], tmp_path, images=1, about={})
    tasks = {
        "label": {"operation": "label", "library": "dict", "names": 10},
        "configuration": {"operation": "configuration", "library": "parsed once", "kilobytes": 10},
    }
    verdicts = compare_operations(lab.Settings(data=str(tmp_path)), tasks)
    status, reason = verdicts.pop("label")
    assert (status, verdicts) == ("skipped", {"configuration": ("ok", "")})
    assert reason.startswith("data must have boxes to look up labels, got none in 1 images; ")


# --- the gate can fail --------------------------------------------------------------------


def test_a_view_is_not_a_finished_crop(picture):
    view = picture.pixels[30:450, 40:600]
    apart = difference(view, view.copy(), AGREEMENTS["crop"])
    assert apart == "output must be contiguous, got a strided view"


def missing(pixels):
    raise ImportError("pip install it")


def test_other_work_fails_and_a_missing_library_is_skipped(photos, monkeypatch):
    table = {
        ("crop", "first"): Operation(lambda p: p.pixels, np.copy),
        ("crop", "same"): Operation(lambda p: p.pixels, np.copy),
        ("crop", "lazy"): Operation(lambda p: p.pixels, lambda pixels: pixels[:1].copy()),
        ("crop", "missing"): Operation(lambda p: p.pixels, missing),
    }
    for key, operation in table.items():
        monkeypatch.setitem(operations.OPERATIONS, key, operation)
    verdicts = compare_operations(lab.Settings(data=str(photos)), tasks_of(table))
    assert verdicts["crop same"] == ("ok", "")
    assert verdicts["crop missing"] == ("skipped", "pip install it")
    status, reason = verdicts["crop lazy"]
    assert status == "failed" and "not the same work as first: output must be" in reason


# --- timing -------------------------------------------------------------------------------


def timed(inputs, seconds, slow=()):
    """Time calls that take as many seconds as their input; those of some numbers a second more."""
    clock, calls = FakeClock(), []

    def call(given):
        calls.append(gc.isenabled())
        clock.sleep(given + (len(calls) in slow))

    timed_operation = Timed.of(call, inputs, seconds, clock)
    chosen = len(calls)
    return SimpleNamespace(
        timed=timed_operation, chosen=chosen, call_s=timed_operation.measure(), calls=calls
    )


def test_a_repeat_is_long_and_a_round_has_as_many_as_take_the_seconds_asked_for():
    run = timed([2e-5, 6e-5], seconds=0.005)
    # 8 calls of the statement, which is both inputs, are 0.64 ms; 4 would be less than 0.5 ms.
    assert (run.timed.number, run.timed.repeats) == (8, 8)
    assert run.timed.calls == len(run.calls) - run.chosen == 128
    assert run.call_s == pytest.approx(4e-5)


def test_a_slow_operation_is_called_once_a_round_for_each_input():
    run = timed([0.3, 0.5], seconds=0.02)
    assert (run.timed.calls, run.call_s) == (2, pytest.approx(0.4))


def test_one_interrupted_call_changes_neither_the_choice_nor_the_time():
    quiet = timed([1e-5], seconds=0.005)
    first = timed([1e-5], seconds=0.005, slow={1})
    later = timed([1e-5], seconds=0.005, slow={quiet.chosen + 10})
    assert (first.timed.number, first.call_s) == (quiet.timed.number, pytest.approx(1e-5))
    assert later.call_s == pytest.approx(1e-5)


def test_nothing_is_collected_while_timing_and_the_collector_is_left_as_it_was():
    assert not any(timed([0.01], seconds=0.05).calls)
    assert gc.isenabled()


@pytest.mark.parametrize("is_there", [True, False], ids=["baseline", "no baseline"])
def test_a_group_is_timed_round_by_round_in_the_order_planned_with_its_baseline(
    photos, monkeypatch, is_there
):
    if not is_there:
        broken = Operation(lambda picture: picture.pixels, missing)
        monkeypatch.setitem(operations.OPERATIONS, ("crop", "pillow"), broken)
    tasks = tasks_of([("crop", "pillow"), ("crop", "numpy")])
    order = [("crop pillow", "A1"), ("crop numpy", ""), ("crop pillow", "A2")]
    planned = [
        {"block": block, "position": position, "variant": label, "role": role}
        for block in range(2)
        for position, (label, role) in enumerate(order)
    ]
    group = time_operations(lab.Settings(data=str(photos)), tasks, planned, seconds=0.001)
    verdict = ("ok", "") if is_there else ("skipped", "pip install it")
    assert group["verdicts"] == {"crop pillow": verdict, "crop numpy": ("ok", "")}
    names = ("block", "position", "variant", "role")
    timed = [{name: getattr(trial, name) for name in names} for trial in group["trials"]]
    assert timed == (planned if is_there else [])
    for trial in group["trials"]:
        assert trial.calls * trial.image_s > 0.0005
        assert trial.labels == {"input": "in memory", "threads": "1"}
        assert "steal_share" in trial.disturbance
