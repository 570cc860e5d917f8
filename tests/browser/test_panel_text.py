"""Text that somebody else wrote stays text in the panel."""

import shutil

from fake_runs import make_run

NASTY = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_a_run_and_an_error_that_hold_markup_show_it_as_text(lab):
    folder = make_run(
        lab.server.folder / "results",
        {"original": 1.0, NASTY: 0.8},
        published={NASTY: 0.9},
        skipped={f"{NASTY}, skipped": NASTY},
        storages={NASTY: {"filesystem": NASTY, "label": f"throttled({NASTY})", "rates": []}},
    )
    dialogs = []
    lab.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    shown = lab.panel.locator(".labkit-result")
    try:
        lab.run_cells("lab.panel(")
        lab.until(lambda: NASTY in shown.text_content(), "the newest run is shown")
        assert NASTY in shown.locator("img").get_attribute("alt")
        lab.type_into("data", NASTY)
        lab.press("Run")
        error = lab.panel.locator(".labkit-error [role=alert]")
        lab.until(lambda: error.count() and NASTY in error.text_content(), "the error is shown")
    finally:
        shutil.rmtree(folder)
        lab.run_cells("lab.panel(")
    assert lab.panel.locator("script, img[src=x]").count() == 0
    assert dialogs == []
