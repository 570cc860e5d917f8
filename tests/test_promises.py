"""What holds of every setting, every experiment and every request, whatever is in them."""

import contextlib
import io
import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fakes import fake_info
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from json_changes import ANYTHING

import labkit as lab
from labkit import cli, cli_lab
from labkit.analysis.summary import in_common
from labkit.experiments.catalog import CATALOG
from labkit.experiments.request import Request
from labkit.panel.form import AUTO, NUMBERS, Form
from labkit.records import EPOCHS, effective_settings
from labkit.report import run
from labkit.report.report import facts
from labkit.resolve import TABLES, complete_here, resolve
from labkit.runs.store import StoredRun
from labkit.settings import (
    AS_PUBLISHED,
    CORRECTED,
    LEAST,
    MODES,
    NUMBERS_OR_NAMES,
    Settings,
    field_kinds,
    with_settings,
)
from tests.widgets import labelled

KINDS = field_kinds()
# Names that are checked against a table, or a form such as http_50ms.
NAMES = [*TABLES, "exchange", "checkpoint_to", "report_to"]
WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\\0"), max_size=12)
# What a shell, Python, HTML or Markdown would read as code.
NASTY = "<script>alert('x')</script> \"a\" `b` $HOME | ](http://x) \\ ; rm -rf ~"


# --- a bad value ----------------------------------------------------------------------------


def one_line(error, name):
    """Check how an error speaks of a setting."""
    text = str(error)
    assert re.match(rf"{name} must be .+, got .", text), text
    assert "\n" not in text


def bad_values(name):
    """Values of every type that a setting does not take."""
    kind, choices, may_be_unset = KINDS[name]
    # What each kind takes, told without the code under test.
    is_number = kind is int or name in NUMBERS_OR_NAMES

    def is_bad(value):
        if value is None:
            return not may_be_unset
        if isinstance(value, bool) or kind is bool:
            return not (isinstance(value, bool) and kind is bool)
        if isinstance(value, int) and is_number:
            most = {"cache": 100, "gpu_images_per_s": 10**300}.get(name, 10**500)
            least = 0 if name == "cache" else LEAST.get(name, 1)
            return not least <= value <= most or (name == "input_px" and value % 32 != 0)
        if isinstance(value, float) and name == "gpu_images_per_s":
            return not 0 < value < float("inf")
        if isinstance(value, str) and kind is str:
            return bool(choices) and not is_number_text(value) and value not in choices
        return True

    return (ANYTHING | st.binary(max_size=3) | st.just(10**400)).filter(is_bad)


def is_number_text(text):
    with contextlib.suppress(ValueError):
        return bool(text) and float(text) == float(text)
    return False


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_bad_value_of_any_setting_is_refused_in_a_line_that_names_it(name, data):
    value = data.draw(bad_values(name))
    with pytest.raises(ValueError) as error:
        Settings(**{name: value})
    one_line(error.value, name)


def unknown_names(name):
    known = {*TABLES.get(name, ()), "here", "tmpfs", "file", "terminal", "all_reduce"}
    forms = r"far_.*|http_\d+ms.*|\d+mbit|data_parallel_\d+|no_?sync|noop"
    return WORD.filter(
        lambda word: (
            word not in known
            and not re.fullmatch(forms, word)
            and not (name in NUMBERS_OR_NAMES and is_number_text(word))
        )
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(data=st.data())
def test_an_unknown_name_of_any_part_is_refused_in_a_line_that_names_its_setting(name, data):
    chosen = replace(Settings(device="cpu"), **{name: data.draw(unknown_names(name))})
    with pytest.raises(ValueError) as error:
        resolve(complete_here(chosen))
    one_line(error.value, name)


def bad_words(name):
    """What a setting cannot be on a command line or in a field."""
    kind, choices, _ = KINDS[name]
    if kind is bool:
        return WORD.filter(lambda word: word not in ("yes", "no"))
    if kind is int:
        below = st.integers(max_value=LEAST[name] - 1 if name in LEAST else 0).map(str)
        return below | WORD.filter(lambda word: not is_number_text(word))
    if name == "cache":
        above = st.integers(min_value=101).map(str)
        return above | WORD.filter(lambda word: word not in choices and not is_number_text(word))
    return WORD.filter(lambda word: word not in choices) if choices else unknown_names(name)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "data"])
