"""Simulated hardware proves what it stands for, and a disk's rates are kept."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
from fakes import THROTTLED_DISK, fake_info
from small import completed

from labkit.contracts import Skip
from labkit.machine.clock import utc_now
from labkit.records import UNKNOWN, Calibration
from labkit.runs import check_simulated
from labkit.runs.active_run import ActiveRun
from labkit.runs.check_simulated import (
    check_simulated_gpu,
    check_storages_and_links,
    free_loader_utilization,
)
from labkit.runs.kept_checks import FILE
from labkit.runs.launcher import TrialKilled
from labkit.runs.store import create_run
from labkit.runs.thresholds import MAX_RATE_ERROR_SHARE, MIN_FREE_LOADER_UTILIZATION
from labkit.runs.trial_speeds import trial_settings
from tests.fake_clock import FakeClock

RATE = {
    "pattern": "random", "unit": "files", "readers": 2, "requested_per_s": 81.0,
    "delivered_per_s": 80.0, "error_share": 0.012,
}  # fmt: skip
SLOW = {**RATE, "delivered_per_s": 40.0, "error_share": 0.506}


@pytest.fixture(autouse=True)
def as_strict_as_for_users(monkeypatch):
    monkeypatch.setattr(check_simulated, "MIN_FREE_LOADER_UTILIZATION", MIN_FREE_LOADER_UTILIZATION)
    monkeypatch.setattr(check_simulated, "MAX_RATE_ERROR_SHARE", MAX_RATE_ERROR_SHARE)


class Asked(ActiveRun):
    """A run whose fresh processes answer from a list; it counts how often they were asked.

    Its baseline reads real files, and `settings` of the variant hdd are given.
    """

    def __init__(self, results, answers, *, provenance=(), data_hash="h", base=(), **settings):
        self.answers, self.asked = list(answers), 0
        chosen = {"storage": "throttled", "num_workers": 2, "batch_size": 8, **settings}
        info = fake_info(
            ["ssd", "hdd"],
            variants={"ssd": {"storage": "here", "num_workers": 2, **dict(base)}, "hdd": chosen},
            provenance={"machine_id": "m", "kernel": "6.1", **dict(provenance)},
            storages={"throttled": {"hardware": asdict(THROTTLED_DISK)}},
            data={"data_hash": data_hash},
        )
        parts = {"hdd": SimpleNamespace(storage=SimpleNamespace(hardware=THROTTLED_DISK))}
        folder = create_run(results, info)
        super().__init__(folder, info, parts=parts, cancel=None, progress=False)

    def ask(self, job, **arguments):
        self.asked, self.arguments = self.asked + 1, arguments
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def times_asked(results, answers, **changes):
    run = Asked(results, answers, **changes)
    check_storages_and_links(run)
    return run.asked


def test_a_disk_that_delivers_its_rates_is_not_asked_again(tmp_path):
    began = utc_now()
    # A moment of another program is no condemnation.
    assert times_asked(tmp_path, [[SLOW], [RATE]]) == 2
    again = Asked(tmp_path, [])
    check_storages_and_links(again)
    staged = again.info.storages["throttled"]
    assert (again.asked, staged.rates) == (0, (RATE,))
    assert began <= staged.rates_checked_utc <= utc_now()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_workers": 4},
        {"multiprocessing_context": "spawn"},
        {"provenance": {"kernel": "6.2"}},
        {"provenance": {"machine_id": "another"}},
        {"provenance": {"cores": 1}},
        {"provenance": {"python": "3.14"}},
        {"packing": "raw"},
        {"data_hash": "other"},
    ],
    ids=str,
)
def test_a_disk_is_asked_again_where_its_rates_may_be_others(tmp_path, changes):
    assert times_asked(tmp_path, [[RATE]]) == times_asked(tmp_path, [[RATE]], **changes) == 1


def test_a_disk_is_asked_again_once_its_rates_must_be_closer(tmp_path, monkeypatch):
    monkeypatch.setattr(check_simulated, "MAX_RATE_ERROR_SHARE", 0.6)
    check_storages_and_links(Asked(tmp_path, [[SLOW]]))
    monkeypatch.undo()
    monkeypatch.setattr(check_simulated, "MAX_RATE_ERROR_SHARE", MAX_RATE_ERROR_SHARE)
    stricter = Asked(tmp_path, [[RATE]])
    check_storages_and_links(stricter)
    assert stricter.asked == 1
    assert stricter.info.storages["throttled"].rates == (RATE,)


def test_rates_of_data_without_a_manifest_are_not_kept(tmp_path):
    for _ in range(2):  # the second folder may hold other images
        assert times_asked(tmp_path, [[RATE]], data_hash=UNKNOWN) == 1


def test_a_disk_that_is_too_slow_drops_its_variants_and_is_not_kept(tmp_path):
    run = Asked(tmp_path, [[SLOW]] * 3)
    check_storages_and_links(run)
    assert run.info.skipped == {
        "hdd": (
            "throttled must deliver the rates it stands for within 5.0 %, got 40.0 of 81.0 files/s "
            "random with 2 readers; close other programs and run again"
        )
    }
    assert run.info.storages["throttled"].rates == ()
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize(("delivered", "is_out"), [(96.0, False), (94.0, True)])
def test_a_modelled_link_that_is_too_slow_drops_its_variants(tmp_path, delivered, is_out):
    rate = {
        "pattern": "to the other ranks", "unit": "Mbit", "readers": 0, "requested_per_s": 100.0,
        "delivered_per_s": delivered, "error_share": 1 - delivered / 100,
    }  # fmt: skip
    link = {"storage": "here", "device": "cpu", "ranks": 2, "exchange": "100mbit"}
    run = Asked(tmp_path, [[rate]] * 3, **link)
    check_storages_and_links(run)
    assert run.info.links["100mbit between 2 ranks"].rates == (() if is_out else (rate,))
    assert list(run.info.skipped) == ["hdd"] * is_out
    if is_out:
        assert "got 94.0 of 100.0 Mbit/s to the other ranks; " in run.info.skipped["hdd"]


def test_a_check_that_was_killed_says_nothing_of_the_medium(tmp_path):
    run = Asked(tmp_path, [TrialKilled("killed by SIGKILL")])
    with pytest.raises(TrialKilled, match="killed by SIGKILL"):
        check_storages_and_links(run)
    assert run.info.skipped == {}


# --- the simulated GPU ----------------------------------------------------------------------


def with_simulated_gpu(s_per_image=0.01, **changes):
    how = {"device": "simulated", "step": "timed", "batch_size": 8, "num_workers": 0}
    return completed(**how, gpu_images_per_s=1 / s_per_image, **changes)


def test_a_simulated_gpu_that_is_not_busy_enough_gives_no_figure(tmp_path):
    with pytest.raises(Skip) as error:
        check_simulated_gpu(Asked(tmp_path, [0.96]), with_simulated_gpu())
    assert str(error.value) == (
        "the simulated GPU must reach 99.0 % utilization with a free loader, got 96.0 % in the "
        "best of 10 tries with steps of 80.0 ms; close other programs, or make the steps longer "
        "by a larger batch_size, and run again"
    )


def test_a_simulated_gpu_that_is_busy_is_recorded_with_when(tmp_path):
    began = utc_now()
    checked = check_simulated_gpu(Asked(tmp_path, [0.995]), with_simulated_gpu())
    checked_utc = checked.pop("free_loader_checked_utc")
    assert checked == {"free_loader_au": 0.995}
    assert began <= checked_utc <= utc_now()


def test_batches_of_all_sizes_are_trained_on_by_the_same_device(tmp_path):
    gpu = {"device": "simulated", "step": "timed", "gpu_images_per_s": 5000.0}
    run = Asked(tmp_path, [], base={**gpu, "batch_size": 4}, **gpu)
    run.save(calibration=Calibration(images=8))
    # 4 × 0.2 ms, of which a tenth does not grow with the batch.
    for label, per_s in (("ssd", 5000.0), ("hdd", 8 / (0.00008 + 8 * 0.00018))):
        settings = trial_settings(run, label)
        assert (settings.images, settings.gpu_images_per_s) == (8, pytest.approx(per_s))


class Disturbed(FakeClock):
    """A host that other programs keep waiting: number of the wait -> seconds."""

    def __init__(self, late_s):
        super().__init__()
        self.late_s, self.waits = late_s, 0

    def spin_until(self, deadline_s):
        is_waiting = deadline_s > self.time_s
        super().spin_until(deadline_s)
        if is_waiting:
            self.waits += 1
            self.time_s += self.late_s.get(self.waits, 0.0)


def utilization(monkeypatch, photos, late_s):
    """Tries of two steps, which wait once each, after a first epoch of one step."""
    clock = Disturbed(late_s)
    monkeypatch.setattr(check_simulated, "SystemClock", lambda: clock)
    return free_loader_utilization(with_simulated_gpu(data=str(photos)))


def test_one_undisturbed_try_of_the_simulated_gpu_shows_its_own_cost(monkeypatch, photos):
    never, at_first, always = ({}, dict.fromkeys(range(2, 20), 0.05),
                               dict.fromkeys(range(2, 50), 0.05))  # fmt: skip
    assert utilization(monkeypatch, photos, never) == pytest.approx(1.0, abs=1e-3)
    assert utilization(monkeypatch, photos, at_first) == pytest.approx(1.0, abs=5e-3)
    always_late = utilization(monkeypatch, photos, always)
    # The best try counts, not the last.
    assert always_late < utilization(monkeypatch, photos, {**always, 3: 0.02}) < 0.98
