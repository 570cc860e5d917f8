"""The form without a browser: what its controls show, and what is asked for through them."""

import re

import pytest
from widgets import below, labelled

import labkit as lab
from labkit.experiments.request import Request
from labkit.panel.form import AUTO, Form
from labkit.records import effective_settings
from labkit.settings import AS_PUBLISHED, help_texts


def help_of(form, text):
    """What stands below a control."""
    for box in below(form.box):
        control, *more = getattr(box, "children", ()) or (None,)
        if getattr(control, "description", None) == text and more:
            return re.sub(r"<[^>]+>", "", more[0].value)
    raise AssertionError(f"no help of {text}")


@pytest.fixture
def form():
    return Form(Request(experiment="prefetching"))


@pytest.mark.parametrize("name", lab.CATALOG)
def test_every_setting_that_all_variants_share_has_one_control_with_its_help(name):
    form = Form(Request(experiment=name))
    form.refresh()
    experiment = lab.experiment(name)
    variants = experiment.settings.values()
    for setting in effective_settings(experiment.kind):
        controls = [w for w in below(form.box) if getattr(w, "description", "") == setting]
        is_shared = len({getattr(settings, setting) for settings in variants}) == 1
        assert len(controls) == is_shared
        if is_shared:
            assert help_of(form, setting).endswith(help_texts()[setting].split("'")[-1])


def test_a_form_that_is_left_alone_asks_for_nothing(form):
    assert form.refresh() == Request(experiment="prefetching")
    assert labelled(form.box, "num_workers").value == AUTO
    assert labelled(form.box, "pin_memory").value == AUTO


def test_what_is_changed_and_only_that_is_asked_for(form):
    labelled(form.box, "num_workers").value = "5"
    labelled(form.box, "cache").value = "warm"
    labelled(form.box, "pin_memory").value = False
    labelled(form.box, "both").value = False
    labelled(form.box, "blocks").value = "7"
    asked = form.request()
    assert asked.settings == {"num_workers": 5, "cache": "warm", "pin_memory": False}
    assert asked.variants == ("original", "prefetch_generator", "data_prefetcher")
    assert (asked.blocks, asked.baseline) == (7, None)
    labelled(form.box, "num_workers").value = ""  # an empty field is auto, too
    assert "num_workers" not in form.request().settings
    form.reset()
    assert form.request() == Request(experiment="prefetching")


def describe_variant(form, like, setting, value):
    """Fill in the line that adds a variant, and press its button."""
    (line,) = [w for w in below(form.box) if "labkit-add" in getattr(w, "_dom_classes", ())]
    likes, settings, values, button = line.children
    likes.value, settings.value = like, setting
    offered = values.options
    values.value = value
    button.click()
    return offered


def test_another_variant_with_one_change_can_be_added():
    form, problems = Form(Request(experiment="workers")), []

    def changed(_):
        try:
            form.add()
        except ValueError as problem:
            problems.append(str(problem))

    form.observe(changed)
    describe_variant(form, "no workers", "decoder", "pillow")
    assert problems == []
    (own,) = form.request().added
    assert own == "decoder=pillow,num_workers=0"
    built = form.refresh().build()
    assert (built.settings[own].num_workers, built.settings[own].decoder) == (0, "pillow")
    labelled(form.box, own).value = False
    assert own not in form.request().build().variants
    labelled(form.box, own).value = True
    labelled(form.box, "baseline").value = own
    assert form.request().build().baseline == own
    for value, why in (
        ("pillow", "variant must differ from all others, got decoder=pillow"),
        ("webp", "decoder must be one of "),
        ("", "decoder must be one of "),
    ):
        describe_variant(form, "no workers", "decoder", value)
        assert problems.pop().startswith(why)
    assert form.request().added == (own,)
    form.reset()
    assert form.request() == Request(experiment="workers")


def test_the_setting_that_varies_is_offered_first_with_its_values():
    offered = describe_variant(Form(Request(experiment="opencv_vs_pil")), "opencv", "decoder", "")
    assert {"pillow", "simplejpeg"} <= {*offered}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("workers=3", "variant must be setting=value with one of images, "),
        ("data=/home/ada", "variant must be setting=value with one of images, "),
        ("storage=/home/ada", "variant must be setting=value with one of images, "),
        ("num_workers=many", "num_workers must be a whole number, got 'many'"),
        ("pin_memory=maybe", "pin_memory must be yes or no, got 'maybe'"),
    ],
)
def test_changes_that_cannot_be_read_are_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        lab.choose(lab.experiment("workers"), add=[changes])


def test_the_help_says_what_auto_means_now(form):
    form.refresh()
    assert help_of(form, "input_px").startswith("auto: 256 · ")
    assert help_of(form, "blocks").startswith("auto: 3 · ")
    assert "auto" not in help_of(form, "images")  # calibration finds it
    labelled(form.box, "mode").value = "full"
    labelled(form.box, "device").value = "cpu"
    form.refresh()
    assert help_of(form, "input_px").startswith("auto: 256 · ")  # the work is the same
    assert help_of(form, "blocks").startswith("auto: 10 · ")
    assert help_of(form, "step").startswith("auto: detector · ")
    assert help_of(form, "pin_memory").startswith("auto: no · ")
    assert "auto" not in help_of(form, "device")


def test_a_form_keeps_the_protocol_that_it_was_given():
    start = Request(experiment="prefetching", protocol=AS_PUBLISHED)
    form = Form(start)
    assert form.refresh() == start
    labelled(form.box, "both").value = False
    assert list(form.refresh().build().variants) == [
        "original", "prefetch_generator", "data_prefetcher", "original, again",
    ]  # fmt: skip
    assert "cache" not in {getattr(w, "description", "") for w in below(form.box)}


def test_variants_of_full_mode_are_offered_there_alone():
    form = Form(Request(experiment="combined"))
    known = lab.experiment("combined").variants
    label = next(label for label, variant in known.items() if variant.full_only)
    form.refresh()
    assert labelled(form.box, label).layout.display == "none"
    labelled(form.box, "mode").value = "full"
    form.refresh()
    assert labelled(form.box, label).layout.display is None
    assert form.request().variants == ()


def test_what_was_given_is_where_reset_returns_to():
    given = {"num_workers": 3, "seed": 20240101, "persistent_workers": True, "decoder": "mine"}
    start = Request(experiment="prefetching", mode="full", blocks=12, settings=given)
    form = Form(start)
    assert form.request() == start
    labelled(form.box, "num_workers").value = AUTO
    labelled(form.box, "mode").value = "quick"
    assert "num_workers" not in form.request().settings
    form.reset()
    assert form.request() == start


def test_a_roofline_is_asked_for_where_epochs_are_timed(form):
    labelled(form.box, "roofline").value = True
    assert form.refresh() == Request(experiment="prefetching", roofline=True)
    for other in ("operations", "stalls"):
        box = Form(Request(experiment=other)).box
        assert "roofline" not in {getattr(w, "description", "") for w in below(box)}


def test_what_no_control_shows_is_still_asked_for():
    start = Request(experiment="storage", settings={"storage": "modelled_hdd"})
    assert Form(start).request() == start
