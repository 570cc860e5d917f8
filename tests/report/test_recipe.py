"""A recipe delivers the batches of its variant, runs as a program, and cannot be made to do else.

Run: python -m pytest tests/report/test_recipe.py
"""

import ast
import contextlib
import json
import logging
import re
import runpy
import shutil
import subprocess
import sys
import tokenize
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fakes import fake_info, fake_trials
from jpegs import why_missing
from places import make_coco
from small import completed

import labkit as lab
from data_scripts.pack_dataset import main as pack_dataset
from labkit import contracts, pipeline, resolve
from labkit.analysis.equal_work import difference
from labkit.machine.clock import SleepingClock
from labkit.parts.loading import Loader
from labkit.parts.packing.remote import place
from labkit.parts.prefetching import Prefetcher
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.report.run import Run
from labkit.runs.store import to_json
from labkit.settings import AS_PUBLISHED, CORRECTED

FEW = {"num_workers": 0, "batch_size": 8, "input_px": 64, "preprocessor": "classification"}
MAX_LINES = 145
EXAMPLES = Path(__file__).parents[2] / "results" / "examples" / "2-cores-emulated"


def make_run(times, *, mode="quick", blocks=3, variants=None, trials=None, **info):
    """A run of made-up trials in memory; the first variant is the baseline."""
    changes = variants or {}
    complete = {name: asdict(completed(**{**FEW, **changes.get(name, {})})) for name in times}
    known = fake_info([*times], mode=mode, variants=complete, **info)
    made = fake_trials(times, blocks=blocks) if trials is None else trials
    return Run(folder=Path("20250102T030405Z-abcd"), info=known, trials=tuple(made))


def recipe_of(**changes):
    """The recipe of a variant with other settings than the small ones."""
    return make_run({"it": 1.0}, variants={"it": changes}).recipe()


# --- batches ------------------------------------------------------------------------------


TABLES = resolve.TABLES
OUTSIDE = [name for name in TABLES["loader"] if resolve.find_part(Loader, name).is_outside]
FINISHING = [name for name in TABLES["prefetcher"] if resolve.find_part(Prefetcher, name).finishes]
CASES = [
    *({"preprocessor": name, "images": 16} for name in TABLES["preprocessor"]),
    *({"decoder": name} for name in TABLES["decoder"] if not why_missing(name)),
    *(
        {"decoder": decoder, "preprocessor": "classification_crop", "packing": packing}
        for decoder in ("pillow", "simplejpeg_scaled")
        for packing in ("folder", "raw")
    ),
    {"decoder": "pillow", "preprocessor": "classification_pillow"},
    {"decoder": "pillow", "preprocessor": "classification_crop_pillow"},
    {"decoder": "pillow", "preprocessor": "classification_crop_pillow", "packing": "raw"},
    *({"loader": name} for name in TABLES["loader"] if name not in OUTSIDE),
    *({"prefetcher": name} for name in TABLES["prefetcher"] if name not in FINISHING),
    *(
        {"prefetcher": name, "preprocessor": preprocessor}
        for name in FINISHING
        for preprocessor in ("on_device", "classification_on_device")
    ),
    *({"packing": name} for name in TABLES["packing"] if name != "folder"),
    *({"stored": name, "packing": "raw"} for name in ("resized", "pixels", "sample")),
    {"stored": "resized"},
    {"order": "sequential"},
    {"subset": "first", "images": 15},
    {"seed": 7},
    {"preprocessor": "on_device", "prefetcher": "both", "loader": "threads", "num_workers": 2},
]


def variant_batches(settings, excluded=()):
    """What labkit itself delivers in two epochs, finished on the CPU."""
    # The emulated device has streams, and its batches stay on the host.
    if settings.prefetcher in FINISHING:  # the batches are finished below
        settings = replace(settings, prefetcher="data_prefetcher")
    opened = pipeline.build(
        replace(settings, device="emulated", step="timed", gpu_images_per_s="resnet50_h100"),
        SleepingClock(),
        excluded=frozenset(excluded),
    )
    finish = PREPROCESSORS[settings.preprocessor].on_device or (lambda batch, input_px: batch)
    for epoch in (0, 1):
        opened.source.order.epoch = epoch
        fetched = opened.batches(opened.loader, opened.device)
        yield [finish(dict(batch), settings.input_px) for batch in fetched]


def recipe_batches(text):
    space = {"__name__": "recipe"}
    exec(compile(text, "recipe.py", "exec"), space)
    images = space["Images"]()
    loader = space["make_loader"](images)
    return [list(space["batches"](images, loader, epoch)) for epoch in (0, 1)]


