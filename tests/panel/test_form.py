"""The form without a browser: what its controls show, and what is asked for through them."""

import re
from dataclasses import replace

import pytest
from widgets import below, labelled

import labkit as lab
from labkit import units
from labkit.experiments.request import Request
from labkit.machine import hardware
from labkit.panel.form import Form
from labkit.records import EPOCHS, effective_settings
from labkit.settings import AS_PUBLISHED, SAME_FOR_ALL, help_texts


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


def test_ticks_show_the_values_of_the_one_setting_that_varies_or_labels():
    cores = hardware.cores()
    values = [units.text_of(n) for n in (cores, 0, 2 * cores)]
    for name, expected in (
        ("prefetching", ["none (original)", "prefetch_generator", "data_prefetcher", "both"]),
        ("workers", [values[0], "0 (no workers)", values[2]]),
        ("opencv_vs_pil", ["pillow", "opencv", "simplejpeg"]),
    ):
        form = Form(Request(experiment=name))
        form.refresh()
        starts = [text[: len(start)] for text, start in zip(ticks(form), expected)]
        assert starts == expected, name
        assert len(ticks(form)) == len(expected) or name == "workers"  # fewer of few cores
    assert labelled(form.box, "opencv").tooltip == "decoder=opencv, preprocessor=classification"
    # What only full mode varies has its field there.
    form = Form(Request(experiment="pin_memory"))
    for mode, display in (("quick", "none"), ("full", None)):
        labelled(form.box, "mode").value = mode
        form.refresh()
        assert labelled(form.box, "preprocessor").layout.display == display


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


def fill(form, values):
    for name, value in values.items():
        labelled(form.box, name).value = value


def another(setting, value):
    """A setting whose values are not among the ticks."""
    return {"another setting": setting, "=": value}


SECOND = "GPUs twice as fast as the loader: 2 GPUs"
FIRST = "GPUs a third as fast as the loader: 1 GPU"


@pytest.mark.parametrize(
    ("experiment", "filled_in", "added"),
    [
        ("workers", [{}], {}),  # nothing is filled in
        ("workers", [{"num_workers": "77"}],
         {"num_workers=77": (None, {"num_workers": 77})}),
        # Several values make one variant; a setting that did not vary may be one of them.
        ("workers", [{"num_workers": "0", **another("decoder", "pillow")},
                     another("decoder", "pillow")],
         {"num_workers=0,decoder=pillow": (None, {"num_workers": 0, "decoder": "pillow"}),
          "decoder=pillow": (None, {"decoder": "pillow"})}),
        # A variant may be like any other, one of the user's own, too.
        ("preprocessing", [{"like": "simplified", **another("num_workers", "7")},
                           {"like": "simplified, num_workers=7", **another("decoder", "pillow")}],
         {"simplified, num_workers=7": ("simplified", {"num_workers": 7}),
          "simplified, num_workers=7,decoder=pillow":
              ("simplified", {"num_workers": 7, "decoder": "pillow"})}),
        # In groups it is added to the group of the one that it is like; what is there is not.
        ("ranks", [another("num_workers", "16"), {"like": SECOND, "ranks": "1"},
                   {"like": SECOND, "ranks": "8"}],
         {f"{FIRST}, num_workers=16": (FIRST, {"num_workers": 16}),
          f"{SECOND}, ranks=8": (SECOND, {"ranks": 8})}),
    ],
)  # fmt: skip
def test_values_that_are_filled_in_make_variants_like_the_baseline_or_another(
    experiment, filled_in, added
):
    form = Form(Request(experiment=experiment))
    for values in filled_in:
        form.refresh()
        fill(form, values)
        form.add()
    assert form.refresh() == Request(experiment=experiment, added=tuple(added))
    built = form.request().build()
    for label, (like, changes) in added.items():
        variant, other = built.variants[label], built.variants[like or built.baseline]
        assert variant.settings == replace(other.settings, **changes)
        assert (variant.group, variant.published) == (other.group, None)
        if built.has_groups:
            assert variant.name == label.removeprefix(f"{other.group}: ")
    if built.has_groups:
        assert len(built.run_fields(built.variants)["baselines"]) == 2
    elif added:
        labelled(form.box, ticks(form)[-1]).value = False  # it leaves nothing behind
        assert form.request().added == tuple(added)[:-1]
    form.reset()
    assert form.refresh() == Request(experiment=experiment)


