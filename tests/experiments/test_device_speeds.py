"""An experiment's variants at several speeds of the device, as an experiment of its own."""

import re
from dataclasses import replace

import pytest
from fake_runs import fake_run_at_speeds

import labkit as lab
from labkit.experiments.request import Request
from labkit.machine import gpu
from labkit.machine.gpu import CudaState
from labkit.report import words


def roofline(name, **more):
    return Request(experiment=name, roofline=True, **more).build()


def groups(variants):
    """The groups in their order."""
    return list(dict.fromkeys(variant.group for variant in variants.values()))


def test_what_depends_on_the_gpu_is_measured_at_several_speeds(monkeypatch):
    monkeypatch.setattr(gpu, "cuda", lambda: CudaState(works=False, reason="no NVIDIA driver"))
    built = lab.experiment("prefetching")
    whole = Request(experiment="prefetching").whole()
    assert built.baseline == "x = 1: original"
    assert groups(built.variants) == ["x = 1", "x = 2", "x = 0.5", "x = 4"]
    assert groups(built.measured(in_full=False)) == ["x = 1", "x = 2"]
    for group in groups(built.variants):
        variants = {name: one for name, one in built.variants.items() if one.group == group}
        assert list(variants) == [f"{group}: {name}" for name in whole.variants]
        assert {variant.task["x"] for variant in variants.values()} == {float(group[4:])}
        assert variants[f"{group}: both"].published == whole.variants["both"].published


@pytest.mark.parametrize(
    "settings", [{"device": "cpu"}, {"device": "cuda"}, {"gpu_images_per_s": 90.0},
                 {"gpu_images_per_s": "resnet50_a100"}], ids=str,
)  # fmt: skip
def test_a_gpu_whose_speed_is_known_is_measured_at_that_speed(settings):
    assert not lab.experiment("prefetching", **settings).has_groups


def test_a_run_at_several_speeds_has_a_result_for_each():
    run = fake_run_at_speeds(published={"prefetch_generator": 0.894})
    faster, same = words.result(run.summary)
    said = r"x = 1: prefetch_generator: 0\.8\d\d \[.*\] of the time of original, .*"
    assert re.fullmatch(said, faster)
    assert same.startswith("x = 2: No variant is measurably faster than original")
    title = (
        r"GPU at 1 × the loading rate: 1\d\.\d % less time with prefetch_generator; "
        "GPU at 2 × the loading rate: no variant is measurably faster than original"
    )
    assert re.fullmatch(title, words.headline(run.summary))
    assert run.charts[0] == "lines"
    shown = run.chart().get_label()
    assert "x = 1: prefetch_generator: 0.8" in shown and "published 0.894" in shown


def test_every_variant_runs_at_every_speed_and_loads_alone():
    built = roofline("preprocessing")
    assert groups(built.measured(in_full=False)) == [
        "x = 1", "x = 2", "x = 4", "loading alone",
    ]  # fmt: skip
    names = list(lab.experiment("preprocessing").variants)
    for group in groups(built.variants):
        labels = [label for label, variant in built.variants.items() if variant.group == group]
        assert labels == [f"{group}: {name}" for name in names]
    every = built.settings
    assert {settings.epochs for settings in every.values()} == {1}
    assert every["loading alone: simplified"].step == "nothing"
    figures = {label: variant.published for label, variant in built.variants.items()}
    assert {label: figure for label, figure in figures.items() if figure} == {
        "loading alone: original": 1.0, "loading alone: simplified": 0.661,
    }  # fmt: skip


def test_cold_and_warm_files_have_a_roofline_each():
    whole = Request(experiment="storage").whole().settings
    cold, warm = (roofline("storage", settings={"cache": cache}) for cache in ("cold", "warm"))
    for built, same in ((cold, {}), (warm, {"baseline": "hdd, warm"})):
        other = roofline("storage", **same)
        assert (other.name, other.variants) == (built.name, built.variants)
    assert cold.baseline == "x = 1: hdd"
    assert warm.baseline == "x = 1: hdd, warm"
    assert (cold.name, warm.name) == ("storage_roofline_cold", "storage_roofline_warm")
    for built, other in ((cold, "warm"), (warm, "cold")):
        names = [
            label.partition(": ")[2]
            for label, variant in built.variants.items()
            if variant.group == "x = 1"
        ]
        assert "tmpfs" in names  # never anywhere but in memory
        assert other not in {whole[name].cache for name in names if name != "tmpfs"}


def test_files_at_a_distance_have_one_in_the_state_they_are_found_in():
    assert roofline("distance").name == "distance_roofline_as_found"


def test_parts_of_the_work_have_no_roofline():
    variants = roofline("combined", mode="full").variants
    assert not any("computing alone" in label for label in variants)
    assert sum(variant.group == "x = 8" for variant in variants.values()) == 2 * 3 * 2


def test_the_baseline_is_first_in_every_group():
    own = replace(lab.experiment("preprocessing"), baseline="simplified")
    built = Request(experiment=own, roofline=True).build()
    baselines = built.run_fields(built.variants)["baselines"]
    assert set(baselines.values()) == {f"{group}: simplified" for group in baselines}
