"""The same rows, byte for byte, whoever works: this process, joblib's processes or Spark."""

import importlib.util
import os
import shutil
import threading
import time

import numpy as np
import psutil
import pytest

import labkit as lab
from labkit import offline, tables
from labkit.converter import Converter
from labkit.parts.preprocessing import Preprocessor
from labkit.settings import Settings
from labkit.trial import Cancelled, Skip

MISSING = [name for name in ("pyspark",) if importlib.util.find_spec(name) is None]
MISSING += [] if "JAVA_HOME" in os.environ or shutil.which("java") else ["Java"]
needs_spark = pytest.mark.skipif(
    bool(MISSING) and os.environ.get("FAIL_WITHOUT_SPARK") != "1",
    reason=f"not installed: {', '.join(MISSING)}",
)


def converter(photos, stored, **more):
    settings = Settings(data=str(photos), packing="raw", stored=stored, input_px=64, **more)
    return Converter(settings=settings, own=tables.own_parts())


def rows(pool, function, count=24):
    """What `run` gives, as bytes."""
    found = []
    for name, content, annotation in pool.run(function, range(count)):
        arrays = content if isinstance(content, dict) else {"": content}
        parts = [np.asarray(arrays[key]).tobytes() for key in sorted(arrays)]
        found.append((name, parts, annotation.boxes_xyxy.tobytes()))
    return found


def children(name):
    return [
        child for child in psutil.Process().children(recursive=True)
        if name in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE
    ]  # fmt: skip


def fail_at_five(i):
    if i == 5:
        raise ValueError("image must be a JPEG, got 5")
    return i


def mine(sample, px):
    return {"mine": np.full(3, sample.sample_id + px, np.int64)}


# --- joblib's processes ---------------------------------------------------------------------


def test_processes_give_what_this_process_gives_in_the_same_order(photos, monkeypatch):
    # A closure, which is in no module that another process could import.
    monkeypatch.setitem(
        lab.PREPROCESSORS, "mine", Preprocessor(lambda sample, px: mine(sample, px))
    )
    work = [converter(photos, stored) for stored in ("resized", "pixels", "sample")]
    work.append(converter(photos, "sample", preprocessor="mine"))
    with offline.local(1) as alone, offline.local(2) as pool:
        assert pool.jobs == 2
        for function in work:
            assert rows(pool, function) == rows(alone, function)
        (first,) = pool.run(work[-1], range(1))
        assert first[1]["mine"].tolist() == [64, 64, 64]
    assert children("loky.backend.popen") == []


def test_an_error_in_a_process_stays_what_it_is():
    with offline.local(2) as pool:
        results = pool.run(fail_at_five, range(10))
        assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(ValueError) as caught:
            next(results)
    assert str(caught.value) == "image must be a JPEG, got 5"
    assert "fail_at_five" in caught.value.__notes__[0]


def test_what_stops_in_the_middle_leaves_no_process():
    with offline.local(2) as pool:
        results = pool.run(abs, range(1000))
        next(results)
        results.close()
    assert children("loky.backend.popen") == []


def test_the_local_engine_has_no_master():
    with pytest.raises(ValueError, match=r"^master must be left out .* got 'spark://a:7077'; "):
        with offline.local(2, "spark://a:7077"):
            pass


# --- Spark ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session():
    before = threading.active_count()
    with offline.spark(2) as pool:
        yield pool
    assert children("java") == []
    assert threading.active_count() <= before + 1


@needs_spark
def test_spark_gives_what_this_process_gives_in_the_same_order(session, photos, monkeypatch):
    monkeypatch.setitem(
        lab.PREPROCESSORS, "mine", Preprocessor(lambda sample, px: mine(sample, px))
    )
    work = [converter(photos, "pixels"), converter(photos, "sample", preprocessor="mine")]
    assert session.jobs == 2
    with offline.local(1) as alone:
        for function in work:
            assert rows(session, function) == rows(alone, function)


@needs_spark
def test_an_error_in_spark_stays_what_it_is(session):
    results = session.run(lambda i: fail_at_five(i), range(10))
    with pytest.raises(ValueError) as caught:
        list(results)
    assert str(caught.value) == "image must be a JPEG, got 5"


@needs_spark
def test_spark_stops_when_it_is_cancelled_and_goes_on_with_other_work(capfd):
    cancelled = threading.Event()

    def check():
        if cancelled.is_set():
            raise Cancelled

    # The session of `session` is this process's, and is used.
    with offline.spark(2, check=check) as pool:
        threading.Timer(0.5, cancelled.set).start()
        with pytest.raises(Cancelled):
            list(pool.run(lambda i: time.sleep(60), range(4)))
        cancelled.clear()
        assert list(pool.run(lambda i: i * 2, range(4))) == [0, 2, 4, 6]
    assert capfd.readouterr() == ("", "")  # Java says much, all of it to a file


@needs_spark
def test_another_master_than_the_session_has_is_refused(session):
    with pytest.raises(ValueError, match=r"^master must be 'local\[2\]', .* got 'local\[1\]'"):
        with offline.spark(1, "local[1]"):
            pass


def test_without_java_spark_says_what_to_install(monkeypatch, tmp_path):
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(Skip, match=r"^spark needs Java, .* install Java 17 or newer"):
        with offline._started("local[1]"):
            pass


def test_without_pyspark_spark_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    with pytest.raises(Skip, match=r"not installed; pip install 'labkit\[spark\]'$"):
        with offline.spark(1):
            pass
