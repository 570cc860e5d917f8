"""Whatever comes in ends in time, in one line that says what is wrong, and costs no finished row.

ROWS says of each input what it comes through, what it is, how it is made, and how the line begins
that the user reads; WORKS where the run's rows count.  In a line, <data>, <results>, <run> (its
folder), <id> (its name) and <tmp> stand for paths.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import json_changes
import psutil
import pytest
from fakes import fake_json, fake_trials
from filelock import FileLock
from hypothesis import given as drawn
from hypothesis import strategies as st
from jpegs import encode, exif, photo, with_segment
from places import memory_mounted
from small import SMALL, completed

import labkit as lab
from data_scripts import pack_dataset
from labkit import cli
from labkit.experiments.request import Request
from labkit.machine import shared_memory
from labkit.parts.packing.folder import open_folder
from labkit.parts.storage.folder import copy_in
from labkit.records import SCHEMA
from labkit.runs import calibrated_device
from labkit.runs.check_images import find_bad_images
from labkit.runs.store import list_runs, load_run, split_local, to_json
from labkit.settings import AS_PUBLISHED
from tests.processes import PATIENCE_S, until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no POSIX files and signals here")

WORKS = "it works"
PACKAGE = Path(lab.__file__).parent
MARK = "LABKIT_TEST"  # in the environment of all processes that a command starts
IMAGES = 8
JPEG = encode(photo())
OPTIONS = (
    "run preprocessing --variant original --blocks 1 --input-px 64 --batch-size 4 --images 8 "
    "--epochs 1 --num-workers 1 --device cpu --step nothing --storage here"
).split()


# --- what it comes through ------------------------------------------------------------------------


def run(place, *, mode="quick", blocks=1, progress=False, changes=None, **settings):
    """Run an experiment of one variant, or of others."""
    told = {"variants": {"a": own(place.data, **settings)}, "baseline": "a", **(changes or {})}
    experiment = lab.Experiment(told.pop("name", "odd"), question="?", **told)
    how = {"blocks": blocks, "results": place.results, "progress": progress}
    try:
        return outcome(lab.run(experiment, mode, **how))
    finally:
        if progress:  # something happened after the first row, which is still there
            assert load_run(list_runs(place.results)[-1]).trials[0].status == "ok"


def not_begun(place, **given):
    """The same, where not even a folder is made."""
    try:
        return run(place, **given)
    finally:
        assert list_runs(place.results) == [place.run]


def together(place):
    """Run all images of such rows at once; this row's are among them."""
    shared, names = place.together()
    assert names_in(place.data) <= {name.partition("/")[2] or name for name in names}
    assert shared.info.excluded == ()
    assert {trial.images for trial in shared.trials} == {len(names)}
    return outcome(shared)


def names_in(data):
    reader = open_folder(data)
    return {reader.name(i) for i in range(len(reader))}


def resume(place):
    return outcome(lab.resume(place.run, progress=False))


def roofline(place, *, experiment="preprocessing", **given):
    return str(Request(experiment=experiment, roofline=True, **given).build())


def calibrate(place, *, data=None, input_px=64, results=None):
    how = {"results": results or place.results, "progress": False}
    return str(lab.calibrate(str(data or place.data), input_px, **how))


def diagnose(place, *, loader=(1,), step=print, **given):
    return str(lab.diagnose(loader, step, progress=False, **given))


def watch(place, *, loader):
    return str(lab.watch(loader))


def open_(place, *, file=None, **changes):
    """Open a share file: one that is made up, or an ordinary one of which something is changed."""
    try:
        shared = lab.open_shared(file or crafted(place.tmp / "x.zip", **changes), place.results)
    except (ValueError, OSError) as error:
        assert len(str(error)) < 400
        assert not (place.results / "shared").exists()
        raise
    assert shared.folder.parents[1] == place.results / "shared"
    assert "<script" not in shared.table()._repr_html_()
    return WORKS


def command(place, *, words):
    """`labkit` in this process; the line is without the name of the program."""
    return said_by(place, lambda: cli.main([str(word) for word in words]), "labkit: ")


def pack(place, *, words=("--to", "raw")):
    """The script that packs."""
    words = [str(place.data), *map(str, words), "--jobs", "1"]
    return said_by(place, lambda: pack_dataset.main(words), "error: ")


def said_by(place, program, name):
    place.capsys.readouterr()
    try:
        status = program()
    except SystemExit as stopped:
        status = stopped.code
    said = place.capsys.readouterr().err.splitlines()
    lines = [line for line in said if line.startswith(name)]
    assert (status, len(lines)) in ((0, 0), (1, 1), (2, 1)), said
    assert status != 2 or said == lines
    return lines[0].removeprefix(name) if lines else WORKS


