"""NaN and infinity in attention: every kernel propagates them to the output and to lse as the reference does."""

import math
from collections.abc import Callable

import pytest
import torch
from tables import each
from torch import Tensor

from gallery_values import INTERPRETED, assert_near, interpreted, load, needs_compiler, random

flash = load("flash_attention")
varlen = load("flash_attention_varlen")
grads, varlen_grads = load("flash_attention_grad"), load("flash_attention_varlen_grad")

SHAPES = {"q": (1, 2, 3, 4), "k": (1, 1, 70, 4), "v": (1, 1, 70, 5), "bias": (3, 70)}  # keys of more than one block


def inputs_with(special: float, where: str, index: int) -> dict[str, Tensor]:
    """Inputs with one special number."""
    inputs = {name: random(*shape, dtype=torch.float32, seed=n) for n, (name, shape) in enumerate(SHAPES.items())}
    inputs[where].view(-1)[index] = special
    return inputs


def packed_inputs(inputs: dict[str, Tensor]) -> list[Tensor]:
    rows = [inputs[name][0].transpose(0, 1).contiguous() for name in "qkv"]
    return [*rows, torch.tensor([0, 3]), torch.tensor([0, 70])]


def dense(kernel: Callable[..., tuple[Tensor, Tensor]], inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return kernel(*inputs.values(), None, False)


def packed(kernel: Callable[..., tuple[Tensor, Tensor]], inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    out, lse = kernel(*packed_inputs(inputs), None, False)
    return out.transpose(0, 1)[None], lse[None]


PLACES = [("q", 5), ("k", 3), ("k", 270), ("v", 20)]
KERNELS = [
    pytest.param(dense, flash.flash_attention_cpu, marks=needs_compiler, id="cpp"),
    pytest.param(dense, flash.flash_attention_cuda, marks=INTERPRETED, id="triton"),
    pytest.param(packed, varlen.flash_attention_varlen_cpu, marks=needs_compiler, id="cpp, packed"),
    pytest.param(packed, varlen.flash_attention_varlen_cuda, marks=INTERPRETED, id="triton, packed"),
]


@pytest.mark.parametrize(("call", "kernel"), KERNELS)
@each("special", [math.nan, math.inf, -math.inf])
def test_output_and_lse_are_those_of_the_reference(call, kernel, special: float) -> None:
    for where, index in [*PLACES, ("bias", 75)] if call is dense else PLACES:
        inputs = inputs_with(special, where, index)
        if call is packed:
            del inputs["bias"]
        expected = flash.flash_attention.__wrapped__(**inputs)

        for one, other in zip(call(kernel, inputs), expected, strict=True):
            assert_near(one, other.double(), torch.float32, 1e-5)


@interpreted
@each(
    ("special", "where", "index"),
    [(math.inf, "q", 5), (math.inf, "k", 3), (math.inf, "k", 270), (-math.inf, "k", 270), (math.nan, "k", 270)],
)
@each("is_packed", [False, True])
def test_gradients_in_triton_interpreted(special: float, where: str, index: int, is_packed: bool) -> None:
    """A block of queries that is not whole: the rows that it lacks are zeros, which infinity turns into NaN."""
    inputs = inputs_with(special, where, index)
    del inputs["bias"]
    q, k, v = inputs.values()
    out_grad, delta = random(1, 2, 3, 5, dtype=torch.float32, seed=7), random(1, 2, 3, dtype=torch.float32, seed=8)
    lse = torch.full((1, 2, 3), 5.0)
    expected = grads.flash_attention_grad.__wrapped__(out_grad, q, k, v, None, lse, delta, 0.5, False)
    if is_packed:
        *rows, queries, keys = packed_inputs(inputs)
        rows.insert(0, out_grad[0].transpose(0, 1).contiguous())
        found = varlen_grads.flash_attention_varlen_grad_cuda(*rows, queries, keys, lse[0], delta[0], 0.5, False)
        found = tuple(one.transpose(0, 1)[None] for one in found)
    else:
        found = grads.flash_attention_grad_cuda(out_grad, q, k, v, None, lse, delta, 0.5, False)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
