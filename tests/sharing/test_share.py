"""A run goes to a colleague without whose it was, and is there as another machine's."""

import json
import re
import shutil
import socket
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import matplotlib.font_manager  # noqa: F401 - looks for fonts once, while HOME is the real one
import pytest
from fake_operations import fake_run
from fakes import fake_info, fake_trials

import labkit as lab
from labkit import notebook
from labkit.cli import main
from labkit.panel_views import history_line
from labkit.results import (
    append_rows,
    append_trial,
    create_run,
    find_run,
    hold,
    list_runs,
    list_shared,
    load_run,
    newest_runs,
    write_info,
)
from labkit.sharing import share
from labkit.sharing.privacy import Cleaner
from labkit.sharing.share import open_shared, pack
from labkit.sharing.share_file import to_bytes

HOST = "quillbox"
SECRETS = ("zquill", HOST, "example.org", "annabel", "disk of")
ELSEWHERE = {"machine_id": "0123456789ab", "cores": 4, "cpu_model": "Z", "gpu": {"works": False}}


@pytest.fixture(scope="module")
def at_home(tmp_path_factory):
    """The folder of an account zquill on quillbox, for as long as this module is tested."""
    home = tmp_path_factory.mktemp("home") / "zquill"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("USER", "LOGNAME", "USERNAME"):
            patch.setenv(name, "zquill")
        patch.setenv("HOME", str(home))
        patch.setenv("USERPROFILE", str(home))
        patch.setattr(socket, "gethostname", lambda: f"{HOST}.example.org")
        yield home


@pytest.fixture(scope="module")
def planted(at_home, photos):
    """A finished run whose data, notes and reasons say whose it was, and one failed row of it."""
    data = at_home / "disk of zquill" / "photos"
    shutil.copytree(photos, data)
    base = lab.Settings(
        data=str(data), device="cpu", step="nothing", preprocessor="vectorized",
        cache="as found", input_px=64, batch_size=4, images=8, num_workers=0, epochs=1,
    )  # fmt: skip
    slow = f"pillow from {data}"
    experiment = lab.Experiment(
        "test",
        question="Is it zquill's disk?",
        variants={"opencv": replace(base, decoder="opencv"), slow: replace(base, decoder="pillow")},
        baseline="opencv",
    )
    run = lab.run(experiment, blocks=1, results=at_home / "results", progress=False)
    info = {
        **run.info,
        "notes": [f"copied to /mnt/{HOST}/photos", "zquill@quillbox.example.org: ~/photos is slow"],
        "reason": "ran in /home/annabel/lab before",
    }
    write_info(run.folder, info)
    failed = next(trial for trial in run.trials if trial.variant == slow)
    traceback = f'File "{at_home}/lab/mine.py", line 3: no {data}/1.jpg, says annabel on {HOST}'
    append_trial(run.folder, replace(failed, block=1, status="failed", reason=traceback, epochs=()))
    (run.folder / "worker.log").write_text("zquill was here")
    return load_run(run.folder)


@pytest.fixture(scope="module")
def packed(planted, tmp_path_factory):
    return pack(planted, tmp_path_factory.mktemp("sent"))


@pytest.fixture(scope="module")
def opened(packed, tmp_path_factory):
    return open_shared(packed, tmp_path_factory.mktemp("colleague"))


@pytest.fixture(scope="module")
def uncleaned(planted):
    """What would be in the file without cleaning."""
    files = [*notebook.save(planted), planted.folder / "run.json", planted.folder / "trials.jsonl"]
    return {path.name: path.read_bytes() for path in files}


def contents(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def everything(data):
    """All that a curious person gets out of a file: its bytes, and its streams decompressed."""
    parts = [data]
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL):
        try:
            parts.append(zlib.decompress(stream))
        except zlib.error:
            continue
    for part in list(parts):
        # Drawn letter by letter: [ (\0A) 0.3 (\0n) ] TJ
        strings = [b"".join(re.findall(rb"\((.*?)\)", text)) for text in part.split(b"TJ")]
        parts += [b"\n".join(strings)]
    return [part.replace(b"\0", b"") for part in parts]


def leaks(files, secrets):
    """(file, secret) wherever a secret stands in it as a word of its own."""
    return {
        (name, secret)
        for name, data in files.items()
        for part in everything(data)
        for secret in secrets
        if re.search(rb"(?<![A-Za-z0-9])" + re.escape(secret.encode()) + rb"(?![A-Za-z0-9])", part)
    }


