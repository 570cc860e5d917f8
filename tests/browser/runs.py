"""Runs that a panel started: how to start one, and what is on disk and left of it."""

import json
import time

ACKNOWLEDGED_S, ENDED_S = 1.0, 5.0  # as promised on a machine with nothing else to do
MANY_BLOCKS = 200  # of a run that is ended before, however slow the page is
GRACE = 6  # machines that run tests have; the seconds are printed


def asked(lab):
    """What the panel would run, in words; they follow every change of the form."""
    return lab.panel.locator(".labkit-again").text_content()


def reset(lab):
    """Press Reset and wait for its end: what is typed meanwhile would be reset, too."""
    lab.press("Reset")
    lab.until(lambda: asked(lab) == lab.untouched, "the form is reset")


def start(lab, **fields):
    """Fill in number fields and press Run; wait until its folder is there."""
    before = lab.server.runs()
    for label, value in fields.items():
        lab.type_into(label, value)
    lab.press("Run")
    lab.until(lambda: lab.server.runs() != before, "there is a new run folder")
    return lab.server.runs()[-1]


def status_of(folder):
    return json.loads((folder / "run.json").read_text())["status"]


def wait_until_nothing_is_left(lab):
    lab.until(lambda: not lab.server.left(), "no process of a run is left")


def cancel(lab):
    """Press Cancel while a trial runs.

    Returns:
        Seconds from the click to the status that says so, as the page saw it, and to the end of
        the last process.
    """
    lab.until(lab.server.left, "a trial is running")
    began_s = time.monotonic()
    acknowledged_s = lab.panel.evaluate(CANCEL)
    wait_until_nothing_is_left(lab)
    return acknowledged_s, time.monotonic() - began_s


CANCEL = """async (panel) => {
    const button = [...panel.querySelectorAll('button')].find(one => one.innerText === 'Cancel');
    const status = panel.querySelector('.labkit-status');
    const began = performance.now();
    button.click();
    while (!status.textContent.trim().startsWith('cancel') && performance.now() - began < 60000)
        await new Promise(done => setTimeout(done, 5));
    return (performance.now() - began) / 1000;
}"""
