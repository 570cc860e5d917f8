"""The documents' experiments, on this machine and on machines that have other disks."""

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from labkit import catalog, tables
from labkit.catalog import AS_PUBLISHED_TOO, CATALOG, MAIN_ROAD, document_base, experiment
from labkit.parts.storage import STORAGES, distance, slow_disk
from labkit.settings import AS_PUBLISHED, MODES, complete
from labkit.trial import Skip

# A machine -> its labkit.toml, whether its files can be evicted, why no disk can be throttled.
MACHINES = {
    "nothing": ([], True, "needs root"),
    "root": ([], True, ""),
    "hard disk": (["hdd"], True, "needs root"),
    "hard disk and root": (["hdd"], True, ""),
    "all disks": (["hdd", "ssd", "nvme", "tmpfs"], True, "needs root"),
    "nvme only": (["nvme"], True, "needs root"),
    "nvme and root": (["nvme"], True, ""),
    "macOS with a hard disk": (["hdd"], False, "needs Linux"),
}


@pytest.fixture
def on(tmp_path, monkeypatch):
    """Make the catalog see another machine."""

    def choose(machine):
        names, can_evict, why_not = MACHINES[machine]
        monkeypatch.chdir(tmp_path)
        if names:
            lines = [f'{name} = "{tmp_path}"\n' for name in names]
            (tmp_path / "labkit.toml").write_text("[media]\n" + "".join(lines))
        monkeypatch.setattr(slow_disk, "why_not", lambda: why_not)
        if not can_evict:
            monkeypatch.delattr(os, "posix_fadvise", raising=False)

    return choose


def storages(chosen):
    """Label -> storage, of all variants."""
    return {label: settings.storage for label, settings in everything(chosen).items()}


def everything(chosen):
    return {**chosen.variants, **chosen.in_full}


def every_protocol():
    return [
        *((name, "corrected") for name in CATALOG if name != "operations"),
        *((name, AS_PUBLISHED) for name in AS_PUBLISHED_TOO),
    ]


# --- every machine --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "protocol"), every_protocol())
def test_every_experiment_can_be_built_here(photos, name, protocol):
    chosen = experiment(name, protocol=protocol, data=str(photos), device="emulated")
    assert next(iter(chosen.variants)) == chosen.baseline
    for settings in everything(chosen).values():
        whole = complete(settings, MODES["quick"], cores=2, has_cuda=False, can_fork=True)
        try:
            tables.check(whole)
        except Skip:
            continue  # a disk that is not here: a row with its reason


@pytest.mark.parametrize("machine", MACHINES)
def test_on_every_machine_modelled_disks_stand_alone_and_nothing_is_cold_that_cannot_be(
    on, machine
):
    on(machine)
    for name, protocol in every_protocol():
        chosen = experiment(name, protocol=protocol)
        used = set(storages(chosen).values())
        assert len({storage.startswith("modelled") for storage in used}) == 1, name
        assert (chosen.notes != ()) is bool({"throttled", "modelled_hdd"} & used), name
        assert all(storage in STORAGES or distance.parse(storage) for storage in used), name
        for settings in everything(chosen).values():
            if settings.storage == "tmpfs":
                assert settings.cache in ("warm", "as found"), name  # memory is never cold
            elif settings.loader == "resident" and settings.cache == "as found":
                pass  # nothing is read while it counts
            elif not hasattr(os, "posix_fadvise") and not settings.storage.startswith("modelled"):
                # The memory of a distant server is not this machine's.
                far = distance.parse(settings.storage)
                assert settings.cache == ("as found" if far else "warm") or far.staged, name


# --- which disks ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["storage", "combined"])
def test_without_a_hard_disk_and_without_root_every_medium_is_modelled(on, name):
    on("nothing")
    chosen = experiment(name)
    used = set(storages(chosen).values())
    memory = {"modelled_memory"} if name == "storage" else set()
    assert used == {"modelled_hdd", "modelled_ssd"} | memory
    (note,) = chosen.notes
    assert note == (
        "no hard disk is named in labkit.toml (make lab HDD=/a/folder/on/it), and none can be "
        "throttled here (needs root): every medium is modelled"
    )


@pytest.mark.parametrize("machine", ["hard disk", "hard disk and root"])
@pytest.mark.parametrize("name", ["storage", "combined"])
def test_a_named_hard_disk_is_used_and_nothing_stands_in(on, machine, name):
    on(machine)
    chosen = experiment(name)
    used = set(storages(chosen).values())
    assert used == {"hdd", "ssd"} | ({"tmpfs"} if name == "storage" else set())
    assert chosen.notes == ()


def test_experiments_about_other_parts_read_from_the_hard_disk_where_there_is_one(on):
    on("nothing")
    assert set(storages(experiment("preprocessing")).values()) == {"here"}
    on("hard disk")
    for name in ("prefetching", "preprocessing", "opencv_vs_pil"):
        assert set(storages(experiment(name)).values()) == {"hdd"}


def test_storage_compares_every_disk_cold_and_warm_and_nothing_else(on):
    on("all disks")
    chosen = experiment("storage")
    assert {label: (s.storage, s.cache) for label, s in chosen.variants.items()} == {
        "hdd": ("hdd", "cold"),
        "ssd": ("ssd", "cold"),
        "tmpfs": ("tmpfs", "warm"),
        "nvme": ("nvme", "cold"),
        "hdd, warm": ("hdd", "warm"),
        "ssd, warm": ("ssd", "warm"),
        "nvme, warm": ("nvme", "warm"),
    }
    first = chosen.variants["hdd"]
    for settings in chosen.variants.values():
        assert replace(settings, storage=first.storage, cache=first.cache) == first