@settings(max_examples=10)
@given(data=st.data())
def test_a_bad_word_on_the_command_line_is_refused_in_a_line_and_nothing_is_begun(
    name, data, photos
):
    word = data.draw(bad_words(name))
    option = f"--{name.replace('_', '-')}={word}"
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = cli.main(["run", "preprocessing", "--data", str(photos), option])
        except SystemExit as stopped:
            status = stopped.code
    (line,) = errors.getvalue().splitlines()
    one_line(re.sub(r"^labkit: (argument --[\w-]+: )?", "", line), name)
    assert status in (1, 2)
    assert not Path("results").exists()


@pytest.fixture(scope="module")
def form():
    return Form(Request(experiment="prefetching"))


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "blocks"])
@settings(max_examples=10)
@given(data=st.data())
def test_a_bad_word_in_a_field_of_the_form_is_refused_in_a_line(form, name, data):
    word = data.draw(bad_words(name).filter(lambda word: word.strip() not in ("", AUTO)))
    form.reset()
    labelled(form.box, name).value = word
    with pytest.raises(ValueError) as error:
        form.refresh()
    one_line(error.value, name)


# --- what variants have in common -------------------------------------------------------------


def run_of(name):
    """A run of an experiment in full mode, before its first row."""
    experiment = Request(experiment=name).build()
    measured = experiment.measured(in_full=True)
    variants = {
        label: asdict(complete_here(variant.settings)) for label, variant in measured.items()
    }
    told = {"experiment": name, "kind": experiment.kind, "baseline": experiment.baseline}
    info = fake_info([*variants], **told, variants=variants, **experiment.run_fields(measured))
    return StoredRun(folder=Path("20250102T030405Z-abcd"), info=info, trials=())


@pytest.mark.parametrize("name", CATALOG)
def test_a_report_names_every_setting_as_shared_or_as_varying(name):
    run = run_of(name)
    shown = facts(run)
    shared = dict(shown["method"])["settings"].split(", ")
    rows = shown["differences"].rows if shown["differences"] else ()
    own = {label: text.split(", ") for label, text in rows}
    for setting in effective_settings(run.info.kind) - {"data"}:
        values = {label: getattr(one, setting) for label, one in run.info.variants.items()}
        words = {label: f"{setting}={x}" for label, x in values.items() if x is not None}
        named = {label: word for label, word in words.items() if word in own.get(label, ())}
        if len({*values.values()}) == 1:
            assert {*words.values()} <= {*shared} and not named
        else:
            assert named == words and not {*words.values()} & {*shared}


# --- requests ---------------------------------------------------------------------------------


def good_values(name):
    """Values that a setting takes, as a user may give them."""
    kind, choices, _ = KINDS[name]
    if kind is bool:
        return st.booleans()
    if name == "input_px":
        return st.integers(1, 64).map(lambda n: 32 * n)
    if kind is int:
        return st.integers(LEAST[name], 1_000_000)
    if name == "cache":
        return st.sampled_from(choices) | st.integers(0, 100)
    if name == "gpu_images_per_s":
        return st.floats(0.001, 1e6) | st.sampled_from([*TABLES[name]])
    if choices or name in TABLES:
        return st.sampled_from(choices or [*TABLES[name]])
    return WORD.map(str.strip).filter(lambda word: word not in ("", AUTO))


