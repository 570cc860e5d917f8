"""Charts: they draw the right numbers on honest axes, and nothing is cut off or overlaps."""

import io
import math
import pickle
import re
from dataclasses import asdict, replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from fake_runs import (
    LOADING,
    fake_grouped_run,
    fake_groups,
    fake_machine_run,
    fake_roofline,
    their_run,
)
from fakes import (
    H200,
    MEDIA,
    REAL_DISK,
    THROTTLED_DISK,
    TIMES,
    fake_info,
    fake_media_info,
    fake_media_trials,
    fake_trial,
    fake_trials,
    judged_summary,
    make_summary,
)
from figure_checks import check_texts_are_whole_and_apart, everything_written, texts
from matplotlib.font_manager import fontManager
from matplotlib.image import imread

import labkit as lab
from labkit import units
from labkit.analysis.describe import epoch_bars
from labkit.analysis.roofline import pipelines
from labkit.analysis.summary import summarize
from labkit.diagnosis.timeline import Timeline
from labkit.experiments.catalog import CATALOG
from labkit.report import charts, figures, frames, words
from labkit.settings import Settings

SVG = "{http://www.w3.org/2000/svg}"
CHINESE = "当GPU利用率为零时，哪一种方法最有帮助？"
REASON = "no directory for this medium is configured: write one into labkit.toml and try again!"
LONG = "a variant with a very long name and_an_identifier_of_many_letters_without_any_space"


def points(axes, *, y=False):
    """The places of all drawn points, along the x axis or the y axis."""
    return [place for line in axes.lines for place in (line.get_ydata() if y else line.get_xdata())]


def marks(axes, marker, size=None):
    """The places along the x axis of all marks of one kind."""
    lines = [line for line in axes.lines if line.get_marker() == marker]
    return sorted(
        x for line in lines if size in (None, line.get_markersize()) for x in line.get_xdata()
    )


MEASURED, TRIAL, OUTLIER = 7, 3.5, 8  # sizes of marks


# --- files --------------------------------------------------------------------------------


def test_equal_summaries_give_equal_files_whatever_the_users_settings_of_matplotlib(tmp_path):
    first = figures.save(charts.dots(make_summary(published=TIMES)), tmp_path / "a.b")
    with matplotlib.rc_context({"font.size": 30, "savefig.dpi": 10, "axes.facecolor": "red"}):
        again = figures.save(charts.dots(make_summary(published=TIMES)), tmp_path / "again")
    assert [path.name for path in first] == ["a.b.png", "a.b.svg", "a.b.pdf"]
    for one, other in zip(first, again):
        assert one.read_bytes() == other.read_bytes()


def test_text_in_an_svg_is_text():
    figure = charts.dots(make_summary())
    nodes = list(ElementTree.fromstring(figures.to_bytes(figure, "svg")).iter(f"{SVG}text"))
    wanted = {line for t in texts(figure) for line in t.get_text().split("\n")}
    assert wanted <= {"".join(node.itertext()) for node in nodes}
    assert all("'DejaVu Sans', Verdana" in node.get("style") for node in nodes)


@pytest.mark.skipif(
    not {font.name for font in fontManager.ttflist} & set(figures.CJK_FONTS),
    reason="no CJK font is installed",
)
def test_chinese_is_written_with_a_font_that_has_it():
    drawn = []
    for label in ("原始", "预取"):  # without a font, both are two equal boxes
        png = figures.to_bytes(charts.dots(make_summary({label: 1.0, "b": 0.9})), "png")
        drawn.append(imread(io.BytesIO(png), format="png"))
    assert not np.array_equal(*drawn)


# --- normalized times -----------------------------------------------------------------------


@pytest.mark.parametrize("times", [TIMES, {"a": 1.0, "b": 0.99}, {"a": 1.0, "b": 40.0}])
def test_times_trials_and_published_figures_are_marks_on_one_axis_that_shows_1(times):
    summary = make_summary(times, published=dict.fromkeys(times, 0.891))
    figure = charts.dots(summary)
    (axes,) = figure.axes
    assert not axes.patches  # no bars
    assert marks(axes, "o", MEASURED) == sorted(row.normalized_time for row in summary.rows)
    assert marks(axes, "o", TRIAL) == sorted(x for row in summary.rows for x in row.ratios)
    assert marks(axes, "D") == [0.891] * (len(times) - 1)  # the baseline's is 1 by definition
    low, high = axes.get_xlim()
    assert low < min(1, *marks(axes, "o"), *marks(axes, "D"))
    assert high > max(1, *marks(axes, "o"))
    top, *below = (line.get_ydata()[0] for line in axes.lines if line.get_markersize() == MEASURED)
    assert top < below[0] and axes.yaxis_inverted()  # the first row is the highest
    written = everything_written(figure)
    assert ("logarithmic axis" in written) == (40.0 in times.values())
    for part in ("Simulated GPU", "baseline", "published", "95 % confidence interval"):
        assert part in written