def check_equal(ours, theirs, settings, skipped=()):
    """The same entries, the same numbers within the tolerances of the equal-work check."""
    specs = contracts.BATCHES[PREPROCESSORS[settings.preprocessor].batch](8, 64)
    specs = {name: spec for name, spec in specs.items() if name not in skipped}
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs):
        one, other = (
            {name: batch[name].cpu().numpy() for name in batch if name not in skipped}
            for batch in (one, other)
        )
        contracts.check_batch(one, specs)
        assert difference(one, other, specs) == ""


@pytest.fixture(scope="module")
def packed(photos, tmp_path_factory):
    """The photographs' folder beside which packs lie where a recipe expects them."""
    data = tmp_path_factory.mktemp("packed") / "photos"
    shutil.copytree(photos, data)
    return data


def pack(data, settings):
    """Pack as a recipe's comment says; return the pack's folder."""
    out = resolve.stored_folder(settings)
    if not out.exists():
        how = ["--to", settings.packing, "--stored", settings.stored, "--px", "64"]
        how += ["--preprocessor", settings.preprocessor] if settings.stored == "sample" else []
        how += ["--jobs", "1"] if settings.packing == "raw" else []  # others take a second to start
        assert pack_dataset([str(data), *how]) == 0
    return out


@pytest.mark.parametrize("changes", CASES, ids=lambda changes: " ".join(map(str, changes.values())))
def test_a_recipe_delivers_the_batches_of_its_variant(changes, packed):
    settings = completed(**{**FEW, "data": str(packed), **changes})
    data = {"boxes": "coco", "manifest_hash": "abc"}
    text = make_run({"it": 1.0}, variants={"it": asdict(settings)}, data=data).recipe()
    if resolve.stored_folder(settings) != place(settings.data):
        settings = replace(settings, data=str(pack(packed, settings)))
    assert len(text.splitlines()) <= MAX_LINES
    epochs = list(zip(recipe_batches(text), variant_batches(settings), strict=True))
    if settings.loader == "resident":  # the run repeats its first batch
        epochs = [[batches[:1] for batches in epochs[0]]]
    for ours, theirs in epochs:
        check_equal(ours, theirs, settings)


def test_every_layout_of_a_folder_is_read_in_the_same_order(photos, tmp_path):
    coco, tree = make_coco(photos, tmp_path / "coco"), tmp_path / "tree"
    shutil.copytree(photos / "images", tree / "more" / "photos")
    for data, found, skipped in (
        (coco, "coco", ()),
        (coco.parent, "coco", ()),
        (tree, "synthesized", ("label",)),  # invented boxes are not written out
    ):
        run = make_run(
            {"a": 1.0}, variants={"a": {"data": str(data)}}, data={"boxes": found}, excluded=[3, 17]
        )
        settings = completed(**FEW, data=str(data))
        theirs = variant_batches(settings, excluded=(3, 17))
        for one, other in zip(recipe_batches(run.recipe()), theirs, strict=True):
            check_equal(one, other, settings, skipped)


@pytest.mark.parametrize(
    ("manifest", "images", "boxes"),
    [
        ("unknown", "far/val2017", "far/annotations/instances_val2017.json"),
        ("abc", "far/val2017/images", "far/val2017/annotations.json"),  # labkit made it
    ],
)
def test_data_of_another_machine_is_named_as_it_lies_there(manifest, images, boxes):
    data = {"boxes": "coco", "manifest_hash": manifest}
    run = make_run({"a": 1.0}, variants={"a": {"data": "far/val2017"}}, data=data)
    assert f"DATA, ANNOTATIONS = Path('{images}'), Path('{boxes}')" in run.recipe()


# --- programs -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", lab.CATALOG)
def test_every_variant_of_the_catalog_has_a_short_recipe(name):
    variants = {}
    for protocol in (CORRECTED, AS_PUBLISHED):
        with contextlib.suppress(ValueError):  # not every document's experiment has its own order
            experiment = lab.experiment(name, protocol=protocol)
            found = experiment.settings
            variants |= {(protocol, label): settings for label, settings in found.items()}
    for label, settings in variants.items():
        uses_one_gpu = (settings.ranks, settings.exchange) == (1, "all_reduce")
        if settings.loader not in OUTSIDE and uses_one_gpu:
            stored = {"it": asdict(settings) | FEW | {"preprocessor": settings.preprocessor}}
            text = make_run({"it": 1.0}, variants=stored, experiment=name).recipe()
            lines = text.splitlines()
            assert len(lines) <= MAX_LINES and max(map(len, lines)) <= 100, label
            needs_labkit = PREPROCESSORS[settings.preprocessor].batch == "detector"
            needs_labkit |= (settings.packing, settings.stored) != ("folder", "jpeg")
            needs_labkit |= settings.loader == "threads"
            assert ("from labkit" in text) == needs_labkit


