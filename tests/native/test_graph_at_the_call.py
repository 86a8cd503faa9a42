"""The graph of a native call is that before its kernel runs, and those who ask hear of its node."""

import pytest
import torch
from torch import Tensor
from torch.autograd import graph

from custom_autograd import custom_op
from custom_autograd.native.loading import library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)


def declare(name, change):
    """Return an op that multiplies, and the list whose truth says that its kernel changes its input first."""
    changes = []

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        if changes:
            change(x)
        return x * y

    op = custom_op(f"graph_at::{name}", kernel, replace=True)
    op.register_backward(lambda grad, x, y: (grad * y, grad * x))
    for _ in range(2):
        op(torch.ones(3, requires_grad=True) * 1, torch.ones(3))
        op(torch.ones(3, requires_grad=True), torch.ones(3))
    assert op._native.count_kinds()
    changes.append(True)
    return op


def test_a_kernel_that_detaches_its_input_loses_no_gradient():
    op = declare("detached", lambda x: x.detach_())
    leaf = torch.ones(3, requires_grad=True)

    op(leaf * 2, torch.ones(3)).sum().backward()

    assert [2.0, 2.0, 2.0] == leaf.grad.tolist()


def test_a_kernel_that_records_a_write_changes_no_edge():
    w = torch.ones(3, requires_grad=True)

    def write(x):
        with torch.enable_grad():
            x.mul_(w)

    op = declare("written", write)
    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 1
    before = x.grad_fn

    out = op(x, torch.ones(3))

    assert before is out.grad_fn.next_functions[0][0]


def test_a_kernel_that_gives_a_leaf_another_dtype_changes_no_gradient():
    def exchange(x):
        x.data = torch.ones(3, dtype=torch.float64)

    op = declare("exchanged", exchange)
    x = torch.ones(3, requires_grad=True)

    op(x, torch.ones(3)).sum().backward()

    assert ([1.0, 1.0, 1.0], torch.float32) == (x.grad.tolist(), x.grad.dtype)


@pytest.mark.skipif(not hasattr(graph, "node_creation_hook"), reason="node_creation_hook came with torch 2.14")
def test_those_who_ask_hear_of_a_complete_node():
    def setup(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    by_name = declare("heard", lambda x: None)
    drop_in = custom_op("graph_at::drop_in", lambda x, y: x * y, schema="(Tensor x, Tensor y) -> Tensor")
    drop_in.register_autograd(lambda ctx, grad: (grad, grad), setup_context=setup)
    for op in (by_name, drop_in):
        for _ in range(4):
            heard = heard_in(op)

            assert ["torch::autograd::AccumulateGrad", f"{op.name}Backward"] == [name for name, _ in heard]
            assert 2 == len(heard[1][1])


def heard_in(op):
    heard = []
    with graph.node_creation_hook(lambda node: heard.append((node.name(), getattr(node, "saved_tensors", ())))):
        op(torch.ones(3, requires_grad=True), torch.ones(3))
    return heard


@pytest.mark.skipif(not hasattr(graph, "node_creation_hook"), reason="node_creation_hook came with torch 2.14")
def test_a_hook_that_raises_leaves_the_op_as_it_was():
    op = declare("raising", lambda x: None)
    x, y = torch.ones(3, requires_grad=True), torch.ones(3)

    def raising(node):
        if "raising" in node.name():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), graph.node_creation_hook(raising):
        op(x, y)
    op(x, y).sum().backward()

    assert [1.0, 1.0, 1.0] == x.grad.tolist()
