"""Where reports go: what arrives at the far end, how a report fails, and that nothing is left."""

import gc
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from labkit.parts.training import metric_server, sinks
from labkit.parts.training.background import QUEUE_REPORTS, in_background
from labkit.parts.training.metric_server import MetricClient
from labkit.parts.training.progress_bar import PROGRESS
from labkit.parts.training.sinks import (
    SINKS,
    LogFile,
    ReportFailed,
    check_name,
    label_of,
    open_sink,
)
from labkit.parts.training.terminal import Terminal
from labkit.trial import Skip
from labkit.usage import own_cpu_s

LINES = [f"step {step} loss {1 / step:.4f} ü" for step in range(1, 301)]
WITH_FAR_END = ["terminal", "notebook", "http_0ms"]


def write_all(sink, lines=LINES):
    for line in lines:
        sink.write(line)
    sink.close()
    return sink


# --- names ----------------------------------------------------------------------------------


def test_every_name_has_a_label_that_says_what_is_stood_in_for():
    assert label_of("http_50ms") == "emulated metric server (50 ms)"
    assert "emulated" in label_of("notebook")
    assert label_of("mine") == "mine"  # a person's own says for itself what it is
    assert all(label_of(name) != name for name in SINKS)


@pytest.mark.parametrize("name", ["htp", "http_ms", "http_-5ms", "http_5.5ms", "http_5s", ""])
def test_another_name_is_refused_with_the_choices(name, tmp_path):
    choices = "file, http_<delay>ms, as http_50ms, notebook, nothing, terminal"
    for ask in (check_name, lambda name: open_sink(name, tmp_path)):
        with pytest.raises(ValueError) as refused:
            ask(name)
        assert str(refused.value) == f"report_to must be one of {choices}, got {name!r}"


# --- what arrives ---------------------------------------------------------------------------


