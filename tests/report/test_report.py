"""Reports: two forms with the same parts, files that need nothing else, no free text as markup."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from fake_runs import fake_grouped_run, fake_machine_run, fake_roofline, save_rows
from fakes import CHECKED, fake_info, fake_json, fake_trials

import labkit as lab
from labkit.claims import ledger
from labkit.machine import hardware
from labkit.report import charts, figures, words
from labkit.report.report import changes, overview
from labkit.runs.store import from_json, to_json
from labkit.settings import AS_PUBLISHED

NASTY = '<script>alert(1)</script> "q" \' & | `a` ](http://x) <img src=x onerror=alert(2)>'
TIMES = {"original": 1.0, "prefetch_generator": 0.9, "data_prefetcher": 0.8}
KINDS = figures.KINDS
ORDER = (
    "normalized time [95 % interval]", "Proof and notes", "Settings, and how to run it again",
    "Claims of the documents", "Hardware and software",
)  # fmt: skip


@pytest.fixture(autouse=True)
def few_files(monkeypatch):
    """Save figures as one file, but where the files are looked at: each takes half a second."""
    monkeypatch.setattr(figures, "KINDS", KINDS[1:2])


def make_run(results, times=TIMES, noise=0.02, **info):
    """A finished run of prefetching from this machine, unless told otherwise, on disk."""
    here = {"machine_id": hardware.provenance().machine_id, "cores": 2, "cpu_model": "Some CPU"}
    names = [*times, *info.get("skipped", {})]
    told = fake_info(names, **{"provenance": here, "blocks": 3, **info})
    trials = fake_trials(times, blocks=told.blocks, noise=noise)
    return lab.find_run(save_rows(results, told, trials))


class Outline(HTMLParser):
    """Checks that every tag is closed in order; collects tags with attributes, and texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in {"meta", "img", "br", "wbr"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def words_of(html):
    """The text of a page, blanks made single."""
    return " ".join(" ".join(Outline(html).words).split())


def read(paths, name):
    (path,) = [path for path in paths if path.name == name]
    return path.read_text(encoding="utf-8")


def write_nasty(results):
    """Write the report of a run whose every free text tries to be markup."""
    info = {
        "question": NASTY, "source": NASTY, "notes": [NASTY], "skipped": {"dali": NASTY},
        "unreadable": [NASTY], "published": {NASTY: 0.9}, "protocol": AS_PUBLISHED,
        "data": {"folder": NASTY, "images": 3, "boxes": NASTY},
        "storages": {NASTY: {"filesystem": NASTY, "device": NASTY, "label": NASTY}},
        "provenance": {"machine_id": NASTY, "cpu_model": NASTY, "versions": {NASTY: NASTY}},
        "request": {"experiment": NASTY, "mode": NASTY, "settings": {"data": NASTY + "\n```"}},
    }  # fmt: skip
    run = make_run(results, {"original": 1.0, NASTY: 0.8})
    stored = fake_json(["original", NASTY, "dali"])["variants"]
    info["variants"] = {label: {**values, "data": NASTY} for label, values in stored.items()}
    nasty = from_json({**to_json(run.info), **info})
    return replace(run, info=nasty).report(results / "<b>")


# --- the files ----------------------------------------------------------------------------


def test_one_run_is_written_into_its_own_folder_and_links_lead_to_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "KINDS", KINDS)
    run = make_run(tmp_path, published={"data_prefetcher": 0.891})
    paths = run.report()
    drawn = [
        f"figures/1-prefetching-{chart}.{kind}"
        for chart in ("dots", "utilization")
        for kind in ("png", "svg", "pdf")
    ]
    written = [str(path.relative_to(run.folder)) for path in paths]
    assert written == ["report.html", "report.md", *drawn]
    assert all(path.stat().st_size for path in paths)
    assert {path.name for path in run.folder.iterdir()} == {
        "run.json", "trials.jsonl", "report.html", "report.md", "figures",
    }  # fmt: skip
    text = read(paths, "report.md")
    assert sorted(re.findall(r"(?<!\\)\]\(([^)]*)\)", text)) == sorted(drawn)
    alt, _ = re.findall(r"^!\[(.*)\]\(figures", text, re.MULTILINE)
    assert "data_prefetcher: 0." in alt
    assert str(tmp_path) not in text


