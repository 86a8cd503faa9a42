"""Ops with autocast policies, each with what it should compute under autocast, written with casts by hand."""

from typing import NamedTuple

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op

LOW = torch.bfloat16


@custom_op("autocast::scaled", outputs=("out", "product"), hidden=("product",))
def scaled(x: Tensor, weight: Tensor, scale: Tensor, shift: float = 0.5) -> tuple[Tensor, Tensor]:
    product = x @ weight
    return product * scale + shift, product


@scaled.register_fake
def _(x, weight, scale, shift=0.5):
    product = x.new_empty(x.shape[0], weight.shape[1])
    return product * scale + shift, product


@scaled.register_backward
def _(grad, x, weight, scale, product, grad_product):
    inner = (grad * scale).to(x.dtype) + grad_product
    return {"x": inner @ weight.mT, "weight": x.mT @ inner, "scale": (grad * product).sum(0)}


scaled.register_autocast("cpu", {"x": "lower", "weight": "lower", "scale": "float32"}, output="input")


@scaled.register_samples
def _(make):
    yield Sample(make(4, 3), make(3, 5), make(5))


def scaled_by_hand(x, weight, scale, shift=0.5):
    return ((x.to(LOW) @ weight.to(LOW)) * scale.float() + shift).to(x.dtype)


@custom_op("autocast::derived", reference=True)
def derived(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return (x @ weight) * scale


derived.register_autocast("cpu", {"x": "lower", "weight": "lower"}, output="lower")


@derived.register_samples
def _(make):
    yield Sample(make(4, 3), make(3, 5), make(5))


def derived_by_hand(x, weight, scale):
    return ((x.to(LOW) @ weight.to(LOW)) * scale).to(LOW)


@custom_op("autocast::torch_style")
def torch_style(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return (x @ weight) * scale


torch_style.register_fake(lambda x, weight, scale: x.new_empty(x.shape[0], weight.shape[1]))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _torch_backward(ctx, grad):
    x, weight, scale = ctx.saved_tensors
    inner = grad * scale
    return inner @ weight.mT, x.mT @ inner, (grad * (x @ weight)).sum(0)


torch_style.register_autograd(_torch_backward, setup_context=_save)
torch_style.register_autocast(device_type="cpu", cast_inputs=LOW)


@torch_style.register_samples
def _(make):
    yield Sample(make(4, 3), make(3, 5), make(5))


def torch_style_by_hand(x, weight, scale):
    return (x.to(LOW) @ weight.to(LOW)) * scale.to(LOW)


@custom_op("autocast::precise", reference=True)
def precise(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return torch.softmax(x @ weight, -1) * scale


precise.register_autocast("cpu", "keep")


@precise.register_samples
def _(make):
    yield Sample(make(4, 3), make(3, 5), make(5))


def precise_by_hand(x, weight, scale):
    return torch.softmax(x @ weight, -1) * scale


BY_HAND = {
    "rules, hidden output": (scaled, scaled_by_hand),
    "reference": (derived, derived_by_hand),
    "drop-in": (torch_style, torch_style_by_hand),
    "keep": (precise, precise_by_hand),
}


@custom_op("autocast::joined", reference=True)
def joined(tensors: list[Tensor], *, bias: Tensor | None = None) -> Tensor:
    result = torch.cat(tensors)
    return result.clone() if bias is None else result + bias


joined.register_autocast("cpu", {"tensors": "promote", "bias": "promote"})


class Moments(NamedTuple):
    mean: Tensor
    square: Tensor


@custom_op("autocast::moments", reference=True)
def moments(x: Tensor) -> Moments:
    return Moments(x.mean(-1), x.square().mean(-1))


moments.register_autocast("cpu", "float32", output={"mean": "lower"})


@custom_op("autocast::halves", reference=True)
def halves(x: Tensor) -> list[Tensor]:
    return [x[:2] * 2, x[2:] * 3]


halves.register_autocast("cpu", "lower", output="float32")


@custom_op("autocast::add_product", mutates_args="total")
def add_product(total: Tensor, x: Tensor, weight: Tensor) -> None:
    total += (x @ weight).to(total.dtype)


@add_product.register_backward
def _(grad, x, weight):
    inner = grad.to(x.dtype)
    return {"total": grad, "x": inner @ weight.mT, "weight": x.mT @ inner}


add_product.register_autocast("cpu", "lower")


@add_product.register_samples
def _(make):
    yield Sample(make(4, 5), make(4, 3), make(3, 5))


@custom_op("autocast::two_devices", reference=True)
def two_devices(x: Tensor) -> Tensor:
    return x * 2


two_devices.register_autocast("cpu", LOW)
two_devices.register_autocast("cuda", torch.float16)