def test_noise_does_not_fill_the_axis_and_an_interval_that_leaves_it_ends_in_an_arrow():
    (axes,) = charts.dots(make_summary({"a": 1.0, "b": 1.0}, noise=0.001)).axes
    low, high = axes.get_xlim()
    assert high - low == pytest.approx(0.1)
    summary = make_summary({"a": 1.0, "b": 1.0}, blocks=2, noise=0.5)
    (axes,) = charts.dots(summary).axes
    low, high = axes.get_xlim()
    assert summary.rows[1].ci_low < low and summary.rows[1].ci_high > high
    assert (marks(axes, "<"), marks(axes, ">")) == ([low], [high])


def test_verdicts_stand_beside_their_marks_and_an_outlier_has_a_mark_of_its_own():
    summary = judged_summary()
    figure = charts.dots(summary)
    (axes,) = figure.axes
    outliers = [row.ratios[i] for row in summary.rows for i in row.outliers]
    assert marks(axes, "o", OUTLIER) == outliers != []
    assert max(outliers) < axes.get_xlim()[1]
    written = everything_written(figure)
    assert all(row.verdict in written for row in summary.rows)
    assert "outlier" in written
    assert "outlier" not in everything_written(charts.dots(make_summary()))


def test_the_alternative_text_holds_all_that_the_chart_shows_and_where_it_comes_from():
    provenance = {"machine_id": "7a93da180d42", "cores": 2, "cpu_model": "A CPU with a name " * 5}
    skipped = {"dali": "not installed", "spdl": "not shared"}
    summary = make_summary(published=TIMES, provenance=provenance, skipped=skipped)
    summary = replace(summary, run="20261121T191222Z-1f2e")
    figure, row = charts.dots(summary), summary.rows[1]
    text, origin, written = figure.get_label(), words.origin(summary), everything_written(figure)
    assert figure.labkit_caption == origin
    assert origin not in written  # below the picture, and in its file
    assert text.endswith(f" {origin}.")
    assert text.startswith(f"{words.headline(summary)}. {summary.question}")
    interval = units.interval(row.ci_low, row.ci_high)
    for part in (
        "Simulated GPU",
        "quick mode · 3 blocks",
        f"prefetch_generator: {row.normalized_time:.3f}, {interval}, published 0.894.",
        "dali: skipped: not installed.",
    ):
        assert part in text
    assert "\n" not in text
    # A skipped variant is below the axes, with its reason unless a share file left that out.
    assert "dali: skipped: not installed" in written
    assert "spdl: skipped" in written and "shared" not in written
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == [*TIMES]


# --- epochs ---------------------------------------------------------------------------------


def media_summary(media=MEDIA, *, blocks=3, noise=0.005, **info):
    trials = fake_media_trials(media, blocks=blocks, noise=noise)
    return summarize(fake_media_info(media, **info), trials)


def test_epochs_are_marks_in_seconds_and_beside_them_is_where_the_bytes_came_from():
    # A trial that is not known to be cold would not count, one taken as found does.
    unknown = replace(
        MEDIA["ssd"], cache="as found", read_share=None, resident_share=None, swapped_pages=None
    )
    longer = replace(MEDIA["tmpfs"], epochs_s=(*MEDIA["tmpfs"].epochs_s, 1.0), swapped_pages=1_000)
    summary = media_summary({**MEDIA, "ssd": unknown, "t": longer}, skipped={"nvme": REASON})
    figure = charts.epochs(summary)
    (axes,) = figure.axes
    drawn = [bar for row in summary.rows for bar in epoch_bars(row)]
    means = [*marks(axes, "o", MEASURED), *marks(axes, "s", MEASURED)]
    assert sorted(means) == pytest.approx(sorted(bar.mean_s for bar in drawn))
    assert marks(axes, "o", TRIAL) == sorted(x for bar in drawn for x in bar.all_s)
    assert axes.get_xlim()[0] == 0
    written = everything_written(figure)
    for part in ("0.0 % (cold)", "50.1 %", "100.0 % (warm)", "unknown (as found)", "3,000"):
        assert part in written
    assert "later epochs" in written
    assert "t: epochs 2 to 3 (mean)" not in written and "tmpfs: epoch 2 " in figure.get_label()
    assert f"nvme: skipped: {REASON}" in written
    assert "Throttled storage (7200 rpm: 81 reads/s, 106 MB/s)" in written