def test_several_runs_get_a_folder_beside_the_runs_and_never_the_same_one(tmp_path):
    runs = [make_run(tmp_path), replace(fake_grouped_run(), folder=tmp_path / "operations" / "one")]
    first, second = (lab.report(runs, results=tmp_path, markdown=False) for _ in range(2))
    assert [path.name for path in (*first, *second)] == ["report.html"] * 2
    assert first[0].parent != second[0].parent
    assert {path.parent.parent for path in (*first, *second)} == {tmp_path / "reports"}
    shown = words_of(first[0].read_text(encoding="utf-8"))
    assert shown.count("Settings, and how to run it again") == 2
    assert shown.count("Hardware and software") == 1
    assert "decode, 640×480" in shown


def test_a_roofline_says_what_a_published_time_takes(tmp_path):
    page = read(
        fake_roofline(noise=0.0, published={"simplified": 0.661}).report(tmp_path), "report.html"
    )
    said = "Published: 0.661 (simplified) takes a loader at least 1.51 times as fast, here 1.9"
    assert said in words_of(page)


def test_without_runs_the_newest_finished_ones_and_all_claims_are_shown(tmp_path):
    def renamed(name, **info):
        run = make_run(tmp_path, **info)
        run.folder.rename(run.folder.with_name(name))
        return run

    make_run(tmp_path, question="Older?")
    renamed("99990101T000000Z-ffff", question="Newest?")
    renamed("99990101T000001Z-ffff", status="failed", question="Failed?")
    # A run with verdicts is shown before a newer one without.
    renamed("20250101T000000Z-ffff", mode="full", question="mine?", experiment="mine")
    make_run(tmp_path, question="Quick?", experiment="mine")
    published = make_run(tmp_path, protocol=AS_PUBLISHED)
    make_run(tmp_path, experiment="preprocessing", question="preprocessing?")
    (path,) = lab.report(results=tmp_path, folder=tmp_path / "out", markdown=False)
    assert path.name == "index.html"
    html = path.read_text(encoding="utf-8")
    shown = words_of(html)
    assert not any(question in shown for question in ("Older?", "Failed?", "Quick?"))
    expected = ("Newest?", f"{published.summary.question} (as in the document)", "preprocessing?",
                "mine?")  # fmt: skip
    places = [shown.index(part) for part in expected]
    assert places == sorted(places)  # a run as in the document stands beside the corrected one
    targets = {attributes["id"] for tag, attributes in Outline(html).tags if tag == "section"}
    links = {attributes["href"] for tag, attributes in Outline(html).tags if tag == "a"}
    assert targets - {"overview", "claims", "hardware"} == {f"run-{n}" for n in range(1, 5)}
    assert links <= {f"#{target}" for target in targets}
    numbers = re.findall(r'class="claim"><summary class="columns"><span>(\d+)', html)
    assert sorted(map(int, numbers)) == [claim.number for claim in ledger.CLAIMS]


def test_several_runs_begin_with_what_they_come_to(tmp_path):
    save = make_run(
        tmp_path, {"original": 1.0, "prefetch_generator": 1.2, "data_prefetcher": 0.8}, blocks=8,
        skipped={"dali": "no CUDA here"}, mode="full",
        published={"data_prefetcher": 0.891, "dali": 0.5},
    )  # fmt: skip
    noisy = {"original": 1.0, "other": 1.0}
    noisy = make_run(tmp_path, noisy, blocks=8, noise=0.15, mode="full", experiment="noisy")
    paths = lab.report([save, noisy], tmp_path / "out")
    html, markdown = read(paths, "report.html"), read(paths, "report.md")
    answer = "Of 1 variant with a published time, 1 saves more than published (simulated GPU)."
    assert markdown.startswith(f"# labkit report\n\n**{answer}")
    for shown in (words_of(html), markdown.replace("\\", "").replace("**", "")):
        saves = re.search(
            r"data_prefetcher[ |]+10\.9 % less time[ |]+\d+\.\d % less time \[", shown
        )
        saves_nothing = re.search(r"noisy\W+other[ |]+–[ |]+inconclusive: [+−]\d", shown)
        assert shown.index(answer) < saves.start() < saves_nothing.start()
        assert "Simulated: GPU." in shown
        assert re.search(
            r"data_prefetcher: 0\.8\S* \[.*?\] of the time of original, faster\.", shown
        )
        assert "No variant is measurably faster than original" in shown
        assert shown.index("the document") < shown.index("normalized time [95 % interval]")
    assert html.count(answer.removesuffix(".")) > 1  # in the chart, too
    links = re.findall(r"(?<!\\)\]\((figures[^)]*\.svg)\)", markdown)  # as the others are not saved
    assert links and all((tmp_path / "out" / link).is_file() for link in links)
    assert "prefetching: data_prefetcher: 0.8" in html  # the chart's text
    assert "Simulated GPU, 460 images/s: prefetching" in html
    assert (tmp_path / "out/figures/overview.svg").stat().st_size


