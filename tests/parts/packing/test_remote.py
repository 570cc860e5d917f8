"""A folder at a URL reads like the folder itself, and what goes wrong on the way is told."""

import builtins
import itertools
import json
import multiprocessing
import os
import pickle
import re
import shutil
import sys
import threading

import fsspec
import numpy as np
import pytest
from web import web

from labkit.parts.packing import PACKINGS, connections, fetching
from labkit.parts.packing.folder import open_folder
from labkit.parts.packing.manifest import MANIFEST, UNFINISHED
from labkit.parts.packing.remote import at_url, open_remote
from labkit.places import place
from labkit.trial import Cancelled, Skip

IMAGE = "images/000000000003.jpg"
can_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this platform has no fork"
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nobody waits ten seconds for a silent server here."""
    monkeypatch.setattr(connections, "TIME_OUT_S", 0.15)
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.01)
    yield
    connections.close_idle()


@pytest.fixture
def memory():
    """A folder in fsspec's own memory, emptied afterwards; gives a function that fills it."""
    system = fsspec.filesystem("memory")

    def fill(folder, name):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                system.pipe(f"/{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"memory://{name}"

    yield fill
    system.store.clear()


def assert_same(reader, near):
    assert len(reader) == len(near)
    for i in range(len(near)):
        (content, boxes), (wanted, wanted_boxes) = reader.read(i), near.read(i)
        assert (reader.name(i), content) == (near.name(i), wanted)
        assert np.array_equal(boxes.boxes_xyxy, wanted_boxes.boxes_xyxy)
        assert np.array_equal(boxes.category_ids, wanted_boxes.category_ids)
    assert (reader.boxes, reader.manifest_hash) == (near.boxes, near.manifest_hash)
    assert (reader.stored, reader.source_hash) == (near.stored, near.source_hash)


# --- every layout ---------------------------------------------------------------------------


def test_over_http_the_manifest_lists_the_files(photos):
    with web(photos) as server:
        reader = PACKINGS["folder"].open(f"{server.url}/")
        assert_same(reader, open_folder(photos))
        assert reader.image_bytes.tolist() == open_folder(photos).image_bytes.tolist()
        assert (reader.paths, reader.companions, reader.files_of([0, 1])) == ((), (), ())
        assert reader.where(2) == f"{server.url}/{IMAGE}"
        # One request for each image, and none is read twice.
        assert {server.asked[reader.name(i)] for i in range(len(reader))} == {1}
        assert reader.verify(range(len(reader))) == []


def test_where_files_can_be_listed_every_layout_is_understood(photos, memory, tmp_path):
    near = open_folder(photos)
    assert_same(open_remote(memory(photos, "ours")), near)
    coco = shutil.copytree(photos / "images", tmp_path / "coco" / "val2017").parent
    (coco / "annotations").mkdir()
    boxes = coco / "annotations" / "instances_val2017.json"
    shutil.copy(photos / "annotations.json", boxes)
    memory(coco, "coco")
    for url in ("memory://coco", "memory://coco/val2017"):
        reader = open_remote(url)
        assert (reader.boxes, reader.manifest_hash) == ("coco", "unknown")
        assert [reader.read(i)[0] for i in range(24)] == [near.read(i)[0] for i in range(24)]
        assert np.array_equal(reader.read(5)[1].boxes_xyxy, near.read(5)[1].boxes_xyxy)


def test_a_tree_of_images_has_boxes_as_the_folder_would(photos, memory, tmp_path):
    tree = tmp_path / "tree"
    for path, name in zip(
        sorted((photos / "images").iterdir()), ["b.jpg", "a #1/ä?.JPEG", "a #1/c%20.jpg"]
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tree / name)
    (tree / ".hidden").mkdir()
    shutil.copy(tree / "b.jpg", tree / ".hidden" / "d.jpg")
    assert_same(open_remote(memory(tree, "tree")), open_folder(tree))
    with web(tree) as server:  # and names that mean something else in a URL are found by http
        assert_same(at_url(open_folder(tree), server.url), open_folder(tree))


def test_a_file_url_is_a_folder_of_this_machine(photos, tmp_path):
    data = shutil.copytree(photos, tmp_path / "my photos")
    assert place(data.as_uri()) == data
    assert_same(PACKINGS["folder"].open(place(data.as_uri())), open_folder(photos))


# --- what cannot be opened ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda f: (f / MANIFEST).unlink(), ValueError, "data must have a manifest.json where it"),
        (
            lambda f: (f / "annotations.json").unlink(),
            FileNotFoundError,
            r"http://.*/annotations\.json must be there, got no such file",
        ),
        (lambda f: (f / MANIFEST).write_text("{"), ValueError, "manifest.json must be JSON, got h"),
        (
            lambda f: change(f / MANIFEST, packing="lmdb"),
            ValueError,
            "must be a folder of images where it is at a URL, got a lmdb pack",
        ),
        (lambda f: change(f / MANIFEST, schema=99), ValueError, "schema must be .*, got 99"),
        (lambda f: make_empty(f), ValueError, "data must hold JPEG images, got .* none"),
    ],
)  # fmt: skip
def test_what_is_no_data_set_is_refused_in_words(photos, tmp_path, spoil, error, message):
    data = shutil.copytree(photos, tmp_path / "photos")
    spoil(data)
    with web(data) as server, pytest.raises(error, match=message):
        open_remote(server.url)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def make_empty(folder):
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["annotations_sha256"]
    (folder / MANIFEST).write_text(json.dumps({**manifest, "files": {}}))


