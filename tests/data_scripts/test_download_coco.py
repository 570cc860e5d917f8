"""COCO from a local server that drops and lies: what arrives is complete, or refused.

Run: python -m pytest tests/data_scripts/test_download_coco.py
"""

import hashlib
import io
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import pytest
from web import web

from data_scripts import download_coco as script
from data_scripts.download_coco import ARCHIVES, main
from labkit.parts.packing.folder import open_folder
from tests.places import contents

BOXES, IMAGES = (archive.name for archive in ARCHIVES)
CUT_ONCE = {IMAGES: ["cut 100000", "ok"]}


@pytest.fixture
def server(coco, tmp_path):
    for archive in coco.archives:
        file = served(tmp_path, archive.name)
        file.parent.mkdir(parents=True)
        file.write_bytes(coco.files[archive.name])
    with web(tmp_path / "server") as server:
        yield server


def served(tmp_path, name):
    """The file that the server gives."""
    (path,) = (archive.path for archive in ARCHIVES if archive.name == name)
    return tmp_path / "server" / path


@pytest.fixture(scope="module")
def coco(photos):
    """The two archives of a COCO of 24 images, and what was packed into them."""
    jpegs = {file.name: file.read_bytes() for file in sorted((photos / "images").iterdir())}
    boxes = (photos / "annotations.json").read_bytes()
    names = ("train2017", "val2017")
    files = {
        BOXES: zip_of({f"annotations/instances_{name}.json": boxes for name in names}),
        IMAGES: zip_of({"val2017/": b"", **{f"val2017/{n}": j for n, j in jpegs.items()}}),
    }
    archives = tuple(
        replace(
            archive,
            size_bytes=len(files[archive.name]),
            sha256=hashlib.sha256(files[archive.name]).hexdigest(),
        )
        for archive in ARCHIVES
    )
    whole = {f"val2017/{name}": jpeg for name, jpeg in jpegs.items()}
    whole["annotations/instances_val2017.json"] = boxes
    return SimpleNamespace(files=files, archives=archives, whole=whole)


def zip_of(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return file.getvalue()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "meine Daten – 写真" / "coco"


@pytest.fixture
def get(monkeypatch, server, coco, out):
    """Download as a user would, but for the waiting, which is noted."""
    monkeypatch.setattr(script, "ARCHIVES", coco.archives)

    def call(url_base=server.url):
        return script.download_coco(out, url_base)

    call.waited = []
    monkeypatch.setattr(script, "sleep", call.waited.append)
    return call


def test_a_download_is_a_data_set_that_labkit_opens(get, server, coco, out, photos):
    assert get() == out / "val2017"
    assert contents(out) == coco.whole
    made = open_folder(photos)
    for folder in (out, out / "val2017"):
        reader = open_folder(folder)
        assert (len(reader), reader.boxes) == (24, "coco")
        jpeg, annotation = reader.read(5)
        expected_jpeg, expected = made.read(5)
        assert jpeg == expected_jpeg
        assert (annotation.boxes_xyxy == expected.boxes_xyxy).all()
    get()
    assert server.requests == [(BOXES, None), (IMAGES, None)]  # nothing the second time


def test_a_dropped_connection_continues_where_it_dropped(get, server, coco, out):
    server.faults = CUT_ONCE
    get()
    assert contents(out) == coco.whole
    assert server.requests == [(BOXES, None), (IMAGES, None), (IMAGES, "bytes=100000-")]
    assert get.waited == [1]


def test_a_stop_keeps_the_part_and_the_next_call_continues(monkeypatch, get, server, coco, out):
    def stop(_):
        raise KeyboardInterrupt

    server.faults = CUT_ONCE
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(script, "sleep", stop)
        get()
    assert contents(out)[f"{IMAGES}.part"] == coco.files[IMAGES][:100_000]
    get()
    assert contents(out) == coco.whole
    assert server.requests[-1] == (IMAGES, "bytes=100000-")


def test_a_wrong_checksum_unpacks_nothing_and_removes_the_file(get, coco, out, tmp_path):
    good = coco.files[BOXES]
    served(tmp_path, BOXES).write_bytes(good[:-100] + bytes(100))
    message = rf"{BOXES} must have SHA-256 {hashlib.sha256(good).hexdigest()}, got .*removed"
    with pytest.raises(ValueError, match=message):
        get()
    assert contents(out) == {}
    served(tmp_path, BOXES).write_bytes(good)
    get()
    assert contents(out) == coco.whole


def test_an_archive_that_was_downloaded_by_hand_is_never_removed(get, coco, out):
    out.mkdir(parents=True)
    by_hand = out / BOXES
    by_hand.write_bytes(coco.files[BOXES][:-100])  # another program still writes it
    with pytest.raises(ValueError, match=r"got .*; wait until it is complete, or remove it"):
        get()
    by_hand.write_bytes(coco.files[BOXES])
    get()
    assert by_hand.exists()


def test_stopped_unpacking_starts_again_and_until_then_nothing_opens(monkeypatch, get, coco, out):
    extract, done = zipfile.ZipFile.extract, []

    def stop_at_the_tenth(*args):
        if len(done) == 10:
            raise KeyboardInterrupt
        done.append(extract(*args))

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "extract", stop_at_the_tenth)
        with pytest.raises(KeyboardInterrupt):
            get()
    with pytest.raises(ValueError):
        open_folder(out)
    get()
    assert contents(out) == coco.whole


def test_the_command_prints_what_there_is_and_errors(monkeypatch, server, coco, out, capsys):
    monkeypatch.setattr(script, "ARCHIVES", coco.archives)
    server.faults = {BOXES: ["404", "ok"]}
    assert main([str(out), "--url-base", server.url]) == 1
    message = "error: url_base must be a server with annotations/annotations_trainval2017.zip, got"
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)
    assert main([str(out), "--url-base", server.url + "/"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"24 images in {out / 'val2017'}, 24 of them with boxes",
        f"next: labkit run --data '{out / 'val2017'}'",
    ]
