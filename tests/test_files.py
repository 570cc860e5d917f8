"""A file is whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from labkit.files import locked, write_whole


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


def test_pieces_make_a_whole_file_or_none(tmp_path):
    def stops():
        yield b"new"
        raise KeyboardInterrupt

    path = write_whole(tmp_path / "x.json", iter([b"ol", b"d"]))
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, stops())
    assert names(tmp_path) == ["x.json"]
    assert path.read_text() == "old"


def test_a_folder_in_the_way_is_not_lost(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "x", "new")
    assert names(tmp_path) == ["x"]


needs_locks = pytest.mark.skipif(os.name != "posix", reason="this platform has no flock")


@needs_locks
def test_one_at_a_time_holds_a_file_or_a_folder(tmp_path):
    for path in (tmp_path, tmp_path / "x"):
        with locked(path, make=not path.exists()) as lock:
            assert os.path.samestat(os.fstat(lock), path.stat())
            with pytest.raises(BlockingIOError), locked(path):
                pass
            with pytest.raises(ValueError, match=r"^taken$"):
                with locked(path, busy=ValueError("taken")):
                    pass
        with locked(path):
            pass


@needs_locks
def test_what_is_not_there_is_not_made_unasked(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "x"):
        pass
    assert names(tmp_path) == []


@needs_locks
def test_where_there_are_no_locks_nothing_is_held_and_work_goes_on(tmp_path, monkeypatch):
    import fcntl

    def refuse(number, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path) as lock, locked(tmp_path) as other:
        assert lock is other is None
