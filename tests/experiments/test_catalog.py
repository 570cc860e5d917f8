"""All experiments, on this machine and on machines that have other disks."""

import ast
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

import labkit as lab
from labkit.cli import main
from labkit.contracts import Skip
from labkit.experiments.catalog import CATALOG
from labkit.experiments.request import choose, experiment
from labkit.machine import gpu, hardware
from labkit.machine.gpu import CudaState
from labkit.parts import loading
from labkit.parts.storage import STORAGES, distance, slow_disk
from labkit.resolve import resolve
from labkit.runs import check_run
from labkit.runs.experiment import Experiment
from labkit.settings import AS_PUBLISHED, SLEEPING, Settings, complete

ALL = {name: build(Settings()) for name, build in CATALOG.items()}
PUBLISHED_TOO = [name for name, chosen in ALL.items() if chosen.document_order]
PROTOCOLS = [
    *((name, "corrected") for name in ALL if not ALL[name].has_tasks),
    *((name, AS_PUBLISHED) for name in PUBLISHED_TOO),
]
PHOTOS = 1000  # what `make lab` makes
# A machine -> its labkit.toml, whether its files can be evicted, why no disk can be throttled.
MACHINES = {
    "nothing": ([], True, "needs root"),
    "root": ([], True, ""),
    "hard disk": (["hdd"], True, "needs root"),
    "all disks": (["hdd", "ssd", "nvme", "tmpfs"], True, ""),
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
        monkeypatch.setattr(slow_disk, "why_no_slow_disk", lambda: why_not)
        if not can_evict:
            monkeypatch.delattr(os, "posix_fadvise", raising=False)

    return choose


def storages(chosen):
    return {label: settings.storage for label, settings in chosen.settings.items()}


# --- every experiment, every machine --------------------------------------------------------


@pytest.mark.parametrize(("name", "protocol"), PROTOCOLS)
def test_every_experiment_can_be_built_here(photos, name, protocol):
    chosen = experiment(name, protocol=protocol, data=str(photos), device="simulated")
    assert next(iter(chosen.variants)) == chosen.baseline
    for settings in chosen.settings.values():
        whole = complete(settings, cores=2, has_cuda=False, can_fork=True)
        try:
            resolve(whole)
        except Skip:
            continue  # a disk that is not here: a row with its reason


@pytest.fixture(scope="module")
def many_photos(photos, tmp_path_factory):
    """Enough for each experiment's batches: the same ones under several names."""
    folder = tmp_path_factory.mktemp("many_photos")
    for photo in sorted(Path(photos).rglob("*.jpg")):
        for copy in range(18):
            (folder / f"{copy}_{photo.name}").write_bytes(photo.read_bytes())
    return folder


def needs_cuda(name):
    return ALL[name].settings[ALL[name].baseline].device == "cuda"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.needs_cuda] if needs_cuda(name) else [])
        for name in ALL
    ],
)
def test_a_mode_repeats_and_does_not_change_the_work(many_photos, tmp_path, name, monkeypatch):
    # As where all libraries are, and disks can be throttled.
    monkeypatch.setattr(loading, "why_not_installed", lambda *_: "")
    monkeypatch.setattr(check_run, "why_not_throttled", lambda reader: "")
    chosen = experiment(name, data=str(many_photos))
    quick, full = (
        check_run.check_run(chosen, mode, None, tmp_path)[0].variants for mode in ("quick", "full")
    )
    shared = quick.keys() & full.keys()
    assert chosen.baseline in shared
    assert {label: quick[label] for label in shared} == {label: full[label] for label in shared}


@pytest.mark.parametrize("cores", [1, 2, 3, 16, 192])
def test_no_variant_is_repeated_and_all_batch_sizes_divide_an_epoch(monkeypatch, cores):
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    for name, protocol in PROTOCOLS:
        chosen = experiment(name, protocol=protocol)
        for in_full in (False, True):
            variants = chosen.measured(in_full=in_full).values()
            # What is measured at several speeds of the device is the same at each.
            named = {(variant.group, variant.settings) for variant in variants}
            assert len(variants) == len(named) > 1, name
            whole = [
                complete(variant.settings, cores=cores, has_cuda=False, can_fork=True)
                for variant in variants
            ]
            assert math.lcm(*(settings.batch_size for settings in whole)) <= PHOTOS, name


