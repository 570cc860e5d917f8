"""The chart of single epochs: honest axes, the proof beside every bar, and nothing cut off.

Run: python -m pytest tests/test_epoch_chart.py
"""

from dataclasses import replace

import pytest
from fakes import MEDIA, fake_media_info, fake_media_trials
from figure_checks import check_that_all_texts_are_whole_and_apart, everything_written, texts

from labkit import units
from labkit.analysis.summary import summarize
from labkit.report import row_words
from labkit.report.epoch_chart import epoch_chart

LONG = "on a file system with a very long name and_an_identifier_of_letters_without_any_space"
SKIPPED = {"nvme": "nvme is not named on this machine; name a folder on it with: labkit doctor"}
DOUBTFUL = "unknown(claims to be rotational, 6,012 cold reads/s)"


def make_summary(media=MEDIA, *, blocks=3, noise=0.005, **info):
    info = fake_media_info(media, **info)
    for name in info.get("skipped", {}):
        info["variants"][name] = {"storage": name, "cache": "cold"}
    return summarize(info, fake_media_trials(media, blocks=blocks, noise=noise))


def with_epochs(change):
    return {name: replace(m, epochs_s=change(m.epochs_s)) for name, m in MEDIA.items()}


def test_bars_are_as_long_as_the_epochs_and_the_axis_starts_at_zero():
    summary = make_summary()
    (axes,) = epoch_chart(summary).axes
    low, high = axes.get_xlim()
    assert low == 0
    expected = [s for row in summary.rows for s in (row.epoch1_s, row.epoch2_s)]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(expected)
    dots = [x for line in axes.lines for x in line.get_xdata()]
    assert len(dots) == 2 * (2 * 3 + 4 * 3)  # two epochs; the baseline runs twice a block
    assert max(dots) < high


def test_cache_disk_and_swap_stand_beside_the_bars():
    # A trial that is not known to be cold would not count, one taken as found does.
    unknown = replace(
        MEDIA["ssd"], cache="as found", read_share=None, resident_share=None, swapped_pages=None
    )
    swapped = replace(MEDIA["tmpfs"], swapped_pages=1_000)
    written = everything_written(epoch_chart(make_summary({**MEDIA, "ssd": unknown, "t": swapped})))
    for part in ("0.0 % (cold)", "50.1 %", "100.0 % (warm)", "unknown (as found)", "3,000"):
        assert part in written


def test_stand_ins_and_skipped_variants_are_said():
    figure = epoch_chart(make_summary(skipped=SKIPPED))
    written = everything_written(figure)
    assert "Throttled storage (7200 rpm: 81 reads/s, 106 MB/s): hdd and “hdd, warm”" in written
    assert f"skipped: {SKIPPED['nvme']}" in written
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()][-1] == "nvme"


def test_the_legend_names_all_epochs_where_variants_differ_in_their_number():
    longer = replace(MEDIA["ssd"], epochs_s=(*MEDIA["ssd"].epochs_s, 1.0, 1.0))
    figure = epoch_chart(make_summary({**MEDIA, "ssd": longer}))
    written = [text.get_text() for text in figure.legends[0].get_texts()]
    assert written == ["epoch 1", "epoch 2 / epochs 2 to 4 (mean)", "one epoch of one trial"]


AWKWARD = {
    "as it is": make_summary(),
    "five epochs": make_summary(with_epochs(lambda s: (*s, *s[1:] * 3))),
    "minutes": make_summary(with_epochs(lambda s: tuple(120 * x for x in s)), noise=0),
    "long names": make_summary({f"{name} {LONG}": m for name, m in MEDIA.items()}),
    "long reason": make_summary(skipped={"nvme": SKIPPED["nvme"] * 4}),
    "nothing measured": summarize(fake_media_info(skipped=dict.fromkeys(MEDIA, "no disk")), []),
    "unknown": make_summary(
        {
            n: replace(
                m,
                label=DOUBTFUL,
                cache="as found",
                resident_share=None,
                read_share=None,
                swapped_pages=None,
            )
            for n, m in MEDIA.items()
        }
    ),
    "Chinese": make_summary({f"{n} 机械硬盘，已在内存里": m for n, m in MEDIA.items()}),
}


@pytest.mark.parametrize("summary", AWKWARD.values(), ids=AWKWARD.keys())
def test_every_number_is_written_whole_and_apart(summary):
    figure = epoch_chart(summary)
    check_that_all_texts_are_whole_and_apart(figure, dpi=300)
    written = everything_written(figure)
    assert min(t.get_fontsize() for t in texts(figure)) >= 5
    for row in summary.rows:
        for bar in row_words.epoch_bars(row):
            assert units.seconds(bar.mean_s) in written
            assert all(part in written for part in row_words.proof(row))
