"""Runs that a panel started: how to start one, and what is on disk and left of it."""

import json

MANY_BLOCKS = 200  # of a run that is ended before, however slow the page is


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
    """Press Cancel while a trial runs, and wait until the run has ended."""
    lab.until(lab.server.left, "a trial is running")
    lab.press("Cancel")
    lab.wait_for_status("cancelled")
    wait_until_nothing_is_left(lab)
