"""An experiment's variants at several speeds of the device, as an experiment of its own."""

from dataclasses import replace

import labkit as lab
from labkit.experiments.request import Request


def roofline(name, **more):
    return Request(experiment=name, roofline=True, **more).build()


def test_every_variant_runs_at_every_speed_and_loads_alone():
    built = roofline("preprocessing")
    assert list(dict.fromkeys(built.groups[label] for label in built.variants)) == [
        "x = 1", "x = 2", "x = 4", "loading alone",
    ]  # fmt: skip
    names = list(lab.experiment("preprocessing").variants)
    for group in set(built.groups.values()):
        labels = [label for label, its in built.groups.items() if its == group]
        assert labels == [f"{group}: {name}" for name in names]
    every = {**built.variants, **built.in_full}
    assert {settings.epochs for settings in every.values()} == {1}
    assert every["loading alone: simplified"].step == "nothing"
    assert built.published == {
        "loading alone: original": 1.0, "loading alone: simplified": 0.661,
    }  # fmt: skip


def test_cold_and_warm_files_have_a_roofline_each():
    whole = lab.experiment("storage").variants
    cold, warm = (roofline("storage", settings={"cache": cache}) for cache in ("cold", "warm"))
    for built, same in ((cold, {}), (warm, {"baseline": "hdd, warm"})):
        other = roofline("storage", **same)
        assert (other.name, other.variants) == (built.name, built.variants)
    assert cold.baseline == "x = 1: hdd"
    assert warm.baseline == "x = 1: hdd, warm"
    assert (cold.name, warm.name) == ("storage_roofline_cold", "storage_roofline_warm")
    for built, other in ((cold, "warm"), (warm, "cold")):
        names = [
            label.partition(": ")[2] for label in built.variants if built.groups[label] == "x = 1"
        ]
        assert "tmpfs" in names  # never anywhere but in memory
        assert other not in {whole[name].cache for name in names if name != "tmpfs"}


def test_files_at_a_distance_have_one_in_the_state_they_are_found_in():
    assert roofline("distance").name == "distance_roofline_as_found"


def test_parts_of_the_work_have_no_roofline():
    labels = roofline("combined", mode="full").groups
    assert not any("computing alone" in label for label in labels)
    assert sum(group == "x = 8" for group in labels.values()) == 2 * 3 * 2


def test_the_baseline_is_first_in_every_group():
    own = replace(lab.experiment("preprocessing"), baseline="simplified")
    built = Request(experiment=own, roofline=True).build()
    baselines = built.grouped(built.variants)["baselines"]
    assert set(baselines.values()) == {f"{group}: simplified" for group in baselines}
