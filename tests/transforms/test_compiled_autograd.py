"""Compiled autograd: the backward of a whole graph is traced through the rules, and is right."""

import pytest
import torch
from torch.testing import assert_close

from ops import TABLE

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def test_backward():
    """One graph of all rows."""
    inputs = [row.inputs(requires_grad=True) for row in TABLE.values()]
    expected = [row.inputs(requires_grad=True) for row in TABLE.values()]
    sum(row.loss(row.reference)(*leaves) for row, leaves in zip(TABLE.values(), expected, strict=True)).backward()

    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        sum(row.loss(row.op)(*leaves) for row, leaves in zip(TABLE.values(), inputs, strict=True)).backward()
    for leaves, others in zip(inputs, expected, strict=True):
        assert_close([x.grad for x in leaves], [x.grad for x in others])
