"""Reports in a browser: nothing in them runs, and they fit a small window and paper."""

import labkit as lab
from tests.report.test_report import make_run, write_nasty


def test_a_browser_runs_nothing_of_the_page_and_asks_for_nothing(browser, tmp_path):
    page_file, asked, dialogs = write_nasty(tmp_path)[0], [], []
    assert page_file.parent.name == "<b>"
    for width_px in (1280, 500):
        page = browser.new_page(viewport={"width": width_px, "height": 900})
        page.on("request", lambda request: asked.append(request.url))
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.goto(page_file.as_uri())
        found = page.evaluate(
            """() => ({
                scripts: document.scripts.length,
                images: [...document.images].map(i => i.naturalWidth > 0),
                links: document.links.length,
                tooWide: document.documentElement.scrollWidth > innerWidth,
                text: document.body.textContent,
            })"""
        )
        assert (found["scripts"], found["links"], found["tooWide"]) == (0, 0, False)
        # Were a script to get into the page, its policy would still keep it from running.
        page.evaluate(
            """() => document.head.append(
                Object.assign(document.createElement("script"), {text: "alert(3)"}))"""
        )
        assert found["images"] == [True, True]  # the charts, and no picture of a free text's
        assert found["text"].count("<script>alert(1)</script>") > 10
    # On paper no table is wider than the sheet.
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 1000})
    wide = "[...document.querySelectorAll('table')].filter(t => t.scrollWidth > 700).length"
    assert page.evaluate(wide) == 0
    assert dialogs == []
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}


def test_on_paper_claims_are_whole_and_what_is_folded_of_a_run_is_left_out(browser, tmp_path):
    runs = [make_run(tmp_path), make_run(tmp_path, experiment="mine")]
    (path,) = lab.report(runs, tmp_path / "out", markdown=False)
    page = browser.new_page()
    page.goto(path.as_uri())

    def shown(what):
        seen = page.locator(what).evaluate_all("all => all.map(one => one.checkVisibility())")
        return set(seen)

    folds = "section[id^=run] summary"
    assert (shown(".claim p"), shown(folds)) == ({False}, {True})
    page.emulate_media(media="print")
    assert (shown(".claim p"), shown(folds)) == ({True}, {False})