def test_a_log_file_has_a_line_for_every_report_as_soon_as_it_is_written(tmp_path):
    sink = open_sink("file", tmp_path)
    sink.write("first")
    assert (tmp_path / "reports.log").read_text().endswith(" first\n")  # flushed
    write_all(sink)
    logged = (tmp_path / "reports.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in logged] == ["first", *LINES]


@pytest.mark.parametrize("wrap", [lambda sink: sink, in_background], ids=["", "background"])
@pytest.mark.parametrize("name", WITH_FAR_END)
def test_every_line_arrives_in_order(name, wrap, tmp_path):
    opened = open_sink(name, tmp_path)
    write_all(wrap(opened))
    arrived = opened.sink.arrived
    if name == "http_0ms":
        arrived = [json.loads(body)["report"] for body in arrived]
    assert arrived == LINES


def test_a_report_costs_the_loop_no_line_where_it_is_not_written(tmp_path):
    write_all(open_sink("nothing", tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_it_is_a_terminal_to_whoever_asks_and_not_this_process_s():
    program = (
        "import os\n"
        "from labkit.parts.training.terminal import Terminal\n"
        "terminal = Terminal()\n"
        "found = terminal.file.isatty(), tuple(os.get_terminal_size(terminal.file.fileno()))\n"
        "terminal.close()\n"
        "field = open('/proc/self/stat').read().rpartition(')')[2].split()\n"
        "print(*found, field[4])"  # tty_nr
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=True, start_new_session=True, timeout=60,
    )  # fmt: skip
    assert shown.stdout.split("\n")[0] == "True (80, 24) 0"


def test_the_terminal_of_a_session_takes_more_than_it_holds():
    terminal = Terminal()
    line = "x" * 1000
    write_all(terminal, [line] * 1000)  # a megabyte: whoever prints has waited for the reader
    assert terminal.arrived == [line] * 1000


def test_the_server_answers_no_sooner_than_it_says(tmp_path):
    opened = open_sink("http_20ms", tmp_path)
    start_s = time.perf_counter()
    for line in LINES[:5]:
        opened.write(line)
    took_s = time.perf_counter() - start_s
    opened.close()
    waited_s = opened.sink.waited_s
    assert len(waited_s) == 5 and min(waited_s) >= 0.02
    assert took_s >= sum(waited_s)  # and whoever reports waits for it


# --- failures -------------------------------------------------------------------------------


@pytest.fixture
def free_url():
    """The URL of a server that is down."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def own(monkeypatch, make):
    monkeypatch.setitem(SINKS, "mine", make)
    return "mine"


def test_a_server_that_is_down_is_named(monkeypatch, free_url, tmp_path):
    sink = open_sink(own(monkeypatch, lambda folder: MetricClient(free_url)), tmp_path)
    for _ in range(2):  # and it may be tried again
        with pytest.raises(ReportFailed) as failed:
            sink.write("x")
        assert str(failed.value) == (
            f"report must reach {free_url}, got connection refused; "
            "start the server or report elsewhere"
        )
    sink.close()


def test_a_server_that_comes_up_later_gets_the_next_report(monkeypatch, free_url, tmp_path):
    sink = open_sink(own(monkeypatch, lambda folder: MetricClient(free_url)), tmp_path)
    with pytest.raises(ReportFailed):
        sink.write("lost")
    with server(200, free_url) as bodies:
        sink.write("taken")
        assert bodies == [b'{"report": "taken"}']
    sink.close()


def test_a_server_that_hangs_fails_after_the_time_out(monkeypatch, tmp_path):
    assert metric_server.TIMEOUT_S == 2.0
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and never answers
        url = "http://127.0.0.1:{1}".format(*silent.getsockname())
        name = own(monkeypatch, lambda folder: MetricClient(url, timeout_s=0.1))
        sink = open_sink(name, tmp_path)
        start_s = time.perf_counter()
        with pytest.raises(ReportFailed) as failed:
            sink.write("x")
        assert time.perf_counter() - start_s >= 0.1
        assert str(failed.value) == (
            f"report must reach {url}, got no answer within 0.1 s; "
            "start the server or report elsewhere"
        )
        sink.close()


class server:  # noqa: N801
    """Answers every POST with one status."""

    def __init__(self, status, url="http://127.0.0.1:0"):
        bodies = self.bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        self.server = http.server.ThreadingHTTPServer(address, Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self.bodies

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_a_server_that_refuses_says_how(monkeypatch, tmp_path):
    refusing = server(500)
    sink = open_sink(own(monkeypatch, lambda folder: MetricClient(refusing.url)), tmp_path)
    with refusing as bodies:
        for _ in range(3):
            with pytest.raises(ReportFailed, match="got status 500 Internal Server Error; start"):
                sink.write("x")
        assert len(bodies) == 3  # the connection is used again
        sink.close()


def test_what_answers_without_http_is_a_failed_report(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as odd:
        url = "http://127.0.0.1:{1}".format(*odd.getsockname())

        def answer():
            connection, _ = odd.accept()
            connection.recv(1 << 16)
            connection.sendall(b"what?\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        sink = open_sink(own(monkeypatch, lambda folder: MetricClient(url)), tmp_path)
        with pytest.raises(ReportFailed, match=r"got no HTTP: BadStatusLine\('what\?"):
            sink.write("x")
        thread.join()
        sink.close()


def test_only_http_urls_are_metric_servers():
    with pytest.raises(ValueError, match="url must be http://<host>:<port>, got 'ftp://x'"):
        MetricClient("ftp://x")


class Raises:
    def __init__(self, error, every=1):
        self.error, self.every, self.lines, self.closed = error, every, [], 0

    def write(self, line):
        self.lines.append(line)
        if len(self.lines) % self.every == 0:
            raise self.error

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("no\nmore"), "RuntimeError: no more"),
        (KeyError(), "KeyError"),
        (OSError(28, "No space left on device"), "no space left on device"),
        (BrokenPipeError(), "BrokenPipeError"),
    ],
)
def test_a_sink_that_raises_fails_with_one_line(error, why, monkeypatch, tmp_path):
    sink = open_sink(own(monkeypatch, lambda folder: Raises(error)), tmp_path)
    with pytest.raises(ReportFailed) as failed:
        sink.write("x")
    assert str(failed.value) == (
        f"report must reach the sink 'mine', got {why}; mend it or report elsewhere"
    )
    assert failed.value.__cause__ is error
    sink.close()


def test_a_full_disk_is_not_passed_over_as_logging_does(monkeypatch, tmp_path):
    (tmp_path / "reports.log").symlink_to("/dev/full")
    sink = open_sink("file", tmp_path)
    with pytest.raises(ReportFailed) as failed:
        sink.write("x")
    assert str(failed.value) == (
        f"report must reach {tmp_path}/reports.log, got no space left on device; "
        "make room or report elsewhere"
    )
    sink.close()


def test_a_log_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ReportFailed, match="got no such file or directory"):
        open_sink("file", tmp_path / "gone")


def test_a_terminal_whose_program_is_gone_fails_and_closes(tmp_path):
    sink = open_sink("terminal", tmp_path)
    (reader,) = psutil.Process().children()
    reader.kill()
    reader.wait()
    with pytest.raises(ReportFailed, match="report must reach the terminal, got input/output"):
        sink.write("x")
    sink.close()
    sink.close()


@pytest.mark.parametrize("name", ["notebook", "http_0ms"])
def test_a_far_end_that_is_gone_hinders_no_close(name, tmp_path):
    sink = open_sink(name, tmp_path)
    sink.write("x")
    (far_end,) = psutil.Process().children()
    far_end.kill()
    far_end.wait()
    sink.close()
    sink.close()
    assert sink.sink.arrived == []


@pytest.mark.parametrize("name", WITH_FAR_END)
def test_a_far_end_that_cannot_start_is_skipped_and_leaves_nothing(name, tmp_path, monkeypatch):
    before = left()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Skip, match="could not be started"):
        open_sink(name, tmp_path)
    assert_nothing_left(before)


def test_without_pseudo_terminals_it_is_skipped(monkeypatch):
    monkeypatch.delattr(os, "openpty")
    with pytest.raises(Skip, match=r"needs os\.openpty, which this platform does not have"):
        Terminal()


def test_without_ipykernel_it_is_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel.iostream", None)
    with pytest.raises(Skip, match="is not installed; pip install ipykernel"):
        sinks.NotebookOutput()


# --- in the background ----------------------------------------------------------------------


class Held:
    """Writes nothing until it is let go."""

    def __init__(self):
        self.go, self.lines, self.closed = threading.Event(), [], False

    def write(self, line):
        assert self.go.wait(30)
        self.lines.append(line)

    def close(self):
        self.closed = True


def test_the_loop_goes_on_until_the_queue_is_full_and_close_writes_the_rest():
    held = Held()
    sink = in_background(held)
    lines = [str(number) for number in range(QUEUE_REPORTS)]
    for line in lines:
        sink.write(line)
    assert held.lines == []  # and nobody has waited
    held.go.set()
    sink.close()
    sink.close()
    assert (held.lines, held.closed) == (lines, True)


def test_a_full_queue_makes_the_loop_wait():
    held = Held()
    sink = in_background(held)
    over = QUEUE_REPORTS + 2  # one is in the thread's hand
    loop = threading.Thread(target=lambda: [sink.write(str(n)) for n in range(over)])
    loop.start()
    loop.join(0.2)
    assert loop.is_alive()
    held.go.set()
    loop.join()
    sink.close()
    assert held.lines == [str(number) for number in range(over)]


def wait_until(condition):
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(0.005)


def test_a_failure_behind_the_loop_is_raised_once_by_the_next_write():
    raises = Raises(ReportFailed("report must reach x, got y; z"), every=2)
    sink = in_background(raises)
    for line in "ab":
        sink.write(line)
    wait_until(lambda: sink._failure is not None)
    with pytest.raises(ReportFailed, match=r"^report must reach x, got y; z$"):
        sink.write("c")
    sink.close()  # said already
    assert (raises.lines, raises.closed) == (["a", "b", "c"], 1)  # c was taken all the same


def test_a_failure_that_nobody_heard_of_is_raised_by_close_with_what_was_dropped():
    held = Held()

    class Fails(Held):
        def write(self, line):
            held.write(line)
            raise ReportFailed("report must reach x, got y; z")

    fails = Fails()
    sink = in_background(fails)
    for line in "abc":
        sink.write(line)
    held.go.set()
    with pytest.raises(ReportFailed, match=r"z \(2 reports behind it were dropped\)$"):
        sink.close()
    sink.close()
    assert (held.lines, fails.closed) == (["a"], True)


# --- progress bars --------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [None, 0.25])
@pytest.mark.parametrize("name", ["tqdm", "tqdm_every_step"])
def test_a_bar_draws_as_often_as_tqdm_does(name, loss):
    bar = PROGRESS[name](200)
    start_s = time.perf_counter()
    for _ in range(200):
        bar.update(loss)
    took_s = time.perf_counter() - start_s
    bar.close()
    bar.close()
    drawn = [line for line in bar.terminal.arrived if line.strip()]
    assert "200/200" in drawn[-1]
    assert all("loss=0.25" in line for line in drawn[1:]) is (loss is not None)
    if name == "tqdm_every_step" or loss is not None:
        assert len(drawn) >= 200
    else:  # at most one each 0.1 s, the first and the last
        assert len(drawn) <= took_s / 0.1 + 3


def test_a_bar_without_a_known_end_counts():
    bar = PROGRESS["tqdm"](None)
    bar.update(None)
    bar.close()
    assert "1it [" in bar.terminal.arrived[-1]


def test_no_progress_starts_nothing():
    before = left()
    bar = PROGRESS["none"](10)
    bar.update(0.5)
    assert_nothing_left(before)
    bar.close()


# --- nothing is left ------------------------------------------------------------------------


def left():
    """Files, threads (the kernel's count, so libraries' own too), processes, shared memory."""
    this = psutil.Process()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "files": sorted(Path("/proc/self/fd").iterdir()),
        "threads": this.num_threads(),
        "processes": [child.pid for child in this.children(recursive=True)],
        "shm": [line.split()[5:] for line in maps if "/dev/shm" in line],
        "helpers": os.environ.get("LABKIT_HELPERS"),
    }


def assert_nothing_left(before):
    # A thread that was waited for is the kernel's for a moment longer.
    wait_until(lambda: left()["threads"] <= before["threads"])
    found = left()
    assert {**found, "threads": 0} == {**before, "threads": 0}


@pytest.mark.parametrize(
    ("name", "times"),
    [("nothing", 1000), ("file", 1000), ("terminal", 8), ("notebook", 8), ("http_0ms", 8)],
)
def test_many_opened_and_closed_leave_nothing(name, times, tmp_path):
    def once():
        sink = in_background(open_sink(name, tmp_path))
        sink.write("x")
        sink.close()
        sink.close()

    once()  # what a library starts once
    before = left()
    for _ in range(times):
        once()
    assert_nothing_left(before)


def test_a_notebooks_thread_ends_without_a_complaint(tmp_path, caplog):
    write_all(open_sink("notebook", tmp_path))
    gc.collect()  # asyncio complains when it finds what never ended
    assert caplog.records == []


def test_bars_leave_nothing():
    def once():
        bar = PROGRESS["tqdm"](2)
        bar.update(0.5)
        bar.close()

    once()
    before = left()
    for _ in range(5):
        once()
    assert_nothing_left(before)


OPENS_ALL = """
import os, psutil, sys, time
from pathlib import Path
from labkit.parts.training.progress_bar import PROGRESS
from labkit.parts.training.background import in_background
from labkit.parts.training.sinks import open_sink
kept = [in_background(open_sink(name, Path(sys.argv[1]))) for name in sys.argv[2:]]
kept.append(PROGRESS["tqdm"](9))
for sink in kept[:-1]:
    sink.write("x")
print(*[child.pid for child in psutil.Process().children()], flush=True)
time.sleep(600)
"""


def test_a_killed_trial_leaves_no_process(tmp_path):
    trial = subprocess.Popen(
        [sys.executable, "-c", OPENS_ALL, tmp_path, *WITH_FAR_END, "http_50ms"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with trial:
        pids = [int(word) for word in trial.stdout.readline().split()]
        far_ends = [psutil.Process(pid) for pid in pids]
        trial.send_signal(signal.SIGKILL)
    assert len(far_ends) == 5
    _, alive = psutil.wait_procs(far_ends, timeout=30)
    assert alive == []


@pytest.mark.parametrize("name", WITH_FAR_END)
def test_closing_waits_for_no_loader_worker(name, tmp_path):
    """A forked worker holds all of the trial's pipes open for as long as it lives."""
    sink = open_sink(name, tmp_path)
    sink.write("x")
    (far_end,) = psutil.Process().children()
    reading, writing = os.pipe()
    if not (worker := os.fork()):
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        assert far_end.cmdline()[-1].endswith("far_ends.py")
        sink.close()
        assert sink.sink.arrived  # it was asked, and not killed
        assert not far_end.is_running()
    finally:
        os.close(writing)
        os.waitpid(worker, 0)


def test_what_a_far_end_takes_is_none_of_the_trials_cpu_time(tmp_path):
    sink = open_sink("http_0ms", tmp_path)
    (far_end,) = psutil.Process().children()
    before_s, own_before_s = sum(far_end.cpu_times()[:2]), own_cpu_s()
    this_before_s = time.process_time()
    while sum(far_end.cpu_times()[:2]) < before_s + 0.2:
        sink.write("x")
    # To the 0.01 s that the kernel counts in, and what asking takes.
    assert own_cpu_s() - own_before_s <= time.process_time() - this_before_s + 0.1
    sink.close()


def test_a_log_file_is_no_logger_that_stays(tmp_path):
    import logging

    before = dict(logging.Logger.manager.loggerDict), len(logging._handlerList)
    write_all(LogFile(tmp_path))
    assert (dict(logging.Logger.manager.loggerDict), len(logging._handlerList)) == before
