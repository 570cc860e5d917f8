"""Made-up facts get the sentence that they deserve."""

from dataclasses import replace

import pytest

from labkit.diagnosis.answer import Cpu, Facts, Gpu, answer, lines, lines_of_ranks
from labkit.diagnosis.loops import Loader, Phase, Phases
from labkit.machine.cores import CoreLimits

LOADER = Loader(name="Photos, 2 workers", workers=2)
IDLE_CPU = Cpu(cores=8, process=1.0, workers=1.9, per_worker=0.95, busy_share=0.4)


def phase(wait_s, step_s, **more):
    known = {"loaders": (LOADER,), "steps": 100, "images": 3200}
    return Phase(wait_s=wait_s, step_s=step_s, **known | more)


def facts(training, *, validation=None, outside_s=0.0, unseen="", trains=True, **more):
    phases = Phases(
        training=training,
        validation=validation or Phase(),
        outside_s=outside_s,
        batches_per_update=1.0,
        unseen=unseen,
        trains=trains,
    )
    return Facts(**{"phases": phases, "computes_on": "cpu", "gpu": None, "cpu": IDLE_CPU} | more)


def gpu(utilization, others=0.0):
    gb = 10**9
    return Gpu(utilization=utilization, others=others, used_bytes=60 * gb, total_bytes=80 * gb)


BOUND, SLIGHTLY, FREE = phase(60, 40), phase(10, 90), phase(3, 97)


@pytest.mark.parametrize(
    ("made", "verdict", "speed_up", "words"),
    [
        (facts(BOUND), "problem", 2.5, "the run would be at most 2.5 times as fast"),
        (facts(SLIGHTLY), "small problem", 1 / 0.9, "at most 1.11 times as fast"),
        (facts(FREE), "no problem", None, "waits for data 3.0 % of its time"),
        # The whole run is bounded, also what is outside of loops.
        (facts(BOUND, outside_s=100), "problem", 1 / 0.7, "at most 1.43 times"),
        # What the validation waits is none of the training's, and is said.
        (facts(FREE, validation=phase(99, 1)), "problem", 1 / 0.49, "problem in the validation"),
        (facts(FREE, validation=phase(1, 1)), "no problem", None, "not the problem"),
        # A GPU that computes while the host waits loses nothing.
        (facts(BOUND, computes_on="cuda", gpu=gpu(0.97)), "no problem", None, "utilization 97.0 %"),
        (facts(BOUND, computes_on="cuda", gpu=gpu(0.5)), "problem", 2.0, "at most 2 times"),
        (facts(BOUND, computes_on="cuda", gpu=gpu(0.1)), "problem", 2.5, "at most 2.5 times"),
        (facts(BOUND, computes_on="cuda", gpu=gpu(0.9, 0.3)), "cannot tell", None, "other program"),
        (facts(BOUND, computes_on="cuda"), "cannot tell", None, "cannot be seen without NVML"),
        (facts(BOUND, computes_on="mps"), "cannot tell", None, "cannot be seen on mps"),
        (facts(FREE, computes_on="mps"), "no problem", None, "3.0 %"),
        (facts(FREE, computes_on="cuda", gpu=gpu(0.4)), "no problem", None, "is idle 60.0 % of it"),
        # What others wait for cannot be known in one of several ranks.
        (facts(BOUND, ranks=2), "problem", None, "may include waiting for other ranks"),
        # Workers that keep all cores busy slow the step down, so there is no bound.
        (
            facts(BOUND, cpu=replace(IDLE_CPU, cores=3)),
            "problem",
            None,
            "keep the cores busy, whi",
        ),
        (facts(BOUND, trains=False), "problem", 2.5, "the loop would be at most"),
        (facts(Phase(), unseen="nothing"), "cannot tell", None, "no DataLoader of torch"),
        (facts(Phase(), unseen="short"), "cannot tell", None, "too short"),
        (facts(Phase(), unseen="loader"), "cannot tell", None, "does not see"),
        (facts(Phase(), unseen="thread"), "cannot tell", None, "a thread takes the batches"),
    ],
)
def test_the_sentence_says_problem_no_problem_or_cannot_be_told(made, verdict, speed_up, words):
    said = answer(made)
    assert said.verdict == verdict
    assert said.speed_up == (speed_up and pytest.approx(speed_up))
    assert words in said.sentence
    start = {
        "problem": "Data loading is the problem",
        "small problem": "Data loading is a small part of the problem",
        "no problem": "Data loading is not the problem: ",
        "cannot tell": "Whether data loading is the problem cannot be told: ",
    }
    assert said.sentence.startswith(start[verdict])