# --- side by side ---------------------------------------------------------------------------


def test_runs_share_one_axis_and_each_shows_its_own_numbers_machine_and_stand_ins():
    runs = [fake_machine_run(), their_run(), fake_machine_run({"original": 1.0, "slow": 7.0})]
    figure = lab.compare(runs)
    (axes,) = figure.axes
    rows = [(n, row) for n, run in enumerate(runs, 1) for row in run.summary.rows]
    assert marks(axes, "o", MEASURED) == sorted(row.normalized_time for _, row in rows)
    assert marks(axes, "o", TRIAL) == sorted(x for _, row in rows for x in row.ratios)
    hollow = [line for line in axes.lines if line.get_markersize() == MEASURED]
    hollow = [line for line in hollow if line.get_markerfacecolor() == "white"]
    assert len(hollow) == len(runs)  # a baseline each
    for n, row in rows:
        assert f"{n}: {row.variant}: {units.normalized(row.normalized_time)}" in figure.get_label()
    written = everything_written(figure)
    for part in (
        "Run 1: quick mode · 3 blocks · Simulated GPU, 460 images/s", "Run 2: full mode · 8 blocks",
        "2025-03-04 05:06 UTC", "16 cores", "NVIDIA H200 (machine abcdef)", "faster",
        "each run against its own baseline; no run is divided by another",
        "torch 2.13.0", "torch 2.12.0", "run mine", "run theirs",
    ):  # fmt: skip
        assert part in written
    assert "ada" not in written


@pytest.mark.parametrize(
    ("runs", "got"),
    [
        ([], "0 of none"),
        ([fake_machine_run(), fake_machine_run(experiment="storage")], "2 of prefetching, storage"),
        ([fake_grouped_run()], "1 of operations"),
    ],
)
def test_what_cannot_stand_side_by_side_is_refused_by_name(runs, got):
    message = f"runs must be of one experiment without groups, got {got}; show others"
    with pytest.raises(ValueError, match=re.escape(message)):
        lab.compare(runs)


# --- lines -----------------------------------------------------------------------------------

LOGS = {"every step": 1.05, "every 10 steps": 1.004, "every 100 steps": 1.0}
CURVES = [name for name in CATALOG if CATALOG[name](Settings()).x_axis]
RING = 12  # size of the mark from which on a cost is negligible


def curve_summary(name, times, *, blocks=10, noise=0.0005, **info):
    """A run of an experiment of the catalog in full mode; the baseline's time is 1."""
    experiment = CATALOG[name](Settings(data="data/photos"))
    known = experiment.settings
    times = {experiment.baseline: 1.0, **times}
    labels = [*times, *info.get("skipped", {})]
    made = {
        "experiment": name, "mode": "full", "source": experiment.source, "blocks": blocks,
        "x_axis": asdict(experiment.x_axis), "variants": {x: asdict(known[x]) for x in labels},
    }  # fmt: skip
    info = fake_info(labels, **{**info, **made})
    return summarize(info, fake_trials(times, blocks=blocks, noise=noise) if blocks else [])


def all_of(name, time=1.2):
    """Every variant but the baseline; `time` is that of whatever is done every step."""
    experiment = CATALOG[name](Settings(data="data/photos"))
    labels = [label for label in experiment.variants if label != experiment.baseline]
    steps = {x: next((n for n in (100, 10) if f"every {n} steps" in x), 1) for x in labels}
    return {label: 1 + (time - 1) / n for label, n in steps.items()}


def curve(name="logs", times=LOGS, **more):
    return charts.lines(curve_summary(name, times, **more))


def varied(settings, **info):
    """A run whose variants have these settings; the first is the baseline."""
    times = dict(zip(settings, (1.0, 0.8, 0.6, 1.1, 0.9)))
    made = {"experiment": "mine", "blocks": 3, "variants": settings, **info}
    return summarize(fake_info([*settings], **made), fake_trials(times))


