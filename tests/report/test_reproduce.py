"""Run it again: what is printed, typed or executed, asks for the same run."""

import shlex
from dataclasses import replace

import pytest
from fakes import fake_info

import labkit as lab
from labkit import cli
from labkit.experiments.request import Choice
from labkit.report.reproduce import command_line, python_code, request_of
from labkit.settings import AS_PUBLISHED, CORRECTED, field_kinds

NASTY = "<script>alert('x')</script> \"a\" `b` $HOME | ](http://x) \\ ; rm -rf ~"
CHANGES = {
    "data": f"/data/{NASTY}",
    "num_workers": 0,
    "pin_memory": False,
    "persistent_workers": True,
    "device": "emulated",
}


def request(name="prefetching", mode="quick", blocks=None, **more):
    return Choice(subject=name, mode=mode, blocks=blocks, **more).request()


def typed(line):
    """What the words of a command line ask for, once a shell and the parser have read them."""
    program, *words = shlex.split(line)
    assert program == "labkit"
    options = cli._parser().parse_args(words)
    return options, {key: getattr(options, key) for key in field_kinds() if hasattr(options, key)}


def executed(code):
    """What Python code would run: experiment, mode, keywords."""
    calls = []

    class Recorder:
        experiment, choose = staticmethod(lab.experiment), staticmethod(lab.choose)

        def run(*given, **named):
            calls.append((*given, named))

    ready = code.replace("import labkit as lab\n", "")
    assert ready != code
    exec(compile(ready, "code", "exec"), {"lab": Recorder})
    (call,) = calls
    return call


@pytest.mark.parametrize("protocol", [CORRECTED, AS_PUBLISHED])
def test_line_and_code_ask_for_what_was_asked(protocol):
    asked = request(mode="full", blocks=12, changes=CHANGES, protocol=protocol)
    options, changes = typed(command_line(asked))
    assert changes == CHANGES
    assert (options.names, options.mode, options.blocks) == (["prefetching"], "full", 12)
    assert options.protocol.replace("-", " ") == protocol
    experiment, mode, rest = executed(python_code(asked, results="out"))
    assert (
        experiment.variants == lab.experiment("prefetching", **CHANGES, protocol=protocol).variants
    )
    assert (mode, rest) == ("full", {"blocks": 12, "results": "out"})


def test_line_and_code_keep_the_chosen_variants_and_the_baseline():
    chosen = ("data_prefetcher", "both")
    asked = request(variants=chosen, baseline="both")
    options, _ = typed(command_line(asked))
    assert (tuple(options.variant), options.baseline) == (chosen, "both")
    experiment, _, _ = executed(python_code(asked))
    assert experiment == lab.choose(lab.experiment("prefetching"), chosen, "both")


def test_what_was_not_asked_for_is_not_printed():
    asked = request("storage", changes={"images": None})
    assert command_line(asked) == "labkit run storage --mode quick"
    assert python_code(asked).endswith(
        "experiment = lab.experiment('storage')\nrun = lab.run(experiment, 'quick')\n"
    )


def test_a_value_that_begins_with_a_dash_is_still_a_value():
    _, changes = typed(command_line(request("storage", changes={"data": "--mode"})))
    assert changes == {"data": "--mode"}


def test_a_changed_experiment_is_the_users_own():
    listed = lab.experiment("prefetching")
    assert listed.request["experiment"] == "prefetching"
    own = request(replace(listed, question="Mine?"), changes={"num_workers": 1}, baseline="both")
    assert command_line(own) == ""
    assert "with num_workers=1 for all variants" in python_code(own)
    assert "lab.choose(experiment, baseline='both')" in python_code(own)


def test_a_run_of_an_earlier_version_is_printed_by_name_and_mode():
    assert command_line(request_of(fake_info(["a", "b"]))) == "labkit run prefetching --mode quick"
    own = fake_info(["a", "b"], experiment="mine")
    assert (command_line(request_of(own)), python_code(request_of(own))) == ("", "")
