"""Compiled autograd: the backward of a whole graph is traced through the rules, and is right."""

import pytest
import torch
from tables import each
from torch.testing import assert_close

from ops import TABLE

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@each("row", TABLE.values(), ids=TABLE)
def test_backward(row):
    inputs, expected = row.inputs(requires_grad=True), row.inputs(requires_grad=True)
    row.loss(row.reference)(*expected).backward()

    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        row.loss(row.op)(*inputs).backward()
    assert_close([x.grad for x in inputs], [x.grad for x in expected])