def varied_in_groups(groups, **info):
    """The same of group -> name -> settings; each number takes its own time."""

    def make(group, name, block, role):
        place = list(groups).index(group) + 3 * list(groups[group]).index(name)
        return fake_trial(name, block, role, 2.0 + 0.1 * place + 0.01 * block)

    told, trials = fake_groups(groups, make)
    settings = {f"{group}: {name}": s for group, arms in groups.items() for name, s in arms.items()}
    return summarize(fake_info([*settings], variants=settings, **{**told, **info}), trials)


def xs_of(summary):
    axis = frames.find_axis(summary)
    return axis and (axis.setting, list(axis.x.values()))


WORKERS = {"many": {"num_workers": 4}, "none": {"num_workers": 0}, "two": {"num_workers": 2}}
LINKS = {"none": {"exchange": "noop"}} | {f"{n}": {"exchange": f"{n}mbit"} for n in (400, 50, 100)}
GPUS = {f"{n} GPUs": {"ranks": n} for n in (1, 2, 4)}
DISKS = {
    f"{n} % in memory": {
        "hard disk": {"cache": n, "storage": "hdd"}, "SSD": {"cache": n, "storage": "ssd"}
    }
    for n in (0, 50, 100)
}  # fmt: skip


@pytest.mark.parametrize(
    ("summary", "xs"),
    [
        (varied(WORKERS), ("num_workers", [4, 0, 2])),
        (varied({f"{n}": {"batch_size": n} for n in (16, 4, 8)}), ("batch_size", [16, 4, 8])),
        (varied_in_groups({"2 machines": LINKS}), ("exchange", ["none", 400, 50, 100])),
        (varied_in_groups({"slow": GPUS, "fast": GPUS}), ("ranks", [1, 2, 4, 1, 2, 4])),
        (varied_in_groups(DISKS), ("cache", [0, 0, 50, 50, 100, 100])),
        # Two numbers make no line, nor do names; and what differs in nothing else has one place.
        (varied({"a": {"num_workers": 4}, "b": {"num_workers": 2}}), None),
        (varied({name: {"decoder": name} for name in ("pillow", "opencv", "simplejpeg")}), None),
        (varied({**WORKERS, "two, again": {"num_workers": 2}}), None),
        (varied(WORKERS, protocol="as in the document"), None),
    ],
)  # fmt: skip
def test_variants_that_vary_a_number_lie_on_its_axis(summary, xs):
    assert xs_of(summary) == xs
    assert next(iter(charts.kinds(summary))) == ("lines" if xs else "dots")


def test_lines_over_a_number_are_in_order_with_an_ideal_or_in_seconds_from_0():
    # What has no number is right of the others, and not on the line.
    (axes,) = charts.lines(varied_in_groups({"2 machines": LINKS})).axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["50", "100", "400", "none"]
    (line,) = (line for line in axes.lines if len(line.get_xdata()) == 3)
    assert list(line.get_xdata()) == [0, 1, 2]
    # Several GPUs have an ideal.
    figure = charts.lines(varied_in_groups({"slow": GPUS}))
    (axes,) = figure.axes
    assert [1, 0.5, 0.25] in [list(line.get_ydata()) for line in axes.lines]
    assert axes.get_ylim()[0] < 0.25
    assert "ideal" in everything_written(figure)
    # Of another baseline than the fewest, too.
    other = varied_in_groups({"slow": dict(sorted(GPUS.items(), reverse=True))})
    (axes,) = charts.lines(other).axes
    assert [4, 2, 1] in [list(line.get_ydata()) for line in axes.lines]
    # Where each number has a baseline, times are seconds.
    summary = varied_in_groups(DISKS)
    (axes,) = charts.lines(summary).axes
    rows = [[r.time_s for r in summary.rows if r.name == name] for name in DISKS["0 % in memory"]]
    assert [list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) == 3] == rows
    assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize("name", CURVES)
def test_every_variant_of_an_experiment_over_steps_has_its_place(name):
    summary = curve_summary(name, all_of(name))
    axis = frames.find_axis(summary)
    table = frames.over_axis(summary, axis)
    assert len(table) == len(all_of(name)) + 1  # and the baseline
    assert set(table.value) <= set(points(charts.lines(summary).axes[0], y=True))
    # A series is named by what else differs from the baseline.
    named = {
        "checkpoints": {"", "checkpoint_writer thread", "checkpoint_to tmpfs"},
        "evaluation": {"", "metrics loops", "metrics vectorized"},
    }
    series = set(axis.series.values())
    assert series == named.get(name, series)


