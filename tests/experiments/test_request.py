"""A request makes the experiment: what is left out, added and refused.

That what is printed of it asks for the same again is checked in test_promises.py.
"""

import re
from dataclasses import replace

import pytest
from fakes import fake_info

import labkit as lab
from labkit.experiments.request import Request
from labkit.experiments.sweep import full_only, with_published

OWN = lab.Experiment(
    "mine",
    question="?",
    variants=with_published(
        {"opencv": 0.9, "pillow": 1.0},
        lab.sweep(lab.Settings(num_workers=2), "decoder", ["opencv", "pillow", "simplejpeg"]),
    ),
    baseline="pillow",
)


def figures(experiment):
    """The published time of each variant."""
    return {label: variant.published for label, variant in experiment.variants.items()}


def test_a_number_may_be_given_as_text_as_a_form_does():
    chosen = lab.experiment("preprocessing", cache="50", gpu_images_per_s="300")
    assert {one.cache for one in chosen.settings.values()} == {50}
    assert {one.gpu_images_per_s for one in chosen.settings.values()} == {300}
    added = lab.choose(OWN, ["pillow"], add=["gpu_images_per_s=500"])
    assert added.settings["gpu_images_per_s=500"].gpu_images_per_s == 500


def test_an_old_run_is_asked_for_with_todays_names():
    asked = {"experiment": "workers", "settings": {"profile": "calibrated", "device_speed": 460.0}}
    assert "--gpu-images-per-s 460" in Request.read(fake_info(["a"], request=asked)).command_line()


def test_what_was_not_asked_for_is_not_printed():
    asked = Request(experiment="storage")
    assert asked.command_line() == "labkit run storage --mode quick"
    assert asked.python_code().endswith(
        "experiment = lab.experiment('storage')\nrun = lab.run(experiment, 'quick')\n"
    )


def test_a_changed_experiment_is_the_users_own():
    changed = replace(lab.experiment("prefetching"), question="Mine?")
    assert changed.request is None
    own = Request(experiment=changed, settings={"num_workers": 1}, baseline="x = 1: both")
    assert {settings.num_workers for settings in own.build().settings.values()} == {1}
    stored = Request.read(fake_info(["a"], request=own.to_dict()))
    for asked in (own, stored):
        assert asked.command_line() == ""
        assert "with num_workers=1 for all variants" in asked.python_code()
        assert "lab.choose(experiment, baseline='x = 1: both')" in asked.python_code()


def test_a_run_of_schema_1_is_printed_by_name_and_mode():
    asked = Request.read(fake_info(["a", "b"]))
    assert asked.command_line() == "labkit run prefetching --mode quick"
    own = Request.read(fake_info(["a", "b"], experiment="mine"))
    assert (own.experiment, own.command_line()) == (None, "")


def test_variants_can_be_left_out_and_the_baseline_changed():
    fewer = Request(experiment=OWN, variants=("pillow", "opencv")).build()
    assert list(fewer.variants) == ["opencv", "pillow"]  # in the experiment's order
    assert (fewer.baseline, figures(fewer)) == ("pillow", {"opencv": 0.9, "pillow": 1.0})
    other = lab.choose(OWN, ["opencv", "simplejpeg"], "opencv")
    # The document divided by another baseline, so its figures do not apply.
    assert figures(other) == {"opencv": None, "simplejpeg": None}
    again = lab.choose(lab.choose(OWN, ["opencv", "pillow"]), baseline="opencv")
    assert (list(again.variants), again.baseline) == (["opencv", "pillow"], "opencv")


def test_a_variant_of_ones_own_is_measured_once_in_every_mode():
    base = lab.Settings(decoder="pillow")
    in_full = with_published({"opencv": 0.9}, {"opencv": replace(base, decoder="opencv")})
    listed = replace(OWN, variants={"pillow": base, **full_only(in_full)})
    for mode in ("quick", "full"):
        built = Request(experiment=listed, mode=mode, added=("decoder=opencv",)).build()
        measured = built.measured(in_full=mode == "full")
        assert figures(replace(built, variants=measured)) == {
            "pillow": None,
            "decoder=opencv": 0.9,
        }


LISTED = replace(OWN, variants={"pillow": lab.Settings(), **full_only({"opencv": lab.Settings()})})
TWICE = ("decoder=simplejpeg,num_workers=1", "num_workers=1,decoder=simplejpeg")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"variants": ("opencv",)}, "baseline must be one of the chosen variants (opencv), got "
         "'pillow'; choose it too, or take another baseline"),
        ({"baseline": "turbo"}, "baseline must be one of the chosen variants"),
        ({"variants": ("pillow", "turbo")},
         "variant must be one of opencv, pillow, simplejpeg, got 'turbo'"),
        ({"experiment": LISTED, "variants": ("pillow", "opencv")}, "variant must be one that quick "
         "mode measures (pillow), got 'opencv'; choose full mode, or leave it out"),
        ({"added": ("decoder=opencv",)},
         "variant must differ from all others, got 'decoder=opencv', which is 'opencv'"),
        ({"added": TWICE},
         f"variant must differ from all others, got {TWICE[1]!r}, which is {TWICE[0]!r}"),
        ({"added": ("decoder=pilow",)}, "decoder must be one of kornia_rs, opencv, "),
        ({"added": ("gpu_images_per_s=rtx4090",)},
         "gpu_images_per_s must be one of resnet50_a100, "),
        ({"added": ("report_to=fiel",)}, "report_to must be one of file, http_<delay>ms"),
        ({"added": ("checkpoint_to=nowhere",)},
         "checkpoint_to must be one of a folder's path, here, "),
        ({"added": ("exchange=100gbit",)},
         "exchange must be one of <n>mbit, as 100mbit, all_reduce, "),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused_in_words(asked, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Request(**{"experiment": OWN, **asked}).build()


def test_what_only_full_mode_measures_can_be_asked_for_there():
    built = Request(experiment=LISTED, variants=("pillow", "opencv"), mode="full").build()
    assert [label for label, one in built.variants.items() if one.full_only] == ["opencv"]
    chosen = lab.choose(LISTED, ["pillow", "opencv"])
    message = r"^variant must be one that quick mode measures \(pillow\), got 'opencv'; choose full"
    with pytest.raises(ValueError, match=message):
        lab.run(chosen, "quick")


def test_a_published_time_of_no_variant_is_refused():
    with pytest.raises(ValueError, match="published label must be one of a, got 'z'"):
        with_published({"z": 0.9}, {"a": lab.Settings()})