@pytest.mark.parametrize(
    ("setting", "offered"),
    [
        ("decoder", {"pillow", "simplejpeg"}),
        ("pin_memory", {"yes", "no"}),
        ("report_to", {"file", "http_50ms", "file_without_loss"}),
        ("checkpoint_to", {"here", "tmpfs"}),
        ("exchange", {"no_sync", "100mbit"}),
    ],
)
def test_the_values_of_another_setting_are_offered(setting, offered):
    form = Form(Request(experiment="workers"))
    labelled(form.box, "another setting").value = setting
    values = labelled(form.box, "=").options
    assert offered <= {*values}
    for value in values:
        fill(form, another(setting, value))
        form.add()
    assert len(form.request().added) >= len(values) - 1  # one is the baseline's


def test_names_are_offered_where_others_are_possible():
    form = Form(Request(experiment="workers"))
    control = labelled(form.box, "report_to")
    assert "http_50ms" in control.options
    control.value = "http_7ms"
    assert form.request().build().settings["no workers"].report_to == "http_7ms"


def test_what_all_variants_share_is_no_variants_setting():
    form = Form(Request(experiment="workers"))
    assert not {*SAME_FOR_ALL} & {*labelled(form.box, "another setting").options}


def test_a_value_that_is_there_is_ticked_and_an_added_one_may_be_the_baseline():
    form = Form(Request(experiment="workers"))
    form.refresh()
    labelled(form.box, "0 (no workers)").value = False
    assert "no workers" not in form.request().variants
    fill(form, {"num_workers": "0"})
    form.add()
    assert form.request() == Request(experiment="workers")
    fill(form, {"num_workers": "77"})
    form.add()
    form.refresh()
    assert (labelled(form.box, "num_workers").value, ticks(form)[-1]) == ("", "77")
    labelled(form.box, "baseline").value = "num_workers=77"
    assert form.request().build().baseline == "num_workers=77"


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


@pytest.mark.parametrize(
    ("experiment", "text", "message"),
    [
        ("ranks", "num_workers=8", "variant must begin with the label of one of ranks, whose "),
        ("lookups", "num_workers=8", "add must be left out of lookups, which times single "),
        ("preprocessing", "vectorized, preprocessor=on_device", "which is 'simplified'"),
        ("preprocessing", "simple, num_workers=8", "variant must be setting=value with one of "),
        *(("workers", text, "variant must be setting=value with one of storage, ")
          for text in ("workers=3", "data=/home/ada", "storage=/home/ada", "epochs=3")),
        ("workers", "num_workers=many", "num_workers must be a whole number, got 'many'"),
        ("workers", "pin_memory=maybe", "pin_memory must be yes or no, got 'maybe'"),
    ],
)  # fmt: skip
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


def test_a_form_keeps_what_it_was_given():
    start = Request(experiment="storage", settings={"storage": "modelled_hdd"})
    assert Form(start).request() == start  # which no control shows
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
    for mode, display in (("quick", "none"), ("full", None)):
        labelled(form.box, "mode").value = mode
        form.refresh()
        assert labelled(form.box, label).layout.display == display
    assert form.request().variants == ()


def test_a_roofline_is_asked_for_where_epochs_are_timed(form):
    labelled(form.box, "roofline").value = True
    assert form.refresh() == Request(experiment="prefetching", roofline=True)
    for other in ("operations", "stalls"):
        box = Form(Request(experiment=other)).box
        assert "roofline" not in {getattr(w, "description", "") for w in below(box)}