def test_the_cause_of_waiting_in_the_validation_is_that_of_its_own_loader():
    validation = phase(99, 1, loaders=(Loader(name="", workers=0),))
    assert answer(facts(FREE, validation=validation)).cause.startswith("num_workers=0, so ")


@pytest.mark.parametrize(
    ("training", "cpu", "cause"),
    [
        (phase(60, 40, loaders=(Loader(name="", workers=0),)), None, "num_workers=0, so "),
        (phase(20, 40, prepare_s=40), IDLE_CPU, "the training process itself prepares batches"),
        (phase(60, 40, starts_s=50), IDLE_CPU, "at the start of epochs"),
        (BOUND, IDLE_CPU, "a worker uses 95.0 % of a core and cores are idle, so more workers may"),
        (BOUND, replace(IDLE_CPU, cores=2), "all 2 cores are busy, so more workers would not"),
        # An idle worker is no proof of a slow disk.
        (
            BOUND,
            replace(IDLE_CPU, per_worker=0.2, busy_share=0.9),
            "a worker uses 20.0 % of a core, and other programs keep the cores busy",
        ),
        (BOUND, replace(IDLE_CPU, per_worker=0.2), "for storage, a lock or one late batch"),
        (
            BOUND,
            replace(IDLE_CPU, cores=2, limits=CoreLimits(machine=16, affinity=2)),
            "all 2 cores are busy, so more workers would not help; this process may use 2 of the "
            "machine's 16 cores: the CPU affinity",
        ),
        (BOUND, None, ""),
    ],
)
def test_the_cause_is_named_as_far_as_it_shows(training, cpu, cause):
    said = answer(facts(training, cpu=cpu)).cause
    assert cause in said
    assert bool(said) == bool(cause)


def test_everything_fits_into_six_lines():
    training = phase(60, 40, median_wait_s=0.34, p99_wait_s=0.41, cycle=4)
    made = facts(training, validation=phase(5, 5), outside_s=20, computes_on="cuda", gpu=gpu(0.12))
    said = lines(made, "labkit diagnose train.py")
    assert said == [
        "Training: 100 batches, 32.0 images/s, waiting for data 60.0 % of the time "
        "(median 340 ms, 99th percentile 410 ms; most of it every 4 batches)",
        "Run: training 76.9 %, validation 7.7 % (waiting for data 50.0 % of it), "
        "outside loops 15.4 %",
        "GPU: utilization 12.0 %, memory 60 GB of 80 GB (memory in use says nothing about "
        "utilization); cores in use, of 8: training 1, workers 1.9",
        "Data loading is the problem: with loading that takes no time the run would be at most "
        "2 times as fast.",
        "Cause: a worker uses 95.0 % of a core and cores are idle, so more workers may help.",
        "Next: labkit diagnose train.py",
    ]


def test_nothing_follows_where_loading_is_not_the_problem():
    assert lines(facts(FREE), "labkit diagnose train.py")[-1].startswith("Data loading is not")


def rank(number, training):
    return facts(training, ranks=2).as_json() | {"rank": number}


def test_of_several_ranks_the_one_that_is_waited_for_is_named():
    made = facts(FREE, ranks=2)
    said = lines_of_ranks(made, [rank(1, BOUND), rank(0, FREE)], "labkit diagnose train.py")
    assert said[:3] == [
        "rank  images/s  waiting for data    step",
        "   0      32.0             3.0 %  970 ms",
        "   1      32.0            60.0 %  400 ms",
    ]
    assert (
        "Data loading is the problem: rank 1 waits for data 60.0 % of its time, and the other "
        "ranks, which wait for data at most 3.0 % of theirs, wait for it." in said
    )
    assert said[-1] == "Next: labkit diagnose train.py"


def test_ranks_that_wait_alike_wait_for_none_of_them():
    for training, start in ((FREE, "Data loading is not the problem"), (BOUND, "Cause: ")):
        said = lines_of_ranks(facts(FREE, ranks=2), [rank(0, training), rank(1, training)])
        assert not any("wait for it" in line for line in said)
        assert said[-1].startswith(start)
    # One rank that is known is no table.
    assert lines_of_ranks(facts(FREE, ranks=2), [rank(0, FREE)])[0].startswith("Training: ")