def test_a_cancelled_run_says_so_before_anything_else(tmp_path):
    (path,) = make_run(tmp_path, status="cancelled", blocks=9).report(markdown=False)
    shown = words_of(path.read_text(encoding="utf-8"))
    warning = "This run was cancelled. Only completed trials count."
    assert shown.index(warning) < shown.index("Proof and notes")


def test_without_verdicts_the_answer_begins_with_what_saves():
    quick = [
        fake_machine_run(TIMES, published={"data_prefetcher": 0.891}),
        fake_machine_run({"original": 1.0, "b": 1.0}),
    ]
    assert overview(quick)["answer"].startswith(
        "Of 2 runs, 1 shows a saving. Of 1 variant with a published time, 1 has no verdict ("
    )


def test_an_interval_that_reaches_1_is_no_saving():
    almost = fake_machine_run({"original": 1.0, "almost": 0.97}, noise=0.05)
    row = almost.summary.rows[1]
    assert row.normalized_time < 1 < row.ci_high
    rows = changes([almost, fake_machine_run({"original": 1.0, "clear": 0.5}, noise=0.05)])
    assert [(one["change"], one["saves"]) for one in rows] == [("clear", True), ("almost", False)]
    here = r"no clear difference: −\S+ % \(−\S+ to \+\S+ %\) \(quick: no verdict\)"
    assert re.fullmatch(here, rows[1]["here"])


def test_the_first_table_has_a_row_for_each_run():
    judged = fake_machine_run(
        {"original": 1.0, "both": 0.8}, mode="full", blocks=8, published={"both": 0.9}, noise=0.001
    )
    quick = fake_machine_run({"original": 1.0, "both": 0.7}, published={"both": 0.9})
    grouped, document = fake_grouped_run(), fake_machine_run(protocol=AS_PUBLISHED)
    slower, faster = list(grouped.info.variants)[1:3]
    published = {slower: 0.95, faster: 0.75}
    grouped = replace(grouped, info=replace(grouped.info, published=published))
    nothing = replace(fake_machine_run(), trials=())
    rows = changes([document, judged, grouped, nothing, quick])
    assert [row["run"] for row in rows] == [2, 5, 1, 3, 4]  # verdicts first, answers last
    here = [row["here"] for row in rows]
    quick_words = r"(31|29|30)\.\d % less time \[\S+ %, \S+ %\] \(quick: no verdict\)"
    assert re.fullmatch(quick_words, here[1])
    assert re.fullmatch(r"20\.\d % less time \[\S+ %, \S+ %\]; saves more than published", here[0])
    largest = f"{faster.partition(': ')[2]}: 25.0 % less time"
    assert [row["document"] for row in rows] == ["10.0 % less time"] * 2 + ["", largest, ""]
    assert here[3].startswith("Fastest, of 4 operations")
    assert here[3].endswith("(quick: no verdict)")
    assert here[4] == "No variant has a time"


def test_no_floor_is_reported_as_a_change():
    floors = {"loading": 1.0, "computing": 0.4, "computing, not synchronized": 0.5}
    variants = {name: {"loader": "resident"} for name in floors} | {"loading": {"num_workers": 2}}
    run = fake_machine_run(floors, variants=variants, calibration={"device_images_per_s": 230.0})
    assert words.headline(run.summary) == ""
    assert "utilization" not in charts.kinds(run.summary)
    (least,) = words.result(run.summary)
    assert least.startswith("Faster loading can save about ")
    (row,) = changes([run])
    assert (row["change"], row["here"]) == ("", least)
    own = {"original": 1.0, "slower": 1.3, "alone": 0.4}
    variants = {name: {"num_workers": 2} for name in own} | {"alone": {"loader": "resident"}}
    run = fake_machine_run(own, variants=variants, noise=0.001)
    assert "with slower as with original" in words.headline(run.summary)
    assert changes([run])[0]["change"] == "slower"
    figure = charts.utilization(run.summary)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["original", "slower"]


# --- what they say ------------------------------------------------------------------------