LOOPS = {
    "checkpoint": ({"checkpoint_every": 2}, ""),
    "checkpoint in a thread": ({"checkpoint_every": 2, "saver": "thread"}, ""),
    "report": ({"report_every": 2, "report_to": "terminal"}, "step 4 loss "),
    "report in the background": (
        {"report_every": 2, "report_to": "terminal", "report_in_background": True}
        | {"report_loss": False},
        "step 4\n",
    ),
    "metrics": ({"metrics": "vectorized"}, "top-1: "),
    "bar": ({"progress_bar": "tqdm", "progress_loss": True}, "loss="),
    "precision": ({"precision": "amp", "memory_format": "channels_last"}, ""),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_training_loop_does_what_its_variant_does(name, photos, tmp_path, monkeypatch, capfd):
    changes, words = LOOPS[name]
    run = make_run({"it": 1.0}, variants={"it": {"data": str(photos), "epochs": 2, **changes}})
    (tmp_path / "recipe.py").write_text(run.recipe(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path("recipe.py", run_name="__main__")
    finally:
        logging.getLogger("train").handlers.clear()
    shown = capfd.readouterr()
    assert re.search(r"[0-9.]+ images/s\n$", shown.out)
    assert words in shown.out + shown.err
    if "checkpoint" in name:
        import torch

        assert set(torch.load("checkpoint.pth")) == {"model", "optimizer"}


def test_a_recipe_is_a_program_with_workers(photos, tmp_path):
    changes = {"preprocessor": "on_device", "prefetcher": "both", "num_workers": 2}
    run = make_run({"it": 1.0}, variants={"it": {"data": str(photos), **changes}})
    (tmp_path / "recipe.py").write_text(run.recipe(), encoding="utf-8")
    program = [sys.executable, "-W", "error", "recipe.py"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9.]+ images/s\n", done.stdout)


# --- whose settings they are --------------------------------------------------------------

HOSTILE = (
    '"); raise SystemExit #',
    "')\nraise SystemExit\n#",
    "\u2028raise SystemExit",
    "# coding: utf_7 +AAo-raise SystemExit",
    "{{ 7 * 7 }} {% raw %}",
    '"""',
    "*/ --> #}",
    "a\"b'c\\",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_strangers_file_cannot_put_code_into_a_recipe(text, tmp_path):
    def shape(run):
        file = tmp_path / "recipe.py"
        file.write_text(run.recipe(), encoding="utf-8", newline="")
        with tokenize.open(file) as opened:
            assert opened.encoding == "utf-8"
        tree = ast.parse(file.read_bytes())
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
        found = [node.value for node in constants]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                node.value = type(node.value)()
        return ast.dump(tree), found

    def made(word):
        names = {word: 1.0, f"{word} faster": 0.5}
        of_program = {"data": word, "report_every": 1, "report_to": "http_5ms"}
        variants = {name: of_program | {"checkpoint_to": f"/{word}"} for name in names}
        variants[f"{word} faster"] |= {"storage": f"/{word}", "prefetcher": "both"}
        run = make_run(names, variants=variants, source=word, question=word, notes=[word])
        with zipfile.ZipFile(tmp_path / "theirs.zip", "w") as file:
            stored = {**to_json(run.info), "run": "theirs", "provenance": {}}
            file.writestr("run.json", json.dumps(stored))
            file.writestr("trials.jsonl", "\n".join(json.dumps(t.to_row()) for t in run.trials))
        return lab.open_shared(tmp_path / "theirs.zip", tmp_path)

    benign, _ = shape(made("plain"))
    ours, constants = shape(made(text))
    assert ours == benign
    assert Path(text).as_posix() in constants  # the data's folder, as it is


# --- which variant, and what the comments say ----------------------------------------------


def comments_of(text):
    head = text[: text.index("\n\n")].splitlines()
    assert all(line.startswith("# ") for line in head)
    return " ".join(line.removeprefix("# ") for line in head)


def test_the_comments_give_the_gain_and_its_conditions():
    times = {"original": 1.0, "prefetch": 0.9, "warm": 0.5}
    variants = {"prefetch": {"prefetcher": "data_prefetcher"}, "warm": {"cache": "warm"}}
    run = make_run(times, mode="full", blocks=10, variants=variants, published={"prefetch": 0.891})
    said = comments_of(run.recipe())
    assert (
        "Run: prefetching/20250102T030405Z-abcd, fastest variant 'prefetch', baseline 'original' "
        "Not 'warm': it began with cache warm, the baseline with cold. "
        "Changed: prefetcher 'data_prefetcher' (was 'none') Measured: 0.9"
    ) in said
    assert ", faster; the document reported 0.891" in said
    assert "Conditions: full mode · 10 blocks · storage: real" in said
    assert "Simulated GPU, 460 images/s" in said
    quick = comments_of(make_run(times, variants=variants).recipe("warm"))
    assert "variant 'warm'" in quick and ", no verdict" in quick and "Not " not in quick


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"storage": "tmpfs", "cache": "warm"}, "The run read from storage 'tmpfs', this reads"),
        ({"packing": "raw"}, "DATA is the run's data as 'raw', jpeg: make it with data_scripts"),
        ({"data": "https://host/photos", "storage": "ssd"}, "copied its data from a URL"),
        ({"decoder": "simplejpeg_scaled"}, "Images: decoded to half a side or less where 64 px"),
        ({"jitter_ms": 40}, "Samples: each up to 40 ms late"),
        ({"loader": "resident"}, "It does only part of the baseline's work"),
        ({"loader": "torch_iterable"}, "loader was 'torch_iterable', this one delivers the same"),
        ({"preprocessor": "loops", "loss": "loops"}, "The run's loss was 'loops'."),
    ],
    ids=str,
)
def test_what_a_program_does_otherwise_than_the_run_is_said(changes, words):
    run = make_run({"original": 1.0, "it": 0.5}, variants={"it": changes})
    assert words in comments_of(run.recipe("it"))


