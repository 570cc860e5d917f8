"""The kind of a step's work is told by the functions it ends in."""

import pytest

from labkit.diagnosis.step_work import kind_of


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
