"""Mutants with containers: a NamedTuple and a dict go in, a dataclass comes out, and a place is treated wrongly."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corpus.forms import Declared
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample, TensorFactory


class Affine(NamedTuple):
    """What the op is given: one tensor of two may be missing."""

    weight: Tensor
    bias: Tensor | None
    times: int


@dataclass
class Two:
    """What the op returns."""

    total: Tensor
    scaled: Tensor


def _default(x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Two:
    y = x * p.weight * p.times
    y = y if p.bias is None else y + p.bias
    return Two(y.clone(), y * gains["a"] + gains["b"])


def _kernel(x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Two:
    return _default(x, p, gains)


def _fake(x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Two:
    return Two(torch.empty_like(x), torch.empty_like(x))


def _backward(grad_total: Tensor, grad_scaled: Tensor, x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Any:
    grad = (grad_total + grad_scaled * gains["a"]) * p.times
    y = x * p.weight * p.times if p.bias is None else x * p.weight * p.times + p.bias
    bias = None if p.bias is None else grad_total + grad_scaled * gains["a"]
    return {
        "x": grad * p.weight,
        "p": {"weight": grad * x, "bias": bias},
        "gains": {"a": grad_scaled * y, "b": grad_scaled},
    }


def _samples(make: TensorFactory) -> Iterator[Sample]:
    yield Sample(make(2, 3), Affine(make(2, 3), make(2, 3), 2), {"a": make(2, 3), "b": make(2, 3)})
    yield Sample(make(4), Affine(make(4), None, 3), {"b": make(4), "a": make(4)})


CONTAINER = Declared(schema=None, samples=_samples, default=_default, kernel=_kernel, fake=_fake, backward=_backward)


def _swapped_keys(grad_total: Tensor, grad_scaled: Tensor, x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Any:
    found = _backward(grad_total, grad_scaled, x, p, gains)
    return {**found, "gains": {"a": found["gains"]["b"], "b": found["gains"]["a"]}}


def _dropped_place(grad_total: Tensor, grad_scaled: Tensor, x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Any:
    found = _backward(grad_total, grad_scaled, x, p, gains)
    return {**found, "p": {**found["p"], "weight": None}}


def _number_ignored(grad_total: Tensor, grad_scaled: Tensor, x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Any:
    return _backward(grad_total, grad_scaled, x, p._replace(times=1), gains)


def _swapped_results(x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Two:
    found = _default(x, p, gains)
    return Two(found.scaled, found.total)


def _first_key(x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Two:
    """Takes the gains in the order in which they were put into the dict."""
    first, second = gains.values()
    return _default(x, p, {"a": first, "b": second})


def _other_dtype(x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Two:
    return Two(torch.empty_like(x), torch.empty_like(x, dtype=torch.float64))


def _bias_left_out(info: Any, in_dims: Any, x: Tensor, p: Affine, gains: dict[str, Tensor]) -> Any:
    """Moves all that is batched to the front, and forgets what may be missing."""
    batch = info.batch_size

    def in_front(tensor: Tensor, dim: int | None) -> Tensor:
        return tensor.expand(batch, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    weight = in_front(p.weight, in_dims[1].weight)
    moved = {name: in_front(tensor, in_dims[2][name]) for name, tensor in gains.items()}
    found = _default(in_front(x, in_dims[0]), Affine(weight, None, p.times), moved)
    return found, {"total": 0, "scaled": 0}


FAMILY = "place of a container"
CONTAINERS: tuple[Mutant, ...] = (
    plant(
        "container_swapped_keys",
        FAMILY,
        "gradcheck",
        "The gradients of two keys of a dict are exchanged.",
        CONTAINER.but(backward=_swapped_keys),
    ),
    plant(
        "container_dropped_place",
        FAMILY,
        "gradcheck",
        "The gradient of one place of a NamedTuple is None.",
        CONTAINER.but(backward=_dropped_place),
    ),
    plant(
        "container_number_ignored",
        FAMILY,
        "gradcheck",
        "The backward takes a number in a NamedTuple to be one.",
        CONTAINER.but(backward=_number_ignored),
    ),
    plant(
        "container_swapped_results",
        FAMILY,
        "reference",
        "The kernel exchanges two fields of the dataclass that it returns.",
        CONTAINER.but(kernel=_swapped_results),
    ),
    plant(
        "container_order_of_keys",
        FAMILY,
        "reference",
        "The kernel takes the values of a dict in the order of its keys.",
        CONTAINER.but(kernel=_first_key),
    ),
    plant(
        "container_fake_dtype",
        FAMILY,
        "fake",
        "The fake gives one field of the dataclass another dtype.",
        CONTAINER.but(fake=_other_dtype),
    ),
    plant(
        "container_vmap_place",
        FAMILY,
        "vmap",
        "The batching rule leaves out the place of a NamedTuple that may be None.",
        CONTAINER.but(vmap=_bias_left_out),
    ),
)
