"""Tables and the page: the same numbers in every form, and no free text that breaks one.

Run: python -m pytest tests/test_report.py
"""

import json
import re
from html.parser import HTMLParser

import pytest
from fakes import fake_info, fake_trial, fake_trials

from labkit import report
from labkit.summary import summarize

NASTY = '<script>alert("x")</script> & | `a` *b* [c](d)'
VOID = {"meta", "img", "br", "link"}


def make_summary(times=None, *, blocks=3, **info):
    times = times or {"original": 1.0, "data_prefetcher": 0.5}
    names = [*times, *info.get("skipped", {})]
    return summarize(fake_info(names, blocks=blocks, **info), fake_trials(times, blocks=blocks))


def make_page(tmp_path, **info):
    """A page of one run with these entries in its run.json."""
    folder = tmp_path / "prefetching" / "20250102-ab12"
    folder.mkdir(parents=True)
    info = fake_info(["original", "data_prefetcher"], **info)
    (folder / "run.json").write_text(json.dumps(info))
    trials = fake_trials({"original": 1.0, "data_prefetcher": 0.5})
    return report.page([(summarize(info, trials), folder)])


class Outline(HTMLParser):
    """Checks that every tag is closed in order; collects tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


# --- tables -------------------------------------------------------------------------------


def test_the_table_has_five_columns_of_text():
    trials = [
        fake_trial("base", 0, "A1", 2.0), fake_trial("base", 0, "A2", 2.0),
        fake_trial("other", 0, "", 1.0),
        fake_trial("base", 1, "A1", 2.0), fake_trial("base", 1, "A2", 2.0),
        fake_trial("other", 1, "", 1.0),
    ]  # fmt: skip
    names = ["base", "other", "dali"]
    info = fake_info(names, published={"other": 0.61}, skipped={"dali": "not installed"})
    table = report.table(summarize(info, trials)).reset_index()
    assert list(table.columns) == [
        "variant", "two-epoch time", "normalized time [95 % interval]", "document", "verdict",
    ]  # fmt: skip
    assert table.values.tolist() == [
        ["base", "2.00 s", "1.000", "–", "–"],
        ["other", "1.00 s", "0.500 [0.500, 0.500]", "0.610", "–"],
        ["dali", "–", "–", "–", "skipped: not installed"],
    ]


def test_the_time_column_says_how_many_epochs_it_adds_up():
    trials = []
    for trial in fake_trials({"base": 1.0, "other": 0.9}):
        row = trial.to_row()
        row["epochs"] = row["epochs"][:1]
        trials.append(type(trial).from_row(row))
    summary = summarize(fake_info(["base", "other"]), trials)
    assert report.table(summary).columns[0] == "one-epoch time"
    assert summary.rows[0].epoch2_s is None


def test_the_detailed_table_keeps_unrounded_numbers_and_labels():
    summary = make_summary(skipped={"dali": "not installed"})
    table = report.table(summary, detail=True)
    assert table.loc["data_prefetcher", "normalized_time"] == summary.rows[1].normalized_time
    assert table.loc["original", "storage"] == "real"
    assert table["time_s"].isna().tolist() == [False, False, True]


def test_rows_survive_json():
    summary = make_summary(published={"data_prefetcher": 0.891}, skipped={"dali": "no"})
    back = json.loads(json.dumps(report.rows(summary), allow_nan=False))
    assert [row["variant"] for row in back] == ["original", "data_prefetcher", "dali"]
    assert back[1]["ratios"] == list(summary.rows[1].ratios)
    assert (back[1]["published"], back[2]["normalized_time"]) == (0.891, None)
    wanted = "ci_low ci_high blocks time_s images_per_s verdict gpu_util status labels reason"
    assert set(wanted.split()) <= set(back[0])


def test_the_terminal_table_is_aligned_also_with_chinese_names():
    lines = report.text(make_summary({"original": 1.0, "数据预取": 0.5})).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("variant"))
    # A Chinese letter takes two columns of a terminal, so four of them take eight.
    latin, chinese = (
        re.search(r"\d\.\d{3}", line).start() for line in lines[start + 2 : start + 4]
    )
    assert latin == chinese + 4
    assert not any(line.endswith(" ") for line in lines)


def test_the_terminal_table_says_under_which_conditions():
    summary = make_summary(blocks=3, notes=["one image was unreadable"], status="cancelled")
    question, stand_ins, conditions, *rest = report.text(summary).splitlines()
    assert question == summary.question
    assert stand_ins == "Emulated accelerator (matched, 11.2 ms/image)"
    assert "quick mode · 3 blocks · storage: real" in conditions
    assert f"A/A ratio {summary.aa_ratio:.3f} [" in conditions
    assert "- one image was unreadable" in rest


def test_markdown_cells_hold_any_text():
    summary = make_summary(skipped={NASTY: NASTY + "\nsecond line"}, question=NASTY)
    lines = [line for line in report.markdown(summary).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {6}
    assert "<script>" not in re.sub(r"\\<", "", report.markdown(summary))
    assert "](d)" not in report.markdown(summary).replace(r"\](d)", "")


# --- the page -----------------------------------------------------------------------------


def test_the_page_is_well_formed_and_needs_nothing_beside_it(tmp_path):
    outline = Outline(make_page(tmp_path))
    for tag, attributes in outline.tags:
        assert tag not in {"script", "link", "iframe"}
        source = attributes.get("src") or attributes.get("href") or "#"
        assert source.startswith(("data:", "#"))
    assert "http" not in " ".join(outline.words)


def test_the_page_shows_question_table_document_and_differences(tmp_path):
    page = make_page(tmp_path, published={"data_prefetcher": 0.891}, provenance={"cores": 2})
    words = " ".join(Outline(page).words)
    for part in (
        "Does fetching the next batch early keep the device busy?",
        "Emulated accelerator (matched, 11.2 ms/image)",
        "document: [004] 3.1",
        "0.891",
        "prefetcher = data_prefetcher",
        '"cores": 2',
        "prefetching/20250102-ab12",
    ):
        assert part in words
    assert "num_workers = 2" not in words  # the same as the baseline's, so no difference
    assert str(tmp_path) not in page


def test_every_picture_of_the_page_has_a_description(tmp_path):
    (image,) = [a for tag, a in Outline(make_page(tmp_path)).tags if tag == "img"]
    assert "data_prefetcher: 0." in image["alt"]


@pytest.mark.parametrize("place", ["question", "source", "notes", "provenance"])
def test_free_text_never_becomes_markup(tmp_path, place):
    values = {"notes": [NASTY], "provenance": {NASTY: NASTY}}
    page = make_page(tmp_path, **{place: values.get(place, NASTY)})
    assert "script" not in {tag for tag, _ in Outline(page).tags}
    assert "&lt;script&gt;" in page


def test_variant_names_and_reasons_never_become_markup(tmp_path):
    summary = make_summary({"original": 1.0, NASTY: 0.9}, skipped={"dali": NASTY})
    page = report.page([(summary, tmp_path)])
    assert "script" not in {tag for tag, _ in Outline(page).tags}
    assert "&lt;script&gt;" in page


def test_a_page_of_several_experiments_links_to_each(tmp_path):
    page = report.page([(make_summary(), tmp_path / "a"), (make_summary(), tmp_path / "b")])
    tags = Outline(page).tags
    targets = {attributes["id"] for tag, attributes in tags if tag == "section"}
    links = {attributes["href"].lstrip("#") for tag, attributes in tags if tag == "a"}
    assert len(targets) == 2
    assert links == targets


def test_the_page_is_the_same_each_time(tmp_path):
    summary = make_summary()
    assert report.page([(summary, tmp_path)]) == report.page([(summary, tmp_path)])


def test_a_long_reason_is_shown_whole():
    reason = "needs a library that is not installed here; " * 3 + "pip install it"
    shown = report.table(make_summary(skipped={"dali": reason}))
    assert reason in shown._repr_html_()
    assert reason in repr(shown)
