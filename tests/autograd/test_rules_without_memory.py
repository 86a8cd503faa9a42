"""A rule that calls NumPy or Triton under a transform or a compiler raises an error that says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor

from custom_autograd import GradientError, custom_op
from custom_autograd.kernels import tl, triton_kernel
from custom_autograd.verification.harness.base import find_refusal
from gallery_values import interpreted

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@custom_op("memory::cube", reference=True)
def cube(x: Tensor) -> Tensor:
    return x**3


@cube.register_backward(once_differentiable=True)
def _(grad, x):
    return torch.from_numpy(3 * x.numpy() ** 2) * grad


@custom_op("memory::tangent", reference=True)
def tangent(x: Tensor) -> Tensor:
    return x**3


@tangent.register_jvp
def _(tangent_x, x):
    return torch.from_numpy(3 * x.numpy() ** 2) * tangent_x


def total(x):
    return cube(x).sum()


def without_lines(error):
    return "\n".join(line.partition("test_rules_without_memory.py")[0] for line in str(error).splitlines())


def test_under_grad_the_error_names_op_rule_and_remedy():
    with pytest.raises(GradientError) as caught:
        torch.func.grad(total)(torch.ones(3))

    assert find_refusal(caught.value) is None, "checks take it for a fault of the rule"
    assert_expected_inline(
        without_lines(caught.value),
        """\
memory::cube: the backward rule reads the memory of a tensor that has none
  expected   differentiable PyTorch operations, or ops: torch.func and torch.compile run the rule on tensors without \
memory, which NumPy, Triton and native code cannot read
  found      Cannot access data pointer of Tensor that doesn't have storage
  rule       \n\
  do         make that part of the rule an op of its own (custom_op), and call that op in the rule""",
    )


def test_under_vmap_of_grad_it_is_the_same():
    with pytest.raises(GradientError, match="make that part of the rule an op of its own"):
        torch.vmap(torch.func.grad(total))(torch.ones(2, 3))


def test_in_a_compiled_backward_it_is_part_of_what_the_compiler_raises():
    x = torch.ones(3, requires_grad=True)

    with pytest.raises(Exception, match="make that part of the rule an op of its own"):
        torch.compile(total, backend="aot_eager")(x).backward()


@custom_op("memory::by_address", reference=True)
def by_address(x: Tensor) -> Tensor:
    return x**3


@by_address.register_backward(once_differentiable=True)
def _(grad, x):
    square = np.from_dlpack(x.detach()) ** 2
    return 3 * torch.from_dlpack(square) * grad


def test_dlpack_in_a_compiled_backward_says_the_same():
    x = torch.ones(3, requires_grad=True)

    with pytest.raises(Exception, match="make that part of the rule an op of its own"):
        torch.compile(by_address, backend="aot_eager")(x)


def test_a_jvp_rule_says_the_same():
    x = torch.ones(2, 3)

    with pytest.raises(GradientError, match="the jvp rule reads the memory"):
        torch.vmap(lambda x: torch.func.jvp(tangent, (x,), (x,))[1])(x)


def test_plain_calls_are_as_they_were():
    x = torch.full((2,), 2.0, requires_grad=True)
    cube(x).sum().backward()

    assert [12.0, 12.0] == x.grad.tolist()


@triton_kernel
def multiply(x, y, out, length, block: tl.constexpr) -> None:
    index = tl.arange(0, block)
    mask = index < length
    tl.store(out + index, 2 * tl.load(x + index, mask=mask) * tl.load(y + index, mask=mask), mask=mask)


def doubled_product(grad: Tensor, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    multiply[(1,)](grad.contiguous(), x, out, x.numel(), block=4)
    return out


@custom_op("memory::square")
def square(x: Tensor) -> Tensor:
    return x**2


square.register_fake(torch.empty_like)
square.register_backward(doubled_product)


@custom_op("memory::square_as_in_torch")
def square_as_in_torch(x: Tensor) -> Tensor:
    return x**2


square_as_in_torch.register_fake(torch.empty_like)
square_as_in_torch.register_autograd(
    lambda ctx, grad: doubled_product(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@interpreted
@each("op", [square, square_as_in_torch])
def test_a_rule_that_launches_a_kernel_says_the_same(op):
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(torch.autograd.grad(op(x).sum(), x)[0], torch.full((3,), 2.0))

    for run in (
        lambda: torch.func.grad(lambda x: op(x).sum())(x),
        lambda: torch.func.jacrev(op)(x),
        lambda: torch.autograd.grad(op(x), x, torch.eye(3), is_grads_batched=True),
        lambda: torch.compile(lambda x: op(x).sum(), backend="aot_eager")(x),
    ):
        with pytest.raises(Exception, match="make that part of the rule an op of its own"):
            run()