def test_both_forms_have_the_same_parts_in_the_same_order(tmp_path):
    published = {"data_prefetcher": 0.891}
    run = make_run(tmp_path, published=published, **CHECKED)
    paths = run.report()
    html, markdown = read(paths, "report.html"), read(paths, "report.md")
    assert markdown.replace("\\", "").startswith("# labkit report\n\n**data_prefetcher: 0.")
    for shown in (words_of(html), markdown):
        places = [shown.index(part) for part in (run.summary.question, *ORDER)]
        assert places == sorted(places)
        for part in (
            "Simulated GPU, 460 images/s",
            "throttled: 80.0 of 81.0 files/s random",
            "labkit run prefetching",
            'lab.run(experiment, "quick")'.replace('"', "'"),
            "2 cores, Some CPU, GPU unknown (machine ",
            "prefetcher=data_prefetcher",
            f"prefetching/{run.folder.name}",
        ):
            assert part in shown.replace("\\_", "_")
        assert str(tmp_path) not in shown
    for tag, attributes in Outline(html).tags:
        assert tag not in {"script", "link", "iframe"}
        assert (attributes.get("src") or attributes.get("href") or "#").startswith(("data:", "#"))
        if tag == "img":
            assert re.search("data_prefetcher: 0.|The GPU computes", attributes["alt"])


def test_claims_are_answered_by_this_run_of_this_machine_alone_beside_reference_runs(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(ledger, "REFERENCE", tmp_path / "examples")
    make_run(tmp_path, {**TIMES, "data_prefetcher": 5.0})  # another run, which must not answer
    there = {"mode": "full", "blocks": 10, "published": {"prefetch_generator": 0.894}}
    times = {"original": 1.0, "prefetch_generator": 0.894}
    make_run(tmp_path / "examples", times, provenance={"machine_id": "another"}, **there)
    paths = make_run(tmp_path).report()
    shown = words_of(read(paths, "report.html"))
    assert "Measured on another machine" not in shown
    claims = shown[shown.index("Claims of the documents") :]
    assert "19 prefetch_generator loads the next batch in the background" in claims
    assert " 5.0" not in claims
    assert "claim here reference runs" in claims
    assert re.search(
        r"about 10 % less time\. no verdict yet · simulated GPU.* as published · simulated GPU",
        claims,
    )
    markdown = read(paths, "report.md")
    assert "| experiment | here | reference runs |" in markdown
    beside = r"no verdict in quick mode.* \| as published \\?\(simulated .*machine anothe"
    assert re.search(beside, markdown)


@pytest.mark.parametrize("how", ["shared", "copied"])
def test_a_run_of_another_machine_is_named(tmp_path, how):
    there = {"machine_id": "a colleague's", "cores": 96, "gpu": {"works": True, "name": "H200"}}
    info = {"provenance": there} if how == "copied" else {"shared": {"from": "x"}}
    (path,) = make_run(tmp_path, **info).report(markdown=False)
    shown = words_of(path.read_text(encoding="utf-8"))
    named = "96 cores, H200 (machine a coll" if how == "copied" else "2 cores, Some CPU"
    assert f"Measured on another machine: {named}" in shown


# --- free text ----------------------------------------------------------------------------


def test_free_text_in_the_markdown_stays_text(tmp_path):
    text = read(write_nasty(tmp_path), "report.md")
    assert re.search(r"^`{4}python\n", text, re.MULTILINE)  # which no line of the code closes
    # Code is shown as it is; outside of it nothing may be left that a reader would take for markup.
    prose = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert prose.count("script") > 10
    plain = re.sub(r"\\.", "", prose)
    assert set(re.findall(r"<[^>]*>", plain)) == set()
    assert "`" not in plain
    assert "://" not in plain
    assert all(link.startswith("figures/") for link in re.findall(r"\]\(([^)]*)\)", plain))
    header = "| variant | two-epoch time"
    rows = prose[prose.index(header) :].split("\n\n")[0].splitlines()
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


def test_the_fastest_library_of_an_operation_is_faster_than_all_others():
    times = {
        "decode, 640×480": {"PIL": 1.0, "OpenCV": 0.6, "simplejpeg": 0.8},
        "resize, 640×480": {"PIL": 1.0, "OpenCV": 0.99, "simplejpeg": 1.2},
    }
    (answer,) = words.result(fake_grouped_run(times, noise=0.05, blocks=8).summary)
    assert answer == "Fastest, of 2 operations: OpenCV in 1, none clearly in 1"
