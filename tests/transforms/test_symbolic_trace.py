"""torch.fx.symbolic_trace records calls of ops, and what it records computes the same values and gradients."""

import pickle
from enum import Enum
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.fx import subgraph_rewriter, symbolic_trace
from torch.testing import assert_close

from custom_autograd import KernelError, custom_op


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Mode(Enum):
    SINE = 1
    COSINE = 2


@custom_op("symbolic_trace::gate", reference=True)
def gate(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@custom_op("symbolic_trace::sines", outputs=("sine", "both", "cosine"), hidden=("both",), reference=True)
def sines(x: Tensor, mode: Mode = Mode.SINE) -> tuple[Tensor, Tensor, Tensor]:
    return x.sin(), x.sin() * x.cos(), x.cos()


@custom_op("symbolic_trace::normed", outputs=("out", "scale"), hidden=("scale",), reference=True)
def normed(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.square().mean(-1, keepdim=True).rsqrt()
    return x * scale, scale


@custom_op("symbolic_trace::affine", reference=True)
def affine(x: Tensor, pair: Pair, sizes: dict[str, int] | None = None) -> Tensor:
    return x * pair.first + pair.second * (1 if sizes is None else sizes["rows"])


@custom_op("symbolic_trace::pair_of", reference=True)
def pair_of(x: Tensor) -> Pair:
    return Pair(x.sin(), x.cos())


@custom_op("symbolic_trace::cast", reference=True)
def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).sin()


@custom_op("symbolic_trace::add_to", mutates_args="x")
def add_to(x: Tensor, y: Tensor) -> None:
    x += y


add_to.register_backward(lambda grad: {"x": grad, "y": grad})


torch.fx.wrap("wrapped_cast")
torch.fx.wrap("wrapped_add")
wrapped_cast, wrapped_add = cast, add_to


def written(x):
    y = x * 1
    gate.inplace(y)
    return y


def added(x):
    y = x * 1
    wrapped_add(y, x)
    return y


CALLS = {
    "a tensor": lambda x: gate(x),
    "hidden outputs": lambda x: normed(x) * 2,
    "several outputs": lambda x: sines(x, Mode.COSINE)[0] + sines(x)[1],
    "a container": lambda x: affine(x, Pair(x * 2, x[0]), {"rows": x.shape[0]}),
    "a container as result": lambda x: pair_of(x).first + pair_of(x).second,
    "in place": written,
    "a name that is wrapped": lambda x: wrapped_cast(x, x.dtype),
    "a name of an op that writes": added,
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_recorded_computes_the_same(name):
    call, x = CALLS[name], torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    expected, traced = call(x), symbolic_trace(call)
    traced.graph.eliminate_dead_code()  # which keeps what is written
    traced.recompile()
    found = traced(x)

    assert_close(found, expected)
    assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x))
    assert_close(pickle.loads(pickle.dumps(traced))(x), expected)


def test_out_variants_are_recorded():
    x = torch.rand(3, 4)

    assert_close(symbolic_trace(lambda x: gate.out(x, out=torch.empty(0)))(x), gate(x))


def test_a_pattern_may_hold_an_op_with_hidden_outputs():
    """torch.fx refuses a pattern in which a node is not used."""
    traced = symbolic_trace(lambda x: normed(x + 1) * 2)

    assert 1 == len(subgraph_rewriter.replace_pattern(traced, lambda x: normed(x), lambda x: gate(x)))
    x = torch.rand(3, 4)
    assert_close(traced(x), gate(x + 1) * 2)


@pytest.mark.parametrize("call", [lambda x: cast(x, x.dtype), lambda x: affine(x, x)], ids=["dtype", "container"])
def test_what_must_be_known_raises_with_advice(call):
    with pytest.raises(KernelError, match=r"torch\.fx\.wrap"):
        symbolic_trace(call)
