"""What the host does in a step is divided among kinds of work."""

import io
import logging
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

import labkit
from labkit.diagnosis.advice import advice_in_step
from labkit.diagnosis.gpu import kinds_of
from tests.processes import PATIENCE_S


def test_a_slow_clock_does_not_print_advice_that_nobody_can_follow():
    script = (
        "from labkit.diagnosis.gpu import kinds_of; from pyinstrument import stack_sampler;"
        "stack_sampler._timing_overhead = {'walltime': 1e-6}; kinds_of(lambda: None, on_gpu=False)"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stderr) == (0, "")


def save():
    torch.save(torch.ones(10_000), io.BytesIO())


def report():
    logger = logging.Logger("training")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    for step in range(100):
        logger.info("step %d", step)


def count_boxes():
    return sum(1 for box in range(10_000) if box % 3)


def multiply():
    torch.mm(torch.ones(500, 500), torch.ones(500, 500))


def recompute():
    x = torch.ones(300, 300, requires_grad=True)
    checkpoint(torch.mm, x, x, use_reentrant=False).sum().backward()


MODEL = torch.nn.Sequential(*(torch.nn.Linear(30, 30) for _ in range(20)))
AVERAGED = AveragedModel(MODEL, avg_fn=lambda old, new, count: 0.9 * old + 0.1 * new)


def average():
    AVERAGED.update_parameters(MODEL)


class ModelEMA:
    def __init__(self):
        self.weights = [torch.ones(100) for _ in range(100)]

    def update(self):
        for weight in self.weights:
            weight.mul_(0.9).add_(weight, alpha=0.1)


OWN = ModelEMA()
BAR = tqdm(total=10**9, file=io.StringIO(), mininterval=0)


def show_loss():
    BAR.set_postfix(loss=1.0)


def smooth():
    cv2.bilateralFilter(np.ones((100, 100, 3), np.uint8), 9, 50, 50)


RUN = """
def run():
    until_s = time.perf_counter() + 0.1
    while time.perf_counter() < until_s:
        work()
"""


@pytest.mark.parametrize(
    ("work", "on_gpu", "kind"),
    [
        (save, False, "checkpoint"),
        (report, False, "reports"),
        (count_boxes, False, "host work"),
        (multiply, False, "compute"),
        (multiply, True, "launch"),
        (recompute, False, "compute"),  # torch.utils.checkpoint saves nothing
        (smooth, True, "compute"),
    ],
)
def test_most_of_a_steps_time_is_of_the_kind_of_its_work(work, on_gpu, kind):
    work()  # imports what it needs
    names = {"work": work, "time": time}
    # A folder's name does not say what a script does.
    exec(compile(RUN, "/home/me/mlflow-project/train.py", "exec"), names)

    def save_model():  # nor does its caller's
        return kinds_of(names["run"], on_gpu=on_gpu)

    kinds = save_model()
    assert max(kinds, key=lambda kind: kinds[kind].share) == kind
    assert kinds[kind].function == work.__name__
    assert sum(one.share for one in kinds.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("work", "kind", "function"),
    [
        (average, "launch", "torch.AveragedModel.update_parameters"),
        (OWN.update, "launch", "ModelEMA.update"),
        (show_loss, "reports", "tqdm.tqdm.set_postfix"),
    ],
)
def test_a_function_that_has_advice_is_named_with_its_class(work, kind, function):
    work()

    def step():
        for _ in range(100):
            work()

    kinds = kinds_of(step, on_gpu=True)
    assert kinds[kind].function == function
    assert advice_in_step(function)


def test_work_of_a_script_itself_is_not_of_the_function_that_runs_the_script():
    # As in `labkit diagnose train.py`, whose training runs in a greenlet beside the diagnosis.
    cli = {}
    path = Path(labkit.__file__).with_name("cli.py")
    exec(compile("def _diagnose(code): exec(code)", path, "exec"), cli)
    loop = compile("for box in range(2_000_000): box % 3", "/home/me/train.py", "exec")
    kinds = kinds_of(lambda: cli["_diagnose"](loop), on_gpu=False)
    assert kinds["host work"].share > 0.5
    assert "_diagnose" not in {kind.function for kind in kinds.values()}