# --- pack ---------------------------------------------------------------------------------------


def test_nothing_in_the_file_says_whose_machine_it_was(planted, packed, at_home):
    files = contents(packed)
    assert set(files) == {
        "share.json", "run.json", "trials.jsonl", "table.csv", "table.md",
        "chart.png", "chart.svg", "chart.pdf",
    }  # fmt: skip
    secrets = (*SECRETS, str(at_home), planted.info["data"]["folder"], "/mnt", "/home", "~/photos")
    secrets += tuple(str(parent) for parent in list(at_home.parents)[:-1])
    assert leaks(files, secrets) == set()
    assert HOST not in packed.name


def test_the_search_would_have_found_it(uncleaned):
    found = leaks(uncleaned, SECRETS)
    assert {("run.json", secret) for secret in SECRETS} <= found
    assert {("trials.jsonl", HOST), ("trials.jsonl", "annabel")} <= found
    assert {(f"chart.{kind}", "zquill") for kind in ("png", "svg", "pdf")} <= found
    assert ("table.csv", "zquill") in found


def test_no_text_of_rows_and_record_is_a_path(packed):
    files = contents(packed)
    texts = [files["run.json"], *files["trials.jsonl"].splitlines()]
    for text in texts:
        for words in re.findall(r'"((?:\\.|[^"\\])*)"', text.decode()):
            assert not re.match(r"[/~\\]", words), words


def test_what_is_left_says_what_it_said(packed):
    info = json.loads(contents(packed)["run.json"])
    assert info["data"]["folder"] == "…/photos"
    assert info["question"] == "Is it user's disk?"
    assert info["notes"] == ["copied to …/photos", "user@host: …/photos is slow"]
    assert info["reason"] == "ran in … before"
    assert list(info["variants"]) == ["opencv", "pillow from …/photos"]
    last = json.loads(contents(packed)["trials.jsonl"].splitlines()[-1])
    assert last["variant"] == "pillow from …/photos"
    assert last["reason"] == 'File "…", line 3: no …, says user on host'


def test_packed_again_it_is_the_same_file(planted, packed, tmp_path):
    again = pack(planted, tmp_path / "again.zip")
    assert again.read_bytes() == packed.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.zip"]


def test_what_cleaning_missed_is_refused_not_sent(planted, monkeypatch, tmp_path):
    monkeypatch.setattr(Cleaner, "text", lambda self, text: text)
    message = (
        r"^share file must hold nothing private, got '.*zquill.*' in run\.json; if that is a "
        r"common word and no name, leave it in with --keep .*"
    )
    with pytest.raises(ValueError, match=message):
        pack(planted, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["chart.png", "chart.svg", "chart.pdf", "table.csv"])
def test_pictures_and_tables_are_searched_too(planted, uncleaned, name):
    with pytest.raises(ValueError, match=f"nothing private, got '.*' in {name}"):
        share._search(share._cleaner(planted, ()), {name: uncleaned[name]})


def test_a_common_word_may_stay(planted):
    cleaner = share._cleaner(planted, ["zquill"])
    assert cleaner.text("the disk of zquill") == "the disk of zquill"


def test_a_run_under_way_is_not_packed(planted, tmp_path):
    folder = tmp_path / "test" / planted.folder.name
    shutil.copytree(planted.folder, folder)
    write_info(folder, {**planted.info, "status": "running"})
    message = f"run must have ended before it is packed, got one under way in {folder}; wait"
    with hold(folder), pytest.raises(RuntimeError, match=f"^{re.escape(message)}"):
        pack(load_run(folder))


def test_a_file_that_cannot_be_written_says_so(planted, monkeypatch, tmp_path):
    monkeypatch.setattr(share, "_lay_out", lambda folder, info, rows: folder.mkdir(parents=True))
    target = tmp_path / "none" / "x.zip"
    message = re.escape(f"file must be in a folder that can be written, got {target} (")
    with pytest.raises(OSError, match=f"^{message}.*; choose another with --out$"):
        pack(planted, target)


# --- open ---------------------------------------------------------------------------------------


