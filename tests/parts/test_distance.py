"""The distance that is stood in for, by a real server and real sockets."""

import contextlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from kernel import needs_fork
from small import SMALL

import labkit as lab
from labkit.contracts import Skip
from labkit.machine.helper import pids
from labkit.parts.packing.folder import open_folder
from labkit.parts.storage import distance
from labkit.parts.storage.distance import at_distance, fetch
from labkit.pipeline import open_loader
from labkit.resolve import complete_here, open_data, open_reader, resolve
from labkit.runs.check_simulated import check_rates
from labkit.runs.staging import staged
from labkit.runs.thresholds import MAX_RATE_ERROR_SHARE
from tests.processes import PATIENCE_S

# --- the server -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What a reader would list: two files, and one that is gone."""
    folder = tmp_path_factory.mktemp("far")
    (folder / "ä #.jpg").write_bytes(b"image" * 100_000)
    (folder / "boxes.json").write_text("{}")
    paths = (folder / "ä #.jpg", folder / "boxes.json")
    return SimpleNamespace(paths=paths, companions=(folder / "gone.jpg",))


@contextlib.contextmanager
def served(name, files):
    """Put a storage up for the files; its address is there meanwhile."""
    far = at_distance(name, files.paths[0].parent)
    with far.put_up(files, (), lambda line: None):
        yield far


def ask(address, path):
    """The body, or how it was refused."""
    try:
        return b"".join(fetch(address, path))
    except OSError as error:
        return str(error)


def servers():
    return [psutil.Process(pid) for pid in pids()]


def test_it_gives_the_listed_files_and_nothing_else_and_leaves_nothing(files):
    before = dict(os.environ)
    with served("far_0ms_8000mbit", files) as far:
        address = far.address
        for _ in range(2):  # over a connection that this thread keeps
            assert ask(address, "files/0") == b"image" * 100_000
        assert ask(address, "files/1") == b"{}"
        assert ask(address, "zeros/1000000") == bytes(1_000_000)
        for path in ("files/2", "files/3", "files/-1", "files/x", "files/../0", "", "zeros/-1"):
            assert ask(address, path) == "status 404"
        base, _, secret = address.rpartition("/")
        for wrong in ("", "wrong", "files"):
            assert ask(f"{base}/{wrong}", "files/0") == "status 404"
        (server,) = servers()
        assert len(secret) > 20 and secret not in " ".join(server.cmdline())
        listening = [c.laddr.ip for c in server.net_connections() if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]
    with pytest.raises(OSError):
        list(fetch(address, "files/1"))
    assert (far.address, server.is_running(), dict(os.environ)) == ("", False, before)


def test_it_waits_as_long_as_it_says_and_measures_that(files, monkeypatch):
    monkeypatch.setattr(distance, "_own_s", lambda address: 0.0)  # a busy machine's is large
    arguments = (files, range(2), 2, "fork", 0.1)
    with served("far_40ms_80mbit", files) as far:
        # Only from below: how late a busy machine is, is not asked.
        for path, least_s in (("zeros/0", 2 * 0.04), ("zeros/0", 0.04), ("zeros/1000000", 0.14)):
            start_s, end_s = distance._time_span((far.address, path))
            assert end_s - start_s >= least_s  # a new connection takes a round trip more
        rates = far.measure(*arguments)
        found = [(rate.pattern, rate.unit, rate.readers, rate.requested_per_s) for rate in rates]
        assert found == [
            ("round trips", "requests", 1, pytest.approx(25)),
            ("together", "bytes", 1, 1e7),
            ("together", "bytes", 4, 1e7),
        ]
        # The same server under a name that promises something else.
        other = replace(far, rtt_s=0.002, bytes_per_s=4e7).measure(*arguments)
        assert all(rate.error_share > MAX_RATE_ERROR_SHARE for rate in other)
    with pytest.raises(Skip, match="the distance's server does not answer"):
        far.measure(*arguments)


def test_the_round_trips_of_a_connection_are_not_the_links(files, monkeypatch):
    far = at_distance("far_40ms_80mbit", files.paths[0].parent)
    monkeypatch.setattr(distance, "_trip_s", lambda *asked: 0.04)
    # All read a megabyte together, 0.1 s over the link, over connections that are new.
    spans = lambda read, asked, how: [(1.0, 1.18)] * len(asked)  # noqa: E731
    monkeypatch.setattr(distance, "measure_together", spans)
    rates = far.measure(files, range(2), 2, "fork", 0.1)
    assert [rate.delivered_per_s for rate in rates] == pytest.approx([25, 1e7, 1e7])


# --- from settings to batches ---------------------------------------------------------------

FAR = "far_0ms_8000mbit"


