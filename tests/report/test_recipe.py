"""A recipe delivers the batches of its variant, runs as a program, and cannot be made to do else.

Recipes run in processes of their own, in which no labkit can be imported.
"""

import ast
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fakes import fake_info, fake_trials
from jpegs import why_missing
from places import make_coco
from small import completed

import labkit as lab
from data_scripts.pack_dataset import main as pack_dataset
from labkit import batches, pipeline, resolve
from labkit.analysis.equal_work import difference
from labkit.machine.clock import SleepingClock
from labkit.parts.loading import Loader
from labkit.parts.packing.remote import data_folder
from labkit.parts.prefetching import Prefetcher
from labkit.parts.preprocessing import PREPROCESSORS
from labkit.report import recipe
from labkit.report.run import Run
from labkit.runs.store import to_json
from labkit.settings import AS_PUBLISHED, CORRECTED, Settings

FEW = {"num_workers": 0, "batch_size": 8, "input_px": 64, "preprocessor": "classification"}
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "results" / "examples" / "2-cores-simulated"
PROGRAMS = ROOT / "labkit" / "recipes"
COCO = {"boxes": "coco", "data_hash": "abc"}


def make_run(times, *, mode="quick", blocks=3, variants=None, trials=None, data=COCO, **info):
    """A run of made-up trials in memory; the first variant is the baseline."""
    changes = variants or {}
    complete = {name: asdict(completed(**{**FEW, **changes.get(name, {})})) for name in times}
    known = fake_info([*times], mode=mode, variants=complete, data=data, **info)
    made = fake_trials(times, blocks=blocks) if trials is None else trials
    return Run(folder=Path("20250102T030405Z-abcd"), info=known, trials=tuple(made))


def recipe_of(about=COCO, **changes):
    """The recipe of a variant with other settings than the small ones; about: the run's data."""
    return make_run({"it": 1.0}, variants={"it": changes}, data=about).recipe()


# --- without labkit ---------------------------------------------------------------------------


def python(folder, *words):
    """Start Python in a folder; importing labkit fails there."""
    without = folder / "without"
    without.mkdir(exist_ok=True)
    (without / "labkit.py").write_text("raise ImportError('a recipe imports no labkit')")
    environment = {**os.environ, "PYTHONPATH": str(without)}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", *words],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(process):
    """Wait for a program that must succeed; return what it printed."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


# For each folder: the batches of recipe.py's first two epochs, or why there are none.
DELIVER = """
import importlib.util, os, sys, traceback
import numpy as np

for folder in sys.argv[1:]:
    os.chdir(folder)
    try:
        spec = importlib.util.spec_from_file_location("recipe", "recipe.py")
        program = importlib.util.module_from_spec(spec)
        sys.modules["recipe"] = program
        spec.loader.exec_module(program)
        images = program.Images()
        order = program.Order(len(images))
        loader = program.make_loader(images, order)
        found = {}
        for order.epoch in (0, 1):
            for step, batch in enumerate(program.batches(loader)):
                for name, tensor in batch.items():
                    found[f"{order.epoch} {step} {name}"] = tensor.numpy()
        np.savez("batches.npz", **found)
        if hasattr(program, "environment"):  # a process may open an LMDB file once
            program.environment(os.getpid()).close()
    except Exception:
        with open("error.txt", "w") as file:
            traceback.print_exc(file=file)
"""


# For each folder and program: run it there, and keep what it prints.
TRAIN = """
import contextlib, logging, os, runpy, sys, traceback

for folder, program in zip(sys.argv[1::2], sys.argv[2::2]):
    os.chdir(folder)
    sys.path.insert(0, os.path.dirname(program))
    with open("printed.txt", "w") as printed:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                runpy.run_path(program, run_name="__main__")
            except Exception:
                with open("error.txt", "w") as file:
                    traceback.print_exc(file=file)
    logging.getLogger("train").handlers.clear()
    del sys.path[0]