@pytest.mark.parametrize("machine", MACHINES)
def test_modelled_disks_stand_alone_and_nothing_is_cold_that_cannot_be(on, machine):
    on(machine)
    for name, protocol in PROTOCOLS:
        chosen = experiment(name, protocol=protocol)
        used = set(storages(chosen).values())
        assert len({storage.startswith("modelled") for storage in used}) == 1, name
        assert (chosen.notes != ALL[name].notes) is bool({"throttled", "modelled_hdd"} & used), name
        assert all(one in STORAGES or distance.NAME.fullmatch(one) for one in used), name
        for settings in chosen.settings.values():
            if settings.storage == "tmpfs":
                assert settings.cache in ("warm", "as found"), name  # memory is never cold
            elif settings.loader == "resident" and settings.cache == "as found":
                pass  # nothing is read while it counts
            elif not hasattr(os, "posix_fadvise") and not settings.storage.startswith("modelled"):
                # The memory of a distant server is not this machine's.
                far = distance.NAME.fullmatch(settings.storage)
                assert settings.cache == ("as found" if far else "warm") or far[3], name


@pytest.mark.parametrize(
    ("machine", "disk"),
    [("nothing", "modelled_hdd"), ("nvme and root", "throttled"), ("all disks", "hdd")],
)
def test_what_stands_in_for_a_hard_disk_depends_on_the_machine(on, machine, disk):
    on(machine)
    for name in ("prefetching", "storage", "preprocessing", "combined", "packing"):
        chosen = experiment(name)
        assert chosen.settings[chosen.baseline].storage == disk
        assert len(chosen.notes) == (disk != "hdd")
    nvme = {"throttled": "nvme", "hdd": "nvme"}.get(disk)
    media = set(storages(experiment("storage")).values())
    assert ("nvme" in media) is (nvme is not None)


@pytest.mark.parametrize("machine", MACHINES)
def test_packs_are_read_cold_from_a_hard_disk_unless_the_user_names_another_storage(on, machine):
    on(machine)
    disks = {"hdd", "throttled", "modelled_hdd"}
    packing = experiment("packing").measured(in_full=False).values()
    chosen = [variant.settings for variant in packing]
    assert {settings.storage for settings in chosen} < disks
    assert {settings.cache for settings in chosen} == {"cold"}
    warm = experiment("packing", cache="warm").measured(in_full=False).values()
    assert {variant.settings.cache for variant in warm} == {"warm"}
    for storage in ("here", "ssd", "modelled_hdd"):
        chosen = experiment("packing", storage=storage)
        measured = chosen.measured(in_full=False).values()
        assert {variant.settings.storage for variant in measured} == {storage}
        assert chosen.notes == ()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", PUBLISHED_TOO)
def test_as_in_the_document_only_the_first_starts_cold_and_the_last_repeats_it(on, machine, name):
    on(machine)
    chosen = experiment(name, protocol=AS_PUBLISHED)
    (first, cold), *others = chosen.settings.items()
    left = "warm" if cold.storage.startswith("modelled") else "as found"
    assert (first, cold.cache) == (chosen.baseline, "cold")
    assert {settings.cache for _, settings in others} == {left}
    assert others[-1] == (f"{first}, again", replace(cold, cache=left))


def test_a_disk_that_cannot_be_throttled_after_all_is_modelled_and_says_why(
    on, monkeypatch, photos
):
    on("root")
    why_not = "mount: permission denied"
    monkeypatch.setattr(check_run, "why_not_throttled", lambda settings: why_not)
    chosen = experiment("storage", protocol=AS_PUBLISHED, num_workers=3, data=str(photos))
    assert chosen.settings["hdd"].storage == "throttled"
    chosen = choose(chosen, ["hdd", "ssd"])  # a variant that is left out does not come back
    info, _ = check_run.check_run(chosen, "quick", None)
    used = {label: settings.storage for label, settings in info.variants.items()}
    assert used == {"hdd": "modelled_hdd", "ssd": "modelled_ssd"}
    assert info.variants["hdd"].num_workers == 3
    assert set(info.facts) == set(info.variants)
    assert info.protocol == AS_PUBLISHED
    assert [note for note in info.notes if "the kernel slows down" in note] == []
    assert any(f"none can be throttled here ({why_not})" in note for note in info.notes)


def test_settings_are_checked_before_data_is_looked_for_or_a_disk_is_mounted(on, tmp_path):
    on("root")
    chosen = experiment("storage", data=str(tmp_path / "missing"), decoder="opencvv")
    assert chosen.fallback is not None
    with pytest.raises(ValueError, match="decoder must be one of"):
        check_run.check_run(chosen, "quick", None)


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_equal_depth_is_what_a_thread_holds_more(monkeypatch, cores):
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    variants = lab.experiment("prefetching_in_depth").settings
    plain, deep = variants["original"], variants["equal depth"]
    more = plain.num_workers * (deep.prefetch_factor - plain.prefetch_factor)
    assert 2 <= more < 2 + plain.num_workers  # whole batches for each worker, and no more


