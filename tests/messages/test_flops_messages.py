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


def test_what_is_not_a_function():
    assert_expected_inline(
        message(lambda: product.register_flops(3)),
        """\
RegistrationError: flops_words::product: the flops rule is not callable
  expected   a function
  found      3
  declared   FILE.py:LINE""",
    )


def few(x):
    return 0


def many(x):
    return 10**9


def test_a_second_registration():
    op = returning("second", 0)
    op.register_flops(few, replace=True)

    assert_expected_inline(
        message(lambda: op.register_flops(many)),
        """\
RegistrationError: flops_words::second: the flops rule is already registered
  found      one at FILE.py:LINE, another at FILE.py:LINE
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
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
