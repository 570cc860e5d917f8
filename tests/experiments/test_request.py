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


def test_a_published_time_of_no_variant_is_refused():
    with pytest.raises(ValueError, match="published label must be one of a, got 'z'"):
        with_published({"z": 0.9}, {"a": lab.Settings()})


def test_a_variant_that_the_mode_does_not_measure_is_refused():
    listed = replace(
        OWN,
        variants={"pillow": lab.Settings(), **full_only({"opencv": lab.Settings()})},
    )
    asked = Request(experiment=listed, variants=("pillow", "opencv"))
    message = (
        "variant must be one that quick mode measures (pillow), got 'opencv'; choose full mode, "
        "or leave it out"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        asked.build()
    built = replace(asked, mode="full").build()
    assert [label for label, one in built.variants.items() if one.full_only] == ["opencv"]


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


def test_a_variant_of_ones_own_may_have_a_gpu_of_any_speed():
    chosen = lab.choose(OWN, ["pillow"], add=["gpu_images_per_s=500"])
    assert chosen.settings["gpu_images_per_s=500"].gpu_images_per_s == 500


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("decoder=pilow", "decoder must be one of kornia_rs, opencv, "),
        ("gpu_images_per_s=rtx4090", "gpu_images_per_s must be one of resnet50_a100, "),
        ("report_to=fiel", "report_to must be one of file, http_<delay>ms"),
        ("checkpoint_to=nowhere", "checkpoint_to must be one of a folder's path, here, "),
        ("exchange=100gbit", "exchange must be one of <n>mbit, as 100mbit, all_reduce, "),
    ],
)
def test_a_variant_with_an_unknown_name_is_refused_when_it_is_added(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        lab.choose(OWN, add=[changes])


def test_a_variant_of_ones_own_that_is_there_already_is_refused():
    twice = ("decoder=simplejpeg,num_workers=1", "num_workers=1,decoder=simplejpeg")
    message = f"variant must differ from all others, got {twice[1]!r}, which is {twice[0]!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Request(experiment=OWN, added=twice).build()
    message = "variant must differ from all others, got 'decoder=opencv', which is 'opencv'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.choose(OWN, add=["decoder=opencv"])


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
        ({"baseline": "turbo"}, "baseline must be one of the chosen variants"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_words(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Request(**{"experiment": OWN, **given}).build()
