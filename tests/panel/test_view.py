"""What a panel shows says the measured shares, and stays text whatever the text is."""

from html.parser import HTMLParser
from pathlib import Path

import labkit as lab
from labkit.contracts import Epoch, Trial
from labkit.panel import view as views

EXAMPLES = Path(__file__).parents[2] / "results/examples/2-cores-emulated"
HOSTILE = '<script>alert("1")</script>'
EPOCH = Epoch(
    epoch_s=2.0, startup_s=0.1, first_batch_s=0.2, wait_s=0.5, transfer_s=0.2, forward_s=None,
    backward_s=None, launch_s=0.0, sync_s=0.0, steps=4, images=16, batch_bytes=1, compute_s=None,
)  # fmt: skip


def trial(**values):
    usual = {
        "experiment": "test", "variant": "both", "block": 0, "position": 0, "settings": {},
        "status": "ok", "epochs": (EPOCH, EPOCH),
    }  # fmt: skip
    return Trial(**{**usual, **values})


def words(html):
    """What a person reads, and the elements it is made of."""
    texts, elements = [], []
    parser = HTMLParser()
    parser.handle_data = texts.append
    parser.handle_starttag = lambda name, _: elements.append(name)
    parser.feed(html)
    return " ".join(" ".join(texts).split()), elements


def test_the_strip_says_where_the_hosts_time_went():
    said, _ = words(views.strip(trial(role="A1")))
    assert said == (
        "last trial, both A1: start-up of the loader 5.0 % wait for data 25.0 % transfer 10.0 % "
        "compute and everything else 60.0 %"
    )


def test_hostile_text_stays_text_everywhere(tmp_path):
    file = tmp_path / "<b>.txt"
    file.write_text("x")
    shown = [
        views.status("failed", HOSTILE),
        views.lines([HOSTILE]),
        views.error(HOSTILE, HOSTILE),
        views.strip(trial(variant=HOSTILE)),
        views.help_line(HOSTILE),
        views.question(HOSTILE),
        views.copy_button(HOSTILE),
        views.download(file),
    ]
    for html in shown:
        _, elements = words(html)
        assert {"script", "b"}.isdisjoint(elements)
    said, _ = words(views.error(HOSTILE))
    assert said == HOSTILE


def test_a_line_of_the_history_says_when_how_and_what_stood_in():
    said = views.history_line(EXAMPLES / "storage")
    assert said.startswith("2026-11-21 ")
    assert said.endswith(
        " UTC · quick · finished · emulated · throttled storage · unknown storage · storage"
    )
    said = views.history_line(EXAMPLES / "prefetching_as_in_the_document")
    assert " · as in the document · emulated · throttled storage · " in said


def test_trials_are_listed_the_newest_first_with_what_failed():
    run = lab.Run(
        folder=None,
        info={},
        trials=(trial(), trial(block=1, status="failed", reason=HOSTILE, epochs=())),
        set_aside=0,
    )
    said, elements = words(views.trials(run, is_open=True))
    assert said.startswith("2 trials, the newest first")
    assert said.index("2 both – – – failed") < said.index("1 both 4.00 s 8.00 images/s – ok")
    assert "script" not in elements
    assert "<details open>" in views.trials(run, is_open=True)
    assert "<details>" in views.trials(run, is_open=False)
