"""The kind of a step's work is told by the functions it ends in."""

import io

import pytest
import torch

from labkit.diagnosis.step_work import kind_of, kinds_of


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (["/x/train.py:step", "/x/site-packages/torch/serialization.py:save"], "checkpoint"),
        (["/x/train.py:step", "<built-in>:fsync"], "checkpoint"),
        (["/x/train.py:step", "/usr/lib/python3/logging/__init__.py:emit"], "reports"),
        (["/x/train.py:step", "<built-in>:print"], "reports"),
        (["/x/train.py:step", "<built-in>:TensorBase.item"], "synchronization"),
        (["/x/train.py:step", "/x/train.py:count_boxes", "<built-in>:len"], "host work"),
        (["/x/train.py:step", "/x/train.py:count_boxes"], "host work"),
        (["/x/train.py:step", "/x/site-packages/torch/nn/linear.py:forward"], "compute"),
        (["/x/train.py:step", "<built-in>:_VariableFunctionsClass.zeros"], "compute"),
        (
            ["/x/train.py:step", "/x/site-packages/torch/nn/linear.py:f", "<built-in>:linear"],
            "compute",
        ),
    ],
)
def test_a_stack_is_of_the_kind_of_its_first_telling_name(stack, kind):
    assert kind_of(stack) == kind


def test_shares_of_a_real_step_add_up_and_the_largest_is_the_largest():
    weights = torch.zeros(2_000_000)

    def loop(n):
        return sum(i % 7 for i in range(n))

    def save_often():
        for _ in range(60):
            torch.save(weights, io.BytesIO())
            loop(2000)

    def loop_often():
        for _ in range(60):
            loop(100_000)

    saving = kinds_of(save_often)
    assert sum(saving.values()) == pytest.approx(1)
    assert max(saving, key=saving.get) == "checkpoint"
    looping = kinds_of(loop_often)
    assert max(looping, key=looping.get) == "host work"