def test_without_a_gpu_precision_is_compared_on_the_cpu(monkeypatch):
    monkeypatch.setattr(gpu, "cuda", lambda: CudaState(works=False, reason="no NVIDIA driver"))
    small = lab.experiment("precision").settings["amp"]
    assert (small.device, small.preprocessor, small.input_px) == ("cpu", "classification", 64)
    assert lab.experiment("precision", device="simulated").settings["amp"].device == "simulated"
    monkeypatch.setattr(gpu, "cuda", lambda: CudaState(works=True, reason=""))
    assert lab.experiment("precision").settings["amp"].device is None


# --- the user's settings --------------------------------------------------------------------


def test_the_users_settings_count_for_all_variants(on):
    on("hard disk")
    for name in ("prefetching", "storage", "preprocessing", "opencv_vs_pil", "combined"):
        chosen = experiment(name, num_workers=3, data="my/photos", seed=7)
        for settings in chosen.settings.values():
            assert (settings.num_workers, settings.data, settings.seed) == (3, "my/photos", 7)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("storage", {"cache": "warm"}, "cache must be left out for storage, which takes cold, w"),
        ("storage", {"storage": "tmpfs"}, "storage must be left out for storage, which takes hdd"),
        ("combined", {"preprocessor": "loops"}, "preprocessor must be left out for combined"),
        ("distance", {"num_workers": 3}, "num_workers must be left out for distance"),
        ("operations", {"num_workers": 3}, "num_workers must be left out for operations"),
        (
            "offline",
            {"storage_format": "pixels"},
            "storage_format must be left out for offline",
        ),
        ("packing", {"protocol": AS_PUBLISHED}, "protocol must be 'corrected' for packing, got "),
    ],
)
def test_a_setting_that_the_experiment_decides_is_refused_not_dropped(on, name, changes, message):
    on("hard disk")
    with pytest.raises(ValueError, match=re.escape(message)):
        experiment(name, **changes)


# --- a new experiment -----------------------------------------------------------------------


def test_a_new_experiment_is_one_function(monkeypatch, tmp_path, capsys):
    def mine(base):
        return Experiment(
            "mine",
            question="Is mine faster?",
            variants={"theirs": base, "mine": replace(base, num_workers=0)},
            baseline="theirs",
            document_order={"mine": base, "theirs": base},
        )

    monkeypatch.setitem(CATALOG, "mine", mine)
    assert experiment("mine", seed=7).settings["theirs"].seed == 7
    assert list(experiment("mine", protocol=AS_PUBLISHED).variants) == ["mine", "theirs"]
    assert main(["list", "--results", str(tmp_path)]) == 0
    assert "Is mine faster?" in capsys.readouterr().out


def test_experiments_are_listed_by_their_own_names():
    assert [chosen.name for chosen in ALL.values()] == list(CATALOG)


def is_an_experiments_name(node):
    """run.experiment, experiment.name, row["experiment"]."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "experiment"
    return isinstance(node, ast.Attribute) and node.attr in ("experiment", "name")


def sides_of(node):
    """What is compared: by an operator, in a tuple or set, or with the cases of a match."""
    if isinstance(node, ast.Match):
        patterns = [part for case in node.cases for part in ast.walk(case.pattern)]
        return [node.subject, *(part.value for part in patterns if hasattr(part, "value"))]
    sides = [node.left, *node.comparators]
    return [*sides, *(one for side in sides for one in getattr(side, "elts", ()))]


def test_no_module_compares_the_name_of_an_experiment_with_a_known_one():
    found = []
    for path in Path(lab.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare | ast.Match):
                sides = sides_of(node)
                names = {side.value for side in sides if isinstance(side, ast.Constant)}
                if any(map(is_an_experiments_name, sides)) and names & CATALOG.keys():
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []


def test_hosts_that_sleep_are_compared_on_a_simulated_gpu_only():
    own = CATALOG["pin_memory"](Settings())
    assert {s.device for s in own.settings.values()} == {None, SLEEPING}
    other = CATALOG["pin_memory"](Settings(device="cuda"))
    assert {s.device for s in other.settings.values()} == {"cuda"}
