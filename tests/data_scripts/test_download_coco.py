"""COCO from a local server that drops, forgets and lies: what arrives is whole, or refused."""

import _thread
import hashlib
import io
import json
import re
import shutil
import socket
import stat
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from data_scripts.download_coco import ARCHIVES, WAITS_S, Archive, download_coco, main
from labkit.parts.packing.folder import open_folder

IMAGES, BOXES = "val2017.zip", "annotations_trainval2017.zip"


class Server(ThreadingHTTPServer):
    """Serves files from memory, and misbehaves as a test asks."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {}
        self.asked = []  # (file name, Range header) of every request
        self.sent_bytes = 0
        self.knows_ranges = True
        self.tells_length = True
        self.shift = 0  # how far a piece starts from where it was asked for
        self.cuts = []  # after how many bytes each answer breaks off; None: not at all
        self.statuses = []  # what the next answers are instead of a file
        self.before_answer = lambda: None

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):  # some clients hang up, rightly
            super().handle_error(request, client_address)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        server, name = self.server, self.path.rpartition("/")[2]
        asked = self.headers.get("Range")
        server.asked.append((name, asked))
        server.before_answer()
        content = server.files.get(name)
        if content is None or server.statuses:
            return self.send_error(server.statuses.pop(0) if server.statuses else 404)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        if asked and server.knows_ranges:
            start += server.shift
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", span)
        else:
            start = 0
            self.send_response(200)
        if server.tells_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None
        body = content[start:][:cut]
        server.sent_bytes += len(body)
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, coco):
    monkeypatch.setenv("no_proxy", "*")  # a person's proxy does not know this server
    with Server() as server:
        server.files = dict(coco.files)
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def coco(photos):
    """The two archives of a COCO of 24 images, and what was packed into them."""
    jpegs = {file.name: file.read_bytes() for file in sorted((photos / "images").iterdir())}
    boxes = (photos / "annotations.json").read_bytes()
    files = {
        IMAGES: zip_of({"val2017/": b"", **{f"val2017/{n}": j for n, j in jpegs.items()}}),
        BOXES: zip_of(
            {
                "annotations/instances_train2017.json": b"not wanted",
                "annotations/instances_val2017.json": boxes,
            }
        ),
    }
    return SimpleNamespace(jpegs=jpegs, boxes=boxes, files=files, archives=describe(files))


def zip_of(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members.items():
            zipped.writestr(name, content)
    return file.getvalue()


def describe(files):
    """The real archives, but for what differs in small ones."""
    return tuple(
        Archive(
            path=archive.path,
            size_bytes=len(files[archive.name]),
            sha256=hashlib.sha256(files[archive.name]).hexdigest(),
            wanted=archive.wanted,
            unpacked_bytes=3 * len(files[archive.name]),
        )
        for archive in ARCHIVES
    )


@pytest.fixture
def out(tmp_path):
    return tmp_path / "meine Daten – 写真" / "coco"


@pytest.fixture
def get(server, coco, out):
    """Download as a person would, but for the waiting, which is noted."""

    def call(**more):
        options = {"url_base": server.url, "archives": coco.archives, "sleep": waited.append}
        return download_coco(out, **{**options, "progress": False, **more})

    waited = call.waited = []
    return call


@pytest.fixture
def small_coco(monkeypatch, coco):
    """The command knows only the small archives."""
    monkeypatch.setitem(download_coco.__kwdefaults__, "archives", coco.archives)


def contents(folder):
    """Path below the folder -> bytes; empty where nothing was made."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def check_whole(out, coco):
    """All files are there with their bytes, and nothing else but the record."""
    images = {f"val2017/{name}": jpeg for name, jpeg in coco.jpegs.items()}
    found = contents(out)
    assert found.pop(".downloaded.json")
    assert found == {**images, "annotations/instances_val2017.json": coco.boxes}


def test_a_download_is_a_data_set_that_labkit_opens(get, coco, out, photos):
    assert get() == out / "val2017"
    check_whole(out, coco)
    made = open_folder(photos)
    for folder in (out, out / "val2017"):
        reader = open_folder(folder)
        assert (len(reader), reader.boxes) == (24, "coco")
        jpeg, annotation = reader.read(5)
        expected_jpeg, expected = made.read(5)
        assert jpeg == expected_jpeg
        assert (annotation.boxes_xyxy == expected.boxes_xyxy).all()
    assert get.waited == []


