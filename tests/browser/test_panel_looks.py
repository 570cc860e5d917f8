"""Whoever sees little or uses no mouse can work with the panel, in both themes."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from benchmarks.lab_page import SIZE
from browser.runs import MANY_BLOCKS

TALL = {"width": 1280, "height": 6000}
SERIOUS = {"serious", "critical"}
KNOWN = "select, [style*=opacity]"
MOST_TABS = 80
# JupyterLab lays out after a click or a new size has returned; axe calls what still lies under
# something else undecided.
LAID_OUT = """panel => new Promise(done => {
    let place = "", frames = 0;
    const look = () => {
        const now = JSON.stringify(panel.getBoundingClientRect());
        frames = now === place ? frames + 1 : 0;
        place = now;
        frames < 10 ? requestAnimationFrame(look) : done();
    };
    look();
})"""


@pytest.fixture(params=["JupyterLab Light", "JupyterLab Dark"])
def themed(lab, request):
    """The panel in one of JupyterLab's themes."""
    lab.change_theme(request.param)
    lab.page.set_viewport_size(TALL)  # what is scrolled out of sight is not judged
    # JupyterLab's page is of height 0 and shows all the same; axe takes its texts for cut off.
    lab.page.add_style_tag(content="html, body { height: 100vh; }")
    yield lab
    lab.page.set_viewport_size(SIZE)
    lab.change_theme("JupyterLab Light")


def axe(lab):
    """What axe-core finds: violations and what it cannot decide, rule -> selectors of elements."""
    lab.panel.evaluate("panel => panel.scrollIntoView({block: 'center'})")
    lab.panel.evaluate(LAID_OUT)
    kinds = ["violations", "incomplete"]
    found = Axe().run(lab.page, ".labkit-panel", {"resultTypes": kinds}).response
    return [
        {
            rule["id"]: [node["target"][0] for node in rule["nodes"]]
            for rule in found[kind]
            if rule["impact"] in SERIOUS
        }
        for kind in kinds
    ]


def test_axe_finds_nothing_serious(themed):
    """Also that all text stands out from what is behind it."""
    more = themed.panel.get_by_role("button", name="More settings")
    more.click()
    violations, undecided = axe(themed)
    more.click()
    assert violations == {}
    # Axe knows no colour of the arrow in a list's field, nor of the theme's text colour dimmed.
    assert set(undecided) <= {"color-contrast"}
    others = themed.page.evaluate(
        f"all => all.filter(one => !document.querySelector(one).closest({KNOWN!r}))",
        undecided.get("color-contrast", []),
    )
    assert others == []


def test_everything_can_be_done_from_the_keyboard(lab):
    keyboard = lab.page.keyboard
    lab.type_into("blocks", MANY_BLOCKS)
    lab.field("mode").focus()
    tab_to(lab, "Run", "Shift+Tab")
    keyboard.press("Enter")
    lab.wait_for_status("preparing", "running")
    lab.wait_for_status("running")
    tab_to(lab, "Cancel")
    keyboard.press("Space")
    lab.wait_for_status("cancel")
    lab.wait_for_status("cancelled")


def tab_to(lab, name, key="Tab"):
    """Press Tab, or Shift+Tab, until a button of the panel has the focus."""
    for _ in range(MOST_TABS):
        lab.page.keyboard.press(key)
        if lab.page.evaluate(FOCUSED) == name:
            return
    raise AssertionError(f"Tab does not reach {name}")


FOCUSED = """() => {
    const focused = document.activeElement;
    return focused?.closest('.labkit-panel') && focused.tagName === 'BUTTON'
        ? focused.innerText.trim() : '';
}"""
