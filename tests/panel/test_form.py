"""The form without a browser: what its controls show, and what is asked for through them."""

import re
from dataclasses import replace

import pytest
from widgets import below, labelled

import labkit as lab
from labkit import units
from labkit.experiments.request import Request
from labkit.machine import hardware
from labkit.panel.form import AUTO, Form
from labkit.records import EPOCHS, effective_settings
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
def test_every_setting_has_one_control(name):
    form = Form(Request(experiment=name))
    form.refresh()
    experiment = lab.experiment(name)
    settings = Request(experiment=name).whole().settings.values()
    can_add = experiment.kind == EPOCHS
    for setting in effective_settings(experiment.kind):
        controls = [w for w in below(form.box) if getattr(w, "description", "") == setting]
        is_shared = len({getattr(each, setting) for each in settings}) == 1
        assert len(controls) == (is_shared or can_add)
        if is_shared:
            assert help_of(form, setting).endswith(help_texts()[setting].split("'")[-1])


def ticks(form):
    """What stands beside the ticks that are shown."""
    boxes = [w for w in below(form.box) if type(w).__name__ == "Checkbox"]
    return [box.description for box in boxes if box.layout.display != "none"]


def test_ticks_show_the_values_of_the_one_setting_that_varies():
    form = Form(Request(experiment="prefetching"))
    form.refresh()
    assert ticks(form) == ["none (original)", "prefetch_generator", "data_prefetcher", "both"]
    values = [units.text_of(n) for n in (hardware.cores(), 0, 2 * hardware.cores())]
    form = Form(Request(experiment="workers"))
    form.refresh()
    assert [text.split()[0] for text in ticks(form)][:3] == values
    assert ticks(form)[1] == "0 (no workers)"


def test_ticks_show_labels_where_several_settings_vary():
    form = Form(Request(experiment="opencv_vs_pil"))
    form.refresh()
    assert ticks(form) == ["pillow", "opencv", "simplejpeg"]
    assert labelled(form.box, "opencv").tooltip == "decoder=opencv, preprocessor=classification"
    # What only full mode varies has its field there.
    form = Form(Request(experiment="pin_memory"))
    form.refresh()
    assert labelled(form.box, "preprocessor").layout.display == "none"
    labelled(form.box, "mode").value = "full"
    form.refresh()
    assert labelled(form.box, "preprocessor").layout.display is None


def test_a_form_that_is_left_alone_asks_for_nothing(form):
    assert form.refresh() == Request(experiment="prefetching")
    assert labelled(form.box, "num_workers").value == AUTO
    assert labelled(form.box, "pin_memory").value == AUTO


def test_what_is_changed_and_only_that_is_asked_for(form):
    labelled(form.box, "num_workers").value = "5"
    labelled(form.box, "cache").value = "warm"
    labelled(form.box, "pin_memory").value = False
    form.refresh()
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


def test_a_value_that_is_added_makes_one_like_the_baseline():
    form = Form(Request(experiment="workers"))
    form.add()  # nothing is filled in
    assert form.refresh() == Request(experiment="workers")
    labelled(form.box, "num_workers").value = "77"
    form.add()
    assert form.refresh() == Request(experiment="workers", added=("num_workers=77",))
    assert ticks(form)[-1] == "77"
    assert labelled(form.box, "num_workers").value == ""
    built = form.request().build()
    base = built.settings[built.baseline]
    assert built.settings["num_workers=77"] == replace(base, num_workers=77)
    labelled(form.box, "77").value = False  # it leaves nothing behind
    assert form.request() == Request(experiment="workers")
    labelled(form.box, "num_workers").value = "77"
    form.add()
    assert form.request().added == ("num_workers=77",)
    labelled(form.box, "baseline").value = "num_workers=77"
    assert form.request().build().baseline == "num_workers=77"
    form.reset()
    assert form.refresh() == Request(experiment="workers")


def test_a_value_that_is_there_is_ticked():
    form = Form(Request(experiment="workers"))
    form.refresh()
    labelled(form.box, "0 (no workers)").value = False
    assert "no workers" not in form.request().variants
    labelled(form.box, "num_workers").value = "0"
    form.add()
    assert form.request() == Request(experiment="workers")


def test_a_value_that_full_mode_measures_anyway_is_shown_once_there():
    form = Form(Request(experiment="prefetch_factor"))
    labelled(form.box, "prefetch_factor").value = "16"
    form.add()
    assert form.refresh().added == ("prefetch_factor=16",)
    labelled(form.box, "mode").value = "full"
    asked = form.refresh()
    in_order = [text.split()[0] for text in ticks(form) if "any order" not in text]
    assert in_order == ["2", "1", "4", "8", "prefetch_factor=16"]
    assert asked == Request(
        experiment="prefetch_factor", mode="full", added=("prefetch_factor=16",)
    )
    labelled(form.box, "prefetch_factor=16").value = False
    left = form.request().build().settings.values()
    in_order = [settings for settings in left if settings.loader == "torch"]
    assert [settings.prefetch_factor for settings in in_order] == [2, 1, 4, 8]