def test_no_folder_an_empty_one_and_an_unfinished_one(memory, tmp_path):
    with pytest.raises(FileNotFoundError, match="data must be an existing folder, got 'memory://n"):
        open_remote("memory://nowhere")
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match="data must hold JPEG images, got 'memory://notes'"):
        open_remote(memory(tmp_path, "notes"))
    (tmp_path / UNFINISHED).write_text("{}")
    with pytest.raises(ValueError, match="data must be a finished folder"):
        open_remote(memory(tmp_path, "notes"))


def test_an_unknown_protocol_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"URL that fsspec knows \(.*memory.*\), got 'floppy://x'"):
        open_remote("floppy://x")


@pytest.mark.parametrize("missing", ["aiohttp", "tenacity"])
def test_without_the_extra_it_is_skipped_with_the_line_that_installs_it(monkeypatch, missing):
    real = builtins.__import__

    def without(name, *rest):
        if name == missing:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, missing, raising=False)
    with pytest.raises(Skip, match=re.escape(f"{missing}, not installed; pip install 'labkit[rem")):
        open_remote("http://127.0.0.1:9/photos")


# --- the way there --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    ["500 503 ok", "429 ok", "half ok", "reset reset reset ok", "silence ok"],
)
def test_what_passes_is_tried_again(photos, faults):
    near, faults = open_folder(photos), faults.split()
    with web(photos, {IMAGE: faults}) as server:
        reader = at_url(near, server.url)
        assert reader.read(2)[0] == near.read(2)[0]
        assert server.asked[IMAGE] >= len(faults)  # aiohttp repeats a reset by itself, too


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("500", r"status 500 \(.+\)"),
        ("silence", r"no answer within 0\.15 s"),
        ("half", "half a body: the connection ended before the answer did"),
        ("reset", r"Client\w+Error: .+|Server\w+Error: .+"),
    ],
)
def test_what_does_not_pass_is_told_with_url_reason_and_tries(photos, fault, what):
    with web(photos, {IMAGE: [fault]}) as server:
        reader = at_url(open_folder(photos), server.url)
        with pytest.raises(fetching.RemoteFailed) as failure:
            reader.read(2)
        assert re.fullmatch(
            rf"{re.escape(server.url)}/{IMAGE} must be readable, got ({what}) in the last of "
            "4 tries; look whether its server and the network are up, and run again",
            str(failure.value),
        )
        assert server.asked[IMAGE] >= 4
        assert reader.read(3)[0]  # the next image is not harmed


@pytest.mark.parametrize(
    ("fault", "error", "what"),
    [
        ("404", FileNotFoundError, "must be there, got no such file"),
        ("403", PermissionError, r"must be readable by you, got status 403 \(Forbidden\)"),
        ("400", OSError, r"must be readable, got status 400 \(Bad Request\)"),
    ],
)
def test_what_will_not_pass_is_asked_once(photos, fault, error, what):
    with web(photos, {IMAGE: [fault]}) as server:
        with pytest.raises(error, match=rf"{re.escape(server.url)}/{IMAGE} {what}"):
            at_url(open_folder(photos), server.url).read(2)
        assert server.asked[IMAGE] == 1


