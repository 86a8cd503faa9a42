"""Ops that write to a view, wherever the written argument stands among the arguments: gradients are those of torch.

PyTorch takes the history of the base of a written view for that of the first tensor that a node takes.
"""

import pytest
import torch
from torch import Tensor

from custom_autograd import GradientError, custom_op


@custom_op("written_views::second", mutates_args=("total",))
def second(x: Tensor, total: Tensor) -> None:
    total.mul_(3).add_(x)


@second.register_backward
def _(grad_total):
    return {"x": grad_total, "total": 3 * grad_total}


@custom_op("written_views::behind_index", mutates_args=("total",))
def behind_index(index: Tensor, x: Tensor, total: Tensor) -> None:
    total.mul_(3).add_(x[index])


@behind_index.register_backward
def _(grad_total, index):
    return {"x": torch.zeros_like(grad_total).index_add(0, index, grad_total), "total": 3 * grad_total}


@custom_op("written_views::keyword", schema="(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", mutates_args="out")
def keyword(x, *, out):
    return out.mul_(3).add_(x)


@keyword.register_backward
def _(grad_out):
    return {"x": grad_out, "out": 3 * grad_out}


@custom_op("written_views::optional", mutates_args=("total",))
def optional(x: Tensor | None, total: Tensor, y: Tensor) -> None:
    total.mul_(3).add_(y)


@optional.register_backward
def _(grad_total):
    return {"x": None, "total": 3 * grad_total, "y": grad_total}


CALLS = {
    "second": second,
    "dispatcher": second.overload,
    "behind an index": lambda x, total: behind_index(torch.tensor([0, 1, 2]), x, total),
    "keyword": lambda x, total: keyword(x, out=total),
    "behind None": lambda x, total: optional(None, total, x),
    "behind a constant": lambda x, total: optional(torch.ones(2), total, x),
}
VIEWS = {
    "slice": lambda base: base[1:4],
    "reshaped": lambda base: base.view(2, 3)[0],
    "strided": lambda base: base[::2],
    "of a subclass": lambda base: base[1:4].as_subclass(type("Labelled", (Tensor,), {})),
}
NEEDS = {"x": (True, False), "base": (False, True), "both": (True, True)}


def in_torch(x, total):
    total.mul_(3).add_(x)


def gradients(call, view, needs):
    """The gradients of what the base holds after a write to a view of it."""
    leaves = [torch.ones(n, dtype=torch.float64, requires_grad=need) for n, need in zip((3, 6), needs, strict=True)]
    x, base = leaves[0], leaves[1].clone()
    call(x, view(base))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return [grad.tolist() for grad in torch.autograd.grad((base * torch.arange(1.0, 7)).sum(), wanted)]


@pytest.mark.parametrize("needs", NEEDS.values(), ids=NEEDS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_gradients_are_those_of_torch(call, view, needs):
    assert gradients(in_torch, view, needs) == gradients(call, view, needs)


def test_a_second_write_reads_what_the_first_has_written():
    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    base = torch.zeros(6)
    second(x, base[1:4])
    second(y, base[2:5])

    assert [[1.0, 3.0, 3.0], [1.0] * 3] == [g.tolist() for g in torch.autograd.grad(base.sum(), (x, y))]


def test_a_compiled_call_agrees(fresh_compiler):
    compiled = torch.compile(second, backend="aot_eager", fullgraph=True)
    view = VIEWS["slice"]

    assert gradients(in_torch, view, (True, True)) == gradients(compiled, view, (True, True))


def test_a_view_of_a_leaf_is_refused_before_it_is_written_to():
    leaf = torch.ones(6, requires_grad=True)
    with pytest.raises(GradientError, match="'total' is a leaf that requires a gradient, or a view of one"):
        second(torch.ones(3), leaf[1:4])

    assert [1.0] * 6 == leaf.tolist()
