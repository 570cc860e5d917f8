"""A file is whole or not there."""

from pathlib import Path

import pytest

from labkit.files import write_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path):
    path = tmp_path / "x.json"
    assert write_whole(path, "中") == path
    assert path.read_bytes() == "中".encode()
    write_whole(path, b"\xff\n")
    assert path.read_bytes() == b"\xff\n"
    assert names(tmp_path) == ["x.json"]


def test_where_writing_fails_the_older_file_is_still_there(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "x.json", "old")

    def full(self, content):
        with self.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert names(tmp_path) == ["x.json"]
    assert path.read_text() == "old"


def test_a_folder_in_the_way_is_not_lost(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "x", "new")
    assert names(tmp_path) == ["x"]