"""


def check_no_error(folder):
    """Show why a recipe failed in a folder."""
    assert not (folder / "error.txt").exists(), (folder / "error.txt").read_text()


def read_batches(folder):
    """Epochs of batches that a recipe delivered."""
    check_no_error(folder)
    epochs = ([], [])
    with np.load(folder / "batches.npz") as arrays:
        for key in arrays:
            epoch, step, name = key.split()
            batches = epochs[int(epoch)]
            if int(step) == len(batches):
                batches.append({})
            batches[int(step)][name] = arrays[key]
    return epochs


# --- batches ----------------------------------------------------------------------------------


TABLES = resolve.TABLES
OUTSIDE = [name for name in TABLES["loader"] if resolve.find_part(Loader, name).needs]
# These deliver the same images in an order of their own.
OTHER_ORDER = ("torch_any_order", "shards")
FINISHING = [name for name in TABLES["prefetcher"] if resolve.find_part(Prefetcher, name).finishes]
PILLOW = [name for name in PREPROCESSORS if PREPROCESSORS[name].in_pillow]
CASES = [
    *(
        {"preprocessor": name, "images": 16, "decoder": "pillow" if name in PILLOW else "opencv"}
        for name in TABLES["preprocessor"]
        if not why_missing(name)
    ),
    *({"decoder": name} for name in recipe.DECODE if not why_missing(name)),
    *(
        {"decoder": decoder, "preprocessor": "classification_crop", "packing": packing}
        for decoder in ("pillow", "simplejpeg_scaled")
        for packing in ("folder", "raw")
    ),
    {"decoder": "pillow", "preprocessor": "classification_crop_pillow", "packing": "raw"},
    *({"loader": name} for name in TABLES["loader"] if name not in (*OUTSIDE, *OTHER_ORDER)),
    *({"prefetcher": name} for name in TABLES["prefetcher"] if name not in FINISHING),
    *(
        {"prefetcher": name, "preprocessor": preprocessor}
        for name in FINISHING
        for preprocessor in ("on_device", "classification_on_device")
    ),
    *({"packing": name} for name in TABLES["packing"] if name != "folder"),
    {"packing": "lmdb", "loader": "threads", "num_workers": 2},
    *({"storage_format": name, "packing": "raw"} for name in ("resized", "pixels", "sample")),
    {"storage_format": "resized"},
    {"storage_format": "small", "packing": "tar", "preprocessor": "classification_crop"},
    {"storage_format": "yuv420", "packing": "mapped", "loader": "threads", "num_workers": 2}
    | {"preprocessor": "classification_crop_on_device"},
    {"shuffle": False},
    {"subset": "first", "images": 15},
    {"seed": 7},
    {"num_workers": 2, "persistent_workers": True},
    {"preprocessor": "on_device", "prefetcher": "data_prefetcher", "loader": "threads"}
    | {"num_workers": 2},
]
# Each program as it is shipped: what labkit's variant of the same settings differs in from FEW.
SHIPPED = {
    "image_folder": {"data": "tree"},
    "uint8_batches": {
        "data": "tree", "decoder": "simplejpeg_scaled", "prefetcher": "data_prefetcher",
        "preprocessor": "classification_crop_on_device",
    },
    "threads": {
        "decoder": "simplejpeg", "preprocessor": "classification_crop_on_device",
        "loader": "threads",
    },
    "packed": {"packing": "raw", "prefetcher": "prefetch_generator"},
    "detector": {"preprocessor": "on_device", "prefetcher": FINISHING[0]},
}  # fmt: skip
AS_SHIPPED = {"input_px": 224, "num_workers": 2}


@dataclass
class Case:
    """A recipe and the variant whose batches it has to deliver."""

    folder: Path
    settings: Settings
    excluded: tuple = ()
    made_up: tuple = ()
    """Entries that the run made up, as its data has no boxes."""

    def write(self, text):
        self.folder.mkdir(parents=True)
        (self.folder / "recipe.py").write_text(text, encoding="utf-8")
        shutil.copy(PROGRAMS / "thread_loader.py", self.folder)
        return self


def name_of(changes):
    return " ".join(map(str, changes.values()))


@pytest.fixture(scope="module")
def delivered(photos, tmp_path_factory):
    """All cases, whose recipes one process has run."""
    root = tmp_path_factory.mktemp("recipes")
    data, cases = root / "data" / "photos", {}
    shutil.copytree(photos, data)
    tree, linked = root / "tree" / "photos", root / "class 1"  # two classes, one of them a link
    (tree / "class 0").mkdir(parents=True)
    linked.mkdir()
    (tree / "class 1").symlink_to(linked, target_is_directory=True)
    for i, file in enumerate(sorted((photos / "images").iterdir())):
        shutil.copy(file, tree / f"class {i % 2}")
    for changes in CASES:
        settings = completed(**{**FEW, "images": 16, "data": str(data), **changes})
        case = Case(root / "cases" / name_of(changes), settings)
        cases[name_of(changes)] = case.write(recipe_of(**asdict(settings)))
        if resolve.source_folder(settings) != data_folder(settings.data):
            case.settings = replace(settings, data=str(pack(data, settings)))
    coco = make_coco(photos, root / "coco")
    # A split whose images were thinned out, and not its boxes.
    described = coco.parent / "annotations" / "instances_val2017.json"
    content = json.loads(described.read_bytes())
    content["annotations"].append({**content["annotations"][0], "image_id": 10**6})
    described.write_text(json.dumps(content))
    for name, folder, boxes in (
        ("COCO's folder", coco, "coco"),
        ("COCO's split", coco.parent, "coco"),
        ("tree", tree, "synthesized"),
        ("tree, packed", tree, "synthesized"),
    ):
        packing = "raw" if "packed" in name else "folder"
        settings = completed(**FEW, data=str(folder), packing=packing)
        run = make_run(
            {"a": 1.0}, variants={"a": asdict(settings)}, data={"boxes": boxes}, excluded=[3, 17]
        )
        made_up = ("label",) if boxes == "synthesized" else ()
        case = Case(root / "cases" / name, settings, excluded=(3, 17), made_up=made_up)
        cases[name] = case.write(run.recipe())
        if packing != "folder":
            case.settings = replace(settings, data=str(pack(folder, settings)))
    for program, changes in SHIPPED.items():
        beside = root / (changes.get("data") or "data")
        settings = completed(**{**FEW, **AS_SHIPPED, **changes, "data": str(beside / "photos")})
        made_up = ("label",) if "data" in changes else ()
        case = Case(root / "cases" / f"{program}.py", settings, made_up=made_up)
        cases[f"{program}.py"] = case.write(
            (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
        )
        (case.folder / "data").symlink_to(beside, target_is_directory=True)
    finished(python(root, "-c", DELIVER, *(str(case.folder) for case in cases.values())))
    return cases


def pack(data, settings):
    """Pack as a recipe's comment says; return the pack's folder."""
    out = resolve.source_folder(settings)
    if not out.exists():
        stored = settings.storage_format
        how = ["--to", settings.packing, "--storage-format", stored, "--px", "64"]
        how += ["--preprocessor", settings.preprocessor] if stored == "sample" else []
        how += ["--jobs", "1"] if settings.packing == "raw" else []  # others take a second to start
        assert pack_dataset([str(data), *how]) == 0
    return out


def variant_batches(settings, excluded=()):
    """What labkit itself delivers in two epochs, finished on the CPU."""
    # The simulated GPU has streams, and its batches stay on the host.
    if settings.prefetcher in FINISHING:  # the batches are finished below
        settings = replace(settings, prefetcher="data_prefetcher")
    opened = pipeline.build(
        replace(settings, device="simulated", step="timed", gpu_images_per_s="resnet50_h100"),
        SleepingClock(),
        excluded=frozenset(excluded),
    )
    finish = PREPROCESSORS[settings.preprocessor].on_device or (lambda batch, input_px: batch)
    for epoch in (0, 1):
        opened.source.order.epoch = epoch
        fetched = opened.batches(opened.loader, opened.device)
        yield [finish(dict(batch), settings.input_px) for batch in fetched]


def check_equal(ours, theirs, settings, made_up):
    """The same entries, bit for bit; of samples in loops, within the tolerances of equal work.

    A recipe needs no sample_id, and takes labels from folders where the run made some up.
    """
    left_out = {"sample_id", *made_up}
    specs = batches.BATCHES[PREPROCESSORS[settings.preprocessor].batch](8, settings.input_px)
    specs = {name: spec for name, spec in specs.items() if name not in left_out}
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs):
        one = {name: array for name, array in one.items() if name not in left_out}
        other = {name: other[name].numpy() for name in other if name not in left_out}
        batches.check_batch(one, specs)
        batches.check_batch(other, specs)
        if settings.preprocessor in ("loops", "classification_crop_v2"):  # but for rounding
            assert difference(one, other, specs) == ""
        else:
            unequal = [name for name in specs if not np.array_equal(one[name], other[name])]
            assert unequal == []


ALL_CASES = [
    *map(name_of, CASES), "COCO's folder", "COCO's split", "tree", "tree, packed",
    *(f"{program}.py" for program in SHIPPED),
]  # fmt: skip


@pytest.mark.parametrize("name", ALL_CASES)
def test_a_recipe_delivers_the_batches_of_its_variant(name, delivered):
    case = delivered[name]
    settings = case.settings
    epochs = list(
        zip(read_batches(case.folder), variant_batches(settings, case.excluded), strict=True)
    )
    if settings.loader in ("resident", "bare_threads"):  # the run repeats its first batch
        epochs = [[batches[:1] for batches in epochs[0]]]
    for ours, theirs in epochs:
        check_equal(ours, theirs, settings, case.made_up)


def test_labels_of_a_tree_are_its_folders(delivered):
    for name in ("tree", "tree, packed", "image_folder.py"):
        epoch, _ = read_batches(delivered[name].folder)
        labels = [label for batch in epoch for label in batch["label"].tolist()]
        assert set(labels) == {0, 1}
        assert abs(sum(labels) - len(labels) / 2) <= 1  # half of the images


def test_data_of_another_machine_is_named_as_it_lies_there():
    for manifest, images, boxes in (
        ("unknown", "val2017", "annotations/instances_val2017.json"),
        ("abc", "val2017/images", "val2017/annotations.json"),  # labkit made it
    ):
        text = recipe_of({"boxes": "coco", "data_hash": manifest}, data="far/val2017")
        assert f"FOLDER = Path('far/{images}')\n" in text
        assert f"ANNOTATIONS = Path('far/{boxes}')\n" in text


# --- programs ---------------------------------------------------------------------------------


def blocks_of(file):
    """Name -> text of a program's blocks but its settings."""
    _, *parts = recipe.BLOCK.split(file.read_text(encoding="utf-8"))
    blocks = {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2])}
    del blocks["settings"]
    return blocks


