"""Run it again: what is written down, typed or executed, asks for the same run.

Run: python -m pytest tests/test_reproduce.py
"""

import shlex
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

import labkit as lab
from labkit import cli, media
from labkit.experiment import completed
from labkit.reproduce import command_line, of_run, python_code, python_of
from labkit.settings import AS_PUBLISHED, CORRECTED, MODES, field_kinds

NASTY = "<script>alert('x')</script> \"a\" `b` $HOME | ](http://x) \\ ; rm -rf ~"
CHANGES = {
    "data": f"/data/{NASTY}",
    "num_workers": 0,
    "pin_memory": False,
    "persistent_workers": True,
    "device": "emulated",
}


@pytest.fixture(autouse=True)
def no_disks_named(tmp_path, monkeypatch):
    """Nobody's labkit.toml: a machine that names no hard disk."""
    monkeypatch.chdir(tmp_path)
    assert "hdd" not in media.media()


def typed(line):
    """What the words of a command line ask for, once a shell and the parser have read them."""
    program, *words = shlex.split(line)
    assert program == "labkit"
    options = cli._parser().parse_args(words)
    changes = {name: getattr(options, name) for name in field_kinds() if hasattr(options, name)}
    return options, changes


def executed(code):
    """The calls that Python code makes: what it would run, with everything that is given."""
    calls = []
    recorder = SimpleNamespace(
        Settings=lab.Settings,
        Experiment=lab.Experiment,
        experiment=lab.experiment,
        choose=lab.choose,
        run=lambda *given, **named: calls.append((*given, named)),
        run_operations=lambda *given, **named: calls.append((*given, named)),
    )
    ready = code.replace("import labkit as lab\n", "")
    assert ready != code
    exec(compile(ready, "code", "exec"), {"lab": recorder})
    (call,) = calls
    return call


def stored(experiment, mode="quick", *, blocks=None, **more):
    """What run.json would hold of a run of this experiment."""
    chosen = MODES[mode]
    wanted = {**experiment.variants, **(experiment.in_full if chosen.judged else {})}
    found = lab.machine.provenance()
    return {
        "experiment": experiment.name,
        "question": experiment.question,
        "mode": mode,
        "blocks": blocks or chosen.blocks,
        "protocol": experiment.protocol,
        "baseline": experiment.baseline,
        "variants": {label: asdict(completed(s, chosen)) for label, s in wanted.items()},
        "published": dict(experiment.published),
        "source": experiment.source,
        "provenance": {name: found[name] for name in ("cores", "platform", "gpu")},
        **more,
    }


# --- the line and the code ----------------------------------------------------------------


@pytest.mark.parametrize("protocol", [CORRECTED, AS_PUBLISHED])
def test_the_words_of_the_command_line_give_back_what_was_asked(protocol):
    line = command_line("prefetching", mode="full", blocks=12, changes=CHANGES, protocol=protocol)
    options, changes = typed(line)
    assert changes == CHANGES
    assert (options.names, options.mode, options.blocks) == (["prefetching"], "full", 12)
    assert options.protocol.replace("-", " ") == protocol


def test_a_line_holds_nothing_that_was_not_asked_for():
    line = command_line("storage", mode="quick", changes={"images": None})
    assert line == "labkit run storage --mode quick"


def test_chosen_variants_and_the_baseline_are_options():
    line = command_line(
        "storage", mode="quick", changes={}, variants=["ssd", "ssd, warm"], baseline="ssd"
    )
    assert line == (
        "labkit run storage --mode quick --variant ssd --variant 'ssd, warm' --baseline ssd"
    )
    options, _ = typed(line)
    assert (options.variant, options.baseline) == (["ssd", "ssd, warm"], "ssd")


def test_a_value_that_begins_with_a_dash_is_still_a_value():
    _, changes = typed(command_line("storage", mode="quick", changes={"data": "--mode"}))
    assert changes == {"data": "--mode"}


def test_the_code_runs_the_experiment_with_its_settings():
    code = python_code("prefetching", mode="full", blocks=12, changes={**CHANGES, "images": None})
    experiment, mode, rest = executed(code)
    wanted = lab.experiment("prefetching", **CHANGES)
    assert (experiment.variants, experiment.baseline) == (wanted.variants, wanted.baseline)
    assert (mode, rest) == ("full", {"blocks": 12})


