"""Ops of the gallery under autocast take what a model in mixed precision gives them: halves beside float32."""

import pytest
import torch
from tables import each
from torch import Tensor

from gallery_values import load, needs_compiler, random

LENGTHS = torch.tensor([0, 2, 5])


def of(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, dtype=torch.float32, seed=seed)


# Op -> file, arguments, what the policy makes of those in float32 where the first one is in bfloat16.
CASES = {
    "flash_attention": ("flash_attention", [of(1, 2, 5, 4, seed=seed) for seed in range(3)], torch.bfloat16),
    "flash_attention_varlen": (
        "flash_attention_varlen",
        [*(of(5, 2, 4, seed=seed) for seed in range(3)), LENGTHS, LENGTHS],
        torch.bfloat16,
    ),
    "swiglu": ("gated_units", [of(3, 8), of(3, 8, seed=1)], torch.float32),
    "geglu": ("gated_units", [of(3, 8), of(3, 8, seed=1)], torch.float32),
    "fft_conv": ("fft_conv", [of(2, 3, 7), of(3, 7, seed=1), of(3, seed=2)], torch.float32),
    "selective_scan": (
        "selective_scan",
        [of(1, 2, 3), of(1, 2, 3, seed=1).abs(), -of(2, 2, seed=2).abs(), of(1, 2, 3, seed=3), of(1, 2, 3, seed=4)],
        torch.float32,
    ),
    "tridiagonal_solve": (
        "tridiagonal_solve",
        [of(2, 4), 4 + of(2, 4, seed=1).abs(), of(2, 4, seed=2), of(2, 4, seed=3)],
        torch.float32,
    ),
}
KEPT = {"selective_scan": {2}}
"""Positions of arguments that the policy leaves as they are."""


def with_gradients(op: object, arguments: list[Tensor]) -> list[Tensor]:
    outputs = op(*arguments)
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    inputs = [x for x in arguments if x.requires_grad]
    return [first, *torch.autograd.grad(first.float().square().sum(), inputs)]


@needs_compiler
@each("name", CASES)
def test_halves_beside_float32_are_cast_as_the_policy_says(name: str) -> None:
    file, tensors, dtype = CASES[name]
    op = getattr(load(file), name)
    given = [tensors[0].bfloat16(), *tensors[1:]]
    given = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
    cast = [
        x.detach().to(dtype if position not in KEPT.get(name, ()) else x.dtype).requires_grad_()
        if x.is_floating_point()
        else x
        for position, x in enumerate(given)
    ]

    expected = with_gradients(op, cast)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(op, given)

    assert [x.dtype for x in found[1:]] == [x.dtype for x in given if x.is_floating_point()]
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0)
    for one, other in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=0, atol=0)


@each("name", CASES)
def test_without_autocast_they_refuse_a_mixture(name: str) -> None:
    file, tensors, _ = CASES[name]
    with pytest.raises((TypeError, ValueError), match="dtype"):
        getattr(load(file), name)(tensors[0].bfloat16(), *tensors[1:])


@needs_compiler
def test_tables_of_rope_in_two_dtypes_have_gradients_in_theirs() -> None:
    rope = load("rope").rope
    x, cos, sin = of(2, 5, 8), of(5, 4, seed=1), of(5, 4, seed=2)
    given = [x.requires_grad_(), cos.bfloat16().requires_grad_(), sin.double().requires_grad_()]
    exact = [y.detach().double().requires_grad_() for y in given]

    found, expected = with_gradients(rope, given), with_gradients(rope.__wrapped__, exact)

    assert [torch.float32, torch.float32, torch.bfloat16, torch.float64] == [y.dtype for y in found]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2**-7, atol=1e-2)
