"""Text that somebody else wrote stays text in the panel."""

import shutil

from fake_runs import make_run

from benchmarks.lab_page import LabPage
from browser.runs import asked

NASTY = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_a_run_and_an_error_that_hold_markup_show_it_as_text(browser, server):
    folder = make_run(
        server.folder / "results",
        {"original": 1.0, NASTY: 0.8},
        experiment="preprocessing",
        published={NASTY: 0.9},
        skipped={f"{NASTY}, skipped": NASTY},
        storages={
            NASTY: {
                "filesystem": NASTY,
                "hardware": {"kind": "storage", "how": "throttled", "details": NASTY},
                "rates": [],
            }
        },
    )
    lab, dialogs = LabPage(browser, server, "04_preprocessing"), []
    lab.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    lab.run_cells("data =", "lab.panel(")
    shutil.rmtree(folder)
    shown, error = map(lab.panel.locator, (".labkit-result", ".labkit-error"))
    lab.until(lambda: NASTY in shown.text_content(), "the newest run is shown")
    assert NASTY in shown.locator("img").get_attribute("alt")
    lab.type_into("data", NASTY)
    lab.until(lambda: NASTY in asked(lab), "the command line holds it")
    lab.type_into("input_px", NASTY)
    lab.until(lambda: NASTY in error.text_content(), "the error is shown")
    assert lab.panel.locator("script, img[src=x]").count() == 0
    assert dialogs == []
    assert lab.problems == []
    lab.close()
