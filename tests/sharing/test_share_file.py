"""A share file is believed only after all of it was checked, and nothing is written meanwhile."""

import json
import stat
import struct
import zipfile

import pytest

from labkit.sharing import share_file
from labkit.sharing.share_file import MANIFEST, SCHEMA, read, to_bytes

MEMBERS = {"run.json": b"{}", "trials.jsonl": b"", "table.csv": b"a,b\n"}
ABOUT = {"labkit": "1.2.3", "experiment": "prefetching", "run": "20250102T030405Z-beef"}
AGAIN = "ask for it again$"


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.labkit.zip"
    path.write_bytes(to_bytes(MEMBERS, ABOUT))
    return path


def rewritten(path, change):
    """The same zip with other entries: change takes and returns a list of (ZipInfo, bytes)."""
    with zipfile.ZipFile(path) as file:
        entries = [(entry, file.read(entry)) for entry in file.infolist()]
    with zipfile.ZipFile(path, "w") as file:
        for entry, data in change(entries):
            file.writestr(entry, data, compress_type=zipfile.ZIP_DEFLATED)
    return path


def with_manifest(path, **changes):
    def change(entries):
        return [
            (entry, json.dumps({**json.loads(data), **changes}))
            if entry.filename == MANIFEST
            else (entry, data)
            for entry, data in entries
        ]

    return rewritten(path, change)


def test_what_was_packed_comes_back(good):
    manifest, contents = read(good)
    assert contents == MEMBERS
    assert {name: manifest[name] for name in ABOUT} == ABOUT


def test_equal_members_give_equal_bytes_and_no_date():
    assert to_bytes(MEMBERS, ABOUT) == to_bytes(dict(MEMBERS), dict(ABOUT))


def test_the_zip_holds_no_date(good):
    with zipfile.ZipFile(good) as file:
        assert {entry.date_time for entry in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_file_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"not there; make one with: labkit pack RUN$"):
        read(tmp_path / "none.zip")


def test_what_is_no_zip_is_refused(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(b"not a zip")
    with pytest.raises(ValueError, match=f"^share file must be a zip that can be read.*{AGAIN}"):
        read(path)


def test_a_torn_zip_is_refused(good):
    data = good.read_bytes()
    middle = data.index(b"trials.jsonl") - 40
    good.write_bytes(data[:middle] + b"\0\0\0\0\0\0\0\0" + data[middle + 8 :])
    with pytest.raises(ValueError, match=r"^share file must be "):
        read(good)


def test_a_newer_schema_asks_for_an_update(good):
    message = f"schema must be at most {SCHEMA}, got {SCHEMA + 1}; update labkit to open this file"
    with pytest.raises(ValueError, match=f"^{message}$"):
        read(with_manifest(good, schema=SCHEMA + 1))


def test_a_newer_schema_is_said_before_what_else_is_new(good):
    with_manifest(good, schema=SCHEMA + 1)
    rewritten(good, lambda entries: [*entries, (zipfile.ZipInfo("new.json"), b"x")])
    with pytest.raises(ValueError, match="update labkit"):
        read(good)


@pytest.mark.parametrize("changes", [{"format": "other"}, {"members": {}}, {"members": [1]}])
def test_another_manifest_is_refused(good, changes):
    with pytest.raises(ValueError, match=AGAIN):
        read(with_manifest(good, **changes))


@pytest.mark.parametrize(
    "name",
    ["../run.json", "/etc/passwd", "a/run.json", "C:\\run.json", "run.json ", "x.py", "worker.log"],
)
def test_only_known_plain_names_are_taken(good, name):
    with pytest.raises(ValueError, match=r"^share file must be one that holds each of .*"):
        read(rewritten(good, lambda entries: [*entries, (zipfile.ZipInfo(name), b"x")]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_may_stand_in_it_only_once(good):
    with pytest.raises(ValueError, match=r"at most once, got 'run.json'"):
        read(rewritten(good, lambda entries: [*entries, (zipfile.ZipInfo("run.json"), b"[]")]))


def test_a_missing_member_is_named(good):
    with pytest.raises(ValueError, match=r"one without trials\.jsonl"):
        read(
            rewritten(good, lambda entries: [e for e in entries if e[0].filename != "trials.jsonl"])
        )


def test_links_are_refused(good):
    link = zipfile.ZipInfo("chart.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(ValueError, match=r"plain files, got 'chart\.png', which is none"):
        read(rewritten(good, lambda entries: [*entries, (link, b"/etc/passwd")]))


def test_only_what_pack_compresses_with_is_unpacked(good):
    with zipfile.ZipFile(good, "w", compression=zipfile.ZIP_LZMA) as file:
        file.writestr(MANIFEST, b"{}")
    with pytest.raises(ValueError, match=r"deflated files, got 'share\.json', packed otherwise"):
        read(good)


def test_a_changed_member_is_named(good):
    def change(entries):
        return [(e, b"b,a\n" if e.filename == "table.csv" else data) for e, data in entries]

    with pytest.raises(ValueError, match=r"as it was packed, got table\.csv changed since"):
        read(rewritten(good, change))


def test_a_gigabyte_in_a_megabyte_is_refused_by_the_sizes_it_declares(good):
    zeros = bytes(share_file.MAX_BYTES + 1)
    rewritten(good, lambda entries: [*entries, (zipfile.ZipInfo("chart.png"), zeros)])
    assert good.stat().st_size < share_file.MAX_FILE_BYTES
    with pytest.raises(ValueError, match=r"^share file must be of at most 200 MB, got 200 MB or"):
        read(good)


def test_sizes_that_are_a_lie_are_found_while_reading(good):
    rewritten(good, lambda entries: [*entries, (zipfile.ZipInfo("chart.png"), bytes(1_000_000))])
    size, lie = (struct.pack("<I", n) for n in (1_000_000, 10))
    good.write_bytes(good.read_bytes().replace(size, lie))
    with pytest.raises(
        ValueError, match=r"^share file must be a zip that can be read, got Bad CRC"
    ):
        read(good)


def test_no_more_is_read_than_is_allowed(good, monkeypatch):
    # Even if the sizes that were added up are not those that come.
    with zipfile.ZipFile(good) as file:
        entries = file.infolist()
        monkeypatch.setattr(share_file, "MAX_BYTES", 3)  # less than the manifest alone
        with pytest.raises(ValueError, match=r"^share file must be of at most 3 B"):
            share_file._read_members(file, entries)


def test_a_large_file_is_not_even_opened(good, monkeypatch):
    monkeypatch.setattr(share_file, "MAX_FILE_BYTES", 100)
    with pytest.raises(ValueError, match=r"^share file must be of at most 100 B"):
        read(good)


@pytest.mark.parametrize("text", [b"[]", b"\xff", b"{", b"[" * 100_000])
def test_a_manifest_that_is_no_object_is_refused(good, text):
    def change(entries):
        return [(e, text if e.filename == MANIFEST else data) for e, data in entries]

    with pytest.raises(ValueError, match=r"whose texts are JSON.*another share\.json"):
        read(rewritten(good, change))
