"""Ops that save in every way there is, and graphs of them: with nodes of Python, and with native ones."""

import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.native.loading import library
from custom_autograd.native.native_calls import NativeCalls

KINDS = ("python", "native")


@custom_op("inspected::norm", outputs=["out", "rstd"], hidden=["rstd"])
def norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * rstd if weight is None else x * rstd * weight), rstd


@norm.register_backward
def _(grad_out, x, weight, rstd, eps):
    gradient = grad_out * rstd + eps * x
    return {"x": gradient, "weight": None if weight is None else (gradient * x).sum(0)}


@custom_op("inspected::join")
def join(tensors: list[Tensor], factor: float) -> Tensor:
    return torch.cat(list(tensors)) * factor


@join.register_backward
def _(grad, tensors, factor):
    return [part * factor for part in grad.split([len(tensor) for tensor in tensors])]


@custom_op("inspected::cube")
def cube(x: Tensor, power: int = 3) -> Tensor:
    return x**power


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], None)
    ctx.power = inputs[1]


def _backward(ctx, grad):
    x, _ = ctx.saved_tensors
    return grad * ctx.power * x ** (ctx.power - 1), None


cube.register_autograd(_backward, setup_context=_setup)


@custom_op("inspected::parked")
def parked(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def _park(ctx, inputs, output):
    ctx.factors = list(inputs)
    ctx.mode = "product"


def _of_parked(ctx, grad):
    x, y = ctx.factors
    return grad * y, grad * x


parked.register_autograd(_of_parked, setup_context=_park)


class Doubled(torch.autograd.Function):
    """A Function of other people, which keeps a tensor and a number on ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.kept = x.detach()[:1].clone()
        ctx.factor = 2
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor


def recorded(kind, op, *args):
    """The result of a call whose node is of a kind."""
    NativeCalls.are_learnt = kind == "native"
    op._record.forget()
    try:
        for _ in range(4):
            result = op(*args)
    finally:
        NativeCalls.are_learnt = True
    is_native = library.module is not None and isinstance(result.grad_fn, library.module.Node)
    assert is_native == (kind == "native" and op is not parked)
    return result


def leaf(*shape):
    """A tensor of ones that requires a gradient."""
    return torch.ones(*shape, requires_grad=True)


def saved_of(node):
    """Name, role, shape, bytes and held bytes of what a row shows."""
    return [(one.name, one.role, one.shape, one.bytes, one.held_bytes) for one in node.tensors]