def test_several_values_make_one_variant_and_a_setting_that_varied_not_may_be_one_of_them():
    form = Form(Request(experiment="workers"))
    labelled(form.box, "num_workers").value = "0"
    labelled(form.box, "another setting").value = "decoder"
    assert {"pillow", "simplejpeg"} <= {*labelled(form.box, "=").options}
    labelled(form.box, "=").value = "pillow"
    form.add()
    (own,) = form.refresh().added
    built = form.request().build()
    assert (built.settings[own].num_workers, built.settings[own].decoder) == (0, "pillow")
    assert ticks(form)[-1] == own == "num_workers=0,decoder=pillow"
    labelled(form.box, "another setting").value = "decoder"
    labelled(form.box, "=").value = "pillow"
    form.add()
    form.refresh()
    assert ticks(form)[-1] == "decoder=pillow"
    assert ticks(form)[1] == "0 (no workers)"


def test_a_variant_may_be_like_any_other():
    form = Form(Request(experiment="preprocessing"))
    form.refresh()
    assert labelled(form.box, "like").options == ("original", "vectorized", "simplified")
    assert labelled(form.box, "like").value == "original"
    labelled(form.box, "like").value = "simplified"
    labelled(form.box, "another setting").value = "num_workers"
    labelled(form.box, "=").value = "7"
    form.add()
    own = "simplified, num_workers=7"
    assert form.refresh() == Request(experiment="preprocessing", added=(own,))
    assert ticks(form)[-1] == own
    labelled(form.box, "like").value = own  # one of the user's own, too
    labelled(form.box, "another setting").value = "decoder"
    labelled(form.box, "=").value = "pillow"
    form.add()
    both = f"{own},decoder=pillow"
    assert form.refresh().added == (own, both)
    built = form.request().build().variants
    assert built[own].settings == replace(built["simplified"].settings, num_workers=7)
    assert built[both].settings == replace(built[own].settings, decoder="pillow")
    assert (built["simplified"].published, built[own].published) == (0.661, None)


def test_a_variant_in_groups_is_added_to_the_group_of_the_one_that_it_is_like():
    form = Form(Request(experiment="ranks"))
    form.refresh()
    like = labelled(form.box, "like")
    labelled(form.box, "another setting").value = "num_workers"
    labelled(form.box, "=").value = "16"
    form.add()
    assert form.refresh().added == (f"{like.options[0]}, num_workers=16",)
    second = "GPUs twice as fast as the loader: 2 GPUs"
    like.value = second
    labelled(form.box, "ranks").value = "1"
    form.add()  # which is there
    assert len(form.refresh().added) == 1
    like.value = second
    labelled(form.box, "ranks").value = "8"
    form.add()
    own = f"{second}, ranks=8"
    assert form.refresh().added[1:] == (own,)
    built = form.request().build()
    assert built.variants[own] == replace(
        built.variants[second],
        settings=replace(built.settings[second], ranks=8),
        name="2 GPUs, ranks=8",
    )
    assert built.run_fields(built.variants)["baselines"].keys() == {
        "GPUs a third as fast as the loader", "GPUs twice as fast as the loader",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("experiment", "text", "message"),
    [
        ("ranks", "num_workers=8", "variant must begin with the label of one of ranks, whose "),
        ("lookups", "num_workers=8", "add must be left out of lookups, which times single "),
        ("preprocessing", "vectorized, preprocessor=on_device", "which is 'simplified'"),
        ("preprocessing", "simple, num_workers=8", "variant must be setting=value with one of "),
    ],
)
def test_a_variant_that_cannot_be_added_is_refused(experiment, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        lab.choose(lab.experiment(experiment), add=[text])


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("decoder", "webp", "decoder must be one of "),
        ("pin_memory", "maybe", "pin_memory must be yes or no, got 'maybe'"),
    ],
)
def test_a_value_that_is_none_is_refused_and_stays_to_be_corrected(setting, value, message):
    form = Form(Request(experiment="workers"))
    labelled(form.box, "another setting").value = setting
    labelled(form.box, "=").value = value
    with pytest.raises(ValueError, match=re.escape(message)):
        form.add()
    assert labelled(form.box, "=").value == value
    assert form.refresh() == Request(experiment="workers")


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


def test_a_roofline_is_asked_for_where_epochs_are_timed(form):
    labelled(form.box, "roofline").value = True
    assert form.refresh() == Request(experiment="prefetching", roofline=True)
    for other in ("operations", "stalls"):
        box = Form(Request(experiment=other)).box
        assert "roofline" not in {getattr(w, "description", "") for w in below(box)}


def test_what_no_control_shows_is_still_asked_for():
    start = Request(experiment="storage", settings={"storage": "modelled_hdd"})
    assert Form(start).request() == start
