"""The distance that is stood in for: its timetable by a fake clock, its server by real sockets."""

import os
import re
import sys
from itertools import pairwise

import psutil
import pytest

from labkit.helper import HELPERS
from labkit.parts.storage import distance
from labkit.parts.storage.distance import ADDRESSES, Distance, Line, parse, served
from labkit.parts.storage.distance_server import MAX_CREDIT_S, Link, Way, find_file
from labkit.trial import Skip
from tests.fake_clock import FakeClock

NEAR = Distance(rtt_ms=0, mbit_per_s=8000)


# --- names ----------------------------------------------------------------------------------


def test_a_name_says_how_far():
    assert parse("far_20ms_1000mbit") == Distance(rtt_ms=20, mbit_per_s=1000)
    far = parse("far_5ms_100mbit_staged")
    assert (far.rtt_s, far.bytes_per_s, far.staged) == (0.005, 12.5e6, True)
    assert far.label == "emulated distance(5 ms, 100 Mbit/s, staged)"
    assert parse("far_20ms_1000mbit").label == "emulated distance(20 ms, 1,000 Mbit/s)"


@pytest.mark.parametrize(
    "name", ["far", "far_20_1000", "far_20ms_0mbit", "far_-1ms_9mbit", "far_1ms_9mbit_", "hdd"]
)
def test_other_names_say_nothing(name):
    assert parse(name) is None


# --- the timetable --------------------------------------------------------------------------


def way(rtt_s=0.02, bytes_per_s=1e6, own_s=0.0):
    return Way(link=Link(bytes_per_s), clock=FakeClock(), rtt_s=rtt_s, own_s=own_s)


def deliver(way, sizes, *, asked_s=0.0, first=False):
    """When each piece was sent."""
    sent_s = []
    due_s = way.due_s(asked_s, first=first)
    way.deliver([bytes(size) for size in sizes], due_s, lambda _: sent_s.append(way.clock.now()))
    return sent_s


def test_a_request_takes_one_round_trip_and_a_new_connection_one_more():
    assert deliver(way(), [1000]) == pytest.approx([0.02 + 0.001])
    assert deliver(way(), [1000], first=True) == pytest.approx([0.04 + 0.001])


def test_this_machines_own_time_is_part_of_the_round_trip():
    assert deliver(way(own_s=0.003), [1000], asked_s=5.0) == pytest.approx([5.018])
    assert deliver(way(rtt_s=0.0, own_s=0.003), [1000], asked_s=5.0) == pytest.approx([5.001])


def test_one_link_serves_all_connections_one_after_the_other():
    link = Link(1e6)
    # Two answers that could leave at the same time, and one after the link has been idle.
    assert [link.book(1.0, 50_000), link.book(1.0, 50_000)] == pytest.approx([1.05, 1.10])
    assert link.book(3.0, 50_000) == pytest.approx(3.05)


def test_a_late_awakening_is_made_up_for():
    class LateClock(FakeClock):
        def sleep_until(self, deadline_s):
            super().sleep_until(deadline_s)
            self.time_s += 0.004  # each time; a piece takes 0.010

    late = Way(link=Link(1e6), clock=LateClock(), rtt_s=0.0)
    sent_s = deliver(late, [10_000] * 20)
    assert sent_s[-1] == pytest.approx(20 * 0.010 + 0.004)


def test_who_does_not_take_its_bytes_earns_no_faster_link():
    slow = way(rtt_s=0.0)
    sent_s = []

    def send(piece):
        sent_s.append(slow.clock.now())
        slow.clock.sleep(1.0 if len(sent_s) == 1 else 0.0)  # a reader that stops for a second

    slow.deliver([bytes(10_000)] * 30, 0.0, send)
    assert sent_s[1] == pytest.approx(sent_s[0] + 1.0)
    # What was not taken is given at most MAX_CREDIT_S faster.
    assert sent_s[-1] == pytest.approx(1.01 + 29 * 0.010 - MAX_CREDIT_S)
    assert all(a <= b for a, b in pairwise(sent_s))


# --- the server -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("far")
    (tmp_path / "data" / "a b").mkdir(parents=True)
    (tmp_path / "data" / "a b" / "ä#.jpg").write_bytes(b"image" * 1000)
    (tmp_path / "secret.txt").write_text("not yours")
    (tmp_path / "boxes.json").write_text("{}")
    return tmp_path / "data"


@pytest.fixture(scope="module")
def served_folder(folder):
    beside = {"boxes.json": folder.parent / "boxes.json"}
    with served(NEAR, "far_0ms_8000mbit", folder, folder, beside) as address:
        yield address


def ask(address, path):
    """The body's bytes, or how it was refused."""
    with Line(address) as line:
        try:
            return line.get(path)[0]
        except OSError as error:
            return str(error)


