"""Data at a URL or at a distance, from settings to the row: read directly, or copied first."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from places import folder_in_memory, tree
from test_copies import assert_same_data, make_coco
from web import web

import labkit as lab
from labkit import copies, machine, tables
from labkit.copies import MARK, copy_data
from labkit.experiment import _describe_data
from labkit.launcher import Launcher
from labkit.parts import storage
from labkit.parts.packing import connections, fetching
from labkit.parts.packing.folder import open_folder
from labkit.parts.packing.manifest import MANIFEST
from labkit.parts.packing.remote import open_remote
from labkit.parts.storage import key
from labkit.parts.storage.distance import Line
from labkit.preflight import find_bad_images
from labkit.source import open_loader
from labkit.staging import check_rates, staged
from labkit.stored import locate_data, open_reader, open_source, stored_folder
from labkit.trial import Cancelled, Skip

NEAR = "far_0ms_8000mbit"
SMALL = {
    "input_px": 64, "batch_size": 4, "images": 8, "num_workers": 2, "cache": "as found",
    "preprocessor": "vectorized", "device": "cpu", "step": "nothing", "epochs": 1,
}  # fmt: skip
IMAGE = "images/000000000003.jpg"
WAIT_S = 60


@pytest.fixture(autouse=True)
def lab_folder(tmp_path, monkeypatch):
    """No labkit.toml, copies of this test's own, and nobody who waits long for a server."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "var").mkdir()
    monkeypatch.setattr(storage, "STAGED", tmp_path / "var")
    monkeypatch.setattr(connections, "TIME_OUT_S", 0.5)
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.01)
    yield
    open_reader.cache_clear()
    connections.close_idle()


def settings_for(data, **changes):
    return lab.Settings(data=str(data), start_method="fork", **{**SMALL, **changes})


def stage(settings, **how):
    return staged(settings, say=lambda line: None, **how)


def data_bytes(data):
    return sum(path.stat().st_size for path in data.rglob("*") if path.is_file())


# --- what fits together ---------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["cold", "warm"])
@pytest.mark.parametrize("where", ["url", "distance"])
def test_no_page_cache_can_be_produced_over_a_network(photos, cache, where):
    far = {"data": "http://h/photos"} if where == "url" else {"data": photos, "storage": NEAR}
    message = f"cache must be 'as found' for images that come over a network, got '{cache}': none"
    with pytest.raises(Skip, match=message):
        tables.check(settings_for(**far, cache=cache))
    tables.check(settings_for(**far))
    if where == "distance":  # a copy is this machine's
        tables.check(settings_for(photos, storage=f"{NEAR}_staged", cache=cache))


def test_what_does_not_fit_is_refused_with_the_next_step(photos):
    url = "http://h/photos"
    with pytest.raises(Skip, match="packing must be 'folder' for images that come over a network"):
        tables.check(settings_for(photos, storage=NEAR, packing="raw", stored="pixels"))
    with pytest.raises(ValueError, match="packing must be 'folder' and stored 'jpeg' for da"):
        stored_folder(settings_for(url, packing="raw"))
    with pytest.raises(Skip, match=f"{NEAR} stands in for a distance to data of this"):
        locate_data(settings_for(url, storage=NEAR))
    with pytest.raises(Skip, match="modelled_hdd needs data in a folder of this machi"):
        locate_data(settings_for(url, storage="modelled_hdd"))
    with pytest.raises(Skip, match="ssd is not named on this machine"):
        locate_data(settings_for(url, storage="ssd"))
    with pytest.raises(ValueError, match=r"storage must be one of .*far_<round trip>ms_<b"):
        tables.check(settings_for(photos, storage="far_20ms"))
    with pytest.raises(Skip, match="is there for as long as a run takes"):
        open_loader(settings_for(photos, storage=NEAR))