def test_an_opened_run_says_the_same_of_another_machine(planted, opened):
    rows = [lab.summarize(run).rows for run in (planted, opened)]
    for ours, theirs in zip(*rows, strict=True):
        assert theirs.normalized_time == ours.normalized_time
        assert theirs.status == ours.status
    assert [row.variant for row in rows[1]] == ["opencv", "pillow from …/photos"]
    assert opened.info["shared"]["from"] == lab.machine.describe(planted.info["provenance"])
    assert opened.folder.parts[-3:] == ("shared", "test", planted.folder.name)
    names = {path.name for path in opened.folder.iterdir()}
    assert names == {
        "run.json", "trials.jsonl", "table.csv", "table.md", "chart.png", "chart.svg", "chart.pdf",
    }  # fmt: skip
    # Nothing half-made stays.
    shared = opened.folder.parents[1]
    assert [path.name for path in shared.iterdir()] == ["test"]


def test_opened_again_it_is_the_run_that_is_there(packed, opened):
    results = opened.folder.parents[2]
    assert open_shared(packed, results) == opened
    assert list_shared(results) == [opened.folder]


def test_a_shared_run_is_never_taken_for_this_machines(opened, tmp_path):
    results = opened.folder.parents[2]
    assert list_runs(results) == []
    with pytest.raises(ValueError, match="results must hold at least one run, got none"):
        notebook.write_page(results)
    # Not even where somebody put it among the others.
    shutil.copytree(opened.folder, tmp_path / "test" / opened.folder.name)
    assert newest_runs(tmp_path, lambda info: 0) == {}


def test_a_shared_run_is_found_by_id_and_folder_but_ours_wins(opened, tmp_path):
    results = tmp_path / "results"
    theirs = results / "shared" / "test" / opened.folder.name
    shutil.copytree(opened.folder, theirs)
    for name in (opened.folder.name, opened.folder.name[-4:], str(theirs)):
        assert find_run(results, name).folder == theirs
    with pytest.raises(FileNotFoundError, match="got 'test'"):
        find_run(results, "test")  # an experiment's newest run is one of ours
    ours = results / "test" / opened.folder.name
    shutil.copytree(opened.folder, ours)
    assert find_run(results, opened.folder.name).folder == ours