def test_a_dropped_connection_goes_on_where_it_dropped(get, server, coco, out):
    size_bytes = len(coco.files[IMAGES])
    server.cuts = [size_bytes // 2]
    get()
    check_whole(out, coco)
    assert server.asked == [
        (IMAGES, None), (IMAGES, f"bytes={size_bytes // 2}-"), (BOXES, None),
    ]  # fmt: skip
    assert server.sent_bytes == sum(map(len, coco.files.values()))
    assert get.waited == [1]


def test_without_ranges_a_dropped_connection_starts_over(get, server, coco, out):
    server.knows_ranges = False
    server.cuts = [len(coco.files[IMAGES]) // 2]
    get()
    check_whole(out, coco)
    assert [name for name, _ in server.asked] == [IMAGES, IMAGES, BOXES]
    assert server.sent_bytes == sum(map(len, coco.files.values())) + len(coco.files[IMAGES]) // 2


def test_a_stop_keeps_the_part_and_the_next_call_goes_on(get, server, coco, out):
    def stop(_):
        raise KeyboardInterrupt

    server.cuts = [100_000]
    with pytest.raises(KeyboardInterrupt):
        get(sleep=stop)
    assert contents(out) == {f"{IMAGES}.part": coco.files[IMAGES][:100_000]}
    get()
    check_whole(out, coco)
    assert server.asked[1] == (IMAGES, "bytes=100000-")


def test_without_new_bytes_five_tries_are_enough(get, server, out):
    server.cuts = [100_000, *[0] * 9]
    message = (
        f"127.0.0.1:{server.server_port} must send val2017.zip whole, got a closed connection "
        "5 times at 100 KB of"
    )
    with pytest.raises(ConnectionError, match=message):
        get()
    assert get.waited == list(WAITS_S)
    assert (out / f"{IMAGES}.part").stat().st_size == 100_000


def test_new_bytes_start_the_tries_again(get, server, coco, out):
    server.cuts = [10_000] * 20
    get()
    check_whole(out, coco)
    assert set(get.waited) == {WAITS_S[0]}


def test_a_server_without_ranges_that_always_drops_is_given_up(get, server):
    server.knows_ranges = False
    server.cuts = [100_000, 50_000] * 10
    with pytest.raises(ConnectionError, match="5 times at 100 KB of"):
        get()
    assert len(server.asked) == 5


def test_a_busy_server_is_asked_again(get, server, coco, out):
    server.statuses = [503, 429]
    get()
    check_whole(out, coco)
    assert get.waited == [1, 2]


def test_a_length_that_is_not_told_is_no_hindrance(get, server, coco, out):
    server.tells_length = False
    server.cuts = [50_000]
    get()
    check_whole(out, coco)


def test_another_piece_than_the_one_asked_for_is_not_appended(get, server, coco, out):
    server.shift = 7
    server.cuts = [50_000]
    get()
    check_whole(out, coco)
    assert [asked for _, asked in server.asked] == [None, "bytes=50000-", None, None]


def test_a_server_that_falls_silent_is_not_waited_for_for_ever(monkeypatch, get, server):
    monkeypatch.setattr("data_scripts.download_coco.TIMEOUT_S", 0.05)
    speak = threading.Event()
    server.before_answer = speak.wait
    with pytest.raises(ConnectionError, match=r"val2017\.zip whole, got timed out 5 times"):
        get()
    speak.set()


@pytest.mark.parametrize("too_long_bytes", [0, 1000])
def test_a_part_that_is_as_long_or_longer_than_the_file(get, server, coco, out, too_long_bytes):
    out.mkdir(parents=True)
    part = coco.files[IMAGES] + b"?" * too_long_bytes
    (out / f"{IMAGES}.part").write_bytes(part)
    get()
    check_whole(out, coco)
    # Whole: nothing to ask for.  Longer: no part of this file, so all of it.
    assert server.asked == ([(IMAGES, None)] if too_long_bytes else []) + [(BOXES, None)]


def test_a_range_that_the_server_refuses_starts_over(get, server, coco, out):
    out.mkdir(parents=True)
    (out / f"{IMAGES}.part").write_bytes(coco.files[IMAGES][:5000])
    server.statuses = [416]
    get()
    check_whole(out, coco)
    assert server.asked[:2] == [(IMAGES, "bytes=5000-"), (IMAGES, None)]


def test_a_wrong_checksum_unpacks_nothing_and_removes_the_file(get, server, coco, out):
    good = coco.files[IMAGES]
    server.files[IMAGES] = bad = good[:-1000] + bytes(1000)
    message = (
        f"val2017.zip must have SHA-256 {hashlib.sha256(good).hexdigest()}, "
        f"got {hashlib.sha256(bad).hexdigest()}; the broken file was removed and nothing "
        "unpacked: run the same command to download it again"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        get()
    assert contents(out) == {}
    server.files[IMAGES] = good
    get()
    check_whole(out, coco)


def test_an_answer_of_another_size_is_refused_before_it_is_read(get, server, coco, out):
    server.files[IMAGES] = b"<html>Please log in to this network</html>"
    message = (
        rf"val2017.zip must have {len(coco.files[IMAGES])} bytes, got 42 from {server.url}/zips/"
        "val2017.zip; something else answers in its place"
    )
    with pytest.raises(ValueError, match=message):
        get()
    assert contents(out) == {}


def test_a_server_without_the_file_is_named(get, server, out):
    del server.files[IMAGES]
    message = (
        f"url_base must be a server with zips/val2017.zip, got HTTP 404 (Not Found) from "
        f"{server.url}/zips/val2017.zip; give another --url-base, or download"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        get()
    assert get.waited == []


LINK = zipfile.ZipInfo("val2017/link.jpg")
LINK.create_system = 3  # Unix, whose modes know links
LINK.external_attr = (stat.S_IFLNK | 0o777) << 16


@pytest.mark.parametrize(
    ("member", "kind"),
    [
        ("../evil.jpg", "a path that leaves them"),
        ("val2017/../../evil.jpg", "a path that leaves them"),
        ("/tmp/evil.jpg", "a path that leaves them"),
        ("C:/evil.jpg", "a path that leaves them"),
        ("val2017\\..\\..\\evil.jpg", "a path that leaves them"),
        (LINK, "a link or device"),
    ],
    ids=["up", "in and up", "absolute", "drive", "backslashes", "link"],
)
def test_an_archive_that_could_write_elsewhere_is_refused_whole(
    get, server, tmp_path, member, kind
):
    name = member if isinstance(member, str) else member.filename
    file = io.BytesIO(server.files[BOXES])  # the second archive: the first is not unpacked either
    with zipfile.ZipFile(file, "a") as zipped:
        zipped.writestr(member, "../../evil.jpg")  # for the link: where it points
    server.files[BOXES] = file.getvalue()
    message = (
        f"{BOXES} must hold only plain files in its own folders, got {kind}, {name!r}; "
        "nothing was unpacked: remove "
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        get(archives=describe(server.files))
    left = {file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {f"{IMAGES}.part", f"{BOXES}.part"}


def test_an_archive_that_unpacks_to_far_more_than_expected_is_refused(get, server, out):
    server.files[IMAGES] = zip_of({"val2017/bomb.jpg": bytes(5_000_000)})
    message = (
        r"val2017.zip must hold val2017/\*.jpg of up to \d+ KB, got 5.0 MB; nothing was unpacked"
    )
    with pytest.raises(ValueError, match=message):
        get(archives=describe(server.files))
    assert not (out / "val2017").exists()


def test_an_archive_without_the_wanted_files_is_refused(get, server, out):
    server.files[IMAGES] = zip_of({"elsewhere/val2017/1.jpg": b"x", "val2017/more/2.jpg": b"x"})
    with pytest.raises(ValueError, match=r"must hold val2017/\*.jpg of up to .*, got 0 B; nothing"):
        get(archives=describe(server.files))
    assert not (out / "val2017").exists()


def test_what_is_no_zip_is_refused(get, server):
    server.files[IMAGES] = b"no zip" * 100
    with pytest.raises(ValueError, match=r"val2017.zip must be a zip file, got .*; remove it"):
        get(archives=describe(server.files))


@pytest.fixture
def closed_port():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


def test_a_server_that_cannot_be_reached_is_named_with_the_way_out(
    server, closed_port, small_coco, out, capsys
):
    url = f"http://127.0.0.1:{closed_port}"
    assert main([str(out), "--url-base", url]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.fullmatch(
        rf"error: cannot reach 127\.0\.0\.1:{closed_port}: .*refused.*; connect to the internet, "
        rf"or download {url}/zips/val2017\.zip and {url}/annotations/annotations_trainval2017\.zip "
        rf"by hand into {re.escape(str(out))}: the same command then goes on from there",
        said,
    )


def test_without_name_resolution_the_real_host_is_named(monkeypatch, get, out):
    def offline(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    message = (
        "cannot reach images.cocodataset.org: Name or service not known; connect to the "
        "internet, or download http://images.cocodataset.org/zips/val2017.zip and http"
    )
    with pytest.raises(ConnectionError, match=re.escape(message)):
        get(url_base="http://images.cocodataset.org")
    assert get.waited == []


def test_archives_put_there_by_hand_are_used_and_kept(get, server, coco, out, closed_port):
    out.mkdir(parents=True)
    for name, content in coco.files.items():
        (out / name).write_bytes(content)
    get(url_base=f"http://127.0.0.1:{closed_port}")
    assert server.asked == []
    for name, content in coco.files.items():
        assert (out / name).read_bytes() == content
        (out / name).unlink()
    check_whole(out, coco)


def test_an_archive_that_a_browser_left_unfinished_is_gone_on_with(get, server, coco, out):
    out.mkdir(parents=True)
    (out / IMAGES).write_bytes(coco.files[IMAGES][:70_000])
    get()
    check_whole(out, coco)
    assert server.asked[0] == (IMAGES, "bytes=70000-")


def test_downloaded_archives_are_kept_where_asked_for(get, coco, out):
    get(keep_archives=True)
    kept = {name: content for name, content in contents(out).items() if name in coco.files}
    assert kept == coco.files


def test_a_second_call_downloads_and_writes_nothing(get, server, out):
    get()
    asked = list(server.asked)
    before = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    get()
    assert server.asked == asked
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == before


def test_only_the_archive_of_a_lost_file_is_fetched_again(get, server, coco, out):
    get()
    (out / "annotations" / "instances_val2017.json").unlink()
    server.asked.clear()
    get()
    check_whole(out, coco)
    assert server.asked == [(BOXES, None)]


def test_stopped_unpacking_goes_on_and_until_then_nothing_opens(monkeypatch, get, coco, out):
    read, done = zipfile.ZipFile.read, []

    def stop_at_the_tenth(zipped, member):
        if len(done) == 10:
            raise KeyboardInterrupt
        done.append(member.filename)
        return read(zipped, member)

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "read", stop_at_the_tenth)
        with pytest.raises(KeyboardInterrupt):
            get()
    for folder in (out, out / "val2017"):
        with pytest.raises(ValueError, match="data must be a finished folder, got"):
            open_folder(folder)
    files = sorted((out / "val2017").glob("*.jpg"))
    assert len(files) == 10
    kept = {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files[1:]}
    files[0].write_bytes(bytes(files[0].stat().st_size))  # as long, but not its content
    get()
    check_whole(out, coco)
    assert {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in kept} == kept


def test_a_stop_just_before_the_end_leaves_nothing_marked(get, coco, out):
    get()
    for folder in (out, out / "val2017"):  # all unpacked and recorded, the marks still there
        (folder / ".unfinished.json").write_bytes(b'{"kind": "COCO val2017"}')
    get()
    check_whole(out, coco)


def test_too_little_room_is_said_before_anything_is_asked_for(monkeypatch, get, server, out):
    usage = shutil.disk_usage("/")._replace(free=1_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    message = (
        "out must have about 1.9 GB free for 1.1 GB to download and 840 MB unpacked, "
        f"got 1.0 GB in {out}; free space or choose another disk"
    )
    with pytest.raises(OSError, match=re.escape(message)):
        get(archives=ARCHIVES)
    assert server.asked == []
    assert not out.parent.exists()


def test_room_that_went_while_downloading_is_asked_for_again(monkeypatch, get, server, out):
    def usage(_):
        return SimpleNamespace(free=10**9 if not server.asked else 1000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(OSError, match=r"out must have about .* free for what val2017.zip holds"):
        get()
    assert not (out / "val2017").exists()


def test_a_folder_with_another_data_set_is_refused(get, out, photos):
    with pytest.raises(ValueError, match=r"out must be a folder for COCO, got .* another data set"):
        download_coco(photos)
    out.mkdir(parents=True)
    (out / ".unfinished.json").write_text(json.dumps({"kind": "synthetic photographs", "seed": 0}))
    with pytest.raises(ValueError, match=r"out must be a folder for COCO, got .* another data set"):
        get()


def test_an_out_that_cannot_be_a_folder_is_refused(tmp_path, get, server, coco):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"out must be a folder that can be written to, got"):
        download_coco(tmp_path / "file" / "coco", url_base=server.url, archives=coco.archives)


@pytest.mark.parametrize("url", ["file:///etc", "images.cocodataset.org", "http://", "http://a b"])
def test_what_is_no_web_address_is_refused(get, url):
    message = f"url_base must be http:// or https:// and a server, got {url!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        get(url_base=url)


def test_the_shell_command_says_what_there_is_and_what_comes_next(server, small_coco, out, capsys):
    assert main([str(out), "--url-base", server.url + "/"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"24 images in {out / 'val2017'}, 24 of them with boxes",
        f"next: labkit run --data '{out / 'val2017'}'",
    ]


def test_ctrl_c_says_that_the_same_command_goes_on(server, small_coco, coco, out, capsys):
    out.mkdir(parents=True)
    (out / f"{IMAGES}.part").write_bytes(coco.files[IMAGES][:5000])
    server.before_answer = _thread.interrupt_main
    server.cuts = [0]
    assert main([str(out), "--url-base", server.url]) == 130
    assert "stopped; the same command goes on from here" in capsys.readouterr().err
    assert (out / f"{IMAGES}.part").stat().st_size >= 5000
    server.before_answer = lambda: None
    assert main([str(out), "--url-base", server.url]) == 0
    check_whole(out, coco)


def test_the_real_archives_are_described_whole():
    assert [archive.name for archive in ARCHIVES] == [IMAGES, BOXES]
    assert all(re.fullmatch("[0-9a-f]{64}", archive.sha256) for archive in ARCHIVES)