def test_the_code_keeps_the_chosen_variants_and_the_baseline():
    chosen = ["data_prefetcher", "both"]
    code = python_code("prefetching", mode="quick", changes={}, variants=chosen, baseline="both")
    experiment, mode, rest = executed(code)
    assert experiment == lab.choose(lab.experiment("prefetching"), chosen, "both")
    assert list(experiment.variants) == chosen
    assert (mode, rest) == ("quick", {})


def test_the_code_of_the_operations_gives_the_documents_name_no_other_settings():
    code = python_code("operations", mode="full", blocks=8, changes={"data": NASTY, "seed": 3})
    assert executed(code) == ({"data": NASTY, "seed": 3, "mode": "full", "blocks": 8},)


def test_code_is_no_wider_than_a_page():
    code = python_code("prefetching", mode="quick", changes={"data": "/a" * 20, "num_workers": 4})
    assert code == (
        "import labkit as lab\n"
        "\n"
        "experiment = lab.experiment(\n"
        '    "prefetching",\n'
        f'    data="{"/a" * 20}",\n'
        "    num_workers=4,\n"
        ")\n"
        'run = lab.run(experiment, "quick")\n'
    )


RESULTS = f"/results/{NASTY}"


def test_the_folder_of_results_is_part_of_both_only_where_it_is_given():
    line = command_line("storage", mode="quick", changes={}, results=RESULTS)
    assert typed(line)[0].results == RESULTS
    code = python_code("prefetching", mode="quick", blocks=4, changes={}, results=RESULTS)
    assert executed(code)[1:] == ("quick", {"blocks": 4, "results": RESULTS})
    code = python_code("operations", mode="quick", changes={}, results="there")
    assert executed(code) == ({"mode": "quick", "results": "there"},)


# --- an experiment of one's own -----------------------------------------------------------


def own_experiment(**more):
    base = lab.Settings(data=NASTY, num_workers=3)
    return lab.Experiment(
        "decoders",
        question=NASTY,
        variants=lab.vary(base, decoder=["opencv", "pillow"]) | {NASTY: base},
        baseline="pillow",
        **more,
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"published": {NASTY: 0.5}, "source": NASTY, "notes": (NASTY,), "protocol": AS_PUBLISHED},
        {"in_full": {"alone": lab.Settings(num_workers=0)}, "notes": ("one", "two" * 60)},
        {"in_full": {"pillow": lab.Settings(data=NASTY, device="emulated", pin_memory=False)}},
    ],
)
def test_python_of_an_experiment_is_that_experiment(more):
    own = own_experiment(**more)
    again, mode, rest = executed(python_of(own, mode="full"))
    assert again == own
    assert list(again.variants) == list(own.variants)
    assert (mode, rest) == ("full", {})
    rest = executed(python_of(own, mode="quick", blocks=4, results=RESULTS))[2]
    assert rest == {"blocks": 4, "results": RESULTS}


@pytest.mark.parametrize("name", lab.CATALOG)
def test_python_of_every_experiment_of_the_catalog_is_that_experiment(name):
    experiment = lab.experiment(name, seed=4)
    code = python_of(experiment, mode="quick")
    assert executed(code)[0] == replace(experiment, otherwise=None)
    assert ("# not written: what to run where" in code) == (experiment.otherwise is not None)


def test_python_of_an_experiment_writes_no_default():
    base = lab.Settings(decoder="pillow", epochs=2)
    own = lab.Experiment(
        "small",
        question="Is it?",
        variants={"few": base, "many": replace(base, num_workers=8)},
        baseline="few",
        published={"many": np.float64(0.5)},
    )
    assert python_of(own, mode="quick") == (
        "from dataclasses import replace\n"
        "\n"
        "import labkit as lab\n"
        "\n"
        'base = lab.Settings(decoder="pillow")\n'
        "experiment = lab.Experiment(\n"
        '    "small",\n'
        '    question="Is it?",\n'
        '    variants={"few": base, "many": replace(base, num_workers=8)},\n'
        '    baseline="few",\n'
        '    published={"many": 0.5},\n'
        ")\n"
        'run = lab.run(experiment, "quick")\n'
    )


