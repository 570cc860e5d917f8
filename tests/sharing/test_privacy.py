"""What a run says is cleaned of whose machine it was, and stays one run."""

import getpass
import socket
from pathlib import Path

import pytest

from labkit.sharing.privacy import Cleaner, Private, accounts_in, of_this_machine, walk

ANN = Private(
    names=("ann", "Ann Smith", "Smith"),
    hosts=("annbox",),
    folders=("/home/ann", "/data/my pics/photos", "/mnt/annbox"),
)
CLEANER = Cleaner(ANN, data=["/data/my pics/photos"], keep=["cold"])


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("/home/ann/data/photos", "…/photos"),
        ("/data/my pics/photos", "…/photos"),
        ("/data/my pics/photos/000001.jpg is broken", "… is broken"),
        ("~/data/photos", "…/photos"),
        ("~bob/photos/", "…/photos"),
        ("got /home/ann/x.jpg (No such file); next", "got … (No such file); next"),
        ("it is in /mnt/disk.", "it is in …."),
        ("in '/mnt/my disk/a b' now", "in '…' now"),
        ("on /mnt/my disk/photos too", "on …/photos too"),
        ('File "/usr/lib/python3/json/decoder.py", line 3', 'File "…", line 3'),
        ("gcc -I/home/bob/include", "gcc -I…"),
        ("a=/mnt/x,b=/mnt/y", "a=…,b=…"),
        ("C:\\Users\\ann\\photos", "…/photos"),
        ("D:/Bilder/x", "…"),
        ("\\\\server\\share\\x", "…"),
        ("file:///home/ann/x", "…"),
        ("ssh://ann@annbox/home", "…"),
        ("annbox.lab.example.org:/export/ann", "host:…"),
        ("/dev/nvme0n1p2 and /dev/mapper/ann--vg-root", "…/nvme0n1p2 and …"),
        ("Ann's ann_photos, by Ann Smith", "user's user_photos, by user"),
        # What stands before a path need be no blank.
        ("目录/srv/album/x", "目录…"),
        ("目录/album/x", "目录…"),
        ("see/srv/album/x", "see…"),
        ("-I/srv/album/x", "-I…"),
        ("</srv/album/x>", "<…>"),
        ("..//srv/album", "…"),
        ("../data/photos", "…/photos"),
        ("..//album/x", "..…"),
        ("seeC:\\Users\\eve\\album", "seeC:…"),
        ("$HOME/album", "…"),
        ("／srv／album", "…"),
        ("%2Fsrv%2Falbum", "…"),
        ("in file%3A%252Fsrv%252Falbum now", "in file%3A… now"),
        ("https://example.org/?at=%2Fsrv%2Falbum", "…"),
        # What follows one may be part of it.
        ("/pictures/My (album) d/x", "…"),
        ("/pictures/a,album/x and more", "… and more"),
        ("/pictures/a,album", "…"),
        ("/pictures/a(album)", "…"),
        ("/pictures/my\u00a0album, full", "…, full"),
        ("on /pictures/a: 81 reads/s", "on …: 81 reads/s"),
        ("用户ann的", "用户user的"),
        ("GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427", "id-9dc1faf9"),
    ],
)
def test_what_says_whose_machine_it_was_goes(said, left):
    assert CLEANER.text(said) == left
    assert CLEANER.find(said)
    assert CLEANER.find(left) == []


@pytest.mark.parametrize(
    "text",
    [
        "81 reads/s, 106 MB/s, n/a, 1/57",
        "throttled / real",
        "annual planning",
        "</script><script>alert(1)</script>",
        "https://pytorch.org/docs/stable/data.html",
        "data/photos",
        "images/s, ms/image, and/or, decode/resize, A/A, no/yes",
        "图像/秒, µs/image, m²/s",
        "images/data, 50 % / 60 %, 100%",
        "https://example.org/home/data/x",
        "../../../etc",
        "5.0.0.93",
        "/",
    ],
)
def test_all_other_text_stays(text):
    assert CLEANER.text(text) == text
    assert CLEANER.find(text) == []


def test_names_that_tell_nobody_anything_stay():
    private = Private(names=("root", "cold", "s", "Li"), hosts=("localhost", "main"))
    cleaner = Cleaner(private, keep=["cold"])
    text = "root ran main on localhost: cold, 81 reads/s"
    assert cleaner.text(text) == text
    assert cleaner.find(text) == []
    # Two letters are a name only as they are written: "li" may be anything.
    assert cleaner.text("Li, li") == "user, li"


def test_chinese_names_need_no_blanks_around_them():
    assert Cleaner(Private(names=("王伟",))).text("王伟的照片") == "user的照片"


@pytest.mark.parametrize(
    "text", ["x/srv/album", "C:\\Users\\eve", "(/data/album)", "%2Fmnt%2Falbum"]
)
def test_roots_are_found_where_every_slash_looks_like_a_path(text):
    cleaner = Cleaner(Private())
    assert cleaner.find_known(text)
    assert cleaner.find_known("/F1 1/2 https://example.org/data/x") == []


def test_labels_that_become_equal_stay_two_in_keys_and_values_alike():
    info = {
        "baseline": "on /mnt/b",
        "variants": {"on /mnt/a": {"data": "/mnt/a"}, "on /mnt/b": {}, "on …": {}},
        "notes": ["on /mnt/b is slow"],
    }
    cleaner = Cleaner(Private())
    clean = cleaner.clean(info)
    assert clean == {
        "baseline": "on … (3)",
        "variants": {"on … (2)": {"data": "…"}, "on … (3)": {}, "on …": {}},
        "notes": ["on … is slow"],
    }
    assert cleaner.clean({"variant": "on /mnt/a"}) == {"variant": "on … (2)"}


def test_numbers_and_what_is_unknown_stay_as_they_are():
    value = {"a": [1, 2.5, None, True, {"b": "x"}]}
    assert Cleaner(Private()).clean(value) == value
    assert walk(value, str.upper) == {"A": [1, 2.5, None, True, {"B": "X"}]}


def test_accounts_are_found_where_others_ran():
    text = 'in "/home/bob/x", "C:\\\\Users\\\\eve\\\\y" and /root'
    assert accounts_in(text) == ["bob", "eve"]


def test_this_machines_names_are_gathered(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "zquill"))
    monkeypatch.setenv("LOGNAME", "zora")
    monkeypatch.setattr(socket, "gethostname", lambda: "quillbox.example.org")
    private = of_this_machine(["data/photos"], names=["bob"])
    assert {"zquill", "zora", "bob"} <= set(private.names)
    assert getpass.getuser() in private.names
    assert "quillbox" in private.hosts
    folders = {str(tmp_path / "zquill"), str(Path.cwd()), str(Path("data/photos").absolute())}
    assert folders <= set(private.folders)