@pytest.fixture
def var(tmp_path, monkeypatch):
    """Where staged copies lie in this test."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "var").mkdir()
    monkeypatch.setattr(distance, "COPIES", tmp_path / "var")
    yield tmp_path / "var"
    open_reader.cache_clear()


def settings_for(data, **changes):
    own = {"data": str(data), "storage": FAR, "num_workers": 2, "multiprocessing_context": "fork"}
    return lab.Settings(**{**SMALL, **own, **changes})


def stage(settings):
    return staged(resolve(complete_here(settings)), say=lambda line: None)


def batches(settings):
    _, loader = open_loader(resolve(settings))
    return [{name: tensor.numpy().copy() for name, tensor in one.items()} for one in loader]


def test_what_cannot_be_far_away_is_refused_with_the_next_step(photos, var):
    for cache in ("cold", "warm"):
        with pytest.raises(Skip, match=f"cache must be 'as found' for .* got '{cache}': none"):
            resolve(settings_for(photos, cache=cache))
        resolve(settings_for(photos, storage=f"{FAR}_staged", cache=cache))
    with pytest.raises(Skip, match="packing must be 'folder' for images that come over a network"):
        resolve(settings_for(photos, packing="raw", storage_format="pixels"))
    with pytest.raises(ValueError, match=r"storage must be one of .*far_<round trip>ms_<b"):
        resolve(settings_for(photos, storage="far_20ms"))
    with pytest.raises(Skip, match="is there for as long as a run takes"):
        open_loader(resolve(settings_for(photos)))


@needs_fork
def test_workers_deliver_from_a_distance_what_the_folder_holds(photos, var):
    settings = settings_for(photos)
    with stage(settings):
        found = batches(settings)
    wanted = batches(replace(settings, storage="here", num_workers=0))
    assert len(found) == len(wanted) == 2
    for one, other in zip(found, wanted):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


def test_an_image_that_cannot_be_had_is_named(photos, var, tmp_path):
    data = shutil.copytree(photos / "images", tmp_path / "tree")
    settings = settings_for(data)
    with stage(settings):
        source, _ = open_loader(resolve(settings))
        for path in data.iterdir():
            path.unlink()
        with pytest.raises(OSError, match=r"003.jpg must be given by the distance's server, got s"):
            source.reader.read(2)


def test_the_proof_of_a_row_says_that_there_is_no_page_cache(photos, var):
    with stage(settings_for(photos)) as facts:
        source, _ = open_loader(resolve(settings_for(photos)))
        proof = source.prove_cache(source.prepare_cache("as found"))
        rates = check_rates(settings_for(photos), seconds=0.1)
    assert (str(facts["hardware"]), facts["copied_bytes"]) == (
        "simulated remote storage (0 ms, 8,000 Mbit/s)", None,
    )  # fmt: skip
    assert [rate["pattern"] for rate in rates] == ["round trips", "together", "together"]
    unknown = ("resident_share_before", "resident_share_after", "logical_read_bytes")
    assert proof == {
        "wanted": "as found",
        "method": "none",
        "measured_by": "remote: no page cache of this machine",
        **dict.fromkeys((*unknown, "device_read_bytes")),
        "file_bytes": open_folder(photos).image_bytes[source.order.image_ids].sum(),
    }


def test_data_at_a_distance_is_copied_by_its_server_and_the_copy_goes(photos, var):
    settings = settings_for(photos, storage=f"{FAR}_staged", cache="warm")
    near = open_data(settings)
    with stage(settings) as facts:
        reader = resolve(settings).reader
        assert reader.root.is_relative_to(var)
        for i in range(len(near)):
            assert reader.read(i)[0] == near.read(i)[0]
            assert reader.read(i)[1].boxes_xyxy.tolist() == near.read(i)[1].boxes_xyxy.tolist()
        whole_bytes = sum(path.stat().st_size for path in (*near.paths, *near.companions))
        assert facts["copied_bytes"] == whole_bytes
        assert facts["copied_s"] > 0
        assert facts["hardware"].details == "0 ms, 8,000 Mbit/s, staged"
    assert list(var.iterdir()) == []


STAGED_THEN_KILLED = """
import os, pathlib, sys, labkit as lab
from labkit.parts.storage import distance
from labkit.resolve import complete_here, resolve
from labkit.runs.staging import staged
from labkit.runs.thresholds import MAX_RATE_ERROR_SHARE
distance.COPIES = pathlib.Path(sys.argv[2])
settings = lab.Settings(data=sys.argv[1], storage="far_0ms_8000mbit_staged")
with staged(resolve(complete_here(settings)), say=print):
    print(os.environ["LABKIT_HELPERS"], flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL here")
def test_a_runner_that_is_killed_leaves_no_server_and_its_copy_goes_with_the_next(photos, var):
    command = [sys.executable, "-c", STAGED_THEN_KILLED, photos, var]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -9
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(ended.stdout.split()[-1])).wait(PATIENCE_S)
    assert list(var.rglob("*.jpg")) != []  # a killed process cannot clean up
    with stage(settings_for(photos, storage="far_0ms_7000mbit_staged", cache="warm")):
        assert not [path for path in var.iterdir() if "8000mbit" in path.name]
    assert list(var.iterdir()) == []