def test_blocks_are_chosen_for_every_part_but_outside_loaders():
    chosen = {
        "packing": recipe.READ, "decoder": recipe.DECODE, "preprocessor": recipe.SAMPLES,
        "loader": recipe.LOAD, "prefetcher": recipe.PREFETCH,
    }  # fmt: skip
    for setting, names in chosen.items():
        assert set(names) == set(TABLES[setting]) - set(OUTSIDE), setting


def test_a_block_is_the_same_in_all_programs():
    known = {}
    for program in recipe.PROGRAMS:
        for name, text in blocks_of(PROGRAMS / f"{program}.py").items():
            assert known.setdefault(name, text) == text, (program, name)


@pytest.mark.parametrize("program", SHIPPED)
def test_a_recipe_with_a_programs_settings_is_that_program(program, tmp_path):
    changes = {**AS_SHIPPED, **SHIPPED[program]}
    about = {"boxes": "synthesized"} if changes.pop("data", None) else COCO
    (tmp_path / "recipe.py").write_text(recipe_of(about, **changes), encoding="utf-8")
    ours, shipped = blocks_of(tmp_path / "recipe.py"), blocks_of(PROGRAMS / f"{program}.py")
    assert list(ours.items()) == list(shipped.items())


def test_every_variant_of_the_catalog_has_a_recipe(tmp_path):
    variants = {}
    for name, protocol in itertools.product(lab.CATALOG, (CORRECTED, AS_PUBLISHED)):
        with contextlib.suppress(ValueError):  # not every document's experiment has its own order
            for settings in lab.experiment(name, protocol=protocol).settings.values():
                uses_one_gpu = (settings.ranks, settings.exchange) == (1, "all_reduce")
                if settings.loader not in OUTSIDE and uses_one_gpu:
                    variants.setdefault(settings, name)
    for number, (settings, name) in enumerate(variants.items()):
        changes = asdict(settings) | FEW | {"preprocessor": settings.preprocessor}
        text = make_run({"it": 1.0}, variants={"it": changes}, experiment=name).recipe()
        assert "import labkit" not in text and "from labkit" not in text
        (tmp_path / f"{number}.py").write_text(text, encoding="utf-8")
    assert len(variants) > 100
    check = ["ruff", "check", "--isolated", "--line-length", "100", "--select", "E,F,I", tmp_path]
    checked = subprocess.run([sys.executable, "-m", *check], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


LOOPS = {
    "checkpoint": ({"checkpoint_every": 2}, ""),
    "checkpoint in a thread": ({"checkpoint_every": 2, "checkpoint_writer": "thread"}, ""),
    "report": ({"report_every": 2, "report_to": "terminal"}, "step 4 loss "),
    "report in the background": (
        {"report_every": 2, "report_to": "terminal_without_loss_thread"},
        "step 4 \n",
    ),
    "metrics": ({"metrics": "vectorized"}, "correct: "),
    "bar": ({"progress_bar": "tqdm_loss"}, "loss="),
    "precision": ({"precision": "amp", "memory_format": "channels_last"}, ""),
    "in threads": ({"loader": "threads", "num_workers": 2}, ""),
}


@pytest.fixture(scope="module")
def trained(delivered, photos, tmp_path_factory):
    """What the programs print as they are shipped, and recipes with more in their loops."""
    root, folders, words = tmp_path_factory.mktemp("trained"), {}, []
    for program in SHIPPED:
        folders[program] = delivered[f"{program}.py"].folder
        words += [folders[program], PROGRAMS / f"{program}.py"]
    for name, (changes, _) in LOOPS.items():
        changes = {"data": str(photos), "epochs": 2, **changes}
        folders[name] = root / name
        folders[name].mkdir()
        run = make_run({"it": 1.0}, variants={"it": changes})
        words += [folders[name], recipe.write(run, folders[name] / "recipe.py")]
    finished(python(root, "-c", TRAIN, *map(str, words)))
    return folders


@pytest.mark.parametrize("program", [*SHIPPED, *LOOPS])
def test_a_program_trains_as_its_variant_does(program, trained):
    check_no_error(trained[program])
    printed = (trained[program] / "printed.txt").read_text()
    assert len(re.findall(r"epoch \d: loss \d+\.\d+, [0-9.]+ images/s\n", printed)) == 2
    assert LOOPS.get(program, ({}, ""))[1] in printed
    if "checkpoint" in program:
        import torch

        saved = torch.load(trained[program] / "checkpoint.pth")
        assert set(saved) == {"model", "optimizer"}
        assert all(tensor.isfinite().all() for tensor in saved["model"].values())


def test_a_recipe_with_threads_is_written_beside_its_loader(tmp_path):
    for name, changes in {"fast": {"loader": "threads", "num_workers": 2}, "plain": {}}.items():
        (tmp_path / name).mkdir()
        run = make_run({"it": 1.0}, variants={"it": changes})
        assert recipe.write(run, tmp_path / name / "a.py") == tmp_path / name / "a.py"
    loader = (tmp_path / "fast" / "thread_loader.py").read_text(encoding="utf-8")
    assert loader == (PROGRAMS / "thread_loader.py").read_text(encoding="utf-8")
    assert [file.name for file in (tmp_path / "plain").iterdir()] == ["a.py"]


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
        texts = {"source": word, "question": word, "notes": [word]}
        run = make_run(names, variants=variants, data={"boxes": "synthesized"}, **texts)
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
        ({"storage": "tmpfs", "cache": "warm"}, "The run read from storage 'tmpfs', this program"),
        ({"packing": "raw"}, "FOLDER is the run's data as 'raw', jpeg: make it with data_scripts"),
        ({"data": "https://host/photos", "storage": "ssd"}, "copied its data from a URL"),
        ({"decoder": "simplejpeg_scaled"}, "Images: decoded at a reduced size of 64 px"),
        ({"jitter_ms": 40}, "Samples: each up to 40 ms late"),
        ({"loader": "resident"}, "It does only part of the baseline's work"),
        ({"loader": "bare_threads"}, "handed over one batch, this program all of them"),
        ({"loader": "torch_iterable"}, "iterable-style; this one delivers the same batches"),
        ({"loader": "shards"}, "read the pack with webdataset; this program reads it at random"),
        ({"loader": "torch_by_batch"}, "delivers the same, sample by sample"),
        ({"loader": "torch_any_order"}, "pass in_order=False to DataLoader for that"),
        ({"loader": "torch_file_system"}, "set_sharing_strategy('file_system')"),
        (
            {"preprocessor": "loops", "loss": "loops"},
            "The run's loss was 'loops'; the program's is a placeholder.",
        ),
    ],
    ids=str,
)
def test_what_a_program_does_otherwise_than_the_run_is_said(changes, words):
    run = make_run({"original": 1.0, "it": 0.5}, variants={"it": changes})
    assert words in comments_of(run.recipe("it"))


