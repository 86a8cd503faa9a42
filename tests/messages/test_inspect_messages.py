"""What `inspect` says of values that have no graph."""

import torch
from expecttest import assert_expected_inline
from messages.shown import message, together

from custom_autograd import inspect


def test_values_without_a_graph():
    assert_expected_inline(
        together(
            message(lambda: inspect(torch.ones(2, 3))),
            message(lambda: inspect(torch.ones(2, requires_grad=True))),
            message(lambda: inspect([torch.ones(2, requires_grad=True).exp(), 2.0])),
            message(lambda: inspect([])),
        ),
        """\
CustomAutogradError: custom_autograd.inspect
nothing recorded the tensor
  expected   a tensor with grad_fn, a GradientEdge, a node, or a list of those
  found      a tensor of shape (2, 3) without grad_fn, which does not require a gradient
  do         compute it from tensors with requires_grad=True, outside of torch.no_grad(), and do not detach it
the tensor is a leaf: nothing recorded it
  expected   a tensor with grad_fn, a GradientEdge, a node, or a list of those
  found      a tensor of shape (2,) without grad_fn
  do         pass a tensor that was computed from it
cannot inspect a value that has no graph
  expected   a tensor with grad_fn, a GradientEdge, a node, or a list of those
  found      float: 2.0
there is no tensor to begin at
  expected   a tensor with grad_fn, a GradientEdge, a node, or a list of those
  found      []""",
    )
