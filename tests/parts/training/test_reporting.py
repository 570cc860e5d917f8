"""Reports: what arrives where, how a failure is raised, and that nothing is left.

Run: python -m pytest tests/parts/training/test_reporting.py
"""

import contextlib
import http.client
import logging
import os
import sys
import threading
import time

import pytest

from labkit.contracts import Skip
from labkit.machine.usage import own_cpu_s
from labkit.parts.training.reporting import (
    PROGRESS,
    SINKS,
    Reports,
    Terminal,
    read_sink,
)
from tests.processes import PATIENCE_S, left, newest_child

LINES = [f"step {step} loss {1 / step:.4f} ü" for step in range(1, 201)]
EVERY_SINK = [*SINKS, "http_0ms"]


@contextlib.contextmanager
def reports(sink, folder, **how):
    with contextlib.closing(Reports(sink, folder, **how)) as opened:
        yield opened


class Handler(logging.Handler):
    """A sink of one's own, held up until it may write; some lines fail."""

    def __init__(self, fails=()):
        super().__init__()
        self.fails, self.lines, self.go = fails, [], threading.Event()
        self.go.set()

    def emit(self, record):
        assert self.go.wait(PATIENCE_S)
        self.lines.append(record.getMessage())
        if record.getMessage() in self.fails:
            try:
                raise OSError(111, "Connection refused")
            except OSError:
                self.handleError(record)


@pytest.fixture
def own(monkeypatch):
    handler = Handler(fails=("lost",))
    monkeypatch.setitem(SINKS, "own", lambda folder: handler)
    return handler


@pytest.mark.parametrize(
    "name", ["htp", "file_thread_without_loss", "http_ms", "http_-5ms", "http_5s", "notebook", ""]
)
def test_an_unknown_sink_is_refused_with_the_choices(name):
    choices = "file, http_<delay>ms, such as http_50ms, terminal"
    with pytest.raises(ValueError) as refused:
        read_sink(name)
    assert str(refused.value) == f"report_to must be one of {choices}, got {name!r}"


@pytest.mark.parametrize("in_thread", ["", "_thread"])
def test_a_log_file_has_a_line_with_the_time_for_every_report(tmp_path, in_thread):
    with reports(f"file{in_thread}", tmp_path) as opened:
        for line in LINES:
            opened.write(line)
        opened.finish()
        logged = (tmp_path / "reports.log").read_text().splitlines()  # flushed
    assert [line.split(" ", 2)[2] for line in logged] == LINES
    assert "reports" not in logging.Logger.manager.loggerDict


def test_a_terminal_takes_more_than_it_holds():
    terminal = Terminal()
    assert terminal.file.isatty()
    assert tuple(os.get_terminal_size(terminal.file.fileno())) == (80, 24)
    terminal.file.write("x" * 1_000_000)  # the kernel holds some kilobytes
    terminal.close()


@pytest.mark.parametrize("in_thread", ["", "_thread"])
def test_reports_wait_for_the_server_at_the_latest_when_they_are_finished(tmp_path, in_thread):
    with reports(f"http_100ms{in_thread}", tmp_path) as opened:
        start_s = time.perf_counter()
        opened.write("a")
        opened.write("b")
        if in_thread:  # that the loop goes on meanwhile is tested below, without a clock
            opened.finish()
        assert time.perf_counter() - start_s >= 0.2


def test_in_the_background_the_loop_continues_and_the_order_is_kept(own, tmp_path):
    own.go.clear()
    with reports("own_thread", tmp_path) as opened:
        for line in LINES:
            opened.write(line)
        assert own.lines == []
        own.go.set()
    assert own.lines == LINES  # closing waited for the rest


def test_a_failure_is_raised_once(own, tmp_path):
    words = r"^report must reach own, got Connection refused; set report_to to another sink$"
    with reports("own", tmp_path) as opened:
        with pytest.raises(OSError, match=words):
            opened.write("lost")
        opened.write("next")
    with reports("own_thread", tmp_path) as opened:
        opened.write("lost")
        with pytest.raises(OSError, match=words):
            opened.finish()
        opened.finish()


def test_a_full_disk_is_a_failed_report(tmp_path):
    (tmp_path / "reports.log").symlink_to("/dev/full")
    with reports("file", tmp_path) as opened, pytest.raises(OSError, match="No space left"):
        opened.write("x")


def test_a_server_that_is_gone_is_a_failed_report(tmp_path):
    with reports("http_0ms", tmp_path) as opened:
        server = newest_child()
        server.kill()
        server.wait()
        for _ in range(2):
            with pytest.raises(OSError, match="report must reach http_0ms, got"):
                opened.write("x")


def test_the_server_is_on_this_machine_and_answers_who_knows_its_token(tmp_path):
    with reports("http_0ms", tmp_path):
        listening = [one for one in newest_child().net_connections() if one.status == "LISTEN"]
        (address,) = {one.laddr for one in listening}
        assert address.ip == "127.0.0.1"
        with contextlib.closing(http.client.HTTPConnection(*address)) as stranger:
            stranger.request("POST", "/", b"{}")
            assert stranger.getresponse().status == 404


def test_what_the_server_takes_is_not_the_trials_cpu_time(tmp_path):
    with reports("http_0ms", tmp_path) as opened:
        server = newest_child()
        before_s, own_before_s = sum(server.cpu_times()[:2]), own_cpu_s()
        this_before_s = time.process_time()
        while sum(server.cpu_times()[:2]) < before_s + 0.2:
            opened.write("x")
        # To the 0.01 s that the kernel counts in.
        assert own_cpu_s() - own_before_s <= time.process_time() - this_before_s + 0.1


def test_a_platform_without_terminals_skips_them(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "openpty")
    with pytest.raises(Skip, match=r"needs os\.openpty, which this platform does not have"):
        Reports("terminal", tmp_path)


# --- progress bars --------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [None, 0.25])
def test_a_bar_draws_as_often_as_tqdm_does(loss, monkeypatch):
    pieces, read = [], os.read
    monkeypatch.setattr(os, "read", lambda *args: pieces.append(read(*args)) or pieces[-1])
    bar = PROGRESS["tqdm"]()
    start_s = time.perf_counter()
    for _ in range(200):
        bar.update(loss)
    took_s = time.perf_counter() - start_s
    bar.close()
    bars = [text for text in b"".join(pieces).decode().split("\r") if "it [" in text]
    assert "200it [" in bars[-1]
    if loss is not None:
        assert len(bars) >= 200
    else:  # at most one each 0.1 s, the first and the last
        assert len(bars) <= took_s / 0.1 + 3
    assert ("loss=0.25" in bars[-1]) is (loss is not None)


# --- nothing is left ------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("in_thread", ["", "_thread"])
@pytest.mark.parametrize("name", EVERY_SINK)
def test_closing_leaves_nothing_even_while_a_loader_worker_lives(name, in_thread, tmp_path):
    before = left()
    opened = Reports(f"{name}{in_thread}", tmp_path)
    opened.write("x")
    reading, writing = os.pipe()
    if not (worker := os.fork()):  # inherits all open files
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    opened.close()
    os.close(reading)
    os.close(writing)
    os.waitpid(worker, 0)
    assert left() <= before  # what earlier tests left may end meanwhile
