"""NaN and infinity in attention: every kernel propagates them to the output and to lse as the reference does."""

import math

import torch
from tables import each
from torch import Tensor

from gallery_values import assert_near, interpreted, load, needs_compiler, random

flash = load("flash_attention")
varlen = load("flash_attention_varlen")
grads, varlen_grads = load("flash_attention_grad"), load("flash_attention_varlen_grad")

SHAPES = {"q": (1, 2, 3, 4), "k": (1, 1, 70, 4), "v": (1, 1, 70, 5), "bias": (3, 70)}  # keys of more than one block
specials = each("special", [math.nan, math.inf, -math.inf])
everywhere = each(("where", "index"), [("q", 5), ("k", 3), ("k", 270), ("v", 20), ("bias", 75)])


def inputs_with(special: float, where: str, index: int) -> dict[str, Tensor]:
    """Inputs with one special number."""
    inputs = {name: random(*shape, dtype=torch.float32, seed=n) for n, (name, shape) in enumerate(SHAPES.items())}
    inputs[where].view(-1)[index] = special
    return inputs


def assert_as_reference(found: tuple[Tensor, ...], inputs: dict[str, Tensor]) -> None:
    """Output and lse are what the reference gives."""
    expected = flash.flash_attention.__wrapped__(**inputs)
    for one, other in zip(found, expected, strict=True):
        assert_near(one, other.double(), torch.float32, 1e-5)


@needs_compiler
@specials
@everywhere
def test_cpp(special: float, where: str, index: int) -> None:
    inputs = inputs_with(special, where, index)
    found = flash.flash_attention_cpu(*inputs.values(), None, False)

    assert_as_reference(found, inputs)


@interpreted
@specials
@everywhere
def test_triton_interpreted(special: float, where: str, index: int) -> None:
    inputs = inputs_with(special, where, index)

    assert_as_reference(flash.flash_attention_cuda(*inputs.values(), None, False), inputs)


def packed_inputs(inputs: dict[str, Tensor]) -> list[Tensor]:
    rows = [inputs[name][0].transpose(0, 1).contiguous() for name in "qkv"]
    return [*rows, torch.tensor([0, 3]), torch.tensor([0, 70])]


@needs_compiler
@specials
@each(("where", "index"), [("q", 5), ("k", 3), ("k", 270), ("v", 20)])
def test_cpp_of_packed_sequences(special: float, where: str, index: int) -> None:
    inputs = inputs_with(special, where, index)
    del inputs["bias"]
    out, lse = varlen.flash_attention_varlen_cpu(*packed_inputs(inputs), None, False)

    assert_as_reference((out.transpose(0, 1)[None], lse[None]), inputs)


@interpreted
@specials
@each(("where", "index"), [("q", 5), ("k", 3), ("k", 270), ("v", 20)])
def test_triton_of_packed_sequences_interpreted(special: float, where: str, index: int) -> None:
    inputs = inputs_with(special, where, index)
    del inputs["bias"]
    out, lse = varlen.flash_attention_varlen_cuda(*packed_inputs(inputs), None, False)

    assert_as_reference((out.transpose(0, 1)[None], lse[None]), inputs)


@interpreted
@each(
    ("special", "where", "index"),
    [(math.inf, "q", 5), (math.inf, "k", 3), (math.inf, "k", 270), (-math.inf, "k", 270), (math.nan, "k", 270)],
)
@each("packed", [False, True])
def test_gradients_in_triton_interpreted(special: float, where: str, index: int, packed: bool) -> None:
    """A block of queries that is not whole: the rows that it lacks are zeros, which infinity turns into NaN."""
    inputs = inputs_with(special, where, index)
    del inputs["bias"]
    q, k, v = inputs.values()
    out_grad, delta = random(1, 2, 3, 5, dtype=torch.float32, seed=7), random(1, 2, 3, dtype=torch.float32, seed=8)
    lse = torch.full((1, 2, 3), 5.0)
    expected = grads.flash_attention_grad.__wrapped__(out_grad, q, k, v, None, lse, delta, 0.5, False)
    if packed:
        *rows, queries, keys = packed_inputs(inputs)
        rows.insert(0, out_grad[0].transpose(0, 1).contiguous())
        found = varlen_grads.flash_attention_varlen_grad_cuda(*rows, queries, keys, lse[0], delta[0], 0.5, False)
        found = tuple(one.transpose(0, 1)[None] for one in found)
    else:
        found = grads.flash_attention_grad_cuda(out_grad, q, k, v, None, lse, delta, 0.5, False)

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
