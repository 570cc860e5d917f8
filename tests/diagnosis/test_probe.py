"""Every stage of making a batch is found, in a worker too, and no process or thread remains."""

import multiprocessing
import sys
import threading

import numpy as np
import psutil
import pytest
from photo_sets import KINDS, BrokenPhotos, Parsed, Photos
from PIL import Image
from torch.utils.data import DataLoader

from labkit.diagnosis.probe import probe_stages
from tests.diagnosis.made_sets import Made
from tests.processes import PATIENCE_S

SECONDS = 0.3


@pytest.fixture(autouse=True)
def nothing_remains():
    children, threads = set(psutil.Process().children()), set(threading.enumerate())
    yield
    assert set(psutil.Process().children()) <= children
    # A DataLoader closes its queues without waiting for their feeder threads, which end soon.
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_of_a_real_loader_is_found(photos, kind, workers):
    loader = DataLoader(KINDS[kind](photos), batch_size=4, num_workers=workers)
    before = dict(vars(loader))
    found = probe_stages(loader, seconds=SECONDS)
    assert found.error is None
    assert {"read", "decode", "collate"} <= {one.kind for one in found.stages}
    assert (found.pickle_s > 0) == bool(workers)
    names = {one.name for one in found.stages}
    assert {"cv2.imdecode", "cv2.resize", "cv2.GaussianBlur in photo_sets.Blur"} <= names
    assert any(name.endswith("photo_sets.to_tensor") for name in names)
    assert all(stage.cpu_s + stage.wait_s > 0 for stage in found.stages if stage.kind == "read")
    assert found.fastest <= 1 <= found.slowest
    assert vars(loader) == before


@pytest.mark.alone
@pytest.mark.parametrize("hook", ["pyinstrument's", "Python's"])
@pytest.mark.parametrize("workers", [0, 1])
def test_waiting_parsing_and_own_functions_are_stages_by_name(workers, hook, monkeypatch):
    if hook == "Python's":  # pyinstrument is not installed
        monkeypatch.setitem(sys.modules, "pyinstrument.low_level.stat_profile", None)
    loader = DataLoader(Parsed(), batch_size=2, num_workers=workers)
    found = {one.name: one for one in probe_stages(loader, seconds=SECONDS).stages}
    assert found["time.sleep"].wait_s > 0.5 * found["time.sleep"].wall_s > 0.003
    for name in ("json.loads", "photo_sets.double"):
        assert found[name].kind == "transform"
        assert found[name].cpu_s > 0.5 * found[name].wall_s


@pytest.mark.alone
def test_a_sleep_is_waiting_whatever_another_thread_computes():
    ended = threading.Event()
    busy = threading.Thread(target=lambda: all(not ended.is_set() for _ in iter(int, 1)))
    busy.start()
    try:
        found = probe_stages(DataLoader(Parsed(), batch_size=2), seconds=SECONDS)
    finally:
        ended.set()
        busy.join()
    (slept,) = (stage for stage in found.stages if stage.name == "time.sleep")
    assert slept.wait_s > 0.5 * slept.wall_s


def configure(file):
    return len(file.read_text().split())


def test_what_a_transform_reads_is_known_as_its_own(tmp_path):
    file = tmp_path / "config"
    file.write_text(" ".join(map(str, range(400_000))))
    # For every sample, once in a transform.
    configured = Made(lambda _, i: (file.read_bytes(), configure(file))[1])
    found = probe_stages(DataLoader(configured), seconds=SECONDS).stages
    assert {s.reader for s in found if s.kind == "read"} == {"", "test_probe.configure"}


def test_making_an_image_of_an_array_is_not_decoding():
    array = np.zeros((2000, 2000, 3), np.uint8)
    converted = Made(lambda _, i: np.array(Image.fromarray(array)))
    found = probe_stages(DataLoader(converted), seconds=SECONDS).stages
    assert "PIL.fromarray" in {one.name for one in found if one.kind == "transform"}


def test_spawned_workers_are_seen_too(photos):
    loader = DataLoader(
        Photos(photos), batch_size=4, num_workers=1, multiprocessing_context="spawn"
    )
    found = probe_stages(loader, seconds=SECONDS)
    assert {"read", "decode", "collate"} <= {s.kind for s in found.stages}
    assert found.pickle_s > 0


def test_a_persistent_loaders_own_workers_go_on(photos):
    loader = DataLoader(Photos(photos), batch_size=4, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    own = [worker.pid for worker in multiprocessing.active_children()]
    probe_stages(loader, seconds=SECONDS)
    assert [worker.pid for worker in multiprocessing.active_children()] == own
    assert len(list(batches)) == 15
    loader._iterator._shutdown_workers()


def test_a_failing_data_set_ends_the_probe_and_keeps_what_was_measured(photos):
    loader = DataLoader(BrokenPhotos(photos, "raise"), batch_size=4, num_workers=1)
    found = probe_stages(loader, seconds=60)
    assert isinstance(found.error, ValueError) and "no photo 12" in str(found.error)
    assert {"read", "decode"} <= {stage.kind for stage in found.stages}
