"""What a form offers of an experiment, and what becomes of what a person chose."""

import re
from dataclasses import replace

import pytest

import labkit as lab
from labkit.experiments.catalog import KNOBS
from labkit.experiments.request import Choice, fields
from labkit.runs.kinds import KINDS

BASE = lab.Settings(data="photos", num_workers=2)
OWN = lab.Experiment(
    "mine",
    question="?",
    variants=lab.vary(BASE, decoder=["opencv", "pillow", "simplejpeg"]),
    baseline="pillow",
    published={"opencv": 0.9, "pillow": 1.0},
)


def names(found):
    return [field.name for field in found]


def all_fields(choice):
    main, others = fields(choice)
    return {field.name: field for field in (*main, *others)}


@pytest.mark.parametrize("name", lab.CATALOG)
def test_every_setting_that_all_variants_share_is_offered_once(name):
    main, others = fields(Choice(subject=name))
    offered = names(main) + names(others)
    assert len(set(offered)) == len(offered)
    experiment = lab.experiment(name)
    variants = [*experiment.variants.values(), *experiment.in_full.values()]
    shared = {
        setting
        for setting in KINDS[experiment.kind].settings
        if len({getattr(settings, setting) for settings in variants}) == 1
    }
    assert set(offered) == shared
    assert names(main) == ["data", *(knob for knob in KNOBS[name] if knob in shared)]


def test_what_a_field_shows_is_what_a_run_would_fill_in():
    in_quick = all_fields(Choice(subject=OWN))
    assert (in_quick["input_px"].value, in_quick["input_px"].step) == (256, 32)
    assert in_quick["num_workers"].value == 2
    assert in_quick["images"].value is None  # only calibration finds it out
    assert in_quick["cache"].choices == ("cold", "warm", "as found")
    assert in_quick["device"].choices == tuple(lab.DEVICES)
    assert {"here", "tmpfs"} < set(in_quick["storage"].suggestions)
    assert "decoder" not in in_quick  # it is what the variants differ in
    in_full = all_fields(Choice(subject=OWN, mode="full"))
    assert (in_full["input_px"].value, in_full["batch_size"].value) == (512, 16)


def test_variants_can_be_left_out_and_the_baseline_changed():
    fewer = Choice(subject=OWN, variants=("pillow", "opencv")).experiment()
    assert list(fewer.variants) == ["opencv", "pillow"]  # in the experiment's order
    assert (fewer.baseline, fewer.published) == ("pillow", {"opencv": 0.9, "pillow": 1.0})
    other = Choice(subject=OWN, variants=("opencv", "simplejpeg"), baseline="opencv").experiment()
    # What a document divided by its own baseline does not hold against another.
    assert (list(other.variants), other.published) == (["opencv", "simplejpeg"], {})


def test_a_variant_that_the_mode_does_not_measure_is_refused():
    listed = replace(OWN, variants={"pillow": BASE}, in_full={"opencv": BASE}, published={})
    choice = Choice(subject=listed, variants=("pillow", "opencv"))
    message = (
        "variant must be one that quick mode measures (pillow), got 'opencv'; choose full mode, "
        "or leave it out"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        choice.experiment()
    assert list(replace(choice, mode="full").experiment().in_full) == ["opencv"]


def test_what_stands_in_for_a_disk_that_cannot_be_put_up_is_chosen_from_alike():
    asked = []

    def otherwise(why):
        asked.append(why)
        return OWN

    chosen = lab.choose(replace(OWN, otherwise=otherwise), ["pillow", "opencv"])
    instead = chosen.otherwise("no loop device")
    assert asked == ["no loop device"]
    assert list(instead.variants) == ["opencv", "pillow"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"variants": ("opencv",)},
            "baseline must be one of the chosen variants (opencv), got 'pillow'; "
            "choose it too, or take another baseline",
        ),
        (
            {"variants": ("pillow", "turbo")},
            "variant must be one of opencv, pillow, simplejpeg, got 'turbo'",
        ),
        ({"baseline": "turbo"}, None),
        ({"changes": {"workers": 2}}, None),
        ({"changes": {"input_px": 100}}, None),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_words(given, message):
    with pytest.raises(ValueError, match=" must be ") as caught:
        Choice(subject=OWN, **given).experiment()
    if message is not None:
        assert str(caught.value) == message


def test_an_unknown_experiment_is_refused_with_the_choices():
    message = f"experiment must be one of {', '.join(sorted(lab.CATALOG))}, got 'prefetch'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Choice(subject="prefetch").whole()
