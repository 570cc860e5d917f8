"""The page: well-formed, self-contained, and no free text that becomes markup."""

from html.parser import HTMLParser

import pytest
from fakes import CHECKED, fake_info, fake_trials

from labkit.notebook import section
from labkit.page import html_table, page
from labkit.results import Run

NASTY = '<script>alert("x")</script> & | `a` *b* [c](d)'
VOID = {"meta", "img", "br", "link"}


def make_section(tmp_path, times=None, **info):
    """What a page shows of a run with these entries in its run.json."""
    times = times or {"original": 1.0, "data_prefetcher": 0.5}
    info = fake_info([*times, *info.get("skipped", {})], **info)
    folder = tmp_path / "prefetching" / "20250102-ab12"
    return section(Run(folder=folder, info=info, trials=tuple(fake_trials(times))))


def make_page(tmp_path, **info):
    return page([make_section(tmp_path, **info)])


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


def test_the_page_is_well_formed_and_needs_nothing_beside_it(tmp_path):
    outline = Outline(make_page(tmp_path))
    for tag, attributes in outline.tags:
        assert tag not in {"script", "link", "iframe"}
        source = attributes.get("src") or attributes.get("href") or "#"
        assert source.startswith(("data:", "#"))
    assert "http" not in " ".join(outline.words)


def test_the_page_shows_question_table_document_and_differences(tmp_path):
    shown = make_page(tmp_path, published={"data_prefetcher": 0.891}, provenance={"cores": 2})
    words = " ".join(Outline(shown).words)
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
    assert str(tmp_path) not in shown


def test_every_picture_of_the_page_has_a_description(tmp_path):
    (image,) = [a for tag, a in Outline(make_page(tmp_path)).tags if tag == "img"]
    assert "data_prefetcher: 0." in image["alt"]


@pytest.mark.parametrize("place", ["question", "source", "notes", "provenance"])
def test_free_text_never_becomes_markup(tmp_path, place):
    values = {"notes": [NASTY], "provenance": {NASTY: NASTY}}
    shown = make_page(tmp_path, **{place: values.get(place, NASTY)})
    assert "script" not in {tag for tag, _ in Outline(shown).tags}
    assert "&lt;script&gt;" in shown


def test_variant_names_and_reasons_never_become_markup(tmp_path):
    times = {"original": 1.0, NASTY: 0.9}
    shown = page([make_section(tmp_path, times, skipped={"dali": NASTY})])
    assert "script" not in {tag for tag, _ in Outline(shown).tags}
    assert "&lt;script&gt;" in shown


def test_a_page_of_several_experiments_links_to_each(tmp_path):
    claim = dict.fromkeys(("document", "claim", "published", "experiment", "answer"), NASTY)
    sections = [make_section(tmp_path), make_section(tmp_path)]
    tags = Outline(page(sections, [{"number": 1, **claim}])).tags
    targets = {attributes["id"] for tag, attributes in tags if tag == "section"}
    links = {attributes["href"].lstrip("#") for tag, attributes in tags if tag == "a"}
    assert len(targets) == 3
    assert links == targets


def test_the_page_is_the_same_each_time(tmp_path):
    assert make_page(tmp_path) == make_page(tmp_path)


def test_each_row_is_followed_by_its_second_line_in_a_group_of_its_own():
    shown = html_table(
        ["variant", "time"], [["a", "1 s"], ["b", "–"], ["c", "3 s"]], ["x", "", "z"]
    )
    *groups, _ = shown.split("<tbody>", 1)[1].split("</tbody>")
    assert ["".join(Outline(group.replace("<tbody>", "")).words) for group in groups] == [
        "a1 sx", "b–", "c3 sz",
    ]  # fmt: skip
    assert shown.count('<td colspan="2">') == 2


def test_second_lines_never_become_markup():
    shown = html_table(["variant"], [["a"]], [NASTY])
    assert "script" not in {tag for tag, _ in Outline(shown).tags}


def test_second_lines_and_the_stand_ins_checks_stand_on_the_page(tmp_path):
    words = " ".join(Outline(make_page(tmp_path, **CHECKED)).words)
    assert "3 blocks · noise floor " in words
    assert "3 blocks · shows effects from " in words
    assert "throttled checked: 80.0 of 81.0 files/s at random" in words
