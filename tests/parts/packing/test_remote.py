"""Data at a URL is copied once, file by file, and goes on where it was stopped."""

from pathlib import Path

import pytest
from places import assert_same_data
from web import web

from labkit.contracts import Cancelled
from labkit.parts.packing.remote import data_folder, download
from labkit.resolve import open_data, open_reader
from labkit.settings import Settings
from tests.processes import AfterLooks

IMAGE = "images/000000000003.jpg"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "labkit"
    open_reader.cache_clear()


@pytest.mark.parametrize("data", ["data/photos", "C:/photos", "file:///srv/photos", "/srv/photos"])
def test_a_folder_is_not_copied(data):
    assert download(data) == Path(data.removeprefix("file://"))


def test_a_file_url_is_a_folder_of_this_machine(tmp_path):
    assert data_folder(f"file://{tmp_path}/a%20b") == tmp_path / "a b"


@pytest.mark.parametrize(
    ("url", "name"),
    [("https://host/photos/", "photos"), ("https://host/..%2F..%2Fphotos", "photos"),
     ("https://host/..%5Cphotos", "photos"), ("https://host:80", "host-80")],
)  # fmt: skip
def test_a_copy_lies_in_the_cache_by_the_last_name_of_its_url(cache, url, name):
    assert data_folder(url).parent == cache
    assert data_folder(url).name.rpartition("-")[0] == name


def test_data_at_a_url_is_copied_once_and_then_like_any_folder(photos, cache, capfd):
    with web(photos) as server:
        reader = open_data(Settings(data=server.url))
        assert reader.root == data_folder(server.url)
        assert reader.root.parent == cache
        assert_same_data(photos, reader.root)
        assert "copying to " in capfd.readouterr().err
        asked = dict(server.asked)
        assert asked[IMAGE] == 1
        open_reader.cache_clear()
        open_data(Settings(data=server.url))
        assert server.asked == asked
    assert not list(cache.rglob("*.part"))


@pytest.mark.parametrize("fault", ["500", "half"])
def test_a_copy_that_stops_says_why_and_goes_on_where_it_stopped(photos, cache, fault):
    with web(photos, {IMAGE: [fault] * 2 + ["ok"]}) as server:
        with pytest.raises(
            OSError, match=f"^data must be readable at {server.url}, got .*; run ag"
        ):
            download(server.url, progress=False)
        there = set(cache.rglob("*.jpg"))
        assert data_folder(server.url) / IMAGE not in there
        for _ in range(2):  # aiohttp itself may have asked once more
            try:
                download(server.url, progress=False)
                break
            except OSError:
                continue
        assert_same_data(photos, data_folder(server.url))
        assert all(
            server.asked[str(path.relative_to(data_folder(server.url)))] == 1 for path in there
        )


@pytest.mark.parametrize("looks", [3, 30], ids=["between files", "inside a file"])
def test_a_copy_that_is_cancelled_ends_at_once_and_goes_on_later(photos, cache, looks):
    with web(photos) as server:
        with pytest.raises(Cancelled):
            download(server.url, progress=False, cancel=AfterLooks(looks))
        assert len(list(cache.rglob("*.jpg"))) < 24
        assert not list(cache.rglob("*.part"))
        assert_same_data(photos, download(server.url, progress=False))


def test_without_a_manifest_the_file_system_lists_the_files(photos, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for i, path in enumerate(sorted((photos / "images").iterdir())[:3]):
        memory.pipe_file(f"/labkit-test/straße {i}/{path.name}", path.read_bytes())
    try:
        reader = open_data(Settings(data="memory://labkit-test"))
        assert [reader.name(i) for i in range(3)] == [
            f"straße {i}/{path.name}"
            for i, path in enumerate(sorted((photos / "images").iterdir())[:3])
        ]
        with pytest.raises(ValueError, match=r"must be a folder with files or a manifest\.json"):
            download("memory://labkit-empty")
    finally:
        memory.rm("/labkit-test", recursive=True)


def test_a_manifest_cannot_write_outside_the_copy(tmp_path, cache):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text('{"files": {"../../evil.jpg": {}}}')
    with web(tmp_path / "bad") as server:
        with pytest.raises(ValueError, match=r"data must be files below .*, got '../../evil.jpg'"):
            download(server.url)
