"""Advice for data of a size is read from measured rows of this machine, and from nothing else."""

import re
from dataclasses import replace

import pytest
from fake_runs import fake_groups, save_run
from fakes import REAL_DISK, THROTTLED_DISK, fake_epoch, fake_info, fake_trial

import labkit as lab
from labkit.cli import main
from labkit.machine import hardware
from labkit.report.run import Run
from labkit.settings import Settings

# Seconds of an epoch of 1,000 images, 100 MB, at 0 and 100 % in memory.
EPOCH_S = {"hard disk": (10.0, 2.0), "packed, in order": (5.0, 2.0), "SSD": (2.0, 2.0)}
PEAK_BYTES = 4_000_000_000


def memory_run(machine_id=None, reads=True, epoch_s=EPOCH_S):
    """A run of memory at two shares, in which a copy reads 10 MB/s and packing 100 MB/s."""
    percents = {f"{percent} % in memory": percent for percent in (0, 100)}

    def make(group, arm, block, role):
        time_s = epoch_s[arm][percents[group] == 100] * (1 + 0.01 * block)
        storage = REAL_DISK if arm == "SSD" else THROTTLED_DISK
        epoch = fake_epoch(time_s, images=1000, steps=10)
        arrivals_s = tuple(time_s / 10 * step for step in range(1, 11))
        epoch = replace(epoch, first_batch_s=time_s / 10, compute_s=0.0, arrivals_s=arrivals_s)
        return replace(
            fake_trial(arm, block, labels={"storage": storage}),
            experiment="memory",
            epochs=(epoch,),
            cache_proof={"resident_share_before": percents[group] / 100},
            settings={"cache": percents[group]},
            peak_pss_bytes=PEAK_BYTES,
        )

    told, trials = fake_groups(dict.fromkeys(percents, epoch_s), make)
    groups = told["groups"]
    pack = {"pack_s": 1.0, "source_bytes": 100_000_000, "bytes": 100_000_000}
    info = fake_info(
        [*groups], experiment="memory", **told,
        provenance={"machine_id": machine_id or hardware.provenance().machine_id},
        data={"bytes": 100_000_000, "images": 1000},
        costs={f"{group}: packed, in order": pack for group in percents},
        reads={label: {"bytes_per_s": 10e6 if reads else None} for label in groups},
        variants={label: {"cache": percents[group]} for label, group in groups.items()},
    )  # fmt: skip
    return Run(folder="memory", info=info, trials=trials)


def rows(table):
    return {row[0]: row[1:] for row in table.rows}


def test_times_are_read_at_the_share_that_memory_can_hold(tmp_path):
    save_run(tmp_path, memory_run())
    table = lab.advise(100, 54, results=tmp_path)
    # (54 - 4) / 100 GB: halfway. 1,000 times as many images as in the run.
    assert table.heading[0] == (
        "100 GB of images and 54 GB of memory: at most 50.0 % of the data is in memory when an "
        "epoch starts"
    )
    assert table.heading[1].startswith("Throttled storage (81 reads/s): hard disk; ")
    assert any("less the 4.0 GB that training and its workers took" in x for x in table.notes)
    found = rows(table)
    assert found["hard disk"][:4] == ["1 h 41 min", "–", "–", "–"]
    # Copying reads 100 GB at 10 MB/s: 10,000 s; packing takes 1,000 s more.
    assert found["packed, in order"][:4] == ["58 min 55 s", "42 min 5 s", "3 h 3 min", "5 epochs"]
    assert found["SSD, copied first"][:4] == ["33 min 40 s", "1 h 7 min", "2 h 47 min", "3 epochs"]
    assert found["SSD, data kept there"][2:4] == ["0 s", "0 epochs"]
    assert found["hard disk"][4] == "0 %: 1.000; 100 %: 1.000"