def test_an_axis_over_steps_shows_the_documents_advice():
    figure = curve(times={"every step": 1.2})  # also where nobody measured the advice
    (axes,) = figure.axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "100", "never"]
    (band,) = axes.patches
    assert band.get_x() < 1 < band.get_x() + band.get_width()
    assert "[001] 5.1: every 100 steps" in everything_written(figure)
    assert not curve("checkpoints", {"every 10 steps": 1.3}).axes[0].patches


@pytest.mark.parametrize(
    ("times", "more", "place"),
    [
        (LOGS, {}, 1),
        # A cheap point before a costly one does not count.
        ({"every step": 1.0, "every 10 steps": 1.1, "every 100 steps": 1.0}, {}, 2),
        ({"every 100 steps": 1.5}, {}, None),
        ({"every 100 steps": 1.0}, {"noise": 0.1}, None),
    ],
)
def test_a_line_over_steps_marks_from_how_many_on_the_cost_is_negligible(times, more, place):
    figure = curve(times=times, **more)
    rings = [line for line in figure.axes[0].lines if line.get_markersize() == RING]
    assert [round(ring.get_xdata()[0]) for ring in rings] == ([] if place is None else [place])
    told = "" if place is None else f"less than 1 % from {list(LOGS)[place]}."
    assert ("less than 1 %" in figure.get_label()) is bool(told)
    assert told in figure.get_label()
    assert ("less than 1 % from here" in everything_written(figure)) is bool(told)


def test_no_cost_is_called_negligible_beside_a_baseline_that_has_it_too():
    summary = curve_summary("logs", {"every step": 1.05, "every 100 steps": 1.0})
    info = replace(summary.info, baseline="every step")
    trials = fake_trials({"every step": 1.0, "every 100 steps": 0.95}, blocks=10, noise=0.0005)
    figure = charts.lines(summarize(info, trials))
    assert not [line for line in figure.axes[0].lines if line.get_markersize() == RING]
    assert "less than 1 %" not in figure.get_label()


# --- groups -----------------------------------------------------------------------------------


def test_sizes_of_one_operation_stand_side_by_side_on_shared_axes():
    groups = ["resize, antialiased, 320×240", "resize, antialiased, 640×480"]
    run = fake_grouped_run({group: {"pillow": 1.0, "torch": 0.3} for group in groups})
    figure = charts.dots(run.summary)
    axes, label = figure.axes, figure.get_label()
    assert [one.get_title(loc="left") for one in axes] == ["320×240", "640×480"]
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["resize, antialiased"]
    assert axes[0].get_xlim() == axes[1].get_xlim()
    left, right = (one.get_position() for one in axes)
    assert left.y0 == right.y0 and left.x1 < right.x0
    assert "torch" in everything_written(figure)  # in the legend
    assert all(units.seconds(row.time_s) in label for row in run.summary.rows)


# --- roofline -------------------------------------------------------------------------------


def roofline(*given, **more):
    return charts.roofline(fake_roofline(*given, **more).summary)


def test_every_measured_speed_is_a_dot_and_each_line_ends_in_its_name():
    figure = roofline(noise=0.0, overlap=1.0)
    (axes,) = figure.axes
    dots = {
        line.get_marker(): list(zip(line.get_xdata(), line.get_ydata()))
        for line in axes.lines
        if len(line.get_xdata()) == 7
    }
    assert len(dots) == 3  # told apart without colour
    devices = [210 * x for x in (0.5, 1, 1.4, 2, 2.8, 4, 8)]
    for rate, points in zip((210, 260, 400), dots.values()):
        assert points == [pytest.approx((x, min(x, rate))) for x in devices]
    said = everything_written(figure)
    for name in ("simplified: 400", "vectorized: 260", "original: 210", "simulated GPU: 480"):
        assert name in said
    assert "At a GPU speed of 420 images/s: 210 → 400 images/s simplified" in said
    (ground,) = axes.patches  # from the baseline's bend to the end
    assert ground.get_x() == pytest.approx(210)
    assert ground.get_x() + ground.get_width() == pytest.approx(axes.get_xlim()[1])


def test_a_roofline_states_what_was_measured_next_to_this_device():
    figure = roofline(noise=0.001, overlap=1.0, published={"original": 1.0, "simplified": 0.661})
    expected = (
        "With a GPU of 420 images/s (nearest to simulated GPU: 480): vectorized 260, "
        "simplified 400 instead of 210 images/s"
    )
    assert expected in everything_written(figure)
    assert expected in figure.get_label()
    assert everything_written(figure).count("logarithmic axis") == 2