def test_a_url_never_becomes_a_path():
    url = "https://host:8080/a/photos"
    assert stored_folder(settings_for(url + "/")) == url
    here = locate_data(settings_for(url))
    assert (here.directory, here.label, here.is_remote) == (url, "remote(https)", True)
    with folder_in_memory() as memory:
        there = locate_data(settings_for(url, storage=str(memory)))
        assert (there.directory.name, there.copy.parent.name) == ("photos", "labkit-data")
        other = locate_data(settings_for(url + "2", storage=str(memory)))
        assert other.copy != there.copy


# --- copies ---------------------------------------------------------------------------------


def test_data_at_a_url_is_copied_once_and_what_it_took_stays_known(photos):
    with web(photos) as server, folder_in_memory() as memory:
        settings = settings_for(server.url, storage=str(memory), cache="warm")
        with stage(settings) as facts:
            assert_same_data(photos, open_source(settings).root)
            assert facts["copied_bytes"] == facts["whole_copy_bytes"] == data_bytes(photos)
            assert facts["copied_s"] >= facts["whole_copy_s"] > 0
            assert (facts["label"], facts["filesystem"]) == ("real", "tmpfs")
        open_reader.cache_clear()
        with stage(settings) as again:
            assert (again["copied_bytes"], again["whole_copy_s"]) == (0, facts["whole_copy_s"])
            assert again["whole_copy_bytes"] == data_bytes(photos)
        assert server.asked[IMAGE] == 1
    with web(photos) as server, stage(settings_for(server.url)) as facts:
        assert (facts["label"], facts["filesystem"]) == ("remote(http)", "remote")
        assert (facts["copied_bytes"], facts["whole_copy_s"]) == (None, None)


def test_a_copy_that_stops_goes_on_and_nobody_knows_what_all_of_it_took(photos, tmp_path):
    copy, cancel = tmp_path / "copy", threading.Event()
    with web(photos, {IMAGE: ["500", "500", "500", "500", "ok"]}) as server:
        reader = open_remote(server.url)
        with pytest.raises(fetching.RemoteFailed, match=f"{IMAGE} must be readable, got status"):
            copy_data(reader, copy, copy / "photos")
        before = tree(copy)
        assert not json.loads((copy / MARK).read_text())["complete"]
        cancel.set()
        with pytest.raises(Cancelled):
            copy_data(reader, copy, copy / "photos", cancel=cancel)
        copied = copy_data(reader, copy, copy / "photos")
        assert (copied.whole_s, copied.size_bytes) == (None, data_bytes(photos))
        assert copied.written_bytes < copied.size_bytes
        kept = {name: file for name, file in before.items() if name.endswith(".jpg")}
        assert kept.items() <= tree(copy).items()
        assert kept
    assert_same_data(photos, copy / "photos")
    assert [path.name for path in copy.iterdir() if "part" in path.name] == []


def test_what_is_not_as_its_manifest_says_is_not_copied(photos, tmp_path):
    data = shutil.copytree(photos, tmp_path / "photos")
    jpeg = bytearray((data / IMAGE).read_bytes())
    jpeg[-9] ^= 1
    (data / IMAGE).write_bytes(jpeg)
    with web(data) as server:
        message = rf"data must be what its manifest says, but {server.url}/{IMAGE} must have SHA"
        with pytest.raises(ValueError, match=message):
            copy_data(open_remote(server.url), tmp_path / "copy", tmp_path / "copy" / "photos")
        assert not (tmp_path / "copy" / "photos" / IMAGE).exists()
    (data / IMAGE).unlink()
    with web(data) as server, pytest.raises(ValueError, match=r"but http.*0003\.jpg must be there"):
        copy_data(open_remote(server.url), tmp_path / "copy", tmp_path / "copy" / "photos")


def test_without_room_nothing_is_fetched(photos, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5_000))
    with web(photos) as server, pytest.raises(Skip, match=r"must have .* free for the data, got 5"):
        copy_data(open_remote(server.url), tmp_path / "copy", tmp_path / "copy" / "photos")
    assert server.asked[IMAGE] == 0