def test_a_server_that_is_gone_is_told(photos):
    with web(photos) as server:
        reader = at_url(open_folder(photos), server.url)
    with pytest.raises(fetching.RemoteFailed, match="got ClientConnectorError: Cannot connect"):
        reader.read(0)


def test_a_whole_answer_of_another_size_is_no_image(photos, tmp_path):
    """A file that was cut short on the server: its answer is whole, and half the image."""
    data = shutil.copytree(photos, tmp_path / "photos")
    reader_near = open_folder(data)
    size_bytes = int(reader_near.image_bytes[2])
    (data / IMAGE).write_bytes((data / IMAGE).read_bytes()[:-7])
    with web(data) as server:
        reader = open_remote(server.url)
        message = f"{IMAGE} must have {size_bytes} bytes, got {size_bytes - 7}, in each of 4 tries"
        with pytest.raises(ValueError, match=message):
            reader.read(2)
        assert [IMAGE in line for line in reader.verify([1, 2, 3])] == [True]


def test_a_changed_image_or_manifest_is_found_by_verify(photos, tmp_path):
    data = shutil.copytree(photos, tmp_path / "photos")
    jpeg = bytearray((data / IMAGE).read_bytes())
    jpeg[-9] ^= 1
    (data / IMAGE).write_bytes(jpeg)
    with web(data) as server:
        reader = open_remote(server.url)
        (line,) = reader.verify(range(6))
        assert re.fullmatch(rf"{server.url}/{IMAGE} must have SHA-256 \w+, got \w+", line)
        change(data / MANIFEST, note="other")
        (line,) = reader.verify(range(6))
        assert line.startswith("data must stay what it was when it was opened, got another mani")


def test_cancel_ends_the_tries(photos, tmp_path):
    cancel = threading.Event()
    with web(photos, {IMAGE: ["500"]}) as server:
        cancel.set()
        with pytest.raises(Cancelled):
            fetching.save(server.url, IMAGE, tmp_path / "part", 0, cancel)
        assert server.asked[IMAGE] == 0


def test_the_pauses_double(photos, monkeypatch):
    slept = []
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.2)
    monkeypatch.setattr(fetching.time, "sleep", slept.append)
    with web(photos, {IMAGE: ["500"]}) as server, pytest.raises(fetching.RemoteFailed):
        at_url(open_folder(photos), server.url).read(2)
    assert slept == pytest.approx([0.2, 0.4, 0.8])


# --- processes ------------------------------------------------------------------------------


def read_all(reader, results):
    results.put((os.getpid(), [len(reader.read(i)[0]) for i in range(len(reader))]))


@can_fork
def test_every_process_opens_its_own(photos):
    context = multiprocessing.get_context("fork")
    with web(photos) as server:
        reader = open_remote(server.url)
        wanted = [len(reader.read(i)[0]) for i in range(len(reader))]  # it is open here
        assert "labkit remote" in {thread.name for thread in threading.enumerate()}
        results = context.Queue()
        children = [context.Process(target=read_all, args=(reader, results)) for _ in range(2)]
        for child in children:
            child.start()
        # Nothing of it crossed: it was closed before.
        assert "labkit remote" not in {thread.name for thread in threading.enumerate()}
        found = dict(results.get(timeout=60) for _ in children)
        for child in children:
            child.join(60)
        assert list(found.values()) == [wanted] * 2
        assert [len(reader.read(i)[0]) for i in range(len(reader))] == wanted


@can_fork
def test_a_fork_in_the_middle_of_a_read_harms_neither(photos):
    """Another thread reads meanwhile: its connection stays, and the child has none of it."""
    with web(photos) as server:
        reader, stop, failed, read = open_remote(server.url), threading.Event(), [], []

        def go_on():
            try:
                for i in itertools.cycle(range(len(reader))):
                    if stop.is_set():
                        return
                    read.append(len(reader.read(i)[0]))
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=go_on)
        thread.start()
        context = multiprocessing.get_context("fork")
        for _ in range(5):
            results = context.Queue()
            child = context.Process(target=read_all, args=(reader, results))
            child.start()
            assert len(results.get(timeout=60)[1]) == len(reader)
            child.join(60)
        stop.set()
        thread.join(60)
        assert (failed, child.exitcode) == ([], 0)
        assert read


def test_a_reader_travels_without_anything_open(photos):
    with web(photos) as server:
        reader = open_remote(server.url)
        reader.read(0)
        assert_same(pickle.loads(pickle.dumps(reader)), open_folder(photos))