def test_a_prefetcher_of_an_earlier_version_has_no_recipe_but_its_run_opens():
    run = make_run(
        {"original": 1.0, "it": 0.5}, variants={"it": {"prefetcher": "both_as_published"}}
    )
    assert [row.variant for row in run.summary.rows] == ["original", "it"]
    with pytest.raises(ValueError, match=r"prefetcher of a recipe must .* got 'both_as_"):
        run.recipe("it")


def test_a_batch_asked_for_after_the_step_is_fetched_after_it():
    for name, is_last in (("data_prefetcher", False), ("data_prefetcher_step_first", True)):
        run = make_run({"original": 1.0, "it": 0.5}, variants={"it": {"prefetcher": name}})
        text = run.recipe("it")
        assert (text.rindex("following = preload()") > text.index("yield ")) == is_last


def test_where_nothing_beat_the_baseline_its_own_recipe_comes():
    text = make_run({"original": 1.0, "both": 1.2}, variants={"both": {"seed": 1}}).recipe()
    assert "No variant is measurably faster than the baseline" in text


def test_a_recipe_of_a_roofline_is_for_the_fastest_gpu():
    run = lab.find_run(EXAMPLES / "textbook_roofline")
    best, chosen = comments_of(run.recipe()), comments_of(run.recipe("with OpenCV"))
    assert "fastest variant 'x = 8: with threads', baseline 'x = 8: textbook'" in best
    assert "variant 'x = 8: with OpenCV', baseline 'x = 8: textbook'" in chosen


GONE = {"original": 1.0, "gone": 1.0}
REFUSED = {
    "unknown variant": (
        lambda: make_run({"original": 1.0, "both": 0.8}).recipe("bth"),
        r"variant must be one of both, original, got 'bth'$",
    ),
    "skipped variant": (
        lambda: make_run(
            GONE, trials=fake_trials({"original": 1.0}), skipped={"gone": "no such disk"}
        ).recipe("gone"),
        r"variant must have been measured, got 'gone', skipped: no such disk$",
    ),
    "nothing measured": (
        lambda: make_run(GONE, trials=[]).recipe(),
        r"run must hold a complete block of its baseline, got none in 20250102T030405Z-abcd; ",
    ),
    "operations": (
        lambda: make_run(GONE, experiment="operations", groups={"a": "b"}).recipe(),
        r"run must be of an experiment without groups, got operations; ",
    ),
    "decoder unknown here": (
        lambda: recipe_of(decoder="mine"),
        r"decoder of a recipe must be one of .*, got 'mine'$",
    ),
    "sink unknown here": (
        lambda: recipe_of(report_every=1, report_to="mine"),
        r"report_to must be one of .*, got 'mine'$",
    ),
    **{
        loader: (
            lambda loader=loader: recipe_of(loader=loader),
            f"variant must load with torch or threads, got loader '{loader}' in 'it'; ",
        )
        for loader in OUTSIDE
    },
}


@pytest.mark.parametrize(("write", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_written_is_one_sentence(write, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        write()
