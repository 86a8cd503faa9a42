"""What a registration of FLOPs is answered with when it does not fit."""

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from custom_autograd import custom_op


@custom_op("flops_words::product")
def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def counted(op) -> None:
    with FlopCounterMode(display=False):
        op(torch.ones(2, 3), torch.ones(3, 4))


def returning(name: str, value: object):
    op = custom_op(f"flops_words::{name}", lambda x, y: x @ y, schema="(Tensor x, Tensor y) -> Tensor")
    op.register_flops(lambda x: value)
    return op


def test_parameters_that_name_nothing():
    assert_expected_inline(
        together(
            message(lambda: product.register_flops(lambda x, weights: 0)),
            message(lambda: product.register_flops(lambda output: 0)),
            message(lambda: product.register_flops(lambda x: 0, backward=lambda grad: 0)),
        ),
        """\
RegistrationError: flops_words::product
  rule       FILE.py:LINE
  declared   FILE.py:LINE
the flops rule has a parameter 'weights' that names nothing
  expected   'x', 'weight'
  found      'weights'
  do         did you mean 'weight'?
the flops rule has a parameter 'output' that names nothing
  expected   'x', 'weight'
  found      'output'
  do         name an input, an output, or what else is listed
the backward flops rule has a parameter 'grad' that names nothing
  expected   'x', 'weight', 'needs'
  found      'grad'
  do         name an input, an output, or what else is listed""",
    )


@pytest.mark.parametrize("value", [True, None, 2.0, "2"], ids=repr)
def test_what_is_not_an_int_raises(value):
    with pytest.raises(RuntimeError, match="does not return a number of floating-point operations"):
        counted(returning(f"returning_{type(value).__name__}", value))


def test_a_negative_number():
    assert_expected_inline(
        message(lambda: counted(returning("negative", -1))),
        """\
RegistrationError: flops_words::negative: the flops rule does not return a number of floating-point operations
  expected   an int, 0 or more
  found      -1
  rule       FILE.py:LINE, flops
  declared   FILE.py:LINE
  do         compute it from the sizes: 2 * m * k * n for a matrix product""",
    )