def test_a_shared_run_is_not_resumed_here(opened):
    message = (
        f"run must be one of this machine's to be resumed, got one from "
        f"{opened.info['shared']['from']}; start one here: labkit run test"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lab.resume(opened.folder)


def test_a_run_of_operations_goes_and_comes_too(at_home, tmp_path):
    made = fake_run(sizes=["640x480"], data={"folder": str(at_home / "x")})
    made.info["provenance"].update(ELSEWHERE)
    made.info["created_utc"] = "2025-01-02T03:04:05Z"
    folder = create_run(tmp_path / "ours", made.info)
    append_rows(folder, made.rows)
    opened = open_shared(pack(load_run(folder)), tmp_path / "theirs")
    assert list(opened.rows) == list(made.rows)
    assert opened.info["data"]["folder"] == "…/x"
    assert notebook.text(opened) == notebook.text(load_run(folder))


def test_a_killed_run_without_rows_goes_and_comes_as_cancelled(at_home, tmp_path):
    info = fake_info(["a", "b"], status="running", notes=[], provenance=ELSEWHERE)
    folder = create_run(tmp_path / "ours", info)
    (folder / "trials.jsonl").write_bytes(b'{"reason": "\xc3')  # half a letter
    opened = open_shared(pack(load_run(folder)), tmp_path / "theirs")
    assert opened.info["status"] == "cancelled"
    assert opened.info["notes"] == [
        "1 half-written line of the rows left out when this run was packed"
    ]
    assert opened.info["reason"] == "its process ended before it was finished"
    assert opened.trials == ()


# --- files that somebody made up ----------------------------------------------------------------

RUN_ID = "20250102T030405Z-beef"
ABOUT = {"labkit": "1.2.3", "experiment": "prefetching", "run": RUN_ID}


def crafted(path, *, about=ABOUT, times=None, labels=("original", "both"), rows=None, **info):
    """A file with rows of its own and whatever else its record says."""
    info = {**fake_info(labels), "provenance": ELSEWHERE, **info}
    if rows is None:
        trials = fake_trials(dict(zip(labels, times or (1.0, 0.9))))
        rows = [trial.to_row() for trial in trials]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    members = {"run.json": json.dumps(info).encode(), "trials.jsonl": lines.encode()}
    path.write_bytes(to_bytes(members, about))
    return path


def test_hostile_texts_stay_texts(tmp_path):
    script, path = "<script>alert(1)</script>", "../../../etc"
    file = crafted(
        tmp_path / "x.zip",
        labels=(f"{script}\x1b[2J", path),
        question=script,
        notes=[script, path],
        source=script,
        provenance={**ELSEWHERE, "cpu_model": script},
    )
    run = open_shared(file, tmp_path / "results")
    assert list(run.info["variants"]) == [f"{script}[2J", path]  # no terminal obeys it
    page = notebook.Gallery([notebook.section(run)])._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in (run.folder / "chart.svg").read_text(encoding="utf-8")
    files = {p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {"x.zip", "results"}
    # And can be sent on.
    again = open_shared(pack(run, tmp_path), tmp_path / "third")
    assert {**again.info, "shared": None} == {**run.info, "shared": None}
    assert again.trials == run.trials


def test_pictures_in_a_file_are_not_taken(tmp_path):
    file = crafted(tmp_path / "x.zip", rows=[])
    members = {name: data for name, data in contents(file).items() if name != "share.json"}
    file.write_bytes(to_bytes({**members, "chart.svg": b"<svg onload='alert(1)'/>"}, ABOUT))
    run = open_shared(file, tmp_path / "results")
    assert b"onload" not in (run.folder / "chart.svg").read_bytes()


def test_another_run_that_is_called_the_same_gets_a_folder_of_its_own(tmp_path):
    results = tmp_path / "results"
    first = open_shared(crafted(tmp_path / "1.zip", rows=[]), results)
    second = open_shared(crafted(tmp_path / "2.zip", rows=[], notes=["other"]), results)
    assert [first.folder.name, second.folder.name] == [RUN_ID, f"{RUN_ID}-2"]
    assert open_shared(tmp_path / "2.zip", results).folder == second.folder
    assert find_run(results, RUN_ID).folder == first.folder


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"about": {**ABOUT, "experiment": "../x"}}, "a plain name as its experiment, got '../x'"),
        ({"about": {**ABOUT, "run": "/tmp/x"}}, "a plain name as its run, got '/tmp/x'"),
        ({"experiment": "other"}, "names its experiment, got 'other'"),
        ({"provenance": None}, "says what machine it is from, got none"),
        ({"about": {**ABOUT, "experiment": "shared"}}, "a plain name as its experiment, got 'sha"),
        ({"variants": "none"}, "whose variants is an object in run.json, got 'none'"),
        ({"variants": {"a": 1, "b": {}}}, "whose a is an object in variants in run.json, got 1"),
        ({"status": None}, "whose status is a text in run.json, got None"),
        ({"status": ["x"]}, "whose status is a text in run.json, got ['x']"),
        ({"status": "running"}, "a run that is finished, cancelled, failed, got 'running'"),
        ({"mode": 5}, "whose mode is a text in run.json, got 5"),
        ({"created_utc": None}, "whose created_utc is a text in run.json, got None"),
        ({"protocol": 5}, "whose protocol is a text in run.json, got 5"),
        ({"blocks": True}, "whose blocks is a whole number in run.json, got True"),
        ({"data": "x"}, "whose data is an object in run.json, got 'x'"),
        ({"notes": ["a", 1]}, "whose 1 is a text in notes in run.json, got 1"),
        ({"notes": ["a"] * 101}, "at most 100 notes, got 101"),
        ({"provenance": {"cores": [1]}}, "whose cores is a whole number in provenance in run.json"),
        ({"data": {"images": "x"}}, "whose run can be shown, got one that cannot: ValueError("),
        ({"labels": [f"v{i}" for i in range(61)]}, "at most 60 labels, got 61"),
        (
            {"rows": [{"schema": 1, "labels": 3}]},
            "whose labels is an object in trials.jsonl, got 3",
        ),
        ({"rows": [[1]]}, "whose texts are JSON objects, got another trials.jsonl"),
        ({"rows": [{"schema": 1, "variant": "a"}]}, "whose run can be shown"),
    ],
)
def test_what_is_no_run_is_refused_and_leaves_nothing(tmp_path, made, message):
    file = crafted(tmp_path / "x.zip", **{"rows": [], **made})
    with pytest.raises(ValueError, match=f"^share file must .*{re.escape(message)}"):
        open_shared(file, tmp_path / "results")
    assert [path for path in (tmp_path / "results").rglob("*") if path.name != "shared"] == []


