"""Ranks: they share the images and the workers, end together, and tell what went wrong in one."""

import contextlib
import os
import re
import signal
import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path

import psutil
import pytest
import torch
from kernel import needs_fork
from small import compare, completed

import labkit as lab
from labkit.claims.ledger import answers
from labkit.contracts import Skip
from labkit.machine import gpu
from labkit.machine.clock import SystemClock
from labkit.parts.decoding import decode_opencv
from labkit.parts.devices import CpuDevice
from labkit.parts.training import STEPS
from labkit.pipeline import Order, build, open_loader
from labkit.records import Hardware
from labkit.resolve import resolve

pytestmark = needs_fork
IMAGES = 16
SLOWEST = ("100mbit", "50mbit")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_deliver_every_image_once_each_epoch_in_another_order(photos, ranks):
    settings = completed(
        data=str(photos), images=IMAGES, ranks=ranks, num_workers=4, batch_size=2,
        preprocessor="vectorized", device="cpu", step="nothing",
    )  # fmt: skip
    opened = [open_loader(resolve(settings), rank=rank) for rank in range(ranks)]
    assert {loader.num_workers for _, loader in opened} == {4 // ranks}
    epochs = []
    for number in range(2):
        shares = []
        for source, loader in opened:
            source.order.epoch = number
            shares.append([int(i) for batch in loader for i in batch["sample_id"]])
        assert {len(share) for share in shares} == {IMAGES // ranks}
        epochs.append(shares)
    first, second = (list(chain.from_iterable(shares)) for shares in epochs)
    assert sorted(first) == sorted(second) == sorted(opened[0][0].order.image_ids)
    assert first != second


def of_trials():
    """List the processes of trials, whoever their parent is now, and the files in which ranks meet.

    They were forked from the server, which goes on for the next run, and have its environment.
    """
    servers = psutil.Process().children()
    environments = [server.environ() for server in servers]
    found = set(Path(tempfile.gettempdir()).glob("pymp-*/ranks-*"))
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process not in servers and process.environ() in environments:
                found.add(process)
    return found


def run(photos, results, variants, **base):
    before = of_trials()
    found = compare(photos, results, variants, {"images": IMAGES, **base})
    assert of_trials() - before == set()
    return found


def test_a_row_of_several_ranks_is_of_all_their_images(photos, tmp_path):
    # Six batches at least: fewer have no steady rate with two workers.
    speed = {"device": "simulated", "step": "timed", "gpu_images_per_s": 2_000.0, "batch_size": 1}
    found = run(photos, tmp_path, {"1": {}, "2": {"ranks": 2}}, **speed, num_workers=2)
    assert {row.status for row in found.summary.rows} == {"ok"}
    assert {trial.images for trial in found.trials} == {IMAGES}
    assert {t.variant: t.epochs[0].steps for t in found.trials} == {"1": 16, "2": 8}
    assert found.summary.rows[1].labels["ranks"] == (
        "2 processes, each with a simulated GPU, no gradients exchanged"
    )
    shown = " ".join(str(found.table()).split())  # without its line breaks
    assert "2 need 4,000; this machine loads " in shown


@pytest.fixture(scope="module")
def exchanged(photos, tmp_path_factory):
    chosen = lab.experiment(
        "communication", data=str(photos), images=IMAGES, input_px=64, batch_size=4
    )
    # Over the slowest links a step takes seconds.
    few = {
        name: variant
        for name, variant in chosen.variants.items()
        if variant.settings.exchange not in SLOWEST
    }
    chosen = replace(chosen, variants=few)
    return lab.run(chosen, blocks=1, results=tmp_path_factory.mktemp("results"), progress=False)


def test_a_slow_link_delays_the_same_exchange(exchanged):
    assert {row.status for row in exchanged.summary.rows} == {"ok"}
    by_link = {trial.settings["exchange"]: trial for trial in exchanged.trials}
    slow, here = by_link["400mbit"], by_link["all_reduce"]
    # What a rank computes with the other's gradients is the same over any network.
    assert slow.loss == pytest.approx(here.loss, rel=1e-5)
    assert abs(by_link["noop"].loss / here.loss - 1) > 1e-5
    step = STEPS["small_classifier"](completed(step="small_classifier"), CpuDevice())
    sent_bytes = sum(weights.nbytes for weights in step.state()["model"].values())
    (epoch,) = slow.epochs
    assert epoch.epoch_s > epoch.steps * sent_bytes * 8 / 400e6  # a busy machine adds to that
    assert Hardware("network", "simulated", "400 Mbit/s") in slow.hardware
    assert here.labels["ranks"] == "2 processes, gradients exchanged by gloo, not buffers"
    shown = " ".join(str(exchanged.table()).split())
    assert "Simulated network: 400 Mbit/s" in shown
    assert " of 400.0 Mbit/s to the other ranks (tolerance: 5 %; checked " in shown
    (rate,) = exchanged.info.links["400mbit between 2 ranks"].rates
    assert 0 < rate["delivered_per_s"] < 1.01 * 400  # no link is faster than it should be


def test_the_share_of_communication_is_a_finding(exchanged):
    shares = exchanged.findings()["What the network takes of a step"].data
    assert list(shares["variant"]) == ["this machine's loopback", "400 Mbit/s"]
    times = [row.normalized_time for row in exchanged.summary.rows[1:]]
    assert list(shares["share"]) == pytest.approx([max(1 - 1 / x, 0) for x in times])


@pytest.mark.long
def test_several_gpus_train_in_both_ways_as_far_as_a_cpu_can(photos, tmp_path):
    chosen = lab.experiment("data_parallel", data=str(photos), input_px=64, images=IMAGES)
    variants = {
        label: replace(its, device="cpu", step="small_classifier", batch_size=its.batch_size // 16)
        for label, its in chosen.settings.items()
        if "4 GPUs" not in label
    }
    found = lab.run(
        replace(chosen, variants=variants),
        blocks=1, results=tmp_path, progress=False,
    )  # fmt: skip
    one, at_once, ranks = found.summary.rows
    assert (one.status, ranks.status) == ("ok", "ok")
    assert ranks.labels["ranks"] == "2 processes, gradients exchanged by gloo, not buffers"
    assert at_once.reason.endswith("without GPUs DataParallel calls the model as it is")
    # As a run refuses it, its step trains here: as one of the same batch without it.
    whole = completed(**vars(variants["DataParallel, 2 GPUs"]))
    made = build(replace(whole, exchange="all_reduce"), SystemClock())
    steps = [made.step, STEPS[whole.step](whole, made.device)]
    for step in 2 * steps:
        step.backward(step.forward(made.resident_batch()))
    assert steps[1].loss() == steps[0].loss() != steps[0].first_loss()


@pytest.mark.skipif(gpu.cuda().works, reason="there is an NVIDIA GPU")
def test_without_gpus_the_claim_has_the_published_figures_alone(photos, tmp_path):
    chosen = lab.experiment("data_parallel", data=str(photos))
    assert chosen.variants["DataParallel, 2 GPUs"].published == pytest.approx(3.285, abs=5e-4)
    with pytest.raises(RuntimeError, match=f"must be able to run here, got: {gpu.cuda().reason}"):
        lab.run(chosen, results=tmp_path, progress=False)
    (claim,) = answers(tmp_path, numbers=[35])
    assert claim["group"] == "not testable"
    assert claim["answer"].startswith("not testable here: it takes two or more GPUs")
    assert "42.97 and 31.32 s with DataParallel" in claim["sides"][1]["says"]


def spoil(what, rank=1):
    """A decoder that goes wrong in one rank; functions in a function travel."""

    def decode(jpeg):
        distributed = torch.distributed
        if distributed.is_initialized() and distributed.get_rank() == rank:
            what()
        return decode_opencv(jpeg)

    return decode


def raises():
    raise ValueError("image must be what it was")


def the_first_images(source, settings):
    """A loader that does not divide the epoch: every rank has the same images."""
    order = source.order
    keys = list(Order(order.image_ids, settings.seed))[: len(order)]
    size = settings.batch_size
    batches = [keys[at : at + size] for at in range(0, len(keys), size)]
    return [source.collate([source[key] for key in batch]) for batch in batches]


def test_what_goes_wrong_in_a_rank_is_the_rows_reason_and_the_others_end(
    photos, tmp_path, monkeypatch
):
    monkeypatch.setitem(lab.DECODERS, "raises", spoil(raises))
    die = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731 - a function that travels
    monkeypatch.setitem(lab.DECODERS, "dies", spoil(die, rank=2))
    monkeypatch.setitem(lab.DECODERS, "first dies", spoil(die, rank=0))
    monkeypatch.setitem(lab.LOADERS, "first", the_first_images)
    variants = {
        "1": {},
        "raises": {"ranks": 2, "decoder": "raises"},
        "dies": {"ranks": 4, "decoder": "dies"},
        "first dies": {"ranks": 2, "decoder": "first dies"},
        "same images": {"ranks": 2, "loader": "first"},
    }
    # In the ranks themselves, not in their workers.
    found = run(photos, tmp_path, variants, loader="threads", num_workers=4)
    rows = {row.variant: row for row in found.summary.rows}
    assert rows["1"].status == "ok"
    assert rows["raises"].reason.endswith("image must be what it was")
    assert "RankEnded: rank 2 ended with status -9" in rows["dies"].reason
    assert "the trial's process was killed by SIGKILL" in rows["first dies"].reason
    not_all = r"the loader must deliver the epoch's 8 images, got [0-7]: not the same work"
    assert re.search(not_all, rows["same images"].reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ranks": 4, "num_workers": workers}, "num_workers must be a multiple of ranks (4), so "
         f"that each has equally many, got {workers}; choose {instead}")
        for workers, instead in ((0, 4), (2, 4), (6, 4), (9, 8))
    ] + [
        ({"ranks": 2, "loader": "tf_data"},
         "ranks must be 1 for the loader tf_data, which divides no epoch, got 2"),
        ({"ranks": 2, "storage": "modelled_hdd"},
         "ranks must be 1 for the storage modelled_hdd, which one process models, got 2"),
        ({"ranks": 2, "multiprocessing_context": "spawn"},
         "ranks must be 1 for processes started by spawn, got 2"),
        ({"ranks": 2, "exchange": "9mbit", "device": "cuda"}, "on device cuda, where no link is"),
        ({"ranks": 2, "exchange": "mbit"},
         "exchange must be one of <n>mbit, as 100mbit, all_reduce"),
        ({"ranks": 2, "exchange": "noop"}, "exchange must be all_reduce on the simulated GPU"),
        ({"ranks": 2, "exchange": "data_parallel_2", "device": "cpu"},
         "exchange must be another one on device cpu, got data_parallel_2: without GPUs"),
        ({"ranks": 2, "exchange": "data_parallel_2", "device": "cuda"},
         "ranks must be 1 for the exchange data_parallel_2"),
    ],
    ids=str,
)  # fmt: skip
def test_what_several_ranks_cannot_do_is_refused_with_the_reason(photos, changes, reason):
    with pytest.raises((Skip, ValueError), match=re.escape(reason)):
        resolve(completed(data=str(photos), **changes))