def test_it_gives_the_data_and_what_lies_beside_it(served_folder):
    assert ask(served_folder, "data/a%20b/%C3%A4%23.jpg") == 5000
    assert ask(served_folder, "beside/boxes.json") == 2
    assert ask(served_folder, "zeros/1000000") == 1_000_000


@pytest.mark.parametrize(
    "path",
    [
        "data/../secret.txt", "data/%2e%2e/secret.txt", "data/a%20b/../../secret.txt",
        "data/..%2fsecret.txt", "data/..%5csecret.txt", "data//etc/passwd", "data/%2fetc/passwd",
        "data/", "data", "data/a%20b", "beside/../secret.txt", "beside/secret.txt", "",
        "../data/a%20b/%C3%A4%23.jpg", "data/gone.jpg", "data/a%00b", "zeros/-1", "zeros/x",
    ],
)  # fmt: skip
def test_nothing_else_is_to_be_had(served_folder, path):
    assert ask(served_folder, path) == "status 404"


def test_without_the_secret_nothing_is_to_be_had(served_folder):
    address = served_folder.rpartition("/")[0]
    for secret in ("", "wrong", "data"):
        assert ask(f"{address}/{secret}", "data/a%20b/%C3%A4%23.jpg") == "status 404"


def test_it_listens_on_loopback_only(served_folder):
    for server in children():
        listening = [c.laddr.ip for c in server.net_connections() if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]


def children():
    found = psutil.Process().children()
    return {child for child in found if any("distance_server" in w for w in child.cmdline())}


def test_it_is_found_while_it_is_up_and_nothing_is_left(folder):
    name, before = "far_0ms_8mbit", [os.environ.get(one, "{}") for one in (ADDRESSES, HELPERS)]
    others = children()
    with served(NEAR, name, folder, folder, {}) as address:
        (server,) = children() - others
        assert distance.address(name, folder) == address
        assert str(server.pid) in os.environ[HELPERS].split()
        with served(NEAR, "far_0ms_9mbit", folder, folder, {}) as other:
            assert distance.address("far_0ms_9mbit", folder) == other != address
        assert distance.address("far_0ms_9mbit", folder) == ""
    assert (distance.address(name, folder), children()) == ("", others)
    assert [os.environ.get(one, "{}") for one in (ADDRESSES, HELPERS)] == before
    with pytest.raises(OSError):
        Line(address)


def test_a_server_that_cannot_start_is_skipped(folder, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Skip, match="the distance's server could not be started"):
        served(NEAR, "far_0ms_8000mbit", folder, folder, {}).__enter__()


# --- what it measures of itself -------------------------------------------------------------


def test_it_waits_as_long_as_it_says_and_no_shorter(folder):
    """Only from below: how late a busy machine is, is for `measure` to judge."""
    far = Distance(rtt_ms=40, mbit_per_s=80)
    with served(far, "far_40ms_80mbit", folder, folder, {}) as address, Line(address) as line:
        own_s = 0.02  # what it may have taken off
        assert line.get("zeros/0")[1] >= 2 * 0.04 - own_s
        assert line.get("zeros/0")[1] >= 0.04 - own_s
        assert line.get("zeros/1000000")[1] >= 0.04 + 0.1 - own_s


def test_measure_compares_with_what_is_requested_and_refuses_another_distance(folder):
    far = Distance(rtt_ms=5, mbit_per_s=80)
    with served(far, "far_5ms_80mbit", folder, folder, {}) as address:
        rates = distance.measure(far, address, 0.2)
        found = [(rate.pattern, rate.unit, rate.readers, rate.requested_per_s) for rate in rates]
        assert found == [
            ("round trips", "requests", 1, pytest.approx(200)),
            ("together", "bytes", 1, 1e7),
            ("together", "bytes", 4, 1e7),
        ]
        # The same server under a name that promises something else.
        other = distance.measure(Distance(rtt_ms=2, mbit_per_s=160), address, 0.1)
        assert [rate.refused for rate in other] == [True] * 3


def test_measuring_what_is_gone_is_skipped(folder):
    with served(NEAR, "far_0ms_8000mbit", folder, folder, {}) as address:
        pass
    with pytest.raises(Skip, match="the distance's server does not answer"):
        distance.measure(NEAR, address, 0.1)


def test_links_inside_the_data_are_followed_as_the_folder_follows_them(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.jpg").write_bytes(b"x")
    (folder / "link").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert find_file("data/link/x.jpg", folder, {}) == folder / "link" / "x.jpg"


def test_the_address_holds_a_secret_that_no_process_list_shows(folder):
    with served(NEAR, "far_0ms_8000mbit", folder, folder, {}) as address:
        secret = address.rpartition("/")[2]
        assert re.fullmatch(r"[\w-]{20,}", secret)
        assert all(secret not in " ".join(child.cmdline()) for child in children())