def test_what_one_cannot_show_does_not_spoil_the_list_of_the_others(tmp_path):
    results = tmp_path / "results"
    good = open_shared(crafted(tmp_path / "good.zip", rows=[]), results)
    for made in ({"status": None}, {"mode": 5}, {"data": "x"}, {"provenance": {"cores": [1]}}):
        with pytest.raises(ValueError, match=r"^share file must be one whose "):
            open_shared(
                crafted(tmp_path / "x.zip", **{"rows": [], "notes": ["x"], **made}), results
            )
    assert list_shared(results) == [good.folder]
    assert history_line(good.folder).startswith("2025-01-02 03:04 UTC · quick · finished · ")


def longest(value):
    """The most letters of any text, keys too."""
    if isinstance(value, str):
        return len(value)
    below = [*value, *value.values()] if isinstance(value, dict) else value
    return max(map(longest, below), default=0) if isinstance(below, list) else 0


def test_no_long_text_gets_as_far_as_a_chart(tmp_path, monkeypatch):
    long, drawn = "long " * 4_000, []
    monkeypatch.setattr(share, "_lay_out", lambda folder, info, rows: drawn.append((info, rows)))
    file = crafted(
        tmp_path / "x.zip",
        question=long,
        source=long,
        notes=[long],
        accelerator=long,
        provenance={**ELSEWHERE, "cpu_model": long, "versions": {long: long}},
        rows=[{"schema": 1, "variant": "both", "reason": long, "labels": {long: long}}],
    )
    with pytest.raises(ValueError, match=r"^share file must be one whose run can be shown"):
        open_shared(file, tmp_path / "results")
    ((info, rows),) = drawn
    assert [len(info[key]) for key in ("question", "source")] == [300, 300]
    assert [len(info["notes"][0]), len(rows[0]["reason"])] == [2_000, 2_000]
    assert info["question"].endswith("long…")
    del info["notes"], info["shared"], rows[0]["reason"]
    assert longest([info, rows]) == 300


@pytest.mark.parametrize(
    "made", [{"labels": ("a", "b" * 101)}, {"rows": [{"schema": 1, "variant": "b" * 101}]}]
)
def test_a_long_label_is_refused_for_cut_it_could_be_another(tmp_path, made):
    file = crafted(tmp_path / "x.zip", **{"rows": [], **made})
    message = "variant must have a label of at most 100 letters in a share file, got 101 in 'bbb"
    with pytest.raises(ValueError, match=f"^{message}.*give it a shorter one$"):
        open_shared(file, tmp_path / "results")


@pytest.mark.parametrize("made", [{"schema": 99}, {"rows": [{"schema": 99}]}])
def test_rows_of_a_newer_labkit_ask_for_an_update(tmp_path, made):
    file = crafted(tmp_path / "x.zip", **{"rows": [], **made})
    with pytest.raises(ValueError, match=r"got 99; update labkit to open this file$"):
        open_shared(file, tmp_path / "results")


# --- the command line ---------------------------------------------------------------------------


def test_a_shell_opens_a_file_and_says_where_it_is(packed, opened, capsys):
    results = opened.folder.parents[2]
    assert main(["open", str(packed), "--results", str(results)]) == 0
    shown = capsys.readouterr().out
    machine = opened.info["shared"]["from"]
    assert shown.startswith(f"opened before: {opened.folder}, from {machine}\n")
    assert "pillow from …/photos" in shown


def test_a_shell_lists_the_runs_of_colleagues_apart(opened, capsys):
    assert main(["list", "--results", str(opened.folder.parents[2])]) == 0
    shown = capsys.readouterr().out.partition("no runs in ")[2]
    place = f"test/{opened.folder.name}"
    assert f"\n  {place}  quick, finished, from {opened.info['shared']['from']}\n" in shown


def test_a_shell_packs_a_run(planted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    results = planted.folder.parents[1]
    out = tmp_path / "run.zip"
    command = ["pack", "test", "--results", str(results), "--out", str(out)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"packed in {out}, ")
    assert shown.endswith("open it with: labkit open\n")
    assert out.is_file()


def test_a_shell_says_what_a_file_is_not_in_one_line(tmp_path, capsys):
    (tmp_path / "x.zip").write_bytes(b"no")
    assert main(["open", str(tmp_path / "x.zip"), "--results", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("labkit: share file must be a zip that can be read, got ")
    assert Path(tmp_path / "shared").exists() is False