def test_a_roofline_marks_what_does_not_differ_or_was_not_measured_and_shows_intervals_whole():
    run = fake_roofline({"original": 210.0, "thread": 210.0, "simplified": 400.0}, noise=0.1)
    labels = [f"x = 8: {name}" for name in ("original", "thread", "simplified")]
    run = replace(
        run,
        info=replace(run.info, skipped=dict.fromkeys(labels, "no free loader")),
        trials=tuple(trial for trial in run.trials if trial.variant not in labels),
    )
    figure = charts.roofline(run.summary)
    expected = r": thread \d+ \(no difference shown\), simplified \d+ instead of \d+ images/s\."
    assert re.search(expected, figure.get_label())
    left_out = "“original”, “thread”, “simplified” at x = 8: skipped: no free loader"
    assert left_out in everything_written(figure) and left_out in figure.get_label()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    for pipeline in pipelines(run.summary):
        assert all(low < point.low and point.high < high for point in pipeline.points)
    equal = roofline({"original": 210.0, "thread": 211.0}, noise=0.05).get_label()
    assert equal.startswith(
        "At a GPU speed of 420 images/s, no pipeline is measurably faster than original"
    )


# --- timeline -------------------------------------------------------------------------------

N = 40
LABEL = "simulated GPU, 920 images/s, resnet50_a100"
STEPS = [0.1 * i for i in range(N)]
CORES = {f"core {n}": [(0.5, 0.2)[n], (0.1, 0.9)[n]] * (N // 2) for n in range(2)}
READ = pd.DataFrame(
    {**CORES, "read_bytes_per_s": [2e7] * 10 + [0.0] * (N - 10)},
    index=[0.1 * (i + 1) for i in range(N)],
)
NO_GPU = Timeline(
    duration_s=4.0,
    samples=READ,
    why_no_gpu="torch used no GPU",
    host={
        "wait": tuple((at_s, at_s + 0.07) for at_s in STEPS),
        "compute": tuple((at_s + 0.07, at_s + 0.1) for at_s in STEPS),
    },
)
SIMULATED = replace(
    NO_GPU, device=tuple((at_s + 0.07, at_s + 0.1) for at_s in STEPS), device_label=LABEL
)
GPU = {
    "gpu_util": [None if i == 3 else 0.3 for i in range(N)],
    "gpu_memory_bytes": [4e9 + 1e7 * i for i in range(N)],
}
REAL = replace(NO_GPU, samples=READ.assign(**GPU))
NOTHING = Timeline(
    duration_s=0.0, samples=pd.DataFrame({"gpu_util": [math.nan]}), why_no_gpu="torch used no GPU"
)
MANY_CORES = {f"core {n}": [None if i == 7 else 0.5 for i in range(N)] for n in range(192)}
MANY = replace(
    REAL,
    samples=pd.DataFrame(
        {**MANY_CORES, **GPU, "read_bytes_per_s": 0.0}, index=READ.index, dtype=float
    ),
    host={f"forward, part {i}": ((0.1 * i, 0.1 * i + 0.1),) for i in range(6)},
)


@pytest.mark.parametrize(
    ("timeline", "parts"),
    [
        (REAL, [charts.GPU_UTIL]),
        (NO_GPU, [charts.GPU_UTIL]),
        (SIMULATED, [charts.SIMULATED]),
        (NOTHING, ["torch used no GPU", "its cores' time", "a process fetched", "was marked"]),
    ],
)
def test_panels_of_a_timeline_share_one_axis_of_time_and_name_what_they_lack(timeline, parts):
    figure = charts.timeline(timeline)
    written = everything_written(figure)
    assert bool(figure.axes) is (timeline is not NOTHING)
    for axes in figure.axes:
        assert axes.get_xlim() == (0, timeline.duration_s)
        assert min(axes.get_ylim()) == 0
    assert all(part in written and part in figure.get_label() for part in parts)
    if timeline is SIMULATED:
        assert "Simulated GPU" in written
        assert f"device computing, 30.0 % of the time: {LABEL}" in written


# --- geometry -------------------------------------------------------------------------------


def with_epochs(change):
    return {name: replace(m, epochs_s=change(m.epochs_s)) for name, m in MEDIA.items()}


def long_names(values):
    return {f"{name} {LONG}": value for name, value in values.items()}


NO_ROOM = dict.fromkeys(LOGS, "no room")
NO_ROWS = replace(fake_machine_run(skipped={"dali": REASON}), trials=())
AWKWARD = {
    "nothing measured": lambda: charts.dots(make_summary({}, skipped={"a": REASON, "b": ""})),
    "sixteen long names": lambda: charts.dots(
        make_summary({f"{LONG} {i}": 1 + 0.1 * i for i in range(16)}, question=f"{LONG}? " * 3)
    ),
    "long reason": lambda: charts.dots(make_summary(skipped={LONG: REASON * 3})),
    "hundredfold noise": lambda: charts.dots(
        make_summary({"a": 1.0, "b": 40.0, "c": 0.01}, blocks=2, noise=1.0)
    ),
    "Chinese": lambda: charts.dots(
        make_summary({"原始": 1.0, "预取" * 20: 0.9}, question=CHINESE * 4)
    ),
    "judged": lambda: charts.dots(judged_summary(published={"hdd": 1.0, "ssd": 0.86})),
    "dollars": lambda: charts.dots(make_summary({"$HOME": 1.0, "$a_b$ \\frac": 0.9})),
    "published far away": lambda: charts.dots(make_summary(published={"data_prefetcher": 7.5})),
    "epochs, long names": lambda: charts.epochs(
        media_summary(long_names(MEDIA), skipped={"nvme": REASON * 4})
    ),
    "epochs, nothing": lambda: charts.epochs(
        summarize(fake_media_info(skipped=dict.fromkeys(MEDIA, "no disk")), [])
    ),
    "six runs": lambda: lab.compare([fake_machine_run(), their_run()] * 3),
    "runs, long names": lambda: lab.compare(
        [fake_machine_run(long_names(TIMES), name=LONG), their_run()]
    ),
    "runs, nothing": lambda: lab.compare([NO_ROWS, their_run(), NO_ROWS]),
    "curve": lambda: curve("logs", all_of("logs")),
    "curve, much noise": lambda: curve(
        "metric_reports", all_of("metric_reports"), noise=0.4, blocks=2
    ),
    "curve, nothing": lambda: curve("logs", {}, skipped=NO_ROOM, blocks=0),
    "operations": lambda: charts.dots(fake_grouped_run().summary),
    "memory": lambda: charts.lines(varied_in_groups(DISKS, question=f"{LONG}? " * 3)),
    "links, long names": lambda: charts.lines(
        varied_in_groups({LONG: long_names(LINKS)}, skipped={f"{LONG}: 400 {LONG}": REASON})
    ),
    "roofline": lambda: roofline(published={"simplified": 0.661}),
    "roofline, all alike": lambda: roofline(dict.fromkeys("abcdefgh", 210.0), speeds=(1, 2)),
    "roofline, long names": lambda: roofline(long_names(LOADING), noise=0.2, device=20_000.0),
    "roofline, nothing": lambda: roofline(blocks=0),
    "timeline, nothing": lambda: charts.timeline(NOTHING, f"{LONG} {LONG}"),
    "timeline, many": lambda: charts.timeline(MANY, CHINESE * 3),
}


@pytest.mark.parametrize("draw", AWKWARD.values(), ids=AWKWARD.keys())
def test_no_text_is_cut_off_or_overlaps_on_screen_and_in_print(draw):
    figure = draw()
    check_texts_are_whole_and_apart(figure)
    check_texts_are_whole_and_apart(figure, dpi=300)
    assert min(text.get_fontsize() for text in texts(figure)) >= 8  # can be read in print


# --- answers and utilization ------------------------------------------------------------------


def noisy_summary():
    """Noise alone explains that the variant `noisy` is the fastest."""
    times = {"original": 1.0, "noisy": 0.88, "steady": 0.9, "equal": 1.0}
    trials, noise = fake_trials(times, noise=0.001), iter((0.955, 1.0, 1.045))
    for place, trial in enumerate(trials):
        factor = next(noise) if trial.variant == "noisy" else 1
        epochs = tuple(replace(e, epoch_s=e.epoch_s * factor) for e in trial.epochs)
        trials[place] = replace(trial, epochs=epochs)
    return summarize(fake_info([*times]), trials)


def grouped_summary():
    groups = {"2 machines": {"alone": 1.0, "slow": 4.0}, "4 machines": {"alone": 1.0, "slow": 0.5}}
    info, trials = fake_groups(
        groups, lambda group, name, *_: fake_trial(name, 0, time_s=2 * groups[group][name])
    )
    return summarize(fake_info([*info["groups"]], **info), trials)


OTHER_WORK = {"original": 1.0, "in order": 0.3, "fast": 0.5}


@pytest.mark.parametrize(
    ("summary", "title"),
    [
        (make_summary({"original": 1.0, "fast": 0.5}),
         r"\d+\.\d % less time with fast \[\d+\.\d %, \d+\.\d %\]"),
        (make_summary({"original": 1.0, "same": 1.0}),
         r"No clear difference between same and original: \S+ % \(\S+ to \S+ %\)"),
        (make_summary({"a": 1.0, "b": 1.0, "c": 1.0}),
         r"No variant is measurably faster than a \(95 % intervals from −.* to \+.*\)"),
        (make_summary({"a": 1.0, "b": 1.0, "c": 1.3}),
         r"1\.\d+ times as long with c as with a \[1.*, 1.*\]"),
        (make_summary(OTHER_WORK, variants={n: {"shuffle": n != "in order"} for n in OTHER_WORK}),
         r"\d\d\.\d % less time with fast \[.*\] \(\d\d\.\d % with in order: other work\)"),
        (noisy_summary(), r"\d\d\.\d % less time with steady \[.*\]"),
        (grouped_summary(), r"2 machines: 4\.00 times as long with slow as with alone; "
         r"4 machines: 50\.0 % less time with slow"),
    ],
)  # fmt: skip
def test_the_title_answers(summary, title):
    assert re.fullmatch(title, words.headline(summary))


def test_every_chart_says_what_the_photographs_are():
    data = {"images": 160, "bytes": 10**7, "kind": "photographs drawn by code"}
    run, published = fake_machine_run(data=data), {"data_prefetcher": 0.9}
    for figure in (
        charts.dots(run.summary),
        charts.compare([run]),
        charts.roofline(fake_roofline(data=data).summary),
        charts.overview([fake_machine_run(data=data, published=published).summary]),
    ):
        assert "data: photographs drawn by code" in figure.get_label()


def test_a_chart_says_what_an_image_takes_and_counts_long_names_on_simulated_storage():
    names = {f"{one} + a long name of a part": one for one in ("hdd", "hdd 2", "ssd")}
    trials = [
        replace(
            trial,
            hardware=(REAL_DISK if "ssd" in trial.variant else THROTTLED_DISK, H200),
            cache_proof={"file_bytes": 160 * (600_000 if "ssd" in trial.variant else 120_000)},
        )
        for trial in fake_trials({"original": 1.0, **dict.fromkeys(names, 1.0)})
    ]
    info = fake_info(["original", *names])
    written = everything_written(charts.dots(summarize(info, trials)))
    assert "120 KB an image" in written and "600 KB an image" in written
    assert "Throttled storage (81 reads/s): 3 of 4 variants" in written
    alike = [replace(trial, cache_proof={"file_bytes": 160 * 120_000}) for trial in trials]
    assert "an image" not in everything_written(charts.dots(summarize(info, alike)))


def test_utilization_is_drawn_before_and_after_the_fix_as_long_as_both_were_measured():
    summary = make_summary({"original": 1.0, "slower": 1.5, "fast": 0.5})
    figure = charts.utilization(summary)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["original", "fast"]
    # The fake device computes 70 % of every epoch.
    assert figure.get_label().startswith(
        "The GPU computes 70 % of the time with original, 70 % with fast."
    )
    fast_s = sum(epoch.epoch_s for trial in summary.rows[2].of_epochs for epoch in trial.epochs)
    assert figure.axes[0].get_xlim() == (0, pytest.approx(fast_s, abs=0.25))
    check_texts_are_whole_and_apart(figure)


def test_the_baseline_of_each_row_is_open_where_rows_have_several_marks():
    groups = {"decode, 640×480": {"pillow": 1.0, "opencv": 0.7}, "crop, 640×480": {"numpy": 1.0}}
    figure = charts.dots(fake_grouped_run(groups).summary)
    (axes,) = figure.axes
    open_marks = [
        line.get_xdata()[0]
        for line in axes.lines
        if line.get_markerfacecolor() == "white" and line.get_marker() in "os^DvPX<>"
    ]
    assert open_marks == [1, 1]
    assert "open: the baseline of its row" in everything_written(figure)
    legend = {text.get_text(): handle for text, handle in zip(
        figure.legends[0].get_texts(), figure.legends[0].legend_handles
    )}  # fmt: skip
    assert legend["pillow"].get_markerfacecolor() == legend["pillow"].get_color()


def test_a_chart_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(charts.dots(make_summary()))).get_label()
