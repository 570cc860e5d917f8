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
from labkit.parts.decoding import DECODERS
from labkit.parts.operations import Operation, make_picture
from labkit.parts.packing.folder import open_folder, write_folder
from labkit.runs.operation_trials import (
    AGREEMENTS,
    OPERATIONS,
    compare_operations,
    difference,
    draw_labels,
    time_calls,
)

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
    found = np.asarray(OPERATIONS[key].run(given))
    assert not np.shares_memory(found, np.asarray(given))
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
    found = difference(view, view.copy(), AGREEMENTS["crop"])
    assert found == "output must be contiguous, got a strided view"


def test_other_work_fails_and_a_missing_library_is_skipped(photos, monkeypatch):
    def missing(pixels):
        raise ImportError("pip install it")

    table = {
        ("crop", "first"): Operation(lambda p: p.pixels, np.copy),
        ("crop", "same"): Operation(lambda p: p.pixels, np.copy),
        ("crop", "lazy"): Operation(lambda p: p.pixels, lambda pixels: pixels[:1].copy()),
        ("crop", "missing"): Operation(lambda p: p.pixels, missing),
    }
    for key, operation in table.items():
        monkeypatch.setitem(OPERATIONS, key, operation)
    verdicts = compare_operations(lab.Settings(data=str(photos)), tasks_of(table))
    assert verdicts["crop same"] == ("ok", "")
    assert verdicts["crop missing"] == ("skipped", "pip install it")
    status, reason = verdicts["crop lazy"]
    assert status == "failed" and "not the same work as first: output must be" in reason


# --- timing -------------------------------------------------------------------------------


def timed(inputs, seconds):
    """Time calls that take as many seconds as their input says."""
    clock, calls = FakeClock(), []

    def call(given):
        calls.append((given, gc.isenabled()))
        clock.sleep(given)

    return SimpleNamespace(found=time_calls(call, inputs, seconds, clock), calls=calls)


def test_every_input_is_called_as_often_until_all_calls_take_long_enough():
    run = timed([0.01, 0.03], seconds=0.1)
    # Two calls on the first to choose the number: 0.05 s of 0.01 s each are five.
    assert run.found == (pytest.approx(0.02), 10)
    assert [given for given, _ in run.calls] == [0.01] * 7 + [0.03] * 5


def test_nothing_is_collected_while_timing_and_the_collector_is_left_as_it_was():
    assert not any(collecting for _, collecting in timed([0.01], seconds=0.05).calls)
    assert gc.isenabled()