def test_a_batch_asked_for_after_the_step_is_fetched_after_it():
    for name, is_last in (("data_prefetcher", False), ("data_prefetcher_step_first", True)):
        run = make_run({"original": 1.0, "it": 0.5}, variants={"it": {"prefetcher": name}})
        text = run.recipe("it")
        assert (text.rindex("following = preload()") > text.index("yield ")) == is_last


def test_a_recipe_trains_once_on_each_batch_and_names_how_often_the_run_did():
    run = make_run({"original": 1.0, "it": 0.5}, tasks={"it": {"gpu_slowdown": 3}})
    line = "The run trained on each batch 3 times, this program does once."
    assert line in comments_of(run.recipe("it"))
    assert line not in comments_of(run.recipe("original"))


def test_where_nothing_beat_the_baseline_its_own_recipe_comes_and_of_a_roofline_the_fastest_gpus():
    text = make_run({"original": 1.0, "both": 1.2}, variants={"both": {"seed": 1}}).recipe()
    assert "No variant is measurably faster than the baseline" in text
    run = lab.find_run(EXAMPLES / "textbook_roofline")
    best, chosen = comments_of(run.recipe()), comments_of(run.recipe("with OpenCV"))
    assert "fastest variant 'x = 8: with threads', baseline 'x = 8: textbook'" in best
    assert "variant 'x = 8: with OpenCV', baseline 'x = 8: textbook'" in chosen