# --- as in the document ---------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", AS_PUBLISHED_TOO)
def test_as_in_the_document_only_the_first_starts_cold_and_the_last_repeats_it(on, machine, name):
    on(machine)
    chosen = experiment(name, protocol=AS_PUBLISHED)
    assert chosen.protocol == AS_PUBLISHED
    (first, cold), *others = chosen.variants.items()
    left = "warm" if cold.storage.startswith("modelled") else "as found"
    assert first == chosen.baseline
    assert cold.cache == "cold"
    assert {settings.cache for _, settings in others} == {left}
    label, again = others[-1]
    assert label == f"{first}, again"
    assert again == replace(cold, cache=left)


def test_as_in_the_document_prefetching_runs_its_loops_on_a_hard_disk(on):
    on("root")
    variants = experiment("prefetching", protocol=AS_PUBLISHED).variants
    assert {label: settings.prefetcher for label, settings in variants.items()} == {
        "original": "none",
        "prefetch_generator": "prefetch_generator",
        "data_prefetcher": "data_prefetcher_as_published",
        "both": "both_as_published",
        "original, again": "none",
    }
    assert {settings.storage for settings in variants.values()} == {"throttled"}
    corrected = experiment("prefetching").variants
    assert {settings.prefetcher for settings in corrected.values()} == {
        "none", "prefetch_generator", "data_prefetcher", "both"
    }  # fmt: skip


def test_an_unknown_experiment_or_setting_lists_the_choices():
    with pytest.raises(ValueError, match=f"experiment must be one of {', '.join(sorted(CATALOG))}"):
        experiment("speed")
    with pytest.raises(ValueError, match=r"setting must be one of data, .*, got 'worker'"):
        experiment("storage", worker=2)


# --- combined -------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_combined_holds_all_combinations_and_the_floors(on, machine):
    on(machine)
    chosen = experiment("combined")
    here = catalog.disks()
    floors = {
        label: settings
        for label, settings in chosen.in_full.items()
        if settings.step == "nothing" or settings.loader == "resident"
    }
    whole = {label: s for label, s in everything(chosen).items() if label not in floors}
    combined = {(s.storage, s.prefetcher, s.preprocessor) for s in whole.values()}
    assert combined == {
        (storage, prefetcher, preprocessor)
        for storage in (here.hdd, here.ssd)
        for prefetcher in ("none", "prefetch_generator", "data_prefetcher")
        for preprocessor in ("loops", "on_device")
    }
    assert (len(chosen.variants), len(whole), len(chosen.in_full)) == (3, 12, 9 + 6)
    assert Counter((s.step, s.loader) for s in floors.values()) == {
        ("nothing", "torch"): 4,
        (None, "resident"): 2,
    }
    assert len(set(everything(chosen).values())) == 12 + 6
    # Nothing else differs; and a model can be cold where files cannot be evicted.
    base = replace(document_base(), cache="cold") if here.modelled else document_base()
    for settings in everything(chosen).values():
        named = ("storage", "prefetcher", "preprocessor", "step", "loader")
        assert replace(settings, **{name: getattr(base, name) for name in named}) == base


def test_a_persons_settings_count_for_all_variants(on):
    on("hard disk")
    for name in MAIN_ROAD:
        chosen = experiment(name, num_workers=3, data="my/photos", seed=7)
        for settings in everything(chosen).values():
            assert (settings.num_workers, settings.data, settings.seed) == (3, "my/photos", 7)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "storage",
            {"cache": "warm"},
            "cache must be left out for storage, which takes cold, w",
        ),
        ("storage", {"storage": "tmpfs"}, "storage must be left out for storage, which takes hdd"),
        ("combined", {"preprocessor": "loops"}, "preprocessor must be left out for combined"),
        ("prefetching", {"prefetcher": "both"}, "prefetcher must be left out for prefetching"),
        ("distance", {"num_workers": 3}, "num_workers must be left out for distance"),
        ("packing", {"packing": "raw"}, "packing must be left out for packing, which takes folder"),
        ("offline", {"stored": "pixels"}, "stored must be left out for offline, which takes jpeg"),
    ],
)
def test_a_setting_that_the_experiment_decides_is_refused_not_dropped(on, name, changes, message):
    on("hard disk")
    with pytest.raises(ValueError, match=re.escape(message)):
        experiment(name, **changes)


def test_a_disk_that_cannot_be_throttled_after_all_is_modelled_and_says_why(on, monkeypatch):
    on("hard disk")
    (Path.cwd() / "labkit.toml").unlink()
    monkeypatch.setattr(slow_disk, "why_not", lambda: "")
    chosen = experiment("storage", protocol=AS_PUBLISHED, num_workers=3)
    assert chosen.variants["hdd"].storage == "throttled"
    instead = chosen.otherwise("mount: permission denied")
    assert instead.variants["hdd"].storage == "modelled_hdd"
    assert instead.variants["hdd"].num_workers == 3
    assert instead.protocol == AS_PUBLISHED
    assert "none can be throttled here (mount: permission denied)" in instead.notes[0]
