"""What passed a check is remembered for a day, for the same machine, program and question only."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from fakes import THROTTLED_DISK, fake_info

from labkit.contracts import Skip
from labkit.machine.clock import utc_now
from labkit.parts.devices import FREE_LOADER_MIN_AU
from labkit.parts.storage.disks import MAX_ERROR_SHARE
from labkit.parts.storage.slow_disk import ThrottledDisk
from labkit.runs import checks
from labkit.runs.checks import SELF_CHECKS, check_emulator, check_stand_ins
from labkit.runs.process import TrialKilled
from labkit.settings import Settings


@pytest.fixture(autouse=True)
def as_in_a_run(monkeypatch):
    monkeypatch.setattr(checks, "FREE_LOADER_MIN_AU", FREE_LOADER_MIN_AU)
    monkeypatch.setattr(checks, "EMULATOR_TRIES", 5)
    monkeypatch.setattr(checks, "MAX_ERROR_SHARE", MAX_ERROR_SHARE)


PROVENANCE = {"machine_id": "m", "kernel": "6.1"}
RATE = {
    "pattern": "random", "unit": "files", "readers": 2, "requested_per_s": 81.0,
    "delivered_per_s": 80.0, "error_share": 0.012,
}  # fmt: skip
SLOW = {**RATE, "delivered_per_s": 40.0, "error_share": 0.506}


class Asked:
    """A run under way whose fresh processes answer from a list; says how often they were asked."""

    def __init__(self, results, answers, **provenance):
        self.folder = results / "experiment" / "run"
        self.answers, self.asked, self.dropped = list(answers), 0, {}
        self.settings = Settings(
            storage="throttled", num_workers=2, batch_size=8, device="emulated", step="timed"
        )
        self.info = fake_info(
            ["hdd"],
            provenance={**PROVENANCE, **provenance},
            storages={"throttled": {"hardware": asdict(THROTTLED_DISK)}},
            data={"manifest_hash": "h"},
        )

    def ask(self, job, **arguments):
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def remaining(self):
        return {"hdd": self.settings}

    @property
    def variants(self):
        return self.remaining

    def parts(self, label):
        return SimpleNamespace(storage=ThrottledDisk)

    def drop(self, label, status, reason):
        self.dropped[label] = status, reason

    def save(self, **changes):
        self.info = replace(self.info, **changes)


PASSES = [0.995] * 5


def emulator(results, answers, s_per_image=0.01, **provenance):
    run = Asked(results, answers, **provenance)
    settings = replace(run.settings, storage="here", device_speed=1 / s_per_image)
    return check_emulator(run, settings), run.asked


def test_an_emulator_that_passed_is_not_asked_again_for_the_same_steps(tmp_path):
    first, asked = emulator(tmp_path, [0.97, 0.999, 0.995, 0.5, 0.998])
    assert (first["free_loader_au"], asked) == (0.995, 5)
    assert emulator(tmp_path, []) == (first, 0)
    shorter, asked = emulator(tmp_path, [0.992] * 5, s_per_image=0.005)
    assert (shorter["free_loader_au"], asked) == (0.992, 5)


def test_changed_sources_are_checked_anew_also_where_no_revision_is_known(tmp_path, monkeypatch):
    package = tmp_path / "labkit"
    package.mkdir()
    (package / "devices.py").write_text("QUEUED_STEPS = 3")
    monkeypatch.setattr(checks, "PACKAGE", package)
    emulator(tmp_path, PASSES, revision="unknown")
    assert emulator(tmp_path, [], revision="unknown")[1] == 0
    (package / "devices.py").write_text("QUEUED_STEPS = 2")
    assert emulator(tmp_path, PASSES, revision="unknown")[1] == 5


def test_an_emulator_that_passes_only_once_in_many_tries_gives_no_figure(tmp_path):
    with pytest.raises(Skip) as error:
        emulator(tmp_path, [0.5, 0.97, 0.999, *[0.96] * 30])
    assert str(error.value) == (
        "the simulated GPU must reach 99.0 % utilization with a free loader, got 96.0 % in the "
        "median of 5 tries with steps of 80.0 ms; close other programs, or make the steps longer "
        "by a larger batch_size, and run again"
    )
    assert not (tmp_path / SELF_CHECKS).exists()


def test_a_disk_that_delivers_its_rates_is_remembered_with_when(tmp_path):
    began = utc_now()
    first = Asked(tmp_path, [[SLOW], [RATE]])  # a moment of another program is no condemnation
    check_stand_ins(first)
    again = Asked(tmp_path, [])
    check_stand_ins(again)
    assert (first.asked, again.asked) == (2, 0)
    assert again.info.storages == first.info.storages
    facts = again.info.storages["throttled"]
    assert facts.rates == (RATE,)
    assert began <= facts.rates_checked_utc <= utc_now()


def test_a_disk_that_is_too_slow_drops_its_variants_and_is_not_remembered(tmp_path):
    run = Asked(tmp_path, [[SLOW]] * 3)
    check_stand_ins(run)
    assert run.dropped["hdd"] == (
        "skipped",
        "throttled must deliver the rates it stands for within 5.0 %, got 40.0 of 81.0 files/s "
        "random with 2 readers; close other programs and run again",
    )
    assert not (tmp_path / SELF_CHECKS).exists()


@pytest.mark.parametrize(("delivered", "is_out"), [(96.0, False), (94.0, True)])
def test_a_modelled_link_that_is_too_slow_drops_its_variants(tmp_path, delivered, is_out):
    rate = {
        "pattern": "to the other ranks", "unit": "Mbit", "readers": 0, "requested_per_s": 100.0,
        "delivered_per_s": delivered, "error_share": 1 - delivered / 100,
    }  # fmt: skip
    run = Asked(tmp_path, [[rate]] * 3)
    run.save(storages={})
    run.settings = replace(run.settings, device="cpu", ranks=2, exchange="100mbit")
    check_stand_ins(run)
    assert run.info.links["100mbit between 2 ranks"].rates == (() if is_out else (rate,))
    assert list(run.dropped) == ["hdd"] * is_out
    if is_out:
        assert "got 94.0 of 100.0 Mbit/s to the other ranks; " in run.dropped["hdd"][1]


def test_a_check_that_was_killed_says_nothing_of_the_medium(tmp_path):
    run = Asked(tmp_path, [TrialKilled("killed by SIGKILL")])
    with pytest.raises(TrialKilled, match="killed by SIGKILL"):
        check_stand_ins(run)
    assert run.dropped == {}