def test_data_that_memory_holds_gains_nothing_from_a_faster_disk(tmp_path):
    save_run(tmp_path, memory_run())
    table = lab.advise(20, 54, results=tmp_path)
    assert "at most 100.0 %" in table.heading[0]
    assert rows(table)["SSD, copied first"][3] == "no saving shown"


def test_a_saving_must_be_shown_between_the_shares_too(tmp_path):
    # The same time on average, but all files in memory make packing's vary much.
    run = memory_run(epoch_s={"hard disk": (10.0, 9.0), "packed, in order": (9.0, 8.5)})
    noise = {"100 % in memory: packed, in order": (0.5, 1.0, 1.5)}
    trials = []
    for trial in run.trials:
        by = noise.get(trial.variant, (1.0,) * 3)[trial.block]
        (epoch,) = trial.epochs
        arrivals_s = tuple(by * arrived_s for arrived_s in epoch.arrivals_s)
        epoch = replace(epoch, epoch_s=by * epoch.epoch_s, arrivals_s=arrivals_s)
        trials.append(replace(trial, epochs=(epoch,)))
    save_run(tmp_path, replace(run, trials=tuple(trials)))
    assert rows(lab.advise(100, 54, results=tmp_path))["packed, in order"][3] == "no saving shown"


def test_what_was_not_measured_has_no_figure(tmp_path):
    save_run(tmp_path, memory_run(reads=False))
    found = rows(lab.advise(100, 54, results=tmp_path))
    assert found["SSD, copied first"][2:4] == ["–", "not known"]
    assert found["packed, in order"][2:4] == ["–", "not known"]


def test_a_way_that_could_not_be_measured_is_named_with_its_reason(tmp_path):
    run = memory_run(epoch_s={arm: EPOCH_S[arm] for arm in ("hard disk", "SSD")})
    why = "packing raw needs room"
    labels = {f"{group}: packed, in order": group for group in run.info.baselines}
    info = replace(
        run.info,
        groups={**run.info.groups, **labels},
        names={**run.info.names, **dict.fromkeys(labels, "packed, in order")},
        variants={**run.info.variants, **dict.fromkeys(labels, Settings(cache=0))},
        skipped=dict.fromkeys(labels, why),
    )
    save_run(tmp_path, replace(run, info=info))
    table = lab.advise(100, 54, results=tmp_path)
    assert "packed, in order" not in rows(table)
    assert [note for note in table.notes if why in note] == [f"packed, in order: skipped: {why}"]


def test_the_command_prints_the_table_or_says_what_to_run(tmp_path, capsys):
    asked = ["advise", "--data-gb", "300", "--memory-gb", "64", "--results", str(tmp_path)]
    save_run(tmp_path, memory_run(machine_id="another"))
    assert main(asked) == 1
    assert capsys.readouterr().err == (
        "labkit: results must hold a finished run of memory on this machine, got none in "
        f"{tmp_path}; make one with: labkit run memory (--mode full for verdicts)\n"
    )
    save_run(tmp_path, memory_run())
    assert main(asked) == 0
    assert "at most 20.0 % of the data" in capsys.readouterr().out


@pytest.mark.parametrize("size", [0, -3, 1e300, True, float("nan"), float("inf"), "much"])
def test_a_size_that_is_none_is_refused_in_one_line(tmp_path, size):
    for given in ({"data_gb": size, "memory_gb": 64}, {"data_gb": 300, "memory_gb": size}):
        with pytest.raises(
            ValueError,
            match=f"must be a number above 0 and at most .*, got {re.escape(repr(size))}; ",
        ):
            lab.advise(**given, results=tmp_path)


def test_the_form_shows_the_table_or_what_is_missing(tmp_path):
    form = lab.advise_form(100, results=tmp_path)
    (sizes, shown) = form.children
    assert "labkit run memory" in shown.value
    save_run(tmp_path, memory_run())
    sizes.children[1].value = 54
    assert "at most 50.0 %" in shown.value and "SSD, copied first" in shown.value
    sizes.children[0].value = -1
    assert shown.value.startswith("data_gb must be a number above 0")
