"""Every format is offered, and the link downloads the very file that lies on disk.

What the files hold: tests/panel/test_exports.py.
"""

from pathlib import Path

from labkit.panel.view import EXPORTS

SUFFIXES = {"PNG": ".png", "Share file": ".labkit.zip"}  # the others go the same way


def test_every_format_is_offered_and_downloaded_as_it_lies_on_disk(lab):
    for form in EXPORTS:
        assert lab.panel.get_by_role("button", name=form, exact=True).is_enabled()
    said = lab.panel.locator(".labkit-exported")
    for form, suffix in SUFFIXES.items():
        lab.press(form)
        # Until this one is there, no other link is taken for it.
        link = said.locator(f"a[download$='{suffix}']")
        lab.until(link.count, f"{form} is exported")
        with lab.page.expect_download() as download:
            link.click()
        name = download.value.suggested_filename
        content = Path(download.value.path()).read_bytes()
        (path,) = [word for word in said.text_content().split() if word.endswith(f"/{name}")]
        assert (lab.server.folder / "notebooks" / path).read_bytes() == content