GONE = {"original": 1.0, "gone": 1.0}
BASELINE_ONLY = fake_trials({"original": 1.0})
# A run, the variant whose recipe is asked for, and how the message begins; or settings alone.
REFUSED_RUNS = {
    "unknown variant": (make_run({"original": 1.0, "both": 0.8}), "bth",
        r"variant must be one of both, original, got 'bth'$"),
    "skipped variant": (make_run(GONE, trials=BASELINE_ONLY, skipped={"gone": "no such disk"}),
        "gone", r"variant must have been measured, got 'gone', skipped: no such disk$"),
    "nothing measured": (make_run(GONE, trials=[]), None,
        r"run must hold a complete block of its baseline, got none in 20250102T030405Z-abcd; "),
    "operations": (make_run(GONE, experiment="operations", groups={"a": "b"}), None,
        r"run must be of an experiment without groups, got operations; "),
    "a detector without boxes": (
        make_run({"it": 1.0}, variants={"it": {"preprocessor": "on_device"}},
                 data={"boxes": "synthesized"}), None,
        "data must have boxes for a recipe that trains a detector, got none "),
}  # fmt: skip
REFUSED_SETTINGS = {
    "decoder unknown here": ({"decoder": "mine"},
        r"decoder of a recipe must be one of .*, got 'mine'; take the recipe of a variant with "),
    "sink unknown here": ({"report_every": 1, "report_to": "mine"},
        r"report_to must be one of .*, got 'mine'$"),
    "a prefetcher of an earlier version": ({"prefetcher": "both_as_published"},
        r"prefetcher of a recipe must .* got 'both_as_"),
    "a thread ahead of threads": ({"loader": "threads", "prefetcher": "prefetch_generator"},
        "loader of a recipe must be torch or .* beside .*, got 'threads'$"),
    "Pillow's preprocessing of OpenCV's pixels": ({"preprocessor": "classification_pillow"},
        "decoder of a recipe must be pillow beside classification_pillow, .*, got 'opencv'$"),
    "a detector's pack": ({"preprocessor": "on_device", "packing": "raw"},
        "packing of a recipe must be folder beside on_device, .*, got 'raw'$"),
    "several GPUs": ({"ranks": 2},
        "variant must be of one GPU to be written as a program, got 'it'; "),
    **{loader: ({"loader": loader}, rf"loader of a recipe must be one of .*, got '{loader}'; take ")
       for loader in OUTSIDE},
}  # fmt: skip


@pytest.mark.parametrize(
    ("run", "variant", "message"),
    [
        *REFUSED_RUNS.values(),
        *((make_run({"it": 1.0}, variants={"it": changes}), None, message)
          for changes, message in REFUSED_SETTINGS.values()),
    ],
    ids=[*REFUSED_RUNS, *REFUSED_SETTINGS],
)  # fmt: skip
def test_what_cannot_be_written_is_one_sentence(run, variant, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        run.recipe(variant)
