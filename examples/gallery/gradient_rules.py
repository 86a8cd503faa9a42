"""The identity with another gradient: scaled by a factor, or reversed in sign for adversarial training.

    scale_grad(x, scale) = x,         with the derivative declared to be scale instead of 1
    reverse_grad(x, strength) = x,    with the derivative declared to be -strength

Shapes: x: any; out like x, and in eager mode x's own memory, as of a view; graphs and transforms get a copy.
Dtypes: every floating and complex dtype. A scale of 0 gives a gradient of zeros. Nothing is saved for the backward.
Source: Ganin and Lempitsky 2015, "Unsupervised Domain Adaptation by Backpropagation", equations 12 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from custom_autograd import Sample, custom_op


# aliases= lets a kernel return its argument: without it an op may not, and would have to copy x to do nothing.
@custom_op("gallery::scale_grad", outputs=("out",), aliases={"out": "x"}, shapes="x: *b -> out: *b")
def scale_grad(x: Tensor, scale: float) -> Tensor:
    """Returns x, and multiplies its gradient by scale."""
    return x


@custom_op("gallery::reverse_grad", outputs=("out",), aliases={"out": "x"}, shapes="x: *b -> out: *b")
def reverse_grad(x: Tensor, strength: float = 1.0) -> Tensor:
    """Returns x, and reverses its gradient: what comes before learns to mislead what comes after."""
    return x


# What is added is zero and has the derivative scale. It is NaN where x is infinite, so the reference only verifies:
# all that could be derived from it is registered below.
@scale_grad.register_reference
def _(x, scale):
    return x.detach() + scale * (x - x.detach())


@reverse_grad.register_reference
def _(x, strength):
    return x.detach() - strength * (x - x.detach())


@scale_grad.register_fake
def _(x, scale):
    return x


@reverse_grad.register_fake
def _(x, strength):
    return x


@scale_grad.register_backward
def _(grad, scale):
    return grad * scale


@reverse_grad.register_backward
def _(grad, strength):
    return grad * -strength


# Forward mode follows the declared derivative too: it would be inconsistent with reverse mode otherwise.
@scale_grad.register_jvp
def _(tangent_x, scale):
    return tangent_x * scale


@reverse_grad.register_jvp
def _(tangent_x, strength):
    return tangent_x * -strength


@scale_grad.register_vmap
def _(info, in_dims, x, scale):
    return scale_grad(x, scale), in_dims[0]


@reverse_grad.register_vmap
def _(info, in_dims, x, strength):
    return reverse_grad(x, strength), in_dims[0]


def samples(make: Callable[..., Tensor], identity: float, *others: float) -> Iterator[Sample]:
    """The factor at which the declared derivative is the true one, and others, where finite differences disagree."""
    yield Sample(make(3, 4), identity)
    yield Sample(make(), identity)
    yield Sample(make(0, 4), identity)
    for factor in others:
        declared = "the gradient is declared to be another than the derivative"
        yield Sample(make(2, 3), factor).xfail("gradcheck", "directional", reason=declared)


@scale_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield from samples(make, 1.0, 0.5, 0.0)


@reverse_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield from samples(make, -1.0, 1.0, 0.1)


if __name__ == "__main__":
    scale_grad.check()
    reverse_grad.check()
