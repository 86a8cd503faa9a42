"""A Function that launches a kernel in Triton's interpreter does not fail because of the interpreter's limits."""

from __future__ import annotations

import torch
from tables import each
from verdicts import verdict

from custom_autograd.kernels import tl, triton_kernel
from custom_autograd.schema.samples import Sample
from gallery_values import interpreted


@triton_kernel
def multiply(x, y, out, length, block: tl.constexpr) -> None:
    index = tl.program_id(0) * block + tl.arange(0, block)
    mask = index < length
    tl.store(out + index, tl.load(x + index, mask=mask) * tl.load(y + index, mask=mask), mask=mask)


def product(x, y):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    multiply[(-(-x.numel() // 4),)](x.contiguous(), y.contiguous(), out, x.numel(), block=4)
    return out


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return product(x, y)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return product(grad, y), product(grad, x)


SAMPLES = [Sample(torch.linspace(-1, 2, 5).requires_grad_(), torch.linspace(1, 3, 5).requires_grad_())]


@interpreted
@each(
    "check, reason",
    [
        ("threads", "its kernels run in Triton's interpreter, which one thread at a time may use"),
        ("compile", "its kernels run in Triton's interpreter, which a graph cannot hold"),
        ("compiled_autograd", "its kernels run in Triton's interpreter, which a graph cannot hold"),
        ("low_precision", "its kernels run in Triton's interpreter, which does not calculate in bfloat16"),
    ],
)
def test_a_limit_of_the_interpreter_is_no_finding(check, reason):
    result = verdict(check, SAMPLES)(Product)
    assert result.status in ("passed", "skipped")
    assert reason in result.message


@interpreted
def test_the_rest_passes():
    assert verdict("gradcheck", SAMPLES)(Product).status == "passed"
    assert verdict("layouts", SAMPLES)(Product).status == "passed"
