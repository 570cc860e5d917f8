"""Every recipe that the catalog can produce runs without labkit and delivers the variant's batches.

The recipes are written to files and run by one fresh process in which labkit cannot be imported;
what they deliver in two epochs must equal, value by value, what labkit's pipeline delivers.

Run: python -m pytest tests/recipes/test_recipe.py
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from fakes import LABELS, fake_info, fake_trials
from jpegs import encode, exif, photo, why_missing, with_segment

import labkit as lab
from labkit import cli, contracts, pipeline, tables
from labkit.clock import SleepingClock
from labkit.parts.loading import OUTSIDE
from labkit.parts.prefetching import STEPS_SHORT
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.recipes.program import BUILT_IN, program
from labkit.results import Run, append_trial, create_run
from labkit.settings import AS_PUBLISHED, CORRECTED, MODES, Settings, complete

SMALL = {"num_workers": 0, "batch_size": 8, "input_px": 64}
# What decides which batches are delivered and how; the rest is where and beside what.
DECIDING = ("packing", "decoder", "preprocessor", "loader", "prefetcher")


def completed(settings):
    return complete(settings, MODES["quick"], cores=2, has_cuda=False, can_fork=True)


def catalog_variants():
    """(experiment, label) -> settings of everything the catalog has, in both protocols."""
    found = {}
    for name in lab.CATALOG:
        for protocol in (CORRECTED, AS_PUBLISHED):
            try:
                experiment = lab.experiment(name, protocol=protocol, **SMALL)
            except ValueError:  # not every document's experiment has an order of its own
                continue
            for label, settings in {**experiment.variants, **experiment.in_full}.items():
                as_it_is = (settings.packing, settings.stored) == ("folder", "jpeg")
                in_process = settings.checkpoint_every and settings.saver == "process"
                if as_it_is and settings.loader not in OUTSIDE and not in_process:
                    found[name, protocol, label] = completed(settings)
    return found


CATALOG = catalog_variants()
COMBINATIONS = {
    " ".join(getattr(settings, name) for name in DECIDING): {
        name: getattr(settings, name) for name in DECIDING
    }
    for settings in CATALOG.values()
    if not why_missing(settings.decoder)
}
INKS = 12  # the zoo's image in CMYK
CASES = {
    name: ({**changes, "images": 16}, "labkit", ()) for name, changes in COMBINATIONS.items()
} | {
    "coco": ({"preprocessor": "vectorized"}, "coco", ()),
    "tree": ({"preprocessor": "vectorized", "prefetcher": "both"}, "tree", ()),
    "list": ({"preprocessor": "loops_label_list"}, "labkit", ()),
    "config": ({"preprocessor": "loops_config_per_sample"}, "labkit", ()),
    "excluded": ({"preprocessor": "classification"}, "labkit", (3, 17)),
    "first": ({"preprocessor": "classification", "images": 16, "subset": "first"}, "labkit", ()),
    "in order": ({"preprocessor": "classification", "order": "sequential"}, "labkit", ()),
    "threads": (
        {"loader": "threads", "preprocessor": "on_device", "num_workers": 2, "prefetcher": "both"},
        "labkit",
        (),
    ),
    "on device": ({"preprocessor": "classification_on_device"}, "labkit", ()),
    "images": ({"preprocessor": "classification", "images": 15}, "labkit", ()),
    "seed": ({"preprocessor": "vectorized", "seed": 7}, "labkit", ()),
    **{
        f"zoo {decoder}": (
            {"preprocessor": "classification", "decoder": decoder},
            "zoo",
            (INKS,) if decoder == "kornia_rs" else (),
        )
        for decoder in BUILT_IN["decoder"]
        if not why_missing(decoder)
    },
}

DELIVER = """
import importlib, sys
sys.modules["labkit"] = None  # importing it is an error from here on
sys.path.insert(0, ".")
import torch
for name in sys.argv[1:]:
    recipe = importlib.import_module(name)
    loader = recipe.make_loader()
    epochs = [list(recipe.batches(loader, epoch)) for epoch in (0, 1)]
    epochs = [[{k: v.cpu() for k, v in batch.items()} for batch in epoch] for epoch in epochs]
    torch.save(epochs, f"{name}.pt")