@pytest.mark.parametrize("layout", ["labkit", "coco"])
def test_data_at_a_distance_is_copied_by_its_server_and_the_copy_goes(photos, tmp_path, layout):
    data = photos if layout == "labkit" else make_coco(photos, tmp_path / "coco")
    settings = settings_for(data, storage=f"{NEAR}_staged", cache="warm")
    with stage(settings) as facts:
        where = open_source(settings).root
        assert where.is_relative_to(tmp_path / "var")
        assert_same_data(data, where)
        whole = data_bytes(data) + (layout == "coco") * data_bytes(data.parent / "annotations")
        assert facts["copied_bytes"] == facts["whole_copy_bytes"] == whole
        assert facts["label"] == "emulated distance(0 ms, 8,000 Mbit/s, staged)"
        assert facts["filesystem"] != "remote"
    assert list((tmp_path / "var").iterdir()) == []


def test_files_are_fetched_several_at_a_time(photos, tmp_path, monkeypatch):
    """One at a time, a copy would wait a round trip for each file."""
    together, most, lock, real = 0, 0, threading.Lock(), copies._copy_file

    def counted(*arguments):
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        try:
            return real(*arguments)
        finally:
            with lock:
                together -= 1

    monkeypatch.setattr(copies, "_copy_file", counted)
    settings = settings_for(photos, storage="far_20ms_8000mbit_staged", cache="warm")
    with stage(settings):
        assert most == 8


# --- reading --------------------------------------------------------------------------------


