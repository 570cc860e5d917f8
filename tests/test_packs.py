"""Packs are made once, again when they are of something else, and never half."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

from labkit import packs
from labkit.packs import ensure_pack
from labkit.parts.packing import PACKINGS, is_pack
from labkit.settings import Settings
from labkit.stored import stored_folder
from labkit.trial import Cancelled, Skip

SHARD_BYTES = 40_000  # of pixels of 64 px, 12 to 16 KB an image: three or four
COSTS = (packs.COST,)


@pytest.fixture
def data(photos, tmp_path):
    """A data set of one's own, with a manifest."""
    return shutil.copytree(photos, tmp_path / "data")


@pytest.fixture
def tree(photos, tmp_path):
    """The same images, without manifest and boxes."""
    return shutil.copytree(photos / "images", tmp_path / "tree")


def wanted(data, **more):
    return Settings(
        **{"data": str(data), "packing": "raw", "stored": "pixels", "input_px": 64, **more}
    )


def make(settings, **how):
    return ensure_pack(settings, **{"jobs": 1, "shard_bytes": SHARD_BYTES, **how})


def contents(folder):
    """What is in a pack, but for what it cost."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name not in COSTS}


class AfterImages(threading.Event):
    """Cancels after so many looks at it."""

    def __init__(self, images):
        super().__init__()
        self.left = images

    def is_set(self):
        self.left -= 1
        return self.left < 0


def test_a_pack_is_made_once(data):
    said = []
    cost = make(wanted(data), say=said.append)
    folder = stored_folder(wanted(data))
    assert (cost["folder"], cost["images"], cost["jobs"]) == (str(folder), 24, 1)
    assert cost["bytes"] > 24 * 64 * 64 * 3
    assert cost["pack_s"] > 0
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert make(wanted(data), say=said.append) == cost
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert len(said) == 1


def test_two_processes_make_the_same_pack_as_one(data, tmp_path):
    make(wanted(data), to=tmp_path / "one")
    make(wanted(data), to=tmp_path / "two", jobs=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


@pytest.mark.parametrize("images", [0, 1, 7, 23])
def test_a_cancelled_pack_is_none_and_goes_on_where_it_stopped(data, tmp_path, images):
    make(wanted(data), to=tmp_path / "whole")
    with pytest.raises(Cancelled):
        make(wanted(data), to=tmp_path / "pack", cancel=AfterImages(images))
    assert not (tmp_path / "pack").exists()
    part = tmp_path / ".pack.part"
    kept = {file: file.stat().st_mtime_ns for file in part.glob("0*.raw")}
    assert bool(kept) == (images > 3)
    cost = make(wanted(data), to=tmp_path / "pack")
    again = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "pack").iterdir()}
    assert {file.name: at for file, at in kept.items()}.items() <= again.items()
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")
    assert cost["images"] == 24
    assert not part.exists()


def test_what_a_stopped_pack_took_is_added_to_the_rest(data, tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "SPENT_EVERY_S", 0)
    with pytest.raises(Cancelled):
        make(wanted(data), to=tmp_path / "pack", cancel=AfterImages(20))
    spent = tmp_path / ".pack.part" / packs.SPENT
    noted = json.loads(spent.read_bytes())
    spent.write_text(json.dumps({**noted, "pack_s": 1000.0}))
    cost = make(wanted(data), to=tmp_path / "pack")
    # Only what is kept counts: at least half of those 20 images were in finished shards.
    assert 500 < cost["pack_s"] < 1000 + 100


def test_what_another_engine_took_is_not_added(data, tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "SPENT_EVERY_S", 0)
    with pytest.raises(Cancelled):
        make(wanted(data), to=tmp_path / "pack", cancel=AfterImages(20))
    assert make(wanted(data), to=tmp_path / "pack", jobs=2)["pack_s"] is None


def test_a_pack_of_data_that_changed_is_made_again(tree):
    settings, said = wanted(tree), []
    make(settings)
    before = contents(stored_folder(settings))
    next(iter(sorted(tree.iterdir()))).unlink()
    assert make(settings, say=said.append)["images"] == 23
    assert contents(stored_folder(settings)) != before
    assert "of other data, or made otherwise: it is made again" in said[0]


def test_a_pack_by_another_decoder_is_made_again(data):
    make(wanted(data))
    said = []
    make(wanted(data, decoder="pillow"), say=said.append)
    assert "made otherwise" in said[0]


def test_a_stopped_pack_of_other_data_is_not_gone_on_with(tree, tmp_path):
    with pytest.raises(Cancelled):
        make(wanted(tree), to=tmp_path / "pack", cancel=AfterImages(20))
    next(iter(sorted(tree.iterdir()))).unlink()
    make(wanted(tree), to=tmp_path / "pack")
    make(wanted(tree), to=tmp_path / "whole")
    assert contents(tmp_path / "pack") == contents(tmp_path / "whole")


@pytest.mark.parametrize("spoil", [
    lambda file: file.write_bytes(file.read_bytes()[:-1]),
    lambda file: file.unlink(),
], ids=["shorter", "gone"])  # fmt: skip
def test_a_pack_that_is_damaged_is_made_again(data, spoil):
    settings, said = wanted(data), []
    make(settings)
    before = contents(stored_folder(settings))
    spoil(stored_folder(settings) / "00001.raw")
    make(settings, say=said.append)
    assert "is damaged: pack must be whole" in said[0]
    assert contents(stored_folder(settings)) == before


def test_a_pack_whose_manifest_is_damaged_is_made_again(data):
    settings, said = wanted(data), []
    make(settings)
    before = contents(stored_folder(settings))
    (stored_folder(settings) / "manifest.json").write_text("{")
    make(settings, say=said.append)
    assert "is damaged: manifest.json must be JSON" in said[0]
    assert contents(stored_folder(settings)) == before


def test_a_folder_that_a_person_named_is_never_removed(data, tmp_path):
    make(wanted(data), to=tmp_path / "pack")
    with pytest.raises(ValueError, match=r"^to must be a new folder, .* remove it or choose"):
        make(wanted(data, input_px=32), to=tmp_path / "pack")
    with pytest.raises(ValueError, match=r"with a pack that is of other data, or made otherwise;"):
        make(wanted(data, packing="tar"), to=tmp_path / "pack")
    (tmp_path / "pack" / "00001.raw").unlink()
    with pytest.raises(ValueError, match=r"with a pack that is damaged: "):
        make(wanted(data), to=tmp_path / "pack")


def test_an_image_that_cannot_be_decoded_is_named(data, tmp_path):
    path = sorted((data / "images").iterdir())[9]
    path.write_bytes(path.read_bytes()[:5000])
    for jobs in (1, 2):
        with pytest.raises(ValueError) as caught:
            make(wanted(data), to=tmp_path / "pack", jobs=jobs)
        assert str(caught.value).startswith(
            f"{path}: image must be a complete JPEG, got 5000 bytes"
        )
    assert not is_pack(tmp_path / "pack")


def test_an_image_that_is_missing_is_not_taken_for_a_full_disk(data, tmp_path):
    path = sorted((data / "images").iterdir())[9]
    path.unlink()
    with pytest.raises(ValueError, match=rf"^data must be images that can be read, .* {path}; "):
        make(wanted(data), to=tmp_path / "pack")


def test_a_hundred_megapixels_are_refused_by_name_and_stored_as_they_are(tree, tmp_path):
    _, jpeg = cv2.imencode(".jpg", np.zeros((10_000, 10_000), np.uint8))
    path = tree / "000000000009.jpg"
    path.write_bytes(jpeg.tobytes())
    with pytest.raises(ValueError, match=rf"^{path}: image must have 1 to \d+ pixels, got 10000 x"):
        make(wanted(tree), to=tmp_path / "pixels")
    make(wanted(tree, stored="jpeg"), to=tmp_path / "pack")
    content, _ = PACKINGS["raw"].open(tmp_path / "pack").read(8)
    assert content == jpeg.tobytes()


def test_too_little_room_is_said_with_numbers_before_anything_is_written(
    data, tmp_path, monkeypatch
):
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: free)
    with pytest.raises(Skip, match=r"must have \d+ KB free for pack, got 1.0 KB; free some space"):
        make(wanted(data), to=tmp_path / "pack")
    assert not (tmp_path / ".pack.part").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this platform has no full device")
def test_a_disk_that_fills_up_is_said_with_numbers(data, tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "SPENT_EVERY_S", 0)
    part = tmp_path / ".pack.part"
    with pytest.raises(Cancelled):
        make(wanted(data), to=tmp_path / "pack", cancel=AfterImages(0))
    (part / f".{packs.SPENT}.part").symlink_to("/dev/full")
    with pytest.raises(Skip, match=r"No space left on device .* being free and \d+ KB needed in"):
        make(wanted(data), to=tmp_path / "pack")


def test_where_nothing_can_be_written_the_way_out_is_said(data, tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Skip, match=r"can be written, got Not a dir.*; choose another folder$"):
        make(wanted(data), to=tmp_path / "file" / "pack")
    (tmp_path / "data.packs").write_text("no folder either")
    link = rf"put a link to the data where .* made beside it, with ln -s {data} FOLDER$"
    with pytest.raises(Skip, match=link):
        make(wanted(data))


def test_a_link_to_data_has_its_packs_beside_the_link(data, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "link").symlink_to(data)
    cost = make(wanted(tmp_path / "mine" / "link"))
    assert cost["folder"] == str(tmp_path / "mine" / "link.packs" / "raw-pixels-64")


def test_settings_that_read_the_data_as_it_is_need_no_pack(data):
    assert make(wanted(data, packing="folder", stored="jpeg")) is None


IMPORTED = """
import sys
from labkit.settings import MODES, Settings, complete
from labkit.source import open_loader
given = Settings(data=sys.argv[1], packing=sys.argv[2], batch_size=4)
open_loader(complete(given, MODES["quick"], cores=2, has_cuda=False, can_fork=True))
print(sys.argv[3] in sys.modules)
"""


@pytest.mark.parametrize(
    ("packing", "library"), [("tfrecord", "google.protobuf.message_factory"), ("hdf5", "h5py")]
)
def test_loader_workers_inherit_the_library_that_reads(data, packing, library):
    make(wanted(data, packing=packing, stored="jpeg"))
    shown = subprocess.run(
        [sys.executable, "-c", IMPORTED, data, packing, library],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "True\n", shown.stderr


def test_two_processes_that_want_the_same_pack_make_it_once(photos, tmp_path):
    data = tmp_path / "photos"
    shutil.copytree(photos, data)
    program = (
        "import sys; from labkit.packs import ensure_pack; from labkit.settings import *\n"
        "own = Settings(data=sys.argv[1], packing=sys.argv[2], stored='resized', input_px=64)\n"
        "how = dict(cores=2, has_cuda=False, can_fork=True)\n"
        "ensure_pack(complete(own, MODES['quick'], **how), jobs=1, say=print)\n"
    )
    for packing in ("folder", "raw"):
        both = [
            subprocess.Popen(
                [sys.executable, "-c", program, data, packing], stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        said = [process.communicate(timeout=60)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert sum("packed" in text for text in said) == 1