# --- from a stored run --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "protocol", "mode", "changes"),
    [
        ("prefetching", CORRECTED, "quick", {}),
        ("prefetching", AS_PUBLISHED, "document", {"data": NASTY}),
        ("storage", CORRECTED, "quick", {"epochs": 3}),
        ("storage", AS_PUBLISHED, "document", {}),
        ("preprocessing", CORRECTED, "full", {"num_workers": 7, "images": 64}),
        ("opencv_vs_pil", CORRECTED, "quick", {"batch_size": 4}),
        ("combined", CORRECTED, "full", {"input_px": 64}),
        ("combined", CORRECTED, "quick", {}),
    ],
)
def test_a_stored_run_gives_back_what_was_asked(name, protocol, mode, changes):
    experiment = lab.experiment(name, protocol=protocol, **changes)
    line, code = of_run(stored(experiment, mode))
    options, typed_changes = typed(line)
    assert typed_changes == changes
    assert (options.names, options.mode, options.blocks) == ([name], mode, None)
    assert options.protocol.replace("-", " ") == protocol
    assert "--variant" not in line
    again, again_mode, rest = executed(code)
    assert (again.variants, again.in_full) == (experiment.variants, experiment.in_full)
    assert (again.protocol, again_mode, rest) == (protocol, mode, {})


def test_what_the_machine_filled_in_is_not_written_as_a_choice():
    info = stored(lab.experiment("prefetching"))
    info["provenance"] = {"cores": 64, "platform": "Darwin arm64", "gpu": {"works": True}}
    filled = {"num_workers": 32, "device": "cuda", "step": "detector", "start_method": "spawn"}
    info["variants"] = {
        label: {**values, **filled, "pin_memory": True}
        for label, values in info["variants"].items()
    }
    assert of_run(info)[0] == "labkit run prefetching --mode quick"


def test_the_device_alone_brings_its_step_with_it():
    info = stored(lab.experiment("preprocessing", device="cpu"))
    assert of_run(info)[0] == "labkit run preprocessing --mode quick --device cpu"


def test_modelled_disks_are_asked_for_where_others_would_be_taken(monkeypatch):
    experiment = lab.experiment("storage", storage="modelled_hdd")
    throttled = replace(lab.catalog.MODELLED, hdd="throttled", ssd="ssd", tmpfs="tmpfs")
    monkeypatch.setattr(lab.catalog, "disks", lambda why_not_throttled=None: throttled)
    line, _ = of_run(stored(experiment))
    assert line == "labkit run storage --mode quick --storage modelled_hdd"


def test_variants_left_out_another_baseline_and_more_blocks_are_written():
    experiment = lab.experiment("prefetching")
    fewer = lab.choose(experiment, ["original", "both"], "both")
    line, code = of_run(stored(fewer, blocks=5))
    assert line == (
        "labkit run prefetching --mode quick --blocks 5 "
        "--variant original --variant both --baseline both"
    )
    again, _, rest = executed(code)
    assert (again, rest) == (fewer, {"blocks": 5})


def test_an_experiment_of_ones_own_is_written_whole_as_python():
    own = own_experiment(published={NASTY: 0.5}, source="mine")
    line, code = of_run(stored(own, blocks=4))
    assert line == ""
    again, mode, rest = executed(code)
    assert again == own
    assert (mode, rest) == ("quick", {"blocks": 4})


def test_another_experiment_under_a_name_of_the_catalog_is_ones_own():
    mine = replace(
        lab.experiment("prefetching"),
        variants=lab.vary(lab.Settings(), prefetcher=["none", "both"]),
        baseline="none",
        published={},
    )
    line, code = of_run(stored(mine))
    assert line == ""
    assert executed(code)[0].variants == mine.variants


def test_a_part_of_ones_own_is_named_before_the_code_that_needs_it():
    info = stored(lab.experiment("preprocessing"))
    for values in info["variants"].values():
        values["decoder"] = "mine"
    info["experiment"] = "my_own"
    assert '# first add "mine" to the table of decoders' in of_run(info)[1]


def test_settings_that_this_labkit_refuses_are_not_written():
    info = stored(lab.experiment("preprocessing"))
    for values in info["variants"].values():
        values["cache"] = "lukewarm"
    assert of_run(info) == ("", "")


def test_a_run_of_the_operations_gives_back_what_was_asked():
    info = {
        "kind": "operations", "experiment": "operations", "mode": "full", "blocks": 10,
        "order_seed": 0, "data": {"folder": "/my photos"},
    }  # fmt: skip
    line, code = of_run(info)
    assert typed(line)[1] == {"data": "/my photos"}
    assert line == "labkit run operations --mode full --data '/my photos'"
    assert executed(code) == ({"data": "/my photos", "mode": "full"},)