def batches(settings, **changes):
    _, loader = open_loader(replace(settings, **changes))
    return [
        {name: tensor.numpy().copy() for name, tensor in batch.items()} for batch in iter(loader)
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_deliver_from_a_distance_what_the_folder_holds(photos, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    workers = {"fork": 2, "spawn": 1}[method]  # a spawned one takes seconds to start
    settings = settings_for(photos, storage=NEAR, num_workers=workers)
    settings = replace(settings, start_method=method)
    with stage(settings):
        found = batches(settings)
    wanted = batches(settings, storage="here", num_workers=0)
    assert len(found) == len(wanted) == 2
    for one, other in zip(found, wanted):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


def test_the_proof_of_a_row_says_that_there_is_no_page_cache(photos):
    with stage(settings_for(photos, storage=NEAR)):
        source, _ = open_loader(settings_for(photos, storage=NEAR))
        proof = source.prove_cache(source.prepare_cache("as found"))
    ids = source.order.image_ids
    assert proof == {
        "wanted": "as found",
        "method": "none",
        "measured_by": "remote: no page cache of this machine",
        "resident_share_before": None,
        "resident_share_after": None,
        "logical_read_bytes": None,
        "device_read_bytes": None,
        "file_bytes": open_folder(photos).image_bytes[ids].sum(),
    }


def test_a_missing_image_is_a_bad_one_and_a_server_that_fails_is_not(photos):
    with web(photos, {IMAGE: ["404"]}) as server:
        bad, changed = find_bad_images(settings_for(server.url), [1, 2, 3])
        assert (list(bad), changed) == ([2], [])
        assert bad[2] == f"{server.url}/{IMAGE} must be there, got no such file"
    open_reader.cache_clear()
    with web(photos, {IMAGE: ["500"]}) as server:
        # Otherwise half a data set would be left out for a moment of the network's.
        with pytest.raises(fetching.RemoteFailed, match="status 500"):
            find_bad_images(settings_for(server.url), [1, 2, 3])


def test_the_server_checks_itself_as_a_disk_does(photos):
    settings = settings_for(photos, storage="far_10ms_80mbit")
    with stage(settings):
        rates = check_rates(settings, seconds=0.1)
    assert [(rate["pattern"], rate["readers"]) for rate in rates] == [
        ("round trips", 1), ("together", 1), ("together", 4),
    ]  # fmt: skip
    assert rates[0]["requested_per_s"] == pytest.approx(100)


# --- runs -----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.alone  # a distance has to be as long as its label says
def test_a_run_reads_from_afar_and_from_a_copy_and_records_the_cost(photos, tmp_path, monkeypatch):
    # The processes of a run look where copies always are.
    monkeypatch.setattr(storage, "STAGED", Path("/var/tmp"))
    if not os.access("/var/tmp", os.W_OK):
        pytest.skip("this platform has no /var/tmp")
    base = lab.Settings(data=str(photos), **SMALL)
    far = replace(base, storage="far_20ms_1000mbit")
    asked = lab.Experiment(
        "test",
        question="?",
        variants={
            "direct": far,
            "copied first": replace(base, storage="far_20ms_1000mbit_staged", cache="warm"),
            "cold": replace(far, cache="cold"),
        },
        baseline="direct",
    )
    run = lab.run(asked, blocks=1, results=tmp_path / "results", progress=False)
    assert run.info["status"] == "finished", run.info
    labels = {t.variant: t.labels["storage"] for t in run.trials if t.status == "ok"}
    assert labels == {
        "direct": "emulated distance(20 ms, 1,000 Mbit/s)",
        "copied first": "emulated distance(20 ms, 1,000 Mbit/s, staged)",
    }
    facts = run.info["storages"]["far_20ms_1000mbit_staged"]
    assert run.info["costs"] == {
        "copied first": {"bytes": facts["whole_copy_bytes"], "copy_s": facts["whole_copy_s"]}
    }
    assert [rate["refused"] for rate in facts["rates"]] == [False] * 3
    assert run.info["skipped"]["cold"].startswith("cache must be 'as found' for images that come")
    (direct,) = [t for t in run.trials if t.variant == "direct" and t.role in ("A1", "")][:1]
    assert direct.epochs[0].epoch_s > 2 * 0.020  # every worker reads at least two images
    assert not list(Path("/var/tmp").glob(f"labkit-*-far_20ms_1000mbit_staged-{key(photos)}*"))


def test_trials_read_from_a_url_that_their_server_has_opened(photos, tmp_path):
    """What the server of the trials had open does not cross its forks."""
    with web(photos) as server, Launcher(tmp_path / "log", fork=machine.can_fork()) as launcher:
        method = "fork" if machine.can_fork() else "spawn"
        settings = asdict(replace(settings_for(server.url), start_method=method, pin_memory=False))
        for _ in range(2):
            measured = launcher.run(
                "measure",
                {"settings": settings, "excluded": [], "compute_s_per_image": None},
            )
            assert measured["labels"]["storage"] == "remote(http)"
            assert measured["epochs"][0]["images"] == 8
            assert measured["cache_proof"]["measured_by"].startswith("remote: ")
        opened = server.asked[MANIFEST]
        data = _describe_data(settings_for(server.url))
    assert data["bytes"] == open_folder(photos).image_bytes.sum()
    # The trials inherit what their server knows: nobody asks for the boxes again.
    assert opened == (1 if machine.can_fork() else 2)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_runner_that_is_killed_leaves_no_server_and_its_copy_goes_with_the_next(photos, tmp_path):
    program = (
        "import sys, time, pathlib, labkit as lab\n"
        "from labkit.parts import storage; from labkit.staging import staged\n"
        "storage.STAGED = pathlib.Path(sys.argv[2])\n"
        "s = lab.Settings(data=sys.argv[1], storage='far_0ms_8000mbit_staged')\n"
        "from labkit.source import locate_data\n"
        "with staged(s, say=lambda line: None):\n"
        "    print(locate_data(s).address, flush=True); time.sleep(60)\n"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", program, str(photos), str(tmp_path / "var")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    address = runner.stdout.readline().strip()
    servers = psutil.Process(runner.pid).children()
    assert len(servers) == 1
    with Line(address) as line:  # somebody still reads from it
        assert line.get("zeros/9")[0] == 9
        runner.kill()
        runner.wait()
        runner.stdout.close()
        _, alive = psutil.wait_procs(servers, timeout=WAIT_S)
    assert alive == [] or all(p.status() == psutil.STATUS_ZOMBIE for p in alive)
    assert list((tmp_path / "var").iterdir()) != []  # a killed process cannot clean up
    with stage(settings_for(photos, storage="far_0ms_7000mbit_staged", cache="warm")):
        assert not [p for p in (tmp_path / "var").iterdir() if "8000mbit" in p.name]
    assert list((tmp_path / "var").iterdir()) == []
