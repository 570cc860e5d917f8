"""What a form offers of an experiment, and what becomes of what a person chose."""

import re
from dataclasses import replace

import pytest

import labkit as lab
from labkit.catalog import KNOBS
from labkit.choices import Choice, fields, find_data, protocols
from labkit.settings import AS_PUBLISHED, CORRECTED, field_kinds

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
        for setting in field_kinds()
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


def test_changes_reach_every_variant_of_ones_own_experiment():
    chosen = Choice(subject=OWN, changes={"num_workers": 0, "cache": "warm"}).experiment()
    assert {(s.num_workers, s.cache) for s in chosen.variants.values()} == {(0, "warm")}
    assert [s.decoder for s in chosen.variants.values()] == ["opencv", "pillow", "simplejpeg"]


def test_variants_can_be_left_out_and_the_baseline_changed():
    fewer = Choice(subject=OWN, variants=("pillow", "opencv")).experiment()
    assert list(fewer.variants) == ["opencv", "pillow"]  # in the experiment's order
    assert (fewer.baseline, fewer.published) == ("pillow", {"opencv": 0.9, "pillow": 1.0})
    other = Choice(subject=OWN, variants=("opencv", "simplejpeg"), baseline="opencv").experiment()
    # What a document divided by its own baseline does not hold against another.
    assert (list(other.variants), other.published) == (["opencv", "simplejpeg"], {})


def test_a_variant_of_full_mode_stays_one_of_full_mode_unless_it_is_the_baseline():
    listed = replace(
        OWN, variants={"pillow": BASE}, in_full={"opencv": BASE, "simplejpeg": BASE}, published={}
    )
    chosen = lab.choose(listed, ["pillow", "opencv"])
    assert (list(chosen.variants), list(chosen.in_full)) == (["pillow"], ["opencv"])
    chosen = lab.choose(listed, ["pillow", "opencv"], "opencv")
    assert (list(chosen.variants), list(chosen.in_full)) == (["pillow", "opencv"], [])


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


def test_changes_hold_for_what_is_run_instead():
    subject = replace(OWN, otherwise=lambda why: OWN)
    chosen = Choice(subject=subject, changes={"num_workers": 7}).experiment()
    instead = chosen.otherwise("no loop device")
    assert {settings.num_workers for settings in instead.variants.values()} == {7}


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


def test_only_experiments_that_know_the_documents_protocol_offer_it():
    assert protocols(Choice(subject="prefetching")) == (CORRECTED, AS_PUBLISHED)
    assert protocols(Choice(subject="preprocessing")) == (CORRECTED,)
    assert protocols(Choice(subject=OWN)) == (CORRECTED,)
    # It decides itself what is cold.
    assert protocols(Choice(subject="prefetching", changes={"cache": "as found"})) == (CORRECTED,)
    faithful = Choice(subject="prefetching", protocol=AS_PUBLISHED).experiment()
    assert "original, again" in faithful.variants


def test_folders_of_images_beside_the_data_are_suggested(tmp_path):
    for name in ("photos", "coco/images", "texts", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "photos/a.jpg").touch()
    (tmp_path / "coco/images/b.JPEG").touch()
    (tmp_path / "texts/c.txt").touch()
    given = str(tmp_path / "photos")
    assert find_data(given) == (given, str(tmp_path / "coco"))
    missing = str(tmp_path / "not there")
    assert find_data(missing) == (missing, str(tmp_path / "coco"), given)
    assert find_data(str(tmp_path / "no/such/folder")) == (str(tmp_path / "no/such/folder"),)


def test_an_unknown_experiment_is_refused_with_the_choices():
    message = f"experiment must be one of {', '.join(sorted(lab.CATALOG))}, got 'prefetch'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Choice(subject="prefetch").whole()