"""


@pytest.fixture(scope="module")
def folders(photos, tmp_path_factory):
    """The same photographs in each layout, and a folder of the JPEGs that decoders disagree on."""
    root = tmp_path_factory.mktemp("layouts")
    shutil.copytree(photos / "images", root / "tree" / "more" / "photos")
    shutil.copytree(photos / "images", root / "coco" / "val2017")
    (root / "coco" / "annotations").mkdir()
    shutil.copy(
        photos / "annotations.json", root / "coco" / "annotations" / "instances_val2017.json"
    )
    (root / "coco" / "val2017" / "not_listed.jpg").write_bytes(encode(photo()))
    zoo = [with_segment(encode(photo()), 0xE1, exif(turn)) for turn in range(1, 9)]
    zoo += [encode(photo().convert("L")), encode(photo().convert("CMYK"))]
    zoo += [encode(photo(), progressive=True), encode(photo(), subsampling=0)]
    zoo += [encode(photo()) + b"a video that a phone appended"]
    (root / "zoo").mkdir()
    for i, jpeg in enumerate(zoo):
        (root / "zoo" / f"{i:02}.jpg").write_bytes(jpeg)
    return {"labkit": photos, **{name: root / name for name in ("coco", "tree", "zoo")}}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.needs_cuda)])
def delivered(request, folders, tmp_path_factory):
    """Case -> the batches of two epochs, from one process that knows no labkit."""
    import torch

    folder = tmp_path_factory.mktemp("recipes")
    for i, (changes, layout, excluded) in enumerate(CASES.values()):
        settings = completed(Settings(data=str(folders[layout]), **{**SMALL, **changes}))
        layout = "tree" if layout == "zoo" else layout
        text = program(settings, layout=layout, excluded=excluded)
        (folder / f"recipe_{i}.py").write_text(text, encoding="utf-8")
    environment = {"CUDA_VISIBLE_DEVICES": ""} if request.param == "cpu" else {}
    names = [f"recipe_{i}" for i in range(len(CASES))]
    done = subprocess.run(
        [sys.executable, "-c", DELIVER, *names],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {case: torch.load(folder / f"{name}.pt") for case, name in zip(CASES, names)}


def variant_batches(settings, excluded):
    """What labkit itself delivers, finished on the CPU, epoch by epoch."""
    # The emulated device has streams, and its batches stay on the host.
    opened = pipeline.build(
        replace(settings, device="emulated", step="timed", profile="resnet50_h100"),
        SleepingClock(),
        excluded=frozenset(excluded),
    )
    finish = PREPROCESSORS[settings.preprocessor].on_device or (lambda batch, input_px: batch)
    epochs = []
    for epoch in (0, 1):
        opened.source.order.epoch = epoch
        fetched = opened.batches(opened.loader, opened.device)
        epochs.append([finish(dict(batch), settings.input_px) for batch in fetched])
    return epochs


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_delivers_the_batches_of_its_variant(case, delivered, folders):
    changes, layout, excluded = CASES[case]
    settings = completed(Settings(data=str(folders[layout]), **{**SMALL, **changes}))
    specs = contracts.BATCHES[PREPROCESSORS[settings.preprocessor].batch](8, 64)
    is_finished_there = PREPROCESSORS[settings.preprocessor].on_device is not None
    for recipe_epoch, epoch in zip(delivered[case], variant_batches(settings, excluded)):
        short = STEPS_SHORT.get(settings.prefetcher, 0)  # the recipe delivers the last one, too
        assert len(recipe_epoch) - short == len(epoch) > 0
        for ours, theirs in zip(recipe_epoch, epoch):
            ours = {name: tensor.numpy() for name, tensor in ours.items()}
            theirs = {name: tensor.numpy() for name, tensor in theirs.items()}
            contracts.check_batch(ours, specs)
            if is_finished_there:
                assert contracts.difference(ours, theirs, specs) == ""
            else:
                for name in specs:
                    np.testing.assert_array_equal(ours[name], theirs[name])


def test_the_epochs_of_a_recipe_differ(delivered):
    first, second = delivered["seed"]
    assert not (first[0]["image"] == second[0]["image"]).all()


def test_everything_that_labkit_offers_can_be_written_out():
    # A new part needs a piece in recipes/pieces.py, or a reason why it has none: packs are read
    # with labkit, and rivals are pipelines of their own.
    written = {name: set(known) for name, known in BUILT_IN.items() if name != "packing"}
    assert written == {name: set(tables.TABLES[name]) - OUTSIDE for name in written}


@pytest.mark.parametrize("key", CATALOG, ids=lambda key: " ".join(key))
def test_every_variant_of_the_catalog_has_a_recipe(key):
    name, _, label = key
    settings = CATALOG[key]
    run = make_run({label: 1.0}, variants={label: asdict(settings)}, experiment=name)
    text = lab.recipe(run, label)
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    allowed = {"cv2", "PIL", "simplejpeg", "prefetch_generator", "numpy", "torch"}
    allowed |= {settings.decoder} & {"kornia_rs", "torchvision"}
    allowed |= {"tqdm"} if settings.progress_bar != "none" else set()
    assert imported <= allowed | set(sys.stdlib_module_names)
    assert ("prefetch_generator" in imported) == (
        settings.prefetcher in ("prefetch_generator", "both", "both_as_published")
    )
    assert 'DATA = "data/photos"\n' in text


@pytest.mark.parametrize("how", [{"packing": "raw"}, {"stored": "resized"}])
def test_a_packed_variant_is_read_with_labkit(how):
    settings = asdict(completed(Settings(**how, **SMALL)))
    packing = how.get("packing", "folder")
    message = (
        rf"as it is, got packing '{packing}' and stored '{settings['stored']}' in 'packed'; pack "
        rf"with data_scripts/pack_dataset.py and read with lab.PACKINGS\['{packing}'\].open\("
    )
    with pytest.raises(ValueError, match=message):
        lab.recipe(make_run({"packed": 1.0}, variants={"packed": settings}), "packed")


@pytest.mark.parametrize(("loader", "module"), [("dali", "dali"), ("tf_data_plain", "tf_data")])
def test_a_rivals_pipeline_is_taken_from_its_module(loader, module):
    settings = asdict(completed(Settings(loader=loader, **SMALL)))
    message = rf"got loader '{loader}' in 'rival'; .* from labkit/parts/loading/{module}\.py"
    with pytest.raises(ValueError, match=message):
        lab.recipe(make_run({"rival": 1.0}, variants={"rival": settings}), "rival")


def test_a_process_that_writes_checkpoints_is_taken_from_its_module():
    settings = asdict(completed(Settings(checkpoint_every=10, saver="process", **SMALL)))
    message = (
        "recipe must be of a variant whose saver is one of sync, thread, got 'process' in 'aside'; "
        "take saver='thread', or the process from labkit/parts/training/checkpoint_process.py"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(make_run({"aside": 1.0}, variants={"aside": settings}), "aside")


def test_a_place_for_reports_of_ones_own_is_named():
    settings = asdict(completed(Settings(report_every=10, report_to="mine", **SMALL)))
    message = (
        "report_to must be one of labkit's own (file, terminal, notebook, nothing, http) to be "
        "written out, got 'mine' in the variant 'own'; take that part from where you wrote it"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(make_run({"own": 1.0}, variants={"own": settings}), "own")


def test_a_recipe_is_a_program_that_uses_workers(folders, tmp_path):
    run = make_run(
        {"original": 1.0, "both": 0.8},
        variants={
            label: asdict(
                completed(
                    Settings(
                        data=str(folders["labkit"]),
                        prefetcher=prefetcher,
                        preprocessor="on_device",
                        **{**SMALL, "num_workers": 2},
                    )
                )
            )
            for label, prefetcher in (("original", "none"), ("both", "both"))
        },
        data={"boxes": "coco", "manifest_hash": "7"},
    )
    file = tmp_path / "recipe.py"
    file.write_text(lab.recipe(run), encoding="utf-8")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"[0-9.]+ images/s\n", done.stdout)


# --- which variant, and what the comment says ---------------------------------------------


def make_run(times, *, mode="quick", blocks=3, variants=None, trials=None, **info):
    """A run of made-up trials, in memory; the first variant is the baseline."""
    known = fake_info([*times], mode=mode, **info)
    if variants is not None:
        known["variants"] = variants
    made = fake_trials(times, blocks=blocks) if trials is None else trials
    return Run(folder=Path("20250102T030405Z-abcd"), info=known, trials=tuple(made))


def comment_of(text):
    """The comment at the top, its lines joined."""
    lines = text[: text.index("\n\n")].splitlines()
    assert all(line.startswith("#") for line in lines)
    return " ".join(line.lstrip("#").strip() for line in lines)


def with_settings(times, **changes):
    """What run.json says of variants, of which some differ in more than the prefetcher."""
    return {
        name: {"prefetcher": "none", "num_workers": 2, "data": "data/photos", "cache": "cold"}
        | {"input_px": 64, "batch_size": 8, "start_method": "fork", "pin_memory": True}
        | changes.get(name, {})
        for name in times
    }


JUDGED = {"original": 1.0, "prefetch_generator": 0.9, "data_prefetcher": 0.8, "both": 0.99}


def test_a_judged_run_hands_on_its_verdict_and_its_conditions():
    run = make_run(
        JUDGED,
        mode="full",
        blocks=10,
        published={"data_prefetcher": 0.891},
        provenance={
            "cpu_model": "AMD EPYC",
            "cores": 2,
            "memory_bytes": 8_000_000_000,
            "python": "3.11.7",
            "gpu": {"name": ""},
            "versions": {"torch": "2.13.0", "numpy": "2.4.6", "opencv": "5.0", "pillow": "13.0"},
        },
        data={"boxes": "synthesized", "images": 1000, "bytes": 10**8},
    )
    said = comment_of(lab.recipe(run))
    assert said.startswith(
        "data_prefetcher, the winner in this run of prefetching, as plain PyTorch for a train.py "
        "of your own: it needs no labkit. Against original: prefetcher data_prefetcher (was "
        "none); see put_ahead below."
    )
    row = lab.summarize(run).rows[2]
    assert f"Measured: {row.normalized_time:.3f} of the epoch time of original, 95 % " in said
    assert ", faster (" in said
    assert "The document reported 0.891" in said
    assert "Conditions: full mode · 10 blocks · storage: real" in said
    assert "Emulated accelerator (matched, 11.2 ms/image)." in said
    assert (
        "Run: prefetching/20250102T030405Z-abcd, 2025-01-02 03:04 UTC, 160 of 1,000 images an epoch"
        in said
    )
    assert said.endswith(
        "Machine: AMD EPYC · 2 cores · 8.0 GB of memory · no GPU · Python 3.11.7 · torch 2.13.0 · "
        "numpy 2.4.6 · opencv 5.0"
    )
    assert "no verdict" not in said


def test_an_unjudged_run_says_so():
    said = comment_of(lab.recipe(make_run({"original": 1.0, "both": 0.8})))
    assert said.startswith("both, the fastest in this run of prefetching, as plain PyTorch")
    assert "Quick mode: numbers, no verdict." in said
    assert "faster (" not in said


def test_where_nothing_beat_the_baseline_its_own_recipe_comes():
    text = lab.recipe(make_run({"original": 1.0, "both": 1.2}))
    assert text.startswith("# Nothing beat original in this run")
    assert "DataLoaderX" not in text


def test_a_medium_in_memory_may_win_and_says_how_to_mount_it():
    times = {"hdd": 1.0, "tmpfs": 0.5}
    variants = with_settings(
        times, hdd={"storage": "throttled"}, tmpfs={"storage": "tmpfs", "cache": "warm"}
    )
    text = lab.recipe(
        make_run(times, variants=variants, data={"boxes": "synthesized", "bytes": 10**8})
    )
    assert (
        "#    sudo mkdir -p /mnt/ram\n"
        "#    sudo mount -t tmpfs -o size=105M,mode=0755,nosuid,nodev,uid=$(id -u),gid=$(id -g) "
        "tmpfs /mnt/ram\n"
        "#    cp -r data/photos /mnt/ram/\n"
        "# Then DATA below is /mnt/ram/photos.\n"
    ) in text


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("ssd", "The data has to lie on an SSD; if it does not: cp -r data/photos /ssd/ Then"),
        ("modelled_ssd", "In the run a model stood in for ssd. The data has to lie on an SSD"),
        ("throttled", "In the run a slowed-down disk stood in for hdd; this reads DATA where it"),
        ("hdd", "The run read from a hard disk; this reads DATA where it lies."),
        ("/somebody/at/home", "The data has to lie on the disk that the run named; if it does"),
        (
            "far_20ms_1000mbit",
            "In the run a server stood in for data 20 ms and 1,000 Mbit/s away. This reads DATA as "
            "a folder, so one that is far has to be mounted.",
        ),
        (
            "far_20ms_1000mbit_staged",
            "1,000 Mbit/s away. The data has to lie on a disk of this machine; if it does not: "
            "cp -r data/photos /disk/ Then",
        ),
    ],
)
def test_where_the_data_has_to_lie_is_said(storage, words):
    times = {"here": 1.0, "there": 0.5}
    variants = with_settings(times, there={"storage": storage})
    text = lab.recipe(make_run(times, variants=variants))
    assert words in comment_of(text)
    assert "somebody" not in text


def test_data_at_a_url_is_read_from_a_copy_or_not_at_all():
    times = {"there": 1.0, "copied": 0.5}
    url = {"data": "https://host/a/photos"}
    variants = with_settings(times, there=url, copied={**url, "storage": "ssd"})
    run = make_run(times, variants=variants)
    said = comment_of(lab.recipe(run))
    assert "Copy all that is at the data's URL to /ssd. Then DATA below is /ssd/photos." in said
    assert "cp -r" not in said
    message = (
        "recipe must be of a variant that reads a folder, got data at a URL in 'there'; "
        "take a variant that copies it first, as storage='ssd', or run again on a copy"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(run, "there")


def test_a_floor_that_is_asked_for_says_that_it_is_one():
    times = {"original": 1.0, "computing alone": 0.5}
    variants = with_settings(times, **{"computing alone": {"loader": "resident"}})
    said = comment_of(lab.recipe(make_run(times, variants=variants), "computing alone"))
    assert "It does only part of the work: a floor, not a remedy." in said


RESIDENT = {"loader": "resident", "preprocessor": "classification"}


def test_what_computes_alone_as_its_baseline_does_is_no_floor():
    times = {"loops": 1.0, "at once": 0.5}
    loops = {**RESIDENT, "metrics": "loops"}
    variants = with_settings(times, loops=loops, **{"at once": {**loops, "metrics": "vectorized"}})
    said = comment_of(lab.recipe(make_run(times, variants=variants)))
    assert said.startswith("“at once”, the fastest in this run")
    assert "metrics vectorized (was loops); see train below" in said
    assert "a floor" not in said
    assert "All trained on one batch in memory: keep your own loader beside this loop." in said


def test_a_loss_that_differs_from_the_baselines_is_written_out():
    times = {"loops": 1.0, "at once": 0.5}
    variants = with_settings(times, loops={"loss": "loops"})
    text = lab.recipe(make_run(times, variants=variants))
    assert "loss vectorized (was loops); see detector_loss below" in comment_of(text)
    assert "\ndef detector_loss(" in text
    assert "loop_loss" not in text
    assert "\ndef loop_loss(" in lab.recipe(make_run(times, variants=variants), "loops")


def test_the_documents_short_loop_is_delivered_whole():
    times = {"original": 1.0, "short": 0.9}
    variants = with_settings(times, short={"prefetcher": "data_prefetcher_as_published"})
    said = comment_of(lab.recipe(make_run(times, variants=variants), "short"))
    assert "In the run it left out the last step of each epoch; this delivers it." in said


def test_a_variant_that_changes_nothing_is_no_remedy():
    times = {"original": 1.0, "original, again": 0.9}
    run = make_run(times, variants=with_settings(times))
    said = comment_of(lab.recipe(run))
    assert "Its settings are those of original: whatever it gained, they did not." in said


@pytest.mark.parametrize("data", ["a $b {c}", 'qu"ote', "it's", "new\nline #", "back\\slash", "数"])
def test_any_folder_is_written_so_that_python_reads_it_back(data):
    times = {"original": 1.0, "tmpfs": 0.5}
    variants = with_settings(
        times, original={"data": data}, tmpfs={"data": data, "storage": "tmpfs"}
    )
    module = ast.parse(lab.recipe(make_run(times, variants=variants)))
    assigned = [node for node in module.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(assigned[0].value) == data


# --- what cannot be written out -----------------------------------------------------------


def test_an_unknown_variant_lists_the_choices():
    message = "variant must be one of both, original, got 'bth'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(make_run({"original": 1.0, "both": 0.8}), "bth")


def test_a_variant_without_numbers_says_why():
    times = {"original": 1.0, "both": 0.8, "gone": 1.0}
    measured = [trial for trial in fake_trials(times) if trial.variant != "gone"]
    run = make_run(times, trials=measured, skipped={"gone": "no such disk"})
    message = "variant must be one with numbers (original, both), got 'gone', skipped: no such disk"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(run, "gone")


def test_a_run_without_a_complete_block_says_how_to_go_on():
    run = make_run({"original": 1.0, "both": 0.8}, trials=[])
    message = (
        "run must hold a complete block of its baseline, got none in 20250102T030405Z-abcd; "
        "complete it with: labkit run --resume 20250102T030405Z-abcd"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(run)


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_a_run_that_lost_its_baseline_is_not_to_be_resumed(status):
    why = "a driver is missing"
    run = make_run({"original": 1.0, "both": 0.8}, trials=[], **{status: {"original": why}})
    message = (
        "run must hold a complete block of its baseline, got none in 20250102T030405Z-abcd; "
        f"'original' is out ({status}: a driver is missing); start a new run"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(run)


def test_of_all_paths_only_the_data_folder_is_written():
    times = {"original": 1.0, "both": 0.8}
    settings = with_settings(times)
    for values in settings.values():
        values |= {"data": "/home/ada/photos", "storage": "/home/ada/disk"}
    settings["original"]["storage"] = "/home/ada/slow"
    named = [
        line
        for line in lab.recipe(make_run(times, variants=settings)).splitlines()
        if "/home/ada" in line
    ]
    assert named == ["#    cp -r /home/ada/photos /disk/", 'DATA = "/home/ada/photos"']


def test_a_run_of_operations_is_refused():
    run = Run(folder=Path("x"), info={"kind": "operations"}, trials=())
    message = "run must measure epochs, got one of operations; take a run of combined"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(run)


@pytest.mark.parametrize("setting", BUILT_IN)
def test_a_part_of_ones_own_is_named(setting):
    times = {"original": 1.0, "own": 0.8}
    variants = with_settings(times, own={setting: "mine"})
    message = (
        f"{setting} must be one of labkit's own ({', '.join(BUILT_IN[setting])}) to be written "
        "out, got 'mine' in the variant 'own'; take that part from where you wrote it"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.recipe(make_run(times, variants=variants), "own")


def test_the_command_prints_a_recipe_or_writes_it(tmp_path, capsys):
    times = {"original": 1.0, "both": 0.8}
    info = fake_info([*times])
    folder = create_run(tmp_path, {**info, "variants": with_settings(times)})
    for trial in fake_trials(times, labels=LABELS):
        append_trial(folder, trial)
    asked = ["recipe", "prefetching", "--results", str(tmp_path)]
    assert cli.main(asked) == 0
    printed = capsys.readouterr().out
    assert printed == lab.recipe(lab.load_run(folder))
    file = tmp_path / "recipe.py"
    assert cli.main([*asked, "--variant", "original", "--out", str(file)]) == 0
    assert capsys.readouterr().out == f"wrote {file}\n"
    assert file.read_text() == lab.recipe(lab.load_run(folder), "original")
    assert cli.main([*asked, "--variant", "none"]) == 1
    assert "variant must be one of both, original" in capsys.readouterr().err