@st.composite
def requests(draw):
    """Requests for any experiment that can be built."""
    name = draw(st.sampled_from([*CATALOG]))
    mode = draw(st.sampled_from([*MODES]))
    whole = Request(experiment=name).whole()
    used = effective_settings(whole.kind)
    shared = sorted(in_common([vars(one) for one in whole.settings.values()]).keys() & used)
    names = draw(st.lists(st.sampled_from(shared), max_size=4, unique=True))
    is_published = bool(whole.document_order) and draw(st.booleans())
    request = Request(
        experiment=name,
        mode=mode,
        blocks=draw(st.none() | st.integers(1, 99)),
        protocol=AS_PUBLISHED if is_published else CORRECTED,
        settings={setting: draw(good_values(setting)) for setting in names},
    )
    try:
        whole = request.whole()
    except ValueError:
        assume(False)
    labels = [*whole.measured(in_full=MODES[mode].judged)]
    can_add = whole.kind == EPOCHS and not whole.has_groups
    more = draw(st.lists(st.integers(70, 99), max_size=2, unique=True)) if can_add else []
    # Another one with the settings of all is refused.
    given = request.settings.get("num_workers")
    added = tuple(f"num_workers={number}" for number in more if number != given)
    kept = draw(st.lists(st.sampled_from(labels), min_size=1, unique=True))
    kept = [label for label in labels if label in kept]
    variants = (*kept, *added) if len(kept) < len(labels) else ()
    baseline = draw(st.none() | st.sampled_from(variants or labels))
    return replace(request, variants=variants, added=added, baseline=baseline)


def meaning(request):
    """The same request, in which numbers are numbers: a form has them as text."""
    chosen = with_settings(Settings(), dict(request.settings))
    return replace(request, settings={name: getattr(chosen, name) for name in request.settings})


# After a blank, such a value would be an option; a shell would split the other.
@settings(max_examples=50)
@given(requests(), st.booleans())
@example(Request(experiment="preprocessing", settings={"data": "--mode"}), False)
@example(Request(experiment="preprocessing", settings={"data": NASTY}), True)
def test_the_command_line_of_a_request_asks_for_the_same(request, is_roofline):
    request = replace(request, roofline=is_roofline)
    program, *words = shlex.split(request.command_line())
    assert (program, words[0]) == ("labkit", "roofline" if is_roofline else "run")
    options = cli.parser().parse_args(words)
    (name,) = [options.name] if is_roofline else options.names
    assert replace(cli_lab.request(options, name), roofline=is_roofline) == meaning(request)


@settings(max_examples=50)
@given(requests(), st.booleans())
def test_the_run_json_of_a_request_asks_for_the_same(request, is_roofline):
    request = replace(request, roofline=is_roofline)
    stored = json.loads(json.dumps(request.to_dict()))
    assert Request.read(fake_info(["a"], request=stored)) == request


@settings(max_examples=50)
@given(requests())
@example(Request(experiment="preprocessing", settings={"data": NASTY}))
@example(Request(experiment="storage", settings={"cache": "warm", "num_workers": 2}, roofline=True))
def test_the_python_code_of_a_request_asks_for_the_same(request):
    try:
        request.build()
    except ValueError:  # such as without the baseline among the variants
        assume(False)
    runs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run", lambda *given, **named: runs.append((*given, named)))
        patch.setattr(lab, "run", run.run)
        exec(compile(request.python_code(results="out"), "code", "exec"), {})
    ((built, mode, named),) = runs
    assert named["results"] == "out"
    assert replace(Request.of(built), mode=mode, blocks=named.get("blocks")) == request


@settings(max_examples=30)
@given(requests())
def test_a_form_that_is_left_alone_asks_for_what_it_was_given(request):
    form = Form(request)
    assert meaning(form.request()) == meaning(request)
    labelled(form.box, "mode").value = "full" if request.mode == "quick" else "quick"
    labelled(form.box, "blocks").value = "77"
    form.reset()
    assert meaning(form.request()) == meaning(request)
