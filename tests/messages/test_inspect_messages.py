"""What `inspect` says of values that have no graph."""

import torch
from expecttest import assert_expected_inline
from messages.shown import message

from custom_autograd import inspect


def test_a_tensor_that_nothing_recorded():
    assert_expected_inline(
        message(lambda: inspect(torch.ones(2, 3))),
        """\
CustomAutogradError: custom_autograd.inspect: nothing recorded the tensor
  expected   a tensor with grad_fn, a GradientEdge, a node, or a list of those
  found      a tensor of shape (2, 3) without grad_fn, which does not require a gradient
  do         compute it from tensors with requires_grad=True, outside of torch.no_grad(), and do not detach it""",
    )


def test_a_leaf():
    assert_expected_inline(
        message(lambda: inspect(torch.ones(2, requires_grad=True))),
        """\
CustomAutogradError: custom_autograd.inspect: the tensor is a leaf: nothing recorded it
  expected   a tensor with grad_fn, a GradientEdge, a node, or a list of those
  found      a tensor of shape (2,) without grad_fn
  do         pass a tensor that was computed from it""",
    )


def test_a_value_that_is_not_a_tensor():
    assert_expected_inline(
        message(lambda: inspect([torch.ones(2, requires_grad=True).exp(), 2.0])),
        """\
CustomAutogradError: custom_autograd.inspect: cannot inspect a value that has no graph
  expected   a tensor with grad_fn, a GradientEdge, a node, or a list of those
  found      float: 2.0""",
    )


def test_no_tensor_at_all():
    assert_expected_inline(
        message(lambda: inspect([])),
        """\
CustomAutogradError: custom_autograd.inspect: there is no tensor to begin at
  expected   a tensor with grad_fn, a GradientEdge, a node, or a list of those
  found      []""",
    )