def shell(place, *, words, before=(), **environment):
    """`labkit` as a process of its own."""
    temporary = place.tmp / "temporary"
    temporary.mkdir()
    own = {MARK: str(place.tmp), "TMPDIR": str(temporary), "PYTHONPATH": str(PACKAGE.parent)}
    environment = {**os.environ, **own, **environment}
    words = [*before, sys.executable, "-m", "labkit", *map(str, words)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_S, env=environment, cwd=place.tmp
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert "Traceback" not in said
    until(lambda: not marked(place.tmp), lambda: f"processes are left: {marked(place.tmp)}")
    assert list(temporary.iterdir()) == []
    lines = [line for line in done.stderr.splitlines() if line.startswith("labkit: ")]
    assert (done.returncode, len(lines)) in ((0, 0), (1, 1), (2, 1)), said
    return lines[0].removeprefix("labkit: ") if lines else WORKS


def marked(mark):
    """List the processes that have this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == str(mark):
                found.append(process)
    return found


def own(data, /, **settings):
    return lab.Settings(**{"data": str(data), **SMALL, **settings})


def outcome(found):
    """What a run came to: WORKS where every row counts."""
    said = {(found.info.status, row.status, row.blocks, row.reason) for row in found.summary.rows}
    return WORKS if said == {("finished", "ok", 1, "")} else str(said)


# --- what comes in: functions that make it, and return the arguments of what it comes through -----


def given(**arguments):
    return lambda place: arguments


def words(*given):
    """A command line, in which a function of the place stands for a path."""

    def make(place):
        return {"words": [word(place) if callable(word) else word for word in given]}

    return make


def ordinary(*more):
    """A command for a short run of the photographs."""
    return words(*OPTIONS, "--data", here("data"), *more)


def here(name):
    return lambda place: getattr(place, name)


def below_data(place):
    return place.data / "odd"


def nowhere(place):
    return place.tmp / "nowhere"


def a_file(place):
    """A file where a folder should be."""
    (place.tmp / "file").write_text("")
    return place.tmp / "file"


def put(name, content=JPEG):
    """A file beside the photographs."""

    def make(place):
        path = place.data / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    return make


def every(*makes):
    def make(place):
        return {name: value for one in makes for name, value in (one(place) or {}).items()}

    return make


def link(to, name="odd.jpg"):
    return lambda place: (place.data / name).symlink_to(to)


def node(kind, name="odd.jpg"):
    return lambda place: os.mknod(place.data / name, kind | 0o600)


def all_broken(place):
    for path in place.data.iterdir():
        path.write_bytes(b"")
    return {"on_bad_image": "skip"}


class Meanwhile:
    """Calls a function after each row of a run."""

    shown = False

    def __init__(self, action):
        self.rate = lambda rate: action()

    def __getattr__(self, name):
        return lambda *given, **named: None


def meanwhile(action):
    """Do something to the first photograph while a run goes on."""
    return lambda place: {"progress": Meanwhile(lambda: action(place.data / "0.jpg"))}


def patched(at, value):
    """The JPEG with other bytes in its frame, whose sides are 5 bytes from its marker."""
    frame = JPEG.index(b"\xff\xc0") + at
    return JPEG[:frame] + value + JPEG[frame + len(value) :]


def coco(**changes):
    """The photographs' annotations with one box, of which something is changed."""
    row = {"image_id": 1, "bbox": [1, 2, 3, 4], "category_id": 1, **changes}
    images = [{"id": i + 1, "file_name": f"{i}.jpg"} for i in range(IMAGES)]
    return json.dumps({"images": images, "annotations": [row]})


def annotated(text):
    """The photographs in images/, beside their annotations."""

    def make(place):
        photographs = list(place.data.iterdir())
        (place.data / "images").mkdir()
        for path in photographs:
            path.rename(place.data / "images" / path.name)
        (place.data / "annotations.json").write_text(text)

    return make


def changed(change):
    """A run whose run.json says something else."""

    def make(place):
        known = to_json(lab.find_run(place.run).info)
        shared, local = split_local({**known, **change(known)})
        (place.run / "run.json").write_text(json.dumps({**shared, "local": local}))

    return make


def rows_end(change):
    """A run that lacks its last row, for which something else stands."""

    def make(place):
        changed(lambda info: {"status": "running"})(place)
        *kept, last = (place.run / "trials.jsonl").read_bytes().splitlines(keepends=True)
        (place.run / "trials.jsonl").write_bytes(b"".join(kept) + change(last))

    return make


def calibrating(place):
    place.stack.enter_context(FileLock(place.results / f"{calibrated_device.FILE}.lock"))


def wrapped(*before):
    """A command that starts another one, where that is allowed."""
    if not shutil.which(before[0]) or subprocess.run([*before, "true"]).returncode:
        pytest.skip(f"{before[0]} cannot do this here")
    return {"before": before}


def bounded(place):
    """What root may do beyond others is taken away."""
    names = "-dac_override,-dac_read_search"
    how = ("setpriv", f"--bounding-set={names}", f"--inh-caps={names}")
    return {} if os.geteuid() else wrapped(*how)


def small_shared_memory(place):
    mount = 'mount -t tmpfs -o size=64k labkit-test /dev/shm && exec "$@"'
    return wrapped("unshare", "--mount", "sh", "-c", mount, "-")


def locked(path, mode):
    """A folder without these permissions, for as long as the row takes."""

    def make(place):
        folder = path(place)
        folder.mkdir(exist_ok=True)
        place.stack.callback(folder.chmod, stat.S_IMODE(folder.stat().st_mode))
        folder.chmod(mode)
        return bounded(place)

    return make


def copy_of(place):
    """The folder in memory that would hold a copy of the data."""
    return copy_in(shared_memory.FOLDER, f"labkit-{os.getuid()}-", place.data)["copy"]


def copy_for_all(place):
    """Somebody has made that folder, and can write to it."""
    if not shared_memory.FOLDER.is_dir():
        pytest.skip("this platform has no /dev/shm")
    copy_of(place).mkdir()
    copy_of(place).chmod(0o777)
    place.stack.callback(copy_of(place).rmdir)
    return {"storage": "tmpfs"}


def full_results(place):
    """Results on a disk without room."""
    place.results = place.stack.enter_context(memory_mounted(place.tmp / "small", size="16k"))
    with pytest.raises(OSError, match="No space left"):
        (place.results / "filler").write_bytes(bytes(32 << 10))


def many_files(place):
    """20,000 images in one folder."""
    place.stack.callback(shutil.rmtree, place.data / "odd")
    put("odd/a.jpg")(place)
    for number in range(20_000):
        os.link(place.data / "odd/a.jpg", place.data / "odd" / f"{number}.jpg")


def no_control_groups(place):
    """A machine without them, on which everything else for the throttled disk is there."""
    patch = place.stack.enter_context(pytest.MonkeyPatch.context())
    mounts = [m for m in psutil.disk_partitions(all=True) if not m.fstype.startswith("cgroup")]
    patch.setattr(psutil, "disk_partitions", lambda all: mounts)
    return {"storage": "throttled"}


def few_open_files(place):
    """The server's jobs may open 64 files, and there are more workers than these serve."""
    if sys.platform != "linux":
        pytest.skip("only Linux can limit another process")
    _, (server,) = processes()
    limit, hard = server.rlimit(psutil.RLIMIT_NOFILE)
    place.stack.callback(server.rlimit, psutil.RLIMIT_NOFILE, (limit, hard))
    server.rlimit(psutil.RLIMIT_NOFILE, (64, hard))
    return {"num_workers": 16}


def hostile_machine(place):
    """One core, 64 open files, no fadvise, no home, a package without permission, bad images."""
    put("odd \udcff.jpg", b"")(place)
    put("odd.jpg")(place)
    (place.data / "odd.jpg").chmod(0)
    package = place.tmp / "package" / "labkit"
    shutil.copytree(PACKAGE, package)
    (package.parent / "sitecustomize.py").write_text("import os\ndel os.posix_fadvise\n")
    for folder, *_ in os.walk(package):
        Path(folder).chmod(0o555)
    limits = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    limits += ["bash", "-c", 'ulimit -n 64; exec "$@"', "-"]
    before = [*bounded(place).get("before", ()), *limits]
    return {"before": before, "HOME": "/dev/null/none", "PYTHONPATH": str(package.parent)}


# --- share files that somebody made up ------------------------------------------------------------

ELSEWHERE = {"machine_id": "0123456789ab", "cores": 4, "cpu_model": "Z", "gpu": {"works": False}}
GOOD = [("run.json", "{}"), ("trials.jsonl", "")]
SPEEDS = {"load_images_per_s": 200.0, "device_images_per_s": 400.0}
ROOFLINE = {
    "kind": "roofline", "calibration": SPEEDS, "tasks": {name: {"x": 1.0} for name in "ab"},
}  # fmt: skip
NOT_AS = "share file must hold"
NO_NAME = "share file must name its experiment and run in letters, digits, - and _,"
NOT_PLAIN = f"{NOT_AS} plain JSON objects within the limits of size"
NOT_JSON = f"{NOT_AS} JSON texts, got others"
NOT_SHOWN = f"{NOT_AS} a run that can be shown, got"
NOT_BOTH = f"{NOT_AS} run.json and trials.jsonl, got"
NO_ROWS = f"{NOT_AS} rows as labkit writes them"
NO_ZIP = "share file must be a zip that can be read, got"


def zipped(path, members, **how):
    with zipfile.ZipFile(path, "w", **how) as file:
        for name, text in members:
            file.writestr(name, text)
    return path


def crafted(path, *, rows=None, **info):
    """A share file with rows of its own and whatever else its run.json says."""
    made = {"run": "20250102T030405Z-beef", "provenance": ELSEWHERE}
    info = {**fake_json(["a", "b"]), **made, **info}
    if rows is None:
        rows = [trial.to_row() for trial in fake_trials({"a": 1.0, "b": 0.9})]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return zipped(path, [("run.json", json.dumps(info)), ("trials.jsonl", lines)], compression=8)


def row(**changes):
    return {**fake_trials({"a": 1.0, "b": 0.9})[0].to_row(), **changes}


def labelled(text):
    """A share file whose baseline has this label."""
    rows = [trial.to_row() for trial in fake_trials({text: 1.0, "b": 0.9})]
    return given(**{**fake_json([text, "b"]), "question": text, "rows": rows})


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def members(*members, **how):
    return lambda place: {"file": zipped(place.tmp / "x.zip", members, **how)}


def raw(content):
    """A share file of these bytes."""

    def make(place):
        file = place.tmp / "x.zip"
        file.write_bytes(content)
        return {"file": file}

    return make


def too_large(place):
    with (place.tmp / "x.zip").open("wb") as file:
        file.truncate(20_000_001)
    return {"file": place.tmp / "x.zip"}


def bomb(place):
    made = members(GOOD[0], ("trials.jsonl", "0" * 60_000_000), compression=8)
    return made(place)


def a_link(place):
    entry = zipfile.ZipInfo("run.json")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return {"file": zipped(place.tmp / "x.zip", [(entry, "/etc/passwd"), GOOD[1]])}


# --- the table ------------------------------------------------------------------------------------

UNREADABLE = "images must all be readable, got 1 that are not (<data>/odd.jpg"
NO_PIPES = "data must hold regular files, got a named pipe, socket or device at <data>/odd.jpg; re"
NO_COCO = "annotations must be COCO JSON with images and annotations, got <data>/annotations.json ("
BASELINE = "baseline 'a' must be able to run here, got: "
NO_EXPERIMENT = f"experiment must be one of {', '.join(sorted(lab.CATALOG))}, got 'prefetch'"
CUT = f"{UNREADABLE}: image must be a complete JPEG, got "
ICC = [b"ICC_PROFILE\0" + bytes([number, 16]) + bytes(65_000) for number in range(1, 17)]
MARKUP = "<script>alert(1)</script>"
SCALED = {"decoder": "simplejpeg_scaled", "preprocessor": "classification"}


def with_segments(marker, *payloads):
    jpeg = JPEG
    for payload in reversed(payloads):
        jpeg = with_segment(jpeg, marker, payload)
    return jpeg


def vary(**choices):
    """Variants of which the first is the baseline."""

    def make(place):
        ((setting, values),) = choices.items()
        variants = lab.sweep(own(place.data, images=None), setting, values)
        return {"changes": {"variants": variants, "baseline": next(iter(variants))}}

    return make


ROWS: dict[Callable, dict[str, tuple[Callable, str]]] = {
    together: {
        "grey JPEG": (put("odd.jpg", encode(photo().convert("L"))), WORKS),
        "one pixel": (put("odd.jpg", encode(photo().resize((1, 1)))), WORKS),
        "progressive JPEG": (put("odd.jpg", encode(photo(), progressive=True)), WORKS),
        "CMYK JPEG": (put("odd.jpg", encode(photo().convert("CMYK"))), WORKS),
        "65,500 x 4 pixels": (put("odd.jpg", encode(photo().resize((65_500, 4)))), WORKS),
        "all eight orientations": (
            every(*(put(f"{i}_.jpg", with_segment(JPEG, 0xE1, exif(i))) for i in range(1, 9))),
            WORKS),
        "EXIF of noise": (put("odd.jpg", with_segments(0xE1, b"Exif\0\0" + b"\xff" * 99)), WORKS),
        "ICC profile of a megabyte": (put("odd.jpg", with_segments(0xE2, *ICC)), WORKS),
        "two images in one": (put("odd.jpg", JPEG + encode(photo().rotate(9))), WORKS),
        "fill bytes before a marker": (put("odd.jpg", JPEG[:2] + b"\xff\xff" + JPEG[2:]), WORKS),
        "folder named .jpg": (put("odd.jpg/1.jpg"), WORKS),
        "name with a line break": (put("odd\n.jpg"), WORKS),
        "name that is not UTF-8": (put("odd \udcff.jpg"), WORKS),
        "name of 255 bytes": (put("x" * 251 + ".jpg"), WORKS),
        "name of markup and shell": (put("<img src=x onerror=a()> $(b) `c`;'\".jpg"), WORKS),
        "named pipe of another name": (node(stat.S_IFIFO, "pipe"), WORKS),
        "hidden broken image": (put(".odd.jpg", b""), WORKS),
    },
    run: {
        "cut in the middle": (put("odd.jpg", JPEG[: len(JPEG) // 2]), CUT),
        "twelve bits a color": (put("odd.jpg", patched(4, b"\x0c")),
            f"{UNREADABLE}: image must be a JPEG that opencv reads, got "),
        "link to itself": (link("odd.jpg"), f"{UNREADABLE}, a broken link: Too many levels"),
        "every image broken": (all_broken, f"{BASELINE}ValueError: batch_size must be at most"),
        "broken image that is left out": (
            every(put("odd \udcff.jpg", b""), given(on_bad_image="skip")), WORKS),
        "image vanishes": (meanwhile(Path.unlink), f"{BASELINE}FileNotFoundError: "),
        "16 workers and 64 open files": (few_open_files,
            f"{BASELINE}num_workers must be fewer for a limit of 64 open files, got 16, which ne"),
        "named pipe as annotations": (
            every(put("images/odd.jpg"), put("annotations/odd", b""),
                  node(stat.S_IFIFO, "annotations/instances_odd.json")),
            WORKS),
        "copy that others can change": (copy_for_all,
            f"{BASELINE}<copy> must be this user's, and writable by nobody else; move it away"),
        "20,000 files in one folder": (many_files, WORKS),
        "results on a full disk": (full_results,
            "results must have room for more, got 0 B free in <results>"),
        "no control groups": (no_control_groups, f"{BASELINE}throttled disk: needs "),
        "image is replaced by another one": (
            meanwhile(lambda path: path.write_bytes(encode(photo().rotate(90)))), WORKS),
        "negative boxes": (annotated(coco(bbox=[-5, -5, -1, -1])), WORKS),
        "boxes beyond the image": (annotated(coco(bbox=[-50, -50, 900, 900])), WORKS),
        "unknown category": (
            annotated(coco(category_id=999)),
            f"{BASELINE}ValueError: category_ids must be COCO's object categories (1 to 90 with"),
        "manifest without files": (put("manifest.json", b'{"schema": 1}'), WORKS),
    },
    not_begun: {
        "named pipe": (node(stat.S_IFIFO), NO_PIPES),
        "link to a device": (link("/dev/zero"), NO_PIPES),
        "no folder": (
            given(data="nowhere"),
            "data must be an existing folder, got 'nowhere'; accepted are images/ with"),
        "folder without images": (
            lambda place: shutil.rmtree(place.data) or place.data.mkdir(),
            "data must hold JPEG images, got '<data>', no .jpg file below it; accepted are"),
        "unknown protocol": (given(data="no://where"),
            "data must be a folder or a URL that fsspec knows, got 'no://where'"),
        "empty annotations": (annotated(""), f"{NO_COCO}JSONDecodeError"),
        "annotations in depth": (annotated("[" * 99_999), f"{NO_COCO}RecursionError"),
        "a list as manifest": (put("manifest.json", b"[1]"), "manifest.json must be JSON, got"),
        "annotations of other images": (
            annotated(coco().replace(".jpg", ".png")),
            "data must hold JPEG images, got '<data>', none of the images in"),
        "newer manifest": (
            put("manifest.json", b'{"schema": 99}'),
            "schema must be at most 1, got 99 in <data>/manifest.json; update labkit to use this"),
        "images that fit no boxes": (given(decoder="simplejpeg_scaled", preprocessor="loops"),
            "preprocessor must be one of classification, classification_on_device, "
            "classification_pillow, classification_crop, classification_crop_on_device, "
            "classification_crop_pillow, classification_crop_v2 for the decoder simplejpeg_scaled, "
            "whose images no longer fit their boxes, got 'loops'"),
        "decoder of a loader without": (given(**SCALED, loader="dali"),
            "decoder must be another one for the loader dali, which decodes by itself and in full"),
        "model on a simulated GPU": (given(device="simulated", step="detector"),
            "step must be timed on the simulated GPU"),
        "step of another preprocessor": (
            given(step="classifier"),
            "preprocessor must be one of classification, classification_on_device,"),
        "work that differs": (vary(images=[4, 8]),
            "images must be the same for all variants, got 4, 8; make them experiments of their"),
        "batches without a common multiple": (vary(batch_size=[5, 7]),
            "batch_size must have a common multiple of at most 8 images in all variants, got 5, 7"),
        "more images than there are": (
            given(images=99),
            "images must be at least one batch for each rank (4) and at most the number of"),
        "unknown mode": (given(mode="fast"), "mode must be one of document, full, quick, got"),
        "too few blocks": (given(mode="full", blocks=5),
            "blocks must be at least 6 in mode full, got 5"),
        "no block": (given(blocks=0), "blocks must be at least 1 in mode quick, got 0"),
        "two blocks of a document": (given(mode="document", blocks=2),
            "blocks must be 1 in mode document, got 2"),
        "no variants": (given(changes={"variants": {}}), "variants must be at least one, got"),
        "no such baseline": (given(changes={"baseline": "b"}), "baseline must be one of a, got"),
        "name that climbs out": (given(changes={"name": "../../odd"}),
            "name must be lower-case letters, digits and _, got '../../odd'; it becomes a folder"),
        "name of a folder of labkit's": (given(changes={"name": "shared"}),
            "name must be none of shared, reports, got 'shared'; those folders of"),
    },
    resume: {
        "no run.json": (lambda place: (place.run / "run.json").unlink(),
            "run must be a run folder with run.json, got <run>; `labkit list` shows the runs"),
        "half a row": (rows_end(lambda last: last[: len(last) // 2]), WORKS),
        "JSON that is no row": (
            rows_end(lambda last: b"5\n[]\n{}\nnull\n" + b"[" * 99_999 + b"\n"), WORKS),
        "mode of a newer version": (changed(lambda info: {"mode": "thorough"}),
            "mode must be one of document, full, quick, got 'thorough'"),
        "kind of a newer version": (changed(lambda info: {"kind": "swarm"}),
            "kind must be one of epochs, operation, roofline, got 'swarm'"),
        "simulated GPU of an earlier version": (
            changed(lambda info: {
                "schema": 2,
                "variants": {label: {**values, "device": "simulated", "step": "timed"}
                             for label, values in info["variants"].items()}}),
            "run must have a simulated GPU that this version knows, got one whose host sleeps"),
        "other data": (changed(lambda info: {"data": {**info["data"], "data_hash": "other"}}),
            "data must be what the run began with ("),
        "another machine": (
            changed(lambda info: {"provenance": {**info["provenance"], "machine_id": "other"}}),
            "run must be resumed on the machine, the cores and the GPU it began on ("),
        "other cores": (
            changed(lambda info: {"provenance": {**info["provenance"], "cores": 4096}}),
            "run must be resumed on the machine, the cores and the GPU it began on (4,096 cores, "),
        "another GPU": (
            changed(lambda info: {
                "provenance": {**info["provenance"], "gpu": {"works": True, "name": "other"}},
                "variants": {label: {**values, "device": "cuda", "step": None}
                             for label, values in info["variants"].items()}}),
            "run must be resumed on the machine, the cores and the GPU it began on ("),
    },
    roofline: {
        "one variant": (given(variants=("original",)),
            "variants must be at least two for a roofline, which compares pipelines, got original"),
        "one pipeline": (given(experiment="bottlenecks"),
            "variants must be at least two for a roofline, which compares pipelines, got "),
        "pipelines that differ between epochs only": (given(experiment="persistent_workers"),
            "variants must be at least two for a roofline, which compares pipelines, got started "),
        "the CPU, which loads the data": (given(settings={"device": "cpu"}),
            "device must be simulated or cuda for a roofline, got cpu; choose one of them"),
        "three epochs": (given(settings={"epochs": 3}),
            "epochs must be 1 for a roofline, got 3; leave it out"),
        "the document's mode": (given(mode="document"),
            "mode must be quick or full for a roofline, got document; leave it out"),
        "the document's order": (given(experiment="prefetching", protocol=AS_PUBLISHED),
            "protocol must be corrected for a roofline, got as in the document; leave it out"),
        "a cache state that it does not compare": (
            given(experiment="storage", settings={"cache": "as found"}),
            "cache must be cold or warm for a roofline of storage, got as found; leave it out"),
        **{f"{name}": (given(experiment=name),
            "experiment must time epochs that load every batch and train with it, got "
            f"{name}; take another one, as preprocessing") for name in ("operations", "stalls")},
    },
    calibrate: {
        "another process calibrates": (calibrating,
            "another process calibrates the simulated GPU in <results>; wait until it is done"),
    },
    pack: {
        "missing image to pack": (
            link("nowhere"),
            "data must be images that can be read, got No such file or directory for"),
        "pack into a folder of the user's": (
            words("--to", "raw", "--out", here("results")),
            "to must be a new folder, got '<results>', which is of other data, or made otherwise;"),
        "pack that is one already": (words("--to", "folder"),
            "to must be another packing, got 'folder', in which the data is already"),
    },
    diagnose: {
        "number as loader": (
            given(loader=3),
            "loader must be an iterable of batches, got 3; give what your training loop iterates"),
        "number as step": (given(step=3), "step must be a function of a batch, got 3; put the"),
        "budget of 0.5 s": (given(budget_s=0.5), "budget_s must be at least 5, got 0.5; the d"),
        "device of torch": (
            given(device="cuda"),
            "device must be a simulated GPU that the step uses, or None, got 'cuda'; leave it"),
        "folder as file": (given(files=["/"]), "files must be files, got /; give the paths"),
    },
    watch: {"number to watch": (given(loader=5), "loader must be an iterable of batches, got ")},
    open_: {
        "markup as a label": (labelled(MARKUP), WORKS),
        "code as a label": (labelled("__import__('os').system('x')\"\"\""), WORKS),
        "no file": (lambda place: {"file": nowhere(place)},
            "file must be a share file, got <tmp>/nowhere, where no file is; make one with:"),
        "experiment climbs out": (given(experiment="../../etc"), f"{NO_NAME} got '../../etc'"),
        "experiment of a reserved name": (given(experiment="shared"), f"{NO_NAME} got 'shared'"),
        "run climbs out": (given(run="../x"), f"{NO_NAME} got '../x'"),
        "newer schema": (given(schema=99),
            "schema must be at most 3, got 99 in run.json; update labkit"),
        "yes as a number": (given(blocks=True), f"{NOT_AS} blocks as labkit writes it, got True"),
        "2,001 variants": (given(variants={str(i): {} for i in range(2_001)}), NOT_PLAIN),
        "long label": (given(variants={"x" * 101: {}}), NOT_PLAIN),
        "long question": (given(question="x" * 2001), NOT_PLAIN),
        "half a letter": (given(question="a\ud800"), NOT_PLAIN),
        "codes of a terminal": (given(question="a\x1b[2Jb"), NOT_PLAIN),
        "NaN": (given(order_seed=float("nan")), NOT_PLAIN),
        "5,001 rows": (given(rows=[{}] * 5_001), NOT_PLAIN),
        "600 levels": (given(calibration={"x": nested(600)}), f"{NOT_JSON}, or one nested too dee"),
        "foreign request": (given(request={"foo": 1}), f"{NOT_SHOWN} TypeError"),
        "code as a setting's name": (given(request={"settings": {"x=1)\nimport os": 1}}),
            f'{NOT_SHOWN} ValueError("settings must be named as in'),
        "roofline without tasks": (given(kind="roofline", calibration=SPEEDS), WORKS),
        "roofline at a negative speed": (
            given(**{**ROOFLINE, "tasks": {name: {"x": -1} for name in "ab"}}),
            f"{NOT_SHOWN} ValueError('x must be a number above 0, got -1"),
        "batches that are never trained on": (
            given(**{**ROOFLINE, "tasks": {name: {"gpu_slowdown": 0} for name in "ab"}}),
            f"{NOT_SHOWN} ValueError('gpu_slowdown must be a number above 0, got 0"),
        "newer row": (given(rows=[row(schema=99)]),
            f"schema must be at most {SCHEMA}, got 99 in trials.jsonl"),
        "unknown field": (given(rows=[row(evil=1)]), NO_ROWS),
        "member that climbs out": (members(*GOOD, ("../evil.py", "x")),
            f"{NOT_BOTH} ['run.json', 'trials.jsonl', '../evil.py']"),
        "no members": (members(), f"{NOT_BOTH} []"),
        "member that is a link": (a_link, NOT_JSON),
        "another compression": (members(*GOOD, compression=zipfile.ZIP_LZMA),
            "share file must be a plain zip, got another compression of run.json"),
        "60 MB in 60 KB": (bomb,
            "share file must have at most 50,000,000 bytes unpacked, got more"),
        "20 MB": (too_large, "share file must have at most 20,000,000 bytes, got 20,000,001"),
        "no zip": (raw(b"no zip"), f"{NO_ZIP} File is not a zip file"),
    },
    command: {
        "name of a run to resume": (words("run", "prefetching", "--resume", "x"),
            "argument --resume: not allowed with argument NAME"),
        "an unknown experiment": (
            words("run", "prefetch", "--results", here("results")),
            NO_EXPERIMENT),
        "name of a run that climbs out": (
            words("table", "../../etc/passwd", "--results", here("results")),
            "run must be a run folder, an id or an experiment with results in <results>, got"),
        "results that are a file": (ordinary("--results", a_file),
            "results must be a folder that can be written, got <tmp>/file (Not a directory);"),
        "changes of a run to resume": (
            words("run", "--resume", "x", "--mode", "full", "--num-workers", "3"),
            "--resume must be given without mode, num_workers: a run goes on as it began"),
        "list of runs, one of another program": (
            every(changed(lambda info: {"provenance": "x"}),
                  words("list", "--results", here("results"))),
            WORKS),
        "a report of nothing": (words("report", "--results", nowhere),
            "runs must be at least one, got none in <tmp>/nowhere"),
        "unknown command": (words("dance"),
            "argument COMMAND: invalid choice: 'dance' (choose"),
        "unknown option": (words("run", "--workers", "3"),
            "unrecognized arguments: --workers; a setting must be one of data, images"),
        "no time to tune": (words("diagnose", "--tune", "--budget-s", "1", a_file),
            "budget_s must be at least 5, got 1.0; the default is 60"),
        "no script to watch": (words("watch", "missing.py", "--epochs", "3"),
            "argument SCRIPT: must be a Python file, got 'missing.py'"),
    },
    shell: {
        "broken image whose name is not UTF-8": (every(put("odd \udcff.jpg", b""), ordinary()),
            r"images must all be readable, got 1 that are not (<data>/odd \udcff.jpg: image must"),
        "folder without permission": (every(locked(below_data, 0), ordinary()),
            "[Errno 13] Permission denied: '<data>/odd'"),
        "small shared memory": (every(small_shared_memory, ordinary()),
            "baseline 'original' must be able to run here, got: /dev/shm must have room for "),
        "one core, 64 open files, no fadvise, no home, package and image without permission": (
            every(hostile_machine, ordinary("--on-bad-image", "skip", "--num-workers", "0")),
            WORKS),
    },
}  # fmt: skip


# --- the test -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Some small photographs, and results with a run of them."""
    tmp = tmp_path_factory.mktemp("measured")
    (tmp / "data").mkdir()
    for i in range(IMAGES):
        (tmp / "data" / f"{i}.jpg").write_bytes(encode(photo().rotate(11 * i)))
    place = SimpleNamespace(data=tmp / "data", results=tmp / "results")
    assert run(place) == WORKS
    return tmp


@pytest.fixture(scope="module")
def together_run(measured, tmp_path_factory):
    """Returns a run of the images of all rows that it is for, each in a folder, and their names."""

    @cache
    def once():
        tmp = tmp_path_factory.mktemp("together")
        shutil.copytree(measured / "data", tmp / "data")
        for number, (make, _) in enumerate(ROWS[together].values()):
            folder = tmp / "data" / str(number)
            folder.mkdir()
            shutil.copy(measured / "data" / "0.jpg", folder)
            make(SimpleNamespace(data=folder))
        names = names_in(tmp / "data")
        variants = {"a": own(tmp / "data", images=len(names), batch_size=1)}
        experiment = lab.Experiment("odd", question="?", variants=variants, baseline="a")
        return lab.run(experiment, blocks=1, results=tmp / "results", progress=False), names

    return once


@pytest.fixture
def place(measured, together_run, tmp_path, capsys):
    """A copy of them to be spoiled."""
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True)
    (folder,) = list_runs(tmp_path / "results")
    with contextlib.ExitStack() as stack:
        yield SimpleNamespace(
            tmp=tmp_path, data=tmp_path / "data", results=tmp_path / "results", run=folder,
            id=folder.name, together=together_run, stack=stack, capsys=capsys,
        )  # fmt: skip


@contextlib.contextmanager
def at_most(seconds):
    def stop(*_):
        raise TimeoutError(f"it still goes on after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def processes():
    """List the processes below this one, and those of them that wait for another run."""
    others, servers = set(), []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if "labkit.runs.server" in command:
                servers.append(process)
            elif "multiprocessing.resource_tracker" not in command:  # Python's, one for all tests
                others.add(process)
    return others, servers


@pytest.mark.parametrize(
    ("through", "what"), [(through, what) for through, rows in ROWS.items() for what in rows]
)
def test_whatever_comes_in_ends_in_a_line_and_costs_nothing(through, what, place, monkeypatch):
    make, line = ROWS[through][what]
    monkeypatch.setattr(tempfile, "tempdir", str(place.tmp / "own temporary"))
    (place.tmp / "own temporary").mkdir()
    arguments = make(place) or {}
    rows = (place.run / "trials.jsonl").read_bytes()
    before, _ = processes()
    with at_most(PATIENCE_S):  # an input that hangs takes for ever
        try:
            said = through(place, **arguments)
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            said = str(error)
    place.stack.close()
    paths = {**vars(place), "copy": copy_of(place)}
    for name in ("data", "results", "run", "id", "tmp", "copy"):
        line = line.replace(f"<{name}>", str(paths[name]))
    assert said[: len(line)] == line
    assert "\n" not in said
    assert (place.run / "trials.jsonl").read_bytes().startswith(rows)
    until(lambda: processes()[0] <= before)  # what has ended may not have been waited for
    assert len(processes()[1]) <= 1
    assert list((place.tmp / "own temporary").iterdir()) == []
    assert not list(place.tmp.rglob("*.part"))
    assert not list(paths["copy"].parent.glob(f"{paths['copy'].name}*"))


# --- anything that is damaged anywhere ------------------------------------------------------------

COCO = json.loads(coco())
RUN_JSON = json.loads(
    (PACKAGE.parent / "results/examples/2-cores-simulated/storage/run.json").read_bytes()
)


def refused_in_a_line(call, *beginnings):
    """Call a function, whose error, if there is one, has to begin with one of these."""
    try:
        return call()
    except ValueError as error:
        assert str(error).startswith(beginnings) and "\n" not in str(error)


CUT_OFF = st.integers(0, len(JPEG) - 1).map(lambda length: JPEG[:length])
NO_START = st.binary(min_size=1, max_size=30).filter(lambda x: not x.startswith(b"\xff\xd8"))


@drawn(CUT_OFF | NO_START | NO_START.map(lambda junk: junk + JPEG))
def test_an_image_cut_off_anywhere_or_with_junk_before_it_is_named_in_a_line(
    tmp_path_factory, content
):
    folder = tmp_path_factory.mktemp("images")
    for name, jpeg in (("good.jpg", JPEG), ("odd.jpg", content)):
        (folder / name).write_bytes(jpeg)
    ((_, line),), others = find_bad_images(completed(data=str(folder)), 0, 2, ["opencv"])
    assert re.fullmatch(f"{re.escape(str(folder))}/odd.jpg: image must be a .*JPEG.*, got .+", line)
    assert others == []


@drawn(json_changes.changed(COCO).map(json.dumps) | st.text(max_size=30))
def test_annotations_with_anything_changed_are_refused_in_a_line_or_read(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("annotated")
    (folder / "images").mkdir()
    for number in range(IMAGES):
        (folder / "images" / f"{number}.jpg").write_bytes(JPEG)
    (folder / "annotations.json").write_text(text, errors="backslashreplace")
    opened = refused_in_a_line(
        lambda: open_folder(folder),
        "annotations must be COCO JSON with images and annotations, got ",
        "data must hold JPEG images, got ",
    )
    assert opened is None or opened.read(0)[0] == JPEG


@drawn(json_changes.changed(RUN_JSON).map(json.dumps) | st.text(max_size=30))
def test_a_run_json_with_any_value_changed_is_refused_in_a_line_or_read(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("run")
    (folder / "run.json").write_text(text, errors="backslashreplace")
    run = refused_in_a_line(
        lambda: load_run(folder), "run.json must be what a run writes, got another file in ",
        "schema must be at most ",
    )  # fmt: skip
    assert run is None or run.info.baseline in run.info.variants
