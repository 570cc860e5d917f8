"""The timeline's chart: zero-based axes, nothing cut, and what GPU-Util does not say under it.

Run: python -m pytest tests/test_timeline_chart.py
"""

from dataclasses import replace

import pytest
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written, texts

from labkit.diagnosis.timeline import NO_CORES, NO_CUDA, NO_READS, Timeline
from labkit.report.timeline_chart import EMULATED, GPU_UTIL, timeline_chart

N = 40
LABEL = "emulated(resnet50_a100, 1.09 ms/image)"
STEPS = [0.1 * i for i in range(N)]
EMPTY = Timeline(
    duration_s=4.0,
    at_s=tuple(0.1 * (i + 1) for i in range(N)),
    cores=tuple((0.1, 0.9) if i % 2 else (0.5, 0.2) for i in range(N)),
    read_bytes_per_s=tuple(2e7 if i < 10 else 0.0 for i in range(N)),
    host={
        "wait": tuple((at_s, at_s + 0.07) for at_s in STEPS),
        "compute": tuple((at_s + 0.07, at_s + 0.1) for at_s in STEPS),
    },
    missing={"gpu_util": NO_CUDA, "gpu_memory_bytes": NO_CUDA},
)
EMULATED_ONE = replace(
    EMPTY, device=tuple((at_s + 0.07, at_s + 0.1) for at_s in STEPS), device_label=LABEL
)
REAL = replace(
    EMPTY,
    gpu_util=tuple(None if i == 3 else 0.3 for i in range(N)),
    gpu_memory_bytes=tuple(4_000_000_000 + 10_000_000 * i for i in range(N)),
    missing={},
)
NOTHING = Timeline(
    duration_s=0.0,
    missing={
        "gpu_util": NO_CUDA, "gpu_memory_bytes": NO_CUDA, "cores": NO_CORES,
        "read_bytes_per_s": NO_READS,
    },
)  # fmt: skip
LONG = "一个很长的名字 with_an_identifier_of_many_letters_without_any_space"
MANY = replace(
    REAL,
    cores=tuple(None if i == 7 else tuple([0.5] * 192) for i in range(N)),
    read_bytes_per_s=tuple(0.0 for _ in range(N)),
    host={f"forward, part {i}": ((0.1 * i, 0.1 * i + 0.1),) for i in range(6)},
)
ALL = {
    "no GPU": EMPTY, "emulated": EMULATED_ONE, "real": REAL, "nothing": NOTHING, "many": MANY,
}  # fmt: skip


@pytest.mark.parametrize("title", ["Where does the time go?", f"{LONG} {LONG}"])
@pytest.mark.parametrize("timeline", ALL.values(), ids=ALL.keys())
def test_no_text_is_clipped_and_no_two_texts_overlap(timeline, title):
    figure = timeline_chart(timeline, title)
    check_that_all_texts_are_whole_and_apart(figure)
    assert min(text.get_fontsize() for text in texts(figure)) >= 5


@pytest.mark.parametrize("timeline", ALL.values(), ids=ALL.keys())
def test_all_rows_share_one_axis_of_time_and_begin_at_zero(timeline):
    for axes in timeline_chart(timeline).axes:
        assert axes.get_xlim() == (0, timeline.duration_s or 1.0)
        assert min(axes.get_ylim()) == 0


@pytest.mark.parametrize(
    ("timeline", "foot"), [(REAL, GPU_UTIL), (EMPTY, GPU_UTIL), (EMULATED_ONE, EMULATED)]
)
def test_under_it_stands_what_gpu_util_does_and_does_not_say(timeline, foot):
    figure = timeline_chart(timeline)
    assert foot in everything_written(figure)
    assert foot in figure.get_label()


def test_an_emulated_device_is_called_so_and_its_share_is_right():
    written = everything_written(timeline_chart(EMULATED_ONE))
    assert "Emulated accelerator" in written
    assert f"device computing, 30.0 % of the time: {LABEL}" in written
    assert "Emulated" not in everything_written(timeline_chart(REAL)).split("GPU-Util")[0]


def test_what_was_not_measured_says_why_and_is_no_zero():
    figure = timeline_chart(NOTHING)
    written = everything_written(figure)
    assert figure.axes == []
    for why in (NO_CUDA, NO_CORES, NO_READS, "nothing was marked"):
        assert why in written
        assert why in figure.get_label()
    assert " 0" not in written.split("GPU-Util is")[0]
